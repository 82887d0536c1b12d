/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's reservations that are too large for the ring: payload in spill memory, descriptor in
 * the ring. */
#include <errno.h>
#include <string.h>

#include "channel/channel.h"

#define DESCRIPTOR sizeof(struct rc_spilled)

/* Gives idle spill memory back to the machine, and publishes the change. Off the hot path: called
 * where the cursors have just been loaded, or memory was taken. */
static void trim(ringcast_writer *writer) {
  struct rc_control *control = writer->ring.view.control;
  writer->looked = writer->ring.limit;
  if (writer->backing.excess == 0) return;
  rc_spill_reclaim(&writer->spill,
                   &writer->ring); /* frees nothing while a reader joins: then the next call does */
  if (!rc_backing_trim(&writer->backing, &writer->spill)) return;
  /* Relaxed: for readers, the commit of the next frame in this memory publishes the epoch. */
  rc_store_relaxed(&control->spill_epoch, rc_load_relaxed(&control->spill_epoch) + 1);
  RC_POINT(EPOCH_DONE);
  rc_store_relaxed(&control->spill_used, writer->backing.in_place); /* relaxed: a statistic */
}

static uint8_t *payload_at(const ringcast_writer *writer, uint64_t offset) {
  return writer->segment.spill.base + offset + RC_SPILL_PHASE;
}

const void *rc_writer_spilled(const ringcast_writer *writer) {
  return payload_at(writer, writer->spill.open.offset);
}

static int find(ringcast_writer *writer, uint64_t bytes, bool grow, uint64_t *offset) {
  int looked = rc_spill_reclaim(&writer->spill, &writer->ring);
  int result = rc_spill_find(&writer->spill, bytes, grow, offset);
  writer->spill_lacks = result == -EAGAIN;
  return result == -EAGAIN && looked != 0 ? looked : result;
}

/* Finds a region, and provides its memory. */
static int provide(ringcast_writer *writer, uint64_t bytes, bool grow, uint64_t *offset) {
  int result = find(writer, bytes, grow, offset);
  if (result != 0) return result;
  result = rc_backing_provide(&writer->backing, *offset, rc_spill_room(bytes));
  rc_store_relaxed(&writer->ring.view.control->spill_used,
                   writer->backing.in_place); /* relaxed: a statistic */
  return result;
}

/* Finds a region, provides its memory, and moves the open reservation there: `filled` bytes at
 * `from`. */
static int move_to_spill(ringcast_writer *writer, uint64_t bytes, bool grow, const void *from,
                         uint64_t filled, void **out) {
  uint64_t offset;
  int result = provide(writer, bytes, grow, &offset);
  if (result != 0) return result;
  *out = payload_at(writer, offset);
  if (filled != 0 && *out != from) memmove(*out, from, filled);
  RC_POINT(MOVED);
  rc_spill_open(&writer->spill, offset, bytes);
  trim(writer);
  return 0;
}

/* Reserves the descriptor in the ring first, then the region. After an error the reservation is
 * unchanged. */
static int reserve_spill(ringcast_writer *writer, uint64_t bytes, bool grow, void **out) {
  struct rc_ring_writer *ring = &writer->ring;
  const struct rc_spill *spill = &writer->spill;
  if (rc_spill_room(bytes) > spill->bytes) return -EMSGSIZE;
  uint64_t before = ring->reserved;
  void *place;
  writer->spill_lacks = false;
  int result =
      grow ? rc_ring_grow(ring, DESCRIPTOR, &place) : rc_ring_reserve(ring, DESCRIPTOR, &place);
  if (result != 0) return result;
  RC_POINT(DESCRIPTOR_ROOM);
  uint64_t filled = !grow ? 0 : spill->is_open ? spill->reserved : before;
  if (spill->is_open) place = payload_at(writer, spill->open.offset);
  result = move_to_spill(writer, bytes, grow, place, filled, out);
  if (result == 0) return 0;
  if (grow) ring->reserved = before;
  else rc_ring_abort(ring);
  return result;
}

int rc_writer_try_large(ringcast_writer *writer, uint64_t bytes, bool grow, void **out) {
  struct rc_ring_writer *ring = &writer->ring;
  int result;
  if (bytes > writer->ring_frame || (grow && writer->is_large)) {
    if (grow != ring->open) return grow ? -EINVAL : -EBUSY;
    result = reserve_spill(writer, bytes, grow, out);
    writer->is_large = writer->spill.is_open;
    return result;
  }
  result = grow ? rc_ring_grow(ring, bytes, out) : rc_ring_reserve(ring, bytes, out);
  if (ring->limit != writer->looked) trim(writer);
  return result;
}

uint64_t rc_writer_wanted(const ringcast_writer *writer, uint64_t bytes) {
  bool large = bytes > writer->ring_frame || writer->is_large;
  if (large && writer->spill_lacks) return rc_spill_wanted(&writer->spill, bytes);
  return rc_ring_wanted(&writer->ring, large ? DESCRIPTOR : bytes);
}

int rc_writer_commit_large(ringcast_writer *writer, uint64_t bytes, uint16_t kind) {
  int result = rc_spill_commit(&writer->spill, &writer->ring, bytes, kind);
  writer->is_large = result != 0;
  return result;
}

void rc_writer_abort_large(ringcast_writer *writer) {
  rc_spill_abort(&writer->spill);
  rc_ring_abort(&writer->ring);
  writer->is_large = false;
}
