/* SPDX-License-Identifier: Apache-2.0 */
/* What a frame has from version 2 on: nested values with their parts, and hashes of tensors. */
#include <errno.h>

#include "ringcast/object.h"
#include "tests/support/suite.h"

static const uint8_t NESTED[] = {RINGCAST_TAG_LIST, 2, RINGCAST_TAG_PART, RINGCAST_TAG_NONE};
static const struct ringcast_tensor TENSOR = {
    .data = "abcdefgh", .dtype = {2, 32, 1}, .ndim = 1, .shape = (int64_t[]){2}, .flags = RINGCAST_ITEM_NUMPY};
enum { ROOM = 1024 };
static uint8_t memory[ROOM];
static struct ringcast_frame_builder builder;

static uint16_t version_of(const uint8_t *frame) {
  uint16_t version;
  memcpy(&version, frame + offsetof(struct ringcast_frame_header, version), sizeof version);
  return version;
}

/* A dict of so many entries, each with room for what is used here. */
static void begin(uint32_t entries) {
  struct ringcast_frame_plan plan = {.count = entries, .meta = 32 * entries, .data = 64 * entries};
  memset(memory, 0xaa, sizeof memory);
  ck_assert_int_eq(ringcast_build_begin(&builder, memory, sizeof memory, &plan, RINGCAST_ROOT_DICT, 5), 0);
}

static struct ringcast_frame_reader end(void) {
  struct ringcast_frame_reader reader;
  size_t bytes;
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_int_eq(ringcast_frame_open(&reader, memory, bytes), 0);
  return reader;
}

/* An OBJECT with a part, a tensor; and a tensor with a hash. */
static struct ringcast_frame_reader build(void) {
  begin(3);
  ck_assert_int_eq(ringcast_build_object(&builder, "object", 6, NESTED, sizeof NESTED, 2, 1, NULL), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "hashed", 6, &TENSOR), 0);
  ck_assert_int_eq(ringcast_build_tensor(&builder, NULL, 0, &TENSOR), 0);
  ck_assert_int_eq(ringcast_build_hash(&builder, 1, RINGCAST_ITEM_XXH3, 0x0123456789abcdef), 0);
  return end();
}

TEST(an_object_and_a_hash_arrive) {
  struct ringcast_frame_reader reader = build();
  struct ringcast_item item;
  ck_assert_uint_eq(reader.version, 2);
  ck_assert_int_eq(ringcast_frame_find(&reader, "object", 6, &item), 0);
  ck_assert_uint_eq(item.kind, RINGCAST_ITEM_OBJECT);
  ck_assert_uint_eq(item.flags, RINGCAST_ITEM_KEYED);
  ck_assert_uint_eq(item.bytes, sizeof NESTED);
  ck_assert_mem_eq(item.data, NESTED, sizeof NESTED);
  ck_assert_int_eq(item.scalar.i, (int64_t)1 << 32 | 2);
  ck_assert_uint_eq(item.hash, 0);
  ck_assert_int_eq(ringcast_frame_find(&reader, "hashed", 6, &item), 0);
  ck_assert_uint_eq(item.flags, RINGCAST_ITEM_KEYED | RINGCAST_ITEM_NUMPY | RINGCAST_ITEM_XXH3);
  ck_assert_uint_eq(item.hash, 0x0123456789abcdef);
  ck_assert_mem_eq(item.data, "abcdefgh", 8);
  ck_assert_int_eq(ringcast_frame_item(&reader, 2, &item), 0);
  ck_assert_uint_eq(item.flags, RINGCAST_ITEM_NUMPY);
  ck_assert_uint_eq(item.hash, 0);
}

TEST(a_frame_names_the_oldest_version_that_knows_it) {
  begin(2);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "t", 1, &TENSOR), 0);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_STR, "s", 1, "text", 4, 0, NULL), 0);
  ck_assert_uint_eq(end().version, 1);
  begin(1);
  ck_assert_int_eq(ringcast_build_object(&builder, "o", 1, NESTED, sizeof NESTED, 0, 0, NULL), 0);
  ck_assert_uint_eq(end().version, 2);
  begin(1);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "t", 1, &TENSOR), 0);
  ck_assert_int_eq(ringcast_build_hash(&builder, 0, RINGCAST_ITEM_SHA256, 0), 0);
  ck_assert_uint_eq(end().version, 2);
  begin(1); /* and nothing is left of the earlier ones */
  ck_assert_int_eq(ringcast_build_tensor(&builder, "t", 1, &TENSOR), 0);
  ck_assert_uint_eq(end().version, 1);
}

TEST(a_frame_of_version_1_has_nothing_of_version_2) {
  struct ringcast_frame_reader reader = build();
  struct ringcast_item item;
  memory[offsetof(struct ringcast_frame_header, version)] = 1;
  ck_assert_int_eq(ringcast_frame_open(&reader, memory, reader.bytes), 0);
  ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item), -EPROTO); /* the object */
  ck_assert_int_eq(ringcast_frame_item(&reader, 1, &item), -EPROTO); /* the hash */
  ck_assert_int_eq(ringcast_frame_item(&reader, 2, &item), 0);
}

