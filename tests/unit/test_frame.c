/* SPDX-License-Identifier: Apache-2.0 */
/* Frames: what is built is what is read, in exactly the bytes of the plan, and what can't be built
 * is refused. */
#include <errno.h>

#include "tests/support/frame_items.h"

static const struct ringcast_dtype U8 = {1, 8, 1}, F32 = {2, 32, 1};

static const uint8_t NESTED[] = {RINGCAST_TAG_LIST, 2, RINGCAST_TAG_PART, RINGCAST_TAG_NONE};

static uint64_t seed = 0x2545f4914f6cdd1du;

static uint64_t random_below(uint64_t bound) {
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  return (seed * 0x9e3779b97f4a7c15u >> 16) % bound;
}

/* A frame's memory as the ring lends it: 16 bytes into a line, full of an earlier frame's bytes,
 * and not one longer. */
static uint8_t *memory_new(uint64_t bytes, uint8_t stale) {
  uint8_t *block = NULL;
  ck_assert_int_eq(posix_memalign((void **)&block, 64, 16 + bytes), 0);
  memset(block, stale, 16 + bytes);
  return block + 16;
}

static void memory_free(uint8_t *memory) { free(memory - 16); }

static uint8_t *frame_new(const struct ringcast_item *items, uint32_t count,
                          enum ringcast_root root, uint8_t stale, size_t *out_bytes) {
  struct ringcast_frame_plan sum = {0};
  struct ringcast_frame_builder builder;
  for (uint32_t i = 0; i < count; i++) item_plan(&sum, &items[i]);
  uint8_t *memory = memory_new(ringcast_plan_bytes(&sum), stale);
  ck_assert_int_eq(
      ringcast_build_begin(&builder, memory, ringcast_plan_bytes(&sum), &sum, root, 0xfeedu), 0);
  for (uint32_t i = 0; i < count; i++) ck_assert_int_eq(item_build(&builder, &items[i]), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, out_bytes), 0);
  ck_assert_uint_eq(*out_bytes, ringcast_plan_bytes(&sum));
  return memory;
}

static void item_compare(const struct ringcast_item *found, const struct ringcast_item *built) {
  ck_assert_uint_eq(found->kind, built->kind);
  ck_assert_uint_eq(found->flags, built->flags);
  ck_assert_int_eq(found->key != NULL, built->key != NULL);
  ck_assert_uint_eq(found->key_bytes, built->key_bytes);
  if (found->key_bytes > 0) ck_assert_mem_eq(found->key, built->key, built->key_bytes);
  ck_assert_uint_eq(found->bytes, built->bytes);
  ck_assert_ptr_nonnull(found->data);
  if (found->bytes > 0) ck_assert_mem_eq(found->data, built->data, built->bytes);
  ck_assert_int_eq(found->scalar.i, built->scalar.i);
  ck_assert_uint_eq(found->hash, built->hash);
  ck_assert_mem_eq(&found->dtype, &built->dtype, sizeof found->dtype);
  ck_assert_int_eq(found->ndim, built->ndim);
  int64_t stride = 1;
  for (int32_t i = found->ndim; i-- > 0;) {
    ck_assert_int_eq(found->shape[i], built->shape[i]);
    ck_assert_int_eq(found->strides[i], stride);
    if (found->shape[i] > 0) stride *= found->shape[i];
  }
  ck_assert_uint_eq((uintptr_t)found->data % (found->kind == RINGCAST_ITEM_TENSOR ? 64 : 8), 0);
}

static void round_trip(const struct ringcast_item *items, uint32_t count, enum ringcast_root root) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  size_t bytes, again;
  uint8_t *frame = frame_new(items, count, root, 0xaa, &bytes);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  ck_assert_uint_eq(reader.tag, 0xfeedu);
  ck_assert_uint_eq(reader.root, root);
  ck_assert_uint_eq(reader.count, count);
  for (uint32_t i = 0; i < count; i++) {
    ck_assert_int_eq(ringcast_frame_item(&reader, i, &item), 0);
    item_compare(&item, &items[i]);
  }
  ck_assert_int_eq(ringcast_frame_item(&reader, count, &item), -ENOENT);
  ck_assert_int_eq(ringcast_frame_item(&reader, UINT32_MAX, &item), -ENOENT);

  /* Nothing of what stood in the memory before is left. */
  uint8_t *other = frame_new(items, count, root, 0x55, &again);
  ck_assert_uint_eq(again, bytes);
  ck_assert_mem_eq(other, frame, bytes);
  memory_free(frame), memory_free(other);
}

