/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames that a reader holds.
 *
 * A held frame has a lease, which the caller of rc_ring_next gets and gives back with rc_ring_release, and any number
 * of pins. The lease is a pin too, with a bit of its own: a second release is refused. The reader's cursor moves over
 * frames that have neither; so the writer overwrites no frame that has a lease or a pin.
 *
 * Held frames lie from the cursor to `next`, each starting where the one before it ends. Each frame but the newest has
 * an entry in a queue; the newest frame's entry stands apart, so that a reader that holds one frame at a time writes no
 * entry at all. Adjacent free entries are merged when the queue is full. At least every second entry then has a lease
 * or a pin, which bounds the queue's length.
 */
#ifndef RC_RING_HELD_H
#define RC_RING_HELD_H

#include <stdbool.h>
#include <stdint.h>

#define RC_MAX_LEASES 64u
#define RC_MAX_PINNED 32u /* frames with a pin and no lease: with more of them rc_ring_next may give -EBUSY */
#define RC_MAX_HELD   (2 * (RC_MAX_LEASES + RC_MAX_PINNED))

struct rc_held {
  uint64_t end;  /* the position after the frame; of the newest frame: not used */
  uint32_t pins; /* without the lease */
  bool leased;   /* of the newest frame also true if none is held */
};

struct rc_ring_reader;

/* Whether one more frame may be held: fewer than `leases` have a lease, and the queue has room. */
bool rc_ring_may_hold(struct rc_ring_reader *reader);
/* Holds the frame from `next` to `end`, with a lease. After rc_ring_may_hold. */
void rc_ring_hold(struct rc_ring_reader *reader, uint64_t end);
/* Undoes the last rc_ring_next, which gave the frame at `position`. That frame has no pin. */
void rc_ring_put_back(struct rc_ring_reader *reader, uint64_t position);
/* Whether the frame at `position` has a lease. */
bool rc_ring_holds(struct rc_ring_reader *reader, uint64_t position);
/* Ends the lease. -EINVAL: no frame with a lease starts there. -ESTALE: the reader was evicted, and the frame may be
 * overwritten. */
int rc_ring_release(struct rc_ring_reader *reader, uint64_t position);
/* Adds a pin to a frame with a lease, or removes one: then `position` must be that of a frame with a pin. -EINVAL: no
 * frame with a lease starts there. */
int rc_ring_pin(struct rc_ring_reader *reader, uint64_t position);
void rc_ring_unpin(struct rc_ring_reader *reader, uint64_t position);
bool rc_ring_queue_is_valid(const struct rc_ring_reader *reader);

#endif
