/* SPDX-License-Identifier: Apache-2.0 */
/* Frames from a writer that means harm: cut short, with fields that lie, mutated at random, and changed while they are
 * read. Every frame stands in a block of exactly its size, and whatever the reader hands out is checked and touched. */
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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
static uint64_t seed = 0xd1342543de82ef95u;

static uint64_t random_below(uint64_t bound) {
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  return (seed * 0x9e3779b97f4a7c15u >> 16) % bound;
}

/* A frame with one of each in a block of exactly its size. */
static uint8_t *sample_new(size_t *out_bytes) {
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

static void touch(const uint8_t *frame, size_t frame_bytes, const void *data, uint64_t bytes) {
  const uint8_t *from = data;
  require(from >= frame && from <= frame + frame_bytes && bytes <= (uint64_t)(frame + frame_bytes - from));
  for (uint64_t i = 0; i < bytes; i++) touched += from[i];
}

/* Counted without the library's arithmetic: the last element ends within the data, and the elements can be counted. */
static void tensor_inspect(const struct ringcast_item *item) {
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
static void object_inspect(const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  struct ringcast_object_needs needs;
  uint64_t first = (uint32_t)item->scalar.i, parts = (uint64_t)item->scalar.i >> 32;
  uint8_t *copy = malloc(item->bytes);
  require(reader->version >= 2 && item->bytes > 0 && first + parts <= reader->count);
  memcpy(copy, item->data, item->bytes);
  if (ringcast_object_check(copy, item->bytes, &needs) == 0) touched += needs.values;
  free(copy);
}

/* There is nothing of it here, and what is said of it can be counted with. */
static void device_inspect(const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  require(item->kind == RINGCAST_ITEM_TENSOR && !item->data && item->placement <= RINGCAST_PLACEMENT_EXTERN);
  require((item->lent != 0) == (item->placement == RINGCAST_PLACEMENT_EXTERN) && item->flags & RINGCAST_ITEM_CUDA);
  require(reader->version >= 3 && reader->device_epoch && reader->device_generation);
  require(item->bytes > 0 && item->device_offset + item->bytes > item->device_offset);
}

static void item_inspect(const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  require(item->kind >= RINGCAST_ITEM_NONE && item->kind <= RINGCAST_ITEM_OBJECT);
  if (item->key) touch(reader->base, reader->bytes, item->key, item->key_bytes);
  if (item->placement == RINGCAST_PLACEMENT_INLINE)
    touch(reader->base, reader->bytes, item->data, item->bytes);
  else
    device_inspect(reader, item);
  if (item->kind == RINGCAST_ITEM_TENSOR) tensor_inspect(item);
  if (item->kind == RINGCAST_ITEM_OBJECT) object_inspect(reader, item);
}

/* Reads whatever there is. Returns how many entries were good, or -EPROTO if the frame as a whole was not. */
static int walk(const uint8_t *frame, size_t bytes) {
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
    if (rc == 0)
      item_inspect(&reader, &item), good++;
    else
      require(rc == -EPROTO);
  }
  require(ringcast_frame_item(&reader, reader.count, &item) == -ENOENT);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    rc = ringcast_frame_find(&reader, keys[i], strlen(keys[i]), &item);
    if (rc == 0)
      item_inspect(&reader, &item);
    else
      require(rc == -ENOENT || rc == -EPROTO);
  }
  return good;
}

static uint64_t get(const uint8_t *frame, size_t offset, size_t size) {
  uint64_t value = 0;
  memcpy(&value, frame + offset, size);
  return value;
}

static void put(uint8_t *frame, size_t offset, size_t size, uint64_t value) {
  memcpy(frame + offset, &value, size);
}

