/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping and waking: nothing is lost, nobody calls the kernel for nothing. */
#define _GNU_SOURCE
#include "ring/event.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "ringcast/ringcast.h"
#include "shm/crowd.h"
#include "shm/fence.h"
#include "shm/os.h"
#include "shm/wait.h"
#include "tests/support/suite.h"

static int (*real_wait)(_Atomic uint32_t *, uint32_t, int64_t);
static int (*real_wake)(_Atomic uint32_t *, int);
static int (*real_membarrier)(int);
static _Atomic int wakes;

static int counted_wake(_Atomic uint32_t *word, int count) {
  wakes++;
  return real_wake(word, count);
}

/* Sleeps until woken, however long: a wake-up that is lost can't hide behind the end of a slice. */
static int wait_without_end(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)timeout_ns;
  return real_wait(word, value, (int64_t)1000 * 1000000000);
}

static void take_over(void) {
  unsetenv("RINGCAST_DISABLE"); /* each test here makes its own conditions */
  unsetenv("RINGCAST_SPIN_US");
  real_wait = rc_os.futex_wait;
  real_wake = rc_os.futex_wake;
  real_membarrier = rc_os.membarrier;
  rc_os.futex_wake = counted_wake;
}

START_TEST(the_word_changes_when_somebody_sleeps_and_only_then) {
  struct rc_event event = {0};
  ck_assert(!rc_event_is_asleep(&event));
  ck_assert(!rc_event_advance(&event));
  ck_assert_uint_eq(event.word, 0);
  uint32_t value = rc_event_prepare(&event);
  ck_assert(rc_event_is_asleep(&event));
  ck_assert(rc_event_advance(&event));
  ck_assert(!rc_event_is_asleep(&event));
  ck_assert_uint_ne(event.word, value);
  ck_assert_uint_ne(rc_event_prepare(&event), value);
}
END_TEST

START_TEST(two_sleepers_are_woken_by_one_signal) {
  struct rc_event event = {0};
  ck_assert_uint_eq(rc_event_prepare(&event), rc_event_prepare(&event));
  ck_assert(rc_event_advance(&event));
  ck_assert(!rc_event_advance(&event));
}
END_TEST

START_TEST(waking_nobody_makes_no_system_call) {
  struct rc_event event = {0};
  for (int i = 0; i < 1000; i++) rc_wake(&event);
  ck_assert_int_eq(wakes, 0);
  rc_event_prepare(&event);
  for (int i = 0; i < 1000; i++) rc_wake(&event);
  ck_assert_int_eq(wakes, 1);
}
END_TEST

static int barriers;

static int counted_barrier(int command) {
  barriers += command == MEMBARRIER_CMD_GLOBAL_EXPEDITED;
  return 0;
}

START_TEST(in_a_crowd_each_sleeper_calls_membarrier_once_after_it_has_told_all_to_fence) {
  unsetenv("RINGCAST_DISABLE");
  rc_os.membarrier = counted_barrier;
  struct rc_event event = {0};
  bool first = false, second = false;
  uint32_t value = rc_event_prepare_crowded(&event, &first);
  ck_assert(first && (event.word & RC_EVENT_FENCED) && event.word == value && rc_event_is_asleep(&event));
  ck_assert_int_eq(barriers, 1);
  for (int i = 0; i < 3; i++) rc_event_prepare_crowded(&event, &first);
  ck_assert_int_eq(barriers, 1);
  rc_event_prepare_crowded(&event, &second); /* that it is set does not tell it that all have seen it */
  ck_assert(second);
  ck_assert_int_eq(barriers, 2);
}
END_TEST

START_TEST(who_sleeps_often_in_a_crowd_does_without_membarrier_unless_it_is_alone_on_the_event) {
  unsetenv("RINGCAST_DISABLE");
  rc_os.membarrier = counted_barrier;
  for (int alone = 0; alone < 2; alone++)
    for (int crowded = 0; crowded < 2; crowded++) {
      struct rc_event event = {0};
      struct rc_crowd crowd = {.parties = crowded ? 2 : 1, .cpus = {1}};
      struct rc_waiter waiter;
      ck_assert_int_eq(rc_waiter_init(&waiter, &event, &crowd, 0), 0);
      waiter.alone = alone;
      waiter.since = rc_now_ns() + (int64_t)1000000000000; /* however slow the machine is */
      for (int i = 0; i < 200; i++) {
        rc_waiter_prepare(&waiter);
        waiter.sleeps++;
      }
      ck_assert_int_eq((event.word & RC_EVENT_FENCED) != 0, crowded && !alone);
      barriers = 0;
      for (int i = 0; i < 10; i++) rc_waiter_prepare(&waiter);
      ck_assert_int_eq(barriers, crowded && !alone ? 0 : 10);
    }
}
END_TEST

