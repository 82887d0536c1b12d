/* SPDX-License-Identifier: Apache-2.0 */
/* Readers that join, hold frames and leave, one thread, every step in a chosen order. */
#include "tests/support/ring.h"

TEST(a_reader_that_joins_in_mid_stream_gets_what_comes_after) {
  struct rc_ring_reader early = join();
  for (uint64_t i = 0; i < 7; i++) {
    ck_assert_int_eq(send(i, 500), 0);
    expect(&early, i, 500);
    ck_assert_int_eq(rc_ring_release(&early, early.cursor), 0);
  }
  struct rc_ring_reader late = join();
  expect_nothing(&late);
  ck_assert_int_eq(send(7, 500), 0);
  expect(&early, 7, 500);
  expect(&late, 7, 500);
}

/* The writer has published a frame and was stopped before it moved the tail on. */
TEST(a_frame_that_is_there_already_is_not_for_who_joins_now) {
  struct rc_ring_reader first = join();
  ck_assert_int_eq(send(0, 300), 0);
  ck_assert_int_eq(send(1, 300), 0);
  control->tail = rc_frame_lines(300);
  expect(&first, 0, 300);
  ck_assert_int_eq(rc_ring_release(&first, first.cursor), 0);
  expect(&first, 1, 300);
  rc_slot_free(&ring, first.slot, first.owner);
  struct rc_ring_reader again = join();
  expect_nothing(&again);
  ck_assert_int_eq(send(2, 300), 0);
  expect(&again, 2, 300);
}

TEST(the_writer_grants_itself_nothing_while_somebody_joins) {
  uint32_t slot;
  uint64_t owner;
  struct rc_ring_reader reader;
  ck_assert_int_eq(send(0, 100), 0); /* granted: half a ring */
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot, &owner), 0);
  uint64_t limit = writer.limit, sent = 1;
  while (send(sent, 300) == 0) sent++;
  ck_assert_uint_eq(writer.limit, limit);
  ck_assert_uint_eq(writer.blocker, slot);
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, &reader), 0);
  ck_assert_int_eq(send(sent, 300), 0);
  expect(&reader, sent, 300);
}

TEST(a_reader_that_leaves_frees_its_room) {
  struct rc_ring_reader reader = join();
  uint64_t sent = 0;
  while (send(sent, 300) == 0) sent++;
  rc_slot_free(&ring, reader.slot, reader.owner);
  for (int i = 0; i < 100; i++) ck_assert_int_eq(send(sent, 300), 0);
}

TEST(without_readers_the_writer_never_waits) {
  for (uint64_t i = 0; i < 1000; i++) ck_assert_int_eq(send(i, mix(i) % 1900), 0);
}

TEST(slots_run_out_and_come_back) {
  struct rc_ring_reader readers[SLOTS];
  uint32_t slot;
  uint64_t owner;
  for (int i = 0; i < SLOTS; i++) readers[i] = join();
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot, &owner), -EUSERS);
  rc_slot_free(&ring, readers[2].slot, readers[2].owner);
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot, &owner), 0);
  ck_assert_uint_eq(slot, readers[2].slot);
}

TEST(a_slot_is_reaped_only_while_its_owner_is_the_one_meant) {
  uint32_t slot;
  uint64_t owner;
  struct rc_ring_reader reader;
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &slot, &owner), 0);
  uint64_t joining = control->slots[slot].owner;
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, &reader), 0);
  ck_assert(!rc_slot_reap(&ring, slot, joining));
  ck_assert(rc_slot_reap(&ring, slot, control->slots[slot].owner));
  ck_assert_int_eq(rc_owner_state(control->slots[slot].owner), RC_SLOT_FREE);
}

