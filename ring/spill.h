/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spill memory: where frames lie that are too large for the ring. Which part of it is whose is kept here, in the
 * writer's private memory; the bytes themselves are neither read nor written. How it works is told atop spill.c.
 */
#ifndef RC_RING_SPILL_H
#define RC_RING_SPILL_H

#include "ring/ring.h"

#define RC_SPILL_REGIONS 256u                           /* the most in flight */
#define RC_SPILL_UNIT    4096u                          /* regions start and end on multiples */
#define RC_SPILL_PHASE   sizeof(struct rc_frame_header) /* a payload starts this far into its region, as in the ring */

/* A piece of it that is in use. */
struct rc_spill_region {
  uint64_t offset, bytes;
  uint64_t end; /* the position after its frame: who has passed that needs it no more */
};

struct rc_spill {
  uint64_t bytes;        /* of all of it; a multiple of RC_SPILL_UNIT */
  uint64_t floor;        /* as published: frames below it are gone */
  uint32_t first, count; /* the queue of the regions in flight, in the order of their frames */
  struct rc_spill_region regions[RC_SPILL_REGIONS]; /* the queue goes around */
  uint16_t order[RC_SPILL_REGIONS];                 /* the same, by offset: indices of regions */
  bool is_open;                                     /* the open reservation has a region; it is not in the queue */
  struct rc_spill_region open;
  uint64_t reserved; /* payload bytes of it */
};

/* The bytes of a region for a payload. UINT64_MAX: none is so large. */
static inline uint64_t rc_spill_room(uint64_t payload) {
  uint64_t most = UINT64_MAX - RC_SPILL_PHASE - RC_SPILL_UNIT;
  if (payload > most) return UINT64_MAX;
  return (payload + RC_SPILL_PHASE + RC_SPILL_UNIT - 1) & ~(uint64_t)(RC_SPILL_UNIT - 1);
}

/* The largest payload. */
static inline uint64_t rc_spill_max_frame(uint64_t spill_bytes) {
  return spill_bytes > RC_SPILL_PHASE ? spill_bytes - RC_SPILL_PHASE : 0;
}

void rc_spill_init(struct rc_spill *spill, uint64_t bytes);

/* Frees what all readers have passed, and tells observers. 0, or as rc_ring_lowest: then nothing is freed for now. */
int rc_spill_reclaim(struct rc_spill *spill, struct rc_ring_writer *ring);

/* Where a payload of `bytes` can lie. For a reservation that grows, is open here or not: where it lies, if it has room
 * to grow there; else rather where it can double again. What it holds may overlap that. Changes nothing: rc_spill_open
 * does. -EMSGSIZE: nowhere, ever. -EAGAIN: not now. */
int rc_spill_find(const struct rc_spill *spill, uint64_t bytes, bool grows, uint64_t *offset);

/* After -EAGAIN: no cursor may be below this for `bytes`. */
uint64_t rc_spill_wanted(const struct rc_spill *spill, uint64_t bytes);

/* The open reservation has `bytes` at `offset`, which rc_spill_find has just given, from here on. */
void rc_spill_open(struct rc_spill *spill, uint64_t offset, uint64_t bytes);

/* Commits the first `bytes` of it: trims the region and publishes the note by the ring's open reservation. -EINVAL. */
int rc_spill_commit(struct rc_spill *spill, struct rc_ring_writer *ring, uint64_t bytes, uint16_t kind);

void rc_spill_abort(struct rc_spill *spill);

bool rc_spill_is_valid(const struct rc_spill *spill);

#endif