/* ---- rc_wait ---------------------------------------------------------------------------------------------------- */

struct target {
  struct rc_event event;
  struct rc_crowd crowd;
  struct rc_waiter waiter;
  _Atomic uint64_t value;
  uint64_t wanted;
  int check_result, checks;
};

/* Any wait that the machine is slow at may open a park: each target is destroyed, by the next set_up or at the end. */
static void set_up(struct target *target, int64_t spin_ns, int check_result) {
  rc_waiter_destroy(&target->waiter);
  *target = (struct target){.wanted = 1, .check_result = check_result};
  ck_assert_int_eq(rc_waiter_init(&target->waiter, &target->event, &target->crowd, spin_ns), 0);
}

static int poll_target(void *context) {
  struct target *target = context;
  return rc_load_acquire(&target->value) >= target->wanted ? 0 : -EAGAIN;
}

static int check_target(void *context) {
  struct target *target = context;
  target->checks++;
  return target->check_result;
}

static int wait_for(struct target *target, int64_t timeout_ns) {
  const struct rc_wait how = {.poll = poll_target, .check = check_target, .context = target};
  return rc_wait(&target->waiter, &how, timeout_ns);
}

START_TEST(a_wait_that_is_over_at_once_asks_nothing) {
  struct target target = {0};
  set_up(&target, -1, -EAGAIN);
  target.wanted = 0;
  ck_assert_int_eq(wait_for(&target, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(target.checks, 0);
  rc_waiter_destroy(&target.waiter);
}
END_TEST

START_TEST(a_wait_in_vain_ends_with_its_timeout) {
  const int64_t spins[] = {-1, 0, 1000, INT64_MAX};
  for (int i = 0; i < 4; i++) {
    struct target target = {0};
    set_up(&target, spins[i], -EAGAIN);
    ck_assert_int_eq(wait_for(&target, 0), -EAGAIN);
    ck_assert_int_eq(wait_for(&target, 1), -ETIMEDOUT);
    ck_assert_int_eq(wait_for(&target, 5000000), -ETIMEDOUT);
    rc_waiter_destroy(&target.waiter);
  }
}
END_TEST

START_TEST(a_spin_as_long_as_the_timeout_still_checks) {
  struct target target = {0};
  set_up(&target, INT64_MAX, -EOWNERDEAD);
  for (int i = 1; i <= 3; i++) { /* a bad verdict is not kept back until the slice is over */
    ck_assert_int_eq(wait_for(&target, 1000), -EOWNERDEAD);
    ck_assert_int_eq(target.checks, i);
  }
  ck_assert_int_eq(wait_for(&target, RINGCAST_FOREVER), -EOWNERDEAD);
  set_up(&target, -1, -EOWNERDEAD);
  ck_assert_int_eq(wait_for(&target, 1), -EOWNERDEAD);
  rc_waiter_destroy(&target.waiter);
}
END_TEST

START_TEST(a_wait_for_ever_ends_when_the_check_says_so) {
  struct target target = {0};
  set_up(&target, -1, -EOWNERDEAD);
  ck_assert_int_eq(wait_for(&target, RINGCAST_FOREVER), -EOWNERDEAD);
  ck_assert_int_eq(target.checks, 1);
  rc_waiter_destroy(&target.waiter);
}
END_TEST

static void do_nothing(int number) { (void)number; }

static void *interrupt(void *context) {
  pthread_t sleeper = *(pthread_t *)context;
  pthread_kill(sleeper, SIGUSR1);
  return NULL;
}

static int sleep_and_be_interrupted(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)word, (void)value, (void)timeout_ns;
  return -EINTR;
}

START_TEST(a_signal_ends_a_wait_unless_it_is_over_anyway) {
  struct target target = {0};
  set_up(&target, -1, -EAGAIN);
  rc_os.futex_wait = sleep_and_be_interrupted;
  ck_assert_int_eq(wait_for(&target, RINGCAST_FOREVER), -EINTR);
  rc_os.futex_wait = real_wait;

  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = do_nothing}, NULL);
  pthread_t self = pthread_self(), thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, interrupt, &self), 0);
  int result = wait_for(&target, 200000000); /* the signal may also come before the sleep: then the time runs out */
  ck_assert(result == -EINTR || result == -ETIMEDOUT);
  pthread_join(thread, NULL);
  rc_waiter_destroy(&target.waiter);
}
END_TEST

