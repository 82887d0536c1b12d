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

/* Ends one pin: of a frame that the caller has released, or of one that is retained for too long,
 * or below the position `wanted`, and so unshared now. UINT64_MAX: the reader leaves, and no frame
 * keeps its pin. True: the caller unpins *out, and calls again; false: no frame is due. */
bool rc_retain_settle(ringcast_reader *reader, uint64_t wanted, struct ringcast_frame *out);

#endif
