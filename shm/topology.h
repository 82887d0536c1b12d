/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the machine, as this process may use it: caches, NUMA nodes, free memory. Read anew at each call. */
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

/* The nodes that have memory which this process may use. Node 0 where the kernel does not say. */
void rc_topology_nodes(struct rc_nodes *out);

/* The level 3 cache that the CPU we run on shares with others. */
struct rc_l3 {
  uint64_t bytes; /* 0 where neither sysfs nor the C library knows it */
  uint32_t cpus;  /* that share it; 0 if not known */
};

void rc_topology_l3(struct rc_l3 *out);

/* The capacity of a ring for which none was asked. */
uint64_t rc_default_capacity(void);

/* How much memory can be had before something must be killed for it, and what sets that limit. */
struct rc_room {
  uint64_t bytes;    /* UINT64_MAX where the kernel does not say */
  const char *limit; /* in words */
};

void rc_topology_room(struct rc_room *out);

#endif
