/* SPDX-License-Identifier: Apache-2.0 */
/* Readers that join, leave, die and are evicted, one thread, every step in a chosen order. An
 * evicted reader finds out before it believes anything, and disturbs nobody by what it still
 * does. */
#include "ring/tap.h"
#include "tests/support/ring.h"

/* The writer has published a frame and was stopped before it moved the tail on. */
TEST(a_frame_that_is_there_already_is_not_for_who_joins_now) {
  struct rc_ring_reader first = join();
  ck_assert_int_eq(send(0, 300), 0);
  ck_assert_int_eq(send(1, 300), 0);
  control->tail = rc_frame_footprint(300);
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
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, (struct rc_start){0}, &reader), 0);
  ck_assert_int_eq(send(sent, 300), 0);
  expect(&reader, sent, 300);
}

TEST(a_slot_is_reaped_only_while_its_owner_is_the_one_meant) {
  uint32_t slot;
  uint64_t owner;
  struct rc_ring_reader reader;
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &slot, &owner), 0);
  uint64_t joining = control->slots[slot].owner;
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, (struct rc_start){0}, &reader), 0);
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
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, (struct rc_start){0}, &reader), -EAGAIN);
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &other, &owner), 0);
  ck_assert_int_eq(rc_slot_activate(&ring, other, owner, (struct rc_start){0}, &reader), 0);
}

TEST(an_owner_holds_pid_start_turn_and_state) {
  uint64_t owner = rc_owner_make(4194303, UINT64_MAX - 5, 1024 + 5,
                                 RC_SLOT_ACTIVE); /* the largest pid of Linux */
  ck_assert_uint_eq(rc_owner_pid(owner), 4194303);
  ck_assert_uint_eq(rc_owner_start(owner), (UINT64_MAX - 5) & RC_START_MASK);
  ck_assert_uint_eq(rc_owner_turn(owner), 5);
  ck_assert_int_eq(rc_owner_state(owner), RC_SLOT_ACTIVE);
}

/* Off the lines of frames, or so large that sums of positions overflow. */
TEST(a_tail_that_cannot_be_right_is_refused) {
  const uint64_t tails[] = {1, -(uint64_t)RC_FRAME_ALIGN, (uint64_t)1 << 63,
                            RC_MAX_POSITION + RC_FRAME_ALIGN};
  struct rc_ring_reader reader;
  struct rc_ring_frame frame;
  struct rc_ring_tap tap;
  uint8_t buffer[256];
  uint32_t slot;
  uint64_t owner;
  for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
    rc_tap_init(&tap, &ring);
    rc_store_release(&control->tail, tails[i]);
    ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot, &owner), 0);
    ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, (struct rc_start){0}, &reader), -EPROTO);
    ck_assert_int_eq(rc_owner_state(control->slots[slot].owner), RC_SLOT_FREE);
    rc_store_release(&control->limit,
                     CAPACITY + 1); /* so the tap is lapped, and goes on at the tail */
    ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
    rc_store_release(&control->limit, 0);
    rc_store_release(&control->tail, 0);
  }
}

/* ---- Eviction -------------------------------------------------------------------------------- */

static bool evict(const struct rc_ring_reader *reader) {
  return rc_slot_evict(&ring, reader->slot, reader->owner);
}

/* Until the reader's oldest frame holds the writer back. */
static uint64_t fill_up(uint64_t number) {
  while (send(number, 200) == 0) number++;
  return number;
}

TEST(an_evicted_reader_is_told_at_each_call) {
  struct rc_ring_reader reader = join();
  struct rc_ring_frame frame, again;
  ck_assert_int_eq(send(0, 200), 0);
  ck_assert_int_eq(send(1, 200), 0);
  ck_assert_int_eq(rc_ring_next(&reader, &frame), 0);
  ck_assert(!rc_ring_is_evicted(&reader));
  ck_assert(evict(&reader));
  ck_assert(rc_ring_is_evicted(&reader));
  ck_assert_int_eq(rc_ring_look(&reader, frame.position, &again), -ESTALE);
  ck_assert_int_eq(rc_ring_next(&reader, &again), -ESTALE); /* also where it would be -EBUSY */
  ck_assert(!rc_ring_release_only(&reader, frame.position));
  ck_assert_int_eq(rc_ring_release(&reader, frame.position), -ESTALE);
  reader.leases = 2;
  ck_assert(!rc_ring_next_plain(&reader, &again));
  ck_assert_int_eq(rc_ring_next(&reader, &again), -ESTALE);
  ck_assert_int_eq(rc_ring_release(&reader, frame.position), -ESTALE);
}

TEST(one_that_waits_for_a_frame_is_told_too) {
  struct rc_ring_reader reader = join();
  struct rc_ring_frame frame;
  ck_assert(evict(&reader));
  ck_assert(!rc_ring_next_plain(&reader, &frame));
  ck_assert_int_eq(rc_ring_next(&reader, &frame), -ESTALE);
}

