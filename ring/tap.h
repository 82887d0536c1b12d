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
 *
 * Of a spilled frame the note is copied in this way. Its payload is safe as long as it lies not below the floor, which
 * the writer stores, with the same fences, before it uses the memory again or gives it back (S0, S1 in ring/spill.c):
 * T4 copy the payload, T5 acquire fence, T6 load floor; p >= floor: whole. That may be lost while the ring is not: as
 * soon as the readers have passed it. The memory may even be gone, and reading a mapping of it would bring it back; so
 * the caller brings a function that copies from it, and it is asked for no more than a piece between two looks.
 */
#ifndef RC_RING_TAP_H
#define RC_RING_TAP_H

#include "ring/ring.h"

struct rc_ring_tap {
  struct rc_ring ring;
  uint64_t next;       /* the frame to copy next starts here */
  uint64_t lost_bytes; /* of the ring, overwritten before they were copied */
  uint64_t gaps;       /* times that it lost any */
  /* Copies from SPILL, of which the range is part. 0 or a negative errno, which ends rc_tap_next. */
  int (*fetch)(void *context, uint64_t offset, void *to, uint64_t bytes);
  void *context;
};

/* Begins at the next frame to be committed. `fetch` and `context` are left to the caller, where there is a SPILL. */
void rc_tap_init(struct rc_ring_tap *tap, const struct rc_ring *ring);

/* Copies the next frame to `buffer`. Skips what was lost and counts it. -EAGAIN: nothing new. -EMSGSIZE: out->bytes are
 * needed; nothing is skipped. -EPROTO: the writer has written what it must not. */
int rc_tap_next(struct rc_ring_tap *tap, void *buffer, uint64_t room, struct rc_ring_frame *out);

#endif
