/* SPDX-License-Identifier: Apache-2.0 */
/* Dead and slow readers, as the writer sees them; see liveness.c. */
#ifndef RC_CHANNEL_LIVENESS_H
#define RC_CHANNEL_LIVENESS_H

#include <stdbool.h>

#include "ringcast/ringcast.h"
#include "shm/process.h"

/* As rc_peer_read, with the time for which the reader has blocked the writer. */
bool rc_writer_peer(const ringcast_writer *writer, uint32_t index, struct ringcast_peer *out);

/* Starts the clock, unless it runs: a reserve waits until no cursor is below `wanted`. */
void rc_liveness_begin(ringcast_writer *writer, uint64_t wanted);
/* Stops the clock: the reserve has succeeded, or was aborted. */
void rc_liveness_end(ringcast_writer *writer);

/* Frees the slots of readers that died while joining, and evicts a reader that is stuck in joining.
 * A reader that died after its eviction blocks no frame; the next reader that finds no free slot
 * frees that slot. */
void rc_liveness_reap_joining(ringcast_writer *writer);

/* The watch of the present blocker; NULL: the blocker has just left. */
struct rc_watch *rc_liveness_blocker(ringcast_writer *writer);

/* Checks the blocker, whose cursor is below `wanted` or which joins, and the other readers. 0: a
 * reader was removed, try again. -EAGAIN: wait on. -EOWNERDEAD, -ETIMEDOUT: by the policy the wait
 * fails; `blocker` is the cause. */
int rc_liveness_check_blockers(ringcast_writer *writer, uint64_t wanted);

/* The blocker has written an invalid cursor. True: the blocker has left or is removed, try
 * again. */
bool rc_liveness_evict_invalid(ringcast_writer *writer);

/* The longest time, in nanoseconds, until the next rc_liveness_check_blockers. */
int64_t rc_liveness_slice(ringcast_writer *writer);

#endif
