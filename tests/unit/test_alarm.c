/* SPDX-License-Identifier: Apache-2.0 */
/* The pollable descriptor of an event, a process and a time: each of them makes it readable, and nothing is missed. */
#define _GNU_SOURCE
#include "shm/alarm.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>

#include "tests/support/children.h"
#include "tests/support/leaks.h"
#include "tests/support/notifier.h"

static struct rc_alarm *open_alarm(struct rc_event *event) {
  struct rc_alarm *alarm;
  ck_assert_int_eq(rc_alarm_open(event, &alarm), 0);
  return alarm;
}

static bool is_readable(const struct rc_alarm *alarm, int ms) {
  struct pollfd look = {.fd = rc_alarm_fd(alarm), .events = POLLIN};
  int result = poll(&look, 1, ms);
  ck_assert_int_ge(result, 0);
  return result == 1;
}

static void arm_alarm(struct rc_alarm *alarm, struct rc_event *event, const struct rc_watch *whom, int64_t most_ns) {
  ck_assert_int_eq(rc_alarm_arm(alarm, rc_event_prepare(event), whom, most_ns), 0);
}

static void arm_quietly(struct rc_alarm *alarm, struct rc_event *event, const struct rc_watch *whom) {
  arm_alarm(alarm, event, whom, NEVER);
}

static void live_for_ever(void *context) {
  (void)context;
  for (;;) pause();
}

static pid_t start_peer(struct rc_watch *out) {
  struct rc_process peer;
  pid_t child = start_child(live_for_ever, NULL);
  ck_assert_int_eq(rc_process_find(child, &peer), 0);
  rc_watch_init(out, peer.pid, peer.start, UINT64_MAX);
  return child;
}

START_TEST(it_starts_readable_and_a_signal_makes_it_so_again) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_alarm *alarm = open_alarm(&event);
  ck_assert(is_readable(alarm, -1));
  for (int i = 0; i < 100; i++) {
    arm_quietly(alarm, &event, NULL);
    ck_assert(!is_readable(alarm, 0));
    rc_wake(&event);
    ck_assert(is_readable(alarm, -1));
    ck_assert(is_readable(alarm, 0)); /* until armed again */
  }
  rc_alarm_close(alarm);
}
END_TEST

START_TEST(a_time_that_passes_makes_it_readable_and_the_next_arm_takes_that_back) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_alarm *alarm = open_alarm(&event);
  static const int64_t times[] = {INT64_MIN, 0, 1, 1000000};
  arm_quietly(alarm, &event, NULL);
  for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
    arm_alarm(alarm, &event, NULL, times[i]);
    ck_assert(is_readable(alarm, -1));
    arm_quietly(alarm, &event, NULL);
    ck_assert(!is_readable(alarm, 0));
  }
  rc_alarm_close(alarm);
}
END_TEST

START_TEST(the_end_of_the_one_it_watches_makes_it_readable) {
  if (!choose(_i, __func__)) return;
  if (!has_pidfds()) {
    tell_skipped(__func__, "no pidfds: the time alone tells to look");
    return;
  }
  struct rc_event event = {0};
  struct rc_watch peers[2];
  pid_t children[2];
  struct rc_alarm *alarm = open_alarm(&event);
  for (int i = 0; i < 2; i++) children[i] = start_peer(&peers[i]);
  for (int i = 0; i < 3; i++) arm_quietly(alarm, &event, &peers[i % 2]);
  arm_quietly(alarm, &event, &peers[1]);
  kill_child(children[0]); /* nobody's concern any more */
  ck_assert(!is_readable(alarm, 20));
  arm_quietly(alarm, &event, NULL);
  kill_child(children[1]);
  ck_assert(!is_readable(alarm, 20));
  children[0] = start_peer(&peers[0]);
  arm_quietly(alarm, &event, &peers[0]);
  ck_assert(!is_readable(alarm, 0));
  kill_child(children[0]);
  ck_assert(is_readable(alarm, -1));
  arm_alarm(alarm, &event, &peers[1], NEVER); /* it ended before it was watched */
  ck_assert(is_readable(alarm, -1));
  rc_alarm_close(alarm);
}
END_TEST

