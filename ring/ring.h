/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The broadcast ring: one writer, up to RC_MAX_SLOTS readers, frames of any length up to just under half the ring, no
 * losses; the payload of larger ones lies beside the ring (ring/spill.h). Works on memory that the caller brings
 * (ring/layout.h); no system call, no allocation, never waits. DATA must be mapped twice in a row, so that a frame that
 * runs over the end goes on in the second mapping. The algorithm and why it is right is told atop ring.c.
 */
#ifndef RC_RING_RING_H
#define RC_RING_RING_H

#include <stdbool.h>

#include "ring/held.h"
#include "ring/layout.h"
#include "ring/slot.h"

/* One process's view. What a peer could change under our hands is kept here, in private memory. */
struct rc_ring {
  struct rc_control *control;
  uint8_t *data; /* 2 * capacity bytes of address space */
  uint64_t capacity;
  const uint8_t *spill; /* NULL where it is not mapped */
  uint64_t spill_bytes; /* 0: there is none */
  uint32_t slots;
};

struct rc_ring_writer {
  struct rc_ring ring;
  uint64_t tail;     /* where the next frame starts */
  uint64_t limit;    /* granted up to here */
  uint64_t reserved; /* payload bytes of the open reservation */
  uint32_t blocker;  /* after -EAGAIN or -EPROTO: the slot that stands in the way */
  bool open;         /* a reservation is open */
  uint64_t zeroed;   /* so many bytes behind the tail stands a zeroed commit word; 0: none but that at the tail */
};

struct rc_ring_reader {
  struct rc_ring ring;
  struct rc_slot *own;
  uint64_t owner;  /* its owner word, while we are not evicted */
  uint64_t cursor; /* all frames below this are released: the start of the oldest that is held */
  uint64_t next;   /* the frame to read next starts here */
  uint64_t max_frame;
  uint32_t slot;
  uint32_t leases;       /* how many frames may have a lease at once */
  uint32_t first, older; /* the queue of held frames, without the newest one (ring/held.h) */
  struct rc_held newest, queue[RC_MAX_HELD];
};

/* One frame as found in the ring, or by way of it. */
struct rc_ring_frame {
  const void *data;
  uint64_t position, bytes;
  uint16_t kind;
  bool spilled;
  uint64_t offset; /* in SPILL, if it is spilled */
};

/* What a frame takes up in the ring. Two lines at a time: many CPUs fetch them in pairs. If the next frame could begin
 * in the pair's other half, then who reads one would, without meaning to, take away the line that is being written;
 * that makes a trip up to 1.3 times as long, and streams between distant cores three times as slow. */
static inline uint64_t rc_frame_lines(uint64_t bytes) {
  return (sizeof(struct rc_frame_header) + bytes + RC_FRAME_ALIGN - 1) & ~(uint64_t)(RC_FRAME_ALIGN - 1);
}

/* The largest payload. Half the ring is granted at a time, the next frame's header must fit in as well, and the length
 * has 32 bits. */
static inline uint64_t rc_ring_max_frame(uint64_t capacity) {
  uint64_t most = capacity / 2 - RC_FRAME_ALIGN - sizeof(struct rc_frame_header);
  return most < UINT32_MAX ? most : UINT32_MAX;
}

/* Reads a note, once, checks it, and fills in what it says. -EPROTO: the note is invalid. */
int rc_spilled_read(const struct rc_ring *ring, uint64_t frame_bytes, const struct rc_spilled *note,
                    struct rc_ring_frame *frame);

/* What runs once a frame is in ring/fastpath.h, which includes this:
 *   rc_ring_reserve(writer, bytes, out)  -EAGAIN -EBUSY -EMSGSIZE -EPROTO
 *   rc_ring_commit(writer, bytes, kind)  -EINVAL
 *   rc_ring_next_plain(reader, out)      the usual case of rc_ring_next
 *   rc_ring_release_only(reader, position)  the usual case of rc_ring_release
 */

/* Writer. The control segment is zero but for its identity, and DATA is zero. */
void rc_ring_writer_init(struct rc_ring_writer *writer, struct rc_ring ring);
int rc_ring_reserve_slowly(struct rc_ring_writer *writer, uint64_t bytes, void **out);
int rc_ring_grow(struct rc_ring_writer *writer, uint64_t bytes, void **out); /* the same, -EINVAL */
int rc_ring_abort(struct rc_ring_writer *writer);                            /* -EINVAL */
/* Commits a note with this offset and length instead of a payload. For ring/spill.c. -EINVAL. */
int rc_ring_commit_spilled(struct rc_ring_writer *writer, uint64_t offset, uint64_t bytes, uint16_t kind);
/* Looks at all readers: none needs anything below *out any more, nor will one that joins later. -EAGAIN while somebody
 * joins; -EPROTO if a cursor can't be right. Names the blocker, also on success unless nobody is behind. */
int rc_ring_lowest(struct rc_ring_writer *writer, uint64_t *out);
/* Whether a reader's cursor can be right: within one lap behind the tail. */
static inline bool rc_ring_is_cursor(const struct rc_ring_writer *writer, uint64_t cursor) {
  return cursor <= writer->tail && writer->tail - cursor <= writer->ring.capacity && cursor % RC_FRAME_ALIGN == 0;
}
/* No cursor may be below this for `bytes`. */
uint64_t rc_ring_wanted(const struct rc_ring_writer *writer, uint64_t bytes);
bool rc_ring_writer_is_valid(const struct rc_ring_writer *writer);

/* Reader. -ESTALE from any of them: it was evicted, and what it holds may be overwritten. */
int rc_ring_next(struct rc_ring_reader *reader, struct rc_ring_frame *out); /* -EAGAIN -EBUSY -EPROTO */
/* Whether all that was read of held frames up to now was whole. */
static inline bool rc_ring_is_evicted(const struct rc_ring_reader *reader) {
  rc_fence_acquire();                                           /* A0 <- L1, S1 */
  return rc_load_relaxed(&reader->own->owner) != reader->owner; /* relaxed: the fence orders it */
}
/* At least how many frames are held: some may share an entry. 0: none. */
static inline uint32_t rc_ring_held(const struct rc_ring_reader *reader) {
  return reader->older + (reader->cursor != reader->next);
}
/* Reads the header of a frame with a lease again. -EINVAL -EPROTO */
int rc_ring_look(struct rc_ring_reader *reader, uint64_t position, struct rc_ring_frame *out);
/* How many frames are there to be read from *position on, which moves behind them; it stops at `most`, and at what is
 * damaged. */
uint32_t rc_ring_count(const struct rc_ring *ring, uint64_t *position, uint32_t most);
bool rc_ring_reader_is_valid(const struct rc_ring_reader *reader);

#endif
