/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tap reads a ring without a slot. The writer does not wait for a tap, so it may overwrite a
 * frame while the tap copies it.
 *
 *     writer                                 tap at position p
 *     L0  store limit                        T1  load-acquire commit[p], header, copy the payload
 *     L1  release fence                      T2  acquire fence
 *     L2  write bytes below this limit       T3  load limit; p + capacity >= limit: copy intact
 *
 * If T1 loaded any byte of L2, then L1 and T2 pair, T3 loads the limit of L0 or a later one, and
 * the tap discards the copy. The writer grants itself at most half a ring at a time, so a tap less
 * than half a ring behind is always safe.
 *
 * The tap copies the descriptor of a spilled frame in the same way. The payload is intact as long
 * as the frame lies not below the floor. The writer stores the floor, with a release fence as in
 * L1, before reusing or giving back the memory (S0, S1 in ring/spill.c):
 *
 *     T4  copy the payload     T5  acquire fence     T6  load floor; p >= floor: the copy is intact
 *
 * A payload may be lost while its frame is still in the ring, as soon as the readers have passed
 * it. The memory may even be given back, and a load from a mapping would allocate pages again. So
 * the caller provides a function that copies from SPILL, and the tap calls it for one piece between
 * two loads of the floor.
 */
#ifndef RC_RING_TAP_H
#define RC_RING_TAP_H

#include "ring/ring.h"

struct rc_ring_tap {
  struct rc_ring view;
  uint64_t next;       /* the start of the frame to copy next */
  uint64_t lost_bytes; /* bytes of the ring that were overwritten before the tap copied them */
  uint64_t gaps;       /* number of losses */
  uint64_t copied;     /* bytes, also of spilled frames, ... */
  uint64_t missed;     /* ... and bytes that were lost before */
  /* Copies a range of SPILL. 0, or a negative errno, which ends rc_tap_next. */
  int (*fetch)(void *context, uint64_t offset, void *to, uint64_t bytes);
  void *context;
};

/* Starts at the next frame that the writer commits. If the ring has SPILL, the caller sets `fetch`
 * and `context`. */
void rc_tap_init(struct rc_ring_tap *tap, const struct rc_ring *ring);

/* Copies the next frame to `buffer`. Skips and counts lost frames. -EAGAIN: no new frame.
 * -EMSGSIZE: `buffer` needs out->bytes; the frame is not skipped. -EPROTO: the writer wrote invalid
 * data. */
int rc_tap_next(struct rc_ring_tap *tap, void *buffer, uint64_t room, struct rc_ring_frame *out);

#endif