enum { MOST = 24, MOST_KEY = 24, MOST_DATA = 200 };

/* With a key and data in memory of its own. */
static void item_random(struct ringcast_item *item, char *key, uint8_t *data) {
  static const struct ringcast_dtype dtypes[] = {{1, 8, 1},  {4, 16, 1},  {2, 32, 1},
                                                 {0, 64, 1}, {5, 128, 1}, {0, 4, 1}};
  *item = (struct ringcast_item){.kind = (uint16_t)(1 + random_below(RINGCAST_ITEM_OBJECT)),
                                 .data = data};
  for (size_t i = 0; i < MOST_KEY; i++) key[i] = (char)random_below(256);
  for (size_t i = 0; i < MOST_DATA; i++) data[i] = (uint8_t)random_below(256);
  switch (item->kind) {
  case RINGCAST_ITEM_NONE: break;
  case RINGCAST_ITEM_BOOL: item->scalar.i = (int64_t)random_below(2); break;
  case RINGCAST_ITEM_LEAF: item->scalar.i = (int64_t)random_below(1000); break;
  case RINGCAST_ITEM_INT:
    item->scalar.i = (int64_t)(random_below(1u << 30) * 0x123456789abcdefu);
    break;
  case RINGCAST_ITEM_FLOAT: item->scalar.f = (double)random_below(1u << 30) / 1024.0 - 7.0; break;
  case RINGCAST_ITEM_TENSOR: {
    item->dtype = dtypes[random_below(sizeof dtypes / sizeof *dtypes)];
    item->ndim = (int32_t)random_below(4);
    for (int32_t i = 0; i < item->ndim; i++)
      item->shape[i] = random_below(9) ? (int64_t)random_below(2) + 1 : 0;
    item->flags = (uint32_t)random_below(16) * RINGCAST_ITEM_NUMPY +
                  (uint32_t)random_below(3) * RINGCAST_ITEM_SHA256;
    if (item->flags & HASHES) item->hash = seed;
    if (item->dtype.bits == 4 && random_below(2)) item->flags |= RINGCAST_ITEM_PADDED;
    struct ringcast_tensor tensor = tensor_of(item);
    ck_assert_int_eq(ringcast_tensor_bytes(&tensor, &item->bytes), 0);
    break;
  }
  case RINGCAST_ITEM_OBJECT: /* what its parts are does not matter here */
    item->bytes = random_below(MOST_DATA) + 1;
    item->scalar.i = (int64_t)random_below(2) << 32;
    break;
  default:
    item->bytes = random_below(4) ? random_below(MOST_DATA + 1) : 0;
    item->flags = (uint32_t)random_below(2) * RINGCAST_ITEM_READONLY;
  }
  if (random_below(4) == 0) return;
  item->key = key;
  item->key_bytes = random_below(MOST_KEY + 1);
  item->flags |= RINGCAST_ITEM_KEYED;
}

TEST(random_frames_fill_their_plan_exactly) {
  static struct ringcast_item items[MOST];
  static char keys[MOST][MOST_KEY];
  static uint8_t data[MOST][MOST_DATA];
  for (int round = 0; round < 2000; round++) {
    uint32_t count = (uint32_t)random_below(MOST + 1);
    for (uint32_t i = 0; i < count; i++) item_random(&items[i], keys[i], data[i]);
    round_trip(items, count, RINGCAST_ROOT_DICT);
  }
}

static const float FLOATS[] = {0, 1, 2, 3, 4, 5}, FLOATS_IN_C_ORDER[] = {5, 2, 4, 1, 3, 0};
static const int64_t OF_TWO[] = {3, 2}, OF_FOUR[] = {1, 3, 1, 2};

/* What is built, and what the reader finds: data NULL is the data as it lies; no strides: the
 * builder refuses the tensor. */
