/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the machine, as far as this process may use it: caches, NUMA nodes, free memory, the
 * CPU quota. Each call reads them anew. */
#ifndef RC_SHM_TOPOLOGY_H
#define RC_SHM_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/layout.h"

#define RC_MAX_NODES 1024u

/* A set of NUMA nodes, as mbind(2) takes it. */
struct rc_nodes {
  unsigned long bits[RC_MAX_NODES / (8 * sizeof(unsigned long))];
  uint32_t count;
};

void rc_nodes_add(struct rc_nodes *nodes, uint32_t node);
bool rc_nodes_have(const struct rc_nodes *nodes, uint32_t node);

/* The nodes with memory for this process. Node 0 where the kernel does not say. */
void rc_topology_nodes(struct rc_nodes *out);

/* The capacity of a ring whose options give none. */
uint64_t rc_default_capacity(void);

/* From so many bytes on, a payload is written past the cache (rc_copy_past_cache). */
uint64_t rc_past_cache_bytes(void);

/* How much memory is free before the OOM killer has to end a process, and what limits it. */
struct rc_room {
  uint64_t bytes;    /* UINT64_MAX where the kernel does not say */
  const char *limit; /* in words */
};

void rc_topology_room(struct rc_room *out);

/* ---- CPUs ------------------------------------------------------------------------------------ */

/* Whether spinning can pay at all. With fewer CPUs than participants a spinning waiter keeps the
 * awaited process from running, so no waiter spins. All participants together tell which CPUs there
 * are: each process adds the CPUs of its affinity mask. Two processes pinned to two CPUs find two;
 * two processes pinned to the same CPU find one. */

/* Adds the CPUs of this process's affinity mask. */
void rc_cpus_enter(struct rc_cpus *cpus);

/* How many CPUs the participants have together; at most the caller's CPU quota. */
uint32_t rc_cpus_count(struct rc_cpus *cpus);

#endif
