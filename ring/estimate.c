/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bound on the sizes to come, which a few big frames do not move.
 *
 * The estimate is the THIRD largest of the last 32 to 64 sizes, and a sixteenth more. What comes once or twice may be
 * an accident; what comes a third time within that many frames is expected again, so it rises then. It sinks when large
 * frames have not come for that long. Of sizes that may come in any order, whatever their distribution, 3 in n + 1
 * exceed the third largest of n: 5 to 9 in a hundred, without the sixteenth; sizes that vary by less than that never
 * do. The first or second largest would be exceeded less often, but a prompt in every fifty steps would have a
 * scheduler reserve several times what it writes, at every step; and who reserved too little grows in place, copying
 * nothing. Until 32 sizes are known the largest counts, since few can't tell what is an accident.
 *
 * The window is two epochs, this one and the one before it; each keeps its three largest sizes, and nothing else.
 */
#include "ring/estimate.h"

#include <string.h>

static uint32_t set_of(uint32_t tag) { return tag * 0x9e3779b1u >> 29; } /* Knuth's multiplicative hash; 3 bits */
_Static_assert(RC_ESTIMATE_SETS == 8, "as set_of");

static void take(struct rc_estimate_peak *peak, uint64_t bytes) {
  for (uint32_t i = 0; i < RC_ESTIMATE_RANK; i++) {
    if (bytes <= peak->sizes[i]) continue;
    uint64_t smaller = peak->sizes[i];
    peak->sizes[i] = bytes;
    bytes = smaller;
  }
}

static uint64_t bound_of(const struct rc_estimate *estimate) {
  struct rc_estimate_peak both = estimate->now;
  for (uint32_t i = 0; i < RC_ESTIMATE_RANK; i++) take(&both, estimate->before.sizes[i]);
  return both.sizes[estimate->seen < RC_ESTIMATE_EPOCH ? 0 : RC_ESTIMATE_RANK - 1];
}

static uint64_t with_reserve(uint64_t bytes) {
  uint64_t sum;
  return __builtin_add_overflow(bytes, bytes / 16 + 64, &sum) ? UINT64_MAX : sum;
}

uint64_t rc_estimate_of(const struct rc_estimates *estimates, uint32_t tag, uint64_t most) {
  const struct rc_estimate *set = estimates->sets[set_of(tag)];
  uint64_t bytes = RC_ESTIMATE_DEFAULT;
  for (uint32_t i = 0; i < RC_ESTIMATE_WAYS && set[i].seen != 0; i++) {
    if (set[i].tag != tag) continue;
    bytes = with_reserve(bound_of(&set[i]));
    break;
  }
  return bytes < most ? bytes : most;
}

void rc_estimate_learn(struct rc_estimates *estimates, uint32_t tag, uint64_t bytes) {
  struct rc_estimate *set = estimates->sets[set_of(tag)];
  uint32_t i = 0;
  while (i < RC_ESTIMATE_WAYS - 1 && set[i].seen != 0 && set[i].tag != tag) i++;
  struct rc_estimate found = set[i];
  if (found.seen == 0 || found.tag != tag) found = (struct rc_estimate){.tag = tag};
  if (found.count == RC_ESTIMATE_EPOCH) {
    found.before = found.now;
    found.now = (struct rc_estimate_peak){{0}};
    found.count = 0;
  }
  take(&found.now, bytes);
  found.count++;
  if (found.seen < RC_ESTIMATE_EPOCH) found.seen++;
  if (i != 0) memmove(&set[1], &set[0], i * sizeof *set); /* to the front */
  set[0] = found;
}
