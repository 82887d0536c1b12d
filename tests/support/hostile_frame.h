/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of frames from a hostile writer: a sample frame with an entry of each kind, in a block of exactly the
 * frame's size, and a reader of the whole frame. */
#ifndef RC_TESTS_HOSTILE_FRAME_H
#define RC_TESTS_HOSTILE_FRAME_H

#include <errno.h>
#include <string.h>

#include "tests/support/suite.h"

#define HEADER(field)       offsetof(struct ringcast_frame_header, field)
#define ENTRY(index, field) (48 + 64 * (index) + offsetof(struct ringcast_frame_entry, field))
#define require             ck_assert
#include "tests/support/frame_walk.h"

/* The sample's entries. */
enum { INT, STR, TENSOR, ZERO_D, EMPTY, INT4, OBJECT, PICKLE, NONE, BOOL, LEAF, POOL, LENT, PADDED, COUNT };

static inline uint8_t *sample_new(size_t *out_bytes) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_tensor tensor = {
      .data = "abcdefghijklmnopqrstuvw", .dtype = {2, 32, 1}, .ndim = 2, .shape = (int64_t[]){2, 3}};
  struct ringcast_tensor zero_d = {.data = "abcdefgh", .dtype = {0, 64, 1}};
  struct ringcast_tensor empty = {.dtype = {2, 32, 1}, .ndim = 2, .shape = (int64_t[]){0, 3}};
  static const uint8_t nested[] = {RINGCAST_TAG_LIST, 2, RINGCAST_TAG_PART, RINGCAST_TAG_NONE};
  struct ringcast_tensor device = {.dtype = {2, 32, 1}, .flags = RINGCAST_ITEM_CUDA};
  struct ringcast_tensor int4 = {.data = "abc", .dtype = {0, 4, 1}, .ndim = 1, .shape = (int64_t[]){5}};
  struct ringcast_tensor padded = {
      .data = "abcde", .dtype = {1, 4, 1}, .ndim = 1, .shape = (int64_t[]){5}, .flags = RINGCAST_ITEM_PADDED};
  ringcast_plan_item(&plan, 3, 0);
  ringcast_plan_item(&plan, 3, 5);
  ringcast_plan_tensor(&plan, 6, 2, 24);
  ringcast_plan_tensor(&plan, 4, 0, 8);
  ringcast_plan_tensor(&plan, 5, 2, 0);
  ringcast_plan_tensor(&plan, 4, 1, 3);
  ringcast_plan_item(&plan, 6, sizeof nested);
  ringcast_plan_item(&plan, 0, 9);
  ringcast_plan_item(&plan, 4, 0);
  ringcast_plan_item(&plan, 4, 0);
  ringcast_plan_item(&plan, 4, 0);
  ringcast_plan_device_tensor(&plan, 4, 0);
  ringcast_plan_device_tensor(&plan, 4, 0);
  ringcast_plan_tensor(&plan, 6, 1, 5);
  size_t bytes = ringcast_plan_bytes(&plan);
  uint8_t *frame = malloc(bytes);
  ck_assert_int_eq(ringcast_build_begin(&builder, frame, bytes, &plan, RINGCAST_ROOT_DICT, 5), 0);
  ck_assert_int_eq(ringcast_build_device(&builder, 1, 2, 3), 0);
  ck_assert_int_eq(ringcast_build_scalar(&builder, RINGCAST_ITEM_INT, "int", 3, 42), 0);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_STR, "str", 3, "hello", 5, 0, NULL), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "tensor", 6, &tensor), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "zero", 4, &zero_d), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "empty", 5, &empty), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "int4", 4, &int4), 0);
  ck_assert_int_eq(ringcast_build_object(&builder, "object", 6, nested, sizeof nested, PICKLE, 1, NULL), 0);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_PICKLE, NULL, 0, "no pickle", 9, 0, NULL), 0);
  ck_assert_int_eq(ringcast_build_scalar(&builder, RINGCAST_ITEM_NONE, "none", 4, 0), 0);
  ck_assert_int_eq(ringcast_build_scalar(&builder, RINGCAST_ITEM_BOOL, "bool", 4, 1), 0);
  ck_assert_int_eq(ringcast_build_scalar(&builder, RINGCAST_ITEM_LEAF, "leaf", 4, 0), 0);
  ck_assert_int_eq(ringcast_build_device_tensor(&builder, "pool", 4, &device, 512), 0);
  ck_assert_int_eq(ringcast_build_device_tensor(&builder, "more", 4, &device, 4), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "padded", 6, &padded), 0);
  ck_assert_int_eq(ringcast_build_hash(&builder, TENSOR, RINGCAST_ITEM_SHA256, 0x0123456789abcdef), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, out_bytes), 0);
  ck_assert_uint_eq(*out_bytes, bytes);
  return frame;
}

/* Reads whatever there is. Returns how many entries were good, or -EPROTO if the frame as a whole was not. */
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
