/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed frames: many small messages in one frame of the ring.
 *
 * A small frame costs a pair of lines, a commit with its fence, and a cursor store. The messages of
 * a packed frame share all of these costs. The payload of a frame with the flag RC_FRAME_PACKED is
 * a sequence of
 *
 *     head   {bytes u32, kind u16, gap u16}, at a multiple of 8
 *     data   `bytes` of them, filled up to a multiple of 8
 *
 * An entry with gap 1 is no message. The gap puts the data of the next message 16 bytes into a
 * line, like a frame's data. Messages of RINGCAST_KIND_BYTES follow each other without gaps.
 *
 * The ring publishes, holds and overwrites a packed frame as a whole, so the proof atop ring.c
 * covers packed frames. lend.c tells how a reader holds the messages. The position of a message is
 * that of its head, and so differs from the positions of all frames and other messages.
 *
 * A hostile writer may change the bytes at any time. The reader therefore loads each head once, and
 * checks it against the frame's length, which the reader keeps in private memory.
 */
#ifndef RC_RING_PACKED_H
#define RC_RING_PACKED_H

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "ring/layout.h"
#include "ringcast/ringcast.h"

#define RC_PACKED_ALIGN 8u
#define RC_PACKED_GAP   1u

/* ---- Writing --------------------------------------------------------------------------------- */

static inline uint64_t rc_packed_round(uint64_t bytes) {
  return (bytes + RC_PACKED_ALIGN - 1) & ~(uint64_t)(RC_PACKED_ALIGN - 1);
}

/* Bytes to skip at offset `at` of the payload, before a message of the kind. */
static inline uint64_t rc_packed_gap(uint64_t at, uint16_t kind) {
  /* A branch: a conditional move would wait for `at`. */
  return __builtin_expect(kind == RINGCAST_KIND_BYTES, 1)
             ? 0
             : (RC_LINE - RC_PACKED_ALIGN - at) & (RC_LINE - 1);
}

/* The offset after a message that follows offset `at`. */
static inline uint64_t rc_packed_end(uint64_t at, uint64_t bytes, uint16_t kind) {
  return at + rc_packed_gap(at, kind) + RC_PACKED_ALIGN + rc_packed_round(bytes);
}

static inline void rc_packed_put_head(uint8_t *at, uint64_t bytes, uint16_t kind, uint16_t gap) {
  uint64_t head = rc_meta_make((uint32_t)bytes, kind, gap);
  rc_store_relaxed((_Atomic uint64_t *)(void *)at, head); /* W1: W2 publishes it */
}

/* memcpy, without a call for the usual sizes. */
static inline void rc_packed_copy(uint8_t *to, const uint8_t *from, uint64_t bytes) {
  if (bytes - 8 > 24) {
    if (bytes != 0) memcpy(to, from, bytes);
  } else if (bytes <= 16) { /* two words, which may overlap */
    memcpy(to, from, 8);
    memcpy(to + bytes - 8, from + bytes - 8, 8);
  } else {
    memcpy(to, from, 16);
    memcpy(to + bytes - 16, from + bytes - 16, 16);
  }
}

/* Puts a message behind offset `at` of the payload, and returns the offset after it. */
static inline uint64_t rc_packed_put(uint8_t *payload, uint64_t at, const void *data,
                                     uint64_t bytes, uint16_t kind) {
  uint64_t gap = rc_packed_gap(at, kind);
  if (gap != 0) rc_packed_put_head(payload + at, gap - RC_PACKED_ALIGN, 0, RC_PACKED_GAP);
  at += gap;
  rc_packed_put_head(payload + at, bytes, kind, 0);
  rc_packed_copy(payload + at + RC_PACKED_ALIGN, data, bytes);
  return at + RC_PACKED_ALIGN + rc_packed_round(bytes);
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* What is left of a packed frame. */
struct rc_packed {
  const uint8_t *data; /* the payload */
  uint64_t position;   /* of the payload */
  uint32_t bytes, at;  /* of the payload, and how many of them are read */
};

static inline struct rc_packed rc_packed_open(const void *data, uint64_t frame_position,
                                              uint64_t bytes) {
  return (struct rc_packed){.data = data,
                            .position = frame_position + sizeof(struct rc_frame_header),
                            .bytes = (uint32_t)bytes};
}

static inline bool rc_packed_is_left(const struct rc_packed *packed) {
  return packed->at < packed->bytes;
}

/* The next message. -EPROTO: the entry is invalid, and `packed` is as before. */
static inline int rc_packed_next(struct rc_packed *packed, struct ringcast_frame *out) {
  uint32_t at = packed->at;
  for (uint64_t after_gap = 0;; after_gap++) {
    uint64_t left = packed->bytes - at;
    if (left < RC_PACKED_ALIGN) return -EPROTO;
    /* R2: relaxed, R1 came before. Loaded once, so the checked value is the used value. */
    uint64_t head = rc_load_relaxed((const _Atomic uint64_t *)(const void *)(packed->data + at));
    uint64_t bytes = rc_meta_bytes(head), whole = RC_PACKED_ALIGN + rc_packed_round(bytes);
    if (whole > left || rc_meta_flags(head) > RC_PACKED_GAP - after_gap) return -EPROTO;
    if (rc_meta_flags(head) == 0) {
      *out = (struct ringcast_frame){.data = packed->data + at + RC_PACKED_ALIGN,
                                     .bytes = bytes,
                                     .position = packed->position + at,
                                     .kind = rc_meta_kind(head)};
      packed->at = at + (uint32_t)whole;
      return 0;
    }
    at += (uint32_t)whole;
  }
}

/* Reads messages, at most `most`, up to a gap or an invalid entry, and returns the number.
 * rc_packed_next reads on from there. The place of a message follows from the head before, and the
 * load of a head takes as long as the rest of the loop. So the loop supposes that the message is as
 * long as the message before: the CPU loads the next head, and checks the length later. */
static inline uint32_t rc_packed_run(struct rc_packed *packed, struct ringcast_frame *out,
                                     uint32_t most) {
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

#endif
