/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether spinning can pay at all: not when there are fewer CPUs than parties, since whoever spins then keeps the one
 * it waits for from running. Which CPUs there are is told by all parties together: each adds those that it may run on,
 * so two processes pinned to two CPUs find two, and two pinned to the same one find one.
 */
#ifndef RC_SHM_CPUS_H
#define RC_SHM_CPUS_H

#include <stdbool.h>

#include "ring/layout.h"

/* Adds the CPUs that this process may run on. */
void rc_cpus_enter(struct rc_cpus *cpus);

/* How many CPUs the parties have together, a container's CPU quota counted. */
uint32_t rc_cpus_count(struct rc_cpus *cpus);

#endif
