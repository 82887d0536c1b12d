/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/histogram.h"

#include <math.h>

static unsigned bucket_of(uint64_t value) {
  if (value < 1u << HISTOGRAM_BITS) return (unsigned)value;
  unsigned shift = 63 - (unsigned)__builtin_clzll(value) - HISTOGRAM_BITS;
  return ((shift + 1) << HISTOGRAM_BITS) + (unsigned)((value >> shift) - (1u << HISTOGRAM_BITS));
}

/* The middle of what falls into the bucket. */
static double value_of(unsigned bucket) {
  if (bucket < 1u << HISTOGRAM_BITS) return bucket;
  unsigned shift = (bucket >> HISTOGRAM_BITS) - 1;
  double low = (double)((bucket & ((1u << HISTOGRAM_BITS) - 1)) + (1u << HISTOGRAM_BITS));
  return ldexp(low + 0.5, (int)shift) - 0.5;
}

void histogram_add(struct histogram *histogram, uint64_t value) {
  histogram->count++;
  histogram->buckets[bucket_of(value)]++;
}

void histogram_merge(struct histogram *into, const struct histogram *from) {
  into->count += from->count;
  for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) into->buckets[i] += from->buckets[i];
}

double histogram_percentile(const struct histogram *histogram, double share) {
  uint64_t wanted = (uint64_t)ceil(share * (double)histogram->count);
  uint64_t seen = 0;
  if (wanted == 0) wanted = 1;
  for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
    if ((seen += histogram->buckets[i]) >= wanted) return value_of(i);
  return NAN;
}
