/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring for threads, made for ThreadSanitizer: one plain mapping, and frames that never run over
 * its end, since it takes two mappings of the same memory for two places. Frames take 4, 2, 2
 * lines, then eight times 1: 16 lines a turn, so each starts on a multiple of its own size, and the
 * ring is a multiple of a turn. Two of those with one line are notes: their payload lies in spill
 * memory, which is small, so that regions are used again and again.
 */
#ifndef RC_TESTS_THREADS_H
#define RC_TESTS_THREADS_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "ring/ring.h"
#include "ring/spill.h"
#include "tests/support/pattern.h"
#include "tests/support/suite.h"

enum { CAPACITY = 4096, SLOTS = 4, SPILL = 6 * RC_SPILL_UNIT };

static struct rc_ring ring;
static uint64_t frames; /* how many are sent */

static inline void make_ring(void) {
  uint8_t *data = aligned_alloc(RC_LINE, CAPACITY), *spill = aligned_alloc(RC_SPILL_UNIT, SPILL);
  struct rc_control *control = aligned_alloc(RC_LINE, rc_control_bytes(SLOTS));
  memset(data, 0, CAPACITY);
  memset((void *)control, 0, rc_control_bytes(SLOTS));
  ring = (struct rc_ring){.control = control,
                          .data = data,
                          .capacity = CAPACITY,
                          .spill = spill,
                          .spill_bytes = SPILL,
                          .slots = SLOTS};
}

static inline void free_ring(void) {
  free(ring.control);
  free(ring.data);
  free((void *)ring.spill);
}

/* How often a test runs its threads, since some of them may hardly have a CPU. */
enum { MOST_RUNS = 20 };

/* So many frames, or a share of them; RINGCAST_TEST_TIMES as many for those who have the time; a
 * fifth of it where each step is watched. */
static inline void send_so_many(uint64_t count) {
  count = (uint64_t)share_of((int)count);
  const char *times = getenv("RINGCAST_TEST_TIMES");
#if defined(__SANITIZE_THREAD__)
  count /= 5;
#endif
  frames = times && atoi(times) > 1 ? count * (uint64_t)atoi(times) : count;
}

static inline bool is_spilled(uint64_t number) { return number % 11 == 5 || number % 11 == 9; }

static inline size_t frame_bytes(uint64_t number) {
  if (is_spilled(number))
    return 8 * (1 + mix(number) % (RC_SPILL_UNIT / 4)); /* in one to three units */
  uint64_t turn = number % 11, lines = turn == 0 ? 4 : turn < 3 ? 2 : 1;
  return lines * RC_FRAME_ALIGN - sizeof(struct rc_frame_header);
}

/* What the frame's word at `at` must be; the first of all is the number. */
static inline uint64_t frame_word(uint64_t number, size_t at) {
  return at == 0 ? number : pattern_word(number, at);
}

static inline void fill(void *out, size_t bytes, uint64_t number) {
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = frame_word(number, at);
    memcpy((uint8_t *)out + at, &word, 8);
  }
}

/* Whether the frame is the one of this number, byte for byte. */
static inline bool is_whole(const struct rc_ring_frame *frame, uint64_t number) {
  bool same = frame->bytes == frame_bytes(number);
  for (size_t at = 0; same && at < frame->bytes; at += 8) {
    uint64_t word = frame_word(number, at);
    same = memcmp((const uint8_t *)frame->data + at, &word, 8) == 0;
  }
  return same;
}

static inline int reserve_spilled(struct rc_ring_writer *writer, struct rc_spill *spill,
                                  size_t bytes, void **out) {
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

static inline int reserve(struct rc_ring_writer *writer, struct rc_spill *spill, uint64_t number,
                          void **out) {
  size_t bytes = frame_bytes(number);
  return is_spilled(number) ? reserve_spilled(writer, spill, bytes, out)
                            : rc_ring_reserve(writer, bytes, out);
}

static inline void fill_and_commit(struct rc_ring_writer *writer, struct rc_spill *spill,
                                   uint64_t number, void *out) {
  size_t bytes = frame_bytes(number);
  fill(out, bytes, number);
  if ((is_spilled(number) ? rc_spill_commit(spill, writer, bytes, 0)
                          : rc_ring_commit(writer, bytes, 0)) != 0)
    abort();
  if (!is_spilled(number)) rc_ring_zero_ahead(writer, bytes);
}

/* Writes all frames; `make_room` is called each time that there is no room. */
static inline void write_all(void (*make_room)(const struct rc_ring_writer *)) {
  struct rc_ring_writer writer;
  struct rc_spill spill;
  rc_ring_writer_init(&writer, ring);
  rc_spill_init(&spill, SPILL);
  for (uint64_t n = 0; n < frames; n++) {
    void *out;
    int result;
    while ((result = reserve(&writer, &spill, n, &out)) == -EAGAIN) make_room(&writer);
    if (result != 0) abort();
    fill_and_commit(&writer, &spill, n, out);
  }
}

/* `kind` is in the place of a process: the writer may tell readers apart by it. */
static inline struct rc_ring_reader join_at(uint32_t kind, struct rc_start start) {
  struct rc_ring_reader reader;
  uint32_t slot;
  uint64_t owner;
  if (rc_slot_claim(&ring, kind, 7, &slot, &owner) != 0) abort();
  if (rc_slot_activate(&ring, slot, owner, start, &reader) != 0) abort();
  return reader;
}

static inline struct rc_ring_reader join(uint32_t kind) {
  return join_at(kind, (struct rc_start){0});
}

static inline void start(pthread_t *thread, void *(*body)(void *), void *context) {
  ck_assert_int_eq(pthread_create(thread, NULL, body, context), 0);
}

#endif
