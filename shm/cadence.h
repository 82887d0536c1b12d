/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the next message is due. Serving engines send one message every few milliseconds, each about as long after the
 * one before. A waiter notes when messages came, sleeps until shortly before the next one is due, spins for a window
 * that holds most arrivals, and sleeps on. While the waiter spins nothing has to wake it.
 *
 * Pure arithmetic on times in nanoseconds, of one clock; no system call. One thread at a time.
 *
 *   gap, error  the mean of the gaps between messages and the mean distance from it, each moved by an eighth at each
 *               message. An error counts at most four times the usual one, so one pause moves little. Four such
 *               errors in a row are a new cadence, which is learnt from the start.
 *   burst       messages that come within a quarter of the gap belong to the first of them
 *   window      twice the error before and behind the time when the message is due, a millisecond at most. Where the
 *               error is more than that, or the saved budget does not last to the end of the window, there is none:
 *               irregular and rare messages cost a plain sleep
 *   budget      a share of the time that passes. What is not used is saved, for a few messages at most; what a
 *               window spins is taken off, so the share holds on average
 *   lead        how much later than asked this waiter's sleeps end (timer slack, and running again), by experience
 */
#ifndef RC_SHM_CADENCE_H
#define RC_SHM_CADENCE_H

#include <stdbool.h>
#include <stdint.h>

struct rc_cadence {
  int64_t came; /* when the last message came */
  int64_t gap, error;
  uint32_t known;   /* gaps that the two are made of, as far as it matters; UINT32_MAX: not even one message came */
  uint32_t strange; /* errors in a row that were clipped */
  int64_t lead;
  int64_t saved, refilled; /* time to spin, and when it was last counted */
};

struct rc_window {
  int64_t wake;  /* sleep until then, ... */
  int64_t until; /* ... and spin until then */
};

void rc_cadence_init(struct rc_cadence *cadence);

/* A message came. */
void rc_cadence_came(struct rc_cadence *cadence, int64_t now);

/* A sleep that was to end at `wake` ended now. */
void rc_cadence_woke(struct rc_cadence *cadence, int64_t wake, int64_t now);

/* The window of the next message, within a budget of so many percent of a CPU. False: there is none ahead. */
bool rc_cadence_window(struct rc_cadence *cadence, int64_t now, uint32_t percent, struct rc_window *out);

/* So much of a window was spun. */
static inline void rc_cadence_spun(struct rc_cadence *cadence, int64_t ns) { cadence->saved -= ns; }

#endif
