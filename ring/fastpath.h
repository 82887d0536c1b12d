/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that run once a frame. They are inline because a call would cost as much as the
 * work. ring.c explains W0-W3, R1, R2 and A1, and holds the functions that run less often.
 */
#ifndef RC_RING_FASTPATH_H
#define RC_RING_FASTPATH_H

#include <assert.h>
#include <errno.h>

#include "ring/point.h"
#include "ring/ring.h"

#define rc_likely(x)   __builtin_expect(!!(x), 1)
#define rc_unlikely(x) __builtin_expect(!!(x), 0)
/* For a rarely called function in tail position: the caller then saves no registers, each of which
 * is a store. */
#define rc_slow __attribute__((noinline, cold))

static inline struct rc_frame_header *rc_frame_at(const struct rc_ring *ring, uint64_t position) {
  return (struct rc_frame_header *)(ring->data + (position & (ring->capacity - 1)));
}

/* ---- Writer ---------------------------------------------------------------------------------- */

static inline void *rc_ring_open(struct rc_ring_writer *writer, uint64_t bytes) {
  writer->open = true;
  writer->reserved = bytes;
  return rc_frame_at(&writer->view, writer->tail) + 1;
}

/* Whether `bytes`, a valid frame size, can be reserved without reading the cursors. */
static inline bool rc_ring_has_room(const struct rc_ring_writer *writer, uint64_t bytes) {
  uint64_t room = writer->limit - writer->tail; /* at most half the ring */
  return !writer->open && writer->credit != 0 && bytes < room &&
         rc_frame_lines(bytes) + RC_FRAME_ALIGN <= room;
}

static inline int rc_ring_reserve(struct rc_ring_writer *writer, uint64_t bytes, void **out) {
  /* A frame that fits in half a ring is not too large, except in rings of more than 8 GiB. */
  if (rc_unlikely(bytes > UINT32_MAX || !rc_ring_has_room(writer, bytes)))
    return rc_ring_reserve_slowly(writer, bytes, out);
  *out = rc_ring_open(writer, bytes);
  return 0;
}

#define RC_FETCH_AHEAD \
  (12 * (uint64_t)RC_LINE) /* fetching a line takes about as long as writing 12 small frames */

/* Commits the first `bytes` of the open reservation. */
static inline void rc_ring_publish(struct rc_ring_writer *writer, uint64_t bytes, uint16_t kind,
                                   uint16_t flags) {
  struct rc_ring *ring = &writer->view;
  struct rc_control *control = ring->control;
  uint64_t position = writer->tail, lines = rc_frame_lines(bytes), end = position + lines;
  struct rc_frame_header *frame = rc_frame_at(ring, position);
  RC_POINT(PUBLISH);
  /* Otherwise the word at `end` was zeroed ahead, and no byte of the reservation lies there. */
  if (rc_unlikely(lines != writer->zeroed || lines != rc_frame_lines(writer->reserved))) {
    rc_store_relaxed(&rc_frame_at(ring, end)->commit, 0); /* W0: relaxed, W2 orders it */
    writer->zeroed = lines;
  }
  RC_POINT(W0_DONE);
  /* Skipping a line now and then costs more than a useless store: the CPU's prefetcher loses the
   * sequence of lines. Relaxed: the word belongs to this frame, after the payload. */
  if (lines > RC_FRAME_ALIGN && lines - sizeof *frame - bytes >= RC_LINE)
    rc_store_relaxed(&rc_frame_at(ring, end - RC_LINE)->commit, 0);
  rc_store_relaxed(&frame->meta,
                   rc_meta_make((uint32_t)bytes, kind, flags)); /* W1: relaxed, W2 publishes it */
  RC_POINT(W1_DONE);
  rc_store_release(&frame->commit, end); /* W2 -> R1 */
  RC_POINT(W2_DONE);
  rc_store_release(&control->newest, position); /* N0 -> J5 */
  rc_store_release(&control->tail, end);        /* W3 -> J3 */
  RC_POINT(W3_DONE);
  writer->tail = end;
  writer->credit--;
  writer->open = false;
  writer->zeroed = 0;
  assert(rc_ring_writer_is_valid(writer));
}

