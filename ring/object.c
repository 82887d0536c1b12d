/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that a stream of tokens is exactly one complete value.
 *
 * The walk has its own stack: the number of values that each open container still lacks. Each value lowers the number
 * of the innermost container by one. A container that lacks no more values is closed; the container itself was counted
 * as a value when the container opened. An open container lacks at least one value, so the number never falls below 0.
 *
 * No sum can wrap around. A token's count of values is at most the number of bytes left, a class has at most as many
 * fields as its names have bytes, and each token has at least one byte. So there are at most as many values as bytes.
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
  /* Module and name, then the fields if any. */
  if (ends < 1 || (token->kind == RINGCAST_CLASS_ENUM && ends > 1)) return -EPROTO;
  walk->kinds[walk->needs.classes] = token->kind;
  walk->fields[walk->needs.classes++] = ends - 1;
  return 0;
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

/* 1: the root is complete. 0: more tokens must follow. */
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
