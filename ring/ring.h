/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The broadcast ring: one writer, up to RC_MAX_SLOTS readers, and no losses. Frames have any length
 * up to just under half the ring; the payload of a larger frame lies beside the ring
 * (ring/spill.h). The ring works on the caller's memory (ring/layout.h), makes no system call,
 * allocates nothing and never waits. DATA must be mapped twice in a row, so that a frame that
 * reaches over the end continues in the second mapping.
 *
 *   ring.c    publishing, room and reading: the algorithm, and the proof
 *   slot.c    a reader's slot: joining, leaving, and being evicted
 *   newest.c  where a joining reader may start besides the tail
 *   held.c    the frames that a reader holds
 *   lend.c    the messages of packed frames, and groups
 *
 * What runs once a frame is inline, at the end of this header.
 */
#ifndef RC_RING_RING_H
#define RC_RING_RING_H

#include <assert.h>
#include <errno.h>
#include <stdbool.h>

#include "ring/layout.h"
#include "ring/packed.h"
#include "ring/point.h"

/* One process's view. Values that a peer could change in CONTROL are kept here, in private
 * memory. */
struct rc_ring {
  struct rc_control *control;
  uint8_t *data; /* 2 * capacity bytes of address space */
  uint64_t capacity;
  const uint8_t *spill; /* NULL: not mapped */
  uint64_t spill_bytes; /* 0: the ring has no SPILL */
  uint32_t slots;
};

/* One frame as found in the ring or in SPILL. */
struct rc_ring_frame {
  const void *data; /* NULL: spilled, and SPILL is not mapped */
  uint64_t position, bytes;
  uint16_t kind;
  bool spilled, packed;
  uint64_t offset; /* in SPILL, if spilled */
};

/* Reads the frame at `position`; *after is the position after it. -EAGAIN: not committed. -EPROTO:
 * the header or the descriptor is invalid. */
int rc_ring_read(const struct rc_ring *ring, uint64_t position, struct rc_ring_frame *out,
                 uint64_t *after);

/* Counts the available frames from *position on, at most `most`, and moves *position behind them. A
 * damaged frame ends the count. */
uint32_t rc_ring_count(const struct rc_ring *ring, uint64_t *position, uint32_t most);

/* ---- Writer ---------------------------------------------------------------------------------- */

struct rc_ring_writer {
  struct rc_ring view;
  uint64_t tail;     /* where the next frame starts */
  uint64_t limit;    /* the end of the granted positions */
  uint64_t reserved; /* payload bytes of the open reservation */
  uint32_t blocker;  /* after -EAGAIN or -EPROTO: the blocking reader's slot */
  bool open;         /* a reservation is open */
  /* The commit word at tail + zeroed is zero already. 0: only the word at the tail is. */
  uint64_t zeroed;
  uint64_t credit; /* frames that may be committed before the next grant */
  /* The most frames that a reader may have left to take; 0: no bound. Set after init. */
  uint64_t ahead;
  /* By rc_ring_lowest: how far the reader in slot `slowest` has taken frames, the fewest of all. */
  uint64_t taken;
  uint32_t slowest;
  /* If the last grant gave no credit: the end of the frame that the slowest reader must take. */
  uint64_t due;
};

/* DATA is zero, and so is the control segment except the identity. */
void rc_ring_writer_init(struct rc_ring_writer *writer, struct rc_ring ring);
/* rc_ring_reserve and rc_ring_commit are at the end of this header. */
int rc_ring_reserve_slowly(struct rc_ring_writer *writer, uint64_t bytes, void **out);
/* As rc_ring_reserve, and -EINVAL. */
int rc_ring_grow(struct rc_ring_writer *writer, uint64_t bytes, void **out);
/* -EINVAL. */
int rc_ring_abort(struct rc_ring_writer *writer);
/* Commits a descriptor with `offset` and `bytes` instead of a payload. For ring/spill.c.
 * -EINVAL. */
int rc_ring_commit_spilled(struct rc_ring_writer *writer, uint64_t offset, uint64_t bytes,
                           uint16_t kind);
