/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring's code with threads, made for ThreadSanitizer: one plain mapping, and frames that never run over its end,
 * since it takes two mappings of the same memory for two places. Frames take 4, 2, 2 lines, then eight times 1: 16 lines
 * a turn, so each starts on a multiple of its own size, and the ring is a multiple of a turn. Two of those with one line
 * are notes: their payload lies in spill memory, which is small, so that regions are used again and again.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "ring/hot.h"
#include "ring/spill.h"
#include "ring/tap.h"
#include "tests/support/pattern.h"
#include "tests/support/suite.h"

enum { CAPACITY = 4096, SLOTS = 4, STEADY = 2, VISITORS = 2, SPILL = 6 * RC_SPILL_UNIT };

#if defined(__SANITIZE_THREAD__)
enum { FRAMES = 100000 };
#else
enum { FRAMES = 500000 };
#endif

static struct rc_ring ring;
static _Atomic int finished;
static _Atomic uint64_t visits, followed;

static bool is_spilled(uint64_t number) { return number % 11 == 5 || number % 11 == 9; }

static size_t frame_bytes(uint64_t number) {
  if (is_spilled(number)) return 8 * (1 + mix(number) % (RC_SPILL_UNIT / 4)); /* in one to three units */
  uint64_t turn = number % 11, lines = turn == 0 ? 4 : turn < 3 ? 2 : 1;
  return lines * RC_FRAME_ALIGN - sizeof(struct rc_frame_header);
}

static int reserve_spilled(struct rc_ring_writer *writer, struct rc_spill *spill, size_t bytes, void **out) {
  uint64_t offset;
  int result = rc_ring_reserve(writer, sizeof(struct rc_spilled), out);
  if (result != 0) return result;
  rc_spill_reclaim(spill, writer);
  result = rc_spill_find(spill, bytes, false, &offset);
  if (result != 0) {
    rc_ring_abort(writer);
    return result;
  }
  rc_spill_open(spill, offset, bytes);
  *out = (uint8_t *)ring.spill + offset + RC_SPILL_PHASE;
  return 0;
}

/* The words from one place to another; the first of all is the number. */
static void fill(void *out, size_t from, size_t to, uint64_t number) {
  for (size_t i = from; i < to; i += 8) {
    uint64_t word = i == 0 ? number : pattern_word(number, i);
    memcpy((uint8_t *)out + i, &word, 8);
  }
}

static void *write_frames(void *nothing) {
  struct rc_ring_writer writer;
  struct rc_spill spill;
  rc_ring_writer_init(&writer, ring);
  rc_spill_init(&spill, SPILL);
  for (uint64_t n = 0; n < FRAMES; n++) {
    void *out;
    int result;
    while ((result = is_spilled(n) ? reserve_spilled(&writer, &spill, frame_bytes(n), &out)
                                   : rc_ring_reserve(&writer, frame_bytes(n), &out)) == -EAGAIN)
      sched_yield();
    if (result != 0) abort();
    size_t half = is_spilled(n) && n % 2 ? frame_bytes(n) / 16 * 8 : 0; /* for who follows */
    fill(out, 0, half, n);
    if (half > 0 && rc_spill_publish(&spill, &writer, half, 0) != 0) abort();
    fill(out, half, frame_bytes(n), n);
    result = is_spilled(n) ? rc_spill_commit(&spill, &writer, frame_bytes(n), 0) : rc_ring_commit(&writer, frame_bytes(n), 0);
    if (result != 0) abort();
  }
  return nothing;
}

/* Reads one frame and returns its number; waits for it, but not once all is finished: then FRAMES. */
static uint64_t read_frame(struct rc_ring_reader *reader) {
  struct rc_ring_frame frame;
  uint64_t number;
  int result;
  while ((result = rc_ring_next(reader, &frame)) == -EAGAIN) {
    if (finished) return FRAMES;
    sched_yield();
  }
  if (result != 0) abort();
  memcpy(&number, frame.data, sizeof number);
  if (number >= FRAMES || frame.bytes != frame_bytes(number)) abort();
  for (size_t i = 8; i < frame.bytes; i += 8) {
    while (i >= frame.there) {
      if (frame.whole || !reader->follows || rc_ring_look(reader, frame.position, &frame) != 0) abort();
      if (i >= frame.there) sched_yield();
      followed++;
    }
    uint64_t word = pattern_word(number, i);
    if (memcmp((const uint8_t *)frame.data + i, &word, 8) != 0) abort();
  }
  if (rc_ring_release(reader, reader->cursor) != 0) abort();
  return number;
}

static struct rc_ring_reader join(void) {
  struct rc_ring_reader reader;
  uint32_t slot;
  uint64_t owner;
  if (rc_slot_claim(&ring, 1, 7, &slot, &owner) != 0 || rc_slot_activate(&ring, slot, owner, &reader) != 0) abort();
  return reader;
}

