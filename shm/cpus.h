/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether spinning can pay at all. With fewer CPUs than participants a spinning waiter keeps the awaited process from
 * running, so no waiter spins. All participants together tell which CPUs there are: each process adds the CPUs of its
 * affinity mask. Two processes pinned to two CPUs find two; two processes pinned to the same CPU find one.
 */
#ifndef RC_SHM_CPUS_H
#define RC_SHM_CPUS_H

#include "ring/layout.h"

/* Adds the CPUs of this process's affinity mask. */
void rc_cpus_enter(struct rc_cpus *cpus);

/* How many CPUs the participants have together; at most the caller's CPU quota. */
uint32_t rc_cpus_count(struct rc_cpus *cpus);

#endif
