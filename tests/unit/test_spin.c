/* SPDX-License-Identifier: Apache-2.0 */
/* Whether who waits spins, yields or sleeps at once: by the CPUs that there are, by how many wait,
 * and by how long it took lately. And which of the CPU's own ways to wait is taken. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>

#include "ringcast/ringcast.h"
#include "shm/os.h"
#include "shm/topology.h"
#include "shm/wait.h"
#include "tests/support/fake_files.h"
#include "tests/support/wait.h"

static void forget_environment(void) {
  unsetenv("RINGCAST_DISABLE"); /* each test here makes its own conditions */
  unsetenv("RINGCAST_SPIN_US");
}

static int cpus;

static int pretended_cpus(void) { return cpus; }

TEST(on_one_cpu_spinning_is_done_only_if_asked_for) {
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
}

TEST(the_spin_time_can_be_set_by_environment) {
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
    ck_assert_int_eq(rc_waiter_init(&target.waiter, &target.event, &target.cpus, 0, 0), -EINVAL);
  }
  unsetenv("RINGCAST_SPIN_US");
  setenv("RINGCAST_DISABLE", "spin", 1);
  set_up(&target, 0, 0);
  ck_assert_int_eq(target.waiter.spin_ns, 0);
}

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
  target->cpus.cpus[0] = 5; /* CPUs 0 and 2, however they are shared out */
  target->cpus.participants = 3;
}

/* Polls beside the few of a wait without spinning come of yields alone. */
static bool yields_in_a_wait(struct target *target) {
  yields = 0;
  bool looked = spins(target);
  ck_assert_int_le(polls, yields + 4);
  return looked || yields > 0;
}

TEST(a_crowd_yields_and_does_not_spin_however_long_it_may) {
  struct target target = {0};
  cpus = 2;
  rc_os.online_cpus = pretended_cpus;
  set_up_crowd(&target, 0);
  ck_assert(yields_in_a_wait(&target));
  target.cpus.participants = 2;
  yields = 0;
  ck_assert(spins(&target));
  ck_assert_int_eq(yields, 0);
  set_up_crowd(&target, 20000); /* asked for */
  target.cpus.participants = 9;
  target.waiter.spin_credit = 0;
  ck_assert(yields_in_a_wait(&target));
  set_up_crowd(&target, -1);
  ck_assert(!spins(&target));
  setenv("RINGCAST_DISABLE", "spin", 1);
  set_up_crowd(&target, 0);
  ck_assert(!spins(&target));
  ck_assert_int_eq(yields, 0);
  unsetenv("RINGCAST_DISABLE");
}

TEST(who_waits_long_in_a_crowd_sleeps_at_once) {
  struct target target = {0};
  set_up_crowd(&target, 0);
  for (int i = 0; i < 10; i++)
    ck_assert_int_eq(wait_for(&target, 1000000), -ETIMEDOUT); /* 1 ms each */
  ck_assert(!yields_in_a_wait(&target));
  target.waiter.spin_credit = 1;
  target.waiter.holdoff.left = 0; /* the test may have lost the CPU itself */
  ck_assert(yields_in_a_wait(&target));
}

TEST(who_loses_the_cpu_by_yielding_does_not_for_a_while_and_for_longer_each_time) {
  struct target target = {0};
  set_up_crowd(&target, 0);
  rc_os.yield = yield_for_long;
  for (int without = 16; without <= 64; without *= 2) {
    target.waiter.spin_credit = 1;
    ck_assert(yields_in_a_wait(&target));
    ck_assert_int_eq(yields, 1);
    for (int i = 0; i < without; i++) {
      target.waiter.spin_credit = 1;
      ck_assert(!yields_in_a_wait(&target));
    }
  }
  rc_os.yield = yield_at_once;
  do { /* again if the test itself loses the CPU */
    target.waiter.spin_credit = 1;
    target.waiter.holdoff.left = 0;
    ck_assert(yields_in_a_wait(&target));
  } while (target.waiter.holdoff.length != 0);
  ck_assert_int_eq(target.waiter.holdoff.left, 0);
}

TEST(cpus_are_those_of_all_parties_together) {
  struct rc_cpus shared = {0};
  cpu_set_t all, one;
  ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
  for (int cpu = 0; cpu < 2; cpu++) {
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
      tell_skipped(__func__, "needs CPUs 0 and 1");
      return;
    }
    rc_cpus_enter(&shared);
    ck_assert_uint_eq(shared.cpus[0], cpu == 0 ? 1 : 3);
    rc_cpus_enter(&shared);
  }
  ck_assert_uint_le(rc_cpus_count(&shared), 2);
  sched_setaffinity(0, sizeof all, &all);
}

/* A kernel for 4,096 CPUs, of which this process may use three. */
static int affinity_of_many(uint64_t *set, size_t bytes) {
  if (bytes < 4096 / 8) return -EINVAL;
  memset(set, 0, bytes);
  set[3] = 1;
  set[1024 / 64] = 2;
  set[4032 / 64] = 4;
  return 0;
}

TEST(more_than_1024_possible_cpus_are_counted) {
  static const struct fake_file no_quota[] = {{0}};
  struct rc_cpus shared = {0};
  use_fake_files(no_quota);
  rc_os.affinity = affinity_of_many;
  rc_cpus_enter(&shared);
  ck_assert_uint_eq(rc_cpus_count(&shared), 3);
}

/* ---- The CPU's own ways ---------------------------------------------------------------------- */

TEST(a_wait_in_the_cpu_ends_by_itself_and_reads_the_word_only) {
  enum rc_cpu_wait how = rc_cpu_wait_choose();
  if (how == RC_CPU_PAUSE) {
    tell_skipped(__func__, "this CPU has no umwait, mwaitx or wfet (or a hypervisor hides them)");
    return;
  }
  static const uint64_t word = 7; /* read-only memory, as frames are */
  for (int i = 0; i < 1000; i++) {
    rc_cpu_watch(how, &word);
    rc_cpu_wait(how);
  }
}

RUN_TESTS("spin", forget_environment, NULL)
