/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of packed frames, and of groups. */
#include "ring/ring.h"

#include "ring/ring.h"

/* Notes a loan and adds its pin. If the walk has just ended, the walk's pin becomes the loan's. */
static void lend(struct rc_ring_reader *reader, uint64_t position, uint32_t count) {
  reader->lent[reader->lents++] =
      (struct rc_lent){.position = position, .holder = reader->walked, .count = count};
  if (rc_packed_is_left(&reader->packed)) rc_ring_pin_entry(reader, reader->walked);
}

/* The newest frame has a pin instead of the lease. */
static void pin_newest(struct rc_ring_reader *reader, uint64_t start) {
  reader->walked = start;
  reader->newest = (struct rc_held){.pins = 1};
}

static int take_message(struct rc_ring_reader *reader, struct rc_packed *packed,
                        struct rc_ring_frame *out) {
  struct ringcast_frame message;
  int result = rc_packed_next(packed, &message);
  if (rc_ring_is_evicted(reader)) return -ESTALE; /* R3 */
  if (result != 0) return result;
  *out = (struct rc_ring_frame){.data = message.data,
                                .position = message.position,
                                .bytes = message.bytes,
                                .kind = message.kind};
  return 0;
}

int rc_ring_take(struct rc_ring_reader *reader, struct rc_ring_frame *out) {
  struct rc_packed packed = reader->packed;
  const bool inside = rc_packed_is_left(&packed);
  if (inside && !rc_ring_may_hold(reader)) return rc_ring_is_evicted(reader) ? -ESTALE : -EBUSY;
  int result = inside ? 0 : rc_ring_next(reader, out);
  if (result != 0 || (!inside && !out->packed)) return result;
  uint64_t start = inside ? reader->walked : out->position;
  if (!inside) packed = rc_packed_open(out->data, start, out->bytes);
  result = take_message(reader, &packed, out);
  if (result != 0) {
    if (!inside) rc_ring_unread(reader, start);
    return result;
  }
  if (!inside) pin_newest(reader, start);
  reader->packed = packed;
  lend(reader, out->position, 1);
  return 0;
}

/* Collects what is available from *next on, or from `packed` if any message is left there; `out`
 * NULL: only counts. Returns the number, or the error at the first. */
static int collect(const struct rc_ring_reader *reader, struct rc_packed *packed, uint64_t *next,
                   struct ringcast_frame *out, uint32_t most) {
  const bool inside = rc_packed_is_left(packed);
  struct ringcast_frame none;
  struct rc_ring_frame frame;
  int result = 0;
  uint32_t count = 0;
  for (uint64_t end; count < most; *next = end) {
    if (out) count += rc_packed_run(packed, out + count, most - count);
    while (count < most && rc_packed_is_left(packed) &&
           (result = rc_packed_next(packed, out ? &out[count] : &none)) == 0)
      count++;
    if (count == most || rc_packed_is_left(packed) || inside) break;
    result = rc_ring_read(&reader->view, *next, &frame, &end);
    if (result != 0 || frame.spilled) break;
    result = end - reader->cursor > reader->view.capacity ? -EPROTO
                                                          : 0; /* the held frames exceed a lap */
    if (result != 0) break;
    if (frame.packed) *packed = rc_packed_open(frame.data, frame.position, frame.bytes);
    else
      *(out ? &out[count] : &none) = (struct ringcast_frame){
          .data = frame.data, .bytes = frame.bytes, .position = frame.position, .kind = frame.kind};
    count += !frame.packed;
  }
  return count > 0 ? (int)count : result;
}

int rc_ring_next_many(struct rc_ring_reader *reader, struct ringcast_frame *out, uint32_t most,
                      uint32_t *count, struct rc_ring_frame *spilled) {
  assert(rc_ring_reader_is_valid(reader));
  if (!rc_ring_may_hold(reader)) return rc_ring_is_evicted(reader) ? -ESTALE : -EBUSY;
  struct rc_packed packed = reader->packed;
  const bool inside = rc_packed_is_left(&packed);
  uint64_t next = reader->next;
  int result = collect(reader, &packed, &next, out, most < INT32_MAX ? most : INT32_MAX);
  if (rc_ring_is_evicted(reader)) return -ESTALE; /* R3 */
  if (result < 0) return result;
  if (result == 0) { /* a spilled frame */
    *count = 1;
    result = rc_ring_next(reader, spilled);
    if (result == 0)
      *out = (struct ringcast_frame){.data = spilled->data,
                                     .bytes = spilled->bytes,
                                     .position = spilled->position,
                                     .kind = spilled->kind};
    return result;
  }
  *count = (uint32_t)result;
  reader->group = (struct rc_group){.position = out->position,
                                    .packed = reader->packed,
                                    .next = reader->next,
                                    .next_after = next,
                                    .at_after = packed.at};
  reader->packed = packed;
  if (!inside) {
    uint64_t start = reader->next;
    rc_ring_hold(reader, next);
    pin_newest(reader, start);
  }
  lend(reader, out->position, *count);
  spilled->spilled = false;
  return 0;
}

static uint32_t find(const struct rc_ring_reader *reader, uint64_t position) {
  uint32_t i = 0;
  while (i < reader->lents && reader->lent[i].position != position) i++;
  return i;
}

uint32_t rc_ring_lent(const struct rc_ring_reader *reader, uint64_t position) {
  uint32_t i = find(reader, position);
  return i < reader->lents ? reader->lent[i].count : 0;
}

/* Goes back to where only the first `count` of the last group are taken. The frames are still held,
 * so only a hostile writer can have changed the bytes. Sets *gone if the entry with the pin is
 * gone, too. */
static int unread(struct rc_ring_reader *reader, const struct rc_lent *lent, uint32_t count,
                  bool *gone) {
  const struct rc_group *group = &reader->group;
  if (lent->position != group->position) return -EINVAL;
  if (reader->next != group->next_after || reader->packed.at != group->at_after) return -EINVAL;
  struct rc_packed packed = group->packed;
  const bool inside = rc_packed_is_left(&packed), walked = rc_packed_is_left(&reader->packed);
  uint64_t next = group->next;
  if (count > 0 && collect(reader, &packed, &next, NULL, count) != (int)count)
    return rc_ring_is_evicted(reader) ? -ESTALE : -EPROTO;
  reader->packed = packed;
  *gone = count == 0 && !inside;
  if (*gone) {
    reader->newest.pins = 0;
    rc_ring_unread(reader, next);
    return 0;
  }
  reader->next = next;
  /* The walk has a pin while anything is left, besides the pin of the loan. */
  if (rc_packed_is_left(&packed) && !walked) rc_ring_pin_entry(reader, lent->holder);
  if (!rc_packed_is_left(&packed) && walked) reader->newest.pins--;
  return 0;
}

int rc_ring_release_many(struct rc_ring_reader *reader, uint64_t position, uint32_t count) {
  uint32_t i = find(reader, position);
  if (i == reader->lents || count > reader->lent[i].count) return -EINVAL;
  if (rc_ring_is_evicted(reader)) return -ESTALE; /* A0 */
  struct rc_lent lent = reader->lent[i];
  bool gone = false;
  int result = count < lent.count ? unread(reader, &lent, count, &gone) : 0;
  if (result != 0) return result;
  reader->lent[i] = reader->lent[--reader->lents];
  if (!gone) rc_ring_unpin(reader, lent.holder);
  return 0;
}
