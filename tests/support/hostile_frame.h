/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of frames from a writer that means harm share: a sample with one of each, in a block of exactly its
 * size, and a reader of all of it that checks and touches whatever it is handed out. */
#ifndef RC_TESTS_HOSTILE_FRAME_H
#define RC_TESTS_HOSTILE_FRAME_H

#include <errno.h>
#include <string.h>

#include "ringcast/object.h"
#include "tests/support/suite.h"

#define HEADER(field)       offsetof(struct ringcast_frame_header, field)
#define ENTRY(index, field) (48 + 64 * (index) + offsetof(struct ringcast_frame_entry, field))
/* ck_assert writes to a pipe each time, which is too slow for millions. */
#define require(condition)                            \
  do {                                                \
    if (!(condition)) ck_abort_msg("%s", #condition); \
  } while (0)
/* The sample's entries. */
enum { INT, STR, TENSOR, ZERO_D, EMPTY, INT4, OBJECT, PICKLE, NONE, BOOL, LEAF, POOL, LENT, COUNT };

uint64_t touched; /* global, so that the reading of every byte is not optimised away */

/* A frame with one of each in a block of exactly its size. */
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
  ck_assert_int_eq(ringcast_build_device_tensor(&builder, "pool", 4, &device, RINGCAST_PLACEMENT_POOL, 512, 0), 0);
  ck_assert_int_eq(ringcast_build_device_tensor(&builder, "lent", 4, &device, RINGCAST_PLACEMENT_EXTERN, 4, 9), 0);
  ck_assert_int_eq(ringcast_build_hash(&builder, TENSOR, RINGCAST_ITEM_SHA256, 0x0123456789abcdef), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, out_bytes), 0);
  ck_assert_uint_eq(*out_bytes, bytes);
  return frame;
}

static inline void touch(const uint8_t *frame, size_t frame_bytes, const void *data, uint64_t bytes) {
  const uint8_t *from = data;
  require(from >= frame && from <= frame + frame_bytes && bytes <= (uint64_t)(frame + frame_bytes - from));
  for (uint64_t i = 0; i < bytes; i++) touched += from[i];
}

/* Counted without the library's arithmetic: the last element ends within the data, and the elements can be counted. */
static inline void tensor_inspect(const struct ringcast_item *item) {
  unsigned bits = (unsigned)item->dtype.bits * item->dtype.lanes;
  if (item->flags & RINGCAST_ITEM_PADDED) bits = (bits + 7) / 8 * 8;
  __int128 last = 0, count = 1, bytes;
  int empty = 0;
  require(bits > 0 && item->ndim >= 0 && item->ndim <= RINGCAST_MAX_NDIM);
  for (int32_t i = 0; i < item->ndim; i++) empty |= item->shape[i] == 0;
  for (int32_t i = 0; i < item->ndim; i++) {
    require(item->shape[i] >= 0 && item->strides[i] >= 0);
    if (empty) continue;
    last += (__int128)(item->shape[i] - 1) * item->strides[i];
    count *= item->shape[i];
    require(last <= INT64_MAX && count <= INT64_MAX);
  }
  bytes = empty ? 0 : ((last + 1) * bits + 7) / 8;
  require(bytes <= (__int128)item->bytes);
  require(empty || count * bits <= (__int128)8 * INT64_MAX);
}

/* Its parts are entries; of its stream, copied out, nothing is read but that. */
static inline void object_inspect(const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  struct ringcast_object_needs needs;
  uint64_t first = (uint32_t)item->scalar.i, parts = (uint64_t)item->scalar.i >> 32;
  uint8_t *copy = malloc(item->bytes);
  require(reader->version >= 2 && item->bytes > 0 && first + parts <= reader->count);
  memcpy(copy, item->data, item->bytes);
  if (ringcast_object_check(copy, item->bytes, &needs) == 0) touched += needs.values;
  free(copy);
}

/* There is nothing of it here, and what is said of it can be counted with. */
static inline void device_inspect(const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  require(item->kind == RINGCAST_ITEM_TENSOR && !item->data && item->placement <= RINGCAST_PLACEMENT_EXTERN);
  require((item->lent != 0) == (item->placement == RINGCAST_PLACEMENT_EXTERN) && item->flags & RINGCAST_ITEM_CUDA);
  require(reader->version >= 3 && reader->device_epoch && reader->device_generation);
  require(item->bytes > 0 && item->device_offset + item->bytes > item->device_offset);
}

static inline void item_inspect(const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  require(item->kind >= RINGCAST_ITEM_NONE && item->kind <= RINGCAST_ITEM_OBJECT);
  if (item->key) touch(reader->base, reader->bytes, item->key, item->key_bytes);
  if (item->placement == RINGCAST_PLACEMENT_INLINE) touch(reader->base, reader->bytes, item->data, item->bytes);
  else device_inspect(reader, item);
  if (item->kind == RINGCAST_ITEM_TENSOR) tensor_inspect(item);
  if (item->kind == RINGCAST_ITEM_OBJECT) object_inspect(reader, item);
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
    if (rc == 0) item_inspect(&reader, &item), good++;
    else require(rc == -EPROTO);
  }
  require(ringcast_frame_item(&reader, reader.count, &item) == -ENOENT);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    rc = ringcast_frame_find(&reader, keys[i], strlen(keys[i]), &item);
    if (rc == 0) item_inspect(&reader, &item);
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
