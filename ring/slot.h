/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: each reader's place in the control segment, and the slot's owner. slot.c begins with a
 * slot's life. */
#ifndef RC_RING_SLOT_H
#define RC_RING_SLOT_H

#include <stdbool.h>

#include "ring/layout.h"
#include "ring/newest.h"

struct rc_ring;
struct rc_ring_reader;

enum rc_slot_state {
  RC_SLOT_FREE = 0,
  RC_SLOT_JOINING = 1,
  RC_SLOT_ACTIVE = 2,
  RC_SLOT_EVICTED = 3
};

/* The slot's owner in one word, so a slot changes hands in one step: pid (22 bits, the most that
 * Linux gives out), the low bits of the process's start time (30, in clock ticks: four months),
 * turn (10), state (2). The turn counts the claims of the slot, and a free slot keeps the turn: so
 * a word comes back only when the process that stored it makes the 1,024th claim of the slot after
 * it. */
#define RC_PID_BITS   22
#define RC_START_MASK (((uint64_t)1 << 30) - 1)
#define RC_TURN_MASK  (((uint64_t)1 << 10) - 1)

static inline uint64_t rc_owner_make(uint32_t pid, uint64_t start, uint64_t turn,
                                     enum rc_slot_state state) {
  return (uint64_t)pid << (64 - RC_PID_BITS) | (start & RC_START_MASK) << 12 |
         (turn & RC_TURN_MASK) << 2 | state;
}
static inline uint32_t rc_owner_pid(uint64_t owner) {
  return (uint32_t)(owner >> (64 - RC_PID_BITS));
}
static inline uint64_t rc_owner_start(uint64_t owner) { return owner >> 12 & RC_START_MASK; }
static inline uint64_t rc_owner_turn(uint64_t owner) { return owner >> 2 & RC_TURN_MASK; }
static inline enum rc_slot_state rc_owner_state(uint64_t owner) {
  return (enum rc_slot_state)(owner & 3);
}
static inline uint64_t rc_owner_as(uint64_t owner, enum rc_slot_state state) {
  return (owner & ~(uint64_t)3) | state;
}

/* The reader's side. Nothing between claim and activate may wait: the writer can't go on in
 * between. -EUSERS: no slot is free. */
int rc_slot_claim(const struct rc_ring *ring, uint32_t pid, uint64_t start, uint32_t *slot,
                  uint64_t *owner);
/* `owner` is the word of the claim. -EAGAIN: the writer has taken the slot back; claim again.
 * -EPROTO: the ring's tail is invalid; -ENODATA: there is no frame with the tag to start at, see
 * ring/newest.h; the slot is free again. */
int rc_slot_activate(const struct rc_ring *ring, uint32_t slot, uint64_t owner,
                     struct rc_start from, struct rc_ring_reader *out);
/* `owner` is the word as activated. Does nothing if the slot has another owner. */
void rc_slot_free(const struct rc_ring *ring, uint32_t slot, uint64_t owner);

/* The side of other processes; false: the slot has changed meanwhile. Reap: `owner` is dead, in any
 * state. Evict: `owner` may live. */
bool rc_slot_reap(const struct rc_ring *ring, uint32_t slot, uint64_t owner);
bool rc_slot_evict(const struct rc_ring *ring, uint32_t slot, uint64_t owner);
static inline bool rc_owner_evict(_Atomic uint64_t *word, uint64_t owner) {
  return rc_cas_strong_acq_rel(word, &owner,
                               rc_owner_as(owner, RC_SLOT_EVICTED)); /* V1 -> R3, A0 */
}

/* Counts the writer and the readers, and stores the count. */
uint32_t rc_ring_participants(const struct rc_ring *ring);

#endif
