/* SPDX-License-Identifier: Apache-2.0 */
/* Frames from a writer that means harm: cut short, or with fields that lie. */
#include <errno.h>
#include <sys/mman.h>

#include "tests/support/hostile_frame.h"

TEST(a_frame_cut_short_is_refused) {
  size_t bytes;
  uint8_t *frame = sample_new(&bytes);
  ck_assert_int_eq(walk(frame, bytes), COUNT);
  for (size_t length = 0; length < bytes; length++) {
    uint8_t *cut = malloc(length);
    memcpy(cut, frame, length);
    ck_assert_int_eq(walk(cut, length), -EPROTO);
    if (length >= 48) { /* even when its header agrees */
      put(cut, HEADER(bytes), 8, length);
      ck_assert_int_lt(walk(cut, length), COUNT);
    }
    free(cut);
  }
  uint8_t *longer = calloc(1, bytes + 1);
  memcpy(longer, frame, bytes);
  ck_assert_int_eq(walk(longer, bytes + 1), -EPROTO);
  free(longer), free(frame);
}

TEST(a_header_that_lies_is_refused) {
  static const struct {
    size_t offset, size;
    uint64_t value;
  } lies[] = {
      {HEADER(magic), 4, 0},
      {HEADER(magic), 4, 0x52434631},
      {HEADER(version), 2, 0},
      {HEADER(version), 2, RINGCAST_FRAME_VERSION + 1},
      {HEADER(version), 2, 0xffff},
      {HEADER(root), 2, 0},
      {HEADER(root), 2, 3},
      {HEADER(count), 4, RINGCAST_MAX_ENTRIES},
      {HEADER(count), 4, RINGCAST_MAX_ENTRIES + 1},
      {HEADER(count), 4, 0x80000000},
      {HEADER(count), 4, UINT32_MAX},
      {HEADER(bytes), 8, 0},
      {HEADER(bytes), 8, 48},
      {HEADER(bytes), 8, UINT64_MAX},
      {HEADER(meta_bytes), 8, 4096},
      {HEADER(meta_bytes), 8, UINT64_MAX},
      {HEADER(meta_bytes), 8, UINT64_MAX - 47},
      {HEADER(meta_bytes), 8, UINT64_MAX - 48 - 64 * COUNT + 1},
      {HEADER(version), 2, 2},
      {HEADER(device_epoch), 4, 0},
      {HEADER(device_generation), 8, 0},
  };
  size_t bytes;
  uint8_t *frame = sample_new(&bytes);
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    uint64_t truth = get(frame, lies[i].offset, lies[i].size);
    put(frame, lies[i].offset, lies[i].size, lies[i].value);
    ck_assert_msg(walk(frame, bytes) == -EPROTO, "lie %zu was believed", i);
    put(frame, lies[i].offset, lies[i].size, truth);
  }
  ck_assert_int_eq(walk(frame, bytes), COUNT);
  put(frame, HEADER(count), 4, 0);
  ck_assert_int_eq(walk(frame, bytes), 0); /* a dict may be empty */
  put(frame, HEADER(root), 2, RINGCAST_ROOT_VALUE);
  ck_assert_int_eq(walk(frame, bytes), -EPROTO); /* a value may not */
  free(frame);
}