/* The committed frame at `position` is the newest with `tag`. The newest frame of another tag may
 * be forgotten. */
void rc_newest_note(struct rc_control *control, uint32_t tag, uint64_t position);
/* Sets *out to the lowest cursor: no reader, present or joining later, needs a position below.
 * -EAGAIN: a reader is joining. -EPROTO: a cursor is invalid. Sets `blocker`, on success too unless
 * all readers are at the tail. */
int rc_ring_lowest(struct rc_ring_writer *writer, uint64_t *out);
/* The position that all cursors must reach before `bytes` fit. */
uint64_t rc_ring_wanted(const struct rc_ring_writer *writer, uint64_t bytes);
bool rc_ring_writer_is_valid(const struct rc_ring_writer *writer);

/* Whether a reader's cursor is valid: within one lap behind the tail. */
static inline bool rc_ring_is_cursor(const struct rc_ring_writer *writer, uint64_t cursor) {
  return cursor <= writer->tail && writer->tail - cursor <= writer->view.capacity &&
         cursor % RC_FRAME_ALIGN == 0;
}

/* ---- Slots: each reader's place in the control segment --------------------------------------- */

enum rc_slot_state {
  RC_SLOT_FREE = 0,
  RC_SLOT_JOINING = 1,
  RC_SLOT_ACTIVE = 2,
  RC_SLOT_EVICTED = 3
};

/* The slot's owner in one word, so a slot changes hands in one step: pid (22 bits, the most that
 * Linux gives out), the low bits of the process's start time (30, in clock ticks: four months),
 * turn (10), state (2). The turn counts the claims of the slot, and a free slot keeps the turn: so
 * a word comes back only when the process that stored it makes the 1,024th claim of the slot after
 * it. */
#define RC_PID_BITS   22
#define RC_START_MASK (((uint64_t)1 << 30) - 1)
#define RC_TURN_MASK  (((uint64_t)1 << 10) - 1)

static inline uint64_t rc_owner_make(uint32_t pid, uint64_t start, uint64_t turn,
                                     enum rc_slot_state state) {
  return (uint64_t)pid << (64 - RC_PID_BITS) | (start & RC_START_MASK) << 12 |
         (turn & RC_TURN_MASK) << 2 | state;
}
static inline uint32_t rc_owner_pid(uint64_t owner) {
  return (uint32_t)(owner >> (64 - RC_PID_BITS));
}
static inline uint64_t rc_owner_start(uint64_t owner) { return owner >> 12 & RC_START_MASK; }
static inline uint64_t rc_owner_turn(uint64_t owner) { return owner >> 2 & RC_TURN_MASK; }
static inline enum rc_slot_state rc_owner_state(uint64_t owner) {
  return (enum rc_slot_state)(owner & 3);
}
static inline uint64_t rc_owner_as(uint64_t owner, enum rc_slot_state state) {
  return (owner & ~(uint64_t)3) | state;
}

/* The frame that a joining reader starts with: the next or the newest frame; with a tag other than
 * 0, the newest frame with the tag. */
struct rc_start {
  bool newest;
  uint32_t tag;
};

struct rc_ring_reader;

/* The reader's side. Nothing between claim and activate may wait: the writer can't go on in
 * between. -EUSERS: no slot is free. */
int rc_slot_claim(const struct rc_ring *ring, uint32_t pid, uint64_t start, uint32_t *slot,
                  uint64_t *owner);
/* `owner` is the word of the claim. -EAGAIN: the writer has taken the slot back; claim again.
 * -EPROTO: the ring's tail is invalid. -ENODATA: there is no frame with the tag to start at. The
 * slot is free again after these. */
int rc_slot_activate(const struct rc_ring *ring, uint32_t slot, uint64_t owner,
                     struct rc_start from, struct rc_ring_reader *out);
/* For a reader between J2 and J4 that has loaded `tail`: sets *position to the frame that `start`
 * asks for, which is then safe to read. -EAGAIN: the ring has no frame; or the spill memory of the
 * frame was taken back, and *position is the start of the next frame. -ENODATA: no frame has the
 * tag, or it may be overwritten, or spill memory of it or of a later frame was taken back. -EPROTO:
 * invalid data. */