/* ---- No wake-up is lost: two threads hand a number to and fro, and each can only go on when woken --------------- */

static struct target to, fro;
static uint64_t handoffs;

static void pass(struct target *target, uint64_t value) {
  rc_store_release(&target->value, value);
  rc_wake(&target->event);
}

static void *answer(void *nothing) {
  for (uint64_t i = 1; i <= handoffs; i++) {
    to.wanted = i;
    if (wait_for(&to, RINGCAST_FOREVER) != 0) abort();
    pass(&fro, i);
  }
  return nothing;
}

static int no_membarrier(int command) {
  (void)command;
  return -ENOSYS;
}

/* The first sleep of each side may be one that its signaller does not know of yet; from the second on none is lost. */
static int wait_without_end_but_once(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  static _Atomic int sleeps[2];
  return sleeps[word == &to.event.word]++ == 0 ? real_wait(word, value, timeout_ns) : wait_without_end(word, value, 0);
}

static int only_registering(int command) { return command == 0x4 ? real_membarrier(command) : -EPERM; }

/* Never, briefly, or as learnt; with membarrier, without it, and with a sleeper that may not call it. */
START_TEST(no_wake_up_is_lost) {
  const int64_t spins[] = {-1, 500, 5000, 0};
  int64_t spin_ns = spins[_i % 4];
  handoffs = (uint64_t)share_of(15000);
  if (_i / 4 == 1) rc_os.membarrier = no_membarrier;
  if (_i / 4 == 2) rc_os.membarrier = only_registering;
  set_up(&to, spin_ns, -EAGAIN);
  set_up(&fro, spin_ns, -EAGAIN);
  ck_assert_int_eq(rc_fence_register(), _i / 4 != 1);
  if (!rc_fence_register()) {
    rc_event_fence(&to.event);
    rc_event_fence(&fro.event);
  }
  rc_os.futex_wait = _i / 4 == 2 ? wait_without_end_but_once : wait_without_end;
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, answer, NULL), 0);
  for (uint64_t i = 1; i <= handoffs; i++) {
    pass(&to, i);
    fro.wanted = i;
    ck_assert_int_eq(wait_for(&fro, RINGCAST_FOREVER), 0);
  }
  pthread_join(thread, NULL);
  if (spin_ns < 0) ck_assert_int_gt(wakes, 0);
  if (spin_ns < 0) ck_assert_int_eq((to.event.word & RC_EVENT_FENCED) != 0, _i / 4 > 0);
  rc_waiter_destroy(&to.waiter);
  rc_waiter_destroy(&fro.waiter);
}
END_TEST

/* ---- Whether to spin -------------------------------------------------------------------------------------------- */

static int cpus;

static int pretended_cpus(void) { return cpus; }

START_TEST(on_one_cpu_spinning_is_done_only_if_asked_for) {
  struct target target = {0};
  rc_os.online_cpus = pretended_cpus;
  for (cpus = 1; cpus <= 2; cpus++) {
    set_up(&target, -1, 0);
    ck_assert_int_eq(target.waiter.spin_ns, 0);
    set_up(&target, 0, 0);
    ck_assert_int_eq(target.waiter.spin_ns, cpus == 1 ? 0 : RC_DEFAULT_SPIN_NS);
    set_up(&target, 1000, 0);
    ck_assert_int_eq(target.waiter.spin_ns, 1000);
  }
  rc_waiter_destroy(&target.waiter);
}
END_TEST

START_TEST(the_spin_time_can_be_set_by_environment) {
  struct target target = {0};
  const struct {
    const char *text;
    int64_t spin_ns;
  } good[] = {{"0", 0}, {"7", 7000}, {"", RC_DEFAULT_SPIN_NS}};
  cpus = 2;
  rc_os.online_cpus = pretended_cpus;
  for (int i = 0; i < 3; i++) {
    setenv("RINGCAST_SPIN_US", good[i].text, 1);
    set_up(&target, 0, 0);
    ck_assert_int_eq(target.waiter.spin_ns, good[i].spin_ns);
    set_up(&target, 500, 0); /* what the code asks for comes first */
    ck_assert_int_eq(target.waiter.spin_ns, 500);
  }
  const char *const bad[] = {"-1", "fast", "5us", "99999999999999999999", "1000001"};
  for (int i = 0; i < 5; i++) {
    setenv("RINGCAST_SPIN_US", bad[i], 1);
    ck_assert_int_eq(rc_waiter_init(&target.waiter, &target.event, &target.crowd, 0), -EINVAL);
  }
  unsetenv("RINGCAST_SPIN_US");
  setenv("RINGCAST_DISABLE", "spin", 1);
  set_up(&target, 0, 0);
  ck_assert_int_eq(target.waiter.spin_ns, 0);
  rc_waiter_destroy(&target.waiter);
}
END_TEST

