/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/backoff.h"

#include "shm/wait.h"

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

void rc_backoff_learn(struct rc_backoff *backoff, uint32_t pauses, uint32_t frames) {
  bool pays = frames > pauses / RC_BACKOFF_WORTH;
  if (backoff->away == 0) { /* the pauses were a trial */
    backoff->seldom = pays || backoff->seldom == 0 ? RC_BACKOFF_OFTEN : least(2 * backoff->seldom, RC_BACKOFF_SELDOM);
    backoff->probe = backoff->seldom;
  }
  if (pays) backoff->away = least(2 * pauses, RC_BACKOFF_MOST);
  else backoff->away = frames == 0 || pauses == RC_BACKOFF_STRETCH ? 0 : pauses / 2;
}

void rc_backoff_pause(struct rc_backoff *backoff, const struct rc_ring_reader *ring) {
  uint32_t pauses = backoff->away != 0 ? backoff->away : RC_BACKOFF_STRETCH, frames = 0, more = 1;
  uint64_t position = ring->next;
  for (uint32_t done = 0; done < pauses && more != 0; done += RC_BACKOFF_STRETCH) {
    for (uint32_t i = 0; i < RC_BACKOFF_STRETCH; i++) rc_relax();
    more = rc_ring_count(&ring->ring, &position, RC_BACKOFF_MOST);
    frames += more;
  }
  rc_backoff_learn(backoff, pauses, more != 0 ? frames : least(frames, pauses / RC_BACKOFF_WORTH));
}