int rc_newest_find(const struct rc_ring *ring, struct rc_start start, uint64_t tail,
                   uint64_t *position);
/* `owner` is the word as activated. Does nothing if the slot has another owner. */
void rc_slot_free(const struct rc_ring *ring, uint32_t slot, uint64_t owner);

/* The side of other processes; false: the slot has changed meanwhile. Reap: `owner` is dead, in any
 * state. Evict: `owner` may live. */
bool rc_slot_reap(const struct rc_ring *ring, uint32_t slot, uint64_t owner);
bool rc_slot_evict(const struct rc_ring *ring, uint32_t slot, uint64_t owner);
static inline bool rc_owner_evict(_Atomic uint64_t *word, uint64_t owner) {
  return rc_cas_strong_acq_rel(word, &owner,
                               rc_owner_as(owner, RC_SLOT_EVICTED)); /* V1 -> R3, A0 */
}

/* Counts the writer and the readers, and stores the count. */
uint32_t rc_ring_participants(const struct rc_ring *ring);

/* ---- Reader ---------------------------------------------------------------------------------- */

/*
 * The frames that a reader holds. The writer overwrites no frame that has a lease or a pin, because
 * the reader's cursor moves only over frames with neither. rc_ring_next gives the caller a lease
 * and rc_ring_release ends it. A frame may have any number of pins besides. The lease has a bit of
 * its own, so a second release is refused.
 *
 * Held frames lie from the cursor to `next`, and each starts at the end of the one before. Each
 * frame except the last has an entry in a queue. The last one's entry, held_last, is separate, so a
 * reader that holds one frame at a time never writes to the queue. If the queue is full, adjacent
 * free entries are merged. At least every second entry then has a lease or a pin, which bounds the
 * queue's length.
 */
#define RC_MAX_LEASES 64u
/* Frames with a pin and no lease, for retention or a walk through a packed frame; beyond,
 * rc_ring_next may return -EBUSY. */
#define RC_MAX_PINNED 33u
#define RC_MAX_HELD   (2 * (RC_MAX_LEASES + RC_MAX_PINNED))

struct rc_held {
  uint64_t end;  /* the position after the frame; unused in held_last */
  uint32_t pins; /* without the lease */
  bool leased;   /* in held_last also true if no frame is held */
};

/* A loan: a message, or the messages and frames that rc_ring_next_many lent together. */
struct rc_lent {
  uint64_t position; /* of the first */
  uint64_t holder;   /* the start of the held entry with the pin */
  uint32_t count;
};

/* The last group: the reader's place before and after. Positions only grow, so if the reader is
 * still at the place after, no frame was taken since. */
struct rc_group {
  uint64_t position;       /* of the loan */
  struct rc_packed packed; /* before */
  uint64_t next;           /* before */
  uint64_t next_after;
  uint32_t at_after; /* of `packed` */
};

struct rc_ring_reader {
  struct rc_ring view;
  struct rc_slot *own;
  uint64_t owner;  /* the slot's owner word, unless the reader is evicted */
  uint64_t cursor; /* the start of the oldest held frame; all frames below are released */
  uint64_t next;   /* the start of the frame to read next */
  uint64_t max_frame;
  uint32_t slot;
  uint32_t leases;       /* how many frames may have a lease at once */
  uint32_t first, older; /* the queue of held frames, without the last one */
  uint32_t lents;        /* how many loans are in `lent` */
  struct rc_held held_last, queue[RC_MAX_HELD];
  /* The packed frame whose messages come next, before the frame at `next`. */
  struct rc_packed packed;
  uint64_t walked; /* the start of the held entry that contains this frame */
  struct rc_group group;
  struct rc_lent lent[RC_MAX_LEASES];
};

/* -ESTALE, from any function below: the reader is evicted, and the held frames may be
 * overwritten. */

