/* SPDX-License-Identifier: Apache-2.0 */
/* Info and stats: the properties of a ring, and the counts of each participant. */
#include "channel/stats.h"

#include <string.h>

#include "shm/error.h"
#include "shm/options.h"

static void add_to_bucket(struct rc_histogram *histogram, uint64_t waited_ns, uint32_t more) {
  const uint64_t us = waited_ns / 1000;
  uint32_t bucket = 0;
  if (us != 0) bucket = (uint32_t)(64 - __builtin_clzll(us));
  if (bucket >= RC_BUCKETS) bucket = RC_BUCKETS - 1;
  rc_store_relaxed(&histogram->counts[bucket], rc_load_relaxed(&histogram->counts[bucket]) + more);
}

void rc_count_wait_for_frame(ringcast_reader *reader, uint64_t sleeps) {
  struct rc_slot *slot = &reader->ring.view.control->slots[reader->ring.slot];
  rc_count(&slot->counts.waits, 1);
  rc_count(&slot->counts.sleeps, sleeps);
  rc_count(&slot->counts.waited_ns, reader->waiter.waited_ns);
  add_to_bucket(&slot->waits, reader->waiter.waited_ns, 1);
}

/* A program that waits in slices waits once: the count of its bucket moves up with each slice. */
void rc_count_wait_for_room(ringcast_writer *writer, uint64_t sleeps) {
  struct rc_liveness *liveness = &writer->liveness;
  struct rc_control *control = writer->ring.view.control;
  rc_count(&control->counts.sleeps, sleeps);
  rc_count(&control->counts.waited_ns, writer->waiter.waited_ns);
  if (!liveness->waits) rc_count(&control->counts.waits, 1);
  else add_to_bucket(&control->waits, liveness->waited_ns, UINT32_MAX); /* less one */
  liveness->waits = true;
  liveness->waited_ns += writer->waiter.waited_ns;
  add_to_bucket(&control->waits, liveness->waited_ns, 1);
}

struct ringcast_stats rc_stats_of(struct rc_counts *counts, struct rc_histogram *histogram) {
  struct ringcast_stats stats = {
      .size = sizeof stats,
      .frames = rc_load_relaxed(&counts->frames),
      .bytes = rc_load_relaxed(&counts->bytes),
      .waits = rc_load_relaxed(&counts->waits),
      .sleeps = rc_load_relaxed(&counts->sleeps),
      .wakes = rc_load_relaxed(&counts->wakes),
      .waited_ns = rc_load_relaxed(&counts->waited_ns),
  };
  for (uint32_t i = 0; i < RC_BUCKETS; i++)
    stats.histogram[i] = rc_load_relaxed(&histogram->counts[i]);
  return stats;
}

uint64_t rc_max_frame(const struct rc_segment *segment) {
  const uint64_t in_ring = rc_ring_max_frame(segment->capacity);
  const uint64_t spilled = rc_spill_max_frame(segment->spill.bytes);
  return spilled > in_ring ? spilled : in_ring;
}

static int write_stats(const struct ringcast_stats *stats, struct ringcast_stats *out) {
  int result = rc_sized_check("ringcast_stats", out->size);
  if (result == 0) rc_sized_write(out, out->size, stats, sizeof *stats);
  return result;
}

static int write_reader_stats(struct rc_slot *slot, struct ringcast_stats *out) {
  struct ringcast_stats stats = rc_stats_of(&slot->counts, &slot->waits);
  return write_stats(&stats, out);
}

int rc_writer_stats_write(struct rc_control *control, struct ringcast_stats *out) {
  struct ringcast_stats stats = rc_stats_of(&control->counts, &control->waits);
  /* Relaxed: statistics, as all here. */
  stats.estimate_hits = rc_load_relaxed(&control->estimates.hits);
  stats.grown = rc_load_relaxed(&control->estimates.grown);
  stats.wasted_bytes = rc_load_relaxed(&control->estimates.wasted);
  return write_stats(&stats, out);
}

int rc_info_write(const struct rc_segment *segment, uint64_t tail, const struct rc_waiter *waiter,
                  struct ringcast_info *out) {
  int result = rc_sized_check("ringcast_info", out->size);
  if (result != 0) return result;
  struct ringcast_info info = {
      .capacity = segment->capacity,
      .max_frame = rc_max_frame(segment),
      .ring_frame = rc_ring_max_frame(segment->capacity),
      .tail = tail,
      .readers = segment->slots,
      .memory = segment->data.memory,
      .page_size = segment->data.page_size,
      .writer_pid = segment->writer.pid,
      .spin_ns = waiter->spin_ns,
      .numa = segment->data.numa,
      .numa_node = segment->data.node,
      .numa_error = segment->data.numa_error,
      .spill_error = segment->spill_error,
      .spill_bytes = segment->spill.bytes,
      /* Relaxed: a statistic. */
      .spill_used = rc_load_relaxed(&rc_segment_control(segment)->spill_used),
  };
  memcpy(info.name, segment->name, sizeof info.name);
  rc_sized_write(out, out->size, &info, sizeof info);
  return 0;
}

/* ---- Public ---------------------------------------------------------------------------------- */

int ringcast_writer_stats(const ringcast_writer *writer, struct ringcast_stats *out) {
  int result = rc_check_fork(writer->forks);
  if (result != 0) return result;
  return rc_writer_stats_write(writer->ring.view.control, out);
}

int ringcast_reader_stats(const ringcast_reader *reader, struct ringcast_stats *out) {
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  return write_reader_stats(&reader->ring.view.control->slots[reader->ring.slot], out);
}

int ringcast_writer_info(const ringcast_writer *writer, struct ringcast_info *out) {
  int result = rc_check_fork(writer->forks);
  if (result != 0) return result;
  return rc_info_write(&writer->segment, writer->ring.tail, &writer->waiter, out);
}

/* Relaxed: a statistic, no data is read because of it. */
static uint64_t tail_of(const ringcast_reader *reader) {
  return rc_load_relaxed(&reader->ring.view.control->tail);
}

int ringcast_reader_info(const ringcast_reader *reader, struct ringcast_info *out) {
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  return rc_info_write(&reader->segment, tail_of(reader), &reader->waiter, out);
}

int ringcast_reader_lag(const ringcast_reader *reader, uint64_t *out) {
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  const uint64_t lag = tail_of(reader) - reader->ring.cursor;
  /* The tail is stored just after the commit: it may still be below the cursor. */
  *out = lag <= reader->ring.view.capacity ? lag : 0;
  return 0;
}
