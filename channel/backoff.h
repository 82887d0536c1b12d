/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Back-off of a reader that polls. A poll takes the frame's cache line to the reader, and the
 * writer must take the line back before it can write there. A reader of small frames is faster than
 * the writer. In a stream such a reader catches up; from then on each poll comes just before the
 * writer writes the line, and a frame costs both sides several times as much. A short pause is
 * enough: then many frames are available, and the reader reads them while the writer writes
 * elsewhere.
 *
 * In a dialogue, or when frames come slowly, a pause only makes the reader late. So the reader
 * finds out by trials, less often while they fail: a trial succeeds if enough frames came for the
 * pauses. After a success the reader pauses twice as long the next time, else half as long, or not
 * at all. The reader counts frames after each STRETCH of pauses, and stops after a stretch without
 * a frame: the frames were a burst, or the ring is full.
 *
 * In a dialogue of tiny frames the first look comes just before the frame, too: it takes the line
 * away while the writer is about to fill it, or between two stores of the frame. A moment's pause
 * before the first look avoids that on some CPUs, and only makes a reader late on others, or
 * between two threads of one core, which have no lines to take away. So a reader times windows of
 * reads both ways, and goes on as the faster one until the next trial. A window with a sleep begins
 * the trial anew; and no two readers have their trials at the same reads for long.
 */
#ifndef RC_CHANNEL_BACKOFF_H
#define RC_CHANNEL_BACKOFF_H

#include "ring/ring.h"
#include "shm/wait.h"

#define RC_BACKOFF_STRETCH 32u  /* pauses (12 to 45 ns each); the length of a first trial */
#define RC_BACKOFF_MOST    512u /* pauses */
#define RC_BACKOFF_WORTH   8u   /* a frame for so many pauses makes them worthwhile */

/* Waits between two trials, at first and at most. */
#define RC_BACKOFF_MIN_INTERVAL 128u
#define RC_BACKOFF_MAX_INTERVAL 65536u

#define RC_BACKOFF_DIALOGUE 16u    /* reads after a wait that belong to a dialogue */
#define RC_BACKOFF_WINDOW   64u    /* reads of a dialogue between two looks at the clock */
#define RC_BACKOFF_TRIAL    8u     /* windows, without the pauses and with them in turns */
#define RC_BACKOFF_READS    16384u /* of a dialogue, from trial to trial */
#define RC_BACKOFF_GAIN     32     /* the pauses stay if they gain one part in so many */
#define RC_BACKOFF_LONG     ((int64_t)100 * 1000) /* ns of a window with a sleep */

struct rc_backoff {
  /* In a stream. */
  uint32_t pauses;         /* after a poll that finds no frame; 0: polls again at once */
  uint32_t until_trial;    /* waits until the next trial, ... */
  uint32_t trial_interval; /* ... and between two trials */
  /* In a dialogue. */
  uint32_t dialogue; /* reads still to come that belong to it */
  uint32_t reads;    /* still to come before the next look at the clock */
  uint32_t window;   /* of the trial; 0: no trial */
  bool early;        /* a pause comes before the first look */
  int64_t since;     /* when the window began, ns */
  int64_t least[2];  /* the shortest window of the trial without the pauses, and with them, ns */
};

/* At the end of a window. */
void rc_backoff_compare(struct rc_backoff *backoff);

/* Called before the first look of a read. Two pauses are 25 ns on AMD Zen 4; there one gained
 * nothing. */
static inline void rc_backoff_before_look(struct rc_backoff *backoff) {
  if (backoff->dialogue == 0) return;
  backoff->dialogue--;
  if (rc_unlikely(backoff->reads-- == 0)) rc_backoff_compare(backoff);
  if (!backoff->early) return;
  rc_relax();
  rc_relax();
}

/* Called after a wait. */
static inline void rc_backoff_waited(struct rc_backoff *backoff) {
  backoff->dialogue = RC_BACKOFF_DIALOGUE;
}

/* Called when a wait begins; counts down to the next trial. True: rc_backoff_pause must follow,
 * which plans the next one. */
static inline bool rc_backoff_begin_wait(struct rc_backoff *backoff) {
  return backoff->pauses != 0 || backoff->until_trial-- == 0;
}

/* Pauses: 0.4 to 1.5 us for a stretch. */
void rc_backoff_pause(struct rc_backoff *backoff, const struct rc_ring_reader *ring);

/* Records that a back-off of `pauses` found `frames` frames. */
void rc_backoff_learn(struct rc_backoff *backoff, uint32_t pauses, uint32_t frames);

#endif
