/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a joining reader may start besides the tail: at the newest frame, or at the newest frame
 * with a tag. `newest` of the control segment is the position of the one. A table has the positions
 * of the others, and only a commit with a tag stores there. newest.c explains the table, and the
 * essay atop ring.c the safe start.
 */
#ifndef RC_RING_NEWEST_H
#define RC_RING_NEWEST_H

#include <stdbool.h>

#include "ring/layout.h"

struct rc_ring;

/* The frame that a joining reader starts with: the next or the newest frame; with a tag other than
 * 0, the newest frame with the tag. */
struct rc_start {
  bool newest;
  uint32_t tag;
};

/* The writer has committed a frame with `tag` at `position`. The newest frame of another tag may be
 * forgotten. */
void rc_newest_note(struct rc_control *control, uint32_t tag, uint64_t position);

/* For a reader between J2 and J4 that has loaded `tail`: sets *position to the frame that `start`
 * asks for, which is then safe to read. -EAGAIN: the ring has no frame, or the spill memory of the
 * frame was taken back; *position is the start of the next frame. -ENODATA: the same for a frame
 * with a tag or for one after it, or the frame may be overwritten. -EPROTO: invalid data. */
int rc_newest_find(const struct rc_ring *ring, struct rc_start start, uint64_t tail,
                   uint64_t *position);

#endif
