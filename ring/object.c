/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a stream of tokens is one whole value.
 *
 * A walk with a stack of its own: how many values each open container still lacks. A value that comes is taken off the
 * innermost; a container that lacks nothing any more is closed, and was a value itself, taken off before. An open one
 * lacks at least one, so nothing is taken off 0.
 *
 * No sum can wrap around: a token's count of values is no more than the bytes that are left, a class has no more fields
 * than its names have bytes, and each token is a byte or more, so there are no more values than bytes.
 */
#include "ringcast/object.h"

#include <errno.h>

struct walk {
  struct ringcast_object_needs needs;
  uint64_t lacks[RINGCAST_MAX_DEPTH];
  uint32_t depth;
  uint64_t fields[RINGCAST_MAX_CLASSES]; /* of each class */
  uint8_t kinds[RINGCAST_MAX_CLASSES];
};

static int class_define(struct walk *walk, const struct ringcast_token *token) {
  if (token->kind < RINGCAST_CLASS_DATACLASS || token->kind > RINGCAST_CLASS_ENUM) return -EPROTO;
  if (walk->needs.classes == RINGCAST_MAX_CLASSES) return -EPROTO;
  uint64_t ends = 0;
  for (uint64_t i = 0; i < token->count; i++) ends += token->data[i] == 0;
  /* Module and name, or those and the fields. */
  if (ends < 1 || (token->kind == RINGCAST_CLASS_ENUM && ends > 1)) return -EPROTO;
  walk->kinds[walk->needs.classes] = token->kind;
  walk->fields[walk->needs.classes++] = ends - 1;
  return 0;
}

/* 1: a container, and how many values have to follow; 0: it is whole by itself. */
static int token_lacks(struct walk *walk, const struct ringcast_token *token, uint64_t *out) {
  switch (token->tag) {
  case RINGCAST_TAG_LIST:
  case RINGCAST_TAG_TUPLE:
  case RINGCAST_TAG_SET:
  case RINGCAST_TAG_FROZENSET: *out = token->count; return 1;
  case RINGCAST_TAG_DICT:
    *out = 2 * token->count; /* at most the bytes that were left, as ringcast_token_read has seen to */
    return 1;
  case RINGCAST_TAG_RANGE:
  case RINGCAST_TAG_SLICE: *out = 3; return 1;
  case RINGCAST_TAG_OBJECT:
  case RINGCAST_TAG_MEMBER:
    if (token->count >= walk->needs.classes) return -EPROTO;
    if ((walk->kinds[token->count] == RINGCAST_CLASS_ENUM) != (token->tag == RINGCAST_TAG_MEMBER)) return -EPROTO;
    *out = token->tag == RINGCAST_TAG_MEMBER ? 1 : walk->fields[token->count];
    return 1;
  case RINGCAST_TAG_PART:
  case RINGCAST_TAG_PART_BYTEARRAY:
    if (walk->needs.parts == UINT32_MAX) return -EPROTO;
    walk->needs.parts++;
    return 0;
  case RINGCAST_TAG_NAMED: walk->needs.texts++; return 0;
  case RINGCAST_TAG_AGAIN: return token->count < walk->needs.texts ? 0 : -EPROTO;
  case RINGCAST_TAG_LEAF:
    if (token->count == UINT64_MAX) return -EPROTO;
    if (token->count >= walk->needs.leaves) walk->needs.leaves = token->count + 1;
    return 0;
  default: return 0;
  }
}

/* 1: the root is whole; 0: go on. */
static int take(struct walk *walk, const struct ringcast_token *token) {
  uint64_t lacks = 0;
  if (token->tag == RINGCAST_TAG_CLASS) return class_define(walk, token);
  int container = token_lacks(walk, token, &lacks);
  if (container < 0) return -EPROTO;
  walk->needs.values++;
  if (walk->depth > 0) walk->lacks[walk->depth - 1]--;
  if (container) {
    if (walk->depth == RINGCAST_MAX_DEPTH) return -EPROTO;
    walk->lacks[walk->depth++] = lacks;
  }
  while (walk->depth > 0 && walk->lacks[walk->depth - 1] == 0) walk->depth--;
  return walk->depth == 0;
}

int ringcast_object_check(const void *data, size_t bytes, struct ringcast_object_needs *out) {
  struct ringcast_object object = {.at = data, .end = (const uint8_t *)data + bytes};
  struct ringcast_token token;
  struct walk walk;
  walk.needs = (struct ringcast_object_needs){0};
  walk.depth = 0;
  int rc;
  do {
    if (ringcast_token_read(&object, &token) < 0) return -EPROTO;
    rc = take(&walk, &token);
  } while (rc == 0);
  if (rc < 0 || object.at != object.end) return -EPROTO;
  *out = walk.needs;
  return 0;
}
