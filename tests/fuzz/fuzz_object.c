/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nested values: any bytes at all are checked as a stream of tokens, and walked once more by
 * recursion. Both walks come to the same end: whether the stream is one value, how many values the
 * stream has, and what the stream refers to. Every byte that belongs to a token is read, and the
 * numbers of a list take memory in proportion to the stream.
 */
#include "ringcast/object.h"

#include <errno.h>

#include "tests/fuzz/fuzz.h"

struct walk {
  struct ringcast_object left;
  struct ringcast_object_needs needs;
  uint8_t kinds[RINGCAST_MAX_CLASSES];
  uint64_t fields[RINGCAST_MAX_CLASSES];
  uint64_t keys[RINGCAST_MAX_SHAPES];
  uint8_t *is_open; /* for each mark: the marked value is not complete */
};

static bool walk_value(struct walk *walk, int depth);

static bool walk_values(struct walk *walk, uint64_t count, int depth) {
  if (depth == RINGCAST_MAX_DEPTH) return false;
  for (uint64_t i = 0; i < count; i++)
    if (!walk_value(walk, depth + 1)) return false;
  return true;
}

/* Names that end at 0 bytes, the last of them at the end. */
static uint64_t names_of(const struct ringcast_token *token) {
  uint64_t names = 1;
  const uint8_t *end = token->data + token->count;
  for (const uint8_t *at = token->data; (at = memchr(at, 0, (size_t)(end - at))); at++) names++;
  return names;
}

static bool define(struct walk *walk, const struct ringcast_token *token) {
  uint64_t names = names_of(token);
  if (walk->needs.classes == RINGCAST_MAX_CLASSES || names < 2) return false;
  switch (token->kind) {
  case RINGCAST_CLASS_ENUM:
    if (names > 2) return false;
    break;
  case RINGCAST_CLASS_DATACLASS:
  case RINGCAST_CLASS_STRUCT:
  case RINGCAST_CLASS_NAMEDTUPLE:
  case RINGCAST_CLASS_INSTANCE: break;
  default: return false;
  }
  walk->kinds[walk->needs.classes] = token->kind;
  walk->fields[walk->needs.classes++] =
      names - 2 + (token->kind == RINGCAST_CLASS_INSTANCE ? 1 : 0);
  return true;
}

static bool walk_instance(struct walk *walk, const struct ringcast_token *token, int depth) {
  if (token->count >= walk->needs.classes) return false;
  bool is_enum = walk->kinds[token->count] == RINGCAST_CLASS_ENUM;
  if (token->tag == RINGCAST_TAG_MEMBER) return is_enum && walk_values(walk, 1, depth);
  return !is_enum && walk_values(walk, walk->fields[token->count], depth);
}

static bool define_shape(struct walk *walk, uint64_t keys) {
  struct ringcast_token key;
  if (walk->needs.shapes == RINGCAST_MAX_SHAPES) return false;
  for (uint64_t i = 0; i < keys; i++) {
    if (ringcast_token_read(&walk->left, &key) != 0) return false;
    if (key.tag == RINGCAST_TAG_NAMED) {
      walk->needs.texts++;
    } else if (key.tag == RINGCAST_TAG_AGAIN) {
      if (key.count >= walk->needs.texts) return false;
    } else if (key.tag < RINGCAST_TAG_ASCII || key.tag > RINGCAST_TAG_WTF8) {
      return false;
    }
  }
  walk->keys[walk->needs.shapes++] = keys;
  return true;
}

/* Back to a mark of this stream whose value is complete, or of an earlier stream. */
static bool walk_back(struct walk *walk, uint64_t count) {
  uint64_t marks = walk->needs.marks;
  if (count == UINT64_MAX) return false;
  if (count < marks) return !walk->is_open[marks - 1 - count];
  if (walk->needs.before < count + 1 - marks) walk->needs.before = count + 1 - marks;
  return true;
}

/* What a token says is its own lies within the stream, behind its tag, and is all that was
 * passed. */
static void inspect(const struct walk *walk, const uint8_t *from,
                    const struct ringcast_token *token, uint64_t each) {
  uint64_t bytes = token->count * each;
  require(token->data > from && token->data <= walk->left.at);
  require(bytes == (uint64_t)(walk->left.at - token->data));
  touch_all(token->data, bytes);
}

