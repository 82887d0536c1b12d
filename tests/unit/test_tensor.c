/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors: counting their bytes, and packing any strides into C order, against a reference that
 * copies one element at a time. Sources and results stand in blocks of exactly their size, so a
 * sanitizer sees each byte too far. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ringcast/frame.h"
#include "tests/support/suite.h"

static const struct ringcast_dtype I64 = {0, 64, 1}, F32 = {2, 32, 1}, INT4 = {0, 4, 1};
static const struct ringcast_dtype WHOLE[] = {{1, 8, 1},   {2, 16, 1}, {2, 32, 1}, {2, 64, 1},
                                              {5, 128, 1}, {1, 8, 3},  {2, 32, 5}, {6, 8, 1},
                                              {17, 4, 2},  {0, 12, 2}};
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static uint64_t seed = 0x9e3779b97f4a7c15u;

static uint64_t random_below(uint64_t bound) {
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  return (seed * 0x2545f4914f6cdd1du >> 16) % bound;
}

static struct ringcast_tensor tensor_of(struct ringcast_dtype dtype, int32_t ndim,
                                        const int64_t *shape, const int64_t *strides,
                                        const void *data) {
  return (struct ringcast_tensor){
      .data = data, .dtype = dtype, .ndim = ndim, .shape = shape, .strides = strides};
}

static uint64_t bytes_of(struct ringcast_tensor tensor) {
  uint64_t bytes = UINT64_MAX;
  ck_assert_int_eq(ringcast_tensor_bytes(&tensor, &bytes), 0);
  return bytes;
}

/* Packs into a block of exactly the right size and compares with the element-wise copy. */
static void pack_and_compare(const struct ringcast_tensor *tensor, int64_t item) {
  uint64_t bytes = bytes_of(*tensor);
  uint8_t *packed = malloc(bytes), *expected = malloc(bytes);
  int64_t index[RINGCAST_MAX_NDIM] = {0};
  memset(packed, 0xa5, bytes);
  for (uint64_t at = 0; at < bytes; at += (uint64_t)item) {
    int64_t offset = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) offset += index[i] * tensor->strides[i];
    memcpy(expected + at, (const uint8_t *)tensor->data + offset * item, (size_t)item);
    for (int32_t i = tensor->ndim; i-- > 0;) {
      if (++index[i] < tensor->shape[i]) break;
      index[i] = 0;
    }
  }
  ck_assert_int_eq(ringcast_tensor_pack(tensor, packed), 0);
  ck_assert_int_eq(bytes ? memcmp(packed, expected, bytes) : 0, 0);
  free(packed), free(expected);
}

/* Gives the tensor data that reaches exactly from its lowest to its highest element, and packs
 * it. */
static void pack_in_exact_memory(struct ringcast_tensor tensor) {
  int64_t item = tensor.dtype.bits * tensor.dtype.lanes / 8, low = 0, high = 0;
  bool empty = false;
  for (int32_t i = 0; i < tensor.ndim; i++) empty |= tensor.shape[i] == 0;
  for (int32_t i = 0; i < tensor.ndim && !empty; i++) {
    if (tensor.shape[i] == 1) continue;
    int64_t reach = (tensor.shape[i] - 1) * tensor.strides[i];
    *(reach < 0 ? &low : &high) += reach;
  }
  size_t bytes = empty ? 0 : (size_t)((high - low + 1) * item);
  uint8_t *memory = malloc(bytes);
  for (size_t i = 0; i < bytes; i++) memory[i] = (uint8_t)random_below(256);
  tensor.data = empty ? memory : memory - low * item;
  pack_and_compare(&tensor, item);
  free(memory);
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

enum { PADDED = RINGCAST_ITEM_PADDED };
#define BIG ((int64_t)1 << 32)
#define MAX INT64_MAX
static const int64_t ONES[RINGCAST_MAX_NDIM + 1] = {[0 ... RINGCAST_MAX_NDIM] = 1};

#define SHAPE(...) \
  sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]) { __VA_ARGS__ }
