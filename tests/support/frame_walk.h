/* SPDX-License-Identifier: Apache-2.0 */
/* Checks each item that a reader of frames hands out, and reads all bytes of the item. The frame
 * may be damaged. The including file defines `require(condition)`. */
#ifndef RC_TESTS_FRAME_WALK_H
#define RC_TESTS_FRAME_WALK_H

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ringcast/object.h"

static volatile uint64_t frame_touched; /* so that no compiler leaves the reading of a byte out */

static inline void inspect_bytes(const struct ringcast_frame_reader *reader, const void *data,
                                 uint64_t bytes) {
  const uint8_t *from = data, *frame = reader->base;
  uint64_t sum = 0;
  require(from >= frame && from <= frame + reader->bytes &&
          bytes <= (uint64_t)(frame + reader->bytes - from));
  for (uint64_t i = 0; i < bytes; i++) sum += from[i];
  frame_touched += sum;
}

/* Counted without the library's arithmetic: the last element ends within the data, and the elements
 * can be counted. */
static inline void inspect_shape(const struct ringcast_item *item) {
  unsigned bits = (unsigned)item->dtype.bits * item->dtype.lanes;
  if (item->flags & RINGCAST_ITEM_PADDED) bits = (bits + 7) / 8 * 8;
  __int128 last = 0, count = 1;
  bool empty = false;
  require(bits > 0 && item->ndim >= 0 && item->ndim <= RINGCAST_MAX_NDIM);
  for (int32_t i = 0; i < item->ndim; i++) empty |= item->shape[i] == 0;
  for (int32_t i = 0; i < item->ndim; i++) {
    require(item->shape[i] >= 0 && item->strides[i] >= 0);
    if (empty) continue;
    last += (__int128)(item->shape[i] - 1) * item->strides[i];
    count *= item->shape[i];
    require(last <= INT64_MAX && count <= INT64_MAX);
  }
  __int128 bytes = empty ? 0 : ((last + 1) * bits + 7) / 8;
  require(bytes <= (__int128)item->bytes);
  require(empty || count * bits <= (__int128)8 * INT64_MAX);
}

/* A tensor in the frame is packed; the bytes of a tensor elsewhere can be counted. */
static inline void inspect_tensor(const struct ringcast_frame_reader *reader,
                                  const struct ringcast_item *item) {
  const struct ringcast_tensor tensor = {.data = item->data,
                                         .dtype = item->dtype,
                                         .ndim = item->ndim,
                                         .shape = item->shape,
                                         .strides = item->strides,
                                         .flags = item->flags};
  uint64_t bytes;
  inspect_shape(item);
  require(ringcast_tensor_bytes(&tensor, &bytes) == 0);
  require(bytes <= item->bytes); /* so a reader never allocates more than the frame's size */
  if (item->placement != RINGCAST_PLACEMENT_INLINE) {
    require(item->placement == RINGCAST_PLACEMENT_POOL);
    require(item->flags & RINGCAST_ITEM_CUDA && !item->data && bytes == item->bytes && bytes > 0);
    require(reader->version >= 3 && reader->device_epoch != 0 && reader->device_generation != 0);
    require(item->device_offset + bytes > item->device_offset);
    return;
  }
  uint8_t *out = malloc(bytes + 1);
  require(ringcast_tensor_pack(&tensor, out) == 0);
  free(out);
}

/* An object's parts are entries. The stream is checked in a copy, which no writer changes. */
static inline void inspect_object(const struct ringcast_frame_reader *reader,
                                  const struct ringcast_item *item) {
  struct ringcast_object_needs needs;
  uint64_t first = (uint32_t)item->scalar.i, parts = (uint64_t)item->scalar.i >> 32;
  require(reader->version >= 2 && item->bytes > 0 && first + parts <= reader->count);
  uint8_t *stream = malloc(item->bytes);
  memcpy(stream, item->data, item->bytes);
  int result = ringcast_object_check(stream, item->bytes, &needs);
  require(result == -EPROTO || (result == 0 && needs.values <= item->bytes));
  free(stream);
}

static inline void inspect_item(const struct ringcast_frame_reader *reader,
                                const struct ringcast_item *item) {
  const uint32_t hashes = RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3;
  const uint32_t devices = RINGCAST_ITEM_CUDA | RINGCAST_ITEM_CUPY | RINGCAST_ITEM_JAX;
  bool is_tensor = item->kind == RINGCAST_ITEM_TENSOR,
       is_here = item->placement == RINGCAST_PLACEMENT_INLINE;
  require(item->kind >= RINGCAST_ITEM_NONE && item->kind <= RINGCAST_ITEM_OBJECT);
  require((item->flags & hashes) != hashes && (item->hash == 0 || item->flags & hashes));
  require(!(item->flags & hashes) || (is_tensor && reader->version >= 2));
  require(!(item->flags & devices) || (is_tensor && reader->version >= 3));
  require((item->flags & devices) != devices &&
          (!(item->flags & devices) || item->flags & RINGCAST_ITEM_CUDA));
  require(is_here ? item->device_offset == 0 : is_tensor);
  if (item->key) inspect_bytes(reader, item->key, item->key_bytes);
  if (is_here) inspect_bytes(reader, item->data, item->bytes);
  if (is_tensor) inspect_tensor(reader, item);
  if (item->kind == RINGCAST_ITEM_OBJECT) inspect_object(reader, item);
}

#endif
