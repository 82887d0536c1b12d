/* SPDX-License-Identifier: Apache-2.0 */
/* The poller, by io_uring and by its helper thread: whatever makes its descriptor readable is never
 * missed, and nothing else makes it readable; the end of a process is seen however that can be
 * seen; and it lives and dies with threads, forks, exec, and what the program or the machine takes
 * away. */
#define _GNU_SOURCE
#include "shm/poller.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "shm/os.h"
#include "shm/wait.h"
#include "tests/support/children.h"
#include "tests/support/leaks.h"
#include "tests/support/poller.h"
#include "tests/support/seccomp.h"
#include "tests/support/uring.h"

static struct rc_eventcount *event;
static struct rc_poller *poller;
static struct peer peer;

static void make_event(void) { event = shared_event(); }

/* ---- What makes it readable, one row each ---------------------------------------------------- */

static void signal_it(void) { rc_wake(event); }

static void signal_in_child(void *nothing) {
  (void)nothing;
  rc_wake(event);
}
static void signal_from_another_process(void) {
  child_must_succeed(start_child(signal_in_child, NULL));
}

static void let_time_pass(void) {
  ck_assert_int_eq(rc_poller_arm(poller, rc_eventcount_prepare(event), 1000000), 0);
}
static void arm_for_a_time_in_the_past(void) {
  ck_assert_int_eq(rc_poller_arm(poller, rc_eventcount_prepare(event), INT64_MIN), 0);
}
static void arm_with_an_old_value(void) {
  uint32_t value = rc_eventcount_prepare(event);
  rc_wake(event);
  ck_assert_int_eq(rc_poller_arm(poller, value, NEVER), 0);
}

static void watch_peer(void) { rc_poller_watch(poller, 1, 7, &peer.watch); }
static void end_peer(void) {
  ck_assert_int_eq(kill(peer.pid, SIGKILL), 0);
} /* a zombie: nothing has waited for it */
static void watch_one_that_has_ended(void) {
  kill_child(peer.pid);
  watch_peer();
}
static void watch_a_pid_that_was_reused(void) {
  struct rc_watch other = peer.watch;
  other.start++;
  rc_poller_watch(poller, 0, 8, &other);
}

static void raise_it(void) { rc_poller_raise(poller, true); }

static const struct source {
  const char *name;
  void (*before)(void), (*happen)(void);
  bool lasts; /* also after a clear, and an arm */
  bool polls; /* takes a pidfd; else a slice later */
} sources[] = {
    {"a signal", NULL, signal_it, false, false},
    {"a signal of another process", NULL, signal_from_another_process, false, false},
    {"a signal between prepare and arm", NULL, arm_with_an_old_value, false, false},
    {"a time", NULL, let_time_pass, false, false},
    {"a time in the past", NULL, arm_for_a_time_in_the_past, false, false},
    {"the end of a process", watch_peer, end_peer, true, true},
    {"a process that ended before", NULL, watch_one_that_has_ended, true, false},
    {"another process of that pid", NULL, watch_a_pid_that_was_reused, true, false},
    {"the caller's own reasons", NULL, raise_it, true, false},
};

enum { SOURCES = sizeof sources / sizeof *sources };

LOOP_TEST(each_source_makes_it_readable_until_taken_back, 0, WAYS *SOURCES) {
  const struct source *source = &sources[_i % SOURCES];
  if (!choose(_i / SOURCES, source->name)) return;
  if (source->polls && !has_pidfds()) {
    tell_skipped(source->name, "no pidfds: the time alone tells to look");
    return;
  }
  peer = start_peer();
  poller = make(_i / SOURCES, event);
  must_be_readable(poller); /* at first */
  if (source->before) source->before();
  for (int round = 0; round < (source->lasts ? 1 : 3); round++) {
    arm(poller, event);
    must_stay_quiet(poller);
    source->happen();
    must_become_readable(poller);
    must_be_readable(poller);
    rc_poller_clear(poller);
    ck_assert_int_eq(readable_within(poller, source->lasts ? -1 : 20), source->lasts);
    arm(poller, event);
    ck_assert_int_eq(readable_within(poller, source->lasts ? -1 : 20), source->lasts);
  }
  ck_assert_int_eq(rc_poller_uses_uring(poller), _i / SOURCES == BY_URING); /* it did not give up */
  rc_poller_close(poller);
}