TEST(a_later_version_is_told) {
  struct ringcast_frame_reader reader = build();
  const uint16_t later = 7;
  memcpy(memory + offsetof(struct ringcast_frame_header, version), &later, sizeof later);
  ck_assert_int_eq(ringcast_frame_open(&reader, memory, reader.bytes), -EPROTONOSUPPORT);
  ck_assert_uint_eq(reader.version, 7);
  memset(memory, 0, 2); /* no frame at all */
  ck_assert_int_eq(ringcast_frame_open(&reader, memory, 48), -EPROTO);
}

TEST(parts_are_among_the_entries) {
  static const struct {
    uint32_t first, parts;
    bool good;
  } cases[] = {
      {0, 0, true},  {3, 0, true},  {0, 3, true},           {2, 1, true},           {4, 0, false},
      {3, 1, false}, {0, 4, false}, {UINT32_MAX, 1, false}, {1, UINT32_MAX, false}, {UINT32_MAX, UINT32_MAX, false}};
  struct ringcast_item item;
  size_t scalar = 48 + offsetof(struct ringcast_frame_entry, scalar);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    begin(3);
    int rc = ringcast_build_object(&builder, "o", 1, NESTED, sizeof NESTED, cases[i].first, cases[i].parts, NULL);
    ck_assert_int_eq(rc, cases[i].good ? 0 : -EINVAL);

    struct ringcast_frame_reader reader = build(); /* and who reads sees it too */
    memcpy(memory + scalar, &cases[i].first, 4);
    memcpy(memory + scalar + 4, &cases[i].parts, 4);
    ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item), cases[i].good ? 0 : -EPROTO);
  }
}

TEST(an_object_can_be_written_in_place) {
  struct ringcast_item item;
  void *place = NULL;
  begin(1);
  ck_assert_int_eq(ringcast_build_object(&builder, "o", 1, NULL, sizeof NESTED, 0, 0, &place), 0);
  memcpy(place, NESTED, sizeof NESTED);
  struct ringcast_frame_reader reader = end();
  ck_assert_int_eq(ringcast_frame_item(&reader, 0, &item), 0);
  ck_assert_mem_eq(item.data, NESTED, sizeof NESTED);
}

TEST(an_object_that_cannot_be_is_refused_and_leaves_no_trace) {
  begin(1);
  struct ringcast_frame_builder before = builder;
  ck_assert_int_eq(ringcast_build_object(&builder, "o", 1, NESTED, 0, 0, 0, NULL), -EINVAL); /* no bytes */
  ck_assert_int_eq(ringcast_build_object(&builder, "o", 1, NULL, 4, 0, 0, NULL), -EINVAL);   /* nor a place for them */
  ck_assert_int_eq(ringcast_build_object(&builder, "o", 1, NESTED, 4096, 0, 0, NULL), -ENOSPC);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_OBJECT, "o", 1, NESTED, 4, 0, NULL), -EINVAL);
  ck_assert_int_eq(ringcast_build_scalar(&builder, RINGCAST_ITEM_OBJECT, "o", 1, 0), -EINVAL);
  ck_assert_mem_eq(&builder, &before, sizeof builder);
  ck_assert_uint_eq(version_of(memory), 1);
}

TEST(a_hash_is_of_a_tensor_that_has_been_built) {
  struct ringcast_tensor tensor = TENSOR;
  struct ringcast_item item;
  begin(2);
  const uint16_t kind = RINGCAST_ITEM_TENSOR; /* of an earlier frame in this memory */
  memcpy(memory + 48 + offsetof(struct ringcast_frame_entry, kind), &kind, sizeof kind);
  ck_assert_int_eq(ringcast_build_hash(&builder, 0, RINGCAST_ITEM_XXH3, 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_data(&builder, RINGCAST_ITEM_STR, "s", 1, "text", 4, 0, NULL), 0);
  ck_assert_int_eq(ringcast_build_hash(&builder, 0, RINGCAST_ITEM_XXH3, 1), -EINVAL);
  tensor.flags = RINGCAST_ITEM_XXH3; /* only with a hash */
  ck_assert_int_eq(ringcast_build_tensor(&builder, "t", 1, &tensor), -EINVAL);
  ck_assert_int_eq(ringcast_build_tensor(&builder, "t", 1, &TENSOR), 0);
  ck_assert_int_eq(ringcast_build_hash(&builder, 1, 0, 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_hash(&builder, 1, RINGCAST_ITEM_READONLY, 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_hash(&builder, 1, RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3, 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_hash(&builder, 2, RINGCAST_ITEM_XXH3, 1), -EINVAL);
  ck_assert_int_eq(ringcast_build_hash(&builder, UINT32_MAX, RINGCAST_ITEM_XXH3, 1), -EINVAL);
  ck_assert_uint_eq(version_of(memory), 1);
  ck_assert_int_eq(ringcast_build_hash(&builder, 1, RINGCAST_ITEM_SHA256, 1), 0);
  ck_assert_int_eq(ringcast_build_hash(&builder, 1, RINGCAST_ITEM_XXH3, 2), 0); /* in its place */
  struct ringcast_frame_reader reader = end();
  ck_assert_int_eq(ringcast_frame_item(&reader, 1, &item), 0);
  ck_assert_uint_eq(item.flags, RINGCAST_ITEM_KEYED | RINGCAST_ITEM_NUMPY | RINGCAST_ITEM_XXH3);
  ck_assert_uint_eq(item.hash, 2);
}

RUN_TESTS("frame object", NULL, NULL)