static void inspect_bytes(const struct walk *walk, const uint8_t *from,
                          struct ringcast_token *token) {
  switch (token->tag) {
  case RINGCAST_TAG_FLOAT:
  case RINGCAST_TAG_COMPLEX:
    token->count = token->tag == RINGCAST_TAG_FLOAT ? 1 : 2;
    inspect(walk, from, token, 8);
    break;
  case RINGCAST_TAG_BIGINT:
  case RINGCAST_TAG_ASCII:
  case RINGCAST_TAG_UTF8:
  case RINGCAST_TAG_WTF8:
  case RINGCAST_TAG_NAMED:
  case RINGCAST_TAG_BYTES:
  case RINGCAST_TAG_BYTEARRAY:
  case RINGCAST_TAG_DTYPE:
  case RINGCAST_TAG_DEVICE:
  case RINGCAST_TAG_CLASS:
    if (token->count > 0) inspect(walk, from, token, 1);
    break;
  case RINGCAST_TAG_ARRAY:
    require(token->count % ringcast_typecode_bytes(token->kind) == 0);
    if (token->count > 0) inspect(walk, from, token, 1);
    break;
  case RINGCAST_TAG_SCALAR:
    require(token->count > 0 && token->count * 8 == token->dtype.bits);
    inspect(walk, from, token, 1);
    break;
  case RINGCAST_TAG_PACKED_LIST:
  case RINGCAST_TAG_PACKED_TUPLE: inspect(walk, from, token, token->kind & 15); break;
  case RINGCAST_TAG_SIZE: inspect(walk, from, token, 8); break;
  default: break;
  }
}

static bool walk_token(struct walk *walk, const struct ringcast_token *token, int depth) {
  switch (token->tag) {
  case RINGCAST_TAG_LIST:
  case RINGCAST_TAG_TUPLE:
  case RINGCAST_TAG_SET:
  case RINGCAST_TAG_FROZENSET: return walk_values(walk, token->count, depth);
  case RINGCAST_TAG_DICT:
    return walk_values(walk, token->count, depth) && walk_values(walk, token->count, depth);
  case RINGCAST_TAG_RANGE:
  case RINGCAST_TAG_SLICE: return walk_values(walk, 3, depth);
  case RINGCAST_TAG_KIND: return walk_values(walk, 1, depth);
  case RINGCAST_TAG_OBJECT:
  case RINGCAST_TAG_MEMBER: return walk_instance(walk, token, depth);
  case RINGCAST_TAG_PART:
  case RINGCAST_TAG_PART_BYTEARRAY:
  case RINGCAST_TAG_PART_ARRAY: walk->needs.parts++; return true;
  case RINGCAST_TAG_NAMED: walk->needs.texts++; return true;
  case RINGCAST_TAG_AGAIN: return token->count < walk->needs.texts;
  case RINGCAST_TAG_LEAF:
    if (token->count == UINT64_MAX) return false;
    if (walk->needs.leaves < token->count + 1) walk->needs.leaves = token->count + 1;
    return true;
  case RINGCAST_TAG_ITEM:
    if (token->count == UINT64_MAX) return false;
    if (walk->needs.items < token->count + 1) walk->needs.items = token->count + 1;
    return true;
  case RINGCAST_TAG_BACK: return walk_back(walk, token->count);
  case RINGCAST_TAG_RECORD:
    return token->count < walk->needs.shapes && walk_values(walk, walk->keys[token->count], depth);
  default: return true;
  }
}

static bool walk_value(struct walk *walk, int depth) {
  struct ringcast_token token;
  int64_t mark = -1;
  for (;;) {
    const uint8_t *from = walk->left.at;
    int result = ringcast_token_read(&walk->left, &token);
    require(result == 0 || result == -EPROTO || (result == -ENOENT && from == walk->left.end));
    require(walk->left.at >= from && walk->left.at <= walk->left.end);
    if (result != 0) return false;
    require(walk->left.at > from); /* else it could go on for ever */
    inspect_bytes(walk, from, &token);
    if (token.tag == RINGCAST_TAG_MARK) {
      if (mark >= 0) return false;
      mark = walk->needs.marks++;
      walk->is_open[mark] = 1;
    } else if (token.tag == RINGCAST_TAG_SHAPE) {
      if (!define_shape(walk, token.count)) return false;
    } else if (token.tag != RINGCAST_TAG_CLASS) {
      break;
    } else if (!define(walk, &token)) {
      return false;
    }
  }
  walk->needs.values++;
  if (mark >= 0 && token.tag == RINGCAST_TAG_BACK) return false;
  bool whole = walk_token(walk, &token, depth);
  if (mark >= 0) walk->is_open[mark] = 0;
  return whole;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static struct walk walk;
  struct ringcast_object_needs needs;
  uint8_t *stream = malloc(bytes ? bytes : 1); /* a block of just its size */
  if (bytes != 0) memcpy(stream, data, bytes);
  fuzzed_frames++;
  walk = (struct walk){.left = {stream, stream + bytes}, .is_open = malloc(bytes + 1)};
  bool whole = walk_value(&walk, 0) && walk.left.at == walk.left.end;
  int result = ringcast_object_check(stream, bytes, &needs);
  require(result == (whole ? 0 : -EPROTO));
  if (whole) {
    require(needs.values == walk.needs.values && needs.parts == walk.needs.parts);
    require(needs.texts == walk.needs.texts && needs.texts <= bytes);
    require(needs.classes == walk.needs.classes && needs.leaves == walk.needs.leaves);
    require(needs.marks == walk.needs.marks && needs.shapes == walk.needs.shapes);
    require(needs.before == walk.needs.before && needs.items == walk.needs.items);
    require(needs.values <= bytes &&
            needs.parts <= bytes); /* so what is made of it is in proportion */
  }
  free(walk.is_open);
  free(stream);
  return 0;
}
