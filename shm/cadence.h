/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predicts when the next message is due. Serving engines send a message every few milliseconds, at
 * nearly constant intervals. A waiter notes the arrival times, sleeps until shortly before the next
 * message is due, spins for a window that covers most arrivals, and sleeps on. A message in the
 * window needs no wake-up.
 *
 * Pure arithmetic on times in nanoseconds, of one clock; no system call. One thread at a time.
 *
 *   gap         the mean gap between messages, moved by an eighth of each error. An error is
 *               clipped to twice the spread, plus 1/32 of the gap, so a single pause moves little.
 *               Four clipped errors in a row start a new cadence, learnt from the beginning.
 *   spread      the distance from the mean gap that seven of eight messages keep, learnt from the
 *               number of messages beyond it and not from their distance: a few very late messages
 *               do not widen the window
 *   burst       a message belongs to a burst, and is not counted, within 200 us after the last
 *               message or within a quarter of the gap after the last counted message. Eight
 *               messages in a quarter of the gap, each 200 us after the last, are no burst, but a
 *               faster cadence after pauses
 *   window      the spread, plus a margin, before and after the due time; each side at most the
 *               budget of one gap, and a millisecond. If the spread is over twice as long, or the
 *               saved budget does not last to the end of the window, the waiter has no window:
 *               irregular and rare messages cost a plain sleep
 *   budget      a share of the elapsed time. The unused budget is saved, for a few messages at
 *               most; the time spun in a window is subtracted, so the share holds on average
 *   lead        the learnt delay between the requested and the actual end of a sleep (timer slack,
 *               scheduling)
 */
#ifndef RC_SHM_CADENCE_H
#define RC_SHM_CADENCE_H

#include <stdbool.h>
#include <stdint.h>

struct rc_cadence {
  int64_t came; /* when the last counted message came */
  int64_t last; /* when the last message came */
  int64_t gap, spread;
  uint32_t known;   /* number of gaps learnt; UINT32_MAX: before the first message */
  uint32_t strange; /* clipped errors in a row */
  uint32_t burst;   /* messages within a quarter of the gap */
  int64_t lead;
  int64_t saved, refilled; /* the saved budget, and when the budget was last updated */
};

struct rc_window {
  int64_t wake;  /* sleep until then, for the sleep ends late, ... */
  int64_t due;   /* ... the message is expected here ... */
  int64_t until; /* ... and spin until then */
};

void rc_cadence_init(struct rc_cadence *cadence);

/* A message came. */
void rc_cadence_came(struct rc_cadence *cadence, int64_t now);

/* A sleep that was to end at `wake` ended now. */
void rc_cadence_woke(struct rc_cadence *cadence, int64_t wake, int64_t now);

/* The window of the next message, within a budget of `percent` of a CPU. False: no window is
 * ahead. */
bool rc_cadence_window(struct rc_cadence *cadence, int64_t now, uint32_t percent,
                       struct rc_window *out);

/* `ns` of a window were spun. */
static inline void rc_cadence_spun(struct rc_cadence *cadence, int64_t ns) { cadence->saved -= ns; }

#endif
