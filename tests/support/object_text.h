/* SPDX-License-Identifier: Apache-2.0 */
/* A nested value as JSON, in the way that tests/vectors/README.md tells, by nothing but the library's token reader. */
#ifndef RC_TESTS_OBJECT_TEXT_H
#define RC_TESTS_OBJECT_TEXT_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "ringcast/object.h"

struct object_text {
  FILE *out;
  struct ringcast_object left; /* of a stream that ringcast_object_check has let pass */
  uint32_t part;               /* the entry that the next part is */
  uint32_t classes, texts;
  struct ringcast_token defined[RINGCAST_MAX_CLASSES];
  struct ringcast_token named[8]; /* of a vector: there are no more */
};

static void print_object(struct object_text *text);

static inline void print_hex(FILE *out, const uint8_t *data, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i++) fprintf(out, "%02x", data[i]);
}

/* The bytes of a double as it is written: the highest first. */
static inline void print_bits(FILE *out, const uint8_t *data) {
  uint64_t bits;
  memcpy(&bits, data, sizeof bits);
  fprintf(out, "\"%016" PRIx64 "\"", bits);
}

static inline void print_text(FILE *out, const uint8_t *data, uint64_t bytes) {
  fputc('"', out);
  for (uint64_t i = 0; i < bytes; i++) {
    if (data[i] < 0x20 || data[i] == '"' || data[i] == '\\') {
      fprintf(out, "\\u%04x", data[i]);
    } else if (data[i] == 0xed && i + 2 < bytes && data[i + 1] >= 0xa0) { /* a surrogate, which JSON escapes */
      fprintf(out, "\\u%04x", 0xd000u | (data[i + 1] & 0x3fu) << 6 | (data[i + 2] & 0x3fu));
      i += 2;
    } else {
      fputc(data[i], out);
    }
  }
  fputc('"', out);
}

/* In hexadecimal, with its sign before it. */
static inline void print_bigint(FILE *out, const uint8_t *data, uint64_t bytes) {
  bool negative = bytes > 0 && data[bytes - 1] >= 0x80, carry = true, begun = false;
  uint8_t *digits = malloc(bytes + 1);
  for (uint64_t i = 0; i < bytes; i++) {
    digits[i] = (uint8_t)(negative ? ~data[i] + carry : data[i]);
    carry = carry && digits[i] == 0;
  }
  fprintf(out, "{\"int\": \"%s0x", negative ? "-" : "");
  for (uint64_t i = bytes; i-- > 0;)
    if (begun || digits[i] != 0) fprintf(out, begun ? "%02x" : "%x", digits[i]), begun = true;
  fprintf(out, "%s\"}", begun ? "" : "0");
  free(digits);
}

static inline void print_objects(struct object_text *text, const char *name, uint64_t count) {
  fprintf(text->out, name ? "{\"%s\": [" : "[", name);
  for (uint64_t i = 0; i < count; i++) {
    if (i > 0) fputs(", ", text->out);
    print_object(text);
  }
  fputs(name ? "]}" : "]", text->out);
}

static inline void print_pairs(struct object_text *text, uint64_t count) {
  fputs("{\"dict\": [", text->out);
  for (uint64_t i = 0; i < count; i++) {
    if (i > 0) fputs(", ", text->out);
    print_objects(text, NULL, 2);
  }
  fputs("]}", text->out);
}

static inline void print_number(FILE *out, uint8_t kind, const uint8_t *data) {
  unsigned bytes = kind & 15, unused = 64 - 8 * bytes;
  uint64_t value = 0;
  memcpy(&value, data, bytes);
  if (kind == RINGCAST_PACKED_F64) fputs("{\"float\": ", out), print_bits(out, data), fputc('}', out);
  else if (kind & 0x10) fprintf(out, "%" PRId64, (int64_t)(value << unused) >> unused);
  else fprintf(out, "%" PRIu64, value);
}

static inline void print_packed(struct object_text *text, const struct ringcast_token *token) {
  bool tuple = token->tag == RINGCAST_TAG_PACKED_TUPLE;
  fputs(tuple ? "{\"tuple\": [" : "[", text->out);
  for (uint64_t i = 0; i < token->count; i++) {
    if (i > 0) fputs(", ", text->out);
    print_number(text->out, token->kind, token->data + i * (token->kind & 15));
  }
  fputs(tuple ? "]}" : "]", text->out);
}

/* The text up to the next 0 byte, which is passed, or to the end. */
static inline void print_name(FILE *out, const uint8_t **names, const uint8_t *end) {
  const uint8_t *stop = memchr(*names, 0, (size_t)(end - *names));
  print_text(out, *names, (uint64_t)((stop ? stop : end) - *names));
  *names = stop ? stop + 1 : end;
}

/* An instance or a member, as `token` says. */
static inline void print_instance(struct object_text *text, const struct ringcast_token *token) {
  static const char *const kinds[] = {"", "dataclass", "struct", "namedtuple", "enum"};
  const struct ringcast_token *class = &text->defined[token->count];
  const uint8_t *names = class->data, *end = class->data + class->count;
  fprintf(text->out, "{\"%s\": [", kinds[class->kind]);
  print_name(text->out, &names, end);
  fputs(", ", text->out);
  print_name(text->out, &names, end);
  if (token->tag == RINGCAST_TAG_MEMBER) {
    fputs("], \"member\": ", text->out);
    print_object(text);
    fputc('}', text->out);
    return;
  }
  fputs("], \"fields\": [", text->out);
  for (bool first = true; names < end; first = false) {
    fputs(first ? "[" : ", [", text->out);
    print_name(text->out, &names, end);
    fputs(", ", text->out);
    print_object(text);
    fputc(']', text->out);
  }
  fputs("]}", text->out);
}

