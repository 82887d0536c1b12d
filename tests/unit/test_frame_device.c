/* SPDX-License-Identifier: Apache-2.0 */
/* What a frame has from version 3 on: tensors of devices, whose bytes may be elsewhere. What is
 * built is what is read; what can't be read is not built; and each way to lie about it is
 * refused. */
#include <errno.h>

#include "ringcast/object.h"
#include "tests/support/suite.h"

#define HEADER(field)       offsetof(struct ringcast_frame_header, field)
#define ENTRY(index, field) (48 + 64 * (index) + offsetof(struct ringcast_frame_entry, field))

enum { POOL = RINGCAST_PLACEMENT_POOL, UNKNOWN = 2, KEYED = RINGCAST_ITEM_KEYED };
enum {
  CUDA = RINGCAST_ITEM_CUDA,
  CUPY = RINGCAST_ITEM_CUPY,
  JAX = RINGCAST_ITEM_JAX,
  TORCH = RINGCAST_ITEM_TORCH
};
enum { ROOM = 2048 };
static uint8_t memory[ROOM];
static struct ringcast_frame_builder builder;

/* Its data must not be looked at: there is none. */
static const struct ringcast_tensor TENSOR = {
    .dtype = {2, 32, 1}, .ndim = 2, .shape = (int64_t[]){2, 3}, .flags = TORCH | CUDA};

static struct ringcast_tensor with_flags(uint32_t flags) {
  struct ringcast_tensor tensor = TENSOR;
  tensor.flags = flags;
  return tensor;
}

static void begin(uint32_t entries, enum ringcast_root root) {
  struct ringcast_frame_plan plan = {.count = entries, .meta = 64 * entries, .data = 64 * entries};
  memset(memory, 0xaa, sizeof memory);
  ck_assert_int_eq(ringcast_build_begin(&builder, memory, sizeof memory, &plan, root, 5), 0);
}

static struct ringcast_frame_reader end(void) {
  struct ringcast_frame_reader reader;
  size_t bytes;
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_int_eq(ringcast_frame_open(&reader, memory, bytes), 0);
  return reader;
}

static int add(const char *key, const struct ringcast_tensor *tensor, uint64_t offset) {
  return ringcast_build_device_tensor(&builder, key, key ? strlen(key) : 0, tensor, offset);
}

static void expect_tensor(const struct ringcast_item *item, uint32_t flags, int placement,
                          uint64_t offset) {
  ck_assert_uint_eq(item->kind, RINGCAST_ITEM_TENSOR);
  ck_assert_uint_eq(item->flags, flags);
  ck_assert_uint_eq(item->placement, placement);
  ck_assert_uint_eq(item->device_offset, offset);
  ck_assert_uint_eq(item->bytes, 24);
  ck_assert_int_eq(item->ndim, 2);
  ck_assert(item->shape[0] == 2 && item->shape[1] == 3 && item->strides[0] == 3 &&
            item->strides[1] == 1);
  ck_assert_int_eq(item->data == NULL, placement != RINGCAST_PLACEMENT_INLINE);
}

TEST(tensors_elsewhere_arrive_with_their_places_and_nothing_of_them_is_in_the_frame) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  const struct ringcast_tensor jax = with_flags(CUDA | JAX);
  ringcast_plan_device_tensor(&plan, 4, 2);
  ringcast_plan_device_tensor(&plan, 4, 2);
  size_t bytes = ringcast_plan_bytes(&plan), built;
  ck_assert_uint_eq(bytes, 48 + 2 * 64 + 8 + 32 + 8 +
                               32); /* keys and dimensions, each of these on 8 bytes */
  uint8_t *frame = malloc(bytes);   /* a block of just its size */
  ck_assert_int_eq(ringcast_build_begin(&builder, frame, bytes, &plan, RINGCAST_ROOT_DICT, 5), 0);
  ck_assert_int_eq(ringcast_build_device(&builder, 9, UINT32_MAX, UINT64_MAX), 0);
  ck_assert_int_eq(add("pool", &TENSOR, 512), 0);
  ck_assert_int_eq(add("more", &jax, 12), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, &built), 0);
  ck_assert_uint_eq(built, bytes);
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  ck_assert_uint_eq(reader.version, 3);
  ck_assert_uint_eq(reader.device_slot, 9);
  ck_assert_uint_eq(reader.device_epoch, UINT32_MAX);
  ck_assert_uint_eq(reader.device_generation, UINT64_MAX);
  ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item), 0);
  expect_tensor(&item, KEYED | TORCH | CUDA, POOL, 512);
  ck_assert_int_eq(ringcast_frame_find(&reader, "more", 4, &item), 0);
  expect_tensor(&item, KEYED | CUDA | JAX, POOL, 12);
  free(frame);
}

