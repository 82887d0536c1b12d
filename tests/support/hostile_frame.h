/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of frames from a hostile writer: a sample frame with an entry of each kind, in a
 * block of exactly the frame's size, and a reader of the whole frame. */
#ifndef RC_TESTS_HOSTILE_FRAME_H
#define RC_TESTS_HOSTILE_FRAME_H

#include <errno.h>
#include <string.h>

#include "tests/support/frame_items.h"

#define HEADER(field)       offsetof(struct ringcast_frame_header, field)
#define ENTRY(index, field) (48 + 64 * (index) + offsetof(struct ringcast_frame_entry, field))
#define require             ck_assert
#include "tests/support/frame_walk.h"

/* The sample's entries. */
enum {
  INT,
  STR,
  TENSOR,
  ZERO_D,
  EMPTY,
  INT4,
  OBJECT,
  PICKLE,
  NONE,
  BOOL,
  LEAF,
  POOL,
  LENT,
  PADDED,
  COUNT
};

static inline uint8_t *sample_new(size_t *out_bytes) {
  static const uint8_t nested[] = {RINGCAST_TAG_LIST, 2, RINGCAST_TAG_PART, RINGCAST_TAG_NONE};
  static const struct ringcast_dtype f32 = {2, 32, 1};
  const struct ringcast_item items[COUNT] = {
      [INT] = {KEY("int", 0), .kind = RINGCAST_ITEM_INT, .scalar.i = 42},
      [STR] = {KEY("str", 0), .kind = RINGCAST_ITEM_STR, .data = "hello", .bytes = 5},
      [TENSOR] = {KEY("tensor", RINGCAST_ITEM_SHA256), .kind = RINGCAST_ITEM_TENSOR,
                  .data = "abcdefghijklmnopqrstuvw", .bytes = 24, .dtype = f32, .ndim = 2,
                  .shape = {2, 3}, .hash = 0x0123456789abcdef},
      [ZERO_D] = {KEY("zero", 0), .kind = RINGCAST_ITEM_TENSOR, .data = "abcdefgh", .bytes = 8,
                  .dtype = {0, 64, 1}},
      [EMPTY] = {KEY("empty", 0), .kind = RINGCAST_ITEM_TENSOR, .dtype = f32, .ndim = 2,
                 .shape = {0, 3}},
      [INT4] = {KEY("int4", 0), .kind = RINGCAST_ITEM_TENSOR, .data = "abc", .bytes = 3,
                .dtype = {0, 4, 1}, .ndim = 1, .shape = {5}},
      [OBJECT] = {KEY("object", 0), .kind = RINGCAST_ITEM_OBJECT, .data = nested,
                  .bytes = sizeof nested, .scalar.i = PICKLE | (int64_t)1 << 32},
      [PICKLE] = {.kind = RINGCAST_ITEM_PICKLE, .data = "no pickle", .bytes = 9},
      [NONE] = {KEY("none", 0), .kind = RINGCAST_ITEM_NONE},
      [BOOL] = {KEY("bool", 0), .kind = RINGCAST_ITEM_BOOL, .scalar.i = 1},
      [LEAF] = {KEY("leaf", 0), .kind = RINGCAST_ITEM_LEAF},
      [POOL] = {KEY("pool", RINGCAST_ITEM_CUDA), .kind = RINGCAST_ITEM_TENSOR, .dtype = f32,
                .placement = RINGCAST_PLACEMENT_POOL, .device_offset = 512},
      [LENT] = {KEY("more", RINGCAST_ITEM_CUDA), .kind = RINGCAST_ITEM_TENSOR, .dtype = f32,
                .placement = RINGCAST_PLACEMENT_POOL, .device_offset = 4},
      [PADDED] = {KEY("padded", RINGCAST_ITEM_PADDED), .kind = RINGCAST_ITEM_TENSOR,
                  .data = "abcde", .bytes = 5, .dtype = {1, 4, 1}, .ndim = 1, .shape = {5}},
  };
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  for (int i = 0; i < COUNT; i++) item_plan(&plan, &items[i]);
  size_t bytes = ringcast_plan_bytes(&plan);
  uint8_t *frame = malloc(bytes);
  ck_assert_int_eq(ringcast_build_begin(&builder, frame, bytes, &plan, RINGCAST_ROOT_DICT, 5), 0);
  ck_assert_int_eq(ringcast_build_device(&builder, 1, 2, 3), 0);
  for (int i = 0; i < COUNT; i++) ck_assert_int_eq(item_build(&builder, &items[i]), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, out_bytes), 0);
  ck_assert_uint_eq(*out_bytes, bytes);
  return frame;
}

/* Reads whatever there is. Returns how many entries were good, or -EPROTO if the frame as a whole
 * was not. */
static inline int walk(const uint8_t *frame, size_t bytes) {
  static const char *const keys[] = {"int", "tensor", "int4", "leaf", "pool", "missing"};
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  int good = 0;
  int rc = ringcast_frame_open(&reader, frame, bytes);
  if (rc < 0) {
    require(rc == -EPROTO || (rc == -EPROTONOSUPPORT && reader.version > RINGCAST_FRAME_VERSION));
    return -EPROTO;
  }
  for (uint32_t i = 0; i < reader.count; i++) {
    rc = ringcast_frame_item(&reader, i, &item);
    if (rc == 0) inspect_item(&reader, &item), good++;
    else require(rc == -EPROTO);
  }
  require(ringcast_frame_item(&reader, reader.count, &item) == -ENOENT);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    rc = ringcast_frame_find(&reader, keys[i], strlen(keys[i]), &item);
    if (rc == 0) inspect_item(&reader, &item);
    else require(rc == -ENOENT || rc == -EPROTO);
  }
  return good;
}

static inline uint64_t get(const uint8_t *frame, size_t offset, size_t size) {
  uint64_t value = 0;
  memcpy(&value, frame + offset, size);
  return value;
}

static inline void put(uint8_t *frame, size_t offset, size_t size, uint64_t value) {
  memcpy(frame + offset, &value, size);
}

#endif
