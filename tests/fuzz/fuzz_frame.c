/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The typed layout: any bytes at all are opened as a frame, and whatever the reader says is there is read, packed if it
 * is a tensor, and copied out and checked if it is a nested value (fuzz_object does that at length). An input that is
 * longer than the frame it holds goes on with changes, each of which is made between two calls of a second reading: as
 * by a writer that goes on writing.
 *
 *     change: offset (2 bytes), width 1 << (n & 3) (1 byte), value (8 bytes)
 */
#include "ringcast/object.h"

#include <errno.h>
#include <stdbool.h>

#include "tests/fuzz/fuzz.h"

struct frame {
  uint8_t *base;
  size_t bytes;
  struct input changes;
  bool changing; /* it has some, or had */
};

static void change(struct frame *frame) {
  if (frame->changes.left == 0) return;
  size_t offset = take(&frame->changes, 2), width = (size_t)1 << (take(&frame->changes, 1) & 3);
  uint64_t value = take(&frame->changes, 8);
  if (frame->bytes < width) return;
  memcpy(frame->base + offset % (frame->bytes - width + 1), &value, width);
}

static void inspect_data(const struct frame *frame, const void *data, uint64_t bytes) {
  const uint8_t *from = data;
  require(from >= frame->base && from <= frame->base + frame->bytes);
  require(bytes <= (uint64_t)(frame->base + frame->bytes - from));
  touch_all(from, bytes);
}

static void pack(const struct ringcast_item *item) {
  const struct ringcast_tensor tensor = {.data = item->data,
                                         .dtype = item->dtype,
                                         .ndim = item->ndim,
                                         .shape = item->shape,
                                         .strides = item->strides,
                                         .flags = item->flags};
  uint64_t bytes;
  require(ringcast_tensor_bytes(&tensor, &bytes) == 0);
  require(bytes <= item->bytes); /* so a frame makes nobody allocate more than it has itself */
  uint8_t *out = malloc(bytes + 1);
  require(ringcast_tensor_pack(&tensor, out) == 0);
  touch_all(out, bytes);
  free(out);
}

/* Its parts are entries; of its stream a copy is looked at, which nobody changes. */
static void check(const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  struct ringcast_object_needs needs;
  uint64_t first = (uint32_t)item->scalar.i, parts = (uint64_t)item->scalar.i >> 32;
  require(reader->version >= 2 && item->bytes > 0 && first + parts <= reader->count);
  uint8_t *stream = malloc(item->bytes);
  memcpy(stream, item->data, item->bytes);
  int result = ringcast_object_check(stream, item->bytes, &needs);
  require(result == -EPROTO || (result == 0 && needs.values <= item->bytes));
  free(stream);
}

/* What is said of a tensor that is not in the frame: it can be counted with, and there is nothing to read. */
static void inspect_place(const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  const struct ringcast_tensor tensor = {
      .dtype = item->dtype, .ndim = item->ndim, .shape = item->shape, .strides = item->strides, .flags = item->flags};
  uint64_t bytes;
  bool is_lent = item->placement == RINGCAST_PLACEMENT_EXTERN;
  require(item->kind == RINGCAST_ITEM_TENSOR && !item->data && item->flags & RINGCAST_ITEM_CUDA);
  require((is_lent || item->placement == RINGCAST_PLACEMENT_POOL) && (item->lent != 0) == is_lent);
  require(reader->version >= 3 && reader->device_epoch != 0 && reader->device_generation != 0);
  require(ringcast_tensor_bytes(&tensor, &bytes) == 0 && bytes == item->bytes);
  require(bytes > 0 && item->device_offset + bytes > item->device_offset);
}

static void inspect(struct frame *frame, const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  const uint32_t hashes = RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3;
  const uint32_t devices = RINGCAST_ITEM_CUDA | RINGCAST_ITEM_CUPY | RINGCAST_ITEM_JAX;
  require(item->kind >= RINGCAST_ITEM_NONE && item->kind <= RINGCAST_ITEM_OBJECT);
  require(item->ndim >= 0 && item->ndim <= RINGCAST_MAX_NDIM);
  require((item->flags & hashes) != hashes && (item->hash == 0 || item->flags & hashes));
  require(!(item->flags & hashes) || (item->kind == RINGCAST_ITEM_TENSOR && reader->version >= 2));
  require(!(item->flags & devices) || (item->kind == RINGCAST_ITEM_TENSOR && reader->version >= 3));
  require((item->flags & devices) != devices && (!(item->flags & devices) || item->flags & RINGCAST_ITEM_CUDA));
  if (item->key) inspect_data(frame, item->key, item->key_bytes);
  change(frame);
  if (item->placement != RINGCAST_PLACEMENT_INLINE) {
    inspect_place(reader, item);
    return;
  }
  inspect_data(frame, item->data, item->bytes);
  require(item->device_offset == 0 && item->lent == 0);
  if (item->kind == RINGCAST_ITEM_TENSOR) pack(item);
  if (item->kind == RINGCAST_ITEM_OBJECT) check(reader, item);
}

/* Finds it by its key, or one before it with the same. */
static void find(struct frame *frame, const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  struct ringcast_item found;
  char key[64];
  if (!item->key || item->key_bytes > sizeof key) return;
  memcpy(key, item->key, item->key_bytes);
  change(frame);
  int result = ringcast_frame_find(reader, key, item->key_bytes, &found);
  require(result == 0 || result == -EPROTO || (result == -ENOENT && frame->changing));
  if (result != 0) return;
  require(found.key && found.key_bytes == item->key_bytes);
  inspect(frame, reader, &found);
}

static void walk(struct frame *frame) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  fuzzed_frames++;
  int result = ringcast_frame_open(&reader, frame->base, frame->bytes);
  require(result == 0 || result == -EPROTO || result == -EPROTONOSUPPORT);
  if (result == -EPROTONOSUPPORT) require(reader.version > RINGCAST_FRAME_VERSION);
  if (result != 0) return;
  require(reader.count <= RINGCAST_MAX_ENTRIES);
  for (uint32_t i = 0; i < reader.count; i++) {
    change(frame);
    result = ringcast_frame_item(&reader, i, &item);
    require(result == 0 || result == -EPROTO);
    if (result != 0) continue;
    inspect(frame, &reader, &item);
    if (i < 8) find(frame, &reader, &item);
  }
  require(ringcast_frame_item(&reader, reader.count, &item) == -ENOENT);
  result = ringcast_frame_find(&reader, "t", 1, &item);
  require(result == 0 || result == -ENOENT || result == -EPROTO);
}

static size_t bytes_of_frame(const uint8_t *data, size_t bytes) {
  uint64_t told;
  if (bytes < sizeof(struct ringcast_frame_header)) return bytes;
  memcpy(&told, data + offsetof(struct ringcast_frame_header, bytes), sizeof told);
  return told < bytes ? (size_t)told : bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  struct frame frame = {.bytes = bytes_of_frame(data, bytes)};
  frame.base = malloc(frame.bytes); /* a block of just its size */
  if (frame.bytes != 0) memcpy(frame.base, data, frame.bytes);
  walk(&frame);
  frame.changes = (struct input){.at = data + frame.bytes, .left = bytes - frame.bytes};
  frame.changing = frame.changes.left != 0;
  if (frame.changing) walk(&frame);
  free(frame.base);
  return 0;
}