START_TEST(no_signal_of_many_is_lost) {
  if (!choose(_i, __func__)) return;
  static struct game game = {.rounds = 5000};
  struct rc_alarm *alarm = open_alarm(&game.event);
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, play, &game), 0);
  for (uint64_t seen = 0; seen < game.rounds;) {
    if (rc_load_acquire(&game.sent) == seen) {
      uint32_t value = rc_event_prepare(&game.event);
      if (rc_load_acquire(&game.sent) == seen) {
        ck_assert_int_eq(rc_alarm_arm(alarm, value, NULL, NEVER), 0);
        ck_assert(is_readable(alarm, -1));
        continue;
      }
    }
    rc_store_release(&game.seen, ++seen);
  }
  pthread_join(thread, NULL);
  rc_alarm_close(alarm);
}
END_TEST

START_TEST(without_descriptors_it_fails_and_leaves_nothing) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_alarm *alarm = NULL;
  struct rlimit limit, few;
  int before = open_descriptors(), result = -EMFILE;
  getrlimit(RLIMIT_NOFILE, &limit);
  int lowest = dup(0); /* the next that is free */
  close(lowest);
  for (int more = 0; result == -EMFILE; more++) {
    few = (struct rlimit){(rlim_t)(lowest + more), limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    result = rc_alarm_open(&event, &alarm);
    setrlimit(RLIMIT_NOFILE, &limit);
    if (result == 0) break;
    ck_assert_int_eq(result, -EMFILE);
    ck_assert_int_eq(open_descriptors(), before);
    ck_assert_ptr_null(alarm);
    ck_assert_int_lt(more, 5);
  }
  arm_quietly(alarm, &event, NULL);
  rc_wake(&event);
  ck_assert(is_readable(alarm, -1));
  rc_alarm_close(alarm);
  ck_assert_int_eq(open_descriptors(), before);
}
END_TEST

static void close_copy(void *alarm) {
  rc_alarm_close(alarm);
}

START_TEST(a_forked_child_closes_its_copy_and_the_parents_goes_on) {
  if (!choose(_i, __func__)) return;
  struct rc_event *event = shared_event();
  struct rc_watch peer;
  pid_t child = start_peer(&peer);
  struct rc_alarm *alarm = open_alarm(event);
  arm_quietly(alarm, event, &peer);
  child_must_succeed(start_child(close_copy, alarm));
  arm_quietly(alarm, event, &peer); /* the child may have nudged the event */
  ck_assert(!is_readable(alarm, 0));
  kill_child(child);
  if (has_pidfds()) ck_assert(is_readable(alarm, -1));
  arm_quietly(alarm, event, NULL);
  rc_wake(event);
  ck_assert(is_readable(alarm, -1));
  rc_alarm_close(alarm);
}
END_TEST

int main(void) {
  uring_result = rc_uring_probe();
  Suite *suite = suite_create("alarm");
  TCase *tests = add_case(suite, "alarm");
  tcase_add_loop_test(tests, it_starts_readable_and_a_signal_makes_it_so_again, 0, WAYS);
  tcase_add_loop_test(tests, a_time_that_passes_makes_it_readable_and_the_next_arm_takes_that_back, 0, WAYS);
  tcase_add_loop_test(tests, the_end_of_the_one_it_watches_makes_it_readable, 0, WAYS);
  tcase_add_loop_test(tests, no_signal_of_many_is_lost, 0, WAYS);
  tcase_add_loop_test(tests, without_descriptors_it_fails_and_leaves_nothing, 0, WAYS);
  tcase_add_loop_test(tests, a_forked_child_closes_its_copy_and_the_parents_goes_on, 0, WAYS);
  return run_suite(suite);
}
