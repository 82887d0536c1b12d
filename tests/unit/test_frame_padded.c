/* SPDX-License-Identifier: Apache-2.0 */
/* Padded tensors in frames: elements of less than a byte that each begin one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ringcast/frame.h"
#include "tests/support/suite.h"

#define HEADER(field)       offsetof(struct ringcast_frame_header, field)
#define ENTRY(index, field) (48 + 64 * (index) + offsetof(struct ringcast_frame_entry, field))

/* A uint4 of 2 by 3 and a str, in a block of exactly their size. */
static uint8_t *frame_new(size_t *out_bytes) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_tensor tensor = {.data = "abcdef",
                                   .dtype = {1, 4, 1},
                                   .ndim = 2,
                                   .shape = (int64_t[]){2, 3},
                                   .strides = (int64_t[]){1, 2},
                                   .flags = RINGCAST_ITEM_PADDED};
  ringcast_plan_tensor(&plan, 0, 2, 6);
  ringcast_plan_item(&plan, 0, 5);
  size_t bytes = ringcast_plan_bytes(&plan);
  uint8_t *frame = malloc(bytes);
  ck_assert_int_eq(ringcast_build_begin(&builder, frame, bytes, &plan, RINGCAST_ROOT_DICT, 0), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, NULL, 0, &tensor), 0);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_STR, NULL, 0, "text", 5, RINGCAST_ITEM_PADDED, NULL),
                   -EINVAL);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_STR, NULL, 0, "text", 5, 0, NULL), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, out_bytes), 0);
  return frame;
}

/* How the reader takes an entry. */
static int taken(const uint8_t *frame, size_t bytes, uint32_t index) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  return ringcast_frame_item(&reader, index, &item);
}

TEST(a_padded_tensor_arrives_in_c_order_and_asks_for_a_later_version) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  size_t bytes;
  uint8_t *frame = frame_new(&bytes);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  ck_assert_uint_eq(reader.version, 2);
  ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item), 0);
  ck_assert_uint_eq(item.flags, RINGCAST_ITEM_PADDED);
  ck_assert_uint_eq(item.bytes, 6);
  ck_assert_mem_eq(item.data, "acebdf", 6);
  ck_assert_int_eq(taken(frame, bytes, 1), 0);
  free(frame);
}

TEST(padding_that_lies_is_refused) {
  static const struct {
    size_t offset, size;
    uint64_t value;
    uint32_t entry;
  } lies[] = {
      {ENTRY(0, bytes), 8, 3, 0},                                        /* bit on bit it were these */
      {ENTRY(0, flags), 4, 0, 0},       {ENTRY(0, dtype.bits), 1, 8, 0}, /* nothing to pad */
      {ENTRY(0, dtype.bits), 1, 0, 0},  {ENTRY(0, dtype.bits), 1, 12, 0},
      {ENTRY(0, dtype.lanes), 2, 2, 0}, {ENTRY(1, flags), 4, RINGCAST_ITEM_PADDED, 1},
      {HEADER(version), 2, 1, 0},
  };
  size_t bytes;
  uint8_t *frame = frame_new(&bytes);
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    uint64_t truth;
    memcpy(&truth, frame + lies[i].offset, lies[i].size);
    memcpy(frame + lies[i].offset, &lies[i].value, lies[i].size);
    ck_assert_msg(taken(frame, bytes, lies[i].entry) == -EPROTO, "lie %zu was believed", i);
    ck_assert_int_eq(taken(frame, bytes, !lies[i].entry), 0);
    memcpy(frame + lies[i].offset, &truth, lies[i].size);
  }
  ck_assert_int_eq(taken(frame, bytes, 0), 0);
  free(frame);
}

RUN_TESTS("padded frames", NULL, NULL)
