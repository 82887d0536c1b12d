/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping: what it takes, forks, and a kernel or a sandbox that has no pidfds. */
#define _GNU_SOURCE
#include "shm/wait.h"

#include <fcntl.h>

#include "tests/support/leaks.h"
#include "tests/support/seccomp.h"
#include "tests/support/switches.h"
#include "tests/support/wait.h"

START_TEST(nothing_leaks_and_nothing_is_handed_on_by_exec) {
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
    ck_assert_int_eq(count, i % 3 == 0 ? 0 : has_pidfds());
    destroy(target);
  }
  ck_assert_int_eq(open_descriptors(), descriptors);
}
END_TEST

/* ---- What can be refused ---------------------------------------------------------------------------------------- */

static int no_pidfd(int32_t pid) {
  (void)pid;
  return -ENOSYS;
}

enum { NO_PIDFD, PIDFD_OFF, PIDFD_FORBIDDEN, LACKS };

static bool take_away(int what) {
  if (what == NO_PIDFD) rc_os.pidfd_open = no_pidfd;
  else if (what == PIDFD_OFF) disable_too("pidfd");
  else return forbid_call(SYS_pidfd_open) == 0;
  return true;
}

struct lack {
  struct target *target;
  int what;
};

static void do_without(void *context) {
  struct lack *lack = context;
  struct target *target = lack->target;
  if (!take_away(lack->what)) {
    tell_skipped("without_pidfds_a_death_is_told_all_the_same", "no seccomp");
    return;
  }
  child_must(wait_for(target, 2000000) == -ETIMEDOUT);
  rc_os.futex_wait = happen_and_wait;
  happening = give;
  of_it = target;
  child_must(wait_for(target, RINGCAST_FOREVER) == 0);
  target->value = 0;
  happening = kill_peer;
  of_it = &target->watch.pid;
  child_must(wait_for(target, RINGCAST_FOREVER) == -EOWNERDEAD);
}

START_TEST(without_pidfds_a_death_is_told_all_the_same) {
  pid_t peer = start_child(live_for_ever, NULL);
  struct lack lack = {.target = make(peer), .what = _i};
  child_must_succeed(start_child(do_without, &lack));
  kill(peer, SIGKILL);
  ck_assert_int_eq(waitpid(peer, NULL, 0), peer);
  destroy(lack.target);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("wait, life");
  TCase *tests = add_case(suite, "life");
  tcase_add_test(tests, nothing_leaks_and_nothing_is_handed_on_by_exec);
  tcase_add_loop_test(tests, without_pidfds_a_death_is_told_all_the_same, 0, LACKS);
  return run_suite(suite);
}
