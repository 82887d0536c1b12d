/* SPDX-License-Identifier: Apache-2.0 */
/* Readers that join, hold frames and leave, one thread, every step in a chosen order. */
#include "tests/support/ring.h"

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

TEST(an_owner_holds_pid_start_turn_and_state) {
  uint64_t owner = rc_owner_make(4194303, UINT64_MAX - 5, 1024 + 5, RC_SLOT_ACTIVE); /* the largest pid of Linux */
  ck_assert_uint_eq(rc_owner_pid(owner), 4194303);
  ck_assert_uint_eq(rc_owner_start(owner), (UINT64_MAX - 5) & RC_START_MASK);
  ck_assert_uint_eq(rc_owner_turn(owner), 5);
  ck_assert_int_eq(rc_owner_state(owner), RC_SLOT_ACTIVE);
}

RUN_TESTS("ring, slots", make_ring, free_ring)