START_TEST(a_frame_cut_short_is_refused) {
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
END_TEST

START_TEST(a_header_that_lies_is_refused) {
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
END_TEST

/* clang-format off */
static const struct {
  int entry;
  size_t offset, size;
  uint64_t value;
} entry_lies[] = {
#define LIE(index, field, size, value) {index, ENTRY(index, field), size, value}
    LIE(INT, kind, 2, 0), LIE(INT, kind, 2, RINGCAST_ITEM_OBJECT + 1), LIE(INT, kind, 2, 0xffff),
    LIE(INT, kind, 2, 0x100 + RINGCAST_ITEM_INT), LIE(INT, placement, 1, 1), LIE(POOL, placement, 1, 3),
    LIE(LENT, offset, 8, UINT64_MAX), LIE(LENT, placement, 1, 0), LIE(TENSOR, placement, 1, 1),
    LIE(TENSOR, placement, 1, 255),
    LIE(INT, flags, 4, RINGCAST_ITEM_KEYED | 1u << 31), LIE(INT, flags, 4, 0), LIE(PICKLE, flags, 4, UINT32_MAX),
    LIE(INT, lent, 8, 1), LIE(TENSOR, lent, 8, 1), LIE(INT, hash, 8, 1), LIE(ZERO_D, hash, 8, 1),
    LIE(INT, flags, 4, RINGCAST_ITEM_KEYED | RINGCAST_ITEM_SHA256), LIE(TENSOR, flags, 4, RINGCAST_ITEM_KEYED),
    LIE(STR, flags, 4, RINGCAST_ITEM_KEYED | RINGCAST_ITEM_XXH3),
    LIE(TENSOR, flags, 4, RINGCAST_ITEM_KEYED | RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3),
    LIE(OBJECT, scalar, 4, COUNT), LIE(OBJECT, scalar, 4, UINT32_MAX), LIE(OBJECT, scalar, 8, (COUNT + 1ull) << 32),
    LIE(OBJECT, scalar, 8, UINT64_MAX), LIE(OBJECT, bytes, 8, 0), LIE(OBJECT, bytes, 8, 1 << 20),
    LIE(OBJECT, offset, 8, 0), LIE(OBJECT, kind, 2, RINGCAST_ITEM_STR), LIE(OBJECT, ndim, 1, 1),
    LIE(STR, kind, 2, RINGCAST_ITEM_NONE), LIE(NONE, kind, 2, RINGCAST_ITEM_OBJECT),
    LIE(INT, key_offset, 4, 0), LIE(INT, key_offset, 4, 48), LIE(INT, key_offset, 4, 48 + 64 * COUNT - 1),
    LIE(INT, key_offset, 4, UINT32_MAX), LIE(INT, key_offset, 4, 48 + 64 * COUNT + 1000),
    LIE(INT, key_bytes, 4, 0), LIE(INT, key_bytes, 4, UINT32_MAX), LIE(INT, key_bytes, 4, 4096),
    LIE(PICKLE, key_offset, 4, 48 + 64 * COUNT), LIE(PICKLE, key_bytes, 4, 1),
    LIE(NONE, scalar, 8, 1), LIE(BOOL, scalar, 8, 2), LIE(LEAF, scalar, 8, UINT64_MAX), LIE(STR, scalar, 8, 1),
    LIE(TENSOR, scalar, 8, 1),
    LIE(INT, ndim, 1, 1), LIE(INT, dims_offset, 4, 48 + 64 * COUNT), LIE(INT, dtype, 4, 0x00010000),
    LIE(STR, dtype, 4, 0x00000800), LIE(INT, offset, 8, 1024), LIE(INT, bytes, 8, 1),
    LIE(STR, offset, 8, 0), LIE(STR, offset, 8, 48), LIE(STR, offset, 8, UINT64_MAX), LIE(STR, bytes, 8, 0),
    LIE(STR, bytes, 8, 4096), LIE(STR, bytes, 8, UINT64_MAX), LIE(STR, bytes, 8, (uint64_t)1 << 63),
    LIE(TENSOR, ndim, 1, 0), LIE(TENSOR, ndim, 1, 65), LIE(TENSOR, ndim, 1, 255), LIE(TENSOR, ndim, 1, 3),
    LIE(TENSOR, dims_offset, 4, 0), LIE(TENSOR, dims_offset, 4, 48), LIE(TENSOR, dims_offset, 4, UINT32_MAX - 7),
    LIE(TENSOR, dims_offset, 4, UINT32_MAX), LIE(ZERO_D, dims_offset, 4, 48 + 64 * COUNT), LIE(ZERO_D, ndim, 1, 1),
    LIE(TENSOR, offset, 8, 0), LIE(TENSOR, offset, 8, UINT64_MAX - 15), LIE(TENSOR, offset, 8, 1 << 20 | 48),
    LIE(TENSOR, bytes, 8, 0), LIE(TENSOR, bytes, 8, 23), LIE(TENSOR, bytes, 8, 25), LIE(TENSOR, bytes, 8, UINT64_MAX),
    LIE(TENSOR, dtype.bits, 1, 0), LIE(TENSOR, dtype.bits, 1, 64), LIE(TENSOR, dtype.bits, 1, 30),
    LIE(TENSOR, dtype.lanes, 2, 0), LIE(TENSOR, dtype.lanes, 2, 65535), LIE(TENSOR, dtype.code, 1, 18),
    LIE(EMPTY, offset, 8, 48 + 1024), LIE(EMPTY, bytes, 8, 4),
    LIE(INT4, bytes, 8, 2), LIE(INT4, dtype.bits, 1, 5),
#undef LIE
};
/* clang-format on */

START_TEST(an_entry_that_lies_is_refused) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  size_t bytes;
  uint8_t *frame = sample_new(&bytes);
  for (size_t i = 0; i < sizeof entry_lies / sizeof *entry_lies; i++) {
    uint64_t truth = get(frame, entry_lies[i].offset, entry_lies[i].size);
    put(frame, entry_lies[i].offset, entry_lies[i].size, entry_lies[i].value);
    ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
    memset(&item, 0xa5, sizeof item);
    ck_assert_msg(ringcast_frame_item(&reader, (uint32_t)entry_lies[i].entry, &item) == -EPROTO, "lie %zu was believed",
                  i);
    ck_assert_uint_eq(others_than(0xa5, &item, sizeof item), 0);
    ck_assert_int_eq(walk(frame, bytes), COUNT - 1); /* the other entries stand */
    put(frame, entry_lies[i].offset, entry_lies[i].size, truth);
  }
  free(frame);
}
END_TEST

START_TEST(data_off_its_alignment_or_its_area_is_refused) {
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
    if (off % 8 != 0 || off < 0) ck_assert_int_eq(ringcast_frame_item(&reader, STR, &item), -EPROTO);
    put(frame, ENTRY(TENSOR, dims_offset), 4, dims + (uint64_t)off);
    put(frame, ENTRY(TENSOR, offset), 8, tensor);
    if (off % 8 != 0) ck_assert_int_eq(ringcast_frame_item(&reader, TENSOR, &item), -EPROTO);
    put(frame, ENTRY(TENSOR, dims_offset), 4, dims);
  }
  free(frame);
}
END_TEST