static const struct {
  struct ringcast_tensor tensor;
  const void *data;
  int64_t strides[4];
} ORDERS[] = {
    {{FLOATS + 5, {2, 32, 1}, 2, OF_TWO, (const int64_t[]){-1, -3}, 0}, FLOATS_IN_C_ORDER, {2, 1}},
    {{"adbecf", {0, 4, 1}, 2, OF_TWO, (const int64_t[]){1, 3}, RINGCAST_ITEM_PADDED},
     "aedcbf",
     {2, 1}},
    {{FLOATS, {2, 32, 1}, 2, OF_TWO, (const int64_t[]){1, 3}, RINGCAST_TENSOR_DENSE}, NULL, {1, 3}},
    {{FLOATS, {2, 32, 1}, 2, OF_TWO, NULL, RINGCAST_TENSOR_DENSE}, NULL, {2, 1}},
    {{FLOATS, {2, 32, 1}, 4, OF_FOUR, (const int64_t[]){-7, 1, 9, 3}, RINGCAST_TENSOR_DENSE},
     NULL,
     {1, 1, 9, 3}},
    {{FLOATS, {2, 32, 1}, 2, OF_TWO, (const int64_t[]){1, 4}, RINGCAST_TENSOR_DENSE},
     NULL,
     {0}}, /* a gap */
    {{FLOATS, {2, 32, 1}, 2, OF_TWO, (const int64_t[]){1, 2}, RINGCAST_TENSOR_DENSE},
     NULL,
     {0}}, /* twice */
    {{FLOATS, {2, 32, 1}, 2, OF_TWO, (const int64_t[]){0, 1}, RINGCAST_TENSOR_DENSE},
     NULL,
     {0}}, /* expanded */
    {{FLOATS + 5, {2, 32, 1}, 2, OF_TWO, (const int64_t[]){-1, 3}, RINGCAST_TENSOR_DENSE},
     NULL,
     {0}},
};

/* Backwards; elements of less than a byte that each begin one; and orders that are kept. */
LOOP_TEST(a_strided_tensor_arrives_in_its_order, 0, sizeof ORDERS / sizeof *ORDERS) {
  const struct ringcast_tensor *tensor = &ORDERS[_i].tensor;
  struct ringcast_frame_plan sum = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  uint8_t memory[512];
  size_t bytes;
  ringcast_plan_tensor(&sum, 1, tensor->ndim, sizeof FLOATS);
  ck_assert_int_eq(
      ringcast_build_begin(&builder, memory, sizeof memory, &sum, RINGCAST_ROOT_DICT, 0), 0);
  int rc = ringcast_build_tensor(&builder, "t", 1, tensor);
  ck_assert_int_eq(rc, ORDERS[_i].strides[0] ? 0 : -EINVAL);
  if (rc < 0) return;
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_int_eq(ringcast_frame_open(&reader, memory, bytes), 0);
  ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item), 0);
  ck_assert_uint_eq(item.bytes, tensor->dtype.code == 2 ? sizeof FLOATS : 6);
  ck_assert_uint_eq(item.flags & RINGCAST_TENSOR_DENSE, 0);
  ck_assert_mem_eq(item.data, ORDERS[_i].data ? ORDERS[_i].data : tensor->data, item.bytes);
  ck_assert_mem_eq(item.strides, ORDERS[_i].strides, (size_t)tensor->ndim * sizeof *item.strides);
}

