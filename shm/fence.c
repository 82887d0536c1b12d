/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/fence.h"

#include <linux/membarrier.h>

#include "ring/point.h"
#include "shm/disable.h"
#include "shm/os.h"
#include "shm/process.h"

/* What was found out, once per process: it is asked for before each sleep, where the environment must not be read.
 * Threads that come here at once find out the same. */
static _Atomic uint32_t usable_since, unusable_since, refused_since; /* fork count + 1; 0: not known yet */

bool rc_fence_register(void) {
  uint32_t self = rc_fork_count() + 1;
  if (rc_load_relaxed(&usable_since) == self) return true; /* relaxed: either word says all there is to say */
  if (rc_load_relaxed(&unusable_since) == self) return false;
  bool usable = !rc_disabled("membarrier") && rc_os.membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
  rc_store_relaxed(usable ? &usable_since : &unusable_since, self);
  return usable;
}

/* Registering may be allowed and calling forbidden. Relaxed: as above. */
bool rc_fence_is_heavy(void) { return rc_fence_register() && rc_load_relaxed(&refused_since) != rc_fork_count() + 1; }

static bool reach_all(void) {
  if (!rc_fence_is_heavy()) return false;
  if (rc_os.membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0) return true;
  rc_store_relaxed(&refused_since, rc_fork_count() + 1); /* relaxed: as above */
  return false;
}

uint32_t rc_event_prepare(struct rc_event *event) {
  uint32_t value = rc_event_announce(event, !rc_fence_is_heavy()); /* E1 */
  RC_POINT(E1_DONE);
  if (!reach_all()) value = rc_event_announce(event, true); /* E2 -> E5 */
  rc_fence_full();
  RC_POINT(E2_DONE);
  return value;
}

uint32_t rc_event_prepare_crowded(struct rc_event *event, bool *told) {
  uint32_t value = rc_event_announce(event, true); /* E1 */
  RC_POINT(E1_DONE);
  if (!*told) *told = reach_all();
  rc_fence_full(); /* E2 -> E5 */
  RC_POINT(E2_DONE);
  return value;
}
