/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How frames pass from one writer to many readers without a lock, and why none is torn, lost or
 * read twice.
 *
 * Publishing. Positions only grow. A frame at position p starts with a commit word: 0 until the
 * frame is complete, then e, the position after the frame. The next frame will start at e. Before
 * the writer commits p, the word at e is zero:
 *
 *     writer                                          reader at r
 *     W0  commit[e] = 0                               R1  load-acquire commit[r]; 0: nothing yet
 *     W1  payload, bytes, kind of p                   R2  read bytes, kind, payload in place
 *     W2  store-release commit[p] = e   -> R1         A1  store-release cursor = e   -> G2
 *     N0  store-release newest = p      -> J5
 *     W3  store-release tail = e        -> J3
 *
 * W2 -> R1: a reader that sees e also sees the payload (W1) and the zero at e (W0). A reader that
 * has moved from p to e therefore finds either the zero or the commit of the frame at e, never a
 * stale word of an earlier lap. The very first word, at 0, is zero because new memory is zero. A
 * small frame and its commit word share one line, and only this line moves between the CPUs.
 *
 * The writer does W0 ahead, after the previous commit and the fence that follows the commit (E5 in
 * ring/eventcount.h), as if the next frame had the same length. The time from the commit to the
 * reader's load is then a quarter shorter: W0 has to fetch a line, stores become visible in order,
 * and W2 or the fence would wait behind W0. The line also belongs to the writer's CPU already when
 * it fills the next frame. If the next frame has another length, or if its reservation
 * reached over the word, W0 is done before W2. In both cases W0 precedes W2 in program order, and
 * the proof needs nothing more.
 *
 * Room. The writer fills positions below its limit. A grant sets
 *     limit = min(lowest cursor + capacity, tail + capacity / 2)
 * It therefore overwrites no byte above any cursor. A tap (ring/tap.h), which has no slot, must
 * trust no byte below limit - capacity. As a grant is at most half the ring, a tap that is not far
 * behind has time for its copy. G2 (load-acquire cursor) pairs with A1: the reader's loads of a
 * frame come before the writer's stores over it. The room that a frame needs includes the next
 * frame's header, because W0 writes there. The same pass over the cursors, rc_ring_lowest, also
 * frees spill memory.
 *
 * Joining. A reader must start at a position that the writer does not overwrite before the reader's
 * first look:
 *
 *     writer's grant                                  joining reader
 *     (W3 tail, earlier)                              J1  owner: FREE -> JOINING
 *     G0  full fence                                  J2  full fence
 *     G1  load-acquire owner of every slot            J3  load-acquire tail; cursor = tail
 *     G2  load-acquire cursor of ACTIVE slots         J4  owner: JOINING -> ACTIVE, release   -> G1
 *
 * G0 and J2 pair, so one of two cases holds. Either G1 sees JOINING, and the writer grants itself
 * nothing while a slot is JOINING. Or J3 sees a tail at least as new as the grant's, and
 * limit <= tail + capacity keeps the reader's start safe. J4 -> G1: a writer that sees ACTIVE also
 * sees the cursor of the same owner. If the slot changes hands between G1 and G2, the cursor read
 * belongs to a later owner, which started at a tail of its own: the grant then counts the later
 * owner as if it had joined just before.
 *
 * Between W2 and W3 the tail is one frame behind. A process could read the last frame, leave and
 * join again in this gap, and must not get the frame twice. J3 therefore also loads the commit word
 * at the tail, and the reader starts after a frame that is committed already.
 *
 * Joining at the newest frame, or at the newest with a tag. After J3 the reader looks for a
 * position p at which such a frame starts: J5 loads `newest`, or N5 to N8 the place of the tag
 * (ring/newest.c). A grant that missed JOINING had no later tail than J3's, so its limit is at most
 * tail + capacity / 2. The writer overwrites no byte from p on if p is above the tail, or
 * tail - p <= capacity / 2. The newest frame is always so: N0 comes before W3, so `newest` is not
 * below the last frame before the tail, and a frame takes less than half the ring. The reader
 * checks older frames. `newest` may be one frame behind, as the tail may: if the frame after is
 * committed, the reader starts there. The payload of a spilled frame may be gone earlier
 * (ring/spill.c).
 *
 * Leaving is an exchange to FREE. The release of this exchange pairs with G1 as A1 does with G2.
 * The writer can evict a reader that is too slow: slot.c explains how the reader learns of the
 * eviction, and how the slots of dead processes become free.
 *
 * The bound in frames. Besides its limit, a grant has a credit: `ahead`, less the frames that the
 * slowest reader has yet to take. A reader takes a frame by rc_ring_next. The cursor of a reader
 * that holds frames stays behind, so the reader then also stores `taken`. No memory depends on
 * `taken`; the writer uses it to count, and then counts the frames by their commit words, from
 * there to the tail.
 *
 * Each process checks a peer's values before use. A commit word must lie ahead of the frame by
 * exactly the frame's length, aligned and within one lap. A cursor must lie within one lap behind
 * the tail.
 */
