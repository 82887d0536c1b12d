/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames that a reader holds.
 *
 * The writer overwrites no frame that has a lease or a pin, because the reader's cursor moves only
 * over frames with neither. rc_ring_next gives the caller a lease and rc_ring_release ends the
 * lease. A frame may have any number of pins besides. The lease has a bit of its own, so a second
 * release is refused.
 *
 * Held frames lie from the cursor to `next`, and each frame starts at the end of the previous
 * frame. Each frame except the newest has an entry in a queue. The newest frame's entry is
 * separate, so a reader that holds one frame at a time writes no entry to the queue. If the queue
 * is full, adjacent free entries are merged. At least every second entry then has a lease or a pin,
 * which bounds the queue's length.
 */
#ifndef RC_RING_HELD_H
#define RC_RING_HELD_H

#include <stdbool.h>
#include <stdint.h>

#define RC_MAX_LEASES 64u

/* Frames with a pin and no lease, for retention or a walk (ring/packed.h); beyond, rc_ring_next may
 * return -EBUSY. */
#define RC_MAX_PINNED 33u
#define RC_MAX_HELD   (2 * (RC_MAX_LEASES + RC_MAX_PINNED))

struct rc_held {
  uint64_t end;  /* the position after the frame; unused in the newest frame's entry */
  uint32_t pins; /* without the lease */
  bool leased;   /* in the newest frame's entry also true if no frame is held */
};

struct rc_ring_reader;

/* Whether the reader may hold one more frame: fewer than `leases` frames and loans (ring/packed.h)
 * have a lease, and the queue has room. */
bool rc_ring_may_hold(struct rc_ring_reader *reader);
/* Holds the frame from `next` to `end`, with a lease. After rc_ring_may_hold. */
void rc_ring_hold(struct rc_ring_reader *reader, uint64_t end);
/* Undoes the last rc_ring_next, which returned the frame at `position`. The frame must have no
 * pin. */
void rc_ring_unread(struct rc_ring_reader *reader, uint64_t position);
/* The same for a caller that may be wrong. False: the newest frame does not start there, or is not
 * held by a lease alone. */
bool rc_ring_unread_newest(struct rc_ring_reader *reader, uint64_t position);
/* Whether the frame at `position` has a lease. */
bool rc_ring_holds(struct rc_ring_reader *reader, uint64_t position);
/* Ends the lease. -EINVAL: no leased frame starts at `position`. -ESTALE: the reader is evicted,
 * and the frame may be overwritten. */
int rc_ring_release(struct rc_ring_reader *reader, uint64_t position);
/* Adds a pin to a leased frame. -EINVAL: no leased frame starts at `position`. */
int rc_ring_pin(struct rc_ring_reader *reader, uint64_t position);
/* Adds a pin to a frame with a pin. Such a frame must start at `position`. */
void rc_ring_pin_entry(struct rc_ring_reader *reader, uint64_t position);
/* Removes a pin. A frame with a pin must start at `position`. */
void rc_ring_unpin(struct rc_ring_reader *reader, uint64_t position);
bool rc_ring_queue_is_valid(const struct rc_ring_reader *reader);

#endif
