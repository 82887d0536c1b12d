/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spill memory: the payloads of frames that are too large for the ring. The writer keeps the list
 * of regions in private memory, so no peer can change it. The functions here neither read nor write
 * the payloads. The essay atop spill.c gives the algorithm.
 */
#ifndef RC_RING_SPILL_H
#define RC_RING_SPILL_H

#include "ring/ring.h"

#define RC_SPILL_REGIONS 256u  /* the most in flight */
#define RC_SPILL_UNIT    4096u /* regions start and end on multiples */
/* The payload's offset in the region, as in the ring. */
#define RC_SPILL_PHASE sizeof(struct rc_frame_header)

/* A part of SPILL in use. */
struct rc_spill_region {
  uint64_t offset, bytes;
  /* The position after the frame: a reader whose cursor is not below needs the region no more. */
  uint64_t end;
};

struct rc_spill {
  uint64_t bytes;        /* of SPILL; a multiple of RC_SPILL_UNIT */
  uint64_t floor;        /* as published: regions of frames below may be free */
  uint32_t first, count; /* the queue of the regions in flight, in the order of the frames */
  struct rc_spill_region regions[RC_SPILL_REGIONS]; /* the queue, circular */
  uint16_t order[RC_SPILL_REGIONS];                 /* indices of the same regions, by offset */
  bool is_open; /* `open` is the open reservation's region, not in the queue */
  struct rc_spill_region open;
  uint64_t reserved; /* payload bytes of the open reservation */
};

/* The bytes of a region for a payload. UINT64_MAX: the payload is too large for any region. */
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

/* Frees the regions that all cursors have passed, and publishes the floor for taps. After an error
 * of rc_ring_lowest nothing is freed. */
int rc_spill_reclaim(struct rc_spill *spill, struct rc_ring_writer *ring);

/* Finds an offset for a payload of `bytes`, and changes nothing: rc_spill_open takes the region.
 *
 * An open region stays where there is room for `bytes`. Otherwise, and if the reservation `grows`,
 * a gap in which it can double once more is preferred. The new region may overlap the open one.
 * -EMSGSIZE: `bytes` never fit. -EAGAIN: not enough room now. */
int rc_spill_find(const struct rc_spill *spill, uint64_t bytes, bool grows, uint64_t *offset);

/* After -EAGAIN: the position that all cursors must reach before `bytes` fit. */
uint64_t rc_spill_wanted(const struct rc_spill *spill, uint64_t bytes);

/* Gives the open reservation `bytes` at `offset`, the result of rc_spill_find. */
void rc_spill_open(struct rc_spill *spill, uint64_t offset, uint64_t bytes);

/* Commits the first `bytes` of the reservation: trims the region and publishes the descriptor in
 * the ring's open reservation. -EINVAL. */
int rc_spill_commit(struct rc_spill *spill, struct rc_ring_writer *ring, uint64_t bytes,
                    uint16_t kind);

void rc_spill_abort(struct rc_spill *spill);

bool rc_spill_is_valid(const struct rc_spill *spill);

#endif
