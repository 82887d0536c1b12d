/* SPDX-License-Identifier: Apache-2.0 */
/* What the slots say of the readers, for all who look: the writer, a tap, a reader that joins. */
#ifndef RC_CHANNEL_PEERS_H
#define RC_CHANNEL_PEERS_H

#include "ring/ring.h"
#include "ringcast/ringcast.h"
#include "shm/process.h"
#include "shm/wait.h"

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

#endif
