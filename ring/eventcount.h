/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event: a word that one side sleeps on until the other side has done something. The kernel's
 * futex does the sleeping: the futex compares the word and sleeps in one step. The functions below
 * lose no wake-up. Beside the word, an epoch, stands a count of sleepers; word and count change
 * together, as one state of 64 bits.
 *
 *   sleeper                                  signaller
 *   E1 count + 1                             E4 do the thing (store a commit, a cursor, ...)
 *   E2 full fence                            E5 full fence
 *   E3 look again: done? then go on          E6 load state; count 0? then nothing to do
 *      else sleep while word == E1's epoch   E7 next epoch, count 0; wake all
 *   E8 still E1's epoch? then count - 1
 *
 * E2 and E5 pair: either E3 sees what E4 did, or E6 sees the count. In the second case the word
 * changes (E7) before the wake, so a sleeper that has not fallen asleep yet no longer finds E1's
 * epoch and does not sleep. E8 takes the announcement back when a wait has ended without a signal:
 * a sleeper that goes on to spin costs signallers no system call. In a later epoch the count
 * belongs to other sleepers, and E8 changes nothing.
 *
 * E5 costs a signaller 1 to 5 ns. On a reader's fast path that is a visible part of a message's
 * latency, so a reader that moves its cursor leaves E5 out, and the one sleeper, the writer, makes
 * up for the missing fence:
 *
 *   E9 after E3, sleep for RC_SETTLE_NS at most, look again, and only then sleep longer,
 *      all under one announcement
 *
 * Without E5 the signaller may load the state (E6) while E4 still stands in the store buffer of its
 * CPU. If E6 comes after E1 in the state's order, E6 finds the count. If E6 comes before E1, then
 * E4 is in memory at E9: a store buffer drains within microseconds, and at the latest when the CPU
 * is interrupted. The announcement must stand from E1 to the end of the last sleep; with E8 and
 * another E1 between two sleeps, an E6 between these finds no count, and E9 has come too early for
 * its E4. No standard bounds the time that a store takes. If RC_SETTLE_NS is ever too short, the
 * sleeper loses one slice and no message. Another condition to wait for, published under a standing
 * announcement, settles anew.
 *
 * membarrier could take the fence off every signaller, but then each sleep interrupts every CPU
 * that runs a process of the ring, also that of the signaller that is waking readers. Where a
 * message came every few milliseconds, this doubled its cost.
 *
 * A sleeper that is killed leaves the count too high until the next signal: one wake-up too many
 * and no more. A signaller that is killed between E7 and the wake leaves the sleepers asleep, and
 * signallers after it find no count. So a sleeper sleeps in time slices, or watches the one process
 * that signals the event. A party that wants the sleepers to look, and has nothing to signal (one
 * that cancels a wait), nudges: the count stays, and if that party is killed before its wake the
 * next signal wakes.
 */
#ifndef RC_RING_EVENTCOUNT_H
#define RC_RING_EVENTCOUNT_H

#include <stdbool.h>

#include "ring/layout.h"
#include "ring/point.h"

#define RC_EVENTCOUNT_SLEEPER ((uint64_t)1 << 32)

/* E1 alone, for rc_eventcount_prepare and tests. */
static inline uint32_t rc_eventcount_announce(struct rc_eventcount *event) {
  return (uint32_t)rc_add_acq_rel(&event->state, RC_EVENTCOUNT_SLEEPER); /* E1 -> E6 */
}

/* Says that the caller is about to sleep; returns the word to sleep on. Another look must follow,
 * and only then the sleep. */
static inline uint32_t rc_eventcount_prepare(struct rc_eventcount *event) {
  uint32_t word = rc_eventcount_announce(event);
  RC_POINT(E1_DONE);
  rc_fence_full(); /* E2 -> E5 */
  RC_POINT(E2_DONE);
  return word;
}

/* Takes back what rc_eventcount_prepare has said when it returned `word`, unless a signal has. */
static inline void rc_eventcount_withdraw(struct rc_eventcount *event, uint32_t word) {
  uint64_t state = rc_load_relaxed(&event->state); /* relaxed: a guess for the exchange */
  while ((uint32_t)state == word && state >= RC_EVENTCOUNT_SLEEPER)
    if (rc_cas_acq_rel(&event->state, &state, state - RC_EVENTCOUNT_SLEEPER)) return; /* E8 */
}

/* Whether a party is asleep, or about to be. What the sleeper wrote before E1 can be read if so. */
static inline bool rc_eventcount_is_asleep(struct rc_eventcount *event) {
  rc_fence_full();                                                /* E5 -> E2 */
  return rc_load_acquire(&event->state) >= RC_EVENTCOUNT_SLEEPER; /* E6 <- E1 */
}

/* As rc_eventcount_is_asleep without E5, for a sleeper that settles (E9). The compiler keeps the
 * order; the CPU need not. */
static inline bool rc_eventcount_is_asleep_unfenced(struct rc_eventcount *event) {
  rc_fence_light(); /* in the place of E5; E9 makes up for the fence */
  return rc_load_acquire(&event->state) >= RC_EVENTCOUNT_SLEEPER; /* E6 <- E1 */
}

/* Begins the next epoch. True if a party was asleep: then the caller must wake all that sleep on
 * the word. False if another signaller came first, which wakes the sleepers. */
static inline bool rc_eventcount_advance(struct rc_eventcount *event) {
  uint64_t state = rc_load_relaxed(&event->state); /* relaxed: a guess for the exchange */
  while (state >= RC_EVENTCOUNT_SLEEPER)
    if (rc_cas_acq_rel(&event->state, &state, (uint32_t)state + 1u)) return true; /* E7 */
  return false;
}

/* Begins the next epoch and does not change the count. The caller must wake all that sleep on the
 * word; the sleepers look, and sleep again. The count stays too high until the next signal, which
 * costs one system call. Pairs with E1: either the look at E3 sees what the caller stored before,
 * or the word is no longer E1's. */
static inline void rc_eventcount_nudge(struct rc_eventcount *event) {
  uint64_t state = rc_load_relaxed(&event->state); /* relaxed: a guess for the exchange */
  for (;;) {
    uint64_t sleepers = state & ~(uint64_t)UINT32_MAX;
    uint32_t word = (uint32_t)state + 1u;
    if (rc_cas_acq_rel(&event->state, &state, sleepers | word)) return;
  }
}

#endif