/* Takes the next frame, a packed one as a whole. -EAGAIN -EBUSY -EPROTO */
int rc_ring_next(struct rc_ring_reader *reader, struct rc_ring_frame *out);
/* Reads the header of a leased frame again. -EINVAL -EPROTO */
int rc_ring_look(struct rc_ring_reader *reader, uint64_t position, struct rc_ring_frame *out);
/* Ends the lease of the frame at `position`. -EINVAL: no leased frame starts there. */
int rc_ring_release(struct rc_ring_reader *reader, uint64_t position);
/* Undoes the last rc_ring_next, which returned the frame at `position`. The frame must have no
 * pin. */
void rc_ring_unread(struct rc_ring_reader *reader, uint64_t position);
/* The same for a caller that may be wrong. False: the last held frame does not start there, or is
 * not held by a lease alone. */
bool rc_ring_unread_last(struct rc_ring_reader *reader, uint64_t position);
bool rc_ring_reader_is_valid(const struct rc_ring_reader *reader);

/* A lower bound of the number of held frames: merged frames share an entry. 0: no frame is held. */
static inline uint32_t rc_ring_held(const struct rc_ring_reader *reader) {
  return reader->older + (reader->cursor != reader->next);
}
/* Whether the reader may hold one more frame: fewer than `leases` frames and loans have a lease,
 * and the queue has room. */
bool rc_ring_may_hold(struct rc_ring_reader *reader);
/* Holds the frame from `next` to `end`, with a lease. After rc_ring_may_hold. */
void rc_ring_hold(struct rc_ring_reader *reader, uint64_t end);
/* Whether the frame at `position` has a lease. */
bool rc_ring_holds(struct rc_ring_reader *reader, uint64_t position);
/* Adds a pin to a leased frame. -EINVAL: no leased frame starts at `position`. */
int rc_ring_pin(struct rc_ring_reader *reader, uint64_t position);
/* Adds a pin to a frame with a pin, which must start at `position`. */
void rc_ring_pin_entry(struct rc_ring_reader *reader, uint64_t position);
/* Removes a pin. A frame with a pin must start at `position`. */
void rc_ring_unpin(struct rc_ring_reader *reader, uint64_t position);
bool rc_ring_queue_is_valid(const struct rc_ring_reader *reader);

/* As rc_ring_next, but for the messages of packed frames, in turn. */
int rc_ring_take(struct rc_ring_reader *reader, struct rc_ring_frame *out);
/* Lends the available frames and messages together, at most `most`: *count, at least 1. A spilled
 * frame comes alone, in *spilled, as from rc_ring_next. -EAGAIN -EBUSY -EPROTO */
int rc_ring_next_many(struct rc_ring_reader *reader, struct ringcast_frame *out, uint32_t most,
                      uint32_t *count, struct rc_ring_frame *spilled);
/* The count of the loan at `position`; 0: no loan. */
uint32_t rc_ring_lent(const struct rc_ring_reader *reader, uint64_t position);
/* Takes back the loan at `position`. If the loan is the last group, and of more than `count`, the
 * rest comes next again. -EINVAL: no loan, or frames were taken since the group. -EPROTO: a frame
 * of the group has changed. */
int rc_ring_release_many(struct rc_ring_reader *reader, uint64_t position, uint32_t count);

/* ---- Once a frame ---------------------------------------------------------------------------- */

/* These are inline because a call would cost as much as the work. ring.c explains W0 to W3, R1, R2
 * and A1.
 *   rc_ring_reserve(writer, bytes, out)     -EAGAIN -EBUSY -EMSGSIZE -EPROTO
 *   rc_ring_commit(writer, bytes, kind)     -EINVAL
 *   rc_ring_zero_ahead(writer, bytes)       after a commit and its fence
 *   rc_ring_next_plain(reader, out)         the usual case of rc_ring_next
 *   rc_ring_release_only(reader, position)  the usual case of rc_ring_release */

#define rc_likely(x)   __builtin_expect(!!(x), 1)
#define rc_unlikely(x) __builtin_expect(!!(x), 0)
/* For a rarely called function in tail position: the caller then saves no registers, each of which
 * is a store. */
#define rc_slow __attribute__((noinline, cold))

/* The bytes of a frame in the ring: whole pairs of lines, because many CPUs fetch lines in pairs.
 * If the next frame could begin in a pair's second half, a reader's fetch would take away the line
 * that the writer is writing. A trip would take up to 1.3 times as long, and streams between
 * distant cores would be three times as slow. */
