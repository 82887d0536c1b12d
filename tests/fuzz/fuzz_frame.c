/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The typed layout: any bytes at all are opened as a frame, and whatever the reader says is there
 * is read, packed if it is a tensor, and copied out and checked if it is a nested value
 * (fuzz_object does that at length). An input that is longer than the frame it holds goes on with
 * changes, each of which is made between two calls of a second reading: as by a writer that goes on
 * writing.
 *
 *     change: offset (2 bytes), width 1 << (n & 3) (1 byte), value (8 bytes)
 */
#include "tests/fuzz/fuzz.h"
#include "tests/support/frame_walk.h"

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

/* Finds it by its key, or one before it with the same. */
static void find(struct frame *frame, const struct ringcast_frame_reader *reader,
                 const struct ringcast_item *item) {
  struct ringcast_item found;
  char key[64];
  if (!item->key || item->key_bytes > sizeof key) return;
  memcpy(key, item->key, item->key_bytes);
  change(frame);
  int result = ringcast_frame_find(reader, key, item->key_bytes, &found);
  require(result == 0 || result == -EPROTO || (result == -ENOENT && frame->changing));
  if (result != 0) return;
  require(found.key && found.key_bytes == item->key_bytes);
  inspect_item(reader, &found);
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
    change(frame);
    inspect_item(&reader, &item);
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
