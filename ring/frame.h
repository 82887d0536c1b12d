/* SPDX-License-Identifier: Apache-2.0 */
/* Of a typed frame's payload; the ring's own frame header is in layout.h. What the builder
 * (frame_build.c) and the reader (frame_read.c) of tensor frames share: the offsets in the payload,
 * whose layout ringcast/frame.h describes, and the bytes of tensors (tensor.c). */
#ifndef RC_RING_FRAME_H
#define RC_RING_FRAME_H

#include <stdbool.h>

#include "ringcast/frame.h"

/* The oldest readable version; a frame has a later one only where the content needs it. */
#define RC_PAYLOAD_OLDEST 1
#define RC_PAYLOAD_LINE   64
#define RC_PAYLOAD_PHASE  16 /* a frame's payload starts this far into a line */
#define RC_PAYLOAD_ALIGN  8  /* dimensions, and data other than tensors */
/* An empty key or empty data has offset 0 in the entry; the reader returns this offset, which is on
 * a line. */
#define RC_PAYLOAD_NOWHERE (RC_PAYLOAD_LINE - RC_PAYLOAD_PHASE)

#define RC_ITEM_FLAGS                                                                              \
  (RINGCAST_ITEM_KEYED | RINGCAST_ITEM_NUMPY | RINGCAST_ITEM_TORCH | RINGCAST_ITEM_REQUIRES_GRAD | \
   RINGCAST_ITEM_PARAMETER | RINGCAST_ITEM_READONLY | RINGCAST_ITEM_PADDED | RC_ITEM_DEVICES)
/* Of TENSOR, from version 3 on. */
#define RC_ITEM_DEVICES (RINGCAST_ITEM_CUDA | RINGCAST_ITEM_CUPY | RINGCAST_ITEM_JAX)
/* Of BYTES, from version 2 on. */
#define RC_ITEM_TYPECODE (255u << 24)
/* Set by ringcast_build_hash only. */
#define RC_ITEM_HASHES (RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the layout is little-endian");

/* The offsets of the fields are held by the frames of tests/vectors. */
_Static_assert(sizeof(struct ringcast_dtype) == 4, "dtype");
_Static_assert(sizeof(struct ringcast_frame_header) == 48, "header");
_Static_assert(sizeof(struct ringcast_frame_entry) == 64, "entry");

/* Sums saturate at UINT64_MAX, which no memory can hold. */
static inline uint64_t rc_add(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static inline uint64_t rc_align(uint64_t offset, uint64_t alignment) {
  uint64_t up = rc_add(offset, alignment - 1);
  return up == UINT64_MAX ? UINT64_MAX : up & ~(alignment - 1);
}

/* The first offset on a line, not below `offset`. */
static inline uint64_t rc_payload_line(uint64_t offset) {
  uint64_t up = rc_align(rc_add(offset, RC_PAYLOAD_PHASE), RC_PAYLOAD_LINE);
  return up == UINT64_MAX ? UINT64_MAX : up - RC_PAYLOAD_PHASE;
}

static inline uint64_t rc_payload_meta(uint32_t count) {
  return sizeof(struct ringcast_frame_header) +
         (uint64_t)count * sizeof(struct ringcast_frame_entry);
}

/* Whether an entry may have the typecode in these flags: BYTES, of whole elements. */
static inline bool rc_typecode_fits(uint16_t kind, uint32_t flags, uint64_t bytes) {
  uint32_t each = ringcast_typecode_bytes(RINGCAST_ITEM_TYPECODE(flags));
  return kind == RINGCAST_ITEM_BYTES && each > 0 && bytes % each == 0;
}

/* Whether the bytes of a tensor that is not INLINE are a valid range: not empty, and without
 * overflow. */
static inline bool rc_payload_device_range(const struct ringcast_frame_entry *entry) {
  return entry->bytes > 0 && entry->offset <= UINT64_MAX - entry->bytes;
}

/* ---- The bytes of tensors -------------------------------------------------------------------- */

/* Computed from the dtype, shape and strides. The functions check all three and trust no value. */

/* The bits of one element, all lanes together. 0: the dtype is invalid, or the flags say "padded"
 * although an element has whole bytes. */
uint32_t rc_element_bits(struct ringcast_dtype dtype, uint32_t flags);

/* The number of elements, and the strides of C order (`strides` may be NULL). A dimension of 0
 * counts as 1 in the strides, as in torch. -EINVAL: ndim or shape is out of range, or the count,
 * with each 0 taken as 1, exceeds INT64_MAX. */
int rc_shape_layout(int32_t ndim, const int64_t *shape, int64_t *strides, int64_t *out_count);

/* The bytes of `count` elements without gaps. -EINVAL: more than INT64_MAX. */
int rc_packed_bytes(uint32_t bits, int64_t count, uint64_t *out);

/* Whether the tensor is in C order. Strides of dimensions of size 1, and of empty tensors, do not
 * count. rc_shape_layout has accepted the shape. */
bool rc_strides_are_c(int32_t ndim, const int64_t *shape, const int64_t *strides);

#endif
