/* SPDX-License-Identifier: Apache-2.0 */
/* One thread of the process watches the processes whose death must release the waits of streams. */
#ifndef RC_GPU_WATCHER_H
#define RC_GPU_WATCHER_H

#include "shm/process.h"

/* A watched process. The watcher's thread calls `died` once; `died` calls neither the driver nor rc_watcher_add or
 * rc_watcher_remove. */
struct rc_watched {
  struct rc_watch process;
  void (*died)(struct rc_watched *watched);
  bool has_died;
  struct rc_watched *next;
};

/* -ENOMEM: the thread can't be started, or no descriptor is free. Sets the error text. */
int rc_watcher_add(struct rc_watched *watched);
/* After the return `died` does not run, and is not called again. */
void rc_watcher_remove(struct rc_watched *watched);

#endif
