/* SPDX-License-Identifier: Apache-2.0 */
/* A ring with a little spill memory for the tests of the algorithm: its writer, and what readers of
 * it expect. */
#ifndef RC_TESTS_SPILL_RING_H
#define RC_TESTS_SPILL_RING_H

#include <errno.h>

#include "ring/ring.h"
#include "ring/spill.h"
#include "tests/support/pattern.h"
#include "tests/support/suite.h"

enum { CAPACITY = 65536, SLOTS = 4, UNITS = 24 };

static uint8_t *data, *memory;
static struct rc_control *control;
static struct rc_ring ring;
static struct rc_ring_writer writer;
static struct rc_spill spill;

/* Notes are of one line each, so none runs over the end, and a plain mapping does. */
static inline void make_ring(void) {
  data = aligned_alloc(RC_LINE, CAPACITY);
  memory = aligned_alloc(RC_SPILL_UNIT, UNITS * RC_SPILL_UNIT);
  control = aligned_alloc(RC_LINE, rc_control_bytes(SLOTS));
  memset(data, 0, CAPACITY);
  memset((void *)control, 0, rc_control_bytes(SLOTS));
  ring = (struct rc_ring){.control = control,
                          .data = data,
                          .capacity = CAPACITY,
                          .spill = memory,
                          .spill_bytes = UNITS * RC_SPILL_UNIT,
                          .slots = SLOTS};
  rc_ring_writer_init(&writer, ring);
  rc_spill_init(&spill, ring.spill_bytes);
}

static inline void free_ring(void) {
  free(data);
  free(memory);
  free(control);
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
  reader.leases = 8;
  return reader;
}

/* Payload bytes that take so many units. */
static inline uint64_t bytes_of(uint64_t units) { return units * RC_SPILL_UNIT - RC_SPILL_PHASE; }

static inline int open_at(uint64_t bytes, uint64_t *offset) {
  void *note;
  int result = rc_ring_reserve(&writer, sizeof(struct rc_spilled), &note);
  if (result != 0) return result;
  rc_spill_reclaim(&spill, &writer);
  result = rc_spill_find(&spill, bytes, false, offset);
  if (result == 0) rc_spill_open(&spill, *offset, bytes);
  else rc_ring_abort(&writer);
  return result;
}

/* Sends a frame that takes `units`; returns the unit that it starts at, or what was wrong. */
static inline int send(uint64_t number, uint64_t units) {
  uint64_t offset;
  int result = open_at(bytes_of(units), &offset);
  if (result != 0) return result;
  pattern_fill(memory + offset + RC_SPILL_PHASE, bytes_of(units), number);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, bytes_of(units), (uint16_t)number), 0);
  ck_assert(rc_spill_is_valid(&spill));
  return (int)(offset / RC_SPILL_UNIT);
}

static inline uint64_t expect(struct rc_ring_reader *reader, uint64_t number, uint64_t bytes) {
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(reader, &frame), 0);
  ck_assert(frame.spilled);
  ck_assert_uint_eq(frame.kind, (uint16_t)number);
  ck_assert_uint_eq(frame.bytes, bytes);
  ck_assert_uint_eq((uintptr_t)frame.data % RC_LINE, 16);
  ck_assert(pattern_matches(frame.data, bytes, number));
  return frame.position;
}

static inline void release(struct rc_ring_reader *reader, uint64_t position) {
  ck_assert_int_eq(rc_ring_release(reader, position), 0);
}

#endif
