/* SPDX-License-Identifier: Apache-2.0 */
/* A wait: the event, a death, cancelling, a signal and the time limit end it; it leaves nothing
 * behind, and needs no pidfds. */
#define _GNU_SOURCE
#include "shm/wait.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>

#include "tests/support/leaks.h"
#include "tests/support/wait.h"

TEST(the_event_ends_it) {
  struct target *target = make(getppid());
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, give, target), 0);
  ck_assert_uint_eq(target->waiter.sleeps, 1);
  destroy(target);
}

/* ---- Signallers without a fence -------------------------------------------------------------- */

static struct target *settling;
static int naps;
static bool stores_late; /* the signaller's store comes to memory during the first sleep, and
                            without a wake-up */
enum { NAPS = 5 };
static const int64_t expected_ns[NAPS] = {RC_SETTLE_NS, RC_SLICE_NS, RC_SLICE_NS, RC_SETTLE_NS,
                                          RC_SLICE_NS};

/* The third sleep ends with a signal that brings no value: the next sleep needs an announcement of
 * its own. */
static int nap(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)word;
  ck_assert_int_lt(naps, NAPS);
  ck_assert_int_eq(timeout_ns, expected_ns[naps++]);
  ck_assert_uint_eq(settling->event.state,
                    RC_EVENTCOUNT_SLEEPER | value); /* one announcement, which stands */
  if (stores_late) rc_store_release(&settling->value, 1);
  else if (naps == 3) return rc_wake(&settling->event) ? 0 : -EINVAL;
  else if (naps == NAPS) signal_value(settling, 1);
  return naps == NAPS ? 0 : -ETIMEDOUT;
}

LOOP_TEST(a_sleep_whose_signallers_have_no_fence_settles_first, 0, 2) {
  stores_late = _i == 0;
  settling = make(getppid());
  const struct rc_wait how = {
      .poll = poll_target, .check = check_target, .context = settling, .unfenced = true};
  rc_os.futex_wait = nap;
  ck_assert_int_eq(rc_wait(&settling->waiter, &how, RINGCAST_FOREVER), 0);
  rc_os = real;
  ck_assert_int_eq(naps, stores_late ? 1 : NAPS);
  destroy(settling);
}

/* ---- Death ----------------------------------------------------------------------------------- */

static void kill_and_wait(void *context) { kill_child(*(pid_t *)context); }

TEST(the_death_of_the_peer_ends_it) {
  for (int waited_for = 0; waited_for < 2; waited_for++) {
    pid_t peer = start_child(live_for_ever, NULL);
    struct target *target = make(peer);
    void (*what)(void *) = waited_for ? kill_and_wait : kill_peer;
    ck_assert_int_eq(wait_for(target, 1000), -ETIMEDOUT); /* it has just been seen alive */
    ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, what, &peer), -EOWNERDEAD);
    ck_assert_int_eq(wait_for(target, RINGCAST_FOREVER), -EOWNERDEAD); /* and again */
    if (!waited_for) ck_assert_int_eq(waitpid(peer, NULL, 0), peer);
    destroy(target);
  }
}

static void kill_then_give(void *context) {
  struct target *target = context;
  kill_child(target->watch.pid);
  rc_store_release(&target->value, 1); /* without a signal, as if it had died on the way to it */
}

TEST(what_it_gave_before_it_died_is_had) {
  struct target *target = make(start_child(live_for_ever, NULL));
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, kill_then_give, target), 0);
  destroy(target);
}

static void stop_peer(void *context) {
  pid_t peer = *(pid_t *)context;
  ck_assert_int_eq(kill(peer, SIGSTOP), 0);
  ck_assert_int_eq(waitpid(peer, NULL, WUNTRACED), peer);
}

TEST(a_stopped_peer_does_not_end_it) {
  pid_t peer = start_child(live_for_ever, NULL);
  struct target *target = make(peer);
  ck_assert_int_eq(wait_until_it_happens(target, 120000000, stop_peer, &peer), -ETIMEDOUT);
  kill_child(peer);
  destroy(target);
}

/* ---- Cancelling, signals, being stopped ------------------------------------------------------ */

static void *cancel(void *context) {
  rc_waiter_cancel(&((struct target *)context)->waiter);
  return NULL;
}

static void cancel_elsewhere(void *context) {
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, cancel, context), 0);
  pthread_join(thread, NULL);
}

TEST(cancelling_ends_it) {
  struct target *target = make(getppid());
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, cancel_elsewhere, target),
                   -ECANCELED);
  for (int64_t timeout_ns = -1; timeout_ns <= 1;
       timeout_ns++) /* as any later one: RINGCAST_FOREVER, 0, 1 */
    ck_assert_int_eq(wait_for(target, timeout_ns), -ECANCELED);
  signal_value(target, 1); /* what is there can still be had */
  ck_assert_int_eq(wait_for(target, 0), 0);
  destroy(target);
}

static int wake_nobody(_Atomic uint32_t *word, int count) {
  (void)word, (void)count;
  return 0;
}

TEST(a_canceller_that_is_killed_on_the_way_costs_others_no_wake_up) {
  struct target *target = make(0);
  /* Another waiter, asleep on this from here on. */
  uint32_t value = rc_eventcount_prepare(&target->event);
  rc_os.futex_wake = wake_nobody; /* as far as it comes */
  rc_waiter_cancel(&target->waiter);
  rc_os = real;
  ck_assert_uint_ne(target->event.word, value);
  ck_assert(rc_eventcount_is_asleep(&target->event));
  ck_assert(rc_wake(&target->event));
}

static _Atomic bool over;
static pthread_t interrupter;

