/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a process lives, by its pidfd and by /proc: neither is fooled. */
#define _GNU_SOURCE
#include "shm/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>

#include "shm/os.h"
#include "tests/support/children.h"
#include "tests/support/leaks.h"
#include "tests/support/seccomp.h"
#include "tests/support/suite.h"

enum { BY_PIDFD, BY_PROC, WAYS };

static struct rc_watch watch_of(pid_t pid) {
  struct rc_process process;
  struct rc_watch watch;
  ck_assert_int_eq(rc_process_find(pid, &process), 0);
  rc_watch_init(&watch, process.pid, process.start, UINT64_MAX);
  return watch;
}

/* Whether the test can run this way. */
static bool choose(int way, const char *test) {
  setenv("RINGCAST_DISABLE", way == BY_PROC ? "pidfd" : "", 1);
  int fd = rc_os.pidfd_open(getpid());
  if (fd >= 0) close(fd);
  if (fd < 0 && way == BY_PIDFD) tell_skipped(test, "no pidfds");
  return fd >= 0 || way == BY_PROC;
}

#define must_be_alive(watch) ck_assert_int_gt(rc_watch_look(&(watch)), RC_PROCESS_ENDED)
#define must_be_dead(watch)  ck_assert_int_eq(rc_watch_look(&(watch)), RC_PROCESS_ENDED)

static void live_for_ever(void *context) {
  (void)context;
  for (;;) pause();
}

/* ---- What becomes of a process, and what is left to see it by ---------------------------------
 */

static void *outlive_the_leader(void *context) {
  while (pause() < 0) {}
  return context;
}

static void leave_a_thread_behind(void *context) {
  pthread_t thread;
  (void)context;
  child_must(pthread_create(&thread, NULL, outlive_the_leader, NULL) == 0);
  syscall(SYS_exit, 0); /* of this thread alone */
}

enum { LIVES, IS_STOPPED, HAS_LOST_ITS_MAIN_THREAD, IS_A_ZOMBIE, IS_GONE, FATES };
/* Where the limit of descriptors is 0, not even poll works. */
enum { ALL_IS_WELL, NUMBER_CLOSED, NUMBER_TAKEN, NO_DESCRIPTORS, LACKS };