START_TEST(dimensions_that_lie_are_refused) {
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
  uint64_t dims = get(frame, ENTRY(TENSOR, dims_offset), 4), int4 = get(frame, ENTRY(INT4, dims_offset), 4);
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
END_TEST

START_TEST(more_dimensions_than_there_can_be_are_refused_where_they_have_room) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  struct ringcast_tensor tensor = {.data = "x", .dtype = {1, 8, 1}, .ndim = 1, .shape = (int64_t[]){1}};
  size_t bytes;
  ringcast_plan_tensor(&plan, 1 << 13, 1, 1); /* leaves room for the dimensions of 255 */
  uint8_t *frame = malloc(ringcast_plan_bytes(&plan));
  ck_assert_int_eq(ringcast_build_begin(&builder, frame, ringcast_plan_bytes(&plan), &plan, RINGCAST_ROOT_VALUE, 0), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, NULL, 0, &tensor), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item), 0);
  uint64_t dims = get(frame, ENTRY(0, dims_offset), 4);
  for (uint64_t ndim = 1; ndim <= 255; ndim++) {
    for (uint64_t i = 0; i < 2 * ndim; i++) put(frame, dims + 8 * i, 8, 1);
    put(frame, ENTRY(0, ndim), 1, ndim);
    ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item), ndim <= RINGCAST_MAX_NDIM ? 0 : -EPROTO);
  }
  free(frame);
}
END_TEST

START_TEST(more_entries_than_there_can_be_are_refused_where_they_have_room) {
  struct ringcast_frame_reader reader;
  size_t bytes = 48 + 64 * ((size_t)RINGCAST_MAX_ENTRIES + 1); /* but only the first page is ever there */
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  uint8_t *frame = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  ck_assert_ptr_ne(frame, MAP_FAILED);
  struct ringcast_frame_header header = {
      .magic = RINGCAST_FRAME_MAGIC, .version = 1, .root = 1, .count = RINGCAST_MAX_ENTRIES, .bytes = bytes};
  memcpy(frame, &header, sizeof header);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  put(frame, HEADER(count), 4, RINGCAST_MAX_ENTRIES + 1);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), -EPROTO);
  munmap(frame, bytes);
}
END_TEST

