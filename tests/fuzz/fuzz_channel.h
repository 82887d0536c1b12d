/* SPDX-License-Identifier: Apache-2.0 */
/* For the fuzz targets of the public API: where memory that is lent may lie. */
#ifndef RC_TESTS_FUZZ_CHANNEL_H
#define RC_TESTS_FUZZ_CHANNEL_H

#include "channel/channel.h"
#include "tests/fuzz/fuzz.h"

/* In the ring, whose first half a frame begins in, or in spill memory. Returns whether the memory
 * is the ring's. */
static inline bool must_lie_within(const struct rc_segment *segment, const uint8_t *from,
                                   size_t bytes) {
  bool in_data = from >= segment->data.base && from < segment->data.base + segment->capacity;
  const struct rc_memory *memory = in_data ? &segment->data : &segment->spill;
  const uint8_t *end = memory->base + memory->bytes * memory->mappings;
  require(in_data || (from >= segment->spill.base && from <= end));
  require(bytes <= (size_t)(end - from));
  return in_data;
}

#endif
