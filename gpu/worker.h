/* SPDX-License-Identifier: Apache-2.0 */
/* One thread of the process makes the calls of the driver that nobody waits for, and that may wait for a device. */
#ifndef RC_GPU_WORKER_H
#define RC_GPU_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The struct of this type whose member this is. */
#define RC_CONTAINER_OF(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

struct rc_job {
  bool (*run)(struct rc_job *job); /* false: not yet; it is called again soon */
  void (*end)(struct rc_job *job); /* after `run` was true: frees what the job is part of; no call of the driver */
  bool *is_done;                   /* the worker's */
  struct rc_job *next;
};

/* Has the worker run the job until the job is done, and waits for that for `patience_ns` at most. Not for a job to call
 * with a patience. */
void rc_worker_do(struct rc_job *job, int64_t patience_ns);

/* How long the close of a handle waits for what the worker does for that: a second, but in tests. */
extern int64_t rc_gpu_close_ns;

#endif