#include "ring/ring.h"

/* ---- Writer ---------------------------------------------------------------------------------- */

void rc_ring_writer_init(struct rc_ring_writer *writer, struct rc_ring ring) {
  *writer = (struct rc_ring_writer){.view = ring, .credit = UINT64_MAX};
}

bool rc_ring_writer_is_valid(const struct rc_ring_writer *writer) {
  uint64_t capacity = writer->view.capacity, tail = writer->tail;
  if (capacity < RC_MIN_BYTES || (capacity & (capacity - 1)) != 0) return false;
  if (tail % RC_FRAME_ALIGN != 0) return false;
  if (writer->open && writer->reserved > rc_ring_max_frame(capacity)) return false;
  if (writer->limit == 0) return tail == 0 && writer->zeroed == 0; /* before the first grant */
  /* The writer may zero the header at the tail, and a grant is at most half a ring. */
  if (tail + RC_FRAME_ALIGN > writer->limit || writer->limit - tail > capacity / 2) return false;
  if (writer->zeroed % RC_FRAME_ALIGN != 0) return false;
  if (writer->zeroed != 0 && tail + writer->zeroed + RC_FRAME_ALIGN > writer->limit) return false;
  return writer->ahead == 0 || writer->credit <= writer->ahead;
}

/* Up to where a reader has taken frames, as far as the writer knows. */
static uint64_t taken_by(const struct rc_ring_writer *writer, const struct rc_slot *slot) {
  uint64_t cursor = rc_load_acquire(&slot->cursor);
  uint64_t taken = rc_load_relaxed(&slot->taken); /* relaxed: only counted */
  return taken > cursor && rc_ring_is_cursor(writer, taken) ? taken : cursor;
}

int rc_ring_lowest(struct rc_ring_writer *writer, uint64_t *out) {
  const struct rc_ring *ring = &writer->view;
  uint64_t lowest = writer->tail;
  writer->taken = writer->tail;
  rc_fence_full(); /* G0 -> J2 */
  for (uint32_t i = 0; i < ring->slots; i++) {
    struct rc_slot *slot = &ring->control->slots[i];
    uint64_t owner = rc_load_acquire(&slot->owner); /* G1 <- J4, and leaving */
    enum rc_slot_state state = rc_owner_state(owner);
    if (state == RC_SLOT_FREE || state == RC_SLOT_EVICTED) continue;
    if (state == RC_SLOT_JOINING) {
      writer->blocker = i;
      return -EAGAIN;
    }
    uint64_t cursor = rc_load_acquire(&slot->cursor); /* G2 <- A1 */
    if (!rc_ring_is_cursor(writer, cursor)) {
      writer->blocker = i;
      return -EPROTO;
    }
    if (cursor < lowest) {
      lowest = cursor;
      writer->blocker = i;
    }
    uint64_t taken = taken_by(writer, slot);
    if (taken < writer->taken) {
      writer->taken = taken;
      writer->slowest = i;
    }
  }
  *out = lowest;
  return 0;
}

