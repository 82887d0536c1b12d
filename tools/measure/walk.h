/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cold caches. Between two steps of an engine other code runs, and a core's caches and TLB then hold other data. Each
 * process of a measurement with --cold reads one word of each line of a block twice as large as the L3 cache between
 * two messages. The user can give a smaller block, where other machines share the L3 cache.
 */
#ifndef TOOLS_MEASURE_WALK_H
#define TOOLS_MEASURE_WALK_H

#include <stddef.h>
#include <stdint.h>

struct walk {
  size_t bytes; /* 0: no walk */
  const uint64_t *memory;
};

/* Maps and fills the block, before the processes of the measurement start: all share the block. `bytes` of 0: twice the
 * L3 cache, or 64 MiB where the system does not tell the size of the cache. */
void walk_make(struct walk *walk, size_t bytes);
void walk_destroy(struct walk *walk);

/* Returns how many nanoseconds of CPU time the walk took. */
int64_t walk_once(const struct walk *walk);

#endif
