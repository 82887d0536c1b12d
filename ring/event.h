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
 * can't be had, E5 is a full fence: by the signaller's own choice (`fenced`), if its process can't be reached by
 * membarrier, or because a sleeper that can't call it has said so in `fences`. That word is stored once and for all, and
 * a signaller that has not seen it yet can cost that sleeper one time slice, once.
 *
 * ASLEEP is a flag and not a count, so a sleeper that is killed costs one wake-up for nobody and no more. A signaller
 * that is killed between E7 and the wake leaves the sleeper to its time slice: sleepers never sleep without one.
 */
#ifndef RC_RING_EVENT_H
#define RC_RING_EVENT_H

#include <stdbool.h>

#include "ring/layout.h"

#define RC_EVENT_ASLEEP 1u
#define RC_EVENT_EPOCH  2u /* the other bits count; they only have to differ from a moment ago */

/* Says that the caller is about to sleep; returns the value to sleep on. A heavy fence must follow (E2), then another
 * look, and only then sleep. */
static inline uint32_t rc_event_announce(struct rc_event *event) {
  return rc_or_acq_rel(&event->word, RC_EVENT_ASLEEP) | RC_EVENT_ASLEEP; /* E1 -> E6 */
}

/* Whether somebody is asleep, or about to be. What the sleeper wrote before E1 can be read if so. */
static inline bool rc_event_is_asleep(struct rc_event *event, bool fenced) {
  rc_fence_light(); /* E5 -> E2 */
  /* Relaxed: it comes true once, at some time, and the sleeper that needs it bears the delay. */
  if (fenced || rc_load_relaxed(&event->fences) != 0) rc_fence_full(); /* E5 -> E2 */
  return rc_load_acquire(&event->word) & RC_EVENT_ASLEEP; /* E6 <- E1 */
}

/* Begins the next epoch. True if somebody was asleep: then the caller must wake all that sleep on the word. False if
 * another signaller came first, who does it. */
static inline bool rc_event_advance(struct rc_event *event) {
  uint32_t value = rc_load_relaxed(&event->word); /* relaxed: only a first guess for the exchange */
  while (value & RC_EVENT_ASLEEP)
    if (rc_cas_acq_rel(&event->word, &value, (value + RC_EVENT_EPOCH) & ~RC_EVENT_ASLEEP)) return true; /* E7 */
  return false;
}

#endif
