/* SPDX-License-Identifier: Apache-2.0 */
/* Nested values: each token is read as it is meant, and a stream that is not one whole value is
 * refused. Every stream stands in a block of exactly its size. */
#include <errno.h>

#include "ringcast/object.h"
#include "tests/support/suite.h"
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
#define A_DATACLASS T_CLASS "\1\3" "m\0C"
#define AN_ENUM     T_CLASS "\4\3" "m\0E"
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

/* Where the values of a container are cut off, the stream is refused, if not the token. */
LOOP_TEST(what_a_token_counts_has_to_be_there, 0, SAMPLE_COUNT) {
  const struct sample *sample = &SAMPLES[_i];
  struct ringcast_object_needs needs;
  for (size_t bytes = 0; bytes < sample->bytes; bytes++) {
    struct ringcast_object object;
    uint8_t *block = block_new(sample->stream, bytes, &object);
    ck_assert_int_eq(ringcast_object_check(block, bytes, &needs), -EPROTO);
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

static int check(const void *stream, size_t bytes, struct ringcast_object_needs *out) {
  struct ringcast_object object;
  uint8_t *block = block_new(stream, bytes, &object);
  memset(out, 0xa5, sizeof *out);
  int rc = ringcast_object_check(block, bytes, out);
  if (rc < 0)
    ck_assert_uint_eq(others_than(0xa5, out, sizeof *out), 0); /* and then nothing is said */
  free(block);
  return rc;
}

/* So many of `before`, each within the one before it, and `last` in the innermost. */
static int nest(const char *before, size_t before_bytes, int times, const char *last,
                size_t last_bytes, struct ringcast_object_needs *out) {
  uint8_t *stream = malloc((size_t)times * before_bytes + last_bytes), *at = stream;
  for (int i = 0; i < times; i++, at += before_bytes) memcpy(at, before, before_bytes);
  memcpy(at, last, last_bytes);
  int rc = check(stream, (size_t)times * before_bytes + last_bytes, out);
  free(stream);
  return rc;
}

TEST(containers_nest_so_deep_and_no_deeper) {
  static const struct {
    const char *stream;
    size_t bytes;
    unsigned values; /* itself, and those before the next */
  } containers[] = {{STREAM(T_LIST "\1"), 1},    {STREAM(T_TUPLE "\1"), 1},
                    {STREAM(T_SET "\1"), 1},     {STREAM(T_FROZENSET "\1"), 1},
                    {STREAM(T_DICT "\1\0"), 2},  {STREAM(T_RANGE "\0\0"), 3},
                    {STREAM(T_SLICE "\0\0"), 3}, {STREAM(T_KIND "\5"), 1}};
  struct ringcast_object_needs needs;
  for (size_t i = 0; i < sizeof containers / sizeof *containers; i++) {
    const char *stream = containers[i].stream;
    size_t bytes = containers[i].bytes;
    ck_assert_int_eq(nest(stream, bytes, RINGCAST_MAX_DEPTH, STREAM(T_NONE), &needs), 0);
    ck_assert_uint_eq(needs.values, RINGCAST_MAX_DEPTH * containers[i].values + 1);
    ck_assert_int_eq(nest(stream, bytes, RINGCAST_MAX_DEPTH + 1, STREAM(T_NONE), &needs), -EPROTO);
    ck_assert_int_eq(nest(stream, bytes, RINGCAST_MAX_DEPTH - 1, STREAM(T_LIST "\0"), &needs), 0);
    ck_assert_int_eq(nest(stream, bytes, RINGCAST_MAX_DEPTH, STREAM(T_LIST "\0"), &needs), -EPROTO);
    ck_assert_int_eq(
        nest(stream, bytes, RINGCAST_MAX_DEPTH, STREAM(T_PACKED_LIST "\1\1\0"), &needs), 0);
  }
}

TEST(instances_and_members_are_containers_too) {
  struct ringcast_object_needs needs;
  const int most = RINGCAST_MAX_DEPTH;
  ck_assert_int_eq(nest(STREAM(T_LIST "\1"), most - 1, STREAM(A_DATACLASS T_OBJECT "\0"), &needs),
                   0);
  ck_assert_int_eq(nest(STREAM(T_LIST "\1"), most, STREAM(A_DATACLASS T_OBJECT "\0"), &needs),
                   -EPROTO);
  ck_assert_int_eq(nest(STREAM(T_LIST "\1"), most - 1, STREAM(AN_ENUM T_MEMBER "\0\x80"), &needs),
                   0);
  ck_assert_int_eq(nest(STREAM(T_LIST "\1"), most, STREAM(AN_ENUM T_MEMBER "\0\x80"), &needs),
                   -EPROTO);
}

TEST(what_has_ended_is_not_deep_any_more) {
  struct ringcast_object_needs needs;
  size_t bytes = 4 + 3 * 2000;
  uint8_t *stream = malloc(bytes), *at = stream;
  const uint8_t head[] = {RINGCAST_TAG_LIST, 252, 2000 & 255, 2000 >> 8},
                each[] = {RINGCAST_TAG_LIST, 1, RINGCAST_TAG_NONE};
  memcpy(at, head, sizeof head), at += sizeof head;
  for (int i = 0; i < 2000; i++, at += sizeof each) memcpy(at, each, sizeof each);
  ck_assert_int_eq(check(stream, bytes, &needs), 0);
  ck_assert_uint_eq(needs.values, 1 + 2 * 2000);
  free(stream);
}

/* A class of `kind` with the names, and what follows. */
static int with_class(uint8_t kind, const char *names, size_t names_bytes, const char *after,
                      size_t after_bytes) {
  struct ringcast_object_needs needs;
  uint8_t stream[256] = {RINGCAST_TAG_CLASS, kind, (uint8_t)names_bytes};
  memcpy(stream + 3, names, names_bytes);
  memcpy(stream + 3 + names_bytes, after, after_bytes);
  return check(stream, 3 + names_bytes + after_bytes, &needs);
}

TEST(instances_have_the_values_of_their_class) {
  for (unsigned kind = 0; kind < 256; kind++) {
    bool fields = kind >= RINGCAST_CLASS_DATACLASS && kind <= RINGCAST_CLASS_NAMEDTUPLE,
         is_enum = kind == RINGCAST_CLASS_ENUM, is_state = kind == RINGCAST_CLASS_INSTANCE;
    int state =
        with_class((uint8_t)kind, STREAM("m\0C\0x\0y"), STREAM(T_OBJECT "\0\1" T_ABSENT T_NONE));
    ck_assert_int_eq(state, is_state ? 0 : -EPROTO);
    int instance = with_class((uint8_t)kind, STREAM("m\0C\0x\0y"), STREAM(T_OBJECT "\0\1\2"));
    int bare = with_class((uint8_t)kind, STREAM("m\0C"), STREAM(T_OBJECT "\0"));
    int member = with_class((uint8_t)kind, STREAM("m\0C"), STREAM(T_MEMBER "\0\x80"));
    ck_assert_int_eq(instance, fields ? 0 : -EPROTO);
    ck_assert_int_eq(bare, fields ? 0 : -EPROTO);
    ck_assert_int_eq(member, is_enum ? 0 : -EPROTO);
  }
  ck_assert_int_eq(with_class(1, STREAM("m\0C\0x\0y"), STREAM(T_OBJECT "\0\1")),
                   -EPROTO); /* too few */
  ck_assert_int_eq(with_class(1, STREAM("m\0C\0x\0y"), STREAM(T_OBJECT "\0\1\2\3")),
                   -EPROTO); /* too many */
  ck_assert_int_eq(with_class(5, STREAM("m\0C\0x"), STREAM(T_OBJECT "\0\1")),
                   -EPROTO); /* no dict */
  ck_assert_int_eq(with_class(1, STREAM("m\0C"), STREAM(T_OBJECT "\1")),
                   -EPROTO); /* no such class */
  ck_assert_int_eq(with_class(1, STREAM("m\0C"), STREAM(T_OBJECT "\xfe" ONE)), -EPROTO);
  ck_assert_int_eq(with_class(4, STREAM("m\0E\0x"), STREAM(T_MEMBER "\0\x80")),
                   -EPROTO);                                             /* of an enum: none */
  ck_assert_int_eq(with_class(1, STREAM("m"), STREAM(T_NONE)), -EPROTO); /* no name */
  ck_assert_int_eq(with_class(1, STREAM(""), STREAM(T_NONE)), -EPROTO);
  ck_assert_int_eq(with_class(1, STREAM("m\0C"), STREAM(T_NONE)), 0);   /* none need be of it */
  ck_assert_int_eq(with_class(1, STREAM("m\0C"), STREAM("")), -EPROTO); /* but a value is due */
}

TEST(there_are_so_many_classes_and_no_more) {
  static const uint8_t class[] = {RINGCAST_TAG_CLASS, 1, 3, 'm', 0, 'C'},
                       last[] = {RINGCAST_TAG_OBJECT, 252, 255, 0};
  struct ringcast_object_needs needs;
  ck_assert_int_eq(nest((const char *)class, sizeof class, RINGCAST_MAX_CLASSES, (const char *)last,
                        sizeof last, &needs),
                   0);
  ck_assert_uint_eq(needs.classes, RINGCAST_MAX_CLASSES);
  ck_assert_uint_eq(needs.values, 1);
  ck_assert_int_eq(
      nest((const char *)class, sizeof class, RINGCAST_MAX_CLASSES + 1, STREAM(T_NONE), &needs),
      -EPROTO);
}

TEST(parts_and_leaves_are_counted) {
  struct ringcast_object_needs needs;
  ck_assert_int_eq(
      check(STREAM(T_LIST "\5" T_PART T_LEAF "\7" T_PART_BYTEARRAY T_LEAF "\2" T_PART), &needs), 0);
  ck_assert_uint_eq(needs.parts, 3);
  ck_assert_uint_eq(needs.leaves, 8);
  ck_assert_uint_eq(needs.values, 6);
  ck_assert_uint_eq(needs.classes, 0);
  ck_assert_int_eq(check(STREAM(T_NONE), &needs), 0);
  ck_assert_uint_eq(needs.parts + needs.leaves + needs.classes, 0);
  ck_assert_uint_eq(needs.values, 1);
  ck_assert_int_eq(check(STREAM(T_LEAF "\xfe\xfe\xff\xff\xff\xff\xff\xff\xff"), &needs), 0);
  ck_assert_uint_eq(needs.leaves, UINT64_MAX);
  ck_assert_int_eq(check(STREAM(T_LEAF "\xfe\xff\xff\xff\xff\xff\xff\xff\xff"), &needs),
                   -EPROTO); /* plus 1 is 0 */
}

TEST(a_text_comes_again_only_after_it_was_there) {
  struct ringcast_object_needs needs;
  ck_assert_int_eq(check(STREAM(T_LIST "\3" T_NAMED "\1x" T_AGAIN "\0" T_NAMED "\0"), &needs), 0);
  ck_assert_uint_eq(needs.texts, 2);
  ck_assert_uint_eq(needs.values, 4);
  ck_assert_int_eq(check(STREAM(T_AGAIN "\0"), &needs), -EPROTO);
  ck_assert_int_eq(check(STREAM(T_LIST "\2" T_AGAIN "\0" T_NAMED "\1x"), &needs), -EPROTO);
  ck_assert_int_eq(check(STREAM(T_LIST "\2" T_NAMED "\1x" T_AGAIN "\1"), &needs), -EPROTO);
  ck_assert_int_eq(check(STREAM(T_LIST "\2" T_ASCII "\1x" T_AGAIN "\0"), &needs),
                   -EPROTO); /* it has no number */
}

/* What a stream needs, or that it is refused. */
struct meaning {
  const char *stream;
  size_t bytes;
  int rc;
  uint32_t marks, shapes;
  uint64_t before, items, values;
};

static void means(const struct meaning *cases, size_t count) {
  for (size_t i = 0; i < count; i++) {
    struct ringcast_object_needs needs;
    ck_assert_msg(check(cases[i].stream, cases[i].bytes, &needs) == cases[i].rc, "case %zu", i);
    if (cases[i].rc < 0) continue;
    ck_assert_msg(needs.marks == cases[i].marks && needs.shapes == cases[i].shapes, "case %zu", i);
    ck_assert_msg(needs.before == cases[i].before && needs.items == cases[i].items, "case %zu", i);
    ck_assert_msg(needs.values == cases[i].values, "case %zu", i);
  }
}

#define MEANS(cases) means(cases, sizeof(cases) / sizeof *(cases))

TEST(a_marked_value_comes_again_when_it_is_complete) {
  static const struct meaning cases[] = {
      {STREAM(T_LIST "\2" T_MARK T_LIST "\1\0" T_BACK "\0"), .marks = 1, .values = 4},
      {STREAM(T_LIST "\3" T_MARK T_SET "\0" T_MARK T_SET "\0" T_BACK "\1"), .marks = 2,
       .values = 4},
      {STREAM(T_MARK T_LIST "\2" T_MARK T_SET "\0" T_BACK "\0"), .marks = 2, .values = 3},
      {STREAM(T_MARK T_LIST "\2" T_MARK T_SET "\0" T_BACK "\1"),
       .rc = -EPROTO}, /* the list holds itself */
      {STREAM(T_MARK T_LIST "\1" T_LIST "\1" T_BACK "\0"), .rc = -EPROTO},
      {STREAM(T_MARK T_LIST "\1" T_MARK T_LIST "\1" T_BACK "\0"), .rc = -EPROTO},
      {STREAM(T_MARK T_LIST "\1" T_LIST "\1" T_BACK "\1"), .marks = 1, .before = 1, .values = 3},
      {STREAM(T_BACK "\0"), .before = 1, .values = 1},
      {STREAM(T_LIST "\2" T_BACK "\7" T_BACK "\2"), .before = 8, .values = 3},
      {STREAM(T_BACK "\xfe\xfe\xff\xff\xff\xff\xff\xff\xff"), .before = UINT64_MAX, .values = 1},
      {STREAM(T_BACK "\xfe\xff\xff\xff\xff\xff\xff\xff\xff"), .rc = -EPROTO}, /* plus 1 is 0 */
      {STREAM(T_MARK), .rc = -EPROTO},
      {STREAM(T_NONE T_MARK), .rc = -EPROTO},
      {STREAM(T_MARK T_MARK T_NONE), .rc = -EPROTO},
      {STREAM(T_MARK A_DATACLASS T_MARK T_OBJECT "\0"), .rc = -EPROTO},
      {STREAM(T_MARK A_DATACLASS T_OBJECT "\0"), .marks = 1, .values = 1},
      {STREAM(T_MARK T_BACK "\0"), .rc = -EPROTO},
      {STREAM(T_LIST "\2" T_MARK T_NONE T_MARK T_BACK "\1"), .rc = -EPROTO},
      {STREAM(T_MARK T_ITEM "\4"), .marks = 1, .items = 5, .values = 1},
      {STREAM(T_ITEM "\xfe\xff\xff\xff\xff\xff\xff\xff\xff"), .rc = -EPROTO},
  };
  MEANS(cases);
}

TEST(a_record_has_the_values_of_its_shape) {
  static const struct meaning cases[] = {
      {STREAM(T_SHAPE "\2\x81x\x81y" T_RECORD "\0\1\2"), .shapes = 1, .values = 3},
      {STREAM(T_SHAPE "\0" T_RECORD "\0"), .shapes = 1, .values = 1},
      {STREAM(T_SHAPE "\1\x81x" T_NONE), .shapes = 1, .values = 1}, /* none need be of it */
      {STREAM(T_SHAPE "\1\x81x"), .rc = -EPROTO},                   /* but a value is due */
      {STREAM(T_SHAPE "\1" T_NAMED "\1x" T_RECORD "\0" T_AGAIN "\0"), .shapes = 1, .values = 2},
      {STREAM(T_SHAPE "\2" T_UTF8 "\2\xc3\xa9" T_WTF8 "\3\xed\xa0\x80" T_RECORD "\0\0\0"),
       .shapes = 1, .values = 3},
      {STREAM(T_SHAPE "\1" T_AGAIN "\0" T_RECORD "\0\0"), .rc = -EPROTO},
      {STREAM(T_SHAPE "\1\1" T_RECORD "\0\0"),
       .rc = -EPROTO}, /* a key that is an int, a part, none */
      {STREAM(T_SHAPE "\1" T_PART T_RECORD "\0\0"), .rc = -EPROTO},
      {STREAM(T_SHAPE "\2\x81x" T_RECORD "\0\0"), .rc = -EPROTO},
      {STREAM(T_SHAPE "\1\x81x" T_RECORD "\0"), .rc = -EPROTO},
      {STREAM(T_SHAPE "\1\x81x" T_RECORD "\0\0\0"), .rc = -EPROTO},
      {STREAM(T_SHAPE "\1\x81x" T_RECORD "\1\0"), .rc = -EPROTO},
      {STREAM(T_RECORD "\0"), .rc = -EPROTO},
      {STREAM(T_LIST "\2" T_SHAPE "\1\x81x" T_SHAPE "\0" T_RECORD "\0\0" T_RECORD "\1"),
       .shapes = 2, .values = 4},
      {STREAM(T_MARK T_SHAPE "\1\x81x" T_RECORD "\0" T_BACK "\0"),
       .rc = -EPROTO}, /* the record holds itself */
  };
  struct ringcast_object_needs needs;
  MEANS(cases);
  const int depth = RINGCAST_MAX_DEPTH;
  ck_assert_int_eq(
      nest(STREAM(T_SHAPE "\0"), RINGCAST_MAX_SHAPES, STREAM(T_RECORD "\xfc\xff\0"), &needs), 0);
  ck_assert_int_eq(nest(STREAM(T_SHAPE "\0"), RINGCAST_MAX_SHAPES + 1, STREAM(T_NONE), &needs),
                   -EPROTO);
  ck_assert_int_eq(nest(STREAM(T_LIST "\1"), depth - 1, STREAM(T_SHAPE "\0" T_RECORD "\0"), &needs),
                   0);
  ck_assert_int_eq(nest(STREAM(T_LIST "\1"), depth, STREAM(T_SHAPE "\0" T_RECORD "\0"), &needs),
                   -EPROTO);
}

TEST(a_stream_is_one_value) {
  struct ringcast_object_needs needs;
  ck_assert_int_eq(check("", 0, &needs), -EPROTO);
  ck_assert_int_eq(check(STREAM(T_NONE T_NONE), &needs), -EPROTO);
  ck_assert_int_eq(check(STREAM(T_LIST "\0" T_NONE), &needs), -EPROTO);
  ck_assert_int_eq(check(STREAM(T_NONE A_DATACLASS), &needs), -EPROTO);
  ck_assert_int_eq(check(STREAM(T_LIST "\3" T_LIST "\2" T_NONE T_NONE), &needs),
                   -EPROTO); /* they count the same ones */
  ck_assert_int_eq(check(STREAM(T_LIST "\2" T_LIST "\1" T_NONE T_NONE), &needs), 0);
}

RUN_TESTS("object", NULL, NULL)
