/* SPDX-License-Identifier: Apache-2.0 */
/* The state that the files of the writer's side share. */
#ifndef RC_GPU_WRITER_H
#define RC_GPU_WRITER_H

#include "gpu/exported.h"
#include "gpu/pool.h"
#include "ringcast/gpu.h"
#include "shm/wait.h"

/* An importer that frames expect, in the writer's private memory. */
struct rc_expected {
  uint64_t owner; /* the importer's owner word; 0: no importer was expected here */
  uint64_t from;  /* frames from this position on expect the importer */
  uint32_t turn;  /* of the place: a reader that closes the pool and opens the pool again has the same owner word */
  bool dead;
};

struct ringcast_gpu_writer {
  ringcast_writer *writer;
  struct rc_device device;
  struct rc_exported *exported;     /* NULL: there is no pool */
  struct rc_exported *next;         /* to take its place: in the making, or made; NULL: none */
  struct rc_pool pool;              /* of no slots where there is none */
  uint64_t first_bytes, most_bytes; /* the size of the first pool, and of the largest; 0: no pool */
  uint32_t slots;                   /* of each pool */
  struct rc_holdoff holdoff;        /* of tries to make a pool */
  struct rc_expected *expected;
  uint32_t forks;
  bool is_lost;
  bool registered, tried_to_register; /* the ring */
  uint32_t look_at;                   /* the number of used slots from which on a lease reclaims slots */
  int64_t asked;                      /* the time of the last check which importers live ... */
  int64_t tidied;                     /* ... and of that which earlier pools importers have open */
  char why[200];                      /* there is no pool, or the pool is lost */
  uint64_t pool_frames, pool_bytes, inline_frames, full, syncs;
};

/* ---- importers.c ---- */

/* POOL, WAITING or REFUSED, by the answers of the attached readers; for the last two the reader and the reason. From
 * now on frames expect each reader that has opened the pool. */
enum ringcast_gpu_way rc_importers_look(ringcast_gpu_writer *gpu, uint32_t *reader, int32_t *pid, int32_t *reason);
/* Fills in way, reader and why; NO_READER too. */
void rc_importers_tell(ringcast_gpu_writer *gpu, struct ringcast_gpu_info *info);

/* Frees the slots that all importers have read. `all`: also checks whether importers that have not read have died. */
void rc_importers_reclaim(ringcast_gpu_writer *gpu, bool all);

/* ---- growth.c ---- */

extern uint64_t rc_gpu_first_pool; /* the size of the first pool where none is given: 32 MiB, but in tests */

/* At open, with options.pool_bytes. -EINVAL: this size, or the environment's, is invalid. */
int rc_gpu_writer_first_pool(ringcast_gpu_writer *gpu, uint64_t asked);
/* There was no room for `bytes`: the worker makes a larger pool, unless the pool is as large as a pool may be. */
void rc_gpu_writer_want_pool(ringcast_gpu_writer *gpu, uint64_t bytes);
/* If the worker has made the next pool, the writer goes on with it. */
void rc_gpu_writer_look_for_pool(ringcast_gpu_writer *gpu);
/* Makes the pool as large as a pool may be, at once: waits for copies. If the pool can't be made, the pool stays as it
 * is. -EAGAIN: a lease is open. */
int rc_gpu_writer_whole_pool(ringcast_gpu_writer *gpu);
void rc_gpu_writer_leave_pool(ringcast_gpu_writer *gpu);

/* ---- lease.c ---- */

/* Frees all slots that can be free by now. */
void rc_gpu_writer_reclaim(ringcast_gpu_writer *gpu);

/* ---- failure.c ---- */

int rc_gpu_writer_enter(ringcast_gpu_writer *gpu, struct rc_cuda_entry *entry);
/* As rc_cuda_enter_context. */
int rc_gpu_writer_enter_context(ringcast_gpu_writer *gpu, struct rc_cuda_entry *entry);
/* Called after a failed call, with the call's code. An unexpected failure of the driver (-EIO) makes the pool dead.
 * Returns the code, and leaves the error text. */
int rc_gpu_writer_failed(ringcast_gpu_writer *gpu, int code);
/* Whether the device has failed: asks the driver. What was enqueued may then never come. */
bool rc_gpu_writer_look_for_loss(ringcast_gpu_writer *gpu);

#endif
