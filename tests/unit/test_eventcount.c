/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping and waking: nothing is lost, nobody calls the kernel for nothing. */
#define _GNU_SOURCE
#include "ring/eventcount.h"

#include <limits.h>
#include <pthread.h>

#include "tests/support/sleep.h"
#include "tests/support/wait.h"

static int (*real_wake)(_Atomic uint32_t *, int);
static _Atomic int wakes;

static int counted_wake(_Atomic uint32_t *word, int count) {
  wakes++;
  return real_wake(word, count);
}

static void take_over(void) {
  unsetenv("RINGCAST_DISABLE"); /* each test here makes its own conditions */
  unsetenv("RINGCAST_SPIN_US");
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

/* ---- No wake-up is lost: of two threads, each can go on only when the other wakes it -------- */

static struct target to, fro;
static uint64_t handoffs;
static _Atomic bool over;

static void *answer(void *nothing) {
  for (uint64_t i = 1; i <= handoffs; i++) {
    to.wanted = i;
    if (wait_for(&to, RINGCAST_FOREVER) != 0) abort();
    signal_value(&fro, i);
  }
  return nothing;
}

/* A signaller may come to its wake only when the sleeper has announced itself anew: then the word
 * does not change. */
static void *wake_late(void *nothing) {
  while (!rc_load_acquire(&over)) {
    real_wake(&to.event.word, INT_MAX);
    real_wake(&fro.event.word, INT_MAX);
  }
  return nothing;
}

/* They spin never, briefly, or as learnt; in the last row late wake-ups come in between. */
LOOP_TEST(no_wake_up_is_lost, 0, 5) {
  static const int64_t spins[] = {-1, 500, 5000, 0, -1};
  pthread_t thread, late;
  handoffs = (uint64_t)share_of(15000);
  set_up(&to, spins[_i], -EAGAIN);
  set_up(&fro, spins[_i], -EAGAIN);
  sleep_without_slices();
  if (_i == 4) ck_assert_int_eq(pthread_create(&late, NULL, wake_late, NULL), 0);
  ck_assert_int_eq(pthread_create(&thread, NULL, answer, NULL), 0);
  for (uint64_t i = 1; i <= handoffs; i++) {
    signal_value(&to, i);
    fro.wanted = i;
    ck_assert_int_eq(wait_for(&fro, RINGCAST_FOREVER), 0);
  }
  rc_store_release(&over, true);
  pthread_join(thread, NULL);
  if (_i == 4) pthread_join(late, NULL);
  if (spins[_i] < 0) ck_assert_int_gt(wakes, 0);
}

RUN_TESTS("event", take_over, NULL)
