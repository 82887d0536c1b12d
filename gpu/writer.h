/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the writer's side share. */
#ifndef RC_GPU_WRITER_H
#define RC_GPU_WRITER_H

#include "gpu/exported.h"
#include "gpu/pool.h"
#include "ringcast/gpu.h"

/* What the writer knows of a consumer, in private memory. */
struct rc_counted {
  uint64_t owner; /* its owner word; 0: none was counted here */
  uint64_t from;  /* frames from this position on count on it */
  uint32_t turn;  /* of the place: who closes the pool and opens it again has the same owner word */
  bool dead;
};

struct ringcast_gpu_writer {
  ringcast_writer *writer;
  struct rc_device device;
  struct rc_exported *exported; /* NULL: there is no pool */
  struct rc_pool pool;          /* of no slots where there is none */
  struct rc_counted *counted;
  uint32_t forks;
  bool is_lost;
  bool registered, tried_to_register; /* the ring */
  uint32_t look_at;                   /* slots in use, at which it is looked for those that are done */
  int64_t asked;                      /* when it was last asked which consumers live */
  int no_pool;                        /* why there is none: a negative errno, and ... */
  char why[200];                      /* ... in words */
  uint64_t pool_frames, pool_bytes, inline_frames, full, syncs;
};

/* ---- consumers.c ---- */

/* What the readers that are attached have said. POOL, WAITING or REFUSED; of the last two, who it is, and why. Counts
 * on those that are new. */
enum ringcast_gpu_way rc_consumers_look(ringcast_gpu_writer *gpu, uint32_t *reader, int32_t *pid, int32_t *reason);
/* The same, in words: way, reader and why; NO_READER too. */
void rc_consumers_tell(ringcast_gpu_writer *gpu, struct ringcast_gpu_info *info);

/* Gives slots back that all have done with. `all`: also asks which of those in the way have died. */
void rc_consumers_reclaim(ringcast_gpu_writer *gpu, bool all);

/* ---- lease.c ---- */

/* Gives back all of the pool that can be by now. */
void rc_gpu_writer_reclaim(ringcast_gpu_writer *gpu);

/* ---- writer.c ---- */

int rc_gpu_writer_enter(ringcast_gpu_writer *gpu, struct rc_cuda_entry *entry);
/* As rc_cuda_enter_context. */
int rc_gpu_writer_enter_context(ringcast_gpu_writer *gpu, struct rc_cuda_entry *entry);
/* After a failed call, with its code. An unexpected failure of the driver (-EIO) makes the pool dead. Returns the code,
 * and leaves the error text. */
int rc_gpu_writer_failed(ringcast_gpu_writer *gpu, int code);

#endif
