/* SPDX-License-Identifier: Apache-2.0 */
/* What every public call checks first, and refusals that several calls give. */
#include <errno.h>

#include "channel/channel.h"
#include "shm/error.h"

int rc_check_fork(uint32_t forks) {
  if (forks == rc_fork_count()) return 0;
  if (forks == RC_LEFT) return rc_fail_as(-EINVAL, "this reader has left its ring: all it is good for is to be closed");
  return rc_fail(-ECHILD, "this handle belongs to the parent process: after fork, make or attach one in the child");
}

int rc_fail_shared(void) {
  return rc_fail_as(-EDEADLK, "another thread is waiting on this handle: one thread at a time may use it, but for "
                              "cancel (or a wait was left by longjmp, or with its thread: close it then)");
}

int rc_check_wait(uint32_t forks, int64_t timeout_ns) {
  if (timeout_ns < RINGCAST_FOREVER)
    return rc_fail(-EINVAL,
                   "a timeout of %lld ns is negative: has the deadline passed? (0 tries once, "
                   "RINGCAST_FOREVER waits without end)",
                   (long long)timeout_ns);
  return rc_check_fork(forks);
}

int rc_check_spin(int64_t spin_ns) {
  if (spin_ns >= -1) return 0;
  return rc_fail(-EINVAL, "options.spin_ns is %lld: it must be -1 (never), 0 (default) or more", (long long)spin_ns);
}

int rc_fail_evicted(void) {
  RC_POINT(TOLD_STALE);
  return rc_fail_as(-ESTALE, "this reader was evicted: it held the writer back for longer than it may, or was taken "
                             "for dead, and what it still held may have been overwritten. Close it and attach anew");
}

int rc_fail_not_held(uint64_t position) {
  return rc_fail(-EINVAL, "the frame at position %llu is not held by this reader", (unsigned long long)position);
}