/* clang-format off */
static const struct {
  int entry;
  size_t offset, size;
  uint64_t value;
} entry_lies[] = {
#define LIE(index, field, size, value) {index, ENTRY(index, field), size, value}
    LIE(INT, kind, 2, 0), LIE(INT, kind, 2, RINGCAST_ITEM_OBJECT + 1), LIE(INT, kind, 2, 0xffff),
    LIE(INT, kind, 2, 0x100 + RINGCAST_ITEM_INT), LIE(INT, placement, 1, 1),
    LIE(POOL, placement, 1, 3),
    LIE(LENT, offset, 8, UINT64_MAX), LIE(LENT, placement, 1, 0), LIE(TENSOR, placement, 1, 1),
    LIE(TENSOR, placement, 1, 255),
    LIE(INT, flags, 4, RINGCAST_ITEM_KEYED | 1u << 31), LIE(INT, flags, 4, 0),
    LIE(PICKLE, flags, 4, UINT32_MAX),
    LIE(INT, reserved, 8, 1), LIE(TENSOR, reserved, 8, 1), LIE(INT, hash, 8, 1),
    LIE(ZERO_D, hash, 8, 1),
    LIE(INT, flags, 4, RINGCAST_ITEM_KEYED | RINGCAST_ITEM_SHA256),
    LIE(TENSOR, flags, 4, RINGCAST_ITEM_KEYED),
    LIE(STR, flags, 4, RINGCAST_ITEM_KEYED | RINGCAST_ITEM_XXH3),
    LIE(TENSOR, flags, 4, RINGCAST_ITEM_KEYED | RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3),
    LIE(OBJECT, scalar, 4, COUNT), LIE(OBJECT, scalar, 4, UINT32_MAX),
    LIE(OBJECT, scalar, 8, (COUNT + 1ull) << 32),
    LIE(OBJECT, scalar, 8, UINT64_MAX), LIE(OBJECT, bytes, 8, 0), LIE(OBJECT, bytes, 8, 1 << 20),
    LIE(OBJECT, offset, 8, 0), LIE(OBJECT, kind, 2, RINGCAST_ITEM_STR), LIE(OBJECT, ndim, 1, 1),
    LIE(STR, kind, 2, RINGCAST_ITEM_NONE), LIE(NONE, kind, 2, RINGCAST_ITEM_OBJECT),
    LIE(INT, key_offset, 4, 0), LIE(INT, key_offset, 4, 48),
    LIE(INT, key_offset, 4, 48 + 64 * COUNT - 1),
    LIE(INT, key_offset, 4, UINT32_MAX), LIE(INT, key_offset, 4, 48 + 64 * COUNT + 1000),
    LIE(INT, key_bytes, 4, 0), LIE(INT, key_bytes, 4, UINT32_MAX), LIE(INT, key_bytes, 4, 4096),
    LIE(PICKLE, key_offset, 4, 48 + 64 * COUNT), LIE(PICKLE, key_bytes, 4, 1),
    LIE(NONE, scalar, 8, 1), LIE(BOOL, scalar, 8, 2), LIE(LEAF, scalar, 8, UINT64_MAX),
    LIE(STR, scalar, 8, 1),
    LIE(TENSOR, scalar, 8, 1),
    LIE(INT, ndim, 1, 1), LIE(INT, dims_offset, 4, 48 + 64 * COUNT), LIE(INT, dtype, 4, 0x00010000),
    LIE(STR, dtype, 4, 0x00000800), LIE(INT, offset, 8, 1024), LIE(INT, bytes, 8, 1),
    LIE(STR, offset, 8, 0), LIE(STR, offset, 8, 48), LIE(STR, offset, 8, UINT64_MAX),
    LIE(STR, bytes, 8, 0),
    LIE(STR, bytes, 8, 4096), LIE(STR, bytes, 8, UINT64_MAX), LIE(STR, bytes, 8, (uint64_t)1 << 63),
    LIE(TENSOR, ndim, 1, 0), LIE(TENSOR, ndim, 1, 65), LIE(TENSOR, ndim, 1, 255),
    LIE(TENSOR, ndim, 1, 3),
    LIE(TENSOR, dims_offset, 4, 0), LIE(TENSOR, dims_offset, 4, 48),
    LIE(TENSOR, dims_offset, 4, UINT32_MAX - 7),
    LIE(TENSOR, dims_offset, 4, UINT32_MAX), LIE(ZERO_D, dims_offset, 4, 48 + 64 * COUNT),
    LIE(ZERO_D, ndim, 1, 1),
    LIE(TENSOR, offset, 8, 0), LIE(TENSOR, offset, 8, UINT64_MAX - 15),
    LIE(TENSOR, offset, 8, 1 << 20 | 48),
    LIE(TENSOR, bytes, 8, 0), LIE(TENSOR, bytes, 8, 23), LIE(TENSOR, bytes, 8, 25),
    LIE(TENSOR, bytes, 8, UINT64_MAX),
    LIE(TENSOR, dtype.bits, 1, 0), LIE(TENSOR, dtype.bits, 1, 64), LIE(TENSOR, dtype.bits, 1, 30),
    LIE(TENSOR, dtype.lanes, 2, 0), LIE(TENSOR, dtype.lanes, 2, 65535),
    LIE(TENSOR, dtype.code, 1, 18),
    LIE(EMPTY, offset, 8, 48 + 1024), LIE(EMPTY, bytes, 8, 4),
    LIE(INT4, bytes, 8, 2), LIE(INT4, dtype.bits, 1, 5), LIE(PADDED, bytes, 8, 3),
    LIE(PADDED, flags, 4, RINGCAST_ITEM_KEYED),
    LIE(STR, flags, 4, RINGCAST_ITEM_KEYED | RINGCAST_ITEM_PADDED),
    LIE(PADDED, dtype.bits, 1, 8), LIE(PADDED, dtype.bits, 1, 0), LIE(PADDED, dtype.bits, 1, 12),
    LIE(PADDED, dtype.lanes, 2, 2),
#undef LIE
};
/* clang-format on */

