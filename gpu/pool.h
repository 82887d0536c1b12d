/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of the pool is whose: slots with their extents, in the writer's private memory. No driver is needed. */
#ifndef RC_GPU_POOL_H
#define RC_GPU_POOL_H

#include <stdbool.h>
#include <stdint.h>

enum rc_pool_state {
  RC_POOL_FREE = 0,
  RC_POOL_LEASED,  /* being filled */
  RC_POOL_SENT,    /* a frame names it */
  RC_POOL_DROPPED, /* filled, and no frame names it */
  RC_POOL_OWED,    /* as DROPPED, but its stream captured a graph: `ready` is still to be enqueued */
  RC_POOL_LOST,    /* nobody knows whether the device has done with it */
};

struct rc_pool_slot {
  uint32_t state;      /* enum rc_pool_state */
  uint64_t generation; /* of its words: the last that was given out */
  uint64_t base, bytes;
  uint64_t position; /* of the frame */
  void *stream;      /* that copies, or the caller's kernels, were enqueued on; of a lease with `copied` */
  bool copied;
  bool is_kept;      /* the caller has its address until the lease is dropped: ringcast_gpu_allocate */
  uint32_t frame;    /* 1 + the slot of the frame under way that refers to this extent, besides its own; 0: none */
  uint32_t attached; /* how many other slots have this one as their `frame` */
};

struct rc_pool {
  uint64_t bytes;
  uint32_t slot_count, used;
  uint64_t used_bytes;
  uint32_t *order; /* those in use, by their extents */
  struct rc_pool_slot *slots;
};

/* -ENOMEM. */
int rc_pool_init(struct rc_pool *pool, uint64_t bytes, uint32_t slots);
void rc_pool_free(struct rc_pool *pool);

/* A free slot with an extent of `bytes`, at a multiple of RC_GPU_ALIGN, of the next generation: its number. -EAGAIN: no
 * slot is free, or no gap is large enough. */
int rc_pool_take(struct rc_pool *pool, uint64_t bytes);
void rc_pool_give(struct rc_pool *pool, uint32_t slot);
/* The leased slot in whose extent these bytes of the pool lie. -ENOENT: none. */
int rc_pool_find(const struct rc_pool *pool, uint64_t at, uint64_t bytes);
/* The frame of slot `frame` refers to the extent of `slot`, until that frame's slot is given. False: another does. */
bool rc_pool_attach(struct rc_pool *pool, uint32_t slot, uint32_t frame);

bool rc_pool_is_valid(const struct rc_pool *pool);

#endif