LOOP_TEST(what_is_over_does_not_make_it_readable, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct peer other = start_peer();
  peer = start_peer();
  poller = make(_i, event);
  arm(poller, event);
  rc_poller_clear(poller);
  rc_wake(event); /* it is not armed any more */
  must_stay_quiet(poller);
  let_time_pass();
  arm(poller, event); /* the time is taken back */
  must_stay_quiet(poller);
  for (int i = 0; i < 100; i++) arm(poller, event); /* more than io_uring has entries */
  must_stay_quiet(poller);
  raise_it();
  rc_poller_raise(poller, false);
  must_stay_quiet(poller);
  watch_peer();
  rc_poller_watch(poller, 1, 9, &other.watch); /* in its place */
  rc_poller_watch(poller, 1, 9, &peer.watch);  /* the same tag: nothing changes */
  ck_assert_uint_eq(rc_poller_tag(poller, 1), 9);
  kill_child(peer.pid);
  if (has_pidfds()) must_stay_quiet(poller);
  rc_poller_watch(poller, 1, 0, NULL);
  ck_assert_uint_eq(rc_poller_tag(poller, 1), 0);
  kill_child(other.pid);
  must_stay_quiet(poller);
  rc_wake(event); /* it has been armed all the while */
  must_become_readable(poller);
  rc_poller_close(poller);
}

LOOP_TEST(two_pollers_of_one_event_are_both_told, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct rc_poller *first = make(_i, event), *second = make(_i, event);
  arm(first, event);
  arm(second, event);
  must_stay_quiet(first);
  rc_wake(event);
  must_become_readable(first);
  must_become_readable(second);
  arm(first, event);
  arm(second, event);
  rc_poller_close(first); /* may wake the second for nothing, but takes nothing from it */
  rc_wake(event);
  must_become_readable(second);
  rc_poller_close(second);
}

/* ---- The end of a process -------------------------------------------------------------------- */

/* As programs do that close what they don't know: the number is a pipe's from now on. */
static void take_number(int number) {
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  ck_assert_int_eq(dup2(ends[0], number), number);
  close(ends[0]);
}

enum { AS_IT_IS, NO_PIDFDS, PIDFDS_FORBIDDEN, NUMBER_TAKEN, SIGHTS };

/* Without a pidfd the poller calls for a look each slice, and is quiet between them. */
LOOP_TEST(the_end_of_each_process_is_seen_however_that_can_be, 0, WAYS *SIGHTS) {
  enum { PEERS = 4 };
  const int sight = _i / WAYS;
  struct peer peers[PEERS];
  uint32_t found = PEERS;
  if (!choose(_i % WAYS, __func__)) return;
  if (sight == NO_PIDFDS) disable_too("pidfd");
  for (int i = 0; i < PEERS; i++) peers[i] = start_peer();
  if (sight == PIDFDS_FORBIDDEN && forbid_call(SYS_pidfd_open) != 0) {
    tell_skipped(__func__, "no seccomp");
    return;
  }
  const bool has_pidfd = has_pidfds();
  sleep_without_slices();
  ck_assert_int_eq(rc_poller_open(event, PEERS, &poller), 0);
  int lowest = dup(0); /* the watches open numbers from here on */
  close(lowest);
  for (uint32_t i = 0; i < PEERS; i++) rc_poller_watch(poller, i, i + 1, &peers[i].watch);
  for (int fd = lowest; sight == NUMBER_TAKEN && fd < lowest + 2 * PEERS; fd++)
    if (fcntl(fd, F_GETFD) >= 0) take_number(fd);
  arm(poller, event);
  if (has_pidfd && sight == AS_IT_IS) must_stay_quiet(poller);
  ck_assert_int_eq(rc_poller_find_ended(poller, &found), 0);
  for (uint32_t i = PEERS; i-- > 0;) {
    kill_child(peers[i].pid);
    arm(poller, event);
    must_become_readable(poller);
    ck_assert_int_eq(rc_poller_find_ended(poller, &found), 1);
    ck_assert_uint_eq(found, i);
    rc_poller_watch(poller, i, 0, NULL);
    ck_assert_int_eq(rc_poller_find_ended(poller, &found), 0);
  }
  arm(poller, event);
  must_stay_quiet(poller);
  rc_poller_close(poller);
}

/* ---- Many rounds ----------------------------------------------------------------------------- */

LOOP_TEST(no_signal_of_many_is_lost_and_epoll_is_not_interrupted, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  static struct game game = {.rounds = 10000};
  poller = make(_i, &game.event);
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event got, wanted = {.events = EPOLLIN};
  ck_assert_int_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, rc_poller_fd(poller), &wanted), 0);
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, play, &game), 0);
  for (uint64_t seen = 0; seen < game.rounds;) {
    uint64_t sent = rc_load_acquire(&game.sent);
    if (sent == seen) {
      uint32_t value = rc_eventcount_prepare(&game.event);
      sent = rc_load_acquire(&game.sent);
      if (sent == seen) {
        ck_assert_int_eq(rc_poller_arm(poller, value, NEVER), 0);
        ck_assert_int_eq(epoll_wait(epoll, &got, 1, -1), 1);
        if (seen % 2) rc_poller_clear(poller);
        continue;
      }
    }
    ck_assert_uint_eq(sent, seen + 1);
    seen = sent;
    rc_store_release(&game.seen, seen);
  }
  pthread_join(thread, NULL);
  ck_assert_int_eq(rc_poller_uses_uring(poller), _i == BY_URING);
  close(epoll);
  rc_poller_close(poller);
}