TEST(the_writer_goes_on_without_it_and_the_others_lose_nothing) {
  struct rc_ring_reader slow = join(), other = join();
  struct rc_ring_frame frame;
  other.leases = RC_MAX_LEASES;
  uint64_t sent = fill_up(0);
  for (uint64_t i = 0; i < sent; i++) {
    expect(&other, i, 200);
    ck_assert_int_eq(rc_ring_release(&other, other.cursor), 0);
  }
  ck_assert_int_eq(send(sent, 200), -EAGAIN);
  ck_assert_uint_eq(writer.blocker, slow.slot);
  ck_assert(evict(&slow));
  for (uint64_t last = sent + 200; sent < last; sent++) {
    ck_assert_int_eq(send(sent, 200), 0);
    expect(&other, sent, 200);
    ck_assert_int_eq(rc_ring_release(&other, other.cursor), 0);
  }
  ck_assert_int_eq(rc_ring_next(&slow, &frame), -ESTALE);
}

/* What lies there by now is the middle of some payload, and looks like anything. */
TEST(no_header_is_believed_that_was_overwritten) {
  static const uint64_t as_if[] = {0, 1, 128, 256, UINT64_MAX};
  for (size_t i = 0; i < sizeof as_if / sizeof *as_if; i++) {
    struct rc_ring_reader reader = join();
    struct rc_ring_frame frame;
    ck_assert_int_eq(send(i, 100), 0);
    struct rc_frame_header *header = rc_frame_at(&ring, reader.next);
    uint64_t commit = header->commit;
    ck_assert(evict(&reader));
    header->commit = reader.next + as_if[i];
    ck_assert(!rc_ring_next_plain(&reader, &frame));
    ck_assert_int_eq(rc_ring_next(&reader, &frame), -ESTALE);
    header->commit = commit;
    rc_slot_free(&ring, reader.slot, reader.owner);
  }
}

TEST(a_slot_stays_with_who_was_evicted_until_it_gives_it_up) {
  struct rc_ring_reader readers[SLOTS];
  struct rc_ring_frame frame;
  uint32_t slot;
  uint64_t owner;
  for (int i = 0; i < SLOTS; i++) readers[i] = join();
  ck_assert(evict(&readers[1]));
  ck_assert_int_eq(rc_slot_claim(&ring, 1, 7, &slot, &owner), -EUSERS);
  rc_slot_free(&ring, readers[1].slot, readers[1].owner);
  struct rc_ring_reader next = join();
  ck_assert_uint_eq(next.slot, readers[1].slot);
  /* The one before is of the same process; what it still does is not taken for the new one's. */
  ck_assert(!evict(&readers[1]));
  rc_slot_free(&ring, readers[1].slot, readers[1].owner);
  ck_assert_int_eq(rc_ring_next(&readers[1], &frame), -ESTALE);
  ck_assert_int_eq(rc_ring_next(&next, &frame), -EAGAIN);
}

TEST(the_slot_of_one_that_died_evicted_is_reaped) {
  struct rc_ring_reader reader = join();
  uint64_t evicted = rc_owner_as(reader.owner, RC_SLOT_EVICTED);
  ck_assert(evict(&reader));
  ck_assert(!rc_slot_reap(&ring, reader.slot, reader.owner));
  ck_assert(rc_slot_reap(&ring, reader.slot, evicted));
  ck_assert_uint_eq(join().slot, reader.slot);
}

TEST(a_late_cursor_moves_nothing) {
  struct rc_ring_reader slow = join(), other = join();
  uint64_t sent = fill_up(0);
  ck_assert(evict(&slow));
  /* What a release does that had looked just before; whatever it is. */
  slow.own->cursor = writer.tail + 4096;
  ck_assert_int_eq(send(sent, 200), -EAGAIN);
  ck_assert_uint_eq(writer.blocker, other.slot);
}

TEST(who_was_evicted_while_joining_claims_anew) {
  uint32_t slot;
  uint64_t owner;
  struct rc_ring_reader reader;
  ck_assert_int_eq(rc_slot_claim(&ring, 42, 7, &slot, &owner), 0);
  ck_assert_int_eq(send(0, 100), -EAGAIN);
  ck_assert(rc_slot_evict(&ring, slot, owner));
  ck_assert_int_eq(send(0, 100), 0);
  ck_assert_int_eq(rc_slot_activate(&ring, slot, owner, (struct rc_start){0}, &reader), -EAGAIN);
  ck_assert_int_eq(rc_owner_state(control->slots[slot].owner), RC_SLOT_FREE);
  reader = join();
  expect_nothing(&reader);
}

TEST(the_evicted_are_no_parties) {
  struct rc_ring_reader first = join();
  join();
  ck_assert_uint_eq(rc_ring_participants(&ring), 3);
  ck_assert(evict(&first));
  ck_assert_uint_eq(rc_ring_participants(&ring), 2);
  ck_assert_uint_eq(control->cpus.participants, 2);
}

RUN_TESTS("ring, slots", make_ring, free_ring)
