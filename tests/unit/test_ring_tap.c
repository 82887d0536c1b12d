/* SPDX-License-Identifier: Apache-2.0 */
/* Taps of a ring, one thread, every step in a chosen order. */
#include "ring/tap.h"

#include "tests/support/ring.h"

START_TEST(a_tap_copies_and_holds_nobody_back) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[CAPACITY];
  rc_tap_init(&tap, &ring);
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EAGAIN);
  for (uint64_t i = 0; i < 500; i++) {
    size_t bytes = mix(i) % 1900;
    ck_assert_int_eq(send(i, bytes), 0);
    if (bytes > 0) ck_assert_int_eq(rc_tap_next(&tap, buffer, bytes - 1, &frame), -EMSGSIZE);
    if (bytes > 0) ck_assert_uint_eq(frame.bytes, bytes);
    ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), 0);
    ck_assert(frame.bytes == bytes && frame.kind == (uint16_t)i && pattern_matches(buffer, bytes, i));
  }
  ck_assert_uint_eq(tap.gaps, 0);
}
END_TEST

START_TEST(a_tap_that_is_lapped_knows_what_it_lost) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[CAPACITY];
  rc_tap_init(&tap, &ring);
  uint64_t read = 0, bytes = 0;
  for (uint64_t i = 0; i < 5000; i++) {
    ck_assert_int_eq(send(i, 8 + mix(i) % 800), 0);
    uint64_t frames = mix(i + 99) % 37 == 0 ? 5 : 0; /* mostly asleep, then a few */
    for (; frames > 0 && rc_tap_next(&tap, buffer, sizeof buffer, &frame) == 0; frames--) {
      ck_assert(pattern_matches(buffer, frame.bytes, frame.kind));
      read++;
      bytes += rc_frame_lines(frame.bytes);
    }
  }
  while (rc_tap_next(&tap, buffer, sizeof buffer, &frame) == 0) bytes += rc_frame_lines(frame.bytes);
  ck_assert_uint_gt(read, 100);
  ck_assert_uint_gt(tap.gaps, 10);
  ck_assert_uint_eq(bytes + tap.lost_bytes, writer.tail); /* every byte was either copied or counted as lost */
}
END_TEST

START_TEST(a_tap_loses_nothing_while_less_than_half_a_ring_behind) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[CAPACITY];
  rc_tap_init(&tap, &ring);
  for (uint64_t i = 0; i < 2000;) {
    uint64_t start = writer.tail;
    while (writer.tail + rc_frame_lines(300) - start <= CAPACITY / 2) ck_assert_int_eq(send(i++, 300), 0);
    while (rc_tap_next(&tap, buffer, sizeof buffer, &frame) == 0) {}
    ck_assert_uint_eq(tap.next, writer.tail);
  }
  ck_assert_uint_eq(tap.gaps, 0);
}
END_TEST

START_TEST(a_tap_refuses_what_cannot_be_right) {
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint8_t buffer[64];
  rc_tap_init(&tap, &ring);
  struct rc_frame_header *header = (struct rc_frame_header *)data.base;
  header->commit = 128;
  header->bytes = 10;
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
  header->commit = 64;
  header->bytes = UINT32_MAX;
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
  control->limit = UINT64_MAX; /* lapped, by a writer that is nowhere */
  ck_assert_int_eq(rc_tap_next(&tap, buffer, sizeof buffer, &frame), -EPROTO);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("ring, taps");
  TCase *tests = add_case(suite, "ring, taps");
  tcase_add_checked_fixture(tests, make_ring, free_ring);
  tcase_add_test(tests, a_tap_copies_and_holds_nobody_back);
  tcase_add_test(tests, a_tap_that_is_lapped_knows_what_it_lost);
  tcase_add_test(tests, a_tap_loses_nothing_while_less_than_half_a_ring_behind);
  tcase_add_test(tests, a_tap_refuses_what_cannot_be_right);
  return run_suite(suite);
}
