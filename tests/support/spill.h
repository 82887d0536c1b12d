/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of large frames by the public API share: a ring of 64 KiB, frames by number, and a
 * check that nothing stays behind. */
#ifndef RC_TESTS_SPILL_H
#define RC_TESTS_SPILL_H

#include "tests/support/handles.h"
#include "tests/support/pattern.h"

#define MIB ((uint64_t)1 << 20)

static inline int create(uint64_t spill_bytes, ringcast_writer **out) {
  struct ringcast_writer_options options = {
      .size = sizeof options, .capacity = 65536, .readers = 4, .spill_bytes = spill_bytes};
  return ringcast_writer_create_ex(&options, out);
}

static inline ringcast_writer *make_writer(uint64_t spill_bytes) {
  ringcast_writer *writer = NULL;
  ck_assert_int_eq(create(spill_bytes, &writer), 0);
  return writer;
}

static inline ringcast_reader *attach(ringcast_writer *writer, uint32_t leases) {
  return reader_of(writer, .leases = leases, .name = "rank 3");
}

static inline int send(ringcast_writer *writer, uint64_t number, size_t bytes) {
  struct ringcast_span span;
  int result = ringcast_writer_reserve(writer, bytes, 0, &span);
  if (result != 0) return result;
  ck_assert_uint_eq((uintptr_t)span.data % 64, 16);
  ck_assert_uint_eq(span.bytes, bytes);
  pattern_fill(span.data, bytes, number);
  return ringcast_writer_commit(writer, bytes, (uint16_t)number);
}

static inline struct ringcast_frame expect(ringcast_reader *reader, uint64_t number, size_t bytes) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_uint_eq((uintptr_t)frame.data % 64, 16);
  ck_assert_uint_eq(frame.kind, (uint16_t)number);
  ck_assert_uint_eq(frame.bytes, bytes);
  ck_assert(pattern_matches(frame.data, bytes, number));
  return frame;
}

static inline void read_one(ringcast_reader *reader, uint64_t number, size_t bytes) {
  struct ringcast_frame frame = expect(reader, number, bytes);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

#endif