TEST(data_can_be_written_in_place) {
  struct ringcast_frame_plan sum = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  struct ringcast_tensor tensor = {.dtype = F32, .ndim = 1, .shape = (int64_t[]){3}};
  void *place = NULL;
  uint64_t room = 0;
  size_t bytes;
  ringcast_plan_item(&sum, 1, 5);
  ringcast_plan_item(&sum, 1, 0);
  ringcast_plan_tensor(&sum, 1, 1, 12);
  ringcast_plan_item(&sum, 1, sizeof NESTED);
  uint8_t *memory = memory_new(ringcast_plan_bytes(&sum), 0xaa);
  ck_assert_int_eq(ringcast_build_begin(&builder, memory, ringcast_plan_bytes(&sum), &sum,
                                        RINGCAST_ROOT_DICT, 0),
                   0);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_BYTES, "b", 1, NULL, 5, 0, &place),
                   0);
  memcpy(place, "bytes", 5);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_BYTES, "e", 1, NULL, 0, 0, &place),
                   0);
  ck_assert_ptr_nonnull(place);
  ck_assert_int_eq(ringcast_build_tensor_in_place(&builder, "t", 1, &tensor, &place, &room), 0);
  ck_assert_uint_eq(room, 12);
  memcpy(place, "tensor bytes", 12);
  ck_assert_int_eq(ringcast_build_object(&builder, "o", 1, NULL, sizeof NESTED, 0, 0, &place), 0);
  memcpy(place, NESTED, sizeof NESTED);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_int_eq(ringcast_frame_open(&reader, memory, bytes), 0);
  ck_assert_int_eq(ringcast_frame_find(&reader, "b", 1, &item), 0);
  ck_assert_mem_eq(item.data, "bytes", 5);
  ck_assert_int_eq(ringcast_frame_find(&reader, "t", 1, &item), 0);
  ck_assert_mem_eq(item.data, "tensor bytes", 12);
  ck_assert_int_eq(ringcast_frame_find(&reader, "o", 1, &item), 0);
  ck_assert_mem_eq(item.data, NESTED, sizeof NESTED);
  memory_free(memory);
}

TEST(find_goes_by_the_whole_key_and_takes_the_first) {
  const struct ringcast_item items[] = {
      {.kind = RINGCAST_ITEM_INT, .scalar.i = 0}, /* no item of the dict */
      {.kind = RINGCAST_ITEM_INT, KEY("ab", 0), .scalar.i = 1},
      {.kind = RINGCAST_ITEM_INT, KEY("abc", 0), .scalar.i = 2},
      {.kind = RINGCAST_ITEM_INT, KEY("abd", 0), .scalar.i = 3},
      {.kind = RINGCAST_ITEM_INT, KEY("ab", 0), .scalar.i = 4},
      {.kind = RINGCAST_ITEM_INT, KEY("", 0), .scalar.i = 5},
  };
  struct ringcast_frame_reader reader;
  struct ringcast_item item = {.kind = 77};
  size_t bytes;
  uint8_t *frame = frame_new(items, 6, RINGCAST_ROOT_DICT, 0xaa, &bytes);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  ck_assert_int_eq(ringcast_frame_find(&reader, "a", 1, &item), -ENOENT);
  ck_assert_int_eq(ringcast_frame_find(&reader, "abx", 3, &item), -ENOENT);
  ck_assert_uint_eq(item.kind, 77);
  ck_assert_int_eq(ringcast_frame_find(&reader, "abd", 3, &item), 0);
  ck_assert_int_eq(item.scalar.i, 3);
  ck_assert_int_eq(ringcast_frame_find(&reader, "ab", 2, &item), 0);
  ck_assert_int_eq(item.scalar.i, 1);
  ck_assert_int_eq(ringcast_frame_item(&reader, 4, &item), 0);
  ck_assert_int_eq(item.scalar.i, 4);
  ck_assert_int_eq(ringcast_frame_find(&reader, "", 0, &item), 0);
  ck_assert_int_eq(item.scalar.i, 5);
  memory_free(frame);

  frame = frame_new(items, 1, RINGCAST_ROOT_VALUE, 0xaa, &bytes);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  ck_assert_int_eq(ringcast_frame_find(&reader, "", 0, &item), -ENOENT);
  memory_free(frame);
}

