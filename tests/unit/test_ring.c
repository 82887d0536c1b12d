/* SPDX-License-Identifier: Apache-2.0 */
/* The ring's behaviour, one thread, every step in a chosen order. */
#include "tests/support/ring.h"

TEST(a_grow_that_fails_leaves_the_reservation_as_it_was) {
  struct rc_ring_reader reader = join();
  void *out, *grown;
  ck_assert_int_eq(send(0, 1500), 0);
  ck_assert_int_eq(send(1, 700), 0);
  ck_assert_int_eq(rc_ring_reserve(&writer, 100, &out), 0);
  pattern_fill(out, 100, 2);
  ck_assert_int_eq(rc_ring_grow(&writer, 1900, &grown), -EAGAIN);
  ck_assert_int_eq(rc_ring_grow(&writer, CAPACITY, &grown), -EMSGSIZE);
  ck_assert_int_eq(rc_ring_commit(&writer, 1900, 2), -EINVAL);
  ck_assert_int_eq(rc_ring_commit(&writer, 100, 2), 0);
  expect(&reader, 0, 1500);
  ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  expect(&reader, 1, 700);
  ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  expect(&reader, 2, 100);
}

/* Aeron's C ring once took a wrong index here: free room before the end and after the start,
 * neither enough alone. */
TEST(a_claim_with_room_neither_at_the_end_nor_at_the_start_overwrites_nothing) {
  struct rc_ring_reader reader = join();
  for (uint64_t i = 0; i < 3; i++) ck_assert_int_eq(send(i, 1100), 0); /* tail near the end */
  ck_assert_uint_gt(writer.tail, CAPACITY * 3 / 4);
  ck_assert_uint_lt(writer.tail, CAPACITY);
  expect(&reader, 0, 1100);
  /* About a quarter is free at the start, and less before the end. */
  ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  ck_assert_int_eq(send(3, rc_ring_max_frame(CAPACITY)), -EAGAIN);
  ck_assert_int_eq(send(3, 1100), 0); /* fits into both together, thanks to the mirror */
  for (uint64_t i = 1; i < 4; i++) {
    expect(&reader, i, 1100);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
  expect_nothing(&reader);
}

TEST(the_largest_frame_fits_wherever_the_tail_stands) {
  struct rc_ring_reader reader = join();
  size_t most = rc_ring_max_frame(CAPACITY);
  for (uint64_t i = 0; i < 3 * CAPACITY / RC_FRAME_ALIGN; i++) {
    ck_assert_int_eq(send(i, most), 0);
    expect(&reader, i, most);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
    ck_assert_int_eq(send(i, 1), 0);
    expect(&reader, i, 1);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
  void *out;
  ck_assert_int_eq(rc_ring_reserve(&writer, most + 1, &out), -EMSGSIZE);
  ck_assert_int_eq(rc_ring_reserve(&writer, UINT64_MAX, &out), -EMSGSIZE);
}

TEST(what_an_earlier_lap_left_is_never_taken_for_a_commit) {
  struct rc_ring_reader reader = join();
  void *out;
  for (uint64_t i = 0; i < 2000; i++) {
    size_t bytes = 40 + mix(i) % 600 / 8 * 8;
    ck_assert_int_eq(rc_ring_reserve(&writer, bytes, &out), 0);
    /* Every word of the payload is a position that would pass as the commit of a frame that starts
     * on this line. */
    uint64_t *words = out;
    for (size_t k = 0; k < bytes / 8; k++) {
      uint64_t line = (writer.tail + 16 + k * 8) / RC_FRAME_ALIGN * RC_FRAME_ALIGN;
      words[k] = line + CAPACITY + RC_FRAME_ALIGN;
    }
    ck_assert_int_eq(rc_ring_commit(&writer, bytes, 0), 0);
    struct rc_ring_frame frame;
    ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
    ck_assert_uint_eq(frame.bytes, bytes);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
    expect_nothing(&reader);
  }
}

TEST(no_frame_is_longer_than_its_length_can_say) {
  ck_assert_uint_eq(rc_ring_max_frame(4096), 2048 - 144);
  ck_assert_uint_eq(rc_ring_max_frame(RC_MAX_BYTES), UINT32_MAX);
}

/* Half of a ring of 16 GiB and more holds what a length of 32 bits can't say. */
TEST(what_a_length_cannot_say_is_refused_where_there_is_room_for_it) {
  struct rc_ring large = ring;
  struct rc_ring_writer own;
  void *out;
  large.capacity = (uint64_t)64 << 30;
  rc_ring_writer_init(&own, large);
  ck_assert_int_eq(rc_ring_reserve(&own, 100, &out), 0); /* grants half of it; nothing is written */
  ck_assert_int_eq(rc_ring_abort(&own), 0);
  ck_assert_int_eq(rc_ring_reserve(&own, (uint64_t)UINT32_MAX + 1, &out), -EMSGSIZE);
  ck_assert_int_eq(rc_ring_reserve(&own, UINT32_MAX, &out), 0);
  ck_assert_int_eq(rc_ring_grow(&own, (uint64_t)UINT32_MAX + 1, &out), -EMSGSIZE);
}

TEST(a_grant_never_exceeds_half_a_ring) {
  struct rc_ring_reader reader = join();
  for (uint64_t i = 0; i < 500; i++) {
    if (send(i, mix(i) % 900) != 0) {
      struct rc_ring_frame frame;
      while (rc_ring_next(&reader, &frame) == 0)
        ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
      i--;
    }
    ck_assert_uint_le(control->limit, writer.tail + CAPACITY / 2);
    ck_assert_uint_le(writer.tail + RC_FRAME_ALIGN, control->limit);
    ck_assert(rc_ring_writer_is_valid(&writer));
  }
}

TEST(a_reader_refuses_headers_that_cannot_be_right) {
  struct rc_ring_reader reader = join();
  struct rc_frame_header *frame = (struct rc_frame_header *)data.base;
  struct rc_ring_frame out;
  const uint64_t commits[] = {
      1, 64, 127, 129, 256, 4096, 4224, UINT64_MAX, UINT64_MAX - 127, (uint64_t)1 << 63};
  for (size_t i = 0; i < sizeof commits / sizeof *commits; i++) {
    frame->commit = commits[i];
    frame->bytes = 10; /* takes 128, which would be right */
    ck_assert_int_eq(rc_ring_next(&reader, &out), -EPROTO);
  }
  frame->bytes = UINT32_MAX;
  frame->commit = rc_frame_footprint(UINT32_MAX);
  ck_assert_int_eq(rc_ring_next(&reader, &out), -EPROTO);
  frame->bytes = 10;
  frame->commit = 128;
  ck_assert_int_eq(rc_ring_next(&reader, &out), 0);
}

TEST(the_writer_refuses_cursors_that_cannot_be_right) {
  struct rc_ring_reader reader = join();
  const uint64_t cursors[] = {64, 128, UINT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 127};
  void *out;
  for (size_t i = 0; i < sizeof cursors / sizeof *cursors; i++) {
    control->slots[reader.slot].cursor = cursors[i];
    ck_assert_int_eq(rc_ring_reserve(&writer, 100, &out), -EPROTO);
    ck_assert_uint_eq(writer.blocker, reader.slot);
  }
}

TEST(a_cursor_that_goes_back_takes_nothing_from_the_writer) {
  struct rc_ring_reader reader = join();
  struct rc_ring_frame frame;
  for (uint64_t i = 0; i < 8; i++) {
    ck_assert_int_eq(send(i, 300), 0);
    ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
    ck_assert_int_eq(rc_ring_release(&reader, reader.cursor), 0);
  }
  control->slots[reader.slot].cursor = 0;
  void *out;
  ck_assert_int_eq(rc_ring_reserve(&writer, 1900, &out), -EAGAIN);
  ck_assert(rc_ring_writer_is_valid(&writer));
}

/* Random steps against a model that is nothing but counters. */
LOOP_TEST(random_steps_agree_with_a_simple_model, 0, 4) {
  struct rc_ring_reader readers[SLOTS];
  uint64_t next[SLOTS], sent = 0, refused = 0, read = 0;
  bool attached[SLOTS] = {false};
  size_t most = rc_ring_max_frame(CAPACITY);
  for (uint64_t step = 0; step < (uint64_t)share_of(100000); step++) {
    uint64_t random = mix(step * 7 + (uint64_t)_i);
    uint32_t who = (random >> 8) % SLOTS;
    if (random % 8 < 4) {
      int result = send(sent, pattern_bytes(sent, most));
      ck_assert(result == 0 || result == -EAGAIN);
      if (result == 0) sent++;
      else refused++;
    } else if (!attached[who] && random % 8 == 7) {
      readers[who] = join();
      attached[who] = true;
      next[who] = sent;
    } else if (attached[who] && random % 512 == 5) {
      rc_slot_free(&ring, readers[who].slot, readers[who].owner);
      attached[who] = false;
    } else if (attached[who]) {
      for (uint64_t burst = (random >> 16) % 6; burst > 0 && next[who] < sent;
           burst--, next[who]++, read++) {
        expect(&readers[who], next[who], pattern_bytes(next[who], most));
        ck_assert_int_eq(rc_ring_release(&readers[who], readers[who].cursor), 0);
      }
      if (next[who] == sent) expect_nothing(&readers[who]);
    }
  }
  ck_assert_uint_gt(read, (uint64_t)share_of(1000));
  ck_assert_uint_gt(refused, (uint64_t)share_of(1000));
}

RUN_TESTS("ring", make_ring, free_ring)
