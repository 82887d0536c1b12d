/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping and waking: nothing is lost, nobody calls the kernel for nothing. */
#define _GNU_SOURCE
#include "ring/eventcount.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "ringcast/ringcast.h"
#include "shm/os.h"
#include "tests/support/suite.h"
#include "tests/support/waiter.h"

static int (*real_wait)(_Atomic uint32_t *, uint32_t, int64_t);
static int (*real_wake)(_Atomic uint32_t *, int);
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
  rc_os.futex_wake = counted_wake;
}

TEST(the_word_changes_when_somebody_sleeps_and_only_then) {
  struct rc_eventcount event = {0};
  ck_assert(!rc_eventcount_is_asleep(&event));
  ck_assert(!rc_eventcount_advance(&event));
  ck_assert_uint_eq(event.word, 0);
  uint32_t value = rc_eventcount_prepare(&event);
  ck_assert(rc_eventcount_is_asleep(&event));
  ck_assert(rc_eventcount_advance(&event));
  ck_assert(!rc_eventcount_is_asleep(&event));
  ck_assert_uint_ne(event.word, value);
  ck_assert_uint_ne(rc_eventcount_prepare(&event), value);
}

TEST(two_sleepers_are_woken_by_one_signal) {
  struct rc_eventcount event = {0};
  ck_assert_uint_eq(rc_eventcount_prepare(&event), rc_eventcount_prepare(&event));
  ck_assert(rc_eventcount_advance(&event));
  ck_assert(!rc_eventcount_advance(&event));
}

TEST(waking_nobody_makes_no_system_call) {
  struct rc_eventcount event = {0};
  for (int i = 0; i < 1000; i++) rc_wake(&event);
  ck_assert_int_eq(wakes, 0);
  rc_eventcount_prepare(&event);
  for (int i = 0; i < 1000; i++) rc_wake(&event);
  ck_assert_int_eq(wakes, 1);
}

/* ---- rc_wait ---------------------------------------------------------------------------------------------------- */

TEST(a_wait_that_is_over_at_once_asks_nothing) {
  struct target target = {0};
  set_up(&target, -1, -EAGAIN);
  target.wanted = 0;
  ck_assert_int_eq(wait_for(&target, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(target.checks, 0);
}

TEST(a_wait_in_vain_ends_with_its_timeout) {
  const int64_t spins[] = {-1, 0, 1000, INT64_MAX};
  for (int i = 0; i < 4; i++) {
    struct target target = {0};
    set_up(&target, spins[i], -EAGAIN);
    ck_assert_int_eq(wait_for(&target, 0), -EAGAIN);
    ck_assert_int_eq(wait_for(&target, 1), -ETIMEDOUT);
    ck_assert_int_eq(wait_for(&target, 5000000), -ETIMEDOUT);
  }
}

TEST(a_spin_as_long_as_the_timeout_still_checks) {
  struct target target = {0};
  set_up(&target, INT64_MAX, -EOWNERDEAD);
  for (int i = 1; i <= 3; i++) { /* a bad verdict is not kept back until the slice is over */
    ck_assert_int_eq(wait_for(&target, 1000), -EOWNERDEAD);
    ck_assert_int_eq(target.checks, i);
  }
  ck_assert_int_eq(wait_for(&target, RINGCAST_FOREVER), -EOWNERDEAD);
  set_up(&target, -1, -EOWNERDEAD);
  ck_assert_int_eq(wait_for(&target, 1), -EOWNERDEAD);
}

TEST(a_wait_for_ever_ends_when_the_check_says_so) {
  struct target target = {0};
  set_up(&target, -1, -EOWNERDEAD);
  ck_assert_int_eq(wait_for(&target, RINGCAST_FOREVER), -EOWNERDEAD);
  ck_assert_int_eq(target.checks, 1);
}

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

TEST(a_signal_ends_a_wait_unless_it_is_over_anyway) {
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
}

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

/* Never, briefly, or as learnt. */
LOOP_TEST(no_wake_up_is_lost, 0, 4) {
  const int64_t spins[] = {-1, 500, 5000, 0};
  int64_t spin_ns = spins[_i];
  handoffs = (uint64_t)share_of(15000);
  set_up(&to, spin_ns, -EAGAIN);
  set_up(&fro, spin_ns, -EAGAIN);
  rc_os.futex_wait = wait_without_end;
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, answer, NULL), 0);
  for (uint64_t i = 1; i <= handoffs; i++) {
    pass(&to, i);
    fro.wanted = i;
    ck_assert_int_eq(wait_for(&fro, RINGCAST_FOREVER), 0);
  }
  pthread_join(thread, NULL);
  if (spin_ns < 0) ck_assert_int_gt(wakes, 0);
}

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

TEST(a_wait_can_be_cancelled_by_another_thread) {
  set_up(&cancelled, -1, -EAGAIN);
  rc_os.futex_wait = sleep_to_be_cancelled;
  ck_assert_int_eq(wait_for(&cancelled, RINGCAST_FOREVER), -ECANCELED);
  pthread_join(canceller, NULL);
  rc_os.futex_wait = wait_without_end;
  ck_assert_int_eq(wait_for(&cancelled, RINGCAST_FOREVER), -ECANCELED);
  ck_assert_int_eq(wait_for(&cancelled, 0), -ECANCELED);
  cancelled.value = 1; /* what is there can still be had */
  ck_assert_int_eq(wait_for(&cancelled, 0), 0);
}

RUN_TESTS("event", take_over, NULL)