TEST(a_plan_too_large_for_any_frame_is_never_met) {
  struct ringcast_frame_plan many = {.count = RINGCAST_MAX_ENTRIES}, sum = {0};
  struct ringcast_frame_builder builder;
  uint8_t memory[256];
  ck_assert_uint_eq(ringcast_plan_bytes(&many), 48 + 64 * (uint64_t)RINGCAST_MAX_ENTRIES);
  ringcast_plan_item(&many, 0, 0);
  ck_assert_uint_eq(ringcast_plan_bytes(&many), UINT64_MAX);
  many.count = UINT32_MAX;
  ringcast_plan_item(&many, 0, 0); /* does not wrap */
  ck_assert_uint_eq(ringcast_plan_bytes(&many), UINT64_MAX);

  ringcast_plan_item(&sum, 0, UINT64_MAX - 100);
  ringcast_plan_tensor(&sum, 0, 1, 200);
  ck_assert_uint_eq(ringcast_plan_bytes(&sum), UINT64_MAX);
  ck_assert_int_eq(ringcast_build_begin(&builder, memory, SIZE_MAX, &sum, RINGCAST_ROOT_DICT, 0),
                   -EMSGSIZE);
  sum = (struct ringcast_frame_plan){0};
  ringcast_plan_item(&sum, SIZE_MAX, 0);
  ringcast_plan_tensor(&sum, SIZE_MAX, 1, 8);
  ck_assert_uint_eq(ringcast_plan_bytes(&sum), UINT64_MAX);
  sum = (struct ringcast_frame_plan){0};
  ringcast_plan_item(&sum, UINT32_MAX - 48 - 64,
                     0); /* the last byte that an offset of 32 bits reaches */
  ck_assert_uint_eq(ringcast_plan_bytes(&sum), UINT32_MAX);
  ringcast_plan_item(&sum, 0, 0);
  ck_assert_uint_eq(ringcast_plan_bytes(&sum), UINT64_MAX);
  sum = (struct ringcast_frame_plan){0};
  ringcast_plan_tensor(&sum, 0, RINGCAST_MAX_NDIM + 1, 0);
  ck_assert_uint_eq(ringcast_plan_bytes(&sum), UINT64_MAX);
}

TEST(begin_refuses_what_cannot_become_a_frame) {
  struct ringcast_frame_plan sum = {0};
  struct ringcast_frame_builder builder;
  uint8_t memory[256];
  ck_assert_int_eq(ringcast_build_begin(&builder, memory, 48, &sum, RINGCAST_ROOT_DICT, 0), 0);
  ck_assert_int_eq(ringcast_build_begin(&builder, memory, 47, &sum, RINGCAST_ROOT_DICT, 0),
                   -EMSGSIZE);
  ck_assert_int_eq(ringcast_build_begin(&builder, NULL, 48, &sum, RINGCAST_ROOT_DICT, 0), -EINVAL);
  ck_assert_int_eq(ringcast_build_begin(&builder, memory, 48, &sum, (enum ringcast_root)3, 0),
                   -EINVAL);
  ck_assert_int_eq(ringcast_build_begin(&builder, memory, 48, &sum, RINGCAST_ROOT_VALUE, 0),
                   -EINVAL);
  ringcast_plan_item(&sum, 0, 1);
  ck_assert_uint_eq(ringcast_plan_bytes(&sum), 113);
  ck_assert_int_eq(ringcast_build_begin(&builder, memory, 112, &sum, RINGCAST_ROOT_VALUE, 0),
                   -EMSGSIZE);
}

/* A builder for `sum` in `memory`, which has 1 KiB. */
static void begin(struct ringcast_frame_builder *builder, uint8_t *memory,
                  const struct ringcast_frame_plan *sum, enum ringcast_root root) {
  ck_assert_int_eq(ringcast_build_begin(builder, memory, 1024, sum, root, 0), 0);
}

/* What is built by one call, for tables of those that are refused: of a kind, with a key. */
struct call {
  int code;
  uint16_t kind;
  const char *key;
  size_t key_bytes;
  const void *data;
  uint64_t bytes;
  uint32_t flags;
  int64_t scalar;
  bool is_scalar, is_object;
};

static int call(struct ringcast_frame_builder *builder, const struct call *is) {
  if (is->is_scalar)
    return ringcast_build_scalar(builder, is->kind, is->key, is->key_bytes, is->scalar);
  if (is->is_object)
    return ringcast_build_object(builder, is->key, is->key_bytes, is->data, is->bytes, 0, 0, NULL);
  return ringcast_build_data(builder, is->kind, is->key, is->key_bytes, is->data, is->bytes,
                             is->flags, NULL);
}