TEST(a_tensor_of_a_device_may_be_in_the_frame_and_names_no_words) {
  struct ringcast_item item;
  struct ringcast_tensor tensor = with_flags(CUDA | CUPY);
  const struct ringcast_tensor empty = {
      .dtype = {2, 32, 1}, .ndim = 2, .shape = (int64_t[]){0, 3}, .flags = CUDA | CUPY};
  tensor.data = "abcdefghijklmnopqrstuvw";
  begin(2, RINGCAST_ROOT_DICT);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "t", 1, &tensor), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "e", 1, &empty), 0);
  struct ringcast_frame_reader reader = end();
  ck_assert_uint_eq(reader.version, 3);
  ck_assert(reader.device_slot == 0 && reader.device_epoch == 0 && reader.device_generation == 0);
  ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item), 0);
  expect_tensor(&item, KEYED | CUDA | CUPY, RINGCAST_PLACEMENT_INLINE, 0);
  ck_assert_mem_eq(item.data, tensor.data, 24);
  ck_assert_int_eq(ringcast_frame_item(&reader, 1, &item), 0);
  ck_assert_ptr_nonnull(item.data);
}

TEST(a_tensor_elsewhere_may_have_a_hash_be_padded_or_a_part_and_larger_than_any_frame) {
  static const uint8_t nested[] = {RINGCAST_TAG_PART};
  struct ringcast_item item;
  struct ringcast_tensor padded = {
      .dtype = {1, 4, 1}, .ndim = 1, .shape = (int64_t[]){5}, .flags = CUDA | RINGCAST_ITEM_PADDED};
  struct ringcast_tensor bits = {
      .dtype = {1, 4, 1}, .ndim = 1, .shape = (int64_t[]){5}, .flags = CUDA};
  struct ringcast_tensor huge = {.dtype = {1, 8, 1},
                                 .ndim = 2,
                                 .shape = (int64_t[]){INT64_MAX, 1},
                                 .strides = (int64_t[]){1, 7},
                                 .flags = CUDA};
  begin(4, RINGCAST_ROOT_VALUE);
  ck_assert_int_eq(ringcast_build_device(&builder, 0, 1, 1), 0);
  ck_assert_int_eq(ringcast_build_object(&builder, NULL, 0, nested, sizeof nested, 1, 1, NULL), 0);
  ck_assert_int_eq(add(NULL, &padded, 0), 0);
  ck_assert_int_eq(add(NULL, &bits, 1), 0);
  ck_assert_int_eq(add(NULL, &huge, (uint64_t)1 << 63), 0);
  ck_assert_int_eq(ringcast_build_hash(&builder, 1, RINGCAST_ITEM_SHA256, 0x0123456789abcdef), 0);
  struct ringcast_frame_reader reader = end();
  ck_assert_uint_eq(reader.version, 3);
  ck_assert_int_eq(ringcast_frame_item(&reader, 1, &item), 0);
  ck_assert_uint_eq(item.bytes, 5);
  ck_assert_uint_eq(item.hash, 0x0123456789abcdef);
  ck_assert_uint_eq(item.flags, CUDA | RINGCAST_ITEM_PADDED | RINGCAST_ITEM_SHA256);
  ck_assert_int_eq(ringcast_frame_item(&reader, 2, &item), 0);
  ck_assert_uint_eq(item.bytes, 3);
  ck_assert_int_eq(ringcast_frame_item(&reader, 3, &item), 0);
  ck_assert_uint_eq(item.bytes, INT64_MAX);
}

