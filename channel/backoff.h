/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Back-off of a reader that polls. A poll takes the frame's cache line to the reader, and the writer must take the line
 * back before it can write there. A reader of small frames is faster than the writer. In a stream such a reader catches
 * up; from then on each poll comes just before the writer writes the line, and a frame costs both sides several times
 * as much. A short pause is enough: then many frames are available, and the reader reads them while the writer writes
 * elsewhere.
 *
 * In a dialogue, or when frames come slowly, a pause only makes the reader late. So the reader finds out by trials,
 * less often while they fail: a trial succeeds if enough frames came for the pauses. After a success the reader pauses
 * twice as long the next time, else half as long, or not at all. The reader counts frames after each STRETCH of pauses,
 * and stops after a stretch without a frame: the frames were a burst, or the ring is full.
 *
 * In a dialogue of tiny frames the first look comes just before the frame, too: it takes the line away while the writer
 * is about to fill it, or between two stores of the frame. So a reader that comes too early pauses for a moment before
 * the first look of its next reads. Two threads of one core have no lines to take away, and the pauses only make a
 * reader late. The number of looks shows the difference.
 */
#ifndef RC_CHANNEL_BACKOFF_H
#define RC_CHANNEL_BACKOFF_H

#include "ring/fastpath.h"
#include "shm/wait.h"

#define RC_BACKOFF_STRETCH      32u    /* pauses (rc_relax: 12 to 45 ns); the length of a first trial */
#define RC_BACKOFF_MOST         512u   /* pauses */
#define RC_BACKOFF_WORTH        8u     /* a frame for so many pauses makes them worthwhile */
#define RC_BACKOFF_MIN_INTERVAL 128u   /* waits between two trials, ... */
#define RC_BACKOFF_MAX_INTERVAL 65536u /* ... and at most */
#define RC_BACKOFF_EARLY        16u    /* reads with a pause before the first look; the next read shows the need */
#define RC_BACKOFF_NEED         16u    /* the most that `need` counts; from half of that on the reader pauses */

struct rc_backoff {
  uint32_t pauses;         /* pauses after a poll that finds no frame; 0: polls again at once */
  uint32_t until_trial;    /* waits until the next trial, ... */
  uint32_t trial_interval; /* ... and between two trials */
  uint32_t early;          /* reads still to come with a pause before the first look */
  uint32_t need;           /* of such pauses: a wait of several looks counts up, a wait of one look counts down */
};

/* Called before the first look of a read. True: the reader has paused. Two pauses are 25 ns on AMD Zen 4; one gained
 * nothing, three made a dialogue of near cores slower. */
static inline bool rc_backoff_before_look(struct rc_backoff *backoff) {
  if (backoff->early == 0) return false;
  backoff->early--;
  rc_relax();
  rc_relax();
  return true;
}

/* A wait took `looks` looks after the first one. `paused`: what rc_backoff_before_look has said. Between two threads of
 * a core a wait without the pauses ends at the first of these looks, between two cores at a later one. */
static inline void rc_backoff_waited(struct rc_backoff *backoff, bool paused, uint32_t looks) {
  if (paused) {
    if (looks > 1) backoff->early = RC_BACKOFF_EARLY;
    return;
  }
  if (looks > 1) backoff->need += backoff->need < RC_BACKOFF_NEED;
  else backoff->need -= backoff->need > 0;
  if (backoff->need >= RC_BACKOFF_NEED / 2) backoff->early = RC_BACKOFF_EARLY;
}

/* Called when a wait begins. True: pause in this wait. */
static inline bool rc_backoff_is_active(struct rc_backoff *backoff) {
  return backoff->pauses != 0 || backoff->until_trial-- == 0;
}

/* Pauses: 0.4 to 1.5 us for a stretch. */
void rc_backoff_pause(struct rc_backoff *backoff, const struct rc_ring_reader *ring);

/* Records that a back-off of `pauses` found `frames` frames. */
void rc_backoff_learn(struct rc_backoff *backoff, uint32_t pauses, uint32_t frames);

#endif
