/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping one's distance. A look takes the line to the reader, and the writer must take it back before it can write
 * there. A reader of small frames is faster than the writer. So in a stream it catches up, and from then on each look
 * comes just before the line is written, which makes a frame cost both several times as much. It is enough to stay away
 * for a moment: then many frames are there, and are read while the writer is elsewhere.
 *
 * In a dialogue, or where frames come slowly, that would only make the reader late. So whether it pays is found by
 * trying, ever more seldom while it does not: so many pauses must have brought so many frames. Then it stays away for
 * twice as long the next time, else for half as long, or not at all. It counts after each STRETCH of pauses, and what
 * brought nothing is the last: the frames were a burst, or the ring is full.
 */
#ifndef RC_CHANNEL_BACKOFF_H
#define RC_CHANNEL_BACKOFF_H

#include "ring/fastpath.h"

#define RC_BACKOFF_STRETCH 32u    /* pauses (rc_relax: 12 to 45 ns); so many are a first try */
#define RC_BACKOFF_MOST    512u   /* pauses */
#define RC_BACKOFF_WORTH   8u     /* pauses in which a frame must have come */
#define RC_BACKOFF_OFTEN   128u   /* waits between two tries, ... */
#define RC_BACKOFF_SELDOM  65536u /* ... and at the most */

struct rc_backoff {
  uint32_t away;   /* pauses after a look that found nothing; 0: it looks on at once */
  uint32_t probe;  /* waits until it is next tried to stay away, ... */
  uint32_t seldom; /* ... and between two tries */
};

/* A wait begins. Whether it is one to stay away in. */
static inline bool rc_backoff_is_active(struct rc_backoff *backoff) {
  return backoff->away != 0 || backoff->probe-- == 0;
}

/* Stays away for a while: 0.4 to 1.5 us for a stretch. */
void rc_backoff_pause(struct rc_backoff *backoff, const struct rc_ring_reader *ring);

/* Who meant to stay away for so many pauses then found so many frames. */
void rc_backoff_learn(struct rc_backoff *backoff, uint32_t pauses, uint32_t frames);

#endif
