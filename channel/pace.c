/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/pace.h"

#include "shm/wait.h"

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

void rc_pace_learn(struct rc_pace *pace, uint32_t paused, uint32_t frames) {
  bool pays = frames > paused / RC_PACE_WORTH;
  if (pace->away == 0) { /* it was a try */
    pace->seldom = pays || pace->seldom == 0 ? RC_PACE_OFTEN : least(2 * pace->seldom, RC_PACE_SELDOM);
    pace->probe = pace->seldom;
  }
  if (pays) pace->away = least(2 * paused + 1, RC_PACE_MOST);
  else pace->away = frames == 0 || paused / 2 < RC_PACE_PROBE ? 0 : paused / 2;
}

void rc_pace_stay_away(struct rc_pace *pace, const struct rc_ring_reader *ring) {
  uint32_t pauses = pace->away != 0 ? pace->away : RC_PACE_PROBE;
  for (uint32_t i = 0; i < pauses; i++) rc_relax();
  rc_pace_learn(pace, pauses, rc_ring_count(ring, pauses / RC_PACE_WORTH + 1));
}
