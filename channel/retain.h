/* SPDX-License-Identifier: Apache-2.0 */
/* Retained frames: frames in spill memory that become the reader's own memory without a copy.
 * retain.c explains how. */
#ifndef RC_CHANNEL_RETAIN_H
#define RC_CHANNEL_RETAIN_H

#include "channel/channel.h"

#define RC_MAX_RETAINED 32u /* frames, unshared ones included */

/* For the spill memory of `fd`. NULL: not available, and the reader copies every frame. */
struct rc_retainer *rc_retainer_open(int fd, uint64_t bytes);

/* Drops the reader's reference, once no frame has a pin (but in a forked child). Retained frames
 * stay. NULL is allowed. */
void rc_retainer_put(struct rc_retainer *retainer);

/* Counts a frame of spill memory that the reader got. */
void rc_retainer_count(struct rc_retainer *retainer, uint64_t bytes);

/* Releases frames that the caller has released, and unshares frames that are retained for too long
 * or block the writer: frames below the position `wanted`. UINT64_MAX: the reader leaves, and no
 * frame keeps its pin. */
void rc_retain_settle(ringcast_reader *reader, uint64_t wanted);

/* The reader has found no frame and waits on: the writer may wait for retained frames. */
static inline void rc_retain_check_wanted(ringcast_reader *reader) {
  if (rc_likely(reader->retained == 0)) return;
  uint64_t wanted =
      rc_load_relaxed(&reader->ring.view.control->wanted); /* K3 <- K1; relaxed: see retain.c */
  if (wanted > reader->ring.cursor && wanted != UINT64_MAX) rc_retain_settle(reader, wanted);
}

#endif
