/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the reader's side share. */
#ifndef RC_GPU_READER_H
#define RC_GPU_READER_H

#include <errno.h>

#include "gpu/import.h"
#include "ringcast/gpu.h"

struct ringcast_gpu_reader {
  ringcast_reader *reader; /* not to be looked at once `forks` is RC_LEFT: it has left the ring */
  struct rc_device device;
  struct rc_import *import; /* NULL: no pool is open */
  struct rc_import *before; /* the last of those it had before, whose streams may wait still; NULL: none */
  uint32_t failed;          /* the epoch of a pool that could not be opened when it was last tried; 0: none yet */
  uint32_t refused;         /* the same, and it never can be here */
  int64_t not_before;       /* one that took long in vain is not tried again by frames until then */
  uint32_t forks;
  char why[200];                 /* why not, of `failed` */
  struct rc_bounce *bounce;      /* NULL: not made yet, or ... */
  bool has_no_bounce;            /* ... there is no pinned memory here */
  bool missing;                  /* as rc_import_was_missing, of those that have ended */
  uint64_t begun[RC_MAX_LEASES]; /* 1 + the position of each frame whose take is open; 0: none */
  uint64_t pool_frames, pool_bytes, inline_frames, opens, syncs;
};

int rc_gpu_reader_enter(const ringcast_gpu_reader *reader, struct rc_cuda_entry *entry);
/* As rc_cuda_enter_context. */
int rc_gpu_reader_enter_context(const ringcast_gpu_reader *reader, struct rc_cuda_entry *entry);
/* After a failed call, with its code. An unexpected failure of the driver (-EIO) makes the reader leave the pool.
 * Returns the code. */
int rc_gpu_reader_failed(ringcast_gpu_reader *reader, int code);

/* The same, after a copy to the device, or from there, was enqueued; with CUDA's result. */
int rc_gpu_reader_copied(ringcast_gpu_reader *reader, rc_cu_result result);

/* The pool that the writer has now, if it can be opened. What is open of an earlier one is closed. Why it can't be now,
 * with its text; 0 also where there is nothing to be opened. The context is current. _look: not again at once what took
 * long in vain. */
void rc_gpu_reader_look_for_pool(ringcast_gpu_reader *reader);
int rc_gpu_reader_open_pool(ringcast_gpu_reader *reader);

/* ---- bounce.c: frames whose bytes go from the ring to a device ---- */

/* Copies `bytes` of the ring to `to`, on the take's stream; once it has returned 0 the ring is not read any more. Waits
 * for the stream where this is too far behind, as `take->timeout_ns` says: -ETIMEDOUT, -EAGAIN, -EINTR. Counts what is
 * enqueued in `take->copied`. -EBUSY: the stream captures a graph. -EIO. The context is current. */
int rc_bounce_copy(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take, const void *from, uint64_t bytes,
                   rc_cu_ptr to);
/* Has the worker free the buffer once the streams have read it, and waits for that for rc_gpu_close_ns at most. NULL is
 * allowed. */
void rc_bounce_end(struct rc_bounce *bounce);

#endif
