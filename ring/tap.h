/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tap reads a ring without a slot: nobody waits for it, so what it reads may be overwritten meanwhile.
 *
 *     writer                                          tap at position p
 *     L0  store limit                                 T1  load-acquire commit[p], header, copy the payload
 *     L1  release fence                               T2  acquire fence
 *     L2  write bytes below that limit                T3  load limit; p + capacity >= limit: the copy is whole
 *
 * If T1 saw any byte of L2, then L1 and T2 pair and T3 sees that limit or a later one, which condemns the copy. The
 * writer grants itself at most half a ring at a time, so a tap that is less than half a ring behind is always safe.
 */
#ifndef RC_RING_TAP_H
#define RC_RING_TAP_H

#include "ring/ring.h"

struct rc_ring_tap {
  struct rc_ring ring;
  uint64_t next;       /* the frame to copy next starts here */
  uint64_t lost_bytes; /* of the ring, overwritten before they were copied */
  uint64_t gaps;       /* times that it lost any */
};

/* Begins at the next frame to be committed. */
void rc_tap_init(struct rc_ring_tap *tap, const struct rc_ring *ring);

/* Copies the next frame to `buffer`. Skips what was lost and counts it. -EAGAIN: nothing new. -EMSGSIZE: out->bytes are
 * needed; nothing is skipped. -EPROTO: the writer has written what it must not. */
int rc_tap_next(struct rc_ring_tap *tap, void *buffer, uint64_t room, struct rc_ring_frame *out);

#endif