TEST(what_nobody_could_read_is_not_built) {
  static uint8_t before[ROOM];
  size_t bytes;
  const struct ringcast_tensor empty = {
      .dtype = {2, 32, 1}, .ndim = 1, .shape = (int64_t[]){0}, .flags = CUDA};
  const struct ringcast_tensor negative = {
      .dtype = {2, 32, 1}, .ndim = 1, .shape = (int64_t[]){-1}, .flags = CUDA};
  const uint32_t bad_flags[] = {0,
                                TORCH,
                                CUPY,
                                JAX,
                                CUPY | JAX,
                                CUDA | CUPY | JAX,
                                CUDA | KEYED,
                                CUDA | RINGCAST_ITEM_XXH3,
                                CUDA | 1u << 31};
  begin(2, RINGCAST_ROOT_DICT);
  ck_assert_int_eq(ringcast_build_device(&builder, 1, 0, 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_device(&builder, 1, 1, 0), -EINVAL);
  memcpy(before, memory, sizeof before);
  for (size_t i = 0; i < sizeof bad_flags / sizeof *bad_flags; i++) {
    const struct ringcast_tensor tensor = with_flags(bad_flags[i]);
    ck_assert_msg(add("t", &tensor, 0) == -EINVAL, "flags %zu", i);
    if (bad_flags[i] & (CUDA | CUPY | JAX)) /* nor in the frame */
      ck_assert_int_eq(ringcast_build_tensor(&builder, "t", 1, &tensor), -EINVAL);
  }
  ck_assert_int_eq(add("t", &empty, 0), -EINVAL);
  ck_assert_int_eq(add("t", &negative, 0), -EINVAL);
  ck_assert_int_eq(add("t", &TENSOR, UINT64_MAX - 23), -EINVAL);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_STR, "t", 1, "x", 1, CUDA, NULL),
                   -EINVAL);
  ck_assert_uint_eq(builder.next, 0);
  ck_assert_mem_eq(memory, before, sizeof before); /* nothing has changed */
  ck_assert_int_eq(add("t", &TENSOR, UINT64_MAX - 24), 0);
  ck_assert_int_eq(add("u", &TENSOR, 0), 0);
  ck_assert_int_eq(add("v", &TENSOR, 0), -ENOSPC);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), -EINVAL); /* it names no words */
  ck_assert_int_eq(ringcast_build_device(&builder, 1, 1, 1), 0);
  end();
}

/* ---- Lies ------------------------------------------------------------------------------------ */

enum { AT_POOL, AT_MORE, AT_INLINE, AT_TEXT, ENTRIES };

static struct ringcast_frame_reader sample(void) {
  struct ringcast_tensor here = TENSOR;
  here.data = "abcdefghijklmnopqrstuvw";
  begin(ENTRIES, RINGCAST_ROOT_DICT);
  ck_assert_int_eq(ringcast_build_device(&builder, 1, 2, 3), 0);
  ck_assert_int_eq(add("pool", &TENSOR, 512), 0);
  ck_assert_int_eq(add("more", &TENSOR, 12), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "here", 4, &here), 0);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_STR, "text", 4, "text", 4, 0, NULL),
                   0);
  return end();
}

/* Puts a value into the sample's bytes and gives what was there. */
static uint64_t swap(size_t offset, size_t size, uint64_t value) {
  uint64_t truth = 0;
  memcpy(&truth, memory + offset, size);
  memcpy(memory + offset, &value, size);
  return truth;
}

TEST(an_entry_that_lies_is_refused_and_no_other) {
  static const struct {
    uint32_t entry;
    size_t offset, size;
    uint64_t value;
  } lies[] = {
#define LIE(index, field, size, value) {index, ENTRY(index, field), size, value}
      LIE(AT_POOL, placement, 1, RINGCAST_PLACEMENT_INLINE),
      LIE(AT_POOL, placement, 1, UNKNOWN),
      LIE(AT_INLINE, placement, 1, UNKNOWN),
      LIE(AT_TEXT, placement, 1, POOL),
      LIE(AT_POOL, reserved, 8, 1),
      LIE(AT_TEXT, reserved, 8, (uint64_t)1 << 63),
      LIE(AT_POOL, flags, 4, KEYED | TORCH),
      LIE(AT_MORE, flags, 4, KEYED),
      LIE(AT_INLINE, flags, 4, KEYED | JAX),
      LIE(AT_INLINE, flags, 4, KEYED | CUDA | CUPY | JAX),
      LIE(AT_TEXT, flags, 4, KEYED | CUDA),
      LIE(AT_POOL, flags, 4, KEYED | CUDA | RINGCAST_ITEM_PADDED),
      LIE(AT_POOL, flags, 4, KEYED | CUDA | 4096),
      LIE(AT_POOL, kind, 2, RINGCAST_ITEM_BYTES),
      LIE(AT_POOL, bytes, 8, 0),
      LIE(AT_POOL, bytes, 8, 23),
      LIE(AT_POOL, bytes, 8, UINT64_MAX),
      LIE(AT_POOL, scalar, 8, 1),
      LIE(AT_POOL, hash, 8, 1),
      LIE(AT_MORE, offset, 8, UINT64_MAX),
      LIE(AT_MORE, offset, 8, UINT64_MAX - 23),
      LIE(AT_POOL, dtype.bits, 1, 16),
      LIE(AT_POOL, dims_offset, 4, 0),
      LIE(AT_POOL, ndim, 1, 65),
      LIE(AT_POOL, key_offset, 4, 0),
#undef LIE
  };
  struct ringcast_frame_reader reader = sample();
  struct ringcast_item item;
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    uint64_t truth = swap(lies[i].offset, lies[i].size, lies[i].value);
    for (uint32_t entry = 0; entry < ENTRIES; entry++) {
      int expected = entry == lies[i].entry ? -EPROTO : 0;
      ck_assert_msg(ringcast_frame_item(&reader, entry, &item) == expected, "lie %zu, entry %u", i,
                    entry);
    }
    swap(lies[i].offset, lies[i].size, truth);
  }
  swap(ENTRY(AT_MORE, offset), 8, UINT64_MAX - 24); /* the last place there is */
  ck_assert_int_eq(ringcast_frame_item(&reader, AT_MORE, &item), 0);
  ck_assert_uint_eq(item.device_offset, UINT64_MAX - 24);
}

