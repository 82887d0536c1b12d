/* SPDX-License-Identifier: Apache-2.0 */
/* The pollable descriptor of an event: the end of the peer, and the notifier's own life. */
#define _GNU_SOURCE
#include "shm/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include "shm/os.h"
#include "tests/support/children.h"
#include "tests/support/leaks.h"
#include "tests/support/notifier.h"
#include "tests/support/seccomp.h"

/* ---- The peer --------------------------------------------------------------------------------------------------- */

static void live_for_ever(void *context) {
  (void)context;
  for (;;) pause();
}

static pid_t start_peer(struct rc_process *out) {
  pid_t child = start_child(live_for_ever, NULL);
  ck_assert_int_eq(rc_process_find(child, out), 0);
  return child;
}

#define SLICE ((int64_t)5 * 1000 * 1000)

/* io_uring can't watch without a pidfd: then the thread takes over. */
static bool stays_with_uring(int way) { return way == BY_URING && has_pidfds(); }

/* A notifier that watches for the end of a new child. */
static struct rc_notifier *watch_a_child(int way, struct rc_event *event, pid_t *child) {
  struct rc_process peer;
  *child = start_peer(&peer);
  struct rc_notifier *notifier = make(way, event, SLICE);
  ck_assert_int_eq(rc_notifier_watch(notifier, &peer), 0);
  ck_assert_int_eq(rc_notifier_uses_uring(notifier), stays_with_uring(way));
  return notifier;
}

START_TEST(the_end_of_the_peer_makes_it_readable_and_keeps_it_so) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  pid_t child;
  struct rc_notifier *notifier = watch_a_child(_i, &event, &child);
  arm(notifier, &event);
  must_stay_quiet(notifier);
  ck_assert_int_eq(kill(child, SIGKILL), 0);
  must_become_readable(notifier); /* nobody has waited for the child yet */
  for (int i = 0; i < 3; i++) {
    rc_notifier_clear(notifier);
    ck_assert(!readable_within(notifier, 0));
    arm(notifier, &event);
    must_be_readable(notifier);
  }
  ck_assert_int_eq(waitpid(child, NULL, 0), child);
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(an_end_while_not_armed_is_told_by_the_next_arm) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  pid_t child;
  struct rc_notifier *notifier = watch_a_child(_i, &event, &child);
  arm(notifier, &event);
  rc_notifier_clear(notifier);
  kill_child(child);
  rc_notifier_clear(notifier);
  arm(notifier, &event);
  must_become_readable(notifier);
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(a_peer_that_ended_before_is_told_too) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_process peer, reused;
  rc_process_self(&reused);
  reused.start++; /* the pid lives, and is another process */
  kill_child(start_peer(&peer));
  for (int i = 0; i < 2; i++) {
    struct rc_notifier *notifier = make(_i, &event, SLICE);
    ck_assert_int_eq(rc_notifier_watch(notifier, i == 0 ? &peer : &reused), 0);
    arm(notifier, &event);
    must_be_readable(notifier);
    rc_notifier_destroy(notifier);
  }
}
END_TEST

START_TEST(signals_are_seen_beside_a_living_peer) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  pid_t child;
  struct rc_notifier *notifier = watch_a_child(_i, &event, &child);
  for (int i = 0; i < 100; i++) {
    arm(notifier, &event);
    ck_assert(!readable_within(notifier, 0));
    rc_wake(&event);
    must_become_readable(notifier);
    rc_notifier_clear(notifier);
  }
  kill_child(child);
  rc_notifier_destroy(notifier);
}
END_TEST

/* ---- Life and death of a notifier ------------------------------------------------------------------------------- */

static int threads(void) {
  int count = 0;
  DIR *directory = opendir("/proc/self/task");
  for (struct dirent *entry; (entry = readdir(directory));) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

START_TEST(destroy_is_prompt_in_every_state_and_leaks_nothing) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_process self;
  ck_assert_int_eq(rc_process_self(&self), 0);
  rc_notifier_destroy(make(_i, &event, NEVER)); /* ThreadSanitizer has a thread too, from the first one on */
  int descriptors = open_descriptors(), before = threads();
  for (int i = 0; i < 200; i++) {
    struct rc_notifier *notifier = make(_i, &event, NEVER);
    if (i & 1) ck_assert_int_eq(rc_notifier_watch(notifier, &self), 0);
    if (i & 2) arm(notifier, &event);
    for (volatile int pause = i % 8 * 4096; pause > 0; pause--) {} /* falling asleep, asleep */
    if (i & 4) rc_wake(&event);
    if (i & 32) rc_notifier_clear(notifier);
    rc_notifier_destroy(notifier);
  }
  ck_assert_int_eq(open_descriptors(), descriptors);
  while (threads() != before) sched_yield(); /* a thread that was joined is still listed for a moment */
  rc_notifier_destroy(NULL);
}
END_TEST

