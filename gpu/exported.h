/* SPDX-License-Identifier: Apache-2.0 */
/* A pool that this process exports, with its semaphores. A pool may outlive the handle that asked for it. */
#ifndef RC_GPU_EXPORTED_H
#define RC_GPU_EXPORTED_H

#include "channel/channel.h"
#include "channel/liveness.h"
#include "gpu/segment.h"
#include "gpu/worker.h"

struct rc_exported {
  struct rc_device device;
  struct rc_gpu_segment segment;
  struct rc_gpu_place place; /* for the ring's control page */
  rc_cu_ptr memory;          /* pool_bytes, and the pattern; 0: none */
  uint64_t pool_bytes;
  uint64_t token[2];
  int failed; /* why there is no memory: a negative errno, and ... */
  char why[200];
  _Atomic uint32_t is_making; /* 1: the worker makes the pool */
  bool is_left; /* under the mutex: the writer has left the pool. Any peer may have stored `closed` in the segment */
  bool is_kept; /* the memory is never freed: the caller has addresses in it, or a stream hangs in it */
  struct rc_job job;
  struct rc_exported *next;
};

/* A pool for a ring, of device `ordinal`, still without memory. -ENOMEM, -EIO, with the error text. */
int rc_exported_new(int32_t ordinal, const ringcast_writer *writer, uint64_t pool_bytes, uint32_t slots,
                    struct rc_exported **out);
/* Allocates and exports the memory, and makes the semaphores, or sets `failed`: blocks while the driver works. A device
 * that is busy is waited for as long as `patience_ns`. */
void rc_exported_make(struct rc_exported *exported, int64_t patience_ns);
/* The worker makes the pool. `is_making` is 1 until `failed` is known. */
void rc_exported_make_soon(struct rc_exported *exported);

/* The writer has no more use for the pool: the memory is freed once no reader has it open, and the call waits for that
 * for `patience_ns` at most. `is_kept`: the memory is never freed. */
void rc_exported_leave(struct rc_exported *exported, bool is_kept, int64_t patience_ns);
/* The same for all pools that were left earlier. */
void rc_exported_tidy(int64_t patience_ns);
/* The memory of the pool with that token and epoch on that device; 0: this process has not made it. */
rc_cu_ptr rc_exported_find(const uint64_t token[2], uint32_t epoch, const struct rc_device *device);

#endif