TEST(only_a_tensor_that_is_here_may_have_strides_of_its_own) {
  static const int64_t transposed[] = {2, 3, 1, 2}, single[] = {1, 6, 99, 1};
  struct ringcast_frame_reader reader = sample();
  struct ringcast_item item;
  for (uint32_t entry = AT_POOL; entry <= AT_INLINE; entry++) {
    uint32_t dims;
    memcpy(&dims, memory + ENTRY(entry, dims_offset), sizeof dims);
    memcpy(memory + dims, transposed, sizeof transposed);
    ck_assert_int_eq(ringcast_frame_item(&reader, entry, &item), entry == AT_INLINE ? 0 : -EPROTO);
    memcpy(memory + dims, single,
           sizeof single); /* of a dimension of 1, a stride does not matter */
    ck_assert_int_eq(ringcast_frame_item(&reader, entry, &item), 0);
    memcpy(memory + dims, (int64_t[]){0, 3, 3, 1}, sizeof single);
    swap(ENTRY(entry, bytes), 8, 0); /* nothing is nowhere else */
    swap(ENTRY(entry, offset), 8, 0);
    ck_assert_int_eq(ringcast_frame_item(&reader, entry, &item), entry == AT_INLINE ? 0 : -EPROTO);
  }
}

TEST(words_are_all_there_or_none_is) {
  static const struct {
    uint32_t slot, epoch;
    uint64_t generation;
    uint16_t version;
    int opens;
  } cases[] = {
      {1, 2, 3, 3, 1}, {0, 1, 1, 3, 1}, {UINT32_MAX, UINT32_MAX, UINT64_MAX, 3, 1},
      {0, 0, 0, 3, 1}, {0, 0, 0, 1, 1}, {1, 0, 0, 3, 0},
      {0, 0, 1, 3, 0}, {0, 2, 0, 3, 0}, {1, 2, 3, 2, 0},
      {1, 2, 3, 1, 0},
  };
  struct ringcast_frame_reader reader = sample(), again;
  struct ringcast_item item;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    swap(HEADER(device_slot), 4, cases[i].slot);
    swap(HEADER(device_epoch), 4, cases[i].epoch);
    swap(HEADER(device_generation), 8, cases[i].generation);
    swap(HEADER(version), 2, cases[i].version);
    int rc = ringcast_frame_open(&again, memory, reader.bytes);
    ck_assert_msg(rc == (cases[i].opens ? 0 : -EPROTO), "case %zu: %d", i, rc);
    if (rc < 0) continue;
    int elsewhere = cases[i].epoch ? 0 : -EPROTO, of_a_device = cases[i].version >= 3 ? 0 : -EPROTO;
    ck_assert_int_eq(ringcast_frame_item(&again, AT_POOL, &item), elsewhere);
    ck_assert_int_eq(ringcast_frame_item(&again, AT_MORE, &item), elsewhere);
    ck_assert_int_eq(ringcast_frame_item(&again, AT_INLINE, &item), of_a_device);
    ck_assert_int_eq(ringcast_frame_item(&again, AT_TEXT, &item), 0);
  }
}

RUN_TESTS("frame device", NULL, NULL)
