/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that are followed while they are written, and those that are taken back. */
#include "ring/spill.h"

#include "tests/support/spill_ring.h"

START_TEST(who_follows_sees_each_piece_and_the_others_the_whole) {
  struct rc_ring_reader follower = join(), other = join();
  struct rc_ring_frame frame, again;
  uint64_t offset, all = bytes_of(6);
  follower.follows = true;
  ck_assert_int_eq(rc_spill_publish(&spill, &writer, 0, 5), -EINVAL); /* nothing is open */
  ck_assert_int_eq(open_at(all, &offset), 0);
  uint8_t *payload = memory + offset + RC_SPILL_PHASE;
  pattern_fill(payload, all, 5);
  ck_assert_int_eq(rc_spill_publish(&spill, &writer, all + 1, 5), -EINVAL);
  ck_assert_int_eq(rc_ring_next(&follower, &frame), -EAGAIN);
  for (uint64_t upto = 0; upto < all; upto += 1000) {
    ck_assert_int_eq(rc_spill_publish(&spill, &writer, upto, 5), 0);
    ck_assert(rc_spill_is_valid(&spill));
    if (upto == 0) ck_assert_int_eq(rc_ring_next(&follower, &frame), 0);
    ck_assert_int_eq(rc_ring_next(&other, &again), -EAGAIN);
    ck_assert_int_eq(rc_ring_look(&follower, frame.position, &again), 0);
    ck_assert(!again.whole && again.spilled && again.kind == 5 && again.bytes == all && again.there == upto);
    ck_assert_ptr_eq(again.data, payload);
  }
  ck_assert_int_eq(rc_spill_publish(&spill, &writer, 10, 5), -EINVAL); /* not back */
  ck_assert_int_eq(rc_spill_publish(&spill, &writer, all, 6), -EINVAL);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, 10, 5), -EINVAL);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, all + 1, 5), -EINVAL);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, all - 40, 6), -EINVAL);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, all - 40, 5), 0);
  ck_assert_int_eq(rc_ring_look(&follower, frame.position, &again), 0);
  ck_assert(again.whole && again.bytes == all - 40 && again.there == all - 40);
  expect(&other, 5, all - 40);
  ck_assert_int_eq(rc_ring_look(&follower, frame.position + 64, &again), -EINVAL);
  release(&follower, frame.position);
  ck_assert_int_eq(rc_ring_look(&follower, frame.position, &again), -EINVAL);
}
END_TEST

START_TEST(what_is_taken_back_is_never_seen_by_those_who_do_not_follow) {
  struct rc_ring_reader follower = join(), other = join(), holder = join();
  struct rc_ring_frame frame, again;
  uint64_t offset;
  follower.follows = true;
  ck_assert_int_eq(send(1, 1), 0);
  uint64_t held = expect(&holder, 1, bytes_of(1));
  release(&follower, expect(&follower, 1, bytes_of(1)));
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(open_at(bytes_of(2), &offset), 0);
    ck_assert_int_eq(rc_spill_publish(&spill, &writer, 100, 5), 0);
    ck_assert_int_eq(rc_ring_next(&follower, &frame), 0);
    rc_spill_abort(&spill);
    ck_assert(rc_spill_is_valid(&spill));
    ck_assert_int_eq(rc_ring_look(&follower, frame.position, &again), -ECONNABORTED);
    release(&follower, frame.position);
  }
  ck_assert_int_eq(rc_ring_next(&holder, &again), -EAGAIN); /* goes over them behind one that it holds */
  ck_assert_uint_eq(holder.cursor, held);
  release(&holder, held);
  ck_assert_uint_eq(holder.cursor, writer.tail);
  release(&other, expect(&other, 1, bytes_of(1)));
  ck_assert_int_eq(send(2, 1), 0);
  ck_assert_uint_eq(spill.count, 4); /* they are in flight until all have gone over them */
  release(&other, expect(&other, 2, bytes_of(1)));
  release(&holder, expect(&holder, 2, bytes_of(1)));
  release(&follower, expect(&follower, 2, bytes_of(1)));
  ck_assert_int_eq(rc_spill_reclaim(&spill, &writer), 0);
  ck_assert_uint_eq(spill.count, 0);
}
END_TEST

START_TEST(what_is_taken_back_takes_no_lease) {
  struct rc_ring_reader holder = join();
  struct rc_ring_frame frame;
  uint64_t offset;
  holder.leases = 2;
  ck_assert_int_eq(send(1, 1), 0);
  uint64_t first = expect(&holder, 1, bytes_of(1));
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(open_at(bytes_of(2), &offset), 0);
    ck_assert_int_eq(rc_spill_publish(&spill, &writer, 100, 5), 0);
    rc_spill_abort(&spill);
    ck_assert_int_eq(rc_ring_next(&holder, &frame), -EAGAIN);
  }
  ck_assert_int_ge(send(2, 1), 0);
  uint64_t second = expect(&holder, 2, bytes_of(1));
  ck_assert_int_eq(rc_ring_next(&holder, &frame), -EBUSY);
  ck_assert_int_eq(rc_ring_release(&holder, first + RC_FRAME_ALIGN), -EINVAL); /* it was never lent */
  rc_ring_put_back(&holder, second);
  ck_assert_uint_eq(expect(&holder, 2, bytes_of(1)), second);
  release(&holder, second);
  ck_assert_uint_eq(holder.cursor, first);
  release(&holder, first);
  ck_assert_uint_eq(holder.cursor, writer.tail);
}
END_TEST

START_TEST(a_frame_that_all_let_go_before_it_is_whole_stays_whole_for_none) {
  struct rc_ring_reader follower = join();
  struct rc_ring_frame frame;
  uint64_t offset;
  follower.follows = true;
  ck_assert_int_eq(open_at(bytes_of(2), &offset), 0);
  ck_assert_int_eq(rc_spill_publish(&spill, &writer, 100, 5), 0);
  ck_assert_int_eq(rc_ring_next(&follower, &frame), 0);
  release(&follower, frame.position);
  struct rc_ring_reader late = join(); /* it has begun before */
  ck_assert_int_eq(rc_ring_next(&late, &frame), -EAGAIN);
  ck_assert_int_eq(rc_spill_publish(&spill, &writer, 200, 5), 0);
  ck_assert_int_eq(rc_spill_commit(&spill, &writer, 200, 5), 0);
  ck_assert_int_eq(rc_ring_next(&late, &frame), -EAGAIN);
  ck_assert_int_eq(send(2, UNITS), 0);
  expect(&late, 2, bytes_of(UNITS));
  expect(&follower, 2, bytes_of(UNITS));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("spill, followed");
  TCase *tests = add_case(suite, "spill, followed");
  tcase_add_checked_fixture(tests, make_ring, free_ring);
  tcase_add_test(tests, who_follows_sees_each_piece_and_the_others_the_whole);
  tcase_add_test(tests, what_is_taken_back_is_never_seen_by_those_who_do_not_follow);
  tcase_add_test(tests, what_is_taken_back_takes_no_lease);
  tcase_add_test(tests, a_frame_that_all_let_go_before_it_is_whole_stays_whole_for_none);
  return run_suite(suite);
}
