/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs once a frame, to be inlined where it is called; a call each way would cost as much as the work. What W0-W3,
 * R1, R2 and A1 mean, and all that is done less often, stands in ring.c.
 */
#ifndef RC_RING_FASTPATH_H
#define RC_RING_FASTPATH_H

#include <assert.h>
#include <errno.h>

#include "ring/point.h"
#include "ring/ring.h"

#define rc_likely(x)   __builtin_expect(!!(x), 1)
#define rc_unlikely(x) __builtin_expect(!!(x), 0)
/* What is seldom called, as the last thing: then the caller needs to save no registers, each of which is a store. */
#define rc_slow __attribute__((noinline, cold))

static inline struct rc_frame_header *rc_frame_at(const struct rc_ring *ring, uint64_t position) {
  return (struct rc_frame_header *)(ring->data + (position & (ring->capacity - 1)));
}

/* ---- Writer ----------------------------------------------------------------------------------------------------- */

static inline void *rc_ring_open(struct rc_ring_writer *writer, uint64_t bytes) {
  writer->open = true;
  writer->reserved = bytes;
  return rc_frame_at(&writer->ring, writer->tail) + 1;
}

/* Whether `bytes`, which a frame can have, can be reserved now without a look at the readers. */
static inline bool rc_ring_has_room(const struct rc_ring_writer *writer, uint64_t bytes) {
  uint64_t room = writer->limit - writer->tail; /* at most half the ring */
  return !writer->open && bytes < room && rc_frame_lines(bytes) + RC_FRAME_ALIGN <= room;
}

static inline int rc_ring_reserve(struct rc_ring_writer *writer, uint64_t bytes, void **out) {
  /* What fits in half a ring is not too large either, but for rings of more than 8 GiB. */
  if (rc_unlikely(bytes > UINT32_MAX || !rc_ring_has_room(writer, bytes)))
    return rc_ring_reserve_slowly(writer, bytes, out);
  *out = rc_ring_open(writer, bytes);
  return 0;
}

#define FETCH_AHEAD (12 * RC_LINE) /* a line takes as long to come as some 12 small frames take */

/* Closes the reservation with what stands in its place. */
static inline void rc_ring_publish(struct rc_ring_writer *writer, uint64_t bytes, uint16_t kind, uint16_t flags) {
  struct rc_ring *ring = &writer->ring;
  struct rc_frame_header *frame = rc_frame_at(ring, writer->tail);
  uint64_t lines = rc_frame_lines(bytes), end = writer->tail + lines;
  RC_POINT(PUBLISH);
  /* Else it is done: zeroed ahead, and no byte of the reservation lies there. */
  if (rc_unlikely(lines != writer->zeroed || lines != rc_frame_lines(writer->reserved))) {
    rc_store_relaxed(&rc_frame_at(ring, end)->commit, 0); /* W0: relaxed, W2 orders it */
    writer->zeroed = lines;
  }
  RC_POINT(W0_DONE);
  /* A line that is left out now and then costs more than one that is written for nothing: the CPU does not see any more
   * which lines come next. Relaxed: it is the frame's own, behind its payload. */
  if (lines > RC_FRAME_ALIGN && lines - sizeof *frame - bytes >= RC_LINE)
    rc_store_relaxed(&rc_frame_at(ring, end - RC_LINE)->commit, 0);
  rc_store_relaxed(&frame->about, rc_about_make((uint32_t)bytes, kind, flags)); /* W1: relaxed, W2 publishes it */
  RC_POINT(W1_DONE);
  rc_store_release(&frame->commit, end); /* W2 -> R1 */
  RC_POINT(W2_DONE);
  if (rc_likely(end + lines + RC_FRAME_ALIGN <= writer->limit)) {
    rc_store_relaxed(&rc_frame_at(ring, end + lines)->commit, 0); /* W0 of the next frame, if it is as long */
    /* A later frame's line is fetched now, so that the signaller's fence (E5) does not wait for each line alone. */
    __builtin_prefetch(rc_frame_at(ring, end + FETCH_AHEAD), 1);
  } else {
    writer->zeroed = 0;
  }
  RC_POINT(ZEROED_AHEAD);
  rc_store_release(&ring->control->tail, end); /* W3 -> J3 */
  RC_POINT(W3_DONE);
  writer->tail = end;
  writer->open = false;
  assert(rc_ring_writer_is_valid(writer));
}

static inline int rc_ring_commit(struct rc_ring_writer *writer, uint64_t bytes, uint16_t kind) {
  if (rc_unlikely(!writer->open || bytes > writer->reserved)) return -EINVAL;
  rc_ring_publish(writer, bytes, kind, 0);
  return 0;
}

/* ---- Reader ----------------------------------------------------------------------------------------------------- */

/* Whether anything is committed where the next frame starts. */
static inline bool rc_ring_is_there(const struct rc_ring_reader *reader) {
  return rc_load_acquire(&rc_frame_at(&reader->ring, reader->next)->commit) != 0; /* R1 <- W2 */
}

/* A frame that is there, in the ring and as it should be, while none is held. False: whatever else it is, rc_ring_next
 * says. */
static inline bool rc_ring_next_plain(struct rc_ring_reader *reader, struct rc_ring_frame *out) {
  assert(rc_ring_reader_is_valid(reader));
  const struct rc_frame_header *frame = rc_frame_at(&reader->ring, reader->next);
  uint64_t end = rc_load_acquire(&frame->commit); /* R1 <- W2 */
  if (end == 0 || rc_unlikely(reader->cursor != reader->next)) return false;
  uint64_t about = rc_load_acquire(&frame->about); /* R2: once, so that what was checked is what is used. -> R3 */
  uint32_t bytes = rc_about_bytes(about);
  RC_POINT(R2_DONE);
  if (rc_unlikely(rc_load_relaxed(&reader->own->owner) != reader->owner)) return false; /* R3 <- V1: evicted */
  if (rc_unlikely(rc_about_flags(about) != 0 || end - reader->next != rc_frame_lines(bytes) ||
                  bytes > reader->max_frame))
    return false;
  /* Callers keep it in registers, if they give its address to nobody: what is lent costs no round
   * trip through memory. */
  *out =
      (struct rc_ring_frame){.data = frame + 1, .position = reader->next, .bytes = bytes, .kind = rc_about_kind(about)};
  reader->next = end;
  return true;
}

/* Releases the frame at `position`, if it is the only one that is held, and has no pin. */
static inline bool rc_ring_release_only(struct rc_ring_reader *reader, uint64_t position) {
  if (rc_unlikely((reader->older | reader->newest.pins) != 0 || position != reader->cursor || position == reader->next))
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
