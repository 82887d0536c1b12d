/* SPDX-License-Identifier: Apache-2.0 */
/* The operations whose machine code tests/lint/arm.py looks at, each as a function of its own. */
#include "ring/eventcount.h"
#include "ring/ring.h"

int probe_commit(struct rc_ring_writer *writer, uint64_t bytes);
bool probe_next(struct rc_ring_reader *reader, struct rc_ring_frame *out);
bool probe_release(struct rc_ring_reader *reader, uint64_t position);
bool probe_is_asleep(struct rc_eventcount *event);
bool probe_is_asleep_unfenced(struct rc_eventcount *event);
uint32_t probe_announce(struct rc_eventcount *event);
bool probe_advance(struct rc_eventcount *event);

int probe_commit(struct rc_ring_writer *writer, uint64_t bytes) {
  return rc_ring_commit(writer, bytes, 0);
}
bool probe_next(struct rc_ring_reader *reader, struct rc_ring_frame *out) {
  return rc_ring_next_plain(reader, out);
}
bool probe_release(struct rc_ring_reader *reader, uint64_t position) {
  return rc_ring_release_only(reader, position);
}
bool probe_is_asleep(struct rc_eventcount *event) { return rc_eventcount_is_asleep(event); }
bool probe_is_asleep_unfenced(struct rc_eventcount *event) {
  return rc_eventcount_is_asleep_unfenced(event);
}
uint32_t probe_announce(struct rc_eventcount *event) { return rc_eventcount_announce(event); }
bool probe_advance(struct rc_eventcount *event) { return rc_eventcount_advance(event); }
