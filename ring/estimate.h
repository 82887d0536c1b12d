/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimates the size of the next frame from the sizes of the last frames, so that one reservation
 * is enough. Each tag has its own history. The functions work on the caller's memory, make no
 * system call and allocate nothing.
 */
#ifndef RC_RING_ESTIMATE_H
#define RC_RING_ESTIMATE_H

#include <stdint.h>

#define RC_ESTIMATE_SETS    8u
#define RC_ESTIMATE_WAYS    8u    /* so 64 tags */
#define RC_ESTIMATE_EPOCH   32u   /* frames */
#define RC_ESTIMATE_DEFAULT 4096u /* bytes, for an unknown tag */
#define RC_ESTIMATE_RANK    3u    /* the estimate follows the third largest size */

/* The largest sizes of some frames, in falling order. */
struct rc_estimate_peak {
  uint64_t sizes[RC_ESTIMATE_RANK];
};

/* The history of one tag, or of messages without tags. Initially zero. */
struct rc_estimate {
  uint32_t tag;
  uint32_t seen;  /* frames in all, at most RC_ESTIMATE_EPOCH; 0: the entry is unused */
  uint32_t count; /* frames of this epoch */
  struct rc_estimate_peak now, before; /* of this epoch so far, and of the previous epoch */
};

/* Initially zero. The entries of a set stand in the order of their last frames, the newest
 * first. */
struct rc_estimates {
  struct rc_estimate sets[RC_ESTIMATE_SETS][RC_ESTIMATE_WAYS];
};

/* The bytes to reserve for the next frame of one history; RC_ESTIMATE_DEFAULT for an empty history.
 * Changes nothing. */
uint64_t rc_estimate_next(const struct rc_estimate *estimate);

/* Records that a frame took `bytes`. */
void rc_estimate_add(struct rc_estimate *estimate, uint64_t bytes);

/* The bytes to reserve for the next frame of `tag`, at most `most`. Changes nothing. */
uint64_t rc_estimate_of(const struct rc_estimates *estimates, uint32_t tag, uint64_t most);

/* Records that a frame of `tag` took `bytes`. A new tag replaces the least recently used tag of its
 * set. */
void rc_estimate_learn(struct rc_estimates *estimates, uint32_t tag, uint64_t bytes);

#endif
