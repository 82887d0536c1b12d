/* SPDX-License-Identifier: Apache-2.0 */
/* Taps of a ring, one thread, every step in a chosen order. */
#define _GNU_SOURCE
#include "ring/tap.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/ring.h"

TEST(a_tap_copies_and_holds_nobody_back) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[CAPACITY];
  rc_tap_init(&tap, &ring);
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EAGAIN);
  for (uint64_t i = 0; i < 500; i++) {
    size_t bytes = mix(i) % 1900;
    ck_assert_int_eq(send(i, bytes), 0);
    if (bytes > 0) ck_assert_int_eq(rc_tap_next(&tap, buffer, bytes - 1, &frame), -EMSGSIZE);
    if (bytes > 0) ck_assert_uint_eq(frame.bytes, bytes);
    ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), 0);
    ck_assert(frame.bytes == bytes && frame.kind == (uint16_t)i &&
              pattern_matches(buffer, bytes, i));
  }
  ck_assert_uint_eq(tap.gaps, 0);
}

TEST(a_tap_that_is_lapped_knows_what_it_lost) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[CAPACITY];
  rc_tap_init(&tap, &ring);
  uint64_t read = 0, bytes = 0;
  for (uint64_t i = 0; i < 5000; i++) {
    ck_assert_int_eq(send(i, 8 + mix(i) % 800), 0);
    uint64_t frames = mix(i + 99) % 37 == 0 ? 5 : 0; /* mostly asleep, then a few */
    for (; frames > 0 && rc_tap_next(&tap, buffer, sizeof buffer, &frame) == 0; frames--) {
      ck_assert(pattern_matches(buffer, frame.bytes, frame.kind));
      read++;
      bytes += rc_frame_footprint(frame.bytes);
    }
  }
  while (rc_tap_next(&tap, buffer, sizeof buffer, &frame) == 0)
    bytes += rc_frame_footprint(frame.bytes);
  ck_assert_uint_gt(read, 50);
  ck_assert_uint_gt(tap.gaps, 10);
  ck_assert_uint_eq(bytes + tap.lost_bytes,
                    writer.tail); /* every byte was either copied or counted as lost */
}

TEST(a_tap_loses_nothing_while_less_than_half_a_ring_behind) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[CAPACITY];
  rc_tap_init(&tap, &ring);
  for (uint64_t i = 0; i < 2000;) {
    uint64_t start = writer.tail;
    while (writer.tail + rc_frame_footprint(300) - start <= CAPACITY / 2)
      ck_assert_int_eq(send(i++, 300), 0);
    while (rc_tap_next(&tap, buffer, sizeof buffer, &frame) == 0) {}
    ck_assert_uint_eq(tap.next, writer.tail);
  }
  ck_assert_uint_eq(tap.gaps, 0);
}

/* ---- In the middle of a copy ----------------------------------------------------------------- */

/* The tap copies to a buffer that runs into this page, which can't be written. There the copy
 * stops, the writer goes on by so many frames, the page is opened, and the copy goes on. */
static uint8_t *barred;
static uint64_t frames_meanwhile;

/* Called once: a fault elsewhere comes again, and ends the test. */
static void go_on_in_the_middle(int number, siginfo_t *info, void *context) {
  (void)number, (void)context;
  uintptr_t at = (uintptr_t)info->si_addr, page = (uintptr_t)barred;
  if (at < page || at - page >= (uintptr_t)sysconf(_SC_PAGESIZE)) return;
  for (uint64_t i = 0; i < frames_meanwhile; i++) ck_assert_int_eq(send(2 + i, 1500), 0);
  ck_assert_int_eq(mprotect(barred, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE), 0);
  frames_meanwhile = UINT64_MAX; /* it has happened */
}

/* A buffer of which so many bytes can be written. */
static uint8_t *buffer_before_the_bar(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(pages, MAP_FAILED);
  barred = pages + page;
  ck_assert_int_eq(mprotect(barred, page, PROT_NONE), 0);
  struct sigaction action = {.sa_sigaction = go_on_in_the_middle,
                             .sa_flags = SA_SIGINFO | SA_RESETHAND};
  ck_assert_int_eq(sigaction(SIGSEGV, &action, NULL), 0);
  return barred - bytes;
}

/* A frame takes 1536 bytes of the ring's 4096. The second of those that come meanwhile lies in part
 * where the frame stands that is being copied. */
LOOP_TEST(a_copy_that_the_writer_runs_into_is_lost_and_one_that_it_does_not_reach_is_not, 0, 5) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  bool reached = _i >= 2;
  rc_tap_init(&tap, &ring);
  ck_assert_int_eq(send(1, 1500), 0);
  frames_meanwhile = (uint64_t)_i;
  uint8_t *buffer = buffer_before_the_bar(700);
  int result = rc_tap_next(&tap, buffer, 1500, &frame);
  ck_assert_uint_eq(frames_meanwhile, UINT64_MAX);
  if (reached) {
    ck_assert_int_eq(result, -EAGAIN);
    ck_assert_uint_eq(tap.lost_bytes, writer.tail);
  } else {
    ck_assert_int_eq(result, 0);
    ck_assert(frame.bytes == 1500 && frame.kind == 1 && pattern_matches(buffer, 1500, 1));
  }
  ck_assert_uint_eq(tap.gaps, reached);
  uint64_t next = reached ? 9 : 2;
  if (reached || _i == 0) ck_assert_int_eq(send(next, 1500), 0);
  ck_assert_int_eq(rc_tap_next(&tap, buffer, 1500, &frame), 0);
  ck_assert(frame.kind == next && pattern_matches(buffer, 1500, next));
}

/* ---- What a writer must not write ------------------------------------------------------------ */

TEST(a_tap_refuses_what_cannot_be_right) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[64];
  rc_tap_init(&tap, &ring);
  struct rc_frame_header *header = (struct rc_frame_header *)data.base;
  header->commit = 256;
  header->bytes = 10;
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
  header->commit = 128;
  header->bytes = UINT32_MAX;
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
  control->limit = UINT64_MAX; /* lapped, by a writer that is nowhere */
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
}

RUN_TESTS("ring, taps", make_ring, free_ring)
