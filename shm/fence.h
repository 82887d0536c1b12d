/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heavy half of an asymmetric fence: membarrier(GLOBAL_EXPEDITED), Linux 4.16, interrupts every CPU that runs a
 * process that has registered for it, and none else. So signallers register, once per process, and sleepers call it.
 */
#ifndef RC_SHM_FENCE_H
#define RC_SHM_FENCE_H

#include <stdbool.h>

#include "ring/event.h"

/* Registers this process as one that sleepers can reach. False where that can't be had (an old kernel, a sandbox,
 * RINGCAST_DISABLE=membarrier): then it must rc_event_fence what it signals. */
bool rc_fence_register(void);

/* Whether rc_event_prepare reaches the signallers at once. If not, a signaller that has not seen FENCED yet may miss
 * this process once: then it must not sleep without a slice. Known for sure after the first rc_event_prepare. */
bool rc_fence_is_heavy(void);

/* E1 and E2: announces a sleeper and fences all signallers. Returns the value to sleep on. */
uint32_t rc_event_prepare(struct rc_event *event);

/* The same for a sleeper where there are fewer CPUs than parties: there the interrupts take more of everybody's time
 * than fences would, so signallers are told to fence (FENCED), for good. *told: whether this sleeper has reached all of
 * them since; false at first. Until then it calls membarrier as above: others may have set FENCED and not have
 * got so far. */
uint32_t rc_event_prepare_crowded(struct rc_event *event, bool *told);

#endif
