/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the machine, as far as this process may use the machine: caches, NUMA nodes, free memory, the CPU quota.
 * Each call reads the facts anew. */
#ifndef RC_SHM_TOPOLOGY_H
#define RC_SHM_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RC_MAX_NODES 1024u

/* A set of NUMA nodes, as mbind(2) takes it. */
struct rc_nodes {
  unsigned long bits[RC_MAX_NODES / (8 * sizeof(unsigned long))];
  uint32_t count;
};

void rc_nodes_add(struct rc_nodes *nodes, uint32_t node);
bool rc_nodes_have(const struct rc_nodes *nodes, uint32_t node);

/* In words: "0-1,4". */
void rc_nodes_describe(const struct rc_nodes *nodes, char *text, size_t bytes);

/* The nodes with memory for this process. Node 0 where the kernel does not say. */
void rc_topology_nodes(struct rc_nodes *out);

/* The level 3 cache of the calling thread's CPU. */
struct rc_l3 {
  uint64_t bytes; /* 0: unknown to both sysfs and the C library */
  uint32_t cpus;  /* how many CPUs share the cache; 0: unknown */
};

void rc_topology_l3(struct rc_l3 *out);

/* The capacity of a ring whose options give none. */
uint64_t rc_default_capacity(void);

/* How much memory is free before the OOM killer has to end a process, and the origin of that limit. */
struct rc_room {
  uint64_t bytes;    /* UINT64_MAX where the kernel does not say */
  const char *limit; /* in words */
};

void rc_topology_room(struct rc_room *out);

/* How many CPUs the CPU quotas of this process's cgroups leave, rounded up; UINT32_MAX: no quota. */
uint32_t rc_topology_cpu_quota(void);

#endif
