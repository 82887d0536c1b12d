/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping, parked and in slices: no wake-up is lost, and none is taken for another. */
#define _GNU_SOURCE
#include "shm/wait.h"

#include <limits.h>
#include <pthread.h>
#include <sys/eventfd.h>

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
  if (!choose(_i, __func__)) return;
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
  must_have_slept(to, _i);
  must_have_slept(fro, _i);
  destroy(to);
  destroy(fro);
}
END_TEST

START_TEST(the_end_of_an_earlier_wait_is_not_taken_for_that_of_a_later_one) {
  if (!choose(PARKED_UNLESS_IT_WATCHES, __func__)) return;
  struct rc_uring *uring;
  _Atomic uint32_t one = 0, two = 0;
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ck_assert_int_eq(rc_uring_open(fd, &uring), 0);
  for (uint32_t i = 0; i < 100; i++) {
    ck_assert_int_eq(rc_uring_wait(uring, &one, i), 0);
    rc_store_release(&one, i + 1);
    ck_assert_int_eq(rc_os.futex_wake(&one, 1), 1);
    ck_assert_int_eq(rc_uring_wait(uring, &two, 0), 0); /* here the first one's end comes in */
    ck_assert_int_eq(rc_uring_cancel(uring), 0);
  }
  ck_assert_int_eq(rc_os.futex_wake(&two, 1000), 0);
  rc_uring_close(uring);
  close(fd);
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
  if (!choose(_i, __func__)) return;
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
  uring_result = rc_uring_probe();
  Suite *suite = suite_create("wait, wake-ups");
  TCase *tests = add_case(suite, "wake-ups");
  tcase_add_loop_test(tests, no_wake_up_is_lost, 0, WAYS);
  tcase_add_test(tests, the_end_of_an_earlier_wait_is_not_taken_for_that_of_a_later_one);
  tcase_add_loop_test(tests, a_late_wake_up_takes_no_later_one_with_it, 0, WAYS);
  return run_suite(suite);
}
