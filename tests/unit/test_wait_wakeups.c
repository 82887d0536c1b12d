/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping: no wake-up is lost. */
#define _GNU_SOURCE
#include "shm/wait.h"

#include <limits.h>
#include <pthread.h>

#include "tests/support/wait.h"

/* Two threads hand a number to and fro, and each can only go on when woken. */
static struct target *to, *fro;
static uint64_t handoffs;

static int wait_without_end(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)timeout_ns;
  return real.futex_wait(word, value, (int64_t)1000 * 1000000000);
}

static void *answer(void *nothing) {
  for (uint64_t i = 1; i <= handoffs; i++) {
    to->wanted = i;
    if (wait_for(to, RINGCAST_FOREVER) != 0) abort();
    signal_value(fro, i);
  }
  return nothing;
}

START_TEST(no_wake_up_is_lost) {
  handoffs = (uint64_t)share_of(10000);
  to = make(getppid());
  fro = make(getppid());
  rc_os.futex_wait = wait_without_end;
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, answer, NULL), 0);
  for (uint64_t i = 1; i <= handoffs; i++) {
    signal_value(to, i);
    fro->wanted = i;
    ck_assert_int_eq(wait_for(fro, RINGCAST_FOREVER), 0);
  }
  pthread_join(thread, NULL);
  ck_assert_uint_gt(to->waiter.sleeps, 0);
  ck_assert_uint_gt(fro->waiter.sleeps, 0);
  destroy(to);
  destroy(fro);
}
END_TEST

static _Atomic bool over;

/* A signaller may come to its wake only when the sleeper has announced itself anew: then the word does not change. */
static void *wake_late(void *nothing) {
  while (!rc_load_acquire(&over)) {
    rc_os.futex_wake(&to->event.word, INT_MAX);
    rc_os.futex_wake(&fro->event.word, INT_MAX);
  }
  return nothing;
}

START_TEST(a_late_wake_up_takes_no_later_one_with_it) {
  handoffs = (uint64_t)share_of(10000);
  to = make(getppid());
  fro = make(getppid());
  rc_os.futex_wait = wait_without_end;
  pthread_t thread, late;
  ck_assert_int_eq(pthread_create(&late, NULL, wake_late, NULL), 0);
  ck_assert_int_eq(pthread_create(&thread, NULL, answer, NULL), 0);
  for (uint64_t i = 1; i <= handoffs; i++) {
    signal_value(to, i);
    fro->wanted = i;
    ck_assert_int_eq(wait_for(fro, RINGCAST_FOREVER), 0);
  }
  rc_store_release(&over, true);
  pthread_join(thread, NULL);
  pthread_join(late, NULL);
  destroy(to);
  destroy(fro);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("wait, wake-ups");
  TCase *tests = add_case(suite, "wake-ups");
  tcase_add_test(tests, no_wake_up_is_lost);
  tcase_add_test(tests, a_late_wake_up_takes_no_later_one_with_it);
  return run_suite(suite);
}
