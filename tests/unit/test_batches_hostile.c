/* SPDX-License-Identifier: Apache-2.0 */
/* Packed frames and groups of a writer that means harm. */
#include <errno.h>

#include "ringcast/batch.h"
#include "tests/support/channel.h"

enum { ROOM = 1 << 16 };

#define HEAD(bytes, gap) ((uint64_t)(bytes) | (uint64_t)(gap) << 48)

/* Entries of a payload of 64 bytes, of which the one at `bad` is invalid. */
static const struct {
  uint64_t heads[8];
  uint32_t bytes, good; /* of the payload; messages before the invalid one */
} hostile[] = {
    {{HEAD(57, 0)}, 64, 0},                        /* a byte longer than the frame */
    {{HEAD(UINT32_MAX, 0)}, 64, 0},                /* whose rounded length would overflow 32 bits */
    {{HEAD(0, 2)}, 64, 0},                         /* neither a message nor a gap */
    {{HEAD(0, 1), HEAD(0, 1), HEAD(0, 0)}, 64, 0}, /* two gaps in a row */
    {{HEAD(56, 1)}, 64, 0},                        /* a gap at the end */
    {{HEAD(8, 0), 0, HEAD(41, 0)}, 64, 1},         /* the second reaches out */
    {{HEAD(8, 0), 0, HEAD(0, 0), HEAD(8, 3)}, 40, 2}, /* the third is no message */
    {{HEAD(0, 0)}, 0, 0},                             /* nothing at all */
    {{HEAD(0, 0)}, 7, 0},                             /* less than a head */
    {{HEAD(0, 0), HEAD(0, 0)}, 12, 1},                /* less than a second head */
};

LOOP_TEST(an_invalid_packed_frame_is_an_error, 0, (int)(sizeof hostile / sizeof *hostile)) {
  SCOPED_WRITER writer = writer_of(.capacity = ROOM, .readers = 2);
  SCOPED_READER one = attach(writer);
  SCOPED_READER many = attach(writer);
  ringcast_tap *tap;
  struct ringcast_span span;
  struct ringcast_frame frame, frames[8];
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 64, 0, &span), 0);
  memcpy(span.data, hostile[_i].heads, 64);
  rc_ring_publish(&writer->ring, hostile[_i].bytes, 0, RC_FRAME_PACKED);
  ck_assert_int_eq(ringcast_writer_send(writer, "more", 4, 0, 0), 0);
  for (uint32_t i = 0; i < hostile[_i].good; i++) {
    take_one(one);
    ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
  }
  if (hostile[_i].good > 0) {
    ck_assert_int_eq(ringcast_reader_next_many(many, 0, frames, 8), (int)hostile[_i].good);
    ck_assert_int_eq(ringcast_reader_release_many(many, frames, hostile[_i].good), 0);
  }
  for (int again = 0; again < 2; again++) { /* no way on: the messages after are not known */
    ck_assert_int_eq(ringcast_reader_next(one, 0, &frame), -EPROTO);
    ck_assert_int_eq(ringcast_reader_next_many(many, 0, frames, 8), -EPROTO);
    ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EPROTO);
  }
  ringcast_tap_close(tap);
}

/* The writer goes on over a frame that the reader holds: the group ends before. */
TEST(a_group_is_not_longer_than_a_lap) {
  enum { CAPACITY = 4096, FRAMES = CAPACITY / RC_FRAME_ALIGN };
  SCOPED_WRITER writer = writer_of(.capacity = CAPACITY, .readers = 1);
  SCOPED_READER reader = reader_of(writer, .leases = 3);
  struct ringcast_frame held, frames[2 * FRAMES];
  ck_assert_int_eq(ringcast_writer_send(writer, "", 0, 0, 0), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &held), 0);
  for (uint64_t at = RC_FRAME_ALIGN; at <= CAPACITY; at += RC_FRAME_ALIGN) {
    struct rc_frame_header *header = rc_frame_at(&writer->ring.view, at);
    rc_store_relaxed(&header->meta, 0);
    rc_store_relaxed(&header->commit, at + RC_FRAME_ALIGN);
  }
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames, 2 * FRAMES), FRAMES - 1);
  ck_assert_int_eq(ringcast_reader_next_many(reader, 0, frames + FRAMES, FRAMES), -EPROTO);
}

RUN_TESTS("batches, hostile", remember, nothing_is_left)