LOOP_TEST(edge_triggered_epoll_gets_an_edge_each_time, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  poller = make(_i, event);
  rc_poller_clear(poller);
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event got, wanted = {.events = EPOLLIN | EPOLLET};
  ck_assert_int_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, rc_poller_fd(poller), &wanted), 0);
  for (int i = 0; i < 100; i++) {
    arm(poller, event);
    rc_wake(event);
    ck_assert_int_eq(epoll_wait(epoll, &got, 1, -1), 1);
    rc_poller_clear(poller);
  }
  close(epoll);
  rc_poller_close(poller);
}

/* ---- Life ------------------------------------------------------------------------------------ */

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
  const struct rc_watch whom = self();
  rc_poller_close(make(_i, event)); /* ThreadSanitizer has a thread too, from the first one on */
  int descriptors = open_descriptors(), before = threads();
  for (int i = 0; i < 200; i++) {
    poller = make(_i, event);
    if (i & 1) rc_poller_watch(poller, 0, 1, &whom);
    if (i & 2) arm(poller, event);
    for (volatile int pause = i % 8 * 4096; pause > 0; pause--) {} /* falling asleep, asleep */
    if (i & 4) rc_wake(event);
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
  poller = make(BY_THREAD, event);
  real_wake = rc_os.futex_wake;
  rc_os.futex_wait = sleep_too_late;
  rc_os.futex_wake = tell_wake;
  arm(poller, event);
  while (!rc_load_acquire(&sleeping)) sched_yield();
  rc_poller_close(poller);
}

LOOP_TEST(nothing_is_handed_on_by_exec, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  const struct rc_watch whom = self();
  bool ours[64];
  for (int fd = 0; fd < 64; fd++) ours[fd] = fcntl(fd, F_GETFD) < 0;
  poller = make(_i, event);
  arm(poller, event);
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

static bool is_pipe(int number) {
  struct stat file;
  return fstat(number, &file) == 0 && S_ISFIFO(file.st_mode);
}

LOOP_TEST(a_number_that_the_program_took_is_left_alone, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  for (int which = 0; which < 3; which++) { /* epoll, timer, eventfd: made in this order */
    int lowest = dup(0);
    close(lowest);
    poller = make(_i, event);
    ck_assert_int_eq(rc_poller_fd(poller), lowest);
    take_number(lowest + which);
    ck_assert_int_eq(rc_poller_fd(poller), -EBADF);
    ck_assert_int_eq(rc_poller_arm(poller, 0, NEVER), -EBADF);
    rc_poller_close(poller);
    ck_assert(is_pipe(lowest + which));
    for (int i = 0; i < 3; i++) close(lowest + i);
  }
}

static void close_copy(void *copy) { rc_poller_close(copy); }

LOOP_TEST(a_forked_child_closes_its_copy_and_the_parents_goes_on, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  peer = start_peer();
  poller = make(_i, event);
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
  poller = make(_i, event);
  int descriptors = open_descriptors();
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    struct mover mover = {poller, event};
    ck_assert_int_eq(pthread_create(&thread, NULL, clear_and_arm, &mover), 0);
    pthread_join(thread, NULL);
    rc_wake(event);
    must_become_readable(poller);
    rc_poller_clear(poller);
    arm(poller, event);
    if (i % 2) {
      rc_wake(event);
      must_become_readable(poller);
    }
  }
  ck_assert_int_eq(rc_poller_uses_uring(poller), _i == BY_URING);
  ck_assert_int_eq(open_descriptors(), descriptors);
  rc_poller_close(poller);
}

TEST(the_helper_takes_no_signals) {
  if (!choose(BY_THREAD, __func__)) return;
  poller = make(BY_THREAD, event);
  arm(poller, event);
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
  poller = NULL;
  int before = open_descriptors(), lowest = dup(0); /* the next that is free */
  close(lowest);
  for (int more = 0; more <= 3; more++) {
    rlim_t most = limit_descriptors((rlim_t)(lowest + more));
    int result = rc_poller_open(event, 1, &poller);
    limit_descriptors(most);
    ck_assert_int_eq(result, more < 3 ? -EMFILE : 0);
    if (result == 0) break;
    ck_assert_ptr_null(poller);
    ck_assert_int_eq(open_descriptors(), before);
  }
  ck_assert(!rc_poller_uses_uring(poller));
  arm(poller, event);
  rc_wake(event);
  must_become_readable(poller);
  rc_poller_close(poller);
  ck_assert_int_eq(open_descriptors(), before);
}

TEST(where_io_uring_is_forbidden_the_thread_serves) {
  if (!choose(BY_URING, __func__)) return;
  struct rc_eventcount moved = {0};
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
  poller = make(BY_THREAD, event);
  arm(poller, event);
  must_stay_quiet(poller);
  rc_wake(event);
  must_become_readable(poller);
  ck_assert(!rc_poller_uses_uring(late));
  must_stay_quiet(late);
  rc_wake(&moved);
  must_become_readable(late);
  rc_poller_close(poller);
  rc_poller_close(late);
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
  return run_tests("poller", make_event, NULL);
}