/* Text that may come again, or does. */
static inline void print_named(struct object_text *text, const struct ringcast_token *token) {
  if (token->tag == RINGCAST_TAG_NAMED) text->named[text->texts++] = *token;
  const struct ringcast_token *named =
      &text->named[token->tag == RINGCAST_TAG_NAMED ? text->texts - 1 : (uint32_t)token->count];
  print_text(text->out, named->data, named->count);
}

/* What is no container and has bytes. */
static inline void print_bytes(FILE *out, const struct ringcast_token *token) {
  static const char *const names[] = {[RINGCAST_TAG_BYTES] = "bytes",
                                      [RINGCAST_TAG_BYTEARRAY] = "bytearray",
                                      [RINGCAST_TAG_DTYPE] = "torch.dtype",
                                      [RINGCAST_TAG_DEVICE] = "torch.device"};
  fprintf(out, "{\"%s\": ", names[token->tag]);
  if (token->tag == RINGCAST_TAG_BYTES || token->tag == RINGCAST_TAG_BYTEARRAY)
    fputc('"', out), print_hex(out, token->data, token->count), fputc('"', out);
  else print_text(out, token->data, token->count);
  fputc('}', out);
}

static inline void print_simple(struct object_text *text, const struct ringcast_token *token) {
  FILE *out = text->out;
  switch (token->tag) {
  case RINGCAST_TAG_NONE: fputs("null", out); break;
  case RINGCAST_TAG_FALSE: fputs("false", out); break;
  case RINGCAST_TAG_TRUE: fputs("true", out); break;
  case RINGCAST_TAG_INT64: fprintf(out, "%" PRId64, token->i); break;
  case RINGCAST_TAG_BIGINT: print_bigint(out, token->data, token->count); break;
  case RINGCAST_TAG_FLOAT: print_number(out, RINGCAST_PACKED_F64, token->data); break;
  case RINGCAST_TAG_COMPLEX:
    fputs("{\"complex\": [", out), print_bits(out, token->data);
    fputs(", ", out), print_bits(out, token->data + 8), fputs("]}", out);
    break;
  case RINGCAST_TAG_ASCII:
  case RINGCAST_TAG_UTF8:
  case RINGCAST_TAG_WTF8: print_text(out, token->data, token->count); break;
  case RINGCAST_TAG_NAMED:
  case RINGCAST_TAG_AGAIN: print_named(text, token); break;
  case RINGCAST_TAG_SCALAR:
    fprintf(out, "{\"scalar\": [%u, %u, %u], \"data\": \"", token->dtype.code, token->dtype.bits, token->dtype.lanes);
    print_hex(out, token->data, token->count), fputs("\"}", out);
    break;
  case RINGCAST_TAG_SIZE:
    fputs("{\"torch.Size\": [", out);
    for (uint64_t i = 0; i < token->count; i++)
      fputs(i ? ", " : "", out), print_number(out, RINGCAST_PACKED_I64, token->data + 8 * i);
    fputs("]}", out);
    break;
  case RINGCAST_TAG_PART: fprintf(out, "{\"part\": %" PRIu32 "}", text->part++); break;
  case RINGCAST_TAG_PART_BYTEARRAY: fprintf(out, "{\"part\": %" PRIu32 ", \"bytearray\": true}", text->part++); break;
  case RINGCAST_TAG_LEAF: fprintf(out, "{\"leaf\": %" PRIu64 "}", token->count); break;
  default: print_bytes(out, token); break;
  }
}

/* The next value. */
static inline void print_object(struct object_text *text) {
  struct ringcast_token token = {.tag = 0}; /* what is printed has been checked: there is one */
  while (ringcast_token_read(&text->left, &token) == 0 && token.tag == RINGCAST_TAG_CLASS)
    text->defined[text->classes++] = token;
  switch (token.tag) {
  case RINGCAST_TAG_LIST: print_objects(text, NULL, token.count); break;
  case RINGCAST_TAG_TUPLE: print_objects(text, "tuple", token.count); break;
  case RINGCAST_TAG_SET: print_objects(text, "set", token.count); break;
  case RINGCAST_TAG_FROZENSET: print_objects(text, "frozenset", token.count); break;
  case RINGCAST_TAG_DICT: print_pairs(text, token.count); break;
  case RINGCAST_TAG_RANGE: print_objects(text, "range", 3); break;
  case RINGCAST_TAG_SLICE: print_objects(text, "slice", 3); break;
  case RINGCAST_TAG_PACKED_LIST:
  case RINGCAST_TAG_PACKED_TUPLE: print_packed(text, &token); break;
  case RINGCAST_TAG_OBJECT:
  case RINGCAST_TAG_MEMBER: print_instance(text, &token); break;
  default: print_simple(text, &token); break;
  }
}

#endif
