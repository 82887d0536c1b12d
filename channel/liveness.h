/* SPDX-License-Identifier: Apache-2.0 */
/* The readers of a ring, as others see them: what the slots say (peers.c), and what the writer does
 * about the dead and the slow (liveness.c). */
#ifndef RC_CHANNEL_LIVENESS_H
#define RC_CHANNEL_LIVENESS_H

#include "ring/ring.h"
#include "ringcast/ringcast.h"
#include "shm/process.h"
#include "shm/wait.h"

/* ---- Peers, for all who look: the writer, a tap, a reader that joins ------------------------- */

/* rc_process_look for the process that an owner word names. */
static inline int rc_owner_look(uint64_t owner) {
  return rc_process_look((int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK);
}

/* For whom an error of the look is the same as a living process: those that free what only the dead
 * leave. */
static inline bool rc_owner_is_dead(uint64_t owner) {
  return rc_owner_look(owner) == RC_PROCESS_ENDED;
}

/* How long ago, by a time that another process wrote; 0 for a time to come: the process may be
 * hostile, or its clock that of another time namespace. */
static inline uint64_t rc_ns_since(int64_t time) {
  uint64_t now = (uint64_t)rc_now_ns(), then = (uint64_t)time;
  return then < now ? now - then : 0;
}

/* The writer has been waiting since `since` until no cursor is below `below`, and all readers have
 * taken the frames below `due`. */
struct rc_blocked {
  int64_t since;
  uint64_t below, due;
  uint64_t tail; /* the ring's: a reader can't have taken more */
};

/* Whether the reader in a slot is in the way. */
static inline bool rc_slot_blocks(const struct rc_ring *ring, uint32_t index,
                                  const struct rc_blocked *blocked) {
  const struct rc_slot *slot = &ring->control->slots[index];
  uint64_t cursor = rc_load_acquire(&slot->cursor); /* <- A1 */
  if (cursor < blocked->below) return true;
  uint64_t taken = rc_load_relaxed(&slot->taken); /* relaxed: only counted */
  bool has_taken = taken >= blocked->due && taken <= blocked->tail;
  return cursor < blocked->due && !has_taken;
}

/* Copies slot `index`; false: the slot is free. `blocked` NULL: the writer does not wait, or that
 * is unknown. */
bool rc_peer_read(const struct rc_ring *ring, uint32_t index, uint64_t tail,
                  const struct rc_blocked *blocked, struct ringcast_peer *out);

/* Fills up to `capacity` peers, and returns their number. */
int rc_peers_read(const struct rc_ring *ring, uint64_t tail, const struct rc_blocked *blocked,
                  struct ringcast_peer *peers, uint32_t capacity);

/* The number of active readers that are alive, or the error of rc_process_look. Asks the kernel
 * about each. */
int rc_peer_count(const struct rc_ring *ring);

/* "reader 3 'rank 2' (pid 4711, active, at position 65536, 1048576 bytes behind, blocking for
 * 12.3 s)" */
#define RC_DESCRIBED_MAX 240
void rc_peer_describe(const struct ringcast_peer *peer, char *out, size_t bytes);

/* ---- The writer's readers -------------------------------------------------------------------- */

/* As rc_peer_read, with the time for which the reader has blocked the writer. */
bool rc_writer_peer(const ringcast_writer *writer, uint32_t index, struct ringcast_peer *out);

/* How many readers were queued for ringcast_writer_check since the writer was made: also those that
 * a mere try to reserve has removed. */
uint64_t rc_writer_departures(const ringcast_writer *writer);

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

/* Checks the blocker, whose cursor is below `wanted` or which joins, and the other readers: who is
 * dead, and who has blocked too long. 0: a reader was removed, try again. -EAGAIN: wait on.
 * -EOWNERDEAD, -ETIMEDOUT: by the policy the wait fails; `blocker` is the cause. */
int rc_liveness_check_readers(ringcast_writer *writer, uint64_t wanted);

/* The blocker has written an invalid cursor. True: the blocker has left or is removed, try
 * again. */
bool rc_liveness_evict_invalid(ringcast_writer *writer);

/* The longest time, in nanoseconds, until the next rc_liveness_check_readers. */
int64_t rc_liveness_slice(ringcast_writer *writer);

#endif
