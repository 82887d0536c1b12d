/* SPDX-License-Identifier: Apache-2.0 */
/* The state that the files of the reader's side share. */
#ifndef RC_GPU_READER_H
#define RC_GPU_READER_H

#include <errno.h>

#include "gpu/import.h"
#include "ringcast/gpu.h"

struct ringcast_gpu_reader {
  ringcast_reader *reader; /* unused once `forks` is RC_LEFT: the reader has left the ring */
  struct rc_device device;
  struct rc_import *import; /* NULL: no pool is open */
  struct rc_import *before; /* the list of earlier imports, for which streams may still wait */
  uint32_t failed;          /* the epoch of the pool that failed to open last; 0: no failure yet */
  uint32_t refused;         /* the epoch of a pool that can't be opened here at all; 0: none yet */
  int64_t not_before;       /* after a failed open that took long, frames do not open the pool until this time */
  uint32_t forks;
  char why[200];                 /* the error text of `failed` */
  struct rc_bounce *bounce;      /* NULL: not made yet, or ... */
  bool has_no_bounce;            /* ... there is no pinned memory here */
  bool missing;                  /* as rc_import_is_missing, of the imports that have ended */
  uint64_t begun[RC_MAX_LEASES]; /* 1 + the position of each frame with an open take; 0: a free entry */
  uint64_t pool_frames, pool_bytes, inline_frames, opens, syncs;
};

int rc_gpu_reader_enter(const ringcast_gpu_reader *reader, struct rc_cuda_entry *entry);
/* As rc_cuda_enter_context. */
int rc_gpu_reader_enter_context(const ringcast_gpu_reader *reader, struct rc_cuda_entry *entry);
/* Called after a failed call, with the call's code. An unexpected failure of the driver (-EIO) makes the reader leave
 * the pool. Returns the code. */
int rc_gpu_reader_failed(ringcast_gpu_reader *reader, int code);

/* Closes the import of an earlier pool, and opens the writer's present pool, but not soon after a failed open that took
 * long. The context is current. */
void rc_gpu_reader_look_for_pool(ringcast_gpu_reader *reader);

/* ---- bounce.c: frames that go from the ring to a device ---- */

/* Copies `bytes` of the ring to `to`, on the take's stream. After a return of 0 no copy reads the ring any more. If the
 * stream is too far behind, the call waits, as `take->timeout_ns` says: -ETIMEDOUT, -EAGAIN, -EINTR. `take->copied`
 * counts the enqueued bytes. -EBUSY: the stream captures a graph. -EIO. The context is current. */
int rc_bounce_copy(ringcast_gpu_reader *reader, struct ringcast_gpu_take *take, const void *from, uint64_t bytes,
                   rc_cu_ptr to);
/* Has the worker free the buffer once the streams have read the buffer, and waits for the worker for at most
 * rc_gpu_close_ns. NULL is allowed. */
void rc_bounce_end(struct rc_bounce *bounce);

#endif
