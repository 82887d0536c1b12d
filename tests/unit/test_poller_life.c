/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a poller: threads, forks, exec, what the machine refuses, and nothing left behind. */
#define _GNU_SOURCE
#include "shm/poller.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include "tests/support/children.h"
#include "tests/support/leaks.h"
#include "tests/support/poller.h"
#include "tests/support/seccomp.h"
#include "tests/support/uring.h"

static int threads(void) {
  int count = 0;
  DIR *directory = opendir("/proc/self/task");
  for (struct dirent *entry; (entry = readdir(directory));) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

static struct rc_watch self(void) {
  struct rc_process process;
  struct rc_watch watch;
  ck_assert_int_eq(rc_process_self(&process), 0);
  rc_watch_init(&watch, process.pid, process.start, UINT64_MAX);
  return watch;
}

LOOP_TEST(close_is_prompt_in_every_state_and_leaks_nothing, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct rc_eventcount event = {0};
  const struct rc_watch whom = self();
  rc_poller_close(make(_i, &event)); /* ThreadSanitizer has a thread too, from the first one on */
  int descriptors = open_descriptors(), before = threads();
  for (int i = 0; i < 200; i++) {
    struct rc_poller *poller = make(_i, &event);
    if (i & 1) rc_poller_watch(poller, 0, 1, &whom);
    if (i & 2) arm(poller, &event);
    for (volatile int pause = i % 8 * 4096; pause > 0; pause--) {} /* falling asleep, asleep */
    if (i & 4) rc_wake(&event);
    if (i & 32) rc_poller_clear(poller);
    rc_poller_close(poller);
  }
  ck_assert_int_eq(open_descriptors(), descriptors);
  while (threads() != before)
    sched_yield(); /* a thread that was joined is still listed for a moment */
  rc_poller_close(NULL);
}

static int (*real_wake)(_Atomic uint32_t *, int);
static _Atomic bool sleeping, woken;

/* Falls asleep only after the sleepers were woken. */
static int sleep_too_late(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  rc_store_release(&sleeping, true);
  while (!rc_load_acquire(&woken)) sched_yield();
  return wait_without_end(word, value, timeout_ns);
}

static int tell_wake(_Atomic uint32_t *word, int count) {
  int result = real_wake(word, count);
  rc_store_release(&woken, true);
  return result;
}

TEST(close_does_not_miss_a_helper_that_is_about_to_sleep) {
  if (!choose(BY_THREAD, __func__)) return;
  struct rc_eventcount event = {0};
  struct rc_poller *poller = make(BY_THREAD, &event);
  real_wake = rc_os.futex_wake;
  rc_os.futex_wait = sleep_too_late;
  rc_os.futex_wake = tell_wake;
  arm(poller, &event);
  while (!rc_load_acquire(&sleeping)) sched_yield();
  rc_poller_close(poller);
}

LOOP_TEST(nothing_is_handed_on_by_exec, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct rc_eventcount event = {0};
  const struct rc_watch whom = self();
  bool ours[64];
  for (int fd = 0; fd < 64; fd++) ours[fd] = fcntl(fd, F_GETFD) < 0;
  struct rc_poller *poller = make(_i, &event);
  arm(poller, &event);
  rc_poller_watch(poller, 0, 1, &whom);
  int count = 0;
  for (int fd = 0; fd < 64; fd++) {
    int flags = fcntl(fd, F_GETFD);
    if (!ours[fd] || flags < 0) continue;
    ck_assert_int_eq(flags, FD_CLOEXEC);
    count++;
  }
  ck_assert_int_eq(count, 4 + (_i == BY_URING)); /* epoll, timer, eventfd, the process; the ring */
  rc_poller_close(poller);
}

/* As programs do that close what they don't know: the number is a pipe's from now on. */
static void take_number(int number, const int ends[2]) {
  ck_assert_int_eq(dup2(ends[0], number), number);
}

static bool is_pipe(int number) {
  struct stat file;
  return fstat(number, &file) == 0 && S_ISFIFO(file.st_mode);
}

LOOP_TEST(a_number_that_the_program_took_is_left_alone, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  for (int which = 0; which < 3; which++) { /* epoll, timer, eventfd: made in this order */
    struct rc_eventcount event = {0};
    int lowest = dup(0);
    close(lowest);
    struct rc_poller *poller = make(_i, &event);
    ck_assert_int_eq(rc_poller_fd(poller), lowest);
    take_number(lowest + which, ends);
    ck_assert_int_eq(rc_poller_fd(poller), -EBADF);
    ck_assert_int_eq(rc_poller_arm(poller, 0, NEVER), -EBADF);
    rc_poller_close(poller);
    ck_assert(is_pipe(lowest + which));
    for (int i = 0; i < 3; i++) close(lowest + i);
  }
}

LOOP_TEST(the_end_is_seen_of_a_process_whose_pidfd_the_program_took, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct rc_eventcount event = {0};
  struct peer peer = start_peer();
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  struct rc_poller *poller = make(_i, &event);
  int lowest = dup(0);
  close(lowest);
  rc_poller_watch(poller, 0, 1, &peer.watch);
  for (int i = 0; i < 2; i++) /* the watch opens two, and keeps one */
    if (fcntl(lowest + i, F_GETFD) >= 0) take_number(lowest + i, ends);
  arm(poller, &event);
  kill_child(peer.pid);
  must_become_readable(poller);
  uint32_t found;
  ck_assert_int_eq(rc_poller_find_ended(poller, &found), 1);
  rc_poller_close(poller);
}

static void close_copy(void *poller) { rc_poller_close(poller); }

LOOP_TEST(a_forked_child_closes_its_copy_and_the_parents_goes_on, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct rc_eventcount *event = shared_event();
  struct peer peer = start_peer();
  struct rc_poller *poller = make(_i, event);
  rc_poller_watch(poller, 0, 1, &peer.watch);
  arm(poller, event);
  child_must_succeed(start_child(close_copy, poller));
  if (has_pidfds()) must_stay_quiet(poller);
  rc_wake(event);
  must_become_readable(poller);
  arm(poller, event);
  if (has_pidfds()) must_stay_quiet(poller);
  kill_child(peer.pid);
  must_become_readable(poller);
  rc_poller_close(poller);
}

struct mover {
  struct rc_poller *poller;
  struct rc_eventcount *event;
};

static void *clear_and_arm(void *context) {
  struct mover *mover = context;
  rc_poller_clear(mover->poller);
  arm(mover->poller, mover->event);
  return NULL;
}

LOOP_TEST(it_may_move_to_another_thread_and_outlive_the_one_that_armed_it, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct rc_eventcount event = {0};
  struct rc_poller *poller = make(_i, &event);
  int descriptors = open_descriptors();
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    struct mover mover = {poller, &event};
    ck_assert_int_eq(pthread_create(&thread, NULL, clear_and_arm, &mover), 0);
    pthread_join(thread, NULL);
    rc_wake(&event);
    must_become_readable(poller);
    rc_poller_clear(poller);
    arm(poller, &event);
    if (i % 2) {
      rc_wake(&event);
      must_become_readable(poller);
    }
  }
  ck_assert_int_eq(rc_poller_uses_uring(poller), _i == BY_URING);
  ck_assert_int_eq(open_descriptors(), descriptors);
  rc_poller_close(poller);
}

