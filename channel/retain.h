/* SPDX-License-Identifier: Apache-2.0 */
/* A reader's frames of spill memory that stay where they are, as memory of its own: how that works is told atop
 * retain.c. */
#ifndef RC_CHANNEL_RETAIN_H
#define RC_CHANNEL_RETAIN_H

#include "channel/channel.h"

#define RC_MAX_RETAINED 32u /* frames, those whose pages are private included */

/* Of the spill memory that is open in `fd`. NULL: it can't be had, and everything is copied. */
struct rc_retainer *rc_retainer_open(int fd, uint64_t bytes);

/* What it has kept stays as it is: the reader has called rc_retain_end, or is another process's. NULL is allowed. */
void rc_retainer_put(struct rc_retainer *retainer);

/* A frame of spill memory has come. */
void rc_retainer_count(struct rc_retainer *retainer, uint64_t bytes);

/* Gives back what was dropped, and what the ring should not have to wait for any longer, or, below the position
 * `wanted`, can't. */
void rc_retain_settle(ringcast_reader *reader, uint64_t wanted);

/* Gives back all. */
void rc_retain_end(ringcast_reader *reader);

/* The reader has found nothing and goes on waiting: perhaps the writer waits for what is kept. */
static inline void rc_retain_heed(ringcast_reader *reader) {
  if (rc_likely(reader->retained == 0)) return;
  uint64_t wanted = rc_load_relaxed(&reader->ring.ring.control->wanted); /* K3 <- K1; relaxed: see retain.c */
  if (wanted > reader->ring.cursor && wanted != UINT64_MAX) rc_retain_settle(reader, wanted);
}

#endif