static void *read_every_frame(void *context) {
  struct rc_ring_reader *reader = context;
  for (uint64_t n = 0; n < FRAMES; n++)
    if (read_frame(reader) != n) abort();
  rc_slot_free(&ring, reader->slot, reader->owner);
  return NULL;
}

/* Comes, reads a few frames without a gap, leaves, and comes again. */
static void *visit(void *seed) {
  uint64_t random = mix((uintptr_t)seed), expected = 0;
  while (!finished) {
    struct rc_ring_reader reader = join();
    uint64_t number = read_frame(&reader);
    if (number < expected) abort();
    for (random = mix(random), expected = number + 1; expected < FRAMES && expected % 64 != random % 64; expected++)
      if ((number = read_frame(&reader)) != expected) {
        if (number == FRAMES) break;
        abort();
      }
    rc_slot_free(&ring, reader.slot, reader.owner);
    visits++;
  }
  return NULL;
}

static uint64_t tapped, tapped_spilled, lost;

/* As the tap itself copies: what is overwritten meanwhile is told by the floor. */
__attribute__((no_sanitize("thread"))) static int fetch(void *context, uint64_t offset, void *to, uint64_t bytes) {
  (void)context;
  for (uint64_t i = 0; i < bytes; i++) ((uint8_t *)to)[i] = ring.spill[offset + i];
  return 0;
}

/* Copies what it can; whatever it gets must be whole. */
static void *tap_all(void *nothing) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint64_t buffer[RC_SPILL_UNIT], expected = 0, gaps = UINT64_MAX; /* it may begin anywhere */
  rc_tap_init(&tap, &ring);
  tap.fetch = fetch;
  for (;;) {
    int result = rc_tap_next(&tap, buffer, sizeof buffer, &frame);
    if (result == -EAGAIN && finished) break;
    if (result == -EAGAIN) sched_yield();
    if (result == -EAGAIN) continue;
    if (result != 0 || frame.bytes != frame_bytes(buffer[0])) abort();
    if (tap.gaps == gaps ? buffer[0] != expected : buffer[0] < expected) abort();
    for (size_t i = 1; i < frame.bytes / 8; i++)
      if (buffer[i] != pattern_word(buffer[0], i * 8)) abort();
    expected = buffer[0] + 1;
    gaps = tap.gaps;
    tapped++;
    tapped_spilled += frame.spilled;
  }
  lost = tap.lost_bytes;
  return nothing;
}

START_TEST(threads_read_what_one_writes_while_others_come_and_go) {
  pthread_t writer, tap, steady[STEADY], visitors[VISITORS];
  struct rc_ring_reader readers[STEADY];
  uint8_t *data = aligned_alloc(RC_LINE, CAPACITY);
  struct rc_control *control = aligned_alloc(RC_LINE, rc_control_bytes(SLOTS));
  memset(data, 0, CAPACITY);
  memset((void *)control, 0, rc_control_bytes(SLOTS));
  uint8_t *spill = aligned_alloc(RC_SPILL_UNIT, SPILL);
  ring = (struct rc_ring){
      .control = control, .data = data, .capacity = CAPACITY, .spill = spill, .spill_bytes = SPILL, .slots = SLOTS};

  for (int i = 0; i < STEADY; i++) readers[i] = join();
  readers[0].follows = true;
  for (int i = 0; i < STEADY; i++) ck_assert_int_eq(pthread_create(&steady[i], NULL, read_every_frame, &readers[i]), 0);
  for (intptr_t i = 0; i < VISITORS; i++) ck_assert_int_eq(pthread_create(&visitors[i], NULL, visit, (void *)i), 0);
  ck_assert_int_eq(pthread_create(&tap, NULL, tap_all, NULL), 0);
  ck_assert_int_eq(pthread_create(&writer, NULL, write_frames, NULL), 0);
  pthread_join(writer, NULL);
  for (int i = 0; i < STEADY; i++) pthread_join(steady[i], NULL);
  finished = 1;
  for (int i = 0; i < VISITORS; i++) pthread_join(visitors[i], NULL);
  pthread_join(tap, NULL);
  ck_assert_uint_gt(tapped, 0);
  ck_assert_uint_gt(tapped_spilled, 0);
  ck_assert_uint_gt(control->spill_floor, 0);
  printf("tap: %llu frames copied, %llu of them spilled; %llu bytes of the ring lost\n", (unsigned long long)tapped,
         (unsigned long long)tapped_spilled, (unsigned long long)lost);
  ck_assert_uint_gt(visits, 10);
  /* Whether a reader comes while a frame is half there is up to the scheduler. */
  if (followed == 0) tell_skipped("following", "no reader happened to meet a frame that was not whole");
  free(control);
  free(data);
  free(spill);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("ring_threads");
  TCase *tests = add_case(suite, "threads");
  tcase_add_test(tests, threads_read_what_one_writes_while_others_come_and_go);
  return run_suite(suite);
}
