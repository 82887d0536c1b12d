/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a stream of tokens is one whole value.
 *
 * A walk with a stack of its own: how many values each open container still lacks. A value that comes is taken off the
 * innermost; a container that lacks nothing any more is closed, and was a value itself, taken off before.
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
  if (ends < 1 || (token->kind == RINGCAST_CLASS_ENUM && ends > 1)) return -EPROTO;
  walk->kinds[walk->needs.classes] = token->kind;
  walk->fields[walk->needs.classes++] = ends - 1; /* the first parts module and name */
  return 0;
}

/* How many values the token needs to follow. */
static int token_lacks(struct walk *walk, const struct ringcast_token *token, uint64_t *out) {
  *out = 0;
  switch (token->tag) {
  case RINGCAST_TAG_LIST:
  case RINGCAST_TAG_TUPLE:
  case RINGCAST_TAG_SET:
  case RINGCAST_TAG_FROZENSET:
    *out = token->count;
    break;
  case RINGCAST_TAG_DICT:
    *out = 2 * token->count;
    break;
  case RINGCAST_TAG_RANGE:
  case RINGCAST_TAG_SLICE:
    *out = 3;
    break;
  case RINGCAST_TAG_OBJECT:
  case RINGCAST_TAG_MEMBER:
    if (token->count >= walk->needs.classes) return -EPROTO;
    if ((walk->kinds[token->count] == RINGCAST_CLASS_ENUM) != (token->tag == RINGCAST_TAG_MEMBER)) return -EPROTO;
    *out = token->tag == RINGCAST_TAG_MEMBER ? 1 : walk->fields[token->count];
    break;
  case RINGCAST_TAG_PART:
  case RINGCAST_TAG_PART_BYTEARRAY:
    if (walk->needs.parts == UINT32_MAX) return -EPROTO;
    walk->needs.parts++;
    break;
  case RINGCAST_TAG_NAMED:
    walk->needs.texts++;
    break;
  case RINGCAST_TAG_AGAIN:
    if (token->count >= walk->needs.texts) return -EPROTO;
    break;
  case RINGCAST_TAG_LEAF:
    if (token->count == UINT64_MAX) return -EPROTO;
    if (token->count >= walk->needs.leaves) walk->needs.leaves = token->count + 1;
    break;
  default:
    break;
  }
  return 0;
}

/* 1: the root is whole; 0: go on. */
static int take(struct walk *walk, const struct ringcast_token *token) {
  uint64_t lacks;
  if (token->tag == RINGCAST_TAG_CLASS) return class_define(walk, token);
  if (token_lacks(walk, token, &lacks) < 0) return -EPROTO;
  walk->needs.values++;
  if (walk->depth > 0) walk->lacks[walk->depth - 1]--;
  if (lacks > 0) {
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
