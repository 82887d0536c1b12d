/* SPDX-License-Identifier: Apache-2.0 */
/* A ring for the tests of the algorithm, mostly of one page: its writer, and what readers of it
 * expect. */
#ifndef RC_TESTS_RING_H
#define RC_TESTS_RING_H

#include <errno.h>

#include "ring/ring.h"
#include "shm/memory.h"
#include "tests/support/pattern.h"
#include "tests/support/suite.h"

enum { CAPACITY = 4096, SLOTS = 4 };

static struct rc_memory data;
static struct rc_control *control;
static struct rc_ring_writer writer;
static struct rc_ring ring;

static inline void make_ring_of(uint64_t capacity) {
  const struct rc_memory_wish wish = {.memory = RINGCAST_MEMORY_PAGES};
  ck_assert_int_eq(rc_memory_create_data(capacity, &wish, &data), 0);
  control = aligned_alloc(RC_LINE, rc_control_bytes(SLOTS));
  memset((void *)control, 0, rc_control_bytes(SLOTS));
  ring =
      (struct rc_ring){.control = control, .data = data.base, .capacity = capacity, .slots = SLOTS};
  rc_ring_writer_init(&writer, ring);
}

static inline void make_ring(void) { make_ring_of(CAPACITY); }

static inline void free_ring(void) {
  free(control);
  rc_memory_destroy(&data);
}

static inline int join_at(struct rc_start start, struct rc_ring_reader *reader) {
  uint32_t slot;
  uint64_t owner;
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot, &owner), 0);
  return rc_slot_activate(&ring, slot, owner, start, reader);
}

static inline struct rc_ring_reader join(void) {
  struct rc_ring_reader reader;
  ck_assert_int_eq(join_at((struct rc_start){0}, &reader), 0);
  return reader;
}

static inline int send(uint64_t number, size_t bytes) {
  void *out;
  int result = rc_ring_reserve(&writer, bytes, &out);
  if (result != 0) return result;
  pattern_fill(out, bytes, number);
  result = rc_ring_commit(&writer, bytes, (uint16_t)number);
  rc_ring_zero_ahead(&writer, bytes);
  return result;
}

static inline void expect(struct rc_ring_reader *reader, uint64_t number, size_t bytes) {
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(reader, &frame), 0);
  ck_assert_uint_eq(frame.bytes, bytes);
  ck_assert_uint_eq(frame.kind, (uint16_t)number);
  ck_assert(pattern_matches(frame.data, bytes, number));
}

static inline void expect_nothing(struct rc_ring_reader *reader) {
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(reader, &frame), -EAGAIN);
}

#endif