/* W0 of the next frame, in case that frame is as long as the last one, of `bytes`. The caller has
 * passed the signaller's fence (E5), which would wait for this line. */
static inline void rc_ring_zero_ahead(struct rc_ring_writer *writer, uint64_t bytes) {
  const struct rc_ring *ring = &writer->view;
  uint64_t lines = rc_frame_lines(bytes), end = writer->tail;
  assert(!writer->open);
  if (rc_unlikely(end + lines + RC_FRAME_ALIGN > writer->limit)) return;
  rc_store_relaxed(&rc_frame_at(ring, end + lines)->commit, 0); /* relaxed: as in rc_ring_publish */
  writer->zeroed = lines;
  /* Prefetch a later frame's line, so that the next fences do not wait for each line in turn. */
  __builtin_prefetch(rc_frame_at(ring, end + RC_FETCH_AHEAD), 1);
  RC_POINT(ZEROED_AHEAD);
}

static inline int rc_ring_commit(struct rc_ring_writer *writer, uint64_t bytes, uint16_t kind) {
  if (rc_unlikely(!writer->open || bytes > writer->reserved)) return -EINVAL;
  rc_ring_publish(writer, bytes, kind, 0);
  return 0;
}

/* ---- Reader ---------------------------------------------------------------------------------- */

/* Whether the next frame is committed. */
static inline bool rc_ring_is_available(const struct rc_ring_reader *reader) {
  return rc_load_acquire(&rc_frame_at(&reader->view, reader->next)->commit) != 0; /* R1 <- W2 */
}

/* The usual case of rc_ring_next: the next frame is committed, valid and not spilled, and the
 * reader holds no frame. False: call rc_ring_next, which handles all other cases. */
static inline bool rc_ring_next_plain(struct rc_ring_reader *reader, struct rc_ring_frame *out) {
  assert(rc_ring_reader_is_valid(reader));
  const struct rc_frame_header *frame = rc_frame_at(&reader->view, reader->next);
  uint64_t end = rc_load_acquire(&frame->commit); /* R1 <- W2 */
  if (end == 0 || rc_unlikely(reader->cursor != reader->next)) return false;
  uint64_t meta = rc_load_acquire(
      &frame->meta); /* R2: loaded once, so the checked value is the used value. -> R3 */
  uint32_t bytes = rc_meta_bytes(meta);
  RC_POINT(R2_DONE);
  if (rc_unlikely(rc_load_relaxed(&reader->own->owner) != reader->owner))
    return false; /* R3 <- V1: evicted */
  if (rc_unlikely(rc_meta_flags(meta) != 0 || end - reader->next != rc_frame_lines(bytes) ||
                  bytes > reader->max_frame))
    return false;
  /* If the caller does not pass on the address of *out, the compiler keeps *out in registers. */
  *out = (struct rc_ring_frame){
      .data = frame + 1, .position = reader->next, .bytes = bytes, .kind = rc_meta_kind(meta)};
  reader->next = end;
  return true;
}

/* Releases the frame at `position` if that frame has no pin and the reader holds no other. */
static inline bool rc_ring_release_only(struct rc_ring_reader *reader, uint64_t position) {
  if (rc_unlikely((reader->older | reader->newest.pins) != 0 || position != reader->cursor ||
                  position == reader->next))
    return false;
  RC_POINT(RELEASE);
  if (rc_unlikely(rc_ring_is_evicted(reader))) return false; /* A0 */
  RC_POINT(A0_DONE);
  reader->cursor = reader->next;
  rc_store_release(&reader->own->cursor, reader->cursor); /* A1 -> G2 */
  RC_POINT(A1_DONE);
  return true;
}

#endif