START_TEST(a_key_in_a_frame_without_dict_is_refused) {
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
END_TEST

static uint64_t random_extreme(size_t bytes) {
  static const uint64_t extremes[] = {
      0, 1, 7, 8, 47, 48, 63, 64, 255, 65535, INT32_MAX, UINT32_MAX, INT64_MAX, (uint64_t)1 << 31, (uint64_t)1 << 32,
      (uint64_t)1 << 62, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7, UINT64_MAX - 63};
  uint64_t pick = random_below(sizeof extremes / sizeof *extremes + 4);
  return pick < sizeof extremes / sizeof *extremes ? extremes[pick] : bytes - 32 + random_below(64);
}

/* One byte anywhere, or a field of 1, 2, 4 or 8 bytes where entries and dimensions are. */
static void mutate(uint8_t *frame, size_t bytes, size_t meta_end) {
  if (random_below(2)) {
    frame[random_below(4) ? random_below(meta_end) : random_below(bytes)] = (uint8_t)random_below(256);
  } else {
    size_t size = (size_t)1 << random_below(4);
    put(frame, random_below(meta_end / size) * size, size, random_extreme(bytes));
  }
}

START_TEST(mutated_frames_never_lead_out_of_the_frame) {
  size_t bytes;
  uint8_t *sample = sample_new(&bytes);
  size_t meta_end = 48 + 64 * COUNT + get(sample, HEADER(meta_bytes), 8);
  uint64_t opened = 0, refused = 0, good = 0, bad = 0;
  for (int round = 0; round < share_of(200000); round++) {
    uint8_t *frame = malloc(bytes);
    memcpy(frame, sample, bytes);
    for (uint64_t i = random_below(6) + 1; i > 0; i--) mutate(frame, bytes, meta_end);
    if (random_below(4)) memcpy(frame, sample, 12), put(frame, HEADER(bytes), 8, bytes); /* else few would open */
    int rc = walk(frame, bytes);
    if (rc < 0)
      refused++;
    else
      opened++, good += (uint64_t)rc, bad += rc < COUNT;
    free(frame);
  }
  uint64_t many = (uint64_t)share_of(50000), some = (uint64_t)share_of(2000);
  ck_assert(opened > many && refused > some && good > opened && bad > many); /* it did try something */
  free(sample);
}
END_TEST

/* The writing process: lies and takes it back, for ever. */
static void change_for_ever(uint8_t *frame, size_t bytes, size_t meta_end) {
  for (;;) {
    size_t size = (size_t)1 << random_below(4), offset = random_below(meta_end / size) * size;
    if (offset < 48) continue;
    uint64_t truth = get(frame, offset, size);
    put(frame, offset, size, random_extreme(bytes));
    __asm__ volatile("" : : : "memory");
    put(frame, offset, size, truth);
  }
}

START_TEST(a_frame_that_changes_while_it_is_read_never_leads_out_of_it) {
  size_t bytes, page = (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *sample = sample_new(&bytes);
  ck_assert_uint_le(bytes, page);
  uint8_t *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(memory, MAP_FAILED);
  ck_assert_int_eq(mprotect(memory + page, page, PROT_NONE), 0); /* the frame ends where nothing may be read */
  uint8_t *frame = memory + page - bytes;
  memcpy(frame, sample, bytes);
  pid_t writer = fork();
  ck_assert_int_ge(writer, 0);
  if (writer == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    change_for_ever(frame, bytes, 48 + 64 * COUNT + get(sample, HEADER(meta_bytes), 8));
  }
  for (int round = 0; round < share_of(200000); round++) walk(frame, bytes);
  ck_assert_int_eq(kill(writer, SIGKILL), 0);
  ck_assert_int_eq(waitpid(writer, NULL, 0), writer);
  munmap(memory, 2 * page);
  free(sample);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hostile frame");
  TCase *tests = add_case(suite, "hostile");
  tcase_set_timeout(tests, 600);
  tcase_add_test(tests, a_frame_cut_short_is_refused);
  tcase_add_test(tests, a_header_that_lies_is_refused);
  tcase_add_test(tests, an_entry_that_lies_is_refused);
  tcase_add_test(tests, data_off_its_alignment_or_its_area_is_refused);
  tcase_add_test(tests, dimensions_that_lie_are_refused);
  tcase_add_test(tests, more_dimensions_than_there_can_be_are_refused_where_they_have_room);
  tcase_add_test(tests, more_entries_than_there_can_be_are_refused_where_they_have_room);
  tcase_add_test(tests, a_key_in_a_frame_without_dict_is_refused);
  tcase_add_test(tests, mutated_frames_never_lead_out_of_the_frame);
  tcase_add_test(tests, a_frame_that_changes_while_it_is_read_never_leads_out_of_it);
  return run_suite(suite);
}
