/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How frames pass from one writer to many readers without a lock, and why none is torn, lost or read twice.
 *
 * Publishing. Positions only grow; a frame at position p starts with a commit word, which is 0 until the frame is
 * complete and the position after it, e, from then on. Before the writer commits p the word at e, where the next frame
 * will start, is zero:
 *
 *     writer                                          reader at r
 *     W0  commit[e] = 0                               R1  load-acquire commit[r]; 0: nothing yet
 *     W1  payload, bytes, kind of p                   R2  read bytes, kind, payload in place
 *     W2  store-release commit[p] = e   -> R1         A1  store-release cursor = e   -> G2
 *     W3  store-release tail = e        -> J3
 *
 * W2 -> R1: who sees e also sees the payload (W1) and the zero at e (W0). So a reader that has arrived at e by way of p
 * finds either that zero or e's own commit, never what an earlier lap left there. The first word of all, at 0, is zero
 * because memory starts so. A small frame and its commit word share one line: that line is all that moves.
 *
 * W0 is done ahead, just after the commit before, for a frame as long as that: then it does not stand in the way of W2
 * (stores become visible in order, and this one has to fetch its line), and the line is the writer's already when the
 * next frame is written. A trip takes a quarter less. A frame of another length, or whose reservation reached over that
 * word, has its W0 done before W2. In either case it comes before W2 in program order, which is all that counts.
 *
 * Room. The writer fills positions below its limit. A grant sets
 *     limit = min(lowest cursor + capacity, tail + capacity / 2)
 * so nothing above any cursor is overwritten, and below limit - capacity lies all that an observer who holds nobody
 * back must not trust. G2 (load-acquire cursor) pairs with A1: the reader's loads of a frame come before the writer's
 * stores over it. "need" covers the next frame's header, since W0 writes there. By the same look at the cursors,
 * rc_ring_lowest, spill memory becomes free again.
 *
 * Joining. A reader must start at a position that the writer will not have overwritten by the time it looks:
 *
 *     writer's grant                                  joining reader
 *     (W3 tail, earlier)                              J1  owner: FREE -> JOINING
 *     G0  full fence                                  J2  full fence
 *     G1  load-acquire owner of every slot            J3  load-acquire tail; cursor = tail
 *     G2  load-acquire cursor of those ACTIVE         J4  owner: JOINING -> ACTIVE, release   -> G1
 *
 * G0 and J2 pair: either G1 sees JOINING, and then the writer grants itself nothing until that has passed; or J3 sees a
 * tail at least as new as the grant's, and then limit <= tail + capacity / 2 keeps the reader's start safe. J4 -> G1:
 * who sees ACTIVE sees the cursor that belongs to it. If the slot changes hands between G1 and G2 the cursor read
 * belongs to a later owner, which started at some tail of its own: the grant then counts it as if it had joined just
 * before.
 *
 * Between W2 and W3 the tail is one frame behind. Who reads that frame, leaves and joins again in this gap must not get
 * it twice; so J3 looks at the commit word at the tail too, and starts after a frame that is there already.
 *
 * Leaving is an exchange for FREE, whose release pairs with G1 as A1 does with G2. A reader that is too slow can be
 * evicted: slot.c tells how it finds out, and what becomes of slots whose owner is dead.
 *
 * What comes from the other side is checked before use: a commit word must lie ahead of its frame by the frame's own
 * length, on a frame's place, within one lap; a cursor must lie within one lap behind the tail.
 */
#include "ring/fastpath.h"

#include <assert.h>
#include <errno.h>

/* ---- Writer ----------------------------------------------------------------------------------------------------- */

void rc_ring_writer_init(struct rc_ring_writer *writer, struct rc_ring ring) {
  *writer = (struct rc_ring_writer){.ring = ring};
}

bool rc_ring_writer_is_valid(const struct rc_ring_writer *writer) {
  uint64_t capacity = writer->ring.capacity;
  bool shape = capacity >= RC_MIN_BYTES && (capacity & (capacity - 1)) == 0 && writer->tail % RC_FRAME_ALIGN == 0;
  /* The header at the tail is ours to zero, and no more than half a ring is ever granted. The limit is 0 before the
   * first grant. */
  bool room = writer->limit == 0
                  ? writer->tail == 0
                  : writer->tail + RC_FRAME_ALIGN <= writer->limit && writer->limit - writer->tail <= capacity / 2;
  bool ahead = writer->zeroed == 0 || (writer->zeroed % RC_FRAME_ALIGN == 0 &&
                                       writer->tail + writer->zeroed + RC_FRAME_ALIGN <= writer->limit);
  return shape && room && ahead && (!writer->open || writer->reserved <= rc_ring_max_frame(capacity));
}