TEST(frames_are_held_and_released_in_any_order) {
  enum { HELD = 8 };
  struct rc_ring_frame frames[HELD], more;
  struct rc_ring_reader reader = join();
  reader.leases = HELD;
  for (uint64_t round = 0; round < 300; round++) {
    for (uint64_t i = 0; i < HELD; i++) ck_assert_int_eq(send(round * HELD + i, 100 + i), 0);
    for (uint64_t i = 0; i < HELD; i++) ck_assert_int_eq(rc_ring_next(&reader, &frames[i]), 0);
    ck_assert_int_eq(rc_ring_next(&reader, &more), -EBUSY);
    uint64_t oldest = reader.cursor, step = 1 + 2 * (mix(round) % 4), first = mix(round + 7) % HELD;
    for (uint64_t i = 0; i < HELD; i++) {
      uint64_t which = (first + i * step) % HELD; /* each once: the step is odd */
      ck_assert(pattern_matches(frames[which].data, 100 + which, round * HELD + which));
      ck_assert_int_eq(rc_ring_release(&reader, frames[which].position), 0);
      ck_assert_int_eq(rc_ring_release(&reader, frames[which].position), -EINVAL);
      ck_assert_int_eq(rc_ring_release(&reader, frames[which].position + 1), -EINVAL);
      ck_assert(rc_ring_reader_is_valid(&reader));
      if (which == 0) oldest = UINT64_MAX;
      if (oldest != UINT64_MAX) ck_assert_uint_eq(control->slots[reader.slot].cursor, oldest);
    }
    ck_assert_uint_eq(control->slots[reader.slot].cursor, writer.tail);
  }
}

TEST(the_oldest_held_frame_holds_the_writer_back) {
  struct rc_ring_reader reader = join();
  struct rc_ring_frame oldest, frame;
  reader.leases = RC_MAX_LEASES;
  ck_assert_int_eq(send(0, 200), 0);
  ck_assert_int_eq(rc_ring_next(&reader, &oldest), 0);
  uint64_t sent = 1;
  for (; send(sent, 200) == 0; sent++) {
    ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
    ck_assert_int_eq(rc_ring_release(&reader, frame.position), 0);
  }
  ck_assert(pattern_matches(oldest.data, 200, 0));
  ck_assert_int_eq(rc_ring_release(&reader, oldest.position), 0);
  ck_assert_int_eq(send(sent, 1900), 0);
}

TEST(parties_are_counted) {
  struct rc_ring_reader reader = join();
  ck_assert_uint_eq(rc_ring_participants(&ring), 2);
  ck_assert_uint_eq(control->cpus.participants, 2);
  rc_slot_free(&ring, reader.slot, reader.owner);
  ck_assert_uint_eq(rc_ring_participants(&ring), 1);
}

TEST(a_reader_that_was_reaped_while_joining_finds_out) {
  uint32_t slot, other;
  uint64_t owner;
  struct rc_ring_reader reader;
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &slot, &owner), 0);
  ck_assert(rc_slot_reap(&ring, slot, control->slots[slot].owner));
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, &reader), -EAGAIN);
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &other, &owner), 0);
  ck_assert_int_eq(rc_slot_activate(&ring, other, owner, &reader), 0);
}

TEST(a_tail_that_cannot_be_right_is_refused_at_joining) {
  uint32_t slot;
  uint64_t owner;
  struct rc_ring_reader reader;
  control->tail = 1;
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &slot, &owner), 0);
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, &reader), -EPROTO);
  ck_assert_int_eq(rc_owner_state(control->slots[slot].owner), RC_SLOT_FREE);
}

TEST(an_owner_holds_pid_start_turn_and_state) {
  uint64_t owner = rc_owner_make(4194303, UINT64_MAX - 5, 1024 + 5, RC_SLOT_ACTIVE); /* the largest pid of Linux */
  ck_assert_uint_eq(rc_owner_pid(owner), 4194303);
  ck_assert_uint_eq(rc_owner_start(owner), (UINT64_MAX - 5) & RC_START_MASK);
  ck_assert_uint_eq(rc_owner_turn(owner), 5);
  ck_assert_int_eq(rc_owner_state(owner), RC_SLOT_ACTIVE);
}

RUN_TESTS("ring, slots", make_ring, free_ring)
