/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing tensors into C order.
 *
 * Packing copies blocks. First the axes are coalesced: axes of size 1 are dropped, and two
 * neighbours become one axis if the outer stride continues the inner axis. If the innermost
 * remaining axis has no gaps, it is one block; otherwise each element is a block. The
 * rest is a walk over the other axes, one block at a time. A tensor in C order becomes a single
 * block, a slice of rows one block per row, a transposed tensor one block per element. Blocks of
 * the common element sizes have copy loops with a constant size. A stride is only ever multiplied
 * by an index within the shape, so zero and negative strides need no special case.
 */
#include "ring/frame.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* A dimension for the copy: `step` is in bytes, not in elements. */
struct axis {
  int64_t count, step;
};

/* Fills in the coalesced axes, innermost first. Returns the number of axes, or -EINVAL. The tensor
 * is not empty. */
static int axes_coalesce(const struct ringcast_tensor *tensor, int64_t item, struct axis *axes) {
  int n = 0;
  for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
    int64_t step, continued;
    if (tensor->shape[i] == 1) continue; /* the stride has no meaning */
    if (__builtin_mul_overflow(tensor->strides[i], item, &step)) return -EINVAL;
    if (n > 0 && !__builtin_mul_overflow(axes[n - 1].count, axes[n - 1].step, &continued) &&
        continued == step) {
      axes[n - 1].count *= tensor->shape[i];
      continue;
    }
    axes[n] = (struct axis){tensor->shape[i], step};
    n++;
  }
  return n;
}

/* memcpy of a constant size compiles to an unaligned load and store. */
#define COPY_FIXED(size) \
  for (int64_t i = 0; i < axis.count; i++) memcpy(out + i * (size), in + i * axis.step, (size))

static void axis_copy(struct axis axis, size_t block, const uint8_t *in, uint8_t *out) {
  switch (block) {
  case 1: COPY_FIXED(1); break;
  case 2: COPY_FIXED(2); break;
  case 4: COPY_FIXED(4); break;
  case 8: COPY_FIXED(8); break;
  case 16: COPY_FIXED(16); break;
  default: COPY_FIXED((int64_t)block); break;
  }
}

static void axes_copy(const struct axis *axes, int n, size_t block, const uint8_t *in,
                      uint8_t *out) {
  int64_t index[RINGCAST_MAX_NDIM] = {0}, at = 0;
  for (;;) {
    axis_copy(axes[0], block, in + at, out);
    out += (size_t)axes[0].count * block;
    int i = 1;
    for (; i < n; i++) {
      index[i]++;
      if (index[i] < axes[i].count) break;
      at -= axes[i].step * (axes[i].count - 1);
      index[i] = 0;
    }
    if (i >= n) return;
    at += axes[i].step;
  }
}

int ringcast_tensor_pack(const struct ringcast_tensor *tensor, void *out) {
  uint64_t bytes;
  int rc = ringcast_tensor_bytes(tensor, &bytes);
  if (rc < 0) return rc;
  if (bytes == 0) return 0;
  if (!tensor->data || !out) return -EINVAL;
  bool is_plain = !tensor->strides || tensor->flags & RINGCAST_TENSOR_DENSE;
  if (is_plain || rc_strides_are_c(tensor->ndim, tensor->shape, tensor->strides)) {
    memcpy(out, tensor->data, bytes);
    return 0;
  }
  struct axis storage[RINGCAST_MAX_NDIM], *axes = storage;
  storage[0] = (struct axis){0}; /* for compilers that cannot prove n > 0 below */
  /* Elements without whole bytes are in C order, and packed above. */
  int64_t block = rc_element_bits(tensor->dtype, tensor->flags) / 8;
  int n = axes_coalesce(tensor, block, axes);
  if (n < 0) return n;
  if (axes[0].step == block) {
    block *= axes[0].count;
    axes++;
    n--;
  }
  assert(n > 0); /* with no axis left, the tensor would be in C order */
  axes_copy(axes, n, (size_t)block, tensor->data, out);
  return 0;
}

int ringcast_build_tensor(struct ringcast_frame_builder *builder, const char *key, size_t key_bytes,
                          const struct ringcast_tensor *tensor) {
  struct ringcast_frame_builder before = *builder;
  void *place;
  uint64_t bytes;
  int rc = ringcast_build_tensor_in_place(builder, key, key_bytes, tensor, &place, &bytes);
  if (rc < 0) return rc;
  rc = ringcast_tensor_pack(tensor, place);
  if (rc < 0) *builder = before;
  return rc;
}