TEST(an_entry_that_lies_is_refused) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  size_t bytes;
  uint8_t *frame = sample_new(&bytes);
  for (size_t i = 0; i < sizeof entry_lies / sizeof *entry_lies; i++) {
    uint64_t truth = get(frame, entry_lies[i].offset, entry_lies[i].size);
    put(frame, entry_lies[i].offset, entry_lies[i].size, entry_lies[i].value);
    ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
    memset(&item, 0xa5, sizeof item);
    ck_assert_msg(ringcast_frame_item(&reader, (uint32_t)entry_lies[i].entry, &item) == -EPROTO,
                  "lie %zu was believed", i);
    ck_assert_uint_eq(others_than(0xa5, &item, sizeof item), 0);
    ck_assert_int_eq(walk(frame, bytes), COUNT - 1); /* the other entries stand */
    put(frame, entry_lies[i].offset, entry_lies[i].size, truth);
  }
  free(frame);
}

TEST(data_off_its_alignment_or_its_area_is_refused) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  size_t bytes;
  uint8_t *frame = sample_new(&bytes);
  uint64_t tensor = get(frame, ENTRY(TENSOR, offset), 8), str = get(frame, ENTRY(STR, offset), 8);
  uint32_t dims = (uint32_t)get(frame, ENTRY(TENSOR, dims_offset), 4);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  for (int64_t off = -65; off <= 65; off++) { /* a shift by a whole line or word may be good */
    put(frame, ENTRY(TENSOR, offset), 8, tensor + (uint64_t)off);
    if (off % 64 != 0) ck_assert_int_eq(ringcast_frame_item(&reader, TENSOR, &item), -EPROTO);
    put(frame, ENTRY(STR, offset), 8, str + (uint64_t)off);
    if (off % 8 != 0 || off < 0)
      ck_assert_int_eq(ringcast_frame_item(&reader, STR, &item), -EPROTO);
    put(frame, ENTRY(TENSOR, dims_offset), 4, dims + (uint64_t)off);
    put(frame, ENTRY(TENSOR, offset), 8, tensor);
    if (off % 8 != 0) ck_assert_int_eq(ringcast_frame_item(&reader, TENSOR, &item), -EPROTO);
    put(frame, ENTRY(TENSOR, dims_offset), 4, dims);
  }
  free(frame);
}