int rc_ring_lowest(struct rc_ring_writer *writer, uint64_t *out) {
  const struct rc_ring *ring = &writer->ring;
  uint64_t lowest = writer->tail;
  rc_fence_full(); /* G0 -> J2 */
  for (uint32_t i = 0; i < ring->slots; i++) {
    struct rc_slot *slot = &ring->control->slots[i];
    enum rc_slot_state state = rc_owner_state(rc_load_acquire(&slot->owner)); /* G1 <- J4, and leaving */
    if (state == RC_SLOT_FREE || state == RC_SLOT_EVICTED) continue;
    uint64_t cursor = state == RC_SLOT_ACTIVE ? rc_load_acquire(&slot->cursor) : 0; /* G2 <- A1 */
    if (state == RC_SLOT_ACTIVE && rc_ring_is_cursor(writer, cursor)) {
      if (cursor < lowest) {
        lowest = cursor;
        writer->blocker = i;
      }
      continue;
    }
    writer->blocker = i;
    return state == RC_SLOT_JOINING ? -EAGAIN : -EPROTO;
  }
  *out = lowest;
  return 0;
}

/* Sets the limit anew. */
static int grant(struct rc_ring_writer *writer) {
  const struct rc_ring *ring = &writer->ring;
  uint64_t lowest;
  int result = rc_ring_lowest(writer, &lowest);
  if (result != 0) return result;
  uint64_t limit = lowest + ring->capacity, half = writer->tail + ring->capacity / 2;
  if (half < limit) limit = half;
  if (limit > writer->limit) writer->limit = limit; /* never back: a reader whose cursor went back is to blame itself */
  RC_POINT(GRANT);
  /* Relaxed, with a fence after it: an observer that saw a byte written from here on must find this limit
   * or a later. */
  rc_store_relaxed(&ring->control->limit, writer->limit); /* L0 -> T3 */
  RC_POINT(L0_DONE);
  rc_fence_release(); /* L1 -> T2, A0 */
  RC_POINT(L1_DONE);
  return 0;
}

/* A frame's lines and the line of the next header. */
static uint64_t need_of(uint64_t bytes) { return rc_frame_lines(bytes) + RC_FRAME_ALIGN; }

uint64_t rc_ring_wanted(const struct rc_ring_writer *writer, uint64_t bytes) {
  uint64_t end = writer->tail + need_of(bytes);
  return end > writer->ring.capacity ? end - writer->ring.capacity : 0;
}

/* Makes sure that `bytes` of payload may be written at the tail. */
static int ensure(struct rc_ring_writer *writer, uint64_t bytes) {
  if (bytes > rc_ring_max_frame(writer->ring.capacity)) return -EMSGSIZE;
  if (writer->tail + need_of(bytes) <= writer->limit) return 0;
  int result = grant(writer);
  if (result != 0) return result;
  return writer->tail + need_of(bytes) <= writer->limit ? 0 : -EAGAIN;
}

int rc_ring_reserve_slowly(struct rc_ring_writer *writer, uint64_t bytes, void **out) {
  assert(rc_ring_writer_is_valid(writer));
  if (writer->open) return -EBUSY;
  int result = ensure(writer, bytes);
  if (result != 0) return result;
  *out = rc_ring_open(writer, bytes);
  return 0;
}

int rc_ring_grow(struct rc_ring_writer *writer, uint64_t bytes, void **out) {
  if (!writer->open) return -EINVAL;
  int result = ensure(writer, bytes);
  if (result != 0) return result;
  if (bytes > writer->reserved) writer->reserved = bytes;
  *out = rc_frame_at(&writer->ring, writer->tail) + 1;
  return 0;
}

int rc_ring_commit_spilled(struct rc_ring_writer *writer, uint64_t offset, uint64_t bytes, uint16_t kind) {
  struct rc_spilled *note = (struct rc_spilled *)(rc_frame_at(&writer->ring, writer->tail) + 1);
  if (!writer->open || writer->reserved < sizeof *note) return -EINVAL;
  rc_store_relaxed(&note->offset, offset); /* W1: relaxed, W2 publishes it */
  rc_store_relaxed(&note->bytes, bytes);   /* W1 */
  RC_POINT(NOTE_WRITTEN);
  rc_ring_publish(writer, sizeof *note, kind, RC_FRAME_SPILLED);
  RC_POINT(NOTE_PUBLISHED);
  return 0;
}

