/* SPDX-License-Identifier: Apache-2.0 */
/* The ring's code with threads: every frame reaches those who stay, while others come and go, and
 * one looks on. */
#include "ring/tap.h"
#include "tests/support/threads.h"

enum { STEADY = 2, VISITORS = 2 };

static _Atomic int finished;
static _Atomic uint64_t visits;

static void yield(const struct rc_ring_writer *writer) {
  (void)writer;
  sched_yield();
}

static void *write_frames(void *nothing) {
  write_all(yield);
  return nothing;
}

/* Reads one frame and returns its number; waits for it, but not once all is finished: then
 * frames. */
static uint64_t read_frame(struct rc_ring_reader *reader) {
  struct rc_ring_frame frame;
  uint64_t number;
  int result;
  while ((result = rc_ring_next(reader, &frame)) == -EAGAIN) {
    if (finished) return frames;
    sched_yield();
  }
  if (result != 0) abort();
  memcpy(&number, frame.data, sizeof number);
  if (number >= frames || !is_whole(&frame, number)) abort();
  if (rc_ring_release(reader, reader->cursor) != 0) abort();
  return number;
}

static void *read_every_frame(void *context) {
  struct rc_ring_reader *reader = context;
  for (uint64_t n = 0; n < frames; n++)
    if (read_frame(reader) != n) abort();
  rc_slot_free(&ring, reader->slot, reader->owner);
  return NULL;
}

/* Comes, reads a few frames without a gap, leaves, and comes again: now at the tail, now at the
 * newest frame, which it may have had. */
static void *visit(void *seed) {
  uint64_t random = mix((uintptr_t)seed), expected = 0;
  while (!finished) {
    bool newest = random & 1;
    struct rc_ring_reader reader = join_at(1, (struct rc_start){.newest = newest});
    uint64_t number = read_frame(&reader);
    if (number + newest < expected) abort();
    for (random = mix(random), expected = number + 1;
         expected < frames && expected % 64 != random % 64; expected++)
      if ((number = read_frame(&reader)) != expected) {
        if (number == frames) break;
        abort();
      }
    rc_slot_free(&ring, reader.slot, reader.owner);
    visits++;
  }
  return NULL;
}

static uint64_t tapped, tapped_spilled, lost;

/* As the tap itself copies: what is overwritten meanwhile is told by the floor. */
__attribute__((no_sanitize("thread"))) static int fetch(void *context, uint64_t offset, void *to,
                                                        uint64_t bytes) {
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

static void run_threads(void) {
  pthread_t writer, tap, steady[STEADY], visitors[VISITORS];
  struct rc_ring_reader readers[STEADY];
  finished = 0;
  make_ring();
  for (int i = 0; i < STEADY; i++) readers[i] = join(1);
  for (int i = 0; i < STEADY; i++) start(&steady[i], read_every_frame, &readers[i]);
  for (intptr_t i = 0; i < VISITORS; i++) start(&visitors[i], visit, (void *)i);
  start(&tap, tap_all, NULL);
  start(&writer, write_frames, NULL);
  pthread_join(writer, NULL);
  for (int i = 0; i < STEADY; i++) pthread_join(steady[i], NULL);
  finished = 1;
  for (int i = 0; i < VISITORS; i++) pthread_join(visitors[i], NULL);
  pthread_join(tap, NULL);
  ck_assert_uint_gt(ring.control->spill_floor, 0);
  printf("tap: %llu frames copied, %llu of them spilled; %llu bytes of the ring lost\n",
         (unsigned long long)tapped, (unsigned long long)tapped_spilled, (unsigned long long)lost);
  /* Whether a reader comes while a frame is half there is up to the scheduler. */
  free_ring();
}

TEST(threads_read_what_one_writes_while_others_come_and_go) {
  send_so_many(200000);
  for (int i = 0; i < MOST_RUNS && (tapped_spilled == 0 || visits <= 10); i++) run_threads();
  ck_assert_uint_gt(tapped, 0);
  ck_assert_uint_gt(tapped_spilled, 0);
  ck_assert_uint_gt(visits, 10);
}

RUN_TESTS("ring_threads", NULL, NULL)