static void meet(pid_t child, int fate) {
  siginfo_t info;
  if (fate == HAS_LOST_ITS_MAIN_THREAD)
    while (state_of(child) != 'Z') sched_yield();
  if (fate == IS_STOPPED) {
    ck_assert_int_eq(kill(child, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(child, NULL, WUNTRACED), child);
  }
  if (fate == IS_A_ZOMBIE || fate == IS_GONE) ck_assert_int_eq(kill(child, SIGKILL), 0);
  if (fate == IS_A_ZOMBIE)
    ck_assert_int_eq(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
  if (fate == IS_GONE) ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

/* By a watch that was opened before, and by one that is opened only now. The program may have
 * closed the number of the first, and use it for something readable that is no pidfd. */
LOOP_TEST(the_end_is_seen_and_nobody_is_taken_for_dead, 0, WAYS *FATES *LACKS) {
  const int fate = _i / WAYS % FATES, lack = _i / WAYS / FATES;
  const bool is_alive = fate < IS_A_ZOMBIE, is_limited = lack == NO_DESCRIPTORS;
  int ends[2], states[4];
  struct rc_process process;
  if (!choose(_i % WAYS, __func__)) return;
  if (is_limited && cannot_under("qemu", __func__, "qemu does not read another process's memory"))
    return;
  ck_assert_int_eq(pipe(ends), 0);
  ck_assert_int_eq(write(ends[1], "x", 1), 1);
  int descriptors = open_descriptors();
  bool loses = fate == HAS_LOST_ITS_MAIN_THREAD;
  pid_t child = start_child(loses ? leave_a_thread_behind : live_for_ever, NULL);
  struct rc_watch early = watch_of(child), late = watch_of(child);
  must_be_alive(early);
  ck_assert_int_eq(rc_watch_fd(&early) >= 0, _i % WAYS == BY_PIDFD);
  const int number = early.fd;
  if (lack == NUMBER_CLOSED) close(number);
  if (lack == NUMBER_TAKEN) ck_assert_int_eq(dup2(ends[0], number), number);
  meet(child, fate);
  rlim_t most = is_limited ? limit_descriptors(0) : 0;
  for (int i = 0; i < 4; i++) states[i] = rc_watch_look(i % 2 ? &late : &early);
  int found = rc_process_find(child, &process);
  if (is_limited) limit_descriptors(most);
  for (int i = 0; i < 4; i++) ck_assert_int_eq(states[i] > RC_PROCESS_ENDED, is_alive);
  for (int i = 0; i < 4; i++) ck_assert_int_ge(states[i], RC_PROCESS_ENDED);
  if (is_limited) ck_assert_int_eq(found, -EMFILE);
  else ck_assert_int_eq(found, is_alive ? 0 : -ENOENT);
  if (is_alive) kill_child(child);
  must_be_dead(early);
  must_be_dead(late);
  rc_watch_close(&early);
  rc_watch_close(&late);
  if (lack == NUMBER_TAKEN) ck_assert_int_eq(close(number), 0); /* it was not ours to close */
  ck_assert_int_eq(open_descriptors(), descriptors);
}

LOOP_TEST(a_pid_that_went_to_another_is_dead, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct rc_watch watch = watch_of(getpid());
  must_be_alive(watch);
  rc_watch_close(&watch);
  watch.start++;
  must_be_dead(watch);
  ck_assert_int_eq(watch.fd, -1);
  rc_watch_init(&watch, getpid(), 0, 0); /* none of the start's bits are known */
  must_be_alive(watch);
  rc_watch_close(&watch);
}

static struct gate stop, stopped;

static void look_from_where_proc_is_hidden(void *context) {
  struct rc_watch *watch = context;
  struct rc_process process;
  child_must(chroot("/etc") == 0 && chdir("/") == 0);
  child_must(open("/proc/self/stat", O_RDONLY) < 0);
  child_must(rc_process_find(watch->pid, &process) == -EIO);
  child_must(rc_watch_look(watch) == RC_PROCESS_RUNNING);
  gate_open(&stop);
  gate_wait(&stopped); /* it is dead, and nobody has waited for it; its main thread alone could have
                          ended */
  const bool by_pidfd = getenv("RINGCAST_DISABLE")[0] == 0;
  child_must(rc_watch_look(watch) == (by_pidfd ? RC_PROCESS_ENDED : -EIO));
}

LOOP_TEST(no_process_has_a_pid_of_0_or_less, 0, WAYS) {
  const int32_t pids[] = {0, -1, INT32_MIN};
  if (!choose(_i, __func__)) return;
  for (size_t i = 0; i < sizeof pids / sizeof *pids; i++) {
    struct rc_watch watch;
    struct rc_process process;
    rc_watch_init(&watch, pids[i], 0, 0);
    must_be_dead(watch);
    ck_assert_int_eq(rc_process_find(pids[i], &process), -ENOENT);
    rc_watch_close(&watch);
  }
}

LOOP_TEST(where_proc_is_hidden_the_end_is_seen_and_nobody_is_taken_for_dead, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  if (cannot_under("qemu", __func__, "qemu invents /proc/self/stat where it is hidden")) return;
  if (geteuid() != 0) {
    tell_skipped(__func__, "only root can chroot");
    return;
  }
  stop = gate_make();
  stopped = gate_make();
  pid_t child = start_child(live_for_ever, NULL);
  struct rc_watch watch = watch_of(child);
  pid_t looker = start_child(look_from_where_proc_is_hidden, &watch);
  gate_wait(&stop);
  siginfo_t info;
  ck_assert_int_eq(kill(child, SIGKILL), 0);
  ck_assert_int_eq(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
  gate_open(&stopped);
  child_must_succeed(looker);
  ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

static int refuse(int32_t pid) {
  (void)pid;
  return -EPERM;
}

TEST(where_pidfds_are_refused_proc_is_read) {
  choose(BY_PROC, __func__);
  setenv("RINGCAST_DISABLE", "", 1);
  rc_os.pidfd_open = refuse;
  pid_t child = start_child(live_for_ever, NULL);
  struct rc_watch watch = watch_of(child);
  must_be_alive(watch);
  ck_assert_int_eq(rc_watch_fd(&watch), -1);
  kill_child(child);
  must_be_dead(watch);
}

static int opened;

static int count_opened(int32_t pid) {
  opened++;
  return (int)syscall(SYS_pidfd_open, pid, 0);
}

TEST(one_descriptor_serves_all_looks_and_is_not_handed_on) {
  if (!choose(BY_PIDFD, __func__)) return;
  rc_os.pidfd_open = count_opened;
  struct rc_watch watch = watch_of(getppid());
  for (int i = 0; i < 10; i++) must_be_alive(watch);
  ck_assert_int_eq(opened, 1);
  ck_assert_int_eq(fcntl(watch.fd, F_GETFD), FD_CLOEXEC);
  rc_watch_close(&watch);
}

TEST(what_can_not_be_told_is_an_error) {
  if (forbid_call(SYS_process_vm_readv) != 0) {
    tell_skipped(__func__, "no seccomp");
    return;
  }
  rlim_t most = limit_descriptors(0);
  int alive = rc_process_look(getppid(), 0, 0), gone = rc_process_look(INT32_MAX, 0, 0);
  limit_descriptors(most);
  ck_assert_int_eq(alive, -EMFILE);
  ck_assert_int_eq(gone, RC_PROCESS_ENDED);
}

static void must_be_one_fork_more(void *before) {
  child_must(rc_forks_seen == *(uint32_t *)before + 1);
}

TEST(a_fork_is_counted_in_the_child_only) {
  uint32_t before = rc_forks_seen;
  child_must_succeed(start_child(must_be_one_fork_more, &before));
  ck_assert_uint_eq(rc_forks_seen, before);
}

RUN_TESTS("process", NULL, NULL)