static int (*real_wait)(_Atomic uint32_t *, uint32_t, int64_t);
static int (*real_wake)(_Atomic uint32_t *, int);
static _Atomic bool sleeping, woken;

/* Falls asleep only after somebody has woken the sleepers. */
static int sleep_too_late(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  rc_store_release(&sleeping, true);
  while (!rc_load_acquire(&woken)) sched_yield();
  return real_wait(word, value, timeout_ns);
}

static int tell_wake(_Atomic uint32_t *word, int count) {
  int result = real_wake(word, count);
  rc_store_release(&woken, true);
  return result;
}

START_TEST(destroy_does_not_miss_a_helper_that_is_about_to_sleep) {
  if (!choose(BY_THREAD, __func__)) return;
  struct rc_event event = {0};
  struct rc_notifier *notifier = make(BY_THREAD, &event, NEVER);
  real_wait = rc_os.futex_wait;
  real_wake = rc_os.futex_wake;
  rc_os.futex_wait = sleep_too_late;
  rc_os.futex_wake = tell_wake;
  arm(notifier, &event);
  while (!rc_load_acquire(&sleeping)) sched_yield();
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(nothing_is_handed_on_by_exec) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  struct rc_process self;
  bool ours[64];
  ck_assert_int_eq(rc_process_self(&self), 0);
  for (int fd = 0; fd < 64; fd++) ours[fd] = fcntl(fd, F_GETFD) < 0;
  struct rc_notifier *notifier = make(_i, &event, NEVER);
  ck_assert_int_eq(rc_notifier_watch(notifier, &self), 0);
  int count = 0;
  for (int fd = 0; fd < 64; fd++) {
    int flags = fcntl(fd, F_GETFD);
    if (!ours[fd] || flags < 0) continue;
    ck_assert_int_eq(flags, FD_CLOEXEC);
    count++;
  }
  /* The eventfd, the ring, and the pidfd. */
  ck_assert_int_eq(count, 1 + stays_with_uring(_i) + has_pidfds());
  rc_notifier_destroy(notifier);
}
END_TEST

static void destroy_in_child(void *context) { rc_notifier_destroy(context); }

START_TEST(a_forked_child_can_destroy_its_copy_and_the_parents_goes_on) {
  if (!choose(_i, __func__)) return;
  struct rc_event *event = shared_event();
  struct rc_notifier *notifier = make(_i, event, NEVER);
  arm(notifier, event);
  child_must_succeed(start_child(destroy_in_child, notifier));
  must_stay_quiet(notifier);
  rc_wake(event);
  must_become_readable(notifier);
  rc_notifier_destroy(notifier);
}
END_TEST

struct mover {
  struct rc_notifier *notifier;
  struct rc_event *event;
};

static void *clear_and_arm(void *context) {
  struct mover *mover = context;
  rc_notifier_clear(mover->notifier);
  arm(mover->notifier, mover->event);
  return NULL;
}

START_TEST(it_may_move_to_another_thread_and_outlive_the_one_that_armed_it) {
  if (!choose(_i, __func__)) return;
  struct rc_event event = {0};
  pid_t child;
  struct rc_notifier *notifier = watch_a_child(_i, &event, &child);
  int descriptors = open_descriptors();
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    struct mover mover = {notifier, &event};
    ck_assert_int_eq(pthread_create(&thread, NULL, clear_and_arm, &mover), 0);
    pthread_join(thread, NULL);
    rc_wake(&event);
    must_become_readable(notifier);
    rc_notifier_clear(notifier);
    arm(notifier, &event);
    if (i % 2) {
      rc_wake(&event);
      must_become_readable(notifier);
    }
  }
  ck_assert_int_eq(rc_notifier_uses_uring(notifier), stays_with_uring(_i));
  ck_assert_int_eq(open_descriptors(), descriptors);
  rc_notifier_clear(notifier);
  arm(notifier, &event);
  kill_child(child);
  must_become_readable(notifier);
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(the_helper_takes_no_signals) {
  if (!choose(BY_THREAD, __func__)) return;
  struct rc_event event = {0};
  struct rc_notifier *notifier = make(BY_THREAD, &event, NEVER);
  arm(notifier, &event);
  sigset_t one, pending;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1); /* ends the process unless it is blocked in every thread */
  ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &one, NULL), 0);
  ck_assert_int_eq(kill(getpid(), SIGUSR1), 0);
  ck_assert_int_eq(sigpending(&pending), 0);
  ck_assert(sigismember(&pending, SIGUSR1));
  rc_notifier_destroy(notifier);
}
END_TEST