static int polls;

static int count_polls(void *context) {
  polls++;
  return poll_target(context);
}

static int sleep_no_time(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)word, (void)value, (void)timeout_ns;
  return -ETIMEDOUT;
}

/* Whether a wait looks more often than the few times that one without spinning does. */
static bool spins(struct target *target) {
  const struct rc_wait how = {.poll = count_polls, .check = check_target, .context = target};
  int (*sleep)(_Atomic uint32_t *, uint32_t, int64_t) = rc_os.futex_wait;
  rc_os.futex_wait = sleep_no_time;
  target->check_result = -ECOMM; /* ends the wait after the first sleep */
  target->waiter.checked = 0;
  polls = 0;
  ck_assert_int_eq(rc_wait(&target->waiter, &how, 1000000), -ECOMM);
  rc_os.futex_wait = sleep;
  target->check_result = -EAGAIN;
  return polls > 4;
}

START_TEST(who_waits_long_stops_spinning_and_who_waits_briefly_begins_again) {
  struct target target = {0};
  cpus = 2;
  rc_os.online_cpus = pretended_cpus;
  set_up(&target, 0, -EAGAIN);
  target.crowd.parties = 2;
  target.crowd.cpus[0] = 3;
  ck_assert(spins(&target));
  for (int i = 0; i < 10; i++) ck_assert_int_eq(wait_for(&target, 1000000), -ETIMEDOUT); /* 1 ms each */
  ck_assert(!spins(&target));
  target.waiter.credit = 1;
  ck_assert(spins(&target));
  rc_waiter_destroy(&target.waiter);
}
END_TEST

static int yields;

static void yield_at_once(void) { yields++; }

/* As to a process that computes. */
static void yield_for_long(void) {
  yields++;
  for (int64_t until = rc_now_ns() + 1000000; rc_now_ns() < until;) continue;
}

static void set_up_crowd(struct target *target, int64_t spin_ns) {
  yields = 0;
  rc_os.yield = yield_at_once;
  set_up(target, spin_ns, -EAGAIN);
  target->crowd.cpus[0] = 5; /* CPUs 0 and 2, however they are shared out */
  target->crowd.parties = 3;
}

/* Polls beside the few of a wait without spinning come of yields alone. */
static bool yields_in_a_wait(struct target *target) {
  yields = 0;
  bool looked = spins(target);
  ck_assert_int_le(polls, yields + 4);
  return looked || yields > 0;
}

START_TEST(a_crowd_yields_and_does_not_spin_unless_asked_to) {
  struct target target = {0};
  cpus = 2;
  rc_os.online_cpus = pretended_cpus;
  set_up_crowd(&target, 0);
  ck_assert(yields_in_a_wait(&target));
  target.crowd.parties = 2;
  yields = 0;
  ck_assert(spins(&target));
  ck_assert_int_eq(yields, 0);
  set_up_crowd(&target, 20000);
  target.crowd.parties = 9;
  ck_assert(spins(&target));
  set_up_crowd(&target, -1);
  ck_assert(!spins(&target));
  setenv("RINGCAST_DISABLE", "spin", 1);
  set_up_crowd(&target, 0);
  ck_assert(!spins(&target));
  ck_assert_int_eq(yields, 0);
  unsetenv("RINGCAST_DISABLE");
  rc_waiter_destroy(&target.waiter);
}
END_TEST

START_TEST(who_waits_long_in_a_crowd_sleeps_at_once) {
  struct target target = {0};
  set_up_crowd(&target, 0);
  for (int i = 0; i < 10; i++) ck_assert_int_eq(wait_for(&target, 1000000), -ETIMEDOUT); /* 1 ms each */
  ck_assert(!yields_in_a_wait(&target));
  target.waiter.credit = 1;
  target.waiter.shunned = 0; /* the test may have lost the CPU itself */
  ck_assert(yields_in_a_wait(&target));
  rc_waiter_destroy(&target.waiter);
}
END_TEST

