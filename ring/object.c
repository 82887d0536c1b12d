/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that a stream of tokens is exactly one complete value.
 *
 * The walk has its own stack: the number of values that each open container still lacks. Each value
 * lowers the number of the innermost container by one. A container that lacks no more values is
 * closed; it was itself counted as a value when it opened. An open container lacks at least one
 * value, so the number never falls below 0.
 *
 * No sum can wrap around. A token's count of values is at most the number of bytes left, a class
 * has at most as many fields as its names have bytes, and one more, and each token has at least one
 * byte. So there are at most as many values as bytes.
 */
#include "ringcast/object.h"

#include <errno.h>

struct walk {
  struct ringcast_object_needs needs;
  uint64_t lacks[RINGCAST_MAX_DEPTH];
  uint32_t depth;
  uint64_t fields[RINGCAST_MAX_CLASSES]; /* of each class */
  uint8_t kinds[RINGCAST_MAX_CLASSES];
  uint64_t keys[RINGCAST_MAX_SHAPES]; /* of each shape */
  /* For each open container: the container's mark, plus 1. Without a mark: the number of the
   * container around. */
  uint32_t marks[RINGCAST_MAX_DEPTH];
  bool is_marked; /* the next value */
};

static int class_define(struct walk *walk, const struct ringcast_token *token) {
  if (token->kind < RINGCAST_CLASS_DATACLASS || token->kind > RINGCAST_CLASS_INSTANCE)
    return -EPROTO;
  if (walk->needs.classes == RINGCAST_MAX_CLASSES) return -EPROTO;
  uint64_t ends = 0;
  for (uint64_t i = 0; i < token->count; i++) ends += token->data[i] == 0;
  /* Module and name, then the fields if any. */
  if (ends < 1 || (token->kind == RINGCAST_CLASS_ENUM && ends > 1)) return -EPROTO;
  walk->kinds[walk->needs.classes] = token->kind;
  walk->fields[walk->needs.classes] = ends - 1 + (token->kind == RINGCAST_CLASS_INSTANCE);
  walk->needs.classes++;
  return 0;
}

/* Reads the shape's keys. */
static int shape_define(struct walk *walk, struct ringcast_object *object,
                        const struct ringcast_token *token) {
  struct ringcast_token key;
  if (walk->needs.shapes == RINGCAST_MAX_SHAPES) return -EPROTO;
  for (uint64_t i = 0; i < token->count; i++) {
    if (ringcast_token_read(object, &key) < 0 || !ringcast_token_is_text(&key)) return -EPROTO;
    if (key.tag == RINGCAST_TAG_AGAIN && key.count >= walk->needs.texts) return -EPROTO;
    walk->needs.texts += key.tag == RINGCAST_TAG_NAMED;
  }
  walk->keys[walk->needs.shapes] = token->count;
  walk->needs.shapes++;
  return 0;
}

static int mark(struct walk *walk) {
  if (walk->is_marked || walk->needs.marks == UINT32_MAX) return -EPROTO;
  walk->needs.marks++;
  walk->is_marked = true;
  return 0;
}

/* Whether the value of mark `number` is a container that lacks values. The numbers only rise with
 * the depth. */
static bool is_open(const struct walk *walk, uint64_t number) {
  uint32_t low = 0, end = walk->depth;
  while (low < end) {
    uint32_t middle = low + (end - low) / 2;
    if (walk->marks[middle] == number + 1) return true;
    if (walk->marks[middle] < number + 1) low = middle + 1;
    else end = middle;
  }
  return false;
}

static int back(struct walk *walk, uint64_t count) {
  if (count == UINT64_MAX || walk->is_marked) return -EPROTO;
  if (count < walk->needs.marks) {
    bool within = is_open(walk, walk->needs.marks - 1 - count);
    return within ? -EPROTO : 0;
  }
  uint64_t before = count + 1 - walk->needs.marks;
  if (before > walk->needs.before) walk->needs.before = before;
  return 0;
}

/* A reference to an element of a list: the list has number + 1 elements, at least. */
static int refer(uint64_t number, uint64_t *needs) {
  if (number == UINT64_MAX) return -EPROTO;
  if (number >= *needs) *needs = number + 1;
  return 0;
}

