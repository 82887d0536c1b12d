/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads of the process. The worker makes calls of the driver that may wait for a device and
 * have no caller that needs the result: closes and frees. The watcher watches the processes whose
 * death must release the waits of streams, and makes no call of the driver. */
#ifndef RC_GPU_WORKER_H
#define RC_GPU_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/process.h"

/* The struct of type `type` that contains the member. */
#define RC_CONTAINER_OF(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

struct rc_job {
  bool (*run)(struct rc_job *job); /* false: not done; the worker calls `run` again soon */
  void (*end)(struct rc_job *job); /* after `run` was true: frees the struct around the job; no call
                                      of the driver */
  bool *is_done;                   /* the worker's */
  struct rc_job *next;
};

/* Has the worker run the job until the job is done, and waits for the job for at most
 * `patience_ns`. A job that calls the function itself passes 0. */
void rc_worker_do(struct rc_job *job, int64_t patience_ns);

/* How long the close of a handle waits for the worker: a second; tests set less. */
extern int64_t rc_gpu_close_ns;

/* A watched process. The watcher's thread calls `died` once; `died` calls neither the driver nor
 * rc_watcher_add or rc_watcher_remove. */
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
