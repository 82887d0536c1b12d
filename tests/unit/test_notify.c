/* SPDX-License-Identifier: Apache-2.0 */
/* The pollable descriptor of an event: no signal is lost, none invented. */
#define _GNU_SOURCE
#include "shm/notify.h"

#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>

#include "shm/disable.h"
#include "shm/os.h"
#include "tests/support/children.h"
#include "tests/support/notifier.h"

/* ---- Signals ---------------------------------------------------------------------------------------------------- */

START_TEST(a_signal_before_the_arm_is_seen_at_once) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_notifier *notifier = make(_i, &event, NEVER);
  uint32_t value = rc_event_prepare(&event);
  rc_wake(&event);
  ck_assert_int_eq(rc_notifier_arm(notifier, value), 0);
  must_be_readable(notifier);
  ck_assert_int_eq(rc_notifier_uses_uring(notifier), _i == BY_URING); /* it did not give up */
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(a_signal_after_the_arm_is_seen) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_notifier *notifier = make(_i, &event, NEVER);
  arm(notifier, &event);
  must_stay_quiet(notifier); /* now the helper is asleep, most likely */
  rc_wake(&event);
  must_become_readable(notifier);
  rc_notifier_destroy(notifier);
}
END_TEST

struct signaller {
  struct rc_event *event;
  struct gate gate;
};

static void signal_when_told(void *context) {
  struct signaller *signaller = context;
  gate_wait(&signaller->gate);
  rc_wake(signaller->event);
}

START_TEST(a_signal_of_another_process_is_seen) {
  if (!choose(_i, __func__)) return;
  struct rc_event *event = shared_event();
  struct signaller signaller = {.event = event, .gate = gate_make()};
  pid_t child = start_child(signal_when_told, &signaller);
  struct rc_notifier *notifier = make(_i, event, NEVER);
  arm(notifier, event);
  must_stay_quiet(notifier);
  gate_open(&signaller.gate);
  must_become_readable(notifier);
  child_must_succeed(child);
  rc_notifier_destroy(notifier);
  gate_free(&signaller.gate);
}
END_TEST

START_TEST(without_a_signal_it_is_not_readable) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_notifier *notifier = make(_i, &event, 1000000); /* many slices end: that is no signal either */
  must_stay_quiet(notifier);
  arm(notifier, &event);
  must_stay_quiet(notifier);
  arm(notifier, &event);
  must_stay_quiet(notifier);
  rc_notifier_clear(notifier);
  must_stay_quiet(notifier);
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(it_stays_readable_until_cleared) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_notifier *notifier = make(_i, &event, NEVER);
  for (int i = 0; i < 3; i++) {
    arm(notifier, &event);
    must_stay_quiet(notifier);
    rc_wake(&event);
    must_become_readable(notifier);
    must_be_readable(notifier);
    must_be_readable(notifier);
    rc_notifier_clear(notifier);
    must_stay_quiet(notifier);
  }
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(after_a_clear_it_takes_another_arm) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_notifier *notifier = make(_i, &event, NEVER);
  arm(notifier, &event);
  must_stay_quiet(notifier);
  rc_notifier_clear(notifier);
  rc_wake(&event);
  must_stay_quiet(notifier);
  arm(notifier, &event);
  must_stay_quiet(notifier);
  rc_wake(&event);
  must_become_readable(notifier);
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(an_arm_replaces_the_one_before) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_notifier *notifier = make(_i, &event, NEVER);
  arm(notifier, &event);
  rc_wake(&event);
  must_become_readable(notifier);
  arm(notifier, &event);
  must_stay_quiet(notifier);
  for (int i = 0; i < 100; i++) arm(notifier, &event); /* more than io_uring has entries */
  must_stay_quiet(notifier);
  rc_wake(&event);
  must_become_readable(notifier);
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(two_notifiers_of_one_event_are_both_told) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_notifier *first = make(_i, &event, NEVER), *second = make(_i, &event, NEVER);
  arm(first, &event);
  arm(second, &event);
  must_stay_quiet(first);
  rc_wake(&event);
  must_become_readable(first);
  must_become_readable(second);
  rc_notifier_clear(first);
  rc_notifier_clear(second);
  arm(first, &event);
  arm(second, &event);
  rc_notifier_destroy(first); /* may wake the second for nothing, but takes nothing from it */
  rc_wake(&event);
  must_become_readable(second);
  rc_notifier_destroy(second);
}
END_TEST

