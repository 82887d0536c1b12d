/* SPDX-License-Identifier: Apache-2.0 */
/* The checks at the start of every public call, and the errors that several calls share. */
#include "channel/channel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shm/error.h"

int rc_check_fork(uint32_t forks) {
  if (forks == rc_forks_seen) return 0;
  if (forks == RC_LEFT)
    return rc_fail_as(-EINVAL, "this reader has left its ring: close it; no other call is allowed");
  return rc_fail_as(-ECHILD,
                    "this handle belongs to the parent process: after fork, make or attach one in "
                    "the child");
}

int rc_fail_shared(void) {
  return rc_fail_as(-EDEADLK,
                    "another thread is waiting on this handle: one thread at a time may use a "
                    "handle, except for cancel. If the wait was left by longjmp, or its thread has "
                    "ended, close it");
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
  return rc_fail(-EINVAL, "options.spin_ns is %lld: it must be -1 (never), 0 (default) or more",
                 (long long)spin_ns);
}

int rc_fail_evicted(void) {
  RC_POINT(TOLD_STALE);
  return rc_fail_as(-ESTALE,
                    "this reader was evicted: it blocked the writer for longer than the writer's "
                    "options.slow_ns, or its cursor was damaged. The frames that it held may be "
                    "overwritten: close the reader and attach a new one");
}

int rc_fail_no_frame(int code, uint64_t position, const struct rc_segment *segment) {
  const struct rc_process *writer = &segment->writer;
  switch (code) {
  case -EDEADLK: return rc_fail_shared();
  case -EAGAIN: return rc_fail_as(code, "there is no new frame right now");
  case -EINTR: return rc_fail_as(code, "a signal arrived while waiting for a frame");
  case -ECANCELED: return rc_fail_as(code, "the wait for a frame was cancelled");
  case -EPIPE:
    return rc_fail(code, "the writer (pid %d) is gone, and everything it sent has been read",
                   writer->pid);
  case -EPROTO: return rc_fail_damaged(position, segment);
  case -ETIMEDOUT:
    return rc_fail(code,
                   "no frame has come from the writer (pid %d), which is %s; a reader gets only "
                   "frames sent after it attached",
                   writer->pid, rc_process_in_words(writer));
  case -EBADF:
    return rc_fail_as(code, "the program has closed this tap's descriptor: attach again");
  default: return rc_fail(code, "can't read the ring's spill memory: %s", strerror(-code));
  }
}

/* Why a descriptor can't be had, or can't wait. */
static const char *why_no_poller(int code) {
  switch (code) {
  case -EAGAIN:
    return "io_uring is not to be had and no thread can be started: raise the limit of processes "
           "(ulimit -u, pids.max)";
  case -EBADF: return "the program has closed descriptors of the library";
  default: return strerror(-code);
  }
}

int rc_fail_descriptor(struct rc_poller **poller, int code) {
  rc_poller_close(*poller);
  *poller = NULL;
  return rc_fail(-ENOBUFS,
                 "the descriptor can't wait any more (%s): get a new one from this handle",
                 why_no_poller(code));
}

int rc_fail_no_descriptor(int code) {
  return rc_fail(code == -EAGAIN ? -ENOMEM : code, "can't make a descriptor to wait on: %s",
                 why_no_poller(code));
}

int rc_fail_unknown(int code, const char *whom) {
  return rc_fail(code, "can't tell whether %s lives: %s%s", whom, strerror(-code),
                 rc_process_hint(code));
}

int rc_fail_unknown_writer(int code, const struct rc_segment *segment) {
  char whom[32];
  snprintf(whom, sizeof whom, "the writer (pid %d)", segment->writer.pid);
  return rc_fail_unknown(code, whom);
}

int rc_fail_not_held(uint64_t position) {
  return rc_fail(-EINVAL,
                 "the frame at position %llu is not held by this reader: was it released, or "
                 "retained, before?",
                 (unsigned long long)position);
}

int rc_fail_damaged(uint64_t position, const struct rc_segment *segment) {
  return rc_fail(-EPROTO,
                 "the frame at position %llu is damaged: the writer (pid %d) wrote invalid data; "
                 "make a new ring",
                 (unsigned long long)position, segment->writer.pid);
}

const char *ringcast_last_error(void) { return rc_error_text(); }

const char *ringcast_version(void) { return RINGCAST_VERSION; }