/* What a tensor's elements take. NONE: they can't be counted, or the tensor is none. */
#define NONE UINT64_MAX
/* clang-format off */
static const struct {
  struct ringcast_dtype dtype;
  int32_t ndim;
  const int64_t *shape, *strides;
  uint32_t flags;
  uint64_t bytes;
} SIZES[] = {
    {{1, 8, 1}, SHAPE(3, 5, 2), NULL, 0, 30},
    {{2, 32, 1}, SHAPE(3, 5, 2), NULL, 0, 120},
    {{2, 32, 1}, 0, NULL, NULL, 0, 4},
    {{5, 128, 1}, SHAPE(3), NULL, 0, 48},
    {{2, 255, 65535}, SHAPE(8), NULL, 0, 255u * 65535},
    /* Less than eight bits round up once, and not in each row; all bits need not fit in 64. */
    {{0, 4, 1}, SHAPE(5), NULL, 0, 3},
    {{0, 4, 1}, SHAPE(3, 3), NULL, 0, 5},
    {{0, 1, 1}, SHAPE(17), NULL, 0, 3},
    {{15, 6, 1}, SHAPE(9), NULL, 0, 7},
    {{17, 4, 2}, SHAPE(9), NULL, 0, 9},
    {{0, 4, 1}, 0, NULL, NULL, 0, 1},
    {{0, 7, 1}, SHAPE(MAX), NULL, 0, 8070450532247928832u},
    /* They go in C order only; a stride that nobody takes does not matter. */
    {{0, 4, 1}, SHAPE(1, 5), (const int64_t[]){99, 1}, 0, 3},
    {{0, 4, 1}, SHAPE(5), (const int64_t[]){2}, 0, NONE},
    {{0, 4, 1}, SHAPE(5), (const int64_t[]){0}, 0, NONE},
    {{0, 4, 1}, SHAPE(5), (const int64_t[]){-1}, 0, NONE},
    {{0, 4, 1}, SHAPE(2, 3), (const int64_t[]){1, 2}, 0, NONE},
    /* Padded, each takes bytes of its own. */
    {{0, 4, 1}, SHAPE(5), NULL, PADDED, 5},
    {{0, 4, 1}, 0, NULL, NULL, PADDED, 1},
    {{1, 1, 1}, SHAPE(3, 3), NULL, PADDED, 9},
    {{15, 6, 3}, SHAPE(2), NULL, PADDED, 6},
    {{0, 4, 1}, SHAPE(MAX), NULL, PADDED, MAX},
    {{0, 12, 1}, SHAPE(MAX), NULL, PADDED, NONE},
    {{1, 8, 1}, SHAPE(4), NULL, PADDED, NONE},
    {{17, 4, 2}, SHAPE(4), NULL, PADDED, NONE},
    {{0, 0, 1}, 0, NULL, NULL, PADDED, NONE},
    /* Empty. */
    {{2, 32, 1}, SHAPE(0), NULL, 0, 0},
    {{2, 32, 1}, SHAPE(4, 0, 7), NULL, 0, 0},
    {{2, 32, 1}, SHAPE(MAX, 0), NULL, 0, 0},
    {{0, 4, 1}, SHAPE(0, 3), NULL, 0, 0},
    /* Too many to be counted, or their strides. */
    {{0, 64, 1}, SHAPE(MAX / 8), NULL, 0, MAX - 7},
    {{0, 64, 1}, SHAPE(MAX / 8 + 1), NULL, 0, NONE},
    {{0, 64, 1}, SHAPE(MAX), NULL, 0, NONE},
    {{1, 8, 1}, SHAPE(BIG, BIG), NULL, 0, NONE},
    {{1, 8, 1}, SHAPE(BIG, 3, BIG, 1), NULL, 0, NONE},
    {{1, 8, 1}, SHAPE(BIG, BIG, 0), NULL, 0, NONE},
    /* Out of range. */
    {{1, 8, 1}, RINGCAST_MAX_NDIM, ONES, NULL, 0, 1},
    {{1, 8, 1}, RINGCAST_MAX_NDIM + 1, ONES, NULL, 0, NONE},
    {{1, 8, 1}, -1, ONES, NULL, 0, NONE},
    {{1, 8, 1}, 1, NULL, NULL, 0, NONE},
    {{1, 8, 1}, SHAPE(-1), NULL, 0, NONE},
    {{1, 8, 1}, SHAPE(-1, -1), NULL, 0, NONE},
    {{1, 8, 1}, SHAPE(0, INT64_MIN), NULL, 0, NONE},
    {{2, 0, 1}, 0, NULL, NULL, 0, NONE},
    {{2, 32, 0}, 0, NULL, NULL, 0, NONE},
    {{18, 8, 1}, 0, NULL, NULL, 0, NONE},
};
/* clang-format on */