TEST(dimensions_that_lie_are_refused) {
  const int64_t big = (int64_t)1 << 32;
  const struct {
    int64_t dims[4]; /* of float32[2, 3] with 24 bytes of data */
    int good;
  } cases[] = {
      {{2, 3, 3, 1}, 1},
      {{3, 2, 1, 3}, 1}, /* any order is good that uses each byte */
      {{2, 3, 0, 1}, 0},
      {{1, 6, 0, 1}, 1},
      {{6, 9, 1, 0}, 0}, /* packed, it would be longer than what was sent */
      {{6, 2, 1, 0}, 0},
      {{5, 2, 1, 1}, 0}, /* elements share their bytes */
      {{2, 2, 4, 1}, 1}, /* a gap between the rows */
      {{2, 3, 4, 1}, 0},
      {{3, 3, 3, 1}, 0},
      {{2, 4, 3, 1}, 0},
      {{2, 3, -3, 1}, 0},
      {{2, 3, 3, -1}, 0},
      {{-2, 3, 3, 1}, 0},
      {{-2, -3, 3, 1}, 0},
      {{1, 6, -1, 1}, 0}, /* even where it is never taken */
      {{0, 3, 3, 1}, 0},
      {{big, big, 0, 0}, 0},
      {{INT64_MAX, 6, 0, 1}, 0},
      {{2, 2, INT64_MAX, 1}, 0},
      {{INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}, 0},
      {{INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN}, 0},
      {{6, 1, 1, INT64_MAX}, 1},
      {{big, 2, big, 5}, 0},
      {{3, 2, (int64_t)1 << 62, 5}, 0},
      {{5, 2, (int64_t)1 << 62, 5}, 0},
  };
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  size_t bytes;
  uint8_t *frame = sample_new(&bytes);
  uint64_t dims = get(frame, ENTRY(TENSOR, dims_offset), 4),
           int4 = get(frame, ENTRY(INT4, dims_offset), 4);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    memcpy(frame + dims, cases[i].dims, 32);
    int rc = ringcast_frame_item(&reader, TENSOR, &item);
    ck_assert_msg(rc == (cases[i].good ? 0 : -EPROTO), "case %zu: %d", i, rc);
    walk(frame, bytes);
  }
  put(frame, int4 + 8, 8, 2); /* less than a byte: C order, or nothing */
  ck_assert_int_eq(ringcast_frame_item(&reader, INT4, &item), -EPROTO);
  put(frame, int4 + 8, 8, 0);
  ck_assert_int_eq(ringcast_frame_item(&reader, INT4, &item), -EPROTO);
  free(frame);
}

TEST(more_dimensions_than_there_can_be_are_refused_where_they_have_room) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  struct ringcast_tensor tensor = {
      .data = "x", .dtype = {1, 8, 1}, .ndim = 1, .shape = (int64_t[]){1}};
  size_t bytes;
  ringcast_plan_tensor(&plan, 1 << 13, 1, 1); /* leaves room for the dimensions of 255 */
  uint8_t *frame = malloc(ringcast_plan_bytes(&plan));
  ck_assert_int_eq(ringcast_build_begin(&builder, frame, ringcast_plan_bytes(&plan), &plan,
                                        RINGCAST_ROOT_VALUE, 0),
                   0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, NULL, 0, &tensor), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item), 0);
  uint64_t dims = get(frame, ENTRY(0, dims_offset), 4);
  for (uint64_t ndim = 1; ndim <= 255; ndim++) {
    for (uint64_t i = 0; i < 2 * ndim; i++) put(frame, dims + 8 * i, 8, 1);
    put(frame, ENTRY(0, ndim), 1, ndim);
    ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item),
                     ndim <= RINGCAST_MAX_NDIM ? 0 : -EPROTO);
  }
  free(frame);
}

TEST(more_entries_than_there_can_be_are_refused_where_they_have_room) {
  struct ringcast_frame_reader reader;
  /* But only the first page is ever there. */
  size_t bytes = 48 + 64 * ((size_t)RINGCAST_MAX_ENTRIES + 1);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  uint8_t *frame = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  ck_assert_ptr_ne(frame, MAP_FAILED);
  struct ringcast_frame_header header = {.magic = RINGCAST_FRAME_MAGIC,
                                         .version = 1,
                                         .root = 1,
                                         .count = RINGCAST_MAX_ENTRIES,
                                         .bytes = bytes};
  memcpy(frame, &header, sizeof header);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  put(frame, HEADER(count), 4, RINGCAST_MAX_ENTRIES + 1);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), -EPROTO);
  munmap(frame, bytes);
}

TEST(a_key_in_a_frame_without_dict_is_refused) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  size_t bytes;
  uint8_t *frame = sample_new(&bytes);
  put(frame, HEADER(root), 2, RINGCAST_ROOT_VALUE);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  ck_assert_int_eq(ringcast_frame_item(&reader, INT, &item), -EPROTO);
  ck_assert_int_eq(ringcast_frame_item(&reader, PICKLE, &item), 0);
  free(frame);
}

RUN_TESTS("hostile frame", NULL, NULL)
