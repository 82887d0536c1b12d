/* SPDX-License-Identifier: Apache-2.0 */
/* Frames larger than the ring, between processes. (Those that die are in test_lifecycle and in the
 * kill campaign.) */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "shm/topology.h"
#include "tests/support/children.h"
#include "tests/support/handles.h"
#include "tests/support/pattern.h"

static const uint64_t MIB = 1 << 20;

static ringcast_writer *make_writer(uint64_t capacity, uint64_t spill_bytes) {
  return writer_of(.capacity = capacity, .readers = 8, .spill_bytes = spill_bytes);
}

/* ---- Size ------------------------------------------------------------------------------------ */

static const size_t GIB = (size_t)1 << 30;

static void read_a_gibibyte(void *handle) {
  ringcast_reader *reader;
  struct ringcast_frame frame;
  remember();
  child_must(ringcast_reader_attach(handle, &reader) == 0);
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == 0);
  child_must(frame.bytes == GIB && frame.kind == 77);
  child_must(pattern_matches(frame.data, frame.bytes, 5));
  child_must(ringcast_reader_release(reader, &frame) == 0);
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == -EPIPE);
  ringcast_reader_close(reader);
  nothing_is_left();
}

TEST(a_gibibyte_reaches_two_readers_byte_for_byte) {
  if (cannot_under("qemu", __func__,
                   "qemu keeps a note of each page, so rings have less spill memory there"))
    return;
  struct rc_room room;
  struct ringcast_span span;
  rc_topology_room(&room);
  if (room.bytes < 2 * GIB) {
    tell_skipped(__func__, "less than 2 GiB of memory are free");
    return;
  }
  ringcast_writer *writer = make_writer(0, 0);
  pid_t children[2];
  for (int i = 0; i < 2; i++)
    children[i] = start_child(read_a_gibibyte, (void *)ringcast_writer_handle(writer));
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 2, RINGCAST_FOREVER), 2);
  ck_assert_int_eq(ringcast_writer_reserve(writer, GIB, RINGCAST_FOREVER, &span), 0);
  pattern_fill(span.data, GIB, 5);
  ck_assert_int_eq(ringcast_writer_commit(writer, GIB, 77), 0);
  ringcast_writer_close(writer);
  for (int i = 0; i < 2; i++) child_must_succeed(children[i]);
}

/* ---- All sizes ------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__)
enum { FRAMES = 2000 };
#else
enum { FRAMES = 10000 };
#endif

/* Most frames stay in the ring of 64 KiB; some need a few MiB. Readers hold one frame while they
 * wait for the next frame: wherever the first lies in 20 MiB, there is a gap for the next, and for
 * what is reserved beyond need. */
static size_t mixed_bytes(uint64_t number) {
  uint64_t random = mix(number);
  return (size_t)(random % 40 == 0  ? (random >> 8) % (5 * MIB)
                  : random % 8 == 1 ? (random >> 8) % 70000
                                    : (random >> 8) % 500) &
         ~(size_t)7;
}

static void read_mixed(void *handle) {
  struct ringcast_frame held[2];
  ringcast_reader *reader = reader_at(handle, .leases = 2);
  for (uint64_t n = 0, first = 0; first < FRAMES; n++) {
    if (n < FRAMES) {
      struct ringcast_frame *frame = &held[n % 2];
      child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, frame) == 0);
      child_must(frame->kind == (uint16_t)n && frame->bytes == mixed_bytes(n));
    }
    if (n == 0) continue;
    child_must(pattern_matches(held[first % 2].data, held[first % 2].bytes,
                               first)); /* read one frame late */
    child_must(ringcast_reader_release(reader, &held[first % 2]) == 0);
    first++;
  }
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &held[0]) == -EPIPE);
  ringcast_reader_close(reader);
}

static void tap_mixed(void *handle) {
  ringcast_tap *tap;
  struct ringcast_frame frame;
  int result;
  uint64_t copied = 0, bytes, gaps, n = 0;
  child_must(ringcast_tap_attach(handle, &tap) == 0);
  while ((result = ringcast_tap_next(tap, RINGCAST_FOREVER, &frame)) == 0) {
    while (n < FRAMES && (frame.kind != (uint16_t)n || frame.bytes != mixed_bytes(n)))
      n++; /* those that it lost */
    child_must(n < FRAMES);
    child_must(pattern_matches(frame.data, frame.bytes, n++));
    copied++;
  }
  child_must(result == -EPIPE);
  child_must(ringcast_tap_lost(tap, &bytes, &gaps) == 0);
  child_must(copied == FRAMES || gaps > 0);
  printf("tap: %llu of %d frames copied, %llu gaps\n", (unsigned long long)copied, FRAMES,
         (unsigned long long)gaps);
  fflush(stdout);
  ringcast_tap_close(tap);
}

LOOP_TEST(large_and_small_frames_reach_all_in_order, 0, 2) {
  enum { READERS = 3 };
  /* Waits often, and seldom. */
  ringcast_writer *writer = make_writer(65536, _i == 0 ? 20 * MIB : 256 * MIB);
  pid_t children[READERS + 1];
  char *handle = (char *)ringcast_writer_handle(writer);
  for (int i = 0; i < READERS; i++) children[i] = start_child(read_mixed, handle);
  children[READERS] = start_child(tap_mixed, handle);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, READERS, RINGCAST_FOREVER), READERS);
  for (uint64_t n = 0; n < FRAMES; n++) {
    struct ringcast_span span;
    size_t bytes = mixed_bytes(n),
           estimate = mix(n + 1) % 3 == 0 ? bytes / 3 : bytes + bytes / 4; /* grown, or trimmed */
    ck_assert_int_eq(ringcast_writer_reserve(writer, estimate, RINGCAST_FOREVER, &span), 0);
    if (estimate < bytes) {
      pattern_fill(span.data, estimate & ~(size_t)7, n);
      ck_assert_int_eq(ringcast_writer_grow(writer, bytes, RINGCAST_FOREVER, &span), 0);
      ck_assert(pattern_matches(span.data, estimate & ~(size_t)7, n));
    }
    pattern_fill(span.data, bytes, n);
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes, (uint16_t)n), 0);
  }
  ringcast_writer_close(writer);
  for (int i = 0; i <= READERS; i++) child_must_succeed(children[i]);
}

RUN_TESTS("spill_process", NULL, NULL)