static inline uint64_t rc_frame_footprint(uint64_t bytes) {
  return (sizeof(struct rc_frame_header) + bytes + RC_FRAME_ALIGN - 1) &
         ~(uint64_t)(RC_FRAME_ALIGN - 1);
}

/* The largest payload. A grant is at most half the ring and includes the next frame's header, and
 * the length has 32 bits. */
static inline uint64_t rc_ring_max_frame(uint64_t capacity) {
  uint64_t most = capacity / 2 - RC_FRAME_ALIGN - sizeof(struct rc_frame_header);
  return most < UINT32_MAX ? most : UINT32_MAX;
}

static inline struct rc_frame_header *rc_frame_at(const struct rc_ring *ring, uint64_t position) {
  return (struct rc_frame_header *)(ring->data + (position & (ring->capacity - 1)));
}

static inline void *rc_ring_open(struct rc_ring_writer *writer, uint64_t bytes) {
  writer->open = true;
  writer->reserved = bytes;
  return rc_frame_at(&writer->view, writer->tail) + 1;
}

/* Whether `bytes`, a valid frame size, can be reserved without reading the cursors. */
static inline bool rc_ring_has_room(const struct rc_ring_writer *writer, uint64_t bytes) {
  uint64_t room = writer->limit - writer->tail; /* at most half the ring */
  return !writer->open && writer->credit != 0 && bytes < room &&
         rc_frame_footprint(bytes) + RC_FRAME_ALIGN <= room;
}

static inline int rc_ring_reserve(struct rc_ring_writer *writer, uint64_t bytes, void **out) {
  /* A frame that fits in half a ring is not too large, except in rings of more than 8 GiB. */
  if (rc_unlikely(bytes > UINT32_MAX || !rc_ring_has_room(writer, bytes)))
    return rc_ring_reserve_slowly(writer, bytes, out);
  *out = rc_ring_open(writer, bytes);
  return 0;
}

