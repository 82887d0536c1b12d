/* SPDX-License-Identifier: Apache-2.0 */
/* Processes: which one is meant, whether it lives, and whether we are still the one that made a handle. */
#ifndef RC_SHM_PROCESS_H
#define RC_SHM_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* A pid alone is reused; with its start time (clock ticks since boot,
 * field 22 of /proc/<pid>/stat) it is one process. */
struct rc_process {
  int32_t pid;
  uint64_t start;
};

/* -ENOENT: no such process. -EIO: /proc does not show it (not mounted, hidden); -EMFILE and the like as they come. */
int rc_process_find(int32_t pid, struct rc_process *out);
int rc_process_self(struct rc_process *out);

/* What to add to the sentence that tells of such an error. */
const char *rc_process_hint(int code);

/* ENDED once it has exited with all its threads, also while its parent has not waited for it yet, or when its pid has
 * gone to another. STOPPED by a signal (SIGSTOP) or a debugger: it lives. RUNNING also when nothing can be found out.
 * The process is known by the low bits of its start time. About 10 us. */
enum rc_process_state { RC_PROCESS_ENDED, RC_PROCESS_RUNNING, RC_PROCESS_STOPPED };
enum rc_process_state rc_process_look(int32_t pid, uint64_t start_bits, uint64_t mask);

static inline bool rc_process_is_alive_by(int32_t pid, uint64_t start_bits, uint64_t mask) {
  return rc_process_look(pid, start_bits, mask) != RC_PROCESS_ENDED;
}
static inline bool rc_process_is_alive(const struct rc_process *process) {
  return rc_process_is_alive_by(process->pid, process->start, UINT64_MAX);
}

/* "alive", "dead", "stopped by a signal or a debugger". */
const char *rc_process_in_words(const struct rc_process *process);

/* A process that is looked at again and again: by a pidfd (Linux 5.3), which is opened at the first look, in 0.3 us;
 * or, where that is refused or switched off (RINGCAST_DISABLE=pidfd), by /proc. One thread at a time. */
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

/* As rc_process_is_alive. */
bool rc_watch_is_alive(struct rc_watch *watch);

/* Counts the forks that led to this process, so that a handle can tell that it was made before one. */
extern uint32_t rc_forks_seen; /* kept by a fork handler; read it by rc_fork_count */
static inline uint32_t rc_fork_count(void) { return rc_forks_seen; }

#endif
