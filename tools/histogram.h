/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A histogram for percentiles across processes: flat, so it can lie in shared memory. Values below 128 have a bucket
 * each; above, every power of two is cut into 128 buckets, so a percentile is off by less than half a percent. Several
 * processes add to their own and the parent merges.
 */
#ifndef TOOLS_HISTOGRAM_H
#define TOOLS_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BITS    7
#define HISTOGRAM_BUCKETS ((64 - HISTOGRAM_BITS + 1) << HISTOGRAM_BITS)

struct histogram {
  uint64_t count;
  uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *histogram, uint64_t value);
void histogram_merge(struct histogram *into, const struct histogram *from);

/* The value that `share` (0 to 1) of all do not exceed; NAN when there are none. */
double histogram_percentile(const struct histogram *histogram, double share);

#endif