#define K "k", 1
#define SCALAR(code, kind, value) \
  { code, RINGCAST_ITEM_##kind, K, .scalar = (value), .is_scalar = true }
#define DATA(code, kind, from, size, more) \
  { code, RINGCAST_ITEM_##kind, K, .data = (from), .bytes = (size), .flags = (more) }
#define NEST(code, from, size) \
  { code, RINGCAST_ITEM_OBJECT, K, .data = (from), .bytes = (size), .is_object = true }
/* clang-format off */
static const struct call REFUSED[] = {
    /* What the plan did not count: 3 bytes of a key, 8 of data. */
    {-ENOSPC, RINGCAST_ITEM_INT, "four", 4, .is_scalar = true},
    {-ENOSPC, RINGCAST_ITEM_INT, "k", SIZE_MAX, .is_scalar = true},
    DATA(-ENOSPC, BYTES, "123456789", 9, 0),
    DATA(-ENOSPC, BYTES, "", UINT64_MAX, 0),
    NEST(-ENOSPC, NESTED, 4096),
    /* What no reader would take. */
    {-EINVAL, RINGCAST_ITEM_INT, NULL, 1, .is_scalar = true},
    SCALAR(-EINVAL, FLOAT, 1),
    SCALAR(-EINVAL, STR, 1),
    SCALAR(-EINVAL, LEAF, -1),
    SCALAR(-EINVAL, OBJECT, 0),
    DATA(-EINVAL, INT, "x", 1, 0),
    DATA(-EINVAL, TENSOR, "x", 1, 0),
    DATA(-EINVAL, OBJECT, NESTED, 4, 0),
    DATA(-EINVAL, STR, NULL, 1, 0),
    DATA(-EINVAL, STR, "x", 1, RINGCAST_ITEM_SHA256),
    DATA(-EINVAL, STR, "x", 1, RINGCAST_ITEM_PADDED),
    DATA(-EINVAL, STR, "x", 1, RINGCAST_ITEM_CUDA),
    {-EINVAL, RINGCAST_ITEM_STR, NULL, 0, "x", 1, .flags = RINGCAST_ITEM_KEYED},
    NEST(-EINVAL, NESTED, 0),
    NEST(-EINVAL, NULL, 4),
};
/* clang-format on */

TEST(the_builder_refuses_what_was_not_planned_or_no_reader_would_take) {
  struct ringcast_frame_plan sum = {0};
  struct ringcast_frame_builder builder, before;
  struct ringcast_tensor tensor = {.data = "x", .dtype = U8, .ndim = 1, .shape = (int64_t[]){1}};
  uint8_t memory[1024];
  size_t bytes = 77;
  ringcast_plan_item(&sum, 3, 8);
  begin(&builder, memory, &sum, RINGCAST_ROOT_VALUE);
  /* A key, but no dict. */
  ck_assert_int_eq(ringcast_build_scalar(&builder, RINGCAST_ITEM_INT, K, 1), -EINVAL);
  begin(&builder, memory, &sum, RINGCAST_ROOT_DICT);
  before = builder;
  for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++)
    ck_assert_msg(call(&builder, &REFUSED[i]) == REFUSED[i].code, "call %zu", i);
  /* No room for its shape; no data; too many dimensions. */
  ck_assert_int_eq(ringcast_build_tensor(&builder, NULL, 0, &tensor), -ENOSPC);
  tensor.data = NULL;
  tensor.ndim = 0;
  ck_assert_int_eq(ringcast_build_tensor(&builder, K, &tensor), -EINVAL);
  tensor.ndim = 65;
  ck_assert_int_eq(ringcast_build_tensor(&builder, K, &tensor), -EINVAL);
  ck_assert_mem_eq(&builder, &before, sizeof builder); /* a refusal changes nothing */
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), -EINVAL);
  ck_assert_uint_eq(bytes, 77);
  ck_assert_int_eq(
      ringcast_build_data(&builder, RINGCAST_ITEM_BYTES, "key", 3, "12345678", 8, 0, NULL), 0);
  /* One entry too many. */
  ck_assert_int_eq(ringcast_build_scalar(&builder, RINGCAST_ITEM_NONE, NULL, 0, 0), -ENOSPC);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_uint_eq(bytes, ringcast_plan_bytes(&sum));
}

