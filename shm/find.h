/* SPDX-License-Identifier: Apache-2.0 */
/* The names of rings, and the search for rings in /proc, where each writer shows the memfd of its
 * control segment. */
#ifndef RC_SHM_FIND_H
#define RC_SHM_FIND_H

#include <stdbool.h>

#include "ring/layout.h"
#include "shm/handle.h"

/* 0; -EINVAL, with the error text: `name` is not a name for a ring. */
int rc_name_check(const char *name);

/* Copies a name from shared memory; an invalid name becomes "?". */
void rc_name_copy(const char from[RC_RING_NAME], char to[RC_RING_NAME]);

struct rc_found {
  int32_t pid;
  char name[RC_RING_NAME];
  bool compatible; /* false: another layout; the name and the handle are unknown */
  struct rc_handle handle;
};

/* 0; -EIO, with the error text: /proc is of another PID namespace, and shows other processes under
 * the pids of this one. */
int rc_proc_check(void);

/* Calls `found` for each ring; a result other than 0 ends the search and is returned. -EIO: /proc
 * can't be read; -EMFILE and other codes of the kernel. Sets the error text, but not for the
 * results of `found`. */
int rc_find_rings(int (*found)(void *context, const struct rc_found *ring), void *context);

#endif
