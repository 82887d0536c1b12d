/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/backoff.h"

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

void rc_backoff_learn(struct rc_backoff *backoff, uint32_t pauses, uint32_t frames) {
  bool pays = frames > pauses / RC_BACKOFF_WORTH;
  if (backoff->pauses == 0) { /* the pauses were a trial */
    backoff->trial_interval = pays || backoff->trial_interval == 0
                                  ? RC_BACKOFF_MIN_INTERVAL
                                  : least(2 * backoff->trial_interval, RC_BACKOFF_MAX_INTERVAL);
    backoff->until_trial = backoff->trial_interval;
  }
  if (pays) backoff->pauses = least(2 * pauses, RC_BACKOFF_MOST);
  else backoff->pauses = frames == 0 || pauses == RC_BACKOFF_STRETCH ? 0 : pauses / 2;
}

void rc_backoff_pause(struct rc_backoff *backoff, const struct rc_ring_reader *ring) {
  uint32_t pauses = backoff->pauses != 0 ? backoff->pauses : RC_BACKOFF_STRETCH, frames = 0,
           more = 1;
  uint64_t position = ring->next;
  for (uint32_t done = 0; done < pauses && more != 0; done += RC_BACKOFF_STRETCH) {
    for (uint32_t i = 0; i < RC_BACKOFF_STRETCH; i++) rc_relax();
    more = rc_ring_count(&ring->view, &position, RC_BACKOFF_MOST);
    frames += more;
  }
  rc_backoff_learn(backoff, pauses, more != 0 ? frames : least(frames, pauses / RC_BACKOFF_WORTH));
}

/* Between two trials nothing looks at the clock. */
void rc_backoff_compare(struct rc_backoff *backoff) {
  int64_t now = rc_now_ns(), took = now - backoff->since, *least = backoff->least;
  backoff->since = now;
  backoff->reads = RC_BACKOFF_WINDOW - 1;
  if (backoff->window == 0 || took > RC_BACKOFF_LONG) {
    least[false] = least[true] = INT64_MAX;
    backoff->early = false;
    backoff->window = 1;
    return;
  }
  if (took < least[backoff->early]) least[backoff->early] = took;
  backoff->early = !backoff->early;
  if (backoff->window++ < RC_BACKOFF_TRIAL) return;
  backoff->early = least[true] < least[false] - least[false] / RC_BACKOFF_GAIN;
  backoff->window = 0;
  backoff->reads = RC_BACKOFF_READS + (uint32_t)now % RC_BACKOFF_WINDOW;
}
