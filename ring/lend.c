/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lending the messages of packed frames, and groups of messages and frames.
 *
 * A reader pins a packed frame while it walks through the messages, and each loan (a message, or a
 * group) has a pin more. The cursor moves once, when the walk and all loans have ended. A group has
 * a single pin, and one that begins within a packed frame ends with this frame at the latest.
 */
#include "ring/ring.h"

/* Notes a loan and adds its pin. If the walk has just ended, the walk's pin becomes the loan's. */
static void lend(struct rc_ring_reader *reader, uint64_t position, uint32_t count) {
  struct rc_lent *lent = &reader->lent[reader->lents];
  *lent = (struct rc_lent){.position = position, .holder = reader->walked, .count = count};
  reader->lents++;
  if (rc_packed_is_left(&reader->packed)) rc_ring_pin_entry(reader, reader->walked);
}

/* The last held frame has a pin instead of the lease. */
static void pin_last(struct rc_ring_reader *reader, uint64_t start) {
  reader->walked = start;
  reader->held_last = (struct rc_held){.pins = 1};
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
  uint64_t start = reader->walked;
  const bool inside = rc_packed_is_left(&packed);
  if (inside) {
    if (!rc_ring_may_hold(reader)) return rc_ring_is_evicted(reader) ? -ESTALE : -EBUSY;
  } else {
    int result = rc_ring_next(reader, out);
    if (result != 0 || !out->packed) return result;
    start = out->position;
    packed = rc_packed_open(out->data, start, out->bytes);
  }
  int result = take_message(reader, &packed, out);
  if (result != 0) {
    if (!inside) rc_ring_unread(reader, start);
    return result;
  }
  if (!inside) pin_last(reader, start);
  reader->packed = packed;
  lend(reader, out->position, 1);
  return 0;
}

static struct ringcast_frame public_frame(const struct rc_ring_frame *frame) {
  return (struct ringcast_frame){
      .data = frame->data, .bytes = frame->bytes, .position = frame->position, .kind = frame->kind};
}

/* Reads messages, at most `most`, up to a gap or an invalid entry, and returns the number.
 * rc_packed_next reads on from there. The place of a message follows from the head before, and the
 * load of a head takes as long as the rest of the loop. So the loop supposes that the message is as
 * long as the message before: the CPU loads the next head, and checks the length later. A function
 * of its own, so that the loop has the registers to itself. */
__attribute__((noinline)) static uint32_t read_run(struct rc_packed *packed,
                                                   struct ringcast_frame *out, uint32_t most) {
  const uint8_t *data = packed->data;
  uint64_t at = packed->at, left = packed->bytes - at, usual = 0;
  uint32_t count = 0;
  while (count < most && left >= RC_PACKED_ALIGN) {
    /* R2, as in rc_packed_next. */
    uint64_t head = rc_load_relaxed((const _Atomic uint64_t *)(const void *)(data + at));
    uint64_t bytes = rc_meta_bytes(head), whole = RC_PACKED_ALIGN + rc_packed_round(bytes);
    if (whole > left || rc_meta_flags(head) != 0) break;
    out[count] = (struct ringcast_frame){.data = data + at + RC_PACKED_ALIGN,
                                         .bytes = bytes,
                                         .position = packed->position + at,
                                         .kind = rc_meta_kind(head)};
    if (whole != usual) {
      usual = whole;
      __asm__("" : "+r"(usual)); /* without this line the compiler uses the equal `whole` */
    }
    count++;
    left -= usual;
    at += usual;
  }
  packed->at = (uint32_t)at;
  return count;
}

/* Collects the messages that are left in `packed`, until *count is `most`. An error: of the entry
 * that comes next. */
static int collect_messages(struct rc_packed *packed, struct ringcast_frame *out, uint32_t most,
                            uint32_t *count) {
  struct ringcast_frame none;
  if (out && rc_packed_is_left(packed)) *count += read_run(packed, out + *count, most - *count);
  while (*count < most && rc_packed_is_left(packed)) {
    int result = rc_packed_next(packed, out ? &out[*count] : &none);
    if (result != 0) return result;
    *count += 1;
  }
  return 0;
}

/* Collects what is available from *next on, or from `packed` if any message is left there; `out`
 * NULL: only counts. Returns the number, or the error at the first; 0: a spilled frame. */
static int collect(const struct rc_ring_reader *reader, struct rc_packed *packed, uint64_t *next,
                   struct ringcast_frame *out, uint32_t most) {
  const bool inside = rc_packed_is_left(packed);
  uint32_t count = 0;
  int result;
  for (;;) {
    result = collect_messages(packed, out, most, &count);
    if (count == most || rc_packed_is_left(packed) || inside) break;
    struct rc_ring_frame frame;
    uint64_t end;
    result = rc_ring_read(&reader->view, *next, &frame, &end);
    if (result != 0 || frame.spilled) break;
    if (end - reader->cursor > reader->view.capacity) { /* the held frames exceed a lap */
      result = -EPROTO;
      break;
    }
    *next = end;
    if (frame.packed) {
      *packed = rc_packed_open(frame.data, frame.position, frame.bytes);
      continue;
    }
    if (out) out[count] = public_frame(&frame);
    count++;
  }
  return count > 0 ? (int)count : result;
}

static int next_spilled(struct rc_ring_reader *reader, struct ringcast_frame *out, uint32_t *count,
                        struct rc_ring_frame *spilled) {
  *count = 1;
  int result = rc_ring_next(reader, spilled);
  if (result == 0) *out = public_frame(spilled);
  return result;
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
  if (result == 0) return next_spilled(reader, out, count, spilled);
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
    pin_last(reader, start);
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
  const bool inside = rc_packed_is_left(&packed);
  const bool walked = rc_packed_is_left(&reader->packed);
  uint64_t next = group->next;
  if (count > 0 && collect(reader, &packed, &next, NULL, count) != (int)count)
    return rc_ring_is_evicted(reader) ? -ESTALE : -EPROTO;
  reader->packed = packed;
  *gone = count == 0 && !inside;
  if (*gone) {
    reader->held_last.pins = 0;
    rc_ring_unread(reader, next);
    return 0;
  }
  reader->next = next;
  /* The walk has a pin while anything is left, besides the pin of the loan. */
  if (rc_packed_is_left(&packed) && !walked) rc_ring_pin_entry(reader, lent->holder);
  if (!rc_packed_is_left(&packed) && walked) reader->held_last.pins--;
  return 0;
}

int rc_ring_release_many(struct rc_ring_reader *reader, uint64_t position, uint32_t count) {
  uint32_t i = find(reader, position);
  if (i == reader->lents || count > reader->lent[i].count) return -EINVAL;
  if (rc_ring_is_evicted(reader)) return -ESTALE; /* A0 */
  struct rc_lent lent = reader->lent[i];
  bool gone = false;
  if (count < lent.count) {
    int result = unread(reader, &lent, count, &gone);
    if (result != 0) return result;
  }
  reader->lents--;
  reader->lent[i] = reader->lent[reader->lents];
  if (!gone) rc_ring_unpin(reader, lent.holder);
  return 0;
}
