/* SPDX-License-Identifier: Apache-2.0 */
/* Identifies a process, tells whether it lives, counts the forks that led to this one, and starts
 * threads. */
#ifndef RC_SHM_PROCESS_H
#define RC_SHM_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "shm/os.h"

/* The kernel reuses a pid. The pid and the start time (clock ticks since boot, field 22 of
 * /proc/<pid>/stat) together identify one process. */
struct rc_process {
  int32_t pid;
  uint64_t start;
};

/* -ENOENT: no such process. -EIO: /proc does not show the process (not mounted, hidden); -EMFILE
 * etc.: the kernel's. */
int rc_process_find(int32_t pid, struct rc_process *out);
int rc_process_self(struct rc_process *out);

/* Whether the process is in another time namespace, whose boot time differs: start times can't be
 * compared then. */
bool rc_process_has_other_clock(int32_t pid);

/* The advice to append to the error text for `code`, or "". */
const char *rc_process_hint(int code);

/* ENDED: all threads have exited (also before the parent waits for the process), or a later process
 * has the pid. STOPPED: by a signal (SIGSTOP) or a debugger, and alive. */
enum rc_process_state { RC_PROCESS_ENDED, RC_PROCESS_RUNNING, RC_PROCESS_STOPPED };

/* A state, or why nothing tells: -EMFILE, -ENFILE, -ENOMEM (to read /proc takes a descriptor), -EIO
 * (/proc does not show the process). An error never means that the process lives. `start_bits` are
 * the bits of the start time under `mask`; where /proc can't be read they are not compared, and a
 * later process with the pid counts. About 10 us. */
int rc_process_look(int32_t pid, uint64_t start_bits, uint64_t mask);

/* "alive", "dead", "stopped by a signal or a debugger", "in an unknown state". */
const char *rc_process_in_words(const struct rc_process *process);

/* A process that is checked repeatedly, through a descriptor that stays open: a pidfd (Linux 5.3),
 * in 0.3 us; or /proc/<pid>/stat, if the kernel refuses a pidfd or RINGCAST_DISABLE names pidfd. An
 * open descriptor serves also when no descriptor is free, and never shows a later process with the
 * pid. If neither can be opened, each look is one of rc_process_look. One thread at a time. */
struct rc_watch {
  int32_t pid;
  uint64_t start, mask; /* as in rc_process_look */
  int fd;               /* -1: not open */
  bool is_pidfd, ended; /* ended: found when the watch was opened */
  struct rc_fd_id id;   /* of fd */
  int unknown;          /* why the last look could not tell; 0: it could */
};

void rc_watch_init(struct rc_watch *watch, int32_t pid, uint64_t start_bits, uint64_t mask);
void rc_watch_close(struct rc_watch *watch);

/* The pidfd, which polls readable once the process has ended; -1: there is none. Opens the watch:
 * the first look does so too, but then the descriptors may be used up. */
int rc_watch_fd(struct rc_watch *watch);

/* As rc_process_look. */
int rc_watch_look(struct rc_watch *watch);

/* Starts a thread that receives no signals: handlers run in the threads of the program. 0, or the
 * negative error of pthread_create. */
int rc_thread_start(void *(*body)(void *), void *context, pthread_t *out);

/* The forks that led to this process, counted by a fork handler. A handle that notes the count at
 * open detects a later fork. */
extern uint32_t rc_forks_seen;

#endif