/* Until it is over: the first ones may come before the sleep. */
static void *interrupt(void *context) {
  pthread_t sleeper = *(pthread_t *)context;
  while (!rc_load_acquire(&over)) {
    pthread_kill(sleeper, SIGUSR1);
    sched_yield();
  }
  return NULL;
}

static void start_interrupting(void *context) {
  ck_assert_int_eq(pthread_create(&interrupter, NULL, interrupt, context), 0);
}

static void note_signal(int number) { (void)number; }

LOOP_TEST(a_signal_handler_ends_it_also_one_with_restart, 0, 2) {
  struct target *target = make(getppid());
  pthread_t self = pthread_self();
  sigaction(SIGUSR1,
            &(struct sigaction){.sa_handler = note_signal, .sa_flags = _i ? SA_RESTART : 0}, NULL);
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, start_interrupting, &self),
                   -EINTR);
  rc_store_release(&over, true);
  pthread_join(interrupter, NULL);
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, give, target),
                   0); /* and nothing is lost */
  destroy(target);
}

/* Once the parent sleeps it is stopped, continued, and, when it sleeps again, given what it waits
 * for. */
static void stop_parent_and_go_on(void *context) {
  pid_t parent = getppid();
  while (state_of(parent) != 'S') sched_yield();
  child_must(kill(parent, SIGSTOP) == 0);
  while (state_of(parent) != 'T') sched_yield();
  child_must(kill(parent, SIGCONT) == 0);
  while (state_of(parent) == 'T') sched_yield();
  while (state_of(parent) != 'S') sched_yield();
  signal_value(context, 1);
}

static void start_stopper(void *context) { start_child(stop_parent_and_go_on, context); }

static int interrupt_at_once(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)word, (void)value, (void)timeout_ns;
  return -EINTR;
}

TEST(signals_that_end_each_sleep_keep_no_death_secret) {
  struct target *target = make(0);
  target->check_result = -EOWNERDEAD;
  rc_os.futex_wait = interrupt_at_once;
  int result = wait_for(target, RINGCAST_FOREVER);
  rc_os = real;
  ck_assert_int_eq(result, -EOWNERDEAD);
  destroy(target);
}

TEST(being_stopped_and_continued_does_not_end_it) {
  struct target *target = make(getppid());
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, start_stopper, target), 0);
  int status;
  ck_assert_int_gt(wait(&status), 0);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  destroy(target);
}

/* ---- Time ------------------------------------------------------------------------------------ */

TEST(it_lasts_as_long_as_it_may_and_sleeps_no_more_than_it_must) {
  struct target *target = make(getppid());
  const int64_t timeouts[] = {1, 1000, 1000000, 3000000, 20000000};
  for (int i = 0; i < 100; i++) {
    int64_t timeout_ns = timeouts[i % 5], began = rc_now_ns();
    uint64_t sleeps = target->waiter.sleeps;
    ck_assert_int_eq(wait_for(target, timeout_ns), -ETIMEDOUT);
    ck_assert_int_ge(rc_now_ns() - began, timeout_ns);
    ck_assert_uint_le(target->waiter.sleeps - sleeps,
                      1); /* what an earlier sleep left behind wakes nobody */
  }
  ck_assert_int_eq(rc_os.futex_wake(&target->event.word, INT_MAX),
                   0);                                 /* no wait is left in the kernel */
  ck_assert(!rc_eventcount_is_asleep(&target->event)); /* nor does a signal call the kernel */
  destroy(target);
}

TEST(a_wait_that_is_over_at_once_asks_nothing) {
  struct target target;
  set_up(&target, -1, -EAGAIN);
  target.wanted = 0;
  ck_assert_int_eq(wait_for(&target, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(target.checks, 0);
}

/* A bad verdict of the check ends each wait, and is not kept back until the slice is over. */
TEST(a_wait_in_vain_ends_with_its_timeout_or_as_the_check_says) {
  static const int64_t spins[] = {-1, 0, 1000, INT64_MAX};
  struct target target;
  for (int i = 0; i < 4; i++) {
    set_up(&target, spins[i], -EAGAIN);
    ck_assert_int_eq(wait_for(&target, 0), -EAGAIN);
    ck_assert_int_eq(wait_for(&target, 1), -ETIMEDOUT);
    ck_assert_int_eq(wait_for(&target, 5000000), -ETIMEDOUT);
    set_up(&target, spins[i], -EOWNERDEAD);
    for (int checks = 1; checks <= 3; checks++) {
      ck_assert_int_eq(wait_for(&target, checks == 3 ? RINGCAST_FOREVER : checks), -EOWNERDEAD);
      ck_assert_int_eq(target.checks, checks);
    }
  }
}

/* ---- Life ------------------------------------------------------------------------------------ */

TEST(nothing_leaks_and_nothing_is_handed_on_by_exec) {
  int descriptors = open_descriptors();
  for (int i = 0; i < 200; i++) {
    bool ours[64];
    for (int fd = 0; fd < 64; fd++) ours[fd] = fcntl(fd, F_GETFD) < 0;
    struct target *target = make(getppid());
    if (i % 3) ck_assert_int_eq(wait_for(target, i % 3 * 1000), -ETIMEDOUT);
    if (i % 2) signal_value(target, 0);
    int count = 0;
    for (int fd = 0; fd < 64; fd++)
      if (ours[fd] && fcntl(fd, F_GETFD) >= 0) {
        ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
        count++;
      }
    ck_assert_int_eq(count, i % 3 == 0 ? 0 : 1); /* a pidfd, or a descriptor of /proc */
    destroy(target);
  }
  ck_assert_int_eq(open_descriptors(), descriptors);
}

RUN_TESTS("wait", NULL, NULL)