/* Commits the first `bytes` of the open reservation. */
static inline void rc_ring_publish(struct rc_ring_writer *writer, uint64_t bytes, uint16_t kind,
                                   uint16_t flags) {
  struct rc_ring *ring = &writer->view;
  struct rc_control *control = ring->control;
  uint64_t position = writer->tail, footprint = rc_frame_footprint(bytes),
           end = position + footprint;
  struct rc_frame_header *frame = rc_frame_at(ring, position);
  RC_POINT(PUBLISH);
  /* The word at `end` was not zeroed ahead, or the reservation reached over it. */
  if (rc_unlikely(footprint != writer->zeroed ||
                  footprint != rc_frame_footprint(writer->reserved))) {
    rc_store_relaxed(&rc_frame_at(ring, end)->commit, 0); /* W0: relaxed, W2 orders it */
    writer->zeroed = footprint;
  }
  RC_POINT(W0_DONE);
  /* Skipping a line now and then costs more than a useless store: the CPU's prefetcher loses the
   * sequence of lines. Relaxed: the word belongs to this frame, after the payload. */
  if (footprint > RC_FRAME_ALIGN && footprint - sizeof *frame - bytes >= RC_LINE)
    rc_store_relaxed(&rc_frame_at(ring, end - RC_LINE)->commit, 0);
  uint64_t meta = rc_meta_make((uint32_t)bytes, kind, flags);
  rc_store_relaxed(&frame->meta, meta); /* W1: relaxed, W2 publishes it */
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

static inline int rc_ring_commit(struct rc_ring_writer *writer, uint64_t bytes, uint16_t kind) {
  if (rc_unlikely(!writer->open || bytes > writer->reserved)) return -EINVAL;
  rc_ring_publish(writer, bytes, kind, 0);
  return 0;
}

/* Fetching a line takes about as long as writing 12 small frames. */
#define RC_FETCH_AHEAD (12 * (uint64_t)RC_LINE)

/* W0 of the next frame, in case it is as long as the last one, of `bytes`. Call it
 * after rc_eventcount_is_asleep, whose fence (E5) would else wait for this line. */
static inline void rc_ring_zero_ahead(struct rc_ring_writer *writer, uint64_t bytes) {
  const struct rc_ring *ring = &writer->view;
  uint64_t footprint = rc_frame_footprint(bytes), end = writer->tail;
  assert(!writer->open);
  if (rc_unlikely(end + footprint + RC_FRAME_ALIGN > writer->limit)) return;
  /* Relaxed: as in rc_ring_publish. */
  rc_store_relaxed(&rc_frame_at(ring, end + footprint)->commit, 0);
  writer->zeroed = footprint;
  /* Prefetch a later frame's line, so that the next fences do not wait for each line in turn. */
  __builtin_prefetch(rc_frame_at(ring, end + RC_FETCH_AHEAD), 1);
  RC_POINT(ZEROED_AHEAD);
}

/* Whether the next frame is committed. */
static inline bool rc_ring_is_available(const struct rc_ring_reader *reader) {
  return rc_load_acquire(&rc_frame_at(&reader->view, reader->next)->commit) != 0; /* R1 <- W2 */
}

/* False: all bytes that the reader has loaded from held frames so far are intact. */
static inline bool rc_ring_is_evicted(const struct rc_ring_reader *reader) {
  rc_fence_acquire();                                           /* A0 <- L1, S1 */
  return rc_load_relaxed(&reader->own->owner) != reader->owner; /* relaxed: the fence orders it */
}

/* The usual case of rc_ring_next: the next frame is committed, valid and not spilled, and the
 * reader holds no frame. False: call rc_ring_next, which handles all other cases. */
static inline bool rc_ring_next_plain(struct rc_ring_reader *reader, struct rc_ring_frame *out) {
  assert(rc_ring_reader_is_valid(reader));
  const struct rc_frame_header *frame = rc_frame_at(&reader->view, reader->next);
  uint64_t end = rc_load_acquire(&frame->commit); /* R1 <- W2 */
  if (end == 0 || rc_unlikely(reader->cursor != reader->next)) return false;
  /* R2 -> R3. Loaded once, so the checked value is the used value. */
  uint64_t meta = rc_load_acquire(&frame->meta);
  uint32_t bytes = rc_meta_bytes(meta);
  RC_POINT(R2_DONE);
  bool evicted = rc_load_relaxed(&reader->own->owner) != reader->owner; /* R3 <- V1 */
  if (rc_unlikely(evicted)) return false;
  if (rc_unlikely(rc_meta_flags(meta) != 0 || end - reader->next != rc_frame_footprint(bytes) ||
                  bytes > reader->max_frame))
    return false;
  /* If the caller does not pass on the address of *out, the compiler keeps *out in registers. */
  *out = (struct rc_ring_frame){
      .data = frame + 1, .position = reader->next, .bytes = bytes, .kind = rc_meta_kind(meta)};
  /* Now next != cursor, so the frame is held. Its lease is there already (struct rc_held). A walk
   * through a packed frame has a pin, and so never comes here. */
  reader->next = end;
  return true;
}

/* Releases the frame at `position` if that frame has no pin and the reader holds no other. */
static inline bool rc_ring_release_only(struct rc_ring_reader *reader, uint64_t position) {
  if (rc_unlikely((reader->older | reader->held_last.pins) != 0 || position != reader->cursor ||
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

/* ---- Counts ---------------------------------------------------------------------------------- */

/* Adds to a count with one writer. Relaxed: statistics, no other data depends on the value. */
static inline void rc_count(_Atomic uint64_t *count, uint64_t more) {
  rc_store_relaxed(count, rc_load_relaxed(count) + more);
}

/* Counts committed or released frames. The counts share the line of the tail or cursor, which this
 * CPU owns. */
static inline void rc_count_frames(struct rc_counts *counts, uint64_t frames, uint64_t bytes) {
  rc_count(&counts->frames, frames);
  rc_count(&counts->bytes, bytes);
}

static inline void rc_count_frame(struct rc_counts *counts, uint64_t bytes) {
  rc_count_frames(counts, 1, bytes);
}

#endif