/* Sets a new credit, after rc_ring_lowest. The frames from the lowest cursor to the tail are
 * intact. */
static void grant_credit(struct rc_ring_writer *writer) {
  uint64_t position = writer->taken;
  uint32_t behind = rc_ring_count(&writer->view, &position, 1);
  writer->due = position;
  if (position > writer->tail) writer->due = writer->tail; /* no reader of ours stores such */
  if (behind != 0) behind += rc_ring_count(&writer->view, &position, (uint32_t)writer->ahead - 1);
  writer->credit = writer->ahead - behind;
  /* A cursor moved back: the reservation stays. */
  if (writer->open && writer->credit == 0) writer->credit = 1;
  if (writer->credit == 0) writer->blocker = writer->slowest;
}

/* Sets a new limit. */
static int grant(struct rc_ring_writer *writer) {
  const struct rc_ring *ring = &writer->view;
  uint64_t lowest;
  int result = rc_ring_lowest(writer, &lowest);
  if (result != 0) return result;
  uint64_t limit = lowest + ring->capacity, half = writer->tail + ring->capacity / 2;
  if (half < limit) limit = half;
  /* Never lower: only an invalid cursor moves backwards. */
  if (limit > writer->limit) writer->limit = limit;
  if (writer->ahead != 0) grant_credit(writer);
  RC_POINT(GRANT);
  /* Relaxed, because the fence L1 follows: a tap that saw a byte stored after L1 must find this
   * limit or a later one. */
  rc_store_relaxed(&ring->control->limit, writer->limit); /* L0 -> T3 */
  RC_POINT(L0_DONE);
  rc_fence_release(); /* L1 -> T2, A0 */
  RC_POINT(L1_DONE);
  return 0;
}

/* A frame's lines and the line of the next header. */
static uint64_t need_of(uint64_t bytes) { return rc_frame_footprint(bytes) + RC_FRAME_ALIGN; }

uint64_t rc_ring_wanted(const struct rc_ring_writer *writer, uint64_t bytes) {
  uint64_t end = writer->tail + need_of(bytes);
  return end > writer->view.capacity ? end - writer->view.capacity : 0;
}

/* Ensures that the writer may write `bytes` of payload at the tail. */
static int ensure(struct rc_ring_writer *writer, uint64_t bytes) {
  if (bytes > rc_ring_max_frame(writer->view.capacity)) return -EMSGSIZE;
  uint64_t end = writer->tail + need_of(bytes);
  if (writer->credit != 0 && end <= writer->limit) return 0;
  int result = grant(writer);
  if (result != 0) return result;
  return writer->credit != 0 && end <= writer->limit ? 0 : -EAGAIN;
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
  *out = rc_frame_at(&writer->view, writer->tail) + 1;
  return 0;
}

int rc_ring_commit_spilled(struct rc_ring_writer *writer, uint64_t offset, uint64_t bytes,
                           uint16_t kind) {
  struct rc_frame_header *frame = rc_frame_at(&writer->view, writer->tail);
  struct rc_spilled *descriptor = (struct rc_spilled *)(frame + 1);
  if (!writer->open || writer->reserved < sizeof *descriptor) return -EINVAL;
  rc_store_relaxed(&descriptor->offset, offset); /* W1: relaxed, W2 publishes the store */
  rc_store_relaxed(&descriptor->bytes, bytes);   /* W1 */
  RC_POINT(DESCRIPTOR_WRITTEN);
  rc_ring_publish(writer, sizeof *descriptor, kind, RC_FRAME_SPILLED);
  RC_POINT(DESCRIPTOR_PUBLISHED);
  return 0;
}

int rc_ring_abort(struct rc_ring_writer *writer) {
  if (!writer->open) return -EINVAL;
  writer->open = false;
  writer->reserved = 0;
  writer->zeroed = 0; /* the caller may have written over the zeroed word */
  RC_POINT(ABORTED);
  return 0;
}

/* ---- Reader ---------------------------------------------------------------------------------- */

