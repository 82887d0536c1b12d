/* SPDX-License-Identifier: Apache-2.0 */
/* The reader: what the Python extension uses besides the API, and what reader.c takes from
 * retain.c. */
#ifndef RC_CHANNEL_READER_H
#define RC_CHANNEL_READER_H

#include <stdbool.h>

#include "ringcast/ringcast.h"

/* ---- For the Python extension, which has the library linked in; not exported ----------------- */

/* `warm` is called in ringcast_reader_next by the calling thread, shortly before the next message
 * of a regular cadence is due, if the wait spins then and a quarter of its budget is enough for the
 * call. Between two messages the caches forget: `warm` runs, on other data, the code that the
 * message will need. It must not call functions of this reader. */
void rc_reader_warm_by(ringcast_reader *reader, void (*warm)(void *context), void *context);

/* ---- Retained frames: memory of the reader's own, without a copy (retain.c) ------------------ */

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
bool rc_retain_end(ringcast_reader *reader, uint64_t wanted, struct ringcast_frame *out);

#endif
