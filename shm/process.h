/* SPDX-License-Identifier: Apache-2.0 */
/* Processes: which one is meant, whether it lives, and whether we are still the one that made a handle. */
#ifndef RC_SHM_PROCESS_H
#define RC_SHM_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* A pid alone is reused; with its start time (clock ticks since boot, field 22 of /proc/<pid>/stat) it is one process. */
struct rc_process {
  int32_t pid;
  uint64_t start;
};

/* -ENOENT: no such process. -EIO: /proc does not show it (not mounted, hidden); -EMFILE and the like as they come. */
int rc_process_find(int32_t pid, struct rc_process *out);
int rc_process_self(struct rc_process *out);

/* False once it has exited with all its threads, also while its parent has not waited for it yet, or when its pid has
 * gone to another. When that can't be found out, true. About 10 us. */
bool rc_process_is_alive(const struct rc_process *process);

/* The same for a process known by the low bits of its start time. */
bool rc_process_is_alive_by(int32_t pid, uint64_t start_bits, uint64_t mask);

/* Counts the forks that led to this process, so that a handle can tell that it was made before one. */
extern uint32_t rc_forks_seen; /* kept by a fork handler; read it by rc_fork_count */
static inline uint32_t rc_fork_count(void) { return rc_forks_seen; }

#endif