/* The values that an object of a class lacks: an enum's member has one. */
static int class_lacks(const struct walk *walk, const struct ringcast_token *token, uint64_t *out) {
  if (token->count >= walk->needs.classes) return -EPROTO;
  bool is_enum = walk->kinds[token->count] == RINGCAST_CLASS_ENUM;
  bool is_member = token->tag == RINGCAST_TAG_MEMBER;
  if (is_enum != is_member) return -EPROTO;
  *out = is_member ? 1 : walk->fields[token->count];
  return 1;
}

/* 1: the token opens a container, and *out values must follow. 0: the token is a complete value. */
static int token_lacks(struct walk *walk, const struct ringcast_token *token, uint64_t *out) {
  switch (token->tag) {
  case RINGCAST_TAG_LIST:
  case RINGCAST_TAG_TUPLE:
  case RINGCAST_TAG_SET:
  case RINGCAST_TAG_FROZENSET: *out = token->count; return 1;
  case RINGCAST_TAG_DICT:
    *out = 2 * token->count; /* at most the bytes left: ringcast_token_read has checked the count */
    return 1;
  case RINGCAST_TAG_RANGE:
  case RINGCAST_TAG_SLICE: *out = 3; return 1;
  case RINGCAST_TAG_KIND: *out = 1; return 1;
  case RINGCAST_TAG_OBJECT:
  case RINGCAST_TAG_MEMBER: return class_lacks(walk, token, out);
  case RINGCAST_TAG_PART:
  case RINGCAST_TAG_PART_BYTEARRAY:
  case RINGCAST_TAG_PART_ARRAY:
    if (walk->needs.parts == UINT32_MAX) return -EPROTO;
    walk->needs.parts++;
    return 0;
  case RINGCAST_TAG_NAMED: walk->needs.texts++; return 0;
  case RINGCAST_TAG_AGAIN: return token->count < walk->needs.texts ? 0 : -EPROTO;
  case RINGCAST_TAG_LEAF: return refer(token->count, &walk->needs.leaves);
  case RINGCAST_TAG_ITEM: return refer(token->count, &walk->needs.items);
  case RINGCAST_TAG_BACK: return back(walk, token->count);
  case RINGCAST_TAG_RECORD:
    if (token->count >= walk->needs.shapes) return -EPROTO;
    *out = walk->keys[token->count];
    return 1;
  default: return 0;
  }
}

/* Opens a container that lacks values; one without is complete at once. */
static int open_container(struct walk *walk, uint64_t lacks) {
  if (walk->depth == RINGCAST_MAX_DEPTH) return -EPROTO;
  uint32_t mark = walk->depth > 0 ? walk->marks[walk->depth - 1] : 0;
  if (walk->is_marked) mark = walk->needs.marks;
  walk->marks[walk->depth] = mark;
  walk->lacks[walk->depth] = lacks;
  walk->depth++;
  return 0;
}

/* 1: the root is complete. 0: more tokens must follow. */
static int take(struct walk *walk, struct ringcast_object *object,
                const struct ringcast_token *token) {
  uint64_t lacks = 0;
  if (token->tag == RINGCAST_TAG_CLASS) return class_define(walk, token);
  if (token->tag == RINGCAST_TAG_SHAPE) return shape_define(walk, object, token);
  if (token->tag == RINGCAST_TAG_MARK) return mark(walk);
  int container = token_lacks(walk, token, &lacks);
  if (container < 0) return -EPROTO;
  walk->needs.values++;
  if (walk->depth > 0) walk->lacks[walk->depth - 1]--;
  if (container && open_container(walk, lacks) < 0) return -EPROTO;
  walk->is_marked = false;
  while (walk->depth > 0 && walk->lacks[walk->depth - 1] == 0) walk->depth--;
  return walk->depth == 0;
}

int ringcast_object_check(const void *data, size_t bytes, struct ringcast_object_needs *out) {
  struct ringcast_object object = {.at = data, .end = (const uint8_t *)data + bytes};
  struct ringcast_token token;
  struct walk walk;
  walk.needs = (struct ringcast_object_needs){0};
  walk.depth = 0;
  walk.is_marked = false;
  int rc;
  do {
    if (ringcast_token_read(&object, &token) < 0) return -EPROTO;
    rc = take(&walk, &object, &token);
  } while (rc == 0);
  if (rc < 0 || object.at != object.end) return -EPROTO;
  *out = walk.needs;
  return 0;
}
