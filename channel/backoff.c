/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/backoff.h"

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* After a trial: the next one soon if it paid off, else later each time. */
static void plan_trial(struct rc_backoff *backoff, bool pays) {
  if (pays || backoff->trial_interval == 0) backoff->trial_interval = RC_BACKOFF_MIN_INTERVAL;
  else backoff->trial_interval = least(2 * backoff->trial_interval, RC_BACKOFF_MAX_INTERVAL);
  backoff->until_trial = backoff->trial_interval;
}

void rc_backoff_learn(struct rc_backoff *backoff, uint32_t pauses, uint32_t frames) {
  const bool pays = frames > pauses / RC_BACKOFF_WORTH;
  if (backoff->pauses == 0) plan_trial(backoff, pays); /* the pauses were a trial */
  if (pays) backoff->pauses = least(2 * pauses, RC_BACKOFF_MOST);
  else if (frames == 0 || pauses == RC_BACKOFF_STRETCH) backoff->pauses = 0;
  else backoff->pauses = pauses / 2;
}

void rc_backoff_pause(struct rc_backoff *backoff, const struct rc_ring_reader *ring) {
  const uint32_t pauses = backoff->pauses != 0 ? backoff->pauses : RC_BACKOFF_STRETCH;
  uint64_t position = ring->next;
  uint32_t frames = 0, more = 1;
  for (uint32_t done = 0; done < pauses && more != 0; done += RC_BACKOFF_STRETCH) {
    for (uint32_t i = 0; i < RC_BACKOFF_STRETCH; i++) rc_relax();
    more = rc_ring_count(&ring->view, &position, RC_BACKOFF_MOST);
    frames += more;
  }
  /* A stretch without a frame: the frames were a burst, or the ring is full. */
  if (more == 0) frames = least(frames, pauses / RC_BACKOFF_WORTH);
  rc_backoff_learn(backoff, pauses, frames);
}

static void begin_trial(struct rc_backoff *backoff) {
  backoff->least[false] = INT64_MAX;
  backoff->least[true] = INT64_MAX;
  backoff->early = false;
  backoff->window = 1;
}

/* The faster way stays until the next trial; between two nothing looks at the clock. */
static void end_trial(struct rc_backoff *backoff, int64_t now) {
  const int64_t late = backoff->least[false];
  backoff->early = backoff->least[true] < late - late / RC_BACKOFF_GAIN;
  backoff->window = 0;
  backoff->reads = RC_BACKOFF_READS + (uint32_t)now % RC_BACKOFF_WINDOW;
}

void rc_backoff_compare(struct rc_backoff *backoff) {
  const int64_t now = rc_now_ns(), took = now - backoff->since;
  backoff->since = now;
  backoff->reads = RC_BACKOFF_WINDOW - 1;
  if (backoff->window == 0 || took > RC_BACKOFF_LONG) {
    begin_trial(backoff);
    return;
  }
  int64_t *least = &backoff->least[backoff->early];
  if (took < *least) *least = took;
  backoff->early = !backoff->early;
  const bool last = backoff->window == RC_BACKOFF_TRIAL;
  backoff->window++;
  if (last) end_trial(backoff, now);
}