LOOP_TEST(bytes_are_those_of_all_elements_or_the_tensor_is_refused, 0, COUNT(SIZES)) {
  struct ringcast_tensor tensor =
      tensor_of(SIZES[_i].dtype, SIZES[_i].ndim, SIZES[_i].shape, SIZES[_i].strides, NULL);
  uint64_t bytes = 77;
  tensor.flags = SIZES[_i].flags;
  int rc = ringcast_tensor_bytes(&tensor, &bytes);
  ck_assert_int_eq(rc, SIZES[_i].bytes == NONE ? -EINVAL : 0);
  /* Outputs are set only on success. */
  ck_assert_uint_eq(bytes, rc < 0 ? 77 : SIZES[_i].bytes);
}

/* ---- Packing --------------------------------------------------------------------------------- */

LOOP_TEST(padded_elements_pack_from_any_strides, 0, 6) {
  static const struct ringcast_dtype dtypes[] = {{0, 4, 1},  {1, 1, 1},  {1, 7, 1},
                                                 {15, 6, 1}, {0, 12, 1}, {3, 5, 5}};
  struct ringcast_dtype dtype = dtypes[_i];
  int64_t item = (dtype.bits * dtype.lanes + 7) / 8;
  uint8_t data[12 * 4];
  for (int i = 0; i < (int)sizeof data; i++) data[i] = (uint8_t)random_below(256);
  static const int64_t strides[][2] = {{4, 1}, {1, 3}, {0, 1}, {1, 0}, {-4, -1}, {-4, 1}};
  for (int i = 0; i < COUNT(strides); i++) {
    const uint8_t *first =
        data + (strides[i][0] < 0 ? 8 : 0) * item + (strides[i][1] < 0 ? 3 : 0) * item;
    struct ringcast_tensor tensor = tensor_of(dtype, 2, (int64_t[]){3, 4}, strides[i], first);
    tensor.flags = PADDED;
    pack_and_compare(&tensor, item);
  }
}

LOOP_TEST(named_layouts_pack_as_the_reference_does, 0, COUNT(WHOLE)) {
  static const struct {
    int32_t ndim;
    int64_t shape[4], strides[4];
  } cases[] = {
      {0, {0}, {0}},                                   /* 0-d */
      {2, {3, 4}, {4, 1}},                             /* C order */
      {2, {3, 4}, {1, 3}},                             /* transposed */
      {2, {3, 4}, {7, 1}},                             /* rows of a wider one */
      {2, {3, 4}, {8, 2}},                             /* every second, the axes merge */
      {3, {2, 3, 4}, {30, 4, 1}},                      /* planes */
      {3, {2, 3, 4}, {4, 8, 1}},                       /* rows permuted */
      {4, {2, 1, 3, 1}, {3, INT64_MAX, 1, INT64_MIN}}, /* strides of size 1 may be anything */
      {4, {2, 1, 3, 1}, {1, INT64_MAX, 2, INT64_MIN}}, /* ... */
      {1, {5}, {0}},                                   /* expanded */
      {2, {3, 4}, {0, 1}},                             /* one row again and again */
      {2, {3, 4}, {1, 0}},                             /* each element again and again */
      {2, {3, 4}, {0, 0}},                             /* one element */
      {1, {5}, {-1}},                                  /* reversed */
      {2, {3, 4}, {-4, -1}},                           /* reversed, both */
      {2, {3, 4}, {-4, 1}},                            /* rows from last to first */
      {2, {3, 4}, {4, -1}},                            /* each row reversed */
      {3, {2, 2, 2}, {-1, 0, 5}},                      /* of each one */
      {2, {0, 4}, {4, 1}},                             /* empty */
      {2, {4, 0}, {3, INT64_MAX}},                     /* empty, and its strides point anywhere */
      {3, {INT64_MAX, 0, 1}, {INT64_MIN, INT64_MAX, -1}}, /* ... */
  };
  for (int i = 0; i < COUNT(cases); i++)
    pack_in_exact_memory(
        tensor_of(WHOLE[_i], cases[i].ndim, cases[i].shape, cases[i].strides, NULL));
}

