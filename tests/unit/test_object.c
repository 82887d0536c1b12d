/* SPDX-License-Identifier: Apache-2.0 */
/* Nested values: each token is read as it is meant, and a stream that is not one whole value is
 * refused. Every stream stands in a block of exactly its size. */
#include <errno.h>
#include <inttypes.h>

#include "ringcast/object.h"
#include "tests/support/hostile.h"
#include "tests/support/tokens.h"

/* ---- Tokens ---------------------------------------------------------------------------------- */

/* One of each tag, and what is read of it. */
struct sample {
  const char *stream;
  size_t bytes;
  uint8_t tag, kind;
  uint64_t count;
  int64_t i;
  size_t data; /* where its bytes begin in the stream; 0: it has none */
};

#define STREAM(text) text, sizeof(text) - 1
#define INT(text, value) \
  { STREAM(text), .tag = RINGCAST_TAG_INT64, .i = (value), .data = 1 }
#define BARE(text, name) \
  { STREAM(text), .tag = RINGCAST_TAG_##name }
#define BYTES(text, name) \
  { STREAM(text), .tag = RINGCAST_TAG_##name, .count = sizeof(text) - 3, .data = 2 }
#define MANY(text, name) \
  { STREAM(text), .tag = RINGCAST_TAG_##name, .count = 2 }
#define PACKED(width, numbers)                                                                     \
  {                                                                                                \
    STREAM(T_PACKED_LIST width "\2" numbers), RINGCAST_TAG_PACKED_LIST, .kind = (uint8_t)width[0], \
                                                                        .count = 2, .data = 3      \
  }

/* clang-format off */
static const struct sample SAMPLES[] = {
    {STREAM("\x00"), .tag = RINGCAST_TAG_INT64, .i = 0},
    {STREAM("\x7f"), .tag = RINGCAST_TAG_INT64, .i = 127},
    {STREAM("\x80"), .tag = RINGCAST_TAG_ASCII, .count = 0},
    {STREAM("\x82" "ab"), .tag = RINGCAST_TAG_ASCII, .count = 2, .data = 1},
    {STREAM("\xbf" TEXT63), .tag = RINGCAST_TAG_ASCII, .count = 63, .data = 1},
    BARE(T_NONE, NONE),
    BARE(T_FALSE, FALSE),
    BARE(T_TRUE, TRUE),
    INT(T_INT8 "\x80", -128),
    INT(T_INT8 "\x7f", 127),
    INT(T_INT16 "\xff\xff", -1),
    INT(T_INT16 "\x00\x80", INT16_MIN),
    INT(T_INT16 "\xff\x7f", INT16_MAX),
    INT(T_INT32 "\0\0\0\x80", INT32_MIN),
    INT(T_INT32 "\xff\xff\xff\x7f", INT32_MAX),
    INT(T_INT64 "\0\0\0\0\0\0\0\x80", INT64_MIN),
    INT(T_INT64 "\xff\xff\xff\xff\xff\xff\xff\x7f", INT64_MAX),
    BYTES(T_BIGINT "\0", BIGINT),
    BYTES(T_BIGINT "\x09\0\0\0\0\0\0\0\0\1", BIGINT),
    {STREAM(T_FLOAT ONE), .tag = RINGCAST_TAG_FLOAT, .data = 1},
    {STREAM(T_COMPLEX ONE ONE), .tag = RINGCAST_TAG_COMPLEX, .data = 1},
    BYTES(T_ASCII "\3abc", ASCII),
    BYTES(T_UTF8 "\2\xc3\xa9", UTF8),
    BYTES(T_WTF8 "\3\xed\xa0\x80", WTF8),
    BYTES(T_NAMED "\3abc", NAMED),
    {STREAM(T_AGAIN "\xfc\0\1"), .tag = RINGCAST_TAG_AGAIN, .count = 256},
    BYTES(T_BYTES "\4\0\1\2\3", BYTES),
    BYTES(T_BYTEARRAY "\1x", BYTEARRAY),
    BYTES(T_DTYPE "\7" "float32", DTYPE),
    BYTES(T_DEVICE "\6" "cuda:1", DEVICE),
    MANY(T_LIST "\2\0\0", LIST),
    MANY(T_TUPLE "\2\0\0", TUPLE),
    MANY(T_SET "\2\0\1", SET),
    MANY(T_FROZENSET "\2\0\1", FROZENSET),
    MANY(T_DICT "\2\0\0\1\0", DICT),
    PACKED("\x01", "\0\0"),
    PACKED("\x02", "\0\0\0\0"),
    PACKED("\x04", ONE),
    PACKED("\x11", "\0\0"),
    PACKED("\x12", "\0\0\0\0"),
    PACKED("\x14", ONE),
    PACKED("\x18", ONE ONE),
    PACKED("\x28", ONE ONE),
    {STREAM(T_PACKED_TUPLE "\x28\1" ONE), .tag = RINGCAST_TAG_PACKED_TUPLE, .kind = 0x28,
       .count = 1, .data = 3},
    BARE(T_RANGE "\0\1\2", RANGE),
    BARE(T_SLICE "\0\1\2", SLICE),
    {STREAM(T_CLASS "\1\3" "m\0C"), .tag = RINGCAST_TAG_CLASS, .kind = 1, .count = 3, .data = 3},
    {STREAM(T_OBJECT "\2"), .tag = RINGCAST_TAG_OBJECT, .count = 2},
    {STREAM(T_ABSENT), .tag = RINGCAST_TAG_ABSENT},
    {STREAM(T_MEMBER "\2\x81x"), .tag = RINGCAST_TAG_MEMBER, .count = 2},
    {STREAM(T_SCALAR "\2\x40\1\0" ONE), .tag = RINGCAST_TAG_SCALAR, .count = 8, .data = 5},
    {STREAM(T_SIZE "\2" ONE ONE), .tag = RINGCAST_TAG_SIZE, .count = 2, .data = 2},
    BARE(T_PART, PART),
    BARE(T_PART_BYTEARRAY, PART_BYTEARRAY),
    {STREAM(T_KIND "\5" T_NONE), .tag = RINGCAST_TAG_KIND, .kind = RINGCAST_STANDARD_UUID},
    {STREAM(T_ARRAY "q\x10" ONE ONE), .tag = RINGCAST_TAG_ARRAY, .kind = 'q', .count = 16,
       .data = 3},
    {STREAM(T_PART_ARRAY "d"), .tag = RINGCAST_TAG_PART_ARRAY, .kind = 'd'},
    {STREAM(T_LEAF "\xfd\0\0\0\1"), .tag = RINGCAST_TAG_LEAF, .count = 1u << 24},
    BARE(T_MARK T_LIST "\1\0", MARK),
    {STREAM(T_BACK "\xfc\0\1"), .tag = RINGCAST_TAG_BACK, .count = 256},
    {STREAM(T_ITEM "\xfc\0\1"), .tag = RINGCAST_TAG_ITEM, .count = 256},
    {STREAM(T_SHAPE "\2\x81xy"), .tag = RINGCAST_TAG_SHAPE, .count = 2},
    {STREAM(T_RECORD "\xfc\0\1"), .tag = RINGCAST_TAG_RECORD, .count = 256},
};
/* clang-format on */
enum { SAMPLE_COUNT = sizeof SAMPLES / sizeof *SAMPLES };

/* A stream in a block of its own size: what is read beyond it is found by the sanitizer. */
static uint8_t *block_new(const void *stream, size_t bytes, struct ringcast_object *out) {
  uint8_t *block = malloc(bytes ? bytes : 1);
  if (bytes > 0) memcpy(block, stream, bytes);
  *out = (struct ringcast_object){block, block + bytes};
  return block;
}

LOOP_TEST(each_token_is_read_as_it_is_meant, 0, SAMPLE_COUNT) {
  const struct sample *sample = &SAMPLES[_i];
  struct ringcast_object object;
  struct ringcast_token token;
  uint8_t *block = block_new(sample->stream, sample->bytes, &object);
  memset(&token, 0xa5, sizeof token);
  ck_assert_int_eq(ringcast_token_read(&object, &token), 0);
  ck_assert_uint_eq(token.tag, sample->tag);
  if (sample->kind != 0) ck_assert_uint_eq(token.kind, sample->kind);
  if (sample->count != 0) ck_assert_uint_eq(token.count, sample->count);
  if (sample->tag == RINGCAST_TAG_INT64) ck_assert_int_eq(token.i, sample->i);
  if (sample->data != 0) ck_assert_ptr_eq(token.data, block + sample->data);
  if (sample->tag == RINGCAST_TAG_SCALAR) ck_assert_mem_eq(&token.dtype, block + 1, 4);
  free(block);
}

/* Bytes of the sample's own token: what stands after it are its values. */
static size_t token_bytes(const struct sample *sample) {
  struct ringcast_object object;
  struct ringcast_token token;
  uint8_t *block = block_new(sample->stream, sample->bytes, &object);
  ck_assert_int_eq(ringcast_token_read(&object, &token), 0);
  size_t bytes = (size_t)(object.at - block);
  free(block);
  return bytes;
}

LOOP_TEST(a_token_that_is_cut_off_is_refused, 0, SAMPLE_COUNT) {
  const struct sample *sample = &SAMPLES[_i];
  struct ringcast_object object;
  struct ringcast_token token;
  for (size_t bytes = 0; bytes < token_bytes(sample); bytes++) {
    uint8_t *block = block_new(sample->stream, bytes, &object);
    ck_assert_int_eq(ringcast_token_read(&object, &token), bytes == 0 ? -ENOENT : -EPROTO);
    free(block);
  }
}

TEST(each_tag_is_known_or_refused) {
  static const uint8_t after[64]; /* zeros: small counts, and ints */
  for (unsigned tag = 0; tag < 256; tag++) {
    uint8_t stream[1 + sizeof after] = {(uint8_t)tag};
    struct ringcast_object object;
    struct ringcast_token token;
    uint8_t *block = block_new(stream, sizeof stream, &object);
    /* Of no width. */
    bool packed = tag == RINGCAST_TAG_PACKED_LIST || tag == RINGCAST_TAG_PACKED_TUPLE;
    bool known = tag <= RINGCAST_TAG_ABSENT || tag == RINGCAST_TAG_KIND;
    bool good = known && !packed && tag != RINGCAST_TAG_SCALAR; /* of no bits */
    ck_assert_msg(ringcast_token_read(&object, &token) == (good ? 0 : -EPROTO), "tag %#x", tag);
    free(block);
  }
}

TEST(a_count_may_have_any_width_and_be_any_number_there_is_room_for) {
  static const struct {
    const char *stream;
    size_t bytes;
    uint64_t count; /* UINT64_MAX: refused */
  } cases[] = {
      {STREAM(T_LEAF "\xfb"), 251},
      {STREAM(T_LEAF "\xfc\xff\xff"), 65535},
      {STREAM(T_LEAF "\xfd\xff\xff\xff\xff"), UINT32_MAX},
      {STREAM(T_LEAF "\xfe\0\0\0\0\0\0\0\x80"), (uint64_t)1 << 63},
      {STREAM(T_LEAF "\xfe\3\0\0\0\0\0\0\0"), 3}, /* not the shortest */
      {STREAM(T_LEAF "\xff" ONE ONE), UINT64_MAX},
      {STREAM(T_LIST "\3\0\0\0"), 3},
      {STREAM(T_LIST "\4\0\0\0"), UINT64_MAX},
      {STREAM(T_LIST "\xfe\xff\xff\xff\xff\xff\xff\xff\xff"), UINT64_MAX},
      {STREAM(T_DICT "\1\0\0\0"), 1},
      {STREAM(T_DICT "\2\0\0\0"), UINT64_MAX},
      {STREAM(T_DICT "\xfe\0\0\0\0\0\0\0\x80"), UINT64_MAX}, /* twice that is 0 */
      {STREAM(T_BYTES "\xfe\xff\xff\xff\xff\xff\xff\xff\xff"), UINT64_MAX},
      {STREAM(T_SIZE "\xfe\0\0\0\0\0\0\0\x20"), UINT64_MAX}, /* eight times that is 0 */
      {STREAM(T_PACKED_LIST "\x18\xfe\0\0\0\0\0\0\0\x20"), UINT64_MAX},
      {STREAM(T_PACKED_LIST "\x02\xfe\0\0\0\0\0\0\0\x80"), UINT64_MAX},
      {STREAM(T_CLASS "\1\xfe\xff\xff\xff\xff\xff\xff\xff\xff"), UINT64_MAX},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct ringcast_object object;
    struct ringcast_token token;
    uint8_t *block = block_new(cases[i].stream, cases[i].bytes, &object);
    int rc = ringcast_token_read(&object, &token);
    ck_assert_msg(rc == (cases[i].count == UINT64_MAX ? -EPROTO : 0), "case %zu", i);
    if (rc == 0) ck_assert_uint_eq(token.count, cases[i].count);
    free(block);
  }
}

TEST(numbers_of_no_known_width_are_refused) {
  for (unsigned kind = 0; kind < 256; kind++) {
    static const char known[] = "\x01\x02\x04\x11\x12\x14\x18\x28";
    uint8_t packed[] = {RINGCAST_TAG_PACKED_LIST, (uint8_t)kind, 0},
            scalar[5 + 32] = {RINGCAST_TAG_SCALAR, 0, (uint8_t)kind, 1};
    struct ringcast_object object = {packed, packed + sizeof packed};
    struct ringcast_token token;
    bool good = kind != 0 && memchr(known, (int)kind, sizeof known - 1);
    ck_assert_int_eq(ringcast_token_read(&object, &token), good ? 0 : -EPROTO);
    object = (struct ringcast_object){scalar, scalar + sizeof scalar};
    ck_assert_int_eq(ringcast_token_read(&object, &token),
                     kind != 0 && kind % 8 == 0 ? 0 : -EPROTO);
    scalar[3] = 2; /* lanes */
    object = (struct ringcast_object){scalar, scalar + sizeof scalar};
    ck_assert_int_eq(ringcast_token_read(&object, &token), -EPROTO);
  }
}

/* ---- Streams --------------------------------------------------------------------------------- */

static void is_refused(const struct hostile *of, size_t bytes) {
  struct ringcast_object_needs needs;
  struct ringcast_object object;
  uint8_t *block = block_new(of->data, bytes, &object);
  memset(&needs, 0xa5, sizeof needs);
  ck_assert_msg(ringcast_object_check(block, bytes, &needs) == -EPROTO, "%s", of->line);
  ck_assert_uint_eq(others_than(0xa5, &needs, sizeof needs), 0); /* and then nothing is said */
  free(block);
}

/* In the order of hostile.py's NEEDS. */
static void needs_what_is_told(const struct hostile *of) {
  struct ringcast_object_needs needs;
  char text[256];
  ck_assert_msg(ringcast_object_check(of->data, of->bytes, &needs) == 0, "%s", of->line);
  snprintf(text, sizeof text,
           "%" PRIu64 " %" PRIu32 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32
           " %" PRIu32 " %" PRIu32,
           needs.values, needs.parts, needs.leaves, needs.items, needs.before, needs.texts,
           needs.marks, needs.shapes, needs.classes);
  ck_assert_msg(strcmp(text, of->told) == 0, "%s: %s", of->line, text);
}

/* Those of tests/vectors/hostile.py. Also each stream that is cut off is refused: where a count
 * is of values that are cut off, the token is not, but the stream is. */
TEST(a_stream_is_one_value_and_needs_what_it_refers_to) {
  int streams = 0;
  struct hostile *all = hostile_open(RINGCAST_HOSTILE "/streams.txt");
  while (hostile_next(all)) {
    streams++;
    if (strcmp(all->told, "refused") == 0) {
      is_refused(all, all->bytes);
      continue;
    }
    needs_what_is_told(all);
    for (size_t bytes = 0; bytes < all->bytes && bytes < 64; bytes++) is_refused(all, bytes);
    is_refused(all, all->bytes - 1);
  }
  ck_assert_int_gt(streams, 100);
}

LOOP_TEST(a_token_without_its_values_is_no_value, 0, SAMPLE_COUNT) {
  const struct sample *sample = &SAMPLES[_i];
  struct ringcast_object_needs needs;
  for (size_t bytes = 0; bytes < sample->bytes; bytes++) {
    struct ringcast_object object;
    uint8_t *block = block_new(sample->stream, bytes, &object);
    ck_assert_int_eq(ringcast_object_check(block, bytes, &needs), -EPROTO);
    free(block);
  }
}

RUN_TESTS("object", NULL, NULL)