static void limit_descriptors(rlim_t count) {
  struct rlimit limit;
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = count;
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

START_TEST(without_descriptors_it_fails_or_does_with_one) {
  struct rc_event event = {0};
  struct rc_notifier *notifier = NULL;
  int next = dup(0); /* the lowest that is free */
  close(next);
  limit_descriptors((rlim_t)next);
  ck_assert_int_eq(rc_notifier_create(&event, NEVER, &notifier), -EMFILE);
  ck_assert_ptr_null(notifier);
  limit_descriptors((rlim_t)next + 1);
  ck_assert_int_eq(rc_notifier_create(&event, NEVER, &notifier), 0);
  ck_assert(!rc_notifier_uses_uring(notifier));
  arm(notifier, &event);
  rc_wake(&event);
  must_become_readable(notifier);
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(where_io_uring_is_forbidden_the_thread_serves) {
  if (!choose(BY_URING, __func__)) return;
  int result = forbid_call(SYS_io_uring_setup);
  if (result != 0) {
    tell_skipped(__func__, "no seccomp");
    return;
  }
  ck_assert_int_eq(rc_uring_probe(), -EPERM);
  struct rc_event event = {0};
  struct rc_notifier *notifier = make(BY_THREAD, &event, NEVER);
  arm(notifier, &event);
  must_stay_quiet(notifier);
  rc_wake(&event);
  must_become_readable(notifier);
  rc_notifier_destroy(notifier);
}
END_TEST

START_TEST(where_pidfds_are_forbidden_the_thread_watches) {
  if (!choose(BY_URING, __func__)) return;
  struct rc_event event = {0};
  struct rc_process peer;
  pid_t child = start_peer(&peer);
  struct rc_notifier *notifier = make(BY_URING, &event, SLICE);
  if (forbid_call(SYS_pidfd_open) != 0) {
    tell_skipped(__func__, "no seccomp");
    return;
  }
  ck_assert_int_eq(rc_notifier_watch(notifier, &peer), 0);
  ck_assert(!rc_notifier_uses_uring(notifier));
  arm(notifier, &event);
  must_stay_quiet(notifier);
  kill_child(child);
  must_become_readable(notifier);
  rc_notifier_destroy(notifier);
}
END_TEST

int main(void) {
  uring_result = rc_uring_probe();
  Suite *suite = suite_create("notify_life");
  TCase *tests = add_case(suite, "peer");
  tcase_add_loop_test(tests, the_end_of_the_peer_makes_it_readable_and_keeps_it_so, 0, WAYS);
  tcase_add_loop_test(tests, an_end_while_not_armed_is_told_by_the_next_arm, 0, WAYS);
  tcase_add_loop_test(tests, a_peer_that_ended_before_is_told_too, 0, WAYS);
  tcase_add_loop_test(tests, signals_are_seen_beside_a_living_peer, 0, WAYS);
  tcase_add_test(tests, where_pidfds_are_forbidden_the_thread_watches);
  tests = add_case(suite, "life");
  tcase_add_loop_test(tests, destroy_is_prompt_in_every_state_and_leaks_nothing, 0, WAYS);
  tcase_add_test(tests, destroy_does_not_miss_a_helper_that_is_about_to_sleep);
  tcase_add_loop_test(tests, nothing_is_handed_on_by_exec, 0, WAYS);
  tcase_add_loop_test(tests, a_forked_child_can_destroy_its_copy_and_the_parents_goes_on, 0, WAYS);
  tcase_add_loop_test(tests, it_may_move_to_another_thread_and_outlive_the_one_that_armed_it, 0, WAYS);
  tcase_add_test(tests, the_helper_takes_no_signals);
  tcase_add_test(tests, without_descriptors_it_fails_or_does_with_one);
  tcase_add_test(tests, where_io_uring_is_forbidden_the_thread_serves);
  return run_suite(suite);
}
