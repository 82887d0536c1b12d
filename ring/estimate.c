/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bound on the next sizes that a few big frames do not raise.
 *
 * The estimate is the THIRD largest of the last 32 to 64 sizes, plus a sixteenth. A size that
 * occurs once or twice may be an accident. A size that occurs a third time within the window is
 * expected again, and the estimate rises. If large frames are absent for a window, the estimate
 * falls.
 *
 * If n sizes are exchangeable, then whatever the distribution, 3 in n + 1 exceed the third largest
 * of n. Without the sixteenth this is 5 to 9 in a hundred; sizes that vary by less than a sixteenth
 * never exceed the estimate. The first or second largest would be exceeded less often. But a prompt
 * in every fifty steps would then make a scheduler reserve several times the bytes written, at
 * every step. A reservation that is too small grows in place and copies nothing. Until 32 sizes are
 * known, the estimate follows the largest, since few sizes cannot show which of them is an
 * accident.
 *
 * The window is two epochs, the current and the previous. Each epoch stores its three largest sizes
 * only.
 */
#include "ring/estimate.h"

#include <string.h>

/* Knuth's multiplicative hash; 3 bits. */
static uint32_t set_of(uint32_t tag) { return tag * 0x9e3779b1u >> 29; }
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

uint64_t rc_estimate_next(const struct rc_estimate *estimate) {
  return estimate->seen != 0 ? with_reserve(bound_of(estimate)) : RC_ESTIMATE_DEFAULT;
}

void rc_estimate_add(struct rc_estimate *estimate, uint64_t bytes) {
  if (estimate->count >= RC_ESTIMATE_EPOCH) {
    estimate->before = estimate->now;
    estimate->now = (struct rc_estimate_peak){{0}};
    estimate->count = 0;
  }
  take(&estimate->now, bytes);
  estimate->count++;
  if (estimate->seen < RC_ESTIMATE_EPOCH) estimate->seen++;
}

uint64_t rc_estimate_of(const struct rc_estimates *estimates, uint32_t tag, uint64_t most) {
  const struct rc_estimate *set = estimates->sets[set_of(tag)];
  uint64_t bytes = RC_ESTIMATE_DEFAULT;
  for (uint32_t i = 0; i < RC_ESTIMATE_WAYS && set[i].seen != 0; i++) {
    if (set[i].tag != tag) continue;
    bytes = rc_estimate_next(&set[i]);
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
  rc_estimate_add(&found, bytes);
  if (i != 0) memmove(&set[1], &set[0], i * sizeof *set); /* to the front */
  set[0] = found;
}
