/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event: a word that one side sleeps on until the other has done something. The sleeping itself is not here (the
 * kernel's futex compares the word and sleeps in one step); this is the part that must not lose a wake-up.
 *
 *   sleeper                                  signaller
 *   E1 word |= ASLEEP                        E4 do the thing (store a commit, a cursor, ...)
 *   E2 heavy fence                           E5 light fence
 *   E3 look again: done? then go on          E6 load word; not ASLEEP? then nothing to do
 *      else sleep while word == E1's value   E7 word = next epoch, ASLEEP cleared; wake all
 *
 * E2 and E5 pair: either E3 sees what E4 did, or E6 sees ASLEEP. In the second case the word changes (E7) before the
 * wake, so a sleeper that has not fallen asleep yet no longer finds E1's value and does not.
 *
 * Signalling is frequent and sleeping is not, so the price is moved to the sleeper: E5 only keeps the compiler from
 * reordering, and E2 makes every CPU on which a signaller runs pass a full barrier (Linux's membarrier, see
 * shm/fence.h). Then E6 either comes after that barrier and sees E1; or E4 came before it, and E3 sees E4. Where that
 * can't be had, E5 is a full fence, for all signallers of the event: FENCED says so, in the same word, so that a look
 * at one word is all that a signal costs. A signaller that membarrier can't reach sets it before its first signal, a
 * sleeper that can't call it with E1. It stays set; a signaller that has not seen it yet can cost that sleeper one time
 * slice, once. A sleeper that can call it and would rather not (its interrupts cost more than fences where many
 * processes share few CPUs) sets FENCED too, and calls it once more after that: who loads the word later finds FENCED.
 * So from its next sleep on a full fence is all of E2. Each such sleeper calls it once for itself: to find FENCED set
 * is not enough, as who set it may not have called it yet.
 *
 * ASLEEP is a flag and not a count, so a sleeper that is killed costs one wake-up for nobody and no more. A signaller
 * that is killed between E7 and the wake leaves the sleepers asleep, and signallers after it find no ASLEEP. So a
 * sleeper sleeps in time slices, or watches the one process that signals the event. Who wants others to look, and has
 * nothing to signal (one that cancels a wait), nudges: ASLEEP stays, and if it is killed before its wake the next
 * signal wakes.
 */
#ifndef RC_RING_EVENT_H
#define RC_RING_EVENT_H

#include <stdbool.h>

#include "ring/layout.h"

#define RC_EVENT_ASLEEP 1u
#define RC_EVENT_FENCED 2u
#define RC_EVENT_EPOCH  4u /* the other bits count; they only have to differ from a moment ago */

/* Says that the caller is about to sleep, and, once and for all, whether signallers must fence because it can't;
 * returns the value to sleep on. A heavy fence must follow (E2), then another look, and only then sleep. */
static inline uint32_t rc_event_announce(struct rc_event *event, bool fenced) {
  uint32_t bits = RC_EVENT_ASLEEP | (fenced ? RC_EVENT_FENCED : 0);
  return rc_or_acq_rel(&event->word, bits) | bits; /* E1 -> E6 */
}

/* A signaller that membarrier can't reach, before its first signal. */
static inline void rc_event_fence(struct rc_event *event) { rc_or_acq_rel(&event->word, RC_EVENT_FENCED); }

/* Whether somebody is asleep, or about to be. What the sleeper wrote before E1 can be read if so. */
static inline bool rc_event_is_asleep(struct rc_event *event) {
  rc_fence_light(); /* E5 -> E2 */
  uint32_t word = rc_load_acquire(&event->word); /* E6 <- E1 */
  if ((word & (RC_EVENT_ASLEEP | RC_EVENT_FENCED)) == 0) return false;
  if (word & RC_EVENT_FENCED) {
    rc_fence_full(); /* E5 -> E2 */
    word = rc_load_acquire(&event->word); /* E6 <- E1 */
  }
  return word & RC_EVENT_ASLEEP;
}

/* Begins the next epoch. True if somebody was asleep: then the caller must wake all that sleep on the word. False if
 * another signaller came first, who does it. */
static inline bool rc_event_advance(struct rc_event *event) {
  uint32_t value = rc_load_relaxed(&event->word); /* relaxed: only a first guess for the exchange */
  while (value & RC_EVENT_ASLEEP)
    if (rc_cas_acq_rel(&event->word, &value, (value + RC_EVENT_EPOCH) & ~RC_EVENT_ASLEEP)) return true; /* E7 */
  return false;
}

/* Begins the next epoch and leaves the announcement as it is. All that sleep on the word must be woken; they look, and
 * sleep again. Pairs with E1, as either finds the other's: what the caller stored before is seen by the look at E3, or
 * the word is no longer E1's. */
static inline void rc_event_nudge(struct rc_event *event) { rc_add_acq_rel(&event->word, RC_EVENT_EPOCH); }

#endif
