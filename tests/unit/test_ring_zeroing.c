/* SPDX-License-Identifier: Apache-2.0 */
/* The commit word of the next frame is zeroed ahead: when that does not hold any more, and where it
 * must not be. */
#include "tests/support/ring.h"

enum {
  ROUNDS = 300,
  SENT = 1,
  FORGED = 2
}; /* kinds: of what was sent, and of what only looks like it */

/* Fills what lies behind a header at `position` with frames, one in each place where one can start:
 * a reader takes any that it is led to. */
static void forge(void *out, size_t bytes, uint64_t position) {
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t at = position + sizeof(struct rc_frame_header) + i;
    uint64_t word = UINT64_MAX;
    if (at % RC_FRAME_ALIGN == 0) word = at + RC_FRAME_ALIGN;
    if (at % RC_FRAME_ALIGN == 8) word = rc_meta_make(8, FORGED, 0);
    memcpy((uint8_t *)out + i, &word, 8);
  }
}

static void *reserve(size_t bytes) {
  void *out;
  ck_assert_int_eq(rc_ring_reserve(&writer, bytes, &out), 0);
  return out;
}

/* Reserves so much and fills it. */
static void reserve_forged(size_t bytes) { forge(reserve(bytes), bytes, writer.tail); }

static void commit(size_t bytes) {
  ck_assert_int_eq(rc_ring_commit(&writer, bytes, SENT), 0);
  rc_ring_zero_ahead(&writer, bytes);
}

static void expect_only(struct rc_ring_reader *reader, size_t bytes) {
  struct rc_ring_frame frame;
  ck_assert_int_eq(rc_ring_next(reader, &frame), 0);
  ck_assert_uint_eq(frame.kind, SENT);
  ck_assert_uint_eq(frame.bytes, bytes);
  ck_assert_int_eq(rc_ring_release(reader, frame.position), 0);
  ck_assert(!rc_ring_is_available(reader));
  ck_assert(!rc_ring_next_plain(reader, &frame));
  expect_nothing(reader);
}

/* After this the word where the next frame of so many bytes ends is zeroed, if the limit allows. */
static void send_plain(struct rc_ring_reader *reader, size_t bytes) {
  reserve(bytes);
  commit(bytes);
  expect_only(reader, bytes);
}

TEST(nothing_of_a_reservation_that_was_trimmed_is_taken_for_a_frame) {
  struct rc_ring_reader reader = join();
  uint64_t ahead = 0;
  for (uint64_t i = 0; i < ROUNDS; i++) {
    send_plain(&reader, 200);
    ahead += writer.zeroed == rc_frame_footprint(200);
    reserve_forged(201 + mix(i) % 1000);
    commit(200);
    expect_only(&reader, 200);
  }
  ck_assert_uint_gt(ahead, ROUNDS / 2); /* else this shows nothing */
}

TEST(nothing_of_a_reservation_that_was_aborted_is_taken_for_a_frame) {
  struct rc_ring_reader reader = join();
  for (uint64_t i = 0; i < ROUNDS; i++) {
    send_plain(&reader, 200);
    reserve_forged(201 + mix(i) % 1000);
    ck_assert_int_eq(rc_ring_abort(&writer), 0);
    expect_nothing(&reader);
    send_plain(&reader, 200);
  }
}

/* Also where it was asked last for less than it has: it does not shrink by that. */
TEST(nothing_of_a_reservation_that_grew_and_was_trimmed_is_taken_for_a_frame) {
  struct rc_ring_reader reader = join();
  void *out;
  for (uint64_t i = 0; i < ROUNDS; i++) {
    size_t most = 201 + mix(i) % 1000;
    send_plain(&reader, 200);
    reserve(200);
    ck_assert_int_eq(rc_ring_grow(&writer, most, &out), 0);
    forge(out, most, writer.tail);
    if (i % 2) ck_assert_int_eq(rc_ring_grow(&writer, 200, &out), 0);
    commit(200);
    expect_only(&reader, 200);
  }
}

TEST(nothing_is_taken_for_a_frame_behind_a_note_in_place_of_a_filled_reservation) {
  static _Alignas(RC_LINE) uint8_t memory[4096];
  ring.spill = memory;
  ring.spill_bytes = sizeof memory;
  struct rc_ring_reader reader = join();
  const uint64_t offset = sizeof(struct rc_frame_header);
  struct rc_ring_frame frame;
  for (uint64_t i = 0; i < ROUNDS; i++) {
    send_plain(&reader, sizeof(struct rc_spilled));
    reserve_forged(200 + mix(i) % 1000);
    ck_assert_int_eq(rc_ring_commit_spilled(&writer, offset, 2000, SENT), 0);
    ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
    ck_assert(frame.spilled && frame.kind == SENT && frame.bytes == 2000);
    ck_assert_int_eq(rc_ring_release(&reader, frame.position), 0);
    expect_nothing(&reader);
  }
}

/* Each frame is full of what looks like a frame one lap later. */
TEST(frames_of_changing_lengths_leave_nothing_for_the_next_lap) {
  const size_t lengths[] = {300, 100, 700, 100, 100, 1000};
  struct rc_ring_reader reader = join();
  for (uint64_t i = 0; i < ROUNDS; i++) {
    size_t bytes = lengths[i % (sizeof lengths / sizeof *lengths)];
    forge(reserve(bytes), bytes, writer.tail + CAPACITY);
    commit(bytes);
    expect_only(&reader, bytes);
  }
}

/* Before the limit stood in the way, a word was zeroed ahead; at the limit none, and nobody may
 * count on one later. */
LOOP_TEST(a_word_that_the_limit_forbade_is_zeroed_later, 0, 2) {
  struct rc_ring_reader reader = join();
  struct rc_ring_frame frame;
  uint64_t forbidden = 0;
  for (uint64_t i = 0; i < ROUNDS; i++) {
    size_t bytes = _i == 0 ? 300 : 900; /* neither divides a lap */
    void *out;
    while (rc_ring_reserve(&writer, bytes, &out) == 0) {
      forge(out, bytes, writer.tail + CAPACITY);
      commit(bytes);
    }
    forbidden += writer.zeroed == 0;
    while (reader.next != writer.tail) {
      ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
      ck_assert_uint_eq(frame.kind, SENT);
      ck_assert_int_eq(rc_ring_release(&reader, frame.position), 0);
    }
    expect_nothing(&reader);
  }
  ck_assert_uint_gt(forbidden, ROUNDS / 2);
}

/* The ring is filled as far as it goes, again and again, behind a reader that has read but a
 * part. */
LOOP_TEST(a_word_zeroed_ahead_touches_nothing_that_is_still_to_be_read, 0, 9) {
  const size_t lengths[] = {0, 112, 113, 240, 496, 500, 900, 1008, 1900};
  size_t bytes = lengths[_i];
  struct rc_ring_reader reader = join();
  uint64_t sent = 0, read = 0;
  for (uint64_t round = 0; round < ROUNDS; round++) {
    while (send(sent, bytes) == 0) sent++;
    ck_assert_uint_gt(sent, read);
    for (uint64_t last = read + mix(round) % (sent - read); read <= last; read++) {
      expect(&reader, read, bytes);
      ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
    }
  }
  for (; read < sent; read++) {
    expect(&reader, read, bytes);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
  expect_nothing(&reader);
}

RUN_TESTS("ring, zeroing", make_ring, free_ring)
