/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slot's life; each step is one exchange of the owner word:
 *
 *     FREE    -> JOINING   J1  a reader claims it
 *     JOINING -> ACTIVE    J4  the reader, after storing the cursor
 *     ACTIVE  -> FREE      the reader leaves
 *     ACTIVE  -> EVICTED   V1  the writer goes on without a living reader
 *     JOINING -> EVICTED   V1  the same: the reader was stopped in the middle of joining
 *     EVICTED -> FREE      the evicted reader, when it finds out or leaves;
 *                          after its death, a reader without a slot
 *     others  -> FREE      the writer, for a dead process
 *
 * Evicting. A living process may store to the slot at any moment. So an evicted reader keeps the
 * slot, which no process reads any more, until it gives the slot up or is dead: a late store of the
 * cursor hits nothing. The evicted reader may be in the middle of reading, and the writer can't
 * wait for it to stop; the reader finds out alone:
 *
 *     writer                                          reader
 *     V1  owner: ACTIVE -> EVICTED                    R1  load-acquire commit
 *     L0  the next grant: store limit                 R2  load-acquire meta
 *     L1  release fence                               R3  load owner: not its own? then -ESTALE
 *     W1  stores over the evicted reader's frame          ... reads the payload in place
 *                                                     A0  acquire fence, load owner: not its own?
 *                                                         then -ESTALE
 *
 * L1 and A0 pair (as fences): if any of the reader's loads took a value from W1, then the load
 * after A0 finds V1's word. So the bytes read were whole if the load of the owner word after A0
 * finds the word unchanged. R3 does the same for the header alone, so the reader believes no
 * overwritten length. For spill memory S1 stands in L1's place. No load of the owner word is needed
 * before A1: the writer does not read the cursor of an evicted slot.
 */
#include "ring/ring.h"

int rc_slot_claim(const struct rc_ring *ring, uint32_t pid, uint64_t start, uint32_t *slot,
                  uint64_t *owner) {
  for (uint32_t i = 0; i < ring->slots; i++) {
    _Atomic uint64_t *word = &ring->control->slots[i].owner;
    uint64_t found = rc_load_relaxed(word); /* relaxed: only a hint, the exchange decides */
    while (rc_owner_state(found) == RC_SLOT_FREE) {
      uint64_t claimed = rc_owner_make(pid, start, rc_owner_turn(found) + 1, RC_SLOT_JOINING);
      if (rc_cas_acq_rel(word, &found, claimed)) { /* J1 */
        RC_POINT(J1_DONE);
        *slot = i;
        *owner = claimed;
        return 0;
      }
    }
  }
  return -EUSERS;
}

/* The position after the frame committed at `tail`, or `tail` without such a frame. */
static uint64_t after_frame_at(const struct rc_ring *ring, uint64_t tail) {
  const struct rc_frame_header *frame = rc_frame_at(ring, tail);
  uint64_t end = rc_load_acquire(&frame->commit); /* <- W2 */
  if (end == 0) return tail;
  bool valid = end - tail == rc_frame_footprint(rc_load_relaxed(&frame->bytes));
  return valid ? end : tail;
}

/* Sets *start to where a joining reader starts. */
static int find_start(const struct rc_ring *ring, struct rc_start from, uint64_t *start) {
  uint64_t tail = rc_load_acquire(&ring->control->tail); /* J3 <- W3 */
  if (tail % RC_FRAME_ALIGN != 0 || tail > RC_MAX_POSITION) return -EPROTO;
  RC_POINT(J3_DONE);
  *start = after_frame_at(ring, tail);
  if (!from.newest) return 0;
  int result = rc_newest_find(ring, from, tail, start);
  return result == -EAGAIN ? 0 : result; /* no such frame: *start is the next one */
}

int rc_slot_activate(const struct rc_ring *ring, uint32_t slot, uint64_t owner,
                     struct rc_start from, struct rc_ring_reader *out) {
  struct rc_slot *own = &ring->control->slots[slot];
  uint64_t active = rc_owner_as(owner, RC_SLOT_ACTIVE), start;
  rc_fence_full(); /* J2 -> G0 */
  RC_POINT(J2_DONE);
  int result = find_start(ring, from, &start);
  if (result != 0) {
    rc_slot_free(ring, slot, active);
    return result;
  }
  /* J4 publishes both to a writer that finds ACTIVE. Release, for a writer that read the last
   * owner's word at G1 and reads this cursor at G2: that owner's loads of frames come before the
   * writer's stores. J2 orders the same on each CPU, but ThreadSanitizer does not know fences. */
  rc_store_release(&own->cursor, start); /* -> G2 */
  rc_store_relaxed(&own->taken, start);  /* only counted; the last owner's may be above */
  RC_POINT(CURSOR_STANDS);
  uint64_t found = owner;
  if (!rc_cas_strong_acq_rel(&own->owner, &found, active)) { /* J4 -> G1 */
    RC_POINT(CLAIM_LOST);
    rc_slot_free(ring, slot, active);
    RC_POINT(CLAIM_GIVEN_UP);
    return -EAGAIN;
  }
  RC_POINT(J4_DONE);
  *out = (struct rc_ring_reader){.view = *ring,
                                 .own = own,
                                 .owner = active,
                                 .cursor = start,
                                 .next = start,
                                 .max_frame = rc_ring_max_frame(ring->capacity),
                                 .slot = slot,
                                 .leases = 1,
                                 .held_last = {.leased = true}};
  return 0;
}

bool rc_slot_reap(const struct rc_ring *ring, uint32_t slot, uint64_t owner) {
  uint64_t free = rc_owner_make(0, 0, rc_owner_turn(owner), RC_SLOT_FREE);
  /* Release: the reader's loads come before the writer's next stores there. Pairs with G1. */
  return rc_cas_strong_acq_rel(&ring->control->slots[slot].owner, &owner, free);
}

/* The slot may be in any state; meanwhile other processes can only evict the reader. */
void rc_slot_free(const struct rc_ring *ring, uint32_t slot, uint64_t owner) {
  if (rc_slot_reap(ring, slot, owner) ||
      rc_slot_reap(ring, slot, rc_owner_as(owner, RC_SLOT_JOINING)))
    return;
  rc_slot_reap(ring, slot, rc_owner_as(owner, RC_SLOT_EVICTED));
}

bool rc_slot_evict(const struct rc_ring *ring, uint32_t slot, uint64_t owner) {
  return rc_owner_evict(&ring->control->slots[slot].owner, owner);
}

static bool is_reader(uint64_t owner) {
  return rc_owner_state(owner) == RC_SLOT_JOINING || rc_owner_state(owner) == RC_SLOT_ACTIVE;
}

uint32_t rc_ring_participants(const struct rc_ring *ring) {
  _Atomic uint32_t *shown = &ring->control->cpus.participants;
  uint32_t participants = 1;
  /* Relaxed: advice for waiters, counted anew now and then. */
  for (uint32_t i = 0; i < ring->slots; i++)
    participants += is_reader(rc_load_relaxed(&ring->control->slots[i].owner));
  if (rc_load_relaxed(shown) != participants) rc_store_relaxed(shown, participants);
  return participants;
}
