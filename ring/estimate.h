/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many bytes the next frame will take, told by the sizes of the last ones, so that one reservation does. Each tag
 * has a history of its own. Works on memory that the caller brings; no system call, no allocation.
 */
#ifndef RC_RING_ESTIMATE_H
#define RC_RING_ESTIMATE_H

#include <stdint.h>

#define RC_ESTIMATE_SETS    8u
#define RC_ESTIMATE_WAYS    8u    /* so 64 tags */
#define RC_ESTIMATE_EPOCH   32u   /* frames */
#define RC_ESTIMATE_DEFAULT 4096u /* bytes, of a tag that is not known */
#define RC_ESTIMATE_RANK    3u    /* the estimate goes by the third largest */

/* The largest sizes of some frames, in falling order. */
struct rc_estimate_peak {
  uint64_t sizes[RC_ESTIMATE_RANK];
};

struct rc_estimate {
  uint32_t tag;
  uint32_t seen;                       /* frames in all, up to an epoch of them; 0: the entry is unused */
  uint32_t count;                      /* frames of this epoch */
  struct rc_estimate_peak now, before; /* of this epoch so far, and of the one before it */
};

/* All zero to begin with. A set's entries stand in the order of their last frames, the newest first. */
struct rc_estimates {
  struct rc_estimate sets[RC_ESTIMATE_SETS][RC_ESTIMATE_WAYS];
};

/* Bytes to reserve for the next frame of `tag`, at most `most`. Changes nothing. */
uint64_t rc_estimate_of(const struct rc_estimates *estimates, uint32_t tag, uint64_t most);

/* A frame of `tag` took `bytes`. A new tag takes the place of the one in its set that was quiet for longest. */
void rc_estimate_learn(struct rc_estimates *estimates, uint32_t tag, uint64_t bytes);

#endif
