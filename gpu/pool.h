/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of the pool and the slots' extents, in the writer's private memory. Makes no call of the driver. */
#ifndef RC_GPU_POOL_H
#define RC_GPU_POOL_H

#include <stdbool.h>
#include <stdint.h>

enum rc_pool_state {
  RC_POOL_FREE = 0,
  RC_POOL_LEASED,  /* a lease, or kept memory, is open */
  RC_POOL_SENT,    /* a frame names the slot */
  RC_POOL_DROPPED, /* filled, and no frame names the slot */
  RC_POOL_OWED,    /* as DROPPED, but the stream captured a graph: `ready` must still be enqueued */
  RC_POOL_LOST,    /* the device may write to the extent at any time */
};

struct rc_pool_slot {
  uint32_t state;      /* enum rc_pool_state */
  uint64_t generation; /* of the last lease */
  uint64_t base, bytes;
  uint64_t position; /* of the frame */
  void *stream;      /* if `copied`: the stream of the copies, or of the caller's kernels */
  bool copied;
  bool is_kept;      /* the caller has the address until the drop: ringcast_gpu_allocate */
  uint32_t frame;    /* kept memory: 1 + the slot of the frame under way that refers to the extent; 0: no frame */
  uint32_t attached; /* the number of slots with this slot as `frame` */
};

struct rc_pool {
  uint64_t bytes;
  uint32_t slot_count, used;
  uint64_t used_bytes;
  struct rc_pool_slot *slots;
  uint32_t *order; /* the used slots, by extent; in the memory behind `slots` */
};

/* -ENOMEM. */
int rc_pool_init(struct rc_pool *pool, uint64_t bytes, uint32_t slots);
void rc_pool_free(struct rc_pool *pool);

/* Takes a free slot, with an extent of `bytes` at a multiple of RC_GPU_ALIGN, and the next generation. Returns the
 * slot's number. -EAGAIN: no slot is free, or no gap is large enough. */
int rc_pool_take(struct rc_pool *pool, uint64_t bytes);
void rc_pool_give(struct rc_pool *pool, uint32_t slot);
/* The leased slot with the extent of the bytes. -ENOENT: no such slot. */
int rc_pool_find(const struct rc_pool *pool, uint64_t at, uint64_t bytes);
/* The frame of slot `frame` refers to the extent of `slot`, until the frame's slot is given back. False: a different
 * frame refers to the extent. */
bool rc_pool_attach(struct rc_pool *pool, uint32_t slot, uint32_t frame);

bool rc_pool_is_valid(const struct rc_pool *pool);

#endif