START_TEST(who_loses_the_cpu_by_yielding_does_not_for_a_while_and_for_longer_each_time) {
  struct target target = {0};
  set_up_crowd(&target, 0);
  rc_os.yield = yield_for_long;
  for (int without = 16; without <= 64; without *= 2) {
    target.waiter.credit = 1;
    ck_assert(yields_in_a_wait(&target));
    ck_assert_int_eq(yields, 1);
    for (int i = 0; i < without; i++) {
      target.waiter.credit = 1;
      ck_assert(!yields_in_a_wait(&target));
    }
  }
  rc_os.yield = yield_at_once;
  do { /* again if the test itself loses the CPU */
    target.waiter.credit = 1;
    target.waiter.shunned = 0;
    ck_assert(yields_in_a_wait(&target));
  } while (target.waiter.shun != 0);
  ck_assert_int_eq(target.waiter.shunned, 0);
  rc_waiter_destroy(&target.waiter);
}
END_TEST

START_TEST(cpus_are_those_of_all_parties_together) {
  struct rc_crowd crowd = {0};
  cpu_set_t all, one;
  ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
  for (int cpu = 0; cpu < 2; cpu++) {
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
      tell_skipped("cpus_are_those_of_all_parties_together", "needs CPUs 0 and 1");
      return;
    }
    rc_crowd_enter(&crowd);
    ck_assert_uint_eq(crowd.cpus[0], cpu == 0 ? 1 : 3);
    rc_crowd_enter(&crowd);
  }
  ck_assert_uint_le(rc_crowd_cpus(&crowd), 2);
  sched_setaffinity(0, sizeof all, &all);
}
END_TEST

/* ---- Cancelling ------------------------------------------------------------------------------------------------- */

static struct target cancelled;
static pthread_t canceller;

static void *cancel(void *nothing) {
  rc_waiter_cancel(&cancelled.waiter);
  return nothing;
}

/* The last look is over when the other thread begins: only its wake-up ends this. */
static int sleep_to_be_cancelled(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  if (pthread_create(&canceller, NULL, cancel, NULL) != 0) abort();
  return wait_without_end(word, value, timeout_ns);
}

START_TEST(a_wait_can_be_cancelled_by_another_thread) {
  set_up(&cancelled, -1, -EAGAIN);
  rc_os.futex_wait = sleep_to_be_cancelled;
  ck_assert_int_eq(wait_for(&cancelled, RINGCAST_FOREVER), -ECANCELED);
  pthread_join(canceller, NULL);
  rc_os.futex_wait = wait_without_end;
  ck_assert_int_eq(wait_for(&cancelled, RINGCAST_FOREVER), -ECANCELED);
  ck_assert_int_eq(wait_for(&cancelled, 0), -ECANCELED);
  cancelled.value = 1; /* what is there can still be had */
  ck_assert_int_eq(wait_for(&cancelled, 0), 0);
  rc_waiter_destroy(&cancelled.waiter);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("event");
  TCase *tests = add_case(suite, "event");
  tcase_add_checked_fixture(tests, take_over, NULL);
  tcase_add_test(tests, the_word_changes_when_somebody_sleeps_and_only_then);
  tcase_add_test(tests, two_sleepers_are_woken_by_one_signal);
  tcase_add_test(tests, waking_nobody_makes_no_system_call);
  tcase_add_test(tests, in_a_crowd_each_sleeper_calls_membarrier_once_after_it_has_told_all_to_fence);
  tcase_add_test(tests, who_sleeps_often_in_a_crowd_does_without_membarrier_unless_it_is_alone_on_the_event);
  tcase_add_test(tests, a_wait_that_is_over_at_once_asks_nothing);
  tcase_add_test(tests, a_wait_in_vain_ends_with_its_timeout);
  tcase_add_test(tests, a_spin_as_long_as_the_timeout_still_checks);
  tcase_add_test(tests, a_wait_for_ever_ends_when_the_check_says_so);
  tcase_add_test(tests, a_signal_ends_a_wait_unless_it_is_over_anyway);
  tcase_add_loop_test(tests, no_wake_up_is_lost, 0, 12);
  tcase_add_test(tests, on_one_cpu_spinning_is_done_only_if_asked_for);
  tcase_add_test(tests, the_spin_time_can_be_set_by_environment);
  tcase_add_test(tests, who_waits_long_stops_spinning_and_who_waits_briefly_begins_again);
  tcase_add_test(tests, a_crowd_yields_and_does_not_spin_unless_asked_to);
  tcase_add_test(tests, who_waits_long_in_a_crowd_sleeps_at_once);
  tcase_add_test(tests, who_loses_the_cpu_by_yielding_does_not_for_a_while_and_for_longer_each_time);
  tcase_add_test(tests, cpus_are_those_of_all_parties_together);
  tcase_add_test(tests, a_wait_can_be_cancelled_by_another_thread);
  return run_suite(suite);
}
