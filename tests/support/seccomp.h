/* SPDX-License-Identifier: Apache-2.0 */
/* Takes system calls from a process, for good: as a sandbox does, or to find the process that makes
 * them. */
#ifndef RC_TESTS_SECCOMP_H
#define RC_TESTS_SECCOMP_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What becomes of the calls that are listed, and of all others: SECCOMP_RET_... 0 or a negative
 * errno. */
static inline int filter_calls(const uint32_t *calls, uint16_t count, uint32_t listed,
                               uint32_t others) {
  struct sock_filter filter[2 * 16 + 2] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
  uint16_t length = 1;
  if (count > 16) return -E2BIG;
  for (uint16_t i = 0; i < count; i++) {
    filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed);
  }
  filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, others);
  struct sock_fprog program = {.len = length, .filter = filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -errno;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0 ? -errno : 0;
}

/* The call fails with EPERM from now on, as in Docker's default profile. */
static inline int forbid_call(uint32_t call) {
  return filter_calls(&call, 1, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW);
}

/* ---- A process that ends with the first call that it must not make --------------------------- */

static int *caught_call; /* in memory that outlives the process */

/* Ends the process by one call: what a sanitizer does at _exit takes more. */
static inline void exit_at_once(int status) {
  for (;;) syscall(SYS_exit_group, status);
}

static inline void tell_call(int number, siginfo_t *info, void *context) {
  (void)number, (void)context;
  *caught_call = info->si_syscall;
  exit_at_once(2);
}

static inline int catch_calls(int *caught) {
  caught_call = caught;
  struct sigaction action = {.sa_sigaction = tell_call, .sa_flags = SA_SIGINFO};
  return sigaction(SIGSYS, &action, NULL) != 0 ? -errno : 0;
}

/* From now on: none but exit_at_once. What was caught is its number, which the test has set to
 * -1. */
static inline int allow_no_call(int *caught) {
  const uint32_t exits[] = {SYS_exit_group};
  int result = catch_calls(caught);
  return result != 0 ? result : filter_calls(exits, 1, SECCOMP_RET_ALLOW, SECCOMP_RET_TRAP);
}

static inline int allow_all_calls_but(const uint32_t *calls, uint16_t count, int *caught) {
  int result = catch_calls(caught);
  return result != 0 ? result : filter_calls(calls, count, SECCOMP_RET_TRAP, SECCOMP_RET_ALLOW);
}

#endif