/* ---- Many rounds ------------------------------------------------------------------------------------------------ */

START_TEST(no_signal_of_many_is_lost_and_epoll_is_not_interrupted) {
  if (!choose(_i, __func__)) return;
  static struct game game = {.rounds = 10000};
  struct rc_notifier *notifier = make(_i, &game.event, NEVER);
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = rc_notifier_fd(notifier)};
  ck_assert_int_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event), 0);
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, play, &game), 0);
  for (uint64_t seen = 0; seen < game.rounds;) {
    uint64_t sent = rc_load_acquire(&game.sent);
    if (sent == seen) {
      uint32_t value = rc_event_prepare(&game.event);
      sent = rc_load_acquire(&game.sent);
      if (sent == seen) {
        ck_assert_int_eq(rc_notifier_arm(notifier, value), 0);
        ck_assert_int_eq(epoll_wait(epoll, &event, 1, -1), 1);
        rc_notifier_clear(notifier);
        continue;
      }
    }
    ck_assert_uint_eq(sent, seen + 1);
    seen = sent;
    rc_store_release(&game.seen, seen);
  }
  pthread_join(thread, NULL);
  ck_assert_int_eq(rc_notifier_uses_uring(notifier), _i == BY_URING);
  close(epoll);
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(edge_triggered_epoll_gets_an_edge_each_time) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_notifier *notifier = make(_i, &event, NEVER);
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event got, wanted = {.events = EPOLLIN | EPOLLET};
  ck_assert_int_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, rc_notifier_fd(notifier), &wanted), 0);
  for (int i = 0; i < 100; i++) {
    arm(notifier, &event);
    rc_wake(&event);
    ck_assert_int_eq(epoll_wait(epoll, &got, 1, -1), 1);
    rc_notifier_clear(notifier);
  }
  close(epoll);
  rc_notifier_destroy(notifier);
}
END_TEST

/* ---- RINGCAST_DISABLE ------------------------------------------------------------------------------------------- */

START_TEST(the_environment_names_what_is_switched_off) {
  unsetenv("RINGCAST_DISABLE");
  ck_assert(!rc_disabled("io_uring"));
  const char *with[] = {"io_uring", "numa,io_uring", "io_uring,numa", " numa , io_uring ", ",,io_uring,"};
  for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
    setenv("RINGCAST_DISABLE", with[i], 1);
    ck_assert_msg(rc_disabled("io_uring"), "\"%s\"", with[i]);
  }
  const char *without[] = {"", ",", "io", "io_uring2", "xio_uring", "numa,spin", "io,_uring", "IO_URING"};
  for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
    setenv("RINGCAST_DISABLE", without[i], 1);
    ck_assert_msg(!rc_disabled("io_uring"), "\"%s\"", without[i]);
  }
}
END_TEST

int main(void) {
  uring_result = rc_uring_probe();
  Suite *suite = suite_create("notify");
  TCase *tests = add_case(suite, "signals");
  tcase_add_loop_test(tests, a_signal_before_the_arm_is_seen_at_once, 0, WAYS);
  tcase_add_loop_test(tests, a_signal_after_the_arm_is_seen, 0, WAYS);
  tcase_add_loop_test(tests, a_signal_of_another_process_is_seen, 0, WAYS);
  tcase_add_loop_test(tests, without_a_signal_it_is_not_readable, 0, WAYS);
  tcase_add_loop_test(tests, it_stays_readable_until_cleared, 0, WAYS);
  tcase_add_loop_test(tests, after_a_clear_it_takes_another_arm, 0, WAYS);
  tcase_add_loop_test(tests, an_arm_replaces_the_one_before, 0, WAYS);
  tcase_add_loop_test(tests, two_notifiers_of_one_event_are_both_told, 0, WAYS);
  tcase_add_loop_test(tests, no_signal_of_many_is_lost_and_epoll_is_not_interrupted, 0, WAYS);
  tcase_add_loop_test(tests, edge_triggered_epoll_gets_an_edge_each_time, 0, WAYS);
  tests = add_case(suite, "switches");
  tcase_add_test(tests, the_environment_names_what_is_switched_off);
  return run_suite(suite);
}
