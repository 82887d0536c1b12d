/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/pace.h"

#include "shm/wait.h"

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

void rc_pace_learn(struct rc_pace *pace, uint32_t pauses, uint32_t frames) {
  bool pays = frames > pauses / RC_PACE_WORTH;
  if (pace->away == 0) { /* it was a try */
    pace->seldom = pays || pace->seldom == 0 ? RC_PACE_OFTEN : least(2 * pace->seldom, RC_PACE_SELDOM);
    pace->probe = pace->seldom;
  }
  if (pays) pace->away = least(2 * pauses, RC_PACE_MOST);
  else pace->away = frames == 0 || pauses == RC_PACE_STRETCH ? 0 : pauses / 2;
}

void rc_pace_stay_away(struct rc_pace *pace, const struct rc_ring_reader *ring) {
  uint32_t pauses = pace->away != 0 ? pace->away : RC_PACE_STRETCH, frames = 0, more = 1;
  uint64_t position = ring->next;
  for (uint32_t done = 0; done < pauses && more != 0; done += RC_PACE_STRETCH) {
    for (uint32_t i = 0; i < RC_PACE_STRETCH; i++) rc_relax();
    more = rc_ring_count(&ring->ring, &position, RC_PACE_MOST);
    frames += more;
  }
  rc_pace_learn(pace, pauses, more != 0 ? frames : least(frames, pauses / RC_PACE_WORTH));
}