TEST(random_strides_pack_as_the_reference_does) {
  for (int round = 0; round < 4000; round++) {
    int64_t shape[6], strides[6], step = 1;
    int32_t ndim = (int32_t)random_below(7), order[6] = {0, 1, 2, 3, 4, 5};
    for (int32_t i = ndim; i > 1; i--) { /* shuffled half of the time */
      int32_t j = round % 2 ? i - 1 : (int32_t)random_below((uint64_t)i), swap = order[i - 1];
      order[i - 1] = order[j], order[j] = swap;
    }
    for (int32_t i = ndim; i-- > 0;) {
      int32_t axis = order[i];
      shape[axis] = random_below(40) == 0 ? 0 : 1 + (int64_t)random_below(4);
      if (random_below(6) == 0) step += (int64_t)random_below(3); /* a gap */
      strides[axis] = random_below(8) == 0 ? 0 : random_below(5) == 0 ? -step : step;
      step *= shape[axis] ? shape[axis] : 1;
    }
    pack_in_exact_memory(tensor_of(WHOLE[random_below(COUNT(WHOLE))], ndim, shape, strides, NULL));
  }
}

TEST(sixty_four_dimensions_pack) {
  int64_t shape[RINGCAST_MAX_NDIM], strides[RINGCAST_MAX_NDIM], step = 1;
  for (int i = 0; i < RINGCAST_MAX_NDIM;
       i++) { /* Fortran order; eleven of them have two elements */
    shape[i] = i % 6 == 0 ? 2 : 1;
    strides[i] = shape[i] == 1 ? INT64_MIN : step;
    step *= shape[i];
  }
  ck_assert_int_eq(step, 2048);
  for (int i = 0; i < COUNT(WHOLE); i++)
    pack_in_exact_memory(tensor_of(WHOLE[i], RINGCAST_MAX_NDIM, shape, strides, NULL));
}

TEST(no_strides_mean_c_order) {
  uint8_t data[24], out[24] = {0};
  for (int i = 0; i < 24; i++) data[i] = (uint8_t)i;
  struct ringcast_tensor tensor = tensor_of(F32, 2, (int64_t[]){2, 3}, NULL, data);
  ck_assert_int_eq(ringcast_tensor_pack(&tensor, out), 0);
  ck_assert_mem_eq(out, data, 24);
}

TEST(elements_of_less_than_a_byte_are_copied_as_they_lie) {
  const uint8_t data[3] = {0x21, 0x43, 0x05};
  uint8_t out[3] = {0};
  struct ringcast_tensor tensor = tensor_of(INT4, 2, (int64_t[]){1, 5}, (int64_t[]){99, 1}, data);
  ck_assert_int_eq(ringcast_tensor_pack(&tensor, out), 0);
  ck_assert_mem_eq(out, data, 3);
}

TEST(memory_need_not_be_aligned) {
  uint8_t data[1 + 48], out[1 + 24];
  for (int i = 0; i < (int)sizeof data; i++) data[i] = (uint8_t)i;
  struct ringcast_tensor tensor = tensor_of(I64, 1, (int64_t[]){3}, (int64_t[]){2}, data + 1);
  ck_assert_int_eq(ringcast_tensor_pack(&tensor, out + 1), 0);
  for (int i = 0; i < 3; i++) ck_assert_mem_eq(out + 1 + 8 * i, data + 1 + 16 * i, 8);
}

TEST(packing_refuses_what_it_cannot_copy) {
  uint8_t data[8] = {0}, out[8];
  struct ringcast_tensor tensor = tensor_of(F32, 1, (int64_t[]){2}, NULL, NULL);
  ck_assert_int_eq(ringcast_tensor_pack(&tensor, out), -EINVAL); /* no data */
  tensor.data = data;
  ck_assert_int_eq(ringcast_tensor_pack(&tensor, NULL), -EINVAL);
  tensor.strides = (int64_t[]){INT64_MAX / 2};
  ck_assert_int_eq(ringcast_tensor_pack(&tensor, out), -EINVAL); /* a stride that no memory has */
  tensor.ndim = -1;
  ck_assert_int_eq(ringcast_tensor_pack(&tensor, out), -EINVAL);
  tensor = tensor_of(F32, 1, (int64_t[]){0}, NULL, NULL);
  ck_assert_int_eq(ringcast_tensor_pack(&tensor, NULL), 0); /* nothing to copy */
}

RUN_TESTS("tensor", NULL, NULL)
