/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping, parked and in slices: what it takes, forks, threads, and a kernel or a sandbox that refuses something. */
#define _GNU_SOURCE
#include "shm/wait.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

#include "tests/support/leaks.h"
#include "tests/support/seccomp.h"
#include "tests/support/wait.h"

START_TEST(nothing_leaks_and_nothing_is_handed_on_by_exec) {
  if (!choose(_i == PARKED ? PARKED_UNLESS_IT_WATCHES : _i, __func__)) return;
  bool parks = _i == PARKED && has_pidfds();
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
    ck_assert_int_eq(count, i % 3 == 0 ? 0 : has_pidfds() + (parks ? 2 : 0)); /* a ring and its eventfd */
    destroy(target);
  }
  ck_assert_int_eq(open_descriptors(), descriptors);
}
END_TEST

static void do_nothing(void *context) { (void)context; }

static void sleep_in_child(void *context) {
  struct target *target = context;
  int descriptors = open_descriptors();
  uint32_t waiting = target->waiter.waiting;
  child_must(wait_for(target, 2000000) == -ETIMEDOUT);
  child_must(target->waiter.waiting == waiting);
  child_must(open_descriptors() == descriptors); /* its own in place of those that it was born with */
  rc_waiter_destroy(&target->waiter);
}

START_TEST(a_forked_child_uses_a_ring_of_its_own_and_the_parents_goes_on) {
  if (!choose(_i, __func__)) return;
  struct target *target = make(getppid()), *copy = malloc(sizeof *copy);
  ck_assert_int_eq(wait_for(target, 1000), -ETIMEDOUT);
  memcpy(copy, target, sizeof *copy); /* not shared, as a handle is not */
  for (int i = 0; i < 3; i++) {
    child_must_succeed(start_child(sleep_in_child, copy));
    target->wanted = (uint64_t)i + 1;
    ck_assert_int_eq(wait_until_it_happens(target, 1000000, do_nothing, NULL), -ETIMEDOUT);
    target->wanted = 1;
    target->value = 0;
    ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, give, target), 0);
    target->value = 0;
  }
  must_have_slept(target, _i);
  free(copy);
  destroy(target);
}
END_TEST

static void *wait_elsewhere(void *context) {
  struct target *target = context;
  target->value = 0;
  ck_assert_int_eq(wait_until_it_happens(target, RINGCAST_FOREVER, give, target), 0);
  return NULL;
}

START_TEST(it_may_move_from_thread_to_thread_and_gives_up_parking_if_it_often_does) {
  if (!choose(_i, __func__)) return;
  struct target *target = make(getppid());
  int descriptors = open_descriptors();
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_elsewhere, target), 0);
    pthread_join(thread, NULL);
    if (i == 4) must_have_slept(target, _i);
  }
  must_have_slept(target, SLICED);
  ck_assert_int_le(open_descriptors(), descriptors + 1); /* the pidfd */
  destroy(target);
}
END_TEST

/* ---- What can be refused ---------------------------------------------------------------------------------------- */

static int no_membarrier(int command) {
  (void)command;
  return -ENOSYS;
}

static int only_registering(int command) { return command == 0x4 ? real.membarrier(command) : -EPERM; }

static int no_pidfd(int32_t pid) {
  (void)pid;
  return -ENOSYS;
}

static void use_up_descriptors(int left) {
  struct rlimit limit;
  int next = dup(0); /* the lowest that is free */
  close(next);
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = (rlim_t)(next + left);
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

enum {
  NO_MEMBARRIER,
  ONLY_REGISTERING,
  NO_PIDFD,
  PIDFD_OFF,
  NO_EVENTFD,
  NO_RING,
  URING_FORBIDDEN,
  PIDFD_FORBIDDEN,
  LACKS
};

static bool take_away(int what) {
  switch (what) {
  case NO_MEMBARRIER: rc_os.membarrier = no_membarrier; break;
  case ONLY_REGISTERING: rc_os.membarrier = only_registering; break;
  case NO_PIDFD: rc_os.pidfd_open = no_pidfd; break;
  case PIDFD_OFF: disable_too("pidfd"); break;
  case NO_EVENTFD: use_up_descriptors(1); break; /* which is for the pidfd */
  case NO_RING: use_up_descriptors(2); break;
  case URING_FORBIDDEN: return forbid_call(SYS_io_uring_setup) == 0;
  default: return forbid_call(SYS_pidfd_open) == 0;
  }
  return true;
}

struct lack {
  struct target *target;
  int what;
};

/* In a child: what membarrier can do is found out once for a process. */
static void do_without(void *context) {
  struct lack *lack = context;
  struct target *target = lack->target;
  if (!take_away(lack->what)) {
    tell_skipped("where_parking_is_refused_it_sleeps_in_slices", "no seccomp");
    return;
  }
  child_must(wait_for(target, 2000000) == -ETIMEDOUT);
  child_must(target->waiter.waiting == RINGCAST_WAIT_FUTEX && !target->waiter.park);
  target->value = 0;
  rc_os.futex_wait = happen_and_wait;
  happening = give;
  of_it = target;
  child_must(wait_for(target, RINGCAST_FOREVER) == 0);
  target->value = 0;
  happening = kill_peer;
  of_it = &target->watch.pid;
  child_must(wait_for(target, RINGCAST_FOREVER) == -EOWNERDEAD);
}

START_TEST(where_parking_is_refused_it_sleeps_in_slices) {
  if (!choose(PARKED_UNLESS_IT_WATCHES, __func__)) return;
  pid_t peer = start_child(live_for_ever, NULL);
  struct lack lack = {.target = make(peer), .what = _i};
  child_must_succeed(start_child(do_without, &lack));
  kill(peer, SIGKILL);
  ck_assert_int_eq(waitpid(peer, NULL, 0), peer);
  destroy(lack.target);
}
END_TEST

int main(void) {
  uring_result = rc_uring_probe();
  Suite *suite = suite_create("wait, life");
  TCase *tests = add_case(suite, "life");
  tcase_add_loop_test(tests, nothing_leaks_and_nothing_is_handed_on_by_exec, 0, WAYS);
  tcase_add_loop_test(tests, a_forked_child_uses_a_ring_of_its_own_and_the_parents_goes_on, 0, WAYS);
  tcase_add_loop_test(tests, it_may_move_from_thread_to_thread_and_gives_up_parking_if_it_often_does, 0, WAYS);
  tcase_add_loop_test(tests, where_parking_is_refused_it_sleeps_in_slices, 0, LACKS);
  return run_suite(suite);
}