TEST(the_helper_takes_no_signals) {
  if (!choose(BY_THREAD, __func__)) return;
  struct rc_eventcount event = {0};
  struct rc_poller *poller = make(BY_THREAD, &event);
  arm(poller, &event);
  sigset_t one, pending;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1); /* ends the process unless it is blocked in every thread */
  ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &one, NULL), 0);
  ck_assert_int_eq(kill(getpid(), SIGUSR1), 0);
  ck_assert_int_eq(sigpending(&pending), 0);
  ck_assert(sigismember(&pending, SIGUSR1));
  rc_poller_close(poller);
}

/* epoll, timer and eventfd are needed; without one more the thread serves in place of io_uring. */
LOOP_TEST(without_descriptors_it_fails_and_leaves_nothing, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct rc_eventcount event = {0};
  struct rc_poller *poller = NULL;
  int before = open_descriptors(), lowest = dup(0); /* the next that is free */
  close(lowest);
  for (int more = 0; more <= 3; more++) {
    rlim_t most = limit_descriptors((rlim_t)(lowest + more));
    int result = rc_poller_open(&event, 1, &poller);
    limit_descriptors(most);
    ck_assert_int_eq(result, more < 3 ? -EMFILE : 0);
    if (result == 0) break;
    ck_assert_ptr_null(poller);
    ck_assert_int_eq(open_descriptors(), before);
  }
  ck_assert(!rc_poller_uses_uring(poller));
  arm(poller, &event);
  rc_wake(&event);
  must_become_readable(poller);
  rc_poller_close(poller);
  ck_assert_int_eq(open_descriptors(), before);
}

TEST(where_io_uring_is_forbidden_the_thread_serves) {
  if (!choose(BY_URING, __func__)) return;
  struct rc_eventcount event = {0}, moved = {0};
  struct rc_poller *late = make(BY_URING, &moved);
  if (forbid_call(SYS_io_uring_setup) != 0) {
    tell_skipped(__func__, "no seccomp");
    return;
  }
  ck_assert_int_eq(probe_uring(), -EPERM);
  pthread_t thread;
  struct mover mover = {late, &moved};
  ck_assert_int_eq(pthread_create(&thread, NULL, clear_and_arm, &mover),
                   0); /* would need a new ring */
  pthread_join(thread, NULL);
  struct rc_poller *poller = make(BY_THREAD, &event);
  arm(poller, &event);
  must_stay_quiet(poller);
  rc_wake(&event);
  must_become_readable(poller);
  ck_assert(!rc_poller_uses_uring(late));
  must_stay_quiet(late);
  rc_wake(&moved);
  must_become_readable(late);
  rc_poller_close(poller);
  rc_poller_close(late);
}

LOOP_TEST(where_pidfds_are_forbidden_the_end_of_a_process_is_seen, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct rc_eventcount event = {0};
  struct peer peer = start_peer();
  uint32_t found;
  if (forbid_call(SYS_pidfd_open) != 0) {
    tell_skipped(__func__, "no seccomp");
    return;
  }
  struct rc_poller *poller = make(_i, &event);
  rc_poller_watch(poller, 0, 1, &peer.watch);
  arm(poller, &event);
  kill_child(peer.pid);
  must_become_readable(poller);
  ck_assert(rc_poller_find_ended(poller, &found));
  rc_poller_close(poller);
}

TEST(the_end_of_an_earlier_wait_is_not_taken_for_that_of_a_later_one) {
  if (!choose(BY_URING, __func__)) return;
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

int main(void) {
  uring_result = probe_uring();
  return run_tests("poller, life", NULL, NULL);
}