TEST(an_objects_parts_are_among_the_entries) {
  static const struct {
    uint32_t first, parts;
    bool good;
  } cases[] = {{0, 0, true},           {3, 0, true},
               {0, 3, true},           {2, 1, true},
               {4, 0, false},          {3, 1, false},
               {0, 4, false},          {UINT32_MAX, 1, false},
               {1, UINT32_MAX, false}, {UINT32_MAX, UINT32_MAX, false}};
  struct ringcast_frame_plan sum = {.count = 3, .meta = 96, .data = 192};
  struct ringcast_frame_builder builder;
  uint8_t memory[1024];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    begin(&builder, memory, &sum, RINGCAST_ROOT_DICT);
    int rc =
        ringcast_build_object(&builder, "o", 1, NESTED, 4, cases[i].first, cases[i].parts, NULL);
    ck_assert_msg(rc == (cases[i].good ? 0 : -EINVAL), "case %zu", i);
  }
}

TEST(a_hash_is_of_a_tensor_that_has_been_built) {
  struct ringcast_frame_plan sum = {.count = 2, .meta = 96, .data = 192};
  struct ringcast_frame_builder builder;
  struct ringcast_tensor tensor = {.data = "x", .dtype = U8, .ndim = 1, .shape = (int64_t[]){1}};
  const uint16_t kind = RINGCAST_ITEM_TENSOR; /* of an earlier frame in this memory */
  uint8_t memory[1024];
  begin(&builder, memory, &sum, RINGCAST_ROOT_DICT);
  memcpy(memory + 48 + offsetof(struct ringcast_frame_entry, kind), &kind, sizeof kind);
  ck_assert_int_eq(ringcast_build_hash(&builder, 0, RINGCAST_ITEM_XXH3, 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_STR, "s", 1, "text", 4, 0, NULL), 0);
  ck_assert_int_eq(ringcast_build_hash(&builder, 0, RINGCAST_ITEM_XXH3, 1), -EINVAL);
  tensor.flags = RINGCAST_ITEM_XXH3; /* only with a hash */
  ck_assert_int_eq(ringcast_build_tensor(&builder, "t", 1, &tensor), -EINVAL);
  tensor.flags = 0;
  ck_assert_int_eq(ringcast_build_tensor(&builder, "t", 1, &tensor), 0);
  const uint32_t none[] = {0, RINGCAST_ITEM_READONLY, HASHES};
  for (int i = 0; i < 3; i++)
    ck_assert_int_eq(ringcast_build_hash(&builder, 1, none[i], 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_hash(&builder, 2, RINGCAST_ITEM_XXH3, 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_hash(&builder, UINT32_MAX, RINGCAST_ITEM_XXH3, 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_hash(&builder, 1, RINGCAST_ITEM_SHA256, 1), 0);
}

TEST(a_plan_may_be_more_than_is_used) {
  struct ringcast_frame_plan sum = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  uint8_t memory[1024];
  size_t bytes;
  memset(memory, 0xaa, sizeof memory);
  ringcast_plan_tensor(&sum, 40, 2, 500);
  begin(&builder, memory, &sum, RINGCAST_ROOT_DICT);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_STR, "k", 1, "text", 4, 0, NULL), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_uint_lt(bytes, ringcast_plan_bytes(&sum));
  ck_assert_int_eq(ringcast_frame_open(&reader, memory, bytes), 0);
  ck_assert_int_eq(ringcast_frame_find(&reader, "k", 1, &item), 0);
  ck_assert_mem_eq(item.data, "text", 4);
  for (const uint8_t *at = memory + 113; at < (const uint8_t *)item.data; at++)
    ck_assert_uint_eq(*at, 0);
}

/* ---- Tensors of devices ---------------------------------------------------------------------- */

enum { CUDA = RINGCAST_ITEM_CUDA, CUPY = RINGCAST_ITEM_CUPY, JAX = RINGCAST_ITEM_JAX };

TEST(nothing_of_a_tensor_elsewhere_is_in_the_frame) {
  struct ringcast_frame_plan sum = {0};
  ringcast_plan_device_tensor(&sum, 4, 2);
  ringcast_plan_device_tensor(&sum, 4, 2);
  /* Keys and dimensions, each of these on 8 bytes. */
  ck_assert_uint_eq(ringcast_plan_bytes(&sum), 48 + 2 * 64 + 8 + 32 + 8 + 32);
}

/* The stored and the honest ones of tests/vectors are built and read by test_frame_hostile. */
TEST(a_tensor_elsewhere_may_be_larger_than_any_frame_and_a_part) {
  struct ringcast_frame_plan sum = {.count = 2, .meta = 128, .data = 64};
  struct ringcast_frame_builder builder;
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  const struct ringcast_tensor huge = {
      NULL, U8, 2, (const int64_t[]){INT64_MAX, 1}, (const int64_t[]){1, 7}, CUDA};
  uint8_t memory[1024];
  size_t bytes;
  begin(&builder, memory, &sum, RINGCAST_ROOT_VALUE);
  ck_assert_int_eq(ringcast_build_object(&builder, NULL, 0, NESTED, 4, 1, 1, NULL), 0);
  ck_assert_int_eq(ringcast_build_device_tensor(&builder, NULL, 0, &huge, (uint64_t)1 << 63), 0);
  ck_assert_int_eq(ringcast_build_hash(&builder, 1, RINGCAST_ITEM_SHA256, 5), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), -EINVAL); /* it names no words */
  ck_assert_int_eq(ringcast_build_device(&builder, 1, 0, 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_device(&builder, 1, 1, 0), -EINVAL);
  ck_assert_int_eq(ringcast_build_device(&builder, 0, 1, 1), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_int_eq(ringcast_frame_open(&reader, memory, bytes), 0);
  ck_assert_int_eq(ringcast_frame_item(&reader, 1, &item), 0);
  ck_assert_uint_eq(item.bytes, INT64_MAX);
  ck_assert_uint_eq(item.device_offset, (uint64_t)1 << 63);
  ck_assert_uint_eq(item.flags, CUDA | RINGCAST_ITEM_SHA256);
}

TEST(a_tensor_of_no_device_or_of_two_libraries_is_not_built) {
  static const uint32_t bad_flags[] = {0,
                                       RINGCAST_ITEM_TORCH,
                                       CUPY,
                                       JAX,
                                       CUPY | JAX,
                                       CUDA | CUPY | JAX,
                                       CUDA | RINGCAST_ITEM_KEYED,
                                       CUDA | RINGCAST_ITEM_XXH3,
                                       CUDA | 1u << 31};
  struct ringcast_frame_plan sum = {.count = 2, .meta = 128, .data = 64};
  struct ringcast_frame_builder builder, before;
  struct ringcast_tensor tensor = {NULL, F32, 1, (const int64_t[]){6}, NULL, CUDA};
  uint8_t memory[1024], then[1024];
  begin(&builder, memory, &sum, RINGCAST_ROOT_DICT);
  before = builder;
  memcpy(then, memory, sizeof then);
  for (size_t i = 0; i < sizeof bad_flags / sizeof *bad_flags; i++) {
    tensor.flags = bad_flags[i];
    ck_assert_int_eq(ringcast_build_device_tensor(&builder, K, &tensor, 0), -EINVAL);
    tensor.data = memory; /* nor in the frame */
    if (bad_flags[i] & (CUDA | CUPY | JAX))
      ck_assert_int_eq(ringcast_build_tensor(&builder, K, &tensor), -EINVAL);
    tensor.data = NULL;
  }
  tensor.flags = CUDA;
  for (int64_t size = -1; size <= 0; size++) {
    tensor.shape = &size;
    ck_assert_int_eq(ringcast_build_device_tensor(&builder, K, &tensor, 0), -EINVAL);
  }
  tensor.shape = (const int64_t[]){6};
  ck_assert_int_eq(ringcast_build_device_tensor(&builder, K, &tensor, UINT64_MAX - 23), -EINVAL);
  ck_assert_mem_eq(&builder, &before, sizeof builder);
  ck_assert_mem_eq(memory, then, sizeof then); /* nothing has changed */
  ck_assert_int_eq(ringcast_build_device_tensor(&builder, K, &tensor, UINT64_MAX - 24), 0);
}

RUN_TESTS("frame", NULL, NULL)