bool rc_ring_reader_is_valid(const struct rc_ring_reader *reader) {
  uint64_t cursor = reader->cursor, next = reader->next;
  if (cursor % RC_FRAME_ALIGN != 0 || next % RC_FRAME_ALIGN != 0) return false;
  if (cursor > next || next - cursor > reader->view.capacity) return false;
  if (!rc_ring_queue_is_valid(reader) || rc_ring_held(reader) > RC_MAX_HELD) return false;
  if (reader->lents > RC_MAX_LEASES || reader->packed.at > reader->packed.bytes) return false;
  return reader->slot < reader->view.slots;
}

/* Replaces the descriptor, in `frame`, by the payload that it names. */
static int read_spilled(const struct rc_ring *ring, struct rc_ring_frame *frame) {
  const struct rc_spilled *descriptor = frame->data;
  if (frame->bytes != sizeof *descriptor) return -EPROTO;
  /* Relaxed: W2 published both. Loaded once, so the checked value is the used value. */
  uint64_t at = rc_load_relaxed(&descriptor->offset);
  uint64_t length = rc_load_relaxed(&descriptor->bytes);
  if (at % RC_LINE != sizeof(struct rc_frame_header)) return -EPROTO;
  if (at > ring->spill_bytes || length > ring->spill_bytes - at) return -EPROTO;
  frame->offset = at;
  frame->bytes = length;
  frame->data = ring->spill ? ring->spill + at : NULL;
  return 0;
}

int rc_ring_read(const struct rc_ring *ring, uint64_t position, struct rc_ring_frame *out,
                 uint64_t *after) {
  const struct rc_frame_header *frame = rc_frame_at(ring, position);
  uint64_t end = rc_load_acquire(&frame->commit); /* R1, T1 <- W2 */
  if (end == 0) return -EAGAIN;
  /* R2. Loaded once, so the checked value is the used value. */
  uint64_t meta = rc_load_relaxed(&frame->meta);
  uint32_t bytes = rc_meta_bytes(meta);
  uint16_t flags = rc_meta_flags(meta);
  if (end - position != rc_frame_footprint(bytes) || bytes > rc_ring_max_frame(ring->capacity))
    return -EPROTO;
  struct rc_ring_frame found = {
      .data = frame + 1, .position = position, .bytes = bytes, .kind = rc_meta_kind(meta)};
  found.spilled = flags == RC_FRAME_SPILLED;
  found.packed = flags == RC_FRAME_PACKED;
  if (flags != 0 && !found.packed && !found.spilled) return -EPROTO;
  if (found.packed && bytes == 0) return -EPROTO;
  if (found.spilled && read_spilled(ring, &found) != 0) return -EPROTO;
  *out = found;
  *after = end;
  return 0;
}

int rc_ring_next(struct rc_ring_reader *reader, struct rc_ring_frame *out) {
  uint64_t end;
  assert(rc_ring_reader_is_valid(reader));
  if (!rc_ring_may_hold(reader)) return rc_ring_is_evicted(reader) ? -ESTALE : -EBUSY;
  int result = rc_ring_read(&reader->view, reader->next, out, &end);
  if (rc_ring_is_evicted(reader)) return -ESTALE; /* R3 */
  if (result != 0) return result;
  /* The held frames may not exceed a lap. */
  if (end - reader->cursor > reader->view.capacity) return -EPROTO;
  rc_ring_hold(reader, end);
  return 0;
}

uint32_t rc_ring_count(const struct rc_ring *ring, uint64_t *position, uint32_t most) {
  struct rc_ring_frame frame;
  uint32_t count = 0;
  while (count < most && rc_ring_read(ring, *position, &frame, position) == 0) count++;
  return count;
}

int rc_ring_look(struct rc_ring_reader *reader, uint64_t position, struct rc_ring_frame *out) {
  uint64_t end;
  if (!rc_ring_holds(reader, position)) return -EINVAL;
  int result = rc_ring_read(&reader->view, position, out, &end);
  if (rc_ring_is_evicted(reader)) return -ESTALE; /* R3 */
  if (result == -EAGAIN) return -EPROTO;          /* a held frame was committed before */
  return result;
}
