/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The broadcast ring: one writer, up to RC_MAX_SLOTS readers, and no losses. Frames have any length
 * up to just under half the ring; the payload of a larger frame lies beside the ring
 * (ring/spill.h). The ring works on the caller's memory (ring/layout.h), makes no system call,
 * allocates nothing and never waits. DATA must be mapped twice in a row, so that a frame that
 * reaches over the end continues in the second mapping. The essay atop ring.c gives the algorithm
 * and the proof.
 */
#ifndef RC_RING_RING_H
#define RC_RING_RING_H

#include <stdbool.h>

#include "ring/held.h"
#include "ring/layout.h"
#include "ring/packed.h"
#include "ring/slot.h"

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

struct rc_ring_writer {
  struct rc_ring view;
  uint64_t tail;     /* where the next frame starts */
  uint64_t limit;    /* the end of the granted positions */
  uint64_t reserved; /* payload bytes of the open reservation */
  uint32_t blocker;  /* after -EAGAIN or -EPROTO: the blocking reader's slot */
  bool open;         /* a reservation is open */
  uint64_t zeroed; /* the commit word at tail + zeroed is zero already; 0: only the word at the tail
                      is zero */
  uint64_t credit; /* frames that may be committed before the next grant */
  uint64_t
      ahead; /* the most frames that a reader may have left to take; 0: no bound. Set after init */
  uint64_t taken; /* by rc_ring_lowest: how far the reader in slot `slowest` has taken frames, the
                     fewest of all */
  uint32_t slowest;
  uint64_t due; /* if the last grant gave no credit: the end of the frame that the slowest reader
                   must take */
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
  uint32_t first, older; /* the queue of held frames, without the newest one (ring/held.h) */
  uint32_t lents;        /* how many loans are in `lent` */
  struct rc_held newest, queue[RC_MAX_HELD];
  struct rc_packed
      packed;      /* the packed frame whose messages come next, before the frame at `next` */
  uint64_t walked; /* the start of the held entry that contains this frame */
  struct rc_group group;
  struct rc_lent lent[RC_MAX_LEASES];
};

/* One frame as found in the ring or in SPILL. */
struct rc_ring_frame {
  const void *data; /* NULL: spilled, and SPILL is not mapped */
  uint64_t position, bytes;
  uint16_t kind;
  bool spilled, packed;
  uint64_t offset; /* in SPILL, if spilled */
};

/* The bytes of a frame in the ring: whole pairs of lines, because many CPUs fetch lines in pairs.
 * If the next frame could begin in a pair's second half, a reader's fetch would take away the line
 * that the writer is writing. A trip would take up to 1.3 times as long, and streams between
 * distant cores would be three times as slow. */
static inline uint64_t rc_frame_lines(uint64_t bytes) {
  return (sizeof(struct rc_frame_header) + bytes + RC_FRAME_ALIGN - 1) &
         ~(uint64_t)(RC_FRAME_ALIGN - 1);
}

/* The largest payload. A grant is at most half the ring and includes the next frame's header, and
 * the length has 32 bits. */
static inline uint64_t rc_ring_max_frame(uint64_t capacity) {
  uint64_t most = capacity / 2 - RC_FRAME_ALIGN - sizeof(struct rc_frame_header);
  return most < UINT32_MAX ? most : UINT32_MAX;
}

/* Reads the frame at `position`; *after is the position after it. -EAGAIN: not committed. -EPROTO:
 * the header or the descriptor is invalid. */
int rc_ring_read(const struct rc_ring *ring, uint64_t position, struct rc_ring_frame *out,
                 uint64_t *after);

/* The functions that run once a frame are in ring/fastpath.h, which includes this header:
 *   rc_ring_reserve(writer, bytes, out)  -EAGAIN -EBUSY -EMSGSIZE -EPROTO
 *   rc_ring_commit(writer, bytes, kind)  -EINVAL
 *   rc_ring_zero_ahead(writer, bytes)    after a commit and its fence
 *   rc_ring_next_plain(reader, out)      the usual case of rc_ring_next
 *   rc_ring_release_only(reader, position)  the usual case of rc_ring_release */

/* Writer. DATA is zero, and so is the control segment except the identity. */
void rc_ring_writer_init(struct rc_ring_writer *writer, struct rc_ring ring);
int rc_ring_reserve_slowly(struct rc_ring_writer *writer, uint64_t bytes, void **out);
int rc_ring_grow(struct rc_ring_writer *writer, uint64_t bytes,
                 void **out);                     /* as reserve, and -EINVAL */
int rc_ring_abort(struct rc_ring_writer *writer); /* -EINVAL */
/* Commits a descriptor with `offset` and `bytes` instead of a payload. For ring/spill.c.
 * -EINVAL. */
int rc_ring_commit_spilled(struct rc_ring_writer *writer, uint64_t offset, uint64_t bytes,
                           uint16_t kind);
/* Sets *out to the lowest cursor: no reader, present or joining later, needs a position below.
 * -EAGAIN: a reader is joining. -EPROTO: a cursor is invalid. Sets `blocker`, on success too unless
 * all readers are at the tail. */
int rc_ring_lowest(struct rc_ring_writer *writer, uint64_t *out);
/* Whether a reader's cursor is valid: within one lap behind the tail. */
static inline bool rc_ring_is_cursor(const struct rc_ring_writer *writer, uint64_t cursor) {
  return cursor <= writer->tail && writer->tail - cursor <= writer->view.capacity &&
         cursor % RC_FRAME_ALIGN == 0;
}
/* The position that all cursors must reach before `bytes` fit. */
uint64_t rc_ring_wanted(const struct rc_ring_writer *writer, uint64_t bytes);
bool rc_ring_writer_is_valid(const struct rc_ring_writer *writer);

/* Reader. -ESTALE, from any function: the reader is evicted, and the held frames may be
 * overwritten. */
/* A packed frame as a whole; rc_ring_take (ring/packed.h) returns its messages. -EAGAIN -EBUSY
 * -EPROTO */
int rc_ring_next(struct rc_ring_reader *reader, struct rc_ring_frame *out);
/* False: all bytes that the reader has loaded from held frames so far are intact. */
static inline bool rc_ring_is_evicted(const struct rc_ring_reader *reader) {
  rc_fence_acquire();                                           /* A0 <- L1, S1 */
  return rc_load_relaxed(&reader->own->owner) != reader->owner; /* relaxed: the fence orders it */
}
/* A lower bound of the number of held frames: merged frames share an entry. 0: no frame is held. */
static inline uint32_t rc_ring_held(const struct rc_ring_reader *reader) {
  return reader->older + (reader->cursor != reader->next);
}
/* Reads the header of a leased frame again. -EINVAL -EPROTO */
int rc_ring_look(struct rc_ring_reader *reader, uint64_t position, struct rc_ring_frame *out);
/* Counts the available frames from *position on, at most `most`, and moves *position behind them. A
 * damaged frame ends the count. */
uint32_t rc_ring_count(const struct rc_ring *ring, uint64_t *position, uint32_t most);
bool rc_ring_reader_is_valid(const struct rc_ring_reader *reader);

#endif
