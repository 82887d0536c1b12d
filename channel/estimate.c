/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reservations whose size is an estimate (ring/estimate.c).
 *
 * Such a reservation remembers its tag. The commit teaches the tag the size of the frame, and
 * counts whether the first reservation was enough, and how many bytes of the reservation went back
 * to the ring. Nothing else teaches a tag: a caller that knows the size reserves that size.
 */
#include <string.h>

#include "channel/channel.h"

size_t ringcast_writer_estimate(const ringcast_writer *writer, uint32_t tag) {
  return rc_estimate_of(&writer->estimates, tag, rc_max_frame(&writer->segment));
}

void rc_writer_learn(ringcast_writer *writer, size_t bytes) {
  struct rc_estimated *estimated = &writer->estimated;
  struct rc_estimate_counts *counts = &writer->ring.view.control->estimates;
  estimated->open = false;
  rc_estimate_learn(&writer->estimates, estimated->tag, bytes);
  rc_count(estimated->grew ? &counts->grown : &counts->hits, 1);
  rc_count(&counts->wasted, estimated->bytes - bytes);
}

/* Copies: a caller's memory may have any alignment and content. */
_Static_assert(sizeof(struct ringcast_sizes) == sizeof(struct rc_estimate), "a history of sizes");

uint64_t ringcast_sizes_add(struct ringcast_sizes *sizes, uint64_t bytes) {
  struct rc_estimate estimate;
  memcpy(&estimate, sizes, sizeof estimate);
  rc_estimate_add(&estimate, bytes);
  memcpy(sizes, &estimate, sizeof estimate);
  return rc_estimate_next(&estimate);
}
