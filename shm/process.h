/* SPDX-License-Identifier: Apache-2.0 */
/* Identifies a process, tells whether the process lives, counts the forks that led to this process, and starts
 * threads. */
#ifndef RC_SHM_PROCESS_H
#define RC_SHM_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The kernel reuses a pid. The pid and the start time (clock ticks since boot, field 22 of /proc/<pid>/stat) together
 * identify one process. */
struct rc_process {
  int32_t pid;
  uint64_t start;
};

/* -ENOENT: no such process. -EIO: /proc does not show the process (not mounted, hidden); -EMFILE etc.: the kernel's. */
int rc_process_find(int32_t pid, struct rc_process *out);
int rc_process_self(struct rc_process *out);

/* The advice to append to the error text for `code`, or "". */
const char *rc_process_hint(int code);

/* ENDED: all threads have exited (also before the parent waits for the process), or a later process has the pid.
 * STOPPED: by a signal (SIGSTOP) or a debugger, and alive. RUNNING: also when the state can't be read. `start_bits` are
 * the bits of the start time under `mask`. About 10 us. */
enum rc_process_state { RC_PROCESS_ENDED, RC_PROCESS_RUNNING, RC_PROCESS_STOPPED };
enum rc_process_state rc_process_look(int32_t pid, uint64_t start_bits, uint64_t mask);

static inline bool rc_process_is_alive_by(int32_t pid, uint64_t start_bits, uint64_t mask) {
  return rc_process_look(pid, start_bits, mask) != RC_PROCESS_ENDED;
}

/* "alive", "dead", "stopped by a signal or a debugger". */
const char *rc_process_in_words(const struct rc_process *process);

/* A process that is checked repeatedly: by a pidfd (Linux 5.3), which the first check opens, in 0.3 us; or through
 * /proc, if the kernel refuses a pidfd or RINGCAST_DISABLE names pidfd. One thread at a time. */
struct rc_watch {
  int32_t pid;
  uint64_t start, mask; /* as in rc_process_is_alive_by */
  int fd;               /* the pidfd, or one of the following */
};
enum { RC_WATCH_NEW = -1, RC_WATCH_REFUSED = -2, RC_WATCH_ENDED = -3 };

void rc_watch_init(struct rc_watch *watch, int32_t pid, uint64_t start_bits, uint64_t mask);
void rc_watch_close(struct rc_watch *watch);

/* The pidfd, which polls readable once the process has ended; RC_WATCH_NEW (no descriptor is free: ask again),
 * RC_WATCH_REFUSED, RC_WATCH_ENDED. */
int rc_watch_fd(struct rc_watch *watch);

/* As rc_process_is_alive_by. */
bool rc_watch_is_alive(struct rc_watch *watch);

/* Starts a thread that receives no signals: handlers run in the threads of the program. 0, or the negative error of
 * pthread_create. */
int rc_thread_start(void *(*body)(void *), void *context, pthread_t *out);

/* Counts the forks that led to this process. A handle that notes the count at open detects a later fork. */
extern uint32_t rc_forks_seen; /* kept by a fork handler; read by rc_fork_count */
static inline uint32_t rc_fork_count(void) { return rc_forks_seen; }

#endif