int rc_ring_abort(struct rc_ring_writer *writer) {
  if (!writer->open) return -EINVAL;
  writer->open = false;
  writer->reserved = 0;
  writer->zeroed = 0; /* what was written into the reservation may lie there */
  RC_POINT(ABORTED);
  return 0;
}

/* ---- Reader ----------------------------------------------------------------------------------------------------- */

bool rc_ring_reader_is_valid(const struct rc_ring_reader *reader) {
  bool order = reader->cursor % RC_FRAME_ALIGN == 0 && reader->next % RC_FRAME_ALIGN == 0 &&
               reader->cursor <= reader->next && reader->next - reader->cursor <= reader->ring.capacity;
  return order && rc_ring_queue_is_valid(reader) && rc_ring_held(reader) <= RC_MAX_HELD &&
         reader->slot < reader->ring.slots;
}

int rc_spilled_read(const struct rc_ring *ring, uint64_t frame_bytes, const struct rc_spilled *note,
                    struct rc_ring_frame *frame) {
  if (frame_bytes != sizeof *note) return -EPROTO;
  /* Relaxed: W2 published them; once, so that what was checked is what is used. */
  uint64_t at = rc_load_relaxed(&note->offset), length = rc_load_relaxed(&note->bytes);
  if (at % RC_LINE != sizeof(struct rc_frame_header) || at > ring->spill_bytes || length > ring->spill_bytes - at)
    return -EPROTO;
  frame->spilled = true;
  frame->offset = at;
  frame->bytes = length;
  return 0;
}

/* What is committed at `position`, and the position after it. Sets `out` on success. */
static inline int read_frame(const struct rc_ring *ring, uint64_t position, struct rc_ring_frame *out,
                             uint64_t *after) {
  const struct rc_frame_header *frame = rc_frame_at(ring, position);
  uint64_t end = rc_load_acquire(&frame->commit); /* R1 <- W2 */
  if (end == 0) return -EAGAIN;
  uint64_t about = rc_load_relaxed(&frame->about); /* R2: once, so that what was checked is what is used */
  uint32_t bytes = rc_about_bytes(about);
  uint16_t flags = rc_about_flags(about);
  if (end - position != rc_frame_lines(bytes) || bytes > rc_ring_max_frame(ring->capacity)) return -EPROTO;
  *after = end;
  if (flags == 0) {
    out->data = frame + 1;
    out->bytes = bytes;
    out->spilled = false;
  } else {
    if (flags != RC_FRAME_SPILLED) return -EPROTO;
    if (rc_spilled_read(ring, bytes, (const struct rc_spilled *)(frame + 1), out) != 0) return -EPROTO;
    out->data = ring->spill + out->offset;
  }
  out->position = position;
  out->kind = rc_about_kind(about);
  return 0;
}

int rc_ring_next(struct rc_ring_reader *reader, struct rc_ring_frame *out) {
  uint64_t end;
  assert(rc_ring_reader_is_valid(reader));
  if (!rc_ring_may_hold(reader)) return rc_ring_is_evicted(reader) ? -ESTALE : -EBUSY;
  int result = read_frame(&reader->ring, reader->next, out, &end);
  if (rc_ring_is_evicted(reader)) return -ESTALE; /* R3 */
  if (result != 0) return result;
  if (end - reader->cursor > reader->ring.capacity) return -EPROTO; /* the frames held reach over a whole lap */
  rc_ring_hold(reader, end);
  return 0;
}

uint32_t rc_ring_count(const struct rc_ring *ring, uint64_t *position, uint32_t most) {
  struct rc_ring_frame frame;
  uint32_t count = 0;
  for (uint64_t end; count < most && read_frame(ring, *position, &frame, &end) == 0; count++) *position = end;
  return count;
}

int rc_ring_look(struct rc_ring_reader *reader, uint64_t position, struct rc_ring_frame *out) {
  uint64_t end;
  if (!rc_ring_holds(reader, position)) return -EINVAL;
  int result = read_frame(&reader->ring, position, out, &end);
  if (rc_ring_is_evicted(reader)) return -ESTALE; /* R3 */
  return result == -EAGAIN ? -EPROTO : result;    /* it was there before */
}
