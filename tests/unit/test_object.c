/* SPDX-License-Identifier: Apache-2.0 */
/* Nested values: each token is read as it is meant, and a stream that is not one whole value is
 * refused. Every stream stands in a block of exactly its size. */
#include <errno.h>
#include <inttypes.h>

#include "ringcast/object.h"
#include "tests/support/hostile.h"

/* A stream in a block of its own size: what is read beyond it is found by the sanitizer. */
static uint8_t *block_new(const void *stream, size_t bytes, struct ringcast_object *out) {
  uint8_t *block = malloc(bytes ? bytes : 1);
  if (bytes > 0) memcpy(block, stream, bytes);
  *out = (struct ringcast_object){block, block + bytes};
  return block;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

/* Returns how many bytes it has: what stands after them are its values. */
static size_t is_read_as_told(const struct hostile *of) {
  struct ringcast_object object = {of->data, of->data + of->bytes};
  struct ringcast_token token = {0};
  char text[128];
  ck_assert_msg(ringcast_token_read(&object, &token) == 0, "%s", of->line);
  ptrdiff_t data = token.data ? token.data - of->data : 0;
  snprintf(text, sizeof text, "%u %u %" PRIu64 " %" PRId64 " %td", token.tag, token.kind,
           token.count, token.i, data);
  ck_assert_msg(strcmp(text, of->told) == 0, "%s: %s", of->line, text);
  if (token.tag == RINGCAST_TAG_SCALAR) ck_assert_mem_eq(&token.dtype, of->data + 1, 4);
  return (size_t)(object.at - of->data);
}

static void is_refused_at_once(const struct hostile *of) {
  struct ringcast_object object = {of->data, of->data + of->bytes};
  struct ringcast_token token;
  ck_assert_msg(ringcast_token_read(&object, &token) == -EPROTO, "%s", of->line);
}

/* Where it is cut off, the token is refused; where its values are, the stream is. */
static void is_refused_where_it_is_cut_off(const struct hostile *of, size_t token_bytes) {
  struct ringcast_object object;
  struct ringcast_token token;
  struct ringcast_object_needs needs;
  for (size_t bytes = 0; bytes < of->bytes; bytes++) {
    uint8_t *block = block_new(of->data, bytes, &object);
    ck_assert_int_eq(ringcast_object_check(block, bytes, &needs), -EPROTO);
    if (bytes < token_bytes)
      ck_assert_int_eq(ringcast_token_read(&object, &token), bytes == 0 ? -ENOENT : -EPROTO);
    free(block);
  }
}

/* Those of tests/vectors/hostile.py. */
TEST(each_token_is_read_as_it_is_meant_and_refused_where_it_is_cut_off) {
  int tokens = 0;
  struct hostile *all = hostile_open(RINGCAST_HOSTILE "/tokens.txt");
  while (hostile_next(all)) {
    tokens++;
    if (strcmp(all->told, "refused") == 0) is_refused_at_once(all);
    else is_refused_where_it_is_cut_off(all, is_read_as_told(all));
  }
  ck_assert_int_gt(tokens, 60);
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

RUN_TESTS("object", NULL, NULL)
