/* SPDX-License-Identifier: Apache-2.0 */
/* Nested values (ringcast/object.h) as one line of text, about as Python would show them. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "tools/dump.h"

enum { DEEPEST = 12, MOST_NAMES = 256, MOST_TEXT = 80 };

struct named {
  const uint8_t *data;
  uint64_t bytes;
};

/* A class: the qualified name, and the fields, a zero byte between each two. */
struct class {
  struct named name, fields;
  uint8_t kind;
};

struct shape {
  struct ringcast_object keys;
  uint64_t count;
};

struct walk {
  struct dump_text *text;
  struct ringcast_object stream;
  const struct ringcast_frame_reader *reader;
  uint32_t part; /* the entry of the next one */
  uint64_t names, classes, shapes;
  struct named name[MOST_NAMES];
  struct class class[RINGCAST_MAX_CLASSES];
  struct shape shape[RINGCAST_MAX_SHAPES];
};

/* ---- Text ------------------------------------------------------------------------------------ */

void dump_put(struct dump_text *text, const char *format, ...) {
  va_list arguments;
  size_t room = sizeof text->data - text->used;
  va_start(arguments, format);
  int length = vsnprintf(text->data + text->used, room, format, arguments);
  va_end(arguments);
  if (length < 0 || (size_t)length < room) {
    text->used += length < 0 ? 0 : (size_t)length;
    return;
  }
  text->is_cut = true;
  text->used = sizeof text->data - 1;
  memcpy(text->data + text->used - 3, "...", 4);
}

void dump_quote(struct dump_text *text, const void *data, uint64_t bytes, size_t most) {
  const uint8_t *at = data;
  dump_put(text, "\"");
  for (uint64_t i = 0; i < bytes && i < most && !text->is_cut; i++) {
    if (at[i] == '"' || at[i] == '\\') dump_put(text, "\\%c", at[i]);
    else if (at[i] >= ' ' && at[i] <= '~') dump_put(text, "%c", at[i]);
    else dump_put(text, "\\x%02x", at[i]);
  }
  dump_put(text, bytes > most ? "...\"" : "\"");
}

/* A name: without quotes. */
static void put_name(struct walk *walk, const struct named *name) {
  for (uint64_t i = 0; i < name->bytes && i < MOST_TEXT && !walk->text->is_cut; i++) {
    uint8_t byte = name->data[i];
    dump_put(walk->text, "%c", byte > ' ' && byte <= '~' ? byte : '?');
  }
}

/* The next name of a list with zero bytes between. */
static struct named split(struct named *rest) {
  if (rest->bytes == 0) return *rest;
  const uint8_t *zero = memchr(rest->data, 0, rest->bytes);
  uint64_t bytes = zero ? (uint64_t)(zero - rest->data) : rest->bytes;
  struct named first = {.data = rest->data, .bytes = bytes};
  uint64_t skipped = zero ? bytes + 1 : bytes;
  rest->data += skipped;
  rest->bytes -= skipped;
  return first;
}

/* ---- Leaves ---------------------------------------------------------------------------------- */

static void put_text(struct walk *walk, const struct ringcast_token *token) {
  static const struct named unknown = {.data = (const uint8_t *)"?", .bytes = 1};
  struct named text = {.data = token->data, .bytes = token->count};
  if (token->tag == RINGCAST_TAG_AGAIN)
    text = token->count < walk->names ? walk->name[token->count] : unknown;
  if (token->tag == RINGCAST_TAG_NAMED && walk->names < MOST_NAMES)
    walk->name[walk->names++] = text;
  dump_quote(walk->text, text.data, text.bytes, MOST_TEXT);
}

static double real(const uint8_t *at) {
  double value;
  memcpy(&value, at, sizeof value);
  return value;
}

static void put_packed(struct walk *walk, const struct ringcast_token *token, uint64_t number) {
  uint64_t each = token->kind & 15, value = 0;
  memcpy(&value, token->data + number * each, each);
  unsigned shift = 64 - 8 * (unsigned)each;
  if (token->kind == RINGCAST_PACKED_F64)
    dump_put(walk->text, "%g", real(token->data + number * each));
  else if (token->kind & 0x10) dump_put(walk->text, "%" PRId64, (int64_t)(value << shift) >> shift);
  else dump_put(walk->text, "%" PRIu64, value);
}

static void put_numbers(struct walk *walk, const struct ringcast_token *token) {
  bool tuple = token->tag == RINGCAST_TAG_PACKED_TUPLE;
  dump_put(walk->text, tuple ? "(" : "[");
  for (uint64_t i = 0; i < token->count && !walk->text->is_cut; i++) {
    if (i > 0) dump_put(walk->text, ", ");
    put_packed(walk, token, i);
  }
  dump_put(walk->text, tuple ? (token->count == 1 ? ",)" : ")") : "]");
}

static void put_sizes(struct walk *walk, const struct ringcast_token *token) {
  dump_put(walk->text, "Size[");
  for (uint64_t i = 0; i < token->count && !walk->text->is_cut; i++) {
    int64_t size;
    memcpy(&size, token->data + 8 * i, sizeof size);
    dump_put(walk->text, "%s%" PRId64, i > 0 ? ", " : "", size);
  }
  dump_put(walk->text, "]");
}

static void put_bigint(struct walk *walk, const struct ringcast_token *token) {
  if (token->count > 32) {
    dump_put(walk->text, "int of %" PRIu64 " bytes", token->count);
    return;
  }
  dump_put(walk->text, "0x"); /* two's complement */
  for (uint64_t i = token->count; i > 0; i--) dump_put(walk->text, "%02x", token->data[i - 1]);
  if (token->count == 0) dump_put(walk->text, "0");
}

static void put_scalar(struct walk *walk, const struct ringcast_token *token) {
  uint64_t value = 0;
  float single;
  dump_dtype(walk->text, token->dtype);
  if (token->count > 8) return;
  memcpy(&value, token->data, token->count);
  memcpy(&single, token->data, token->count < 4 ? 0 : 4);
  unsigned shift = 64 - token->dtype.bits;
  if (token->dtype.code == 0)
    dump_put(walk->text, "(%" PRId64 ")", (int64_t)(value << shift) >> shift);
  if (token->dtype.code == 1 || token->dtype.code == 6)
    dump_put(walk->text, "(%" PRIu64 ")", value);
  if (token->dtype.code == 2 && token->count == 8) dump_put(walk->text, "(%g)", real(token->data));
  if (token->dtype.code == 2 && token->count == 4) dump_put(walk->text, "(%g)", (double)single);
}

static void put_part(struct walk *walk) {
  struct ringcast_item part;
  if (ringcast_frame_item(walk->reader, walk->part++, &part) != 0) {
    dump_put(walk->text, "a damaged part");
  } else if (part.kind == RINGCAST_ITEM_TENSOR) {
    dump_dtype(walk->text, part.dtype);
    dump_shape(walk->text, &part);
  } else if (part.kind == RINGCAST_ITEM_STR && part.data) {
    dump_quote(walk->text, part.data, part.bytes, MOST_TEXT);
  } else dump_put(walk->text, "%" PRIu64 " bytes", part.bytes);
}

static void put_item(struct walk *walk, uint64_t number) {
  struct ringcast_item item;
  bool good = number < walk->reader->count &&
              ringcast_frame_item(walk->reader, (uint32_t)number, &item) == 0;
  dump_put(walk->text, "the item ");
  if (good && item.key) dump_quote(walk->text, item.key, item.key_bytes, MOST_TEXT);
  else dump_put(walk->text, "%" PRIu64, number);
}

/* ---- Containers ------------------------------------------------------------------------------ */

static bool put_value(struct walk *walk, int depth);

/* Values between two brackets. */
static bool put_values(struct walk *walk, uint64_t count, const char *open, const char *close,
                       int depth) {
  dump_put(walk->text, "%s", open);
  for (uint64_t i = 0; i < count; i++) {
    if (i > 0) dump_put(walk->text, ", ");
    if (!put_value(walk, depth)) return false;
  }
  dump_put(walk->text, "%s", close);
  return !walk->text->is_cut;
}

static bool put_dict(struct walk *walk, uint64_t count, int depth) {
  dump_put(walk->text, "{");
  for (uint64_t i = 0; i < count; i++) {
    if (i > 0) dump_put(walk->text, ", ");
    if (!put_value(walk, depth)) return false;
    dump_put(walk->text, ": ");
    if (!put_value(walk, depth)) return false;
  }
  dump_put(walk->text, "}");
  return !walk->text->is_cut;
}

/* A dict with the keys of a SHAPE. */
static bool put_record(struct walk *walk, uint64_t number, int depth) {
  if (number >= walk->shapes) return false;
  struct shape shape = walk->shape[number];
  dump_put(walk->text, "{");
  for (uint64_t i = 0; i < shape.count; i++) {
    struct ringcast_token key;
    if (ringcast_token_read(&shape.keys, &key) != 0 || !ringcast_token_is_text(&key)) return false;
    if (walk->text->is_cut) return false;
    if (key.tag == RINGCAST_TAG_NAMED)
      key.tag = RINGCAST_TAG_UTF8; /* the key was counted with the SHAPE */
    if (i > 0) dump_put(walk->text, ", ");
    put_text(walk, &key);
    dump_put(walk->text, ": ");
    if (!put_value(walk, depth)) return false;
  }
  dump_put(walk->text, "}");
  return true;
}

static bool put_object(struct walk *walk, uint64_t number, int depth) {
  if (number >= walk->classes) return false;
  const struct class *class = &walk->class[number];
  struct named fields = class->fields;
  bool first = true;
  put_name(walk, &class->name);
  dump_put(walk->text, "(");
  for (; fields.bytes > 0; first = false) {
    struct named field = split(&fields);
    if (!first) dump_put(walk->text, ", ");
    put_name(walk, &field);
    dump_put(walk->text, "=");
    if (!put_value(walk, depth)) return false;
  }
  if (class->kind == RINGCAST_CLASS_INSTANCE) {
    dump_put(walk->text, first ? "**" : ", **");
    if (!put_value(walk, depth)) return false;
  }
  dump_put(walk->text, ")");
  return !walk->text->is_cut;
}

static bool put_member(struct walk *walk, uint64_t number, int depth) {
  if (number >= walk->classes) return false;
  put_name(walk, &walk->class[number].name);
  dump_put(walk->text, ".");
  return put_value(walk, depth);
}

/* Definitions, which come before a value. */
static bool define_class(struct walk *walk, const struct ringcast_token *token) {
  struct named rest = {.data = token->data, .bytes = token->count};
  if (walk->classes == RINGCAST_MAX_CLASSES) return false;
  split(&rest); /* the module */
  struct named name = split(&rest);
  walk->class[walk->classes++] = (struct class){.name = name, .fields = rest, .kind = token->kind};
  return true;
}

static bool define_shape(struct walk *walk, const struct ringcast_token *token) {
  struct ringcast_token key;
  if (walk->shapes == RINGCAST_MAX_SHAPES) return false;
  walk->shape[walk->shapes++] = (struct shape){.keys = walk->stream, .count = token->count};
  for (uint64_t i = 0; i < token->count; i++) {
    if (ringcast_token_read(&walk->stream, &key) != 0) return false;
    if (key.tag == RINGCAST_TAG_NAMED && walk->names < MOST_NAMES)
      walk->name[walk->names++] = (struct named){.data = key.data, .bytes = key.count};
  }
  return true;
}

static bool put_kind(struct walk *walk, uint8_t kind, int depth) {
  static const char *const names[] = {
      [RINGCAST_STANDARD_DEFAULTDICT] = "defaultdict",
      [RINGCAST_STANDARD_ORDEREDDICT] = "OrderedDict",
      [RINGCAST_STANDARD_DEQUE] = "deque",
      [RINGCAST_STANDARD_COUNTER] = "Counter",
      [RINGCAST_STANDARD_UUID] = "UUID",
      [RINGCAST_STANDARD_PUREPOSIXPATH] = "PurePosixPath",
      [RINGCAST_STANDARD_POSIXPATH] = "PosixPath",
      [RINGCAST_STANDARD_PUREWINDOWSPATH] = "PureWindowsPath",
      [RINGCAST_STANDARD_DATETIME] = "datetime",
      [RINGCAST_STANDARD_DATE] = "date",
      [RINGCAST_STANDARD_TIME] = "time",
      [RINGCAST_STANDARD_TIMEDELTA] = "timedelta",
      [RINGCAST_STANDARD_TIMEZONE] = "timezone",
      [RINGCAST_STANDARD_ZONEINFO] = "ZoneInfo",
      [RINGCAST_STANDARD_DECIMAL] = "Decimal",
      [RINGCAST_STANDARD_DTYPE] = "dtype",
      [RINGCAST_STANDARD_NDARRAY] = "ndarray",
      [RINGCAST_STANDARD_RECARRAY] = "recarray",
  };
  bool known = kind < sizeof names / sizeof *names && names[kind];
  dump_put(walk->text, "%s(", known ? names[kind] : "?");
  if (!put_value(walk, depth)) return false;
  dump_put(walk->text, ")");
  return !walk->text->is_cut;
}

static bool put_container(struct walk *walk, const struct ringcast_token *token, int depth) {
  switch (token->tag) {
  case RINGCAST_TAG_LIST: return put_values(walk, token->count, "[", "]", depth);
  case RINGCAST_TAG_TUPLE:
    return put_values(walk, token->count, "(", token->count == 1 ? ",)" : ")", depth);
  case RINGCAST_TAG_SET: return put_values(walk, token->count, "{", "}", depth);
  case RINGCAST_TAG_FROZENSET: return put_values(walk, token->count, "frozenset({", "})", depth);
  case RINGCAST_TAG_RANGE: return put_values(walk, 3, "range(", ")", depth);
  case RINGCAST_TAG_SLICE: return put_values(walk, 3, "slice(", ")", depth);
  case RINGCAST_TAG_DICT: return put_dict(walk, token->count, depth);
  case RINGCAST_TAG_RECORD: return put_record(walk, token->count, depth);
  case RINGCAST_TAG_OBJECT: return put_object(walk, token->count, depth);
  case RINGCAST_TAG_MEMBER: return put_member(walk, token->count, depth);
  case RINGCAST_TAG_KIND: return put_kind(walk, token->kind, depth);
  default: return false; /* a tag of a later version */
  }
}

/* ---- A value --------------------------------------------------------------------------------- */

/* Returns false if the token is no leaf. */
static bool put_leaf(struct walk *walk, const struct ringcast_token *token) {
  struct dump_text *text = walk->text;
  switch (token->tag) {
  case RINGCAST_TAG_NONE: dump_put(text, "None"); return true;
  case RINGCAST_TAG_FALSE: dump_put(text, "False"); return true;
  case RINGCAST_TAG_TRUE: dump_put(text, "True"); return true;
  case RINGCAST_TAG_INT64: dump_put(text, "%" PRId64, token->i); return true;
  case RINGCAST_TAG_BIGINT: put_bigint(walk, token); return true;
  case RINGCAST_TAG_FLOAT: dump_put(text, "%g", real(token->data)); return true;
  case RINGCAST_TAG_COMPLEX:
    dump_put(text, "(%g%+gj)", real(token->data), real(token->data + 8));
    return true;
  case RINGCAST_TAG_ASCII:
  case RINGCAST_TAG_UTF8:
  case RINGCAST_TAG_WTF8:
  case RINGCAST_TAG_NAMED:
  case RINGCAST_TAG_AGAIN: put_text(walk, token); return true;
  case RINGCAST_TAG_DTYPE:
  case RINGCAST_TAG_DEVICE:
    put_name(walk, &(struct named){.data = token->data, .bytes = token->count});
    return true;
  case RINGCAST_TAG_BYTES: dump_put(text, "%" PRIu64 " bytes", token->count); return true;
  case RINGCAST_TAG_BYTEARRAY:
    dump_put(text, "bytearray of %" PRIu64 " bytes", token->count);
    return true;
  case RINGCAST_TAG_PACKED_LIST:
  case RINGCAST_TAG_PACKED_TUPLE: put_numbers(walk, token); return true;
  case RINGCAST_TAG_SCALAR: put_scalar(walk, token); return true;
  case RINGCAST_TAG_SIZE: put_sizes(walk, token); return true;
  case RINGCAST_TAG_PART:
  case RINGCAST_TAG_PART_BYTEARRAY:
  case RINGCAST_TAG_PART_ARRAY: put_part(walk); return true;
  case RINGCAST_TAG_LEAF: dump_put(text, "a pickle, not loaded"); return true;
  case RINGCAST_TAG_BACK: dump_put(text, "(again)"); return true;
  case RINGCAST_TAG_ITEM: put_item(walk, token->count); return true;
  case RINGCAST_TAG_ARRAY: dump_put(text, "array of %" PRIu64 " bytes", token->count); return true;
  case RINGCAST_TAG_ABSENT: dump_put(text, "absent"); return true;
  default: return false;
  }
}

/* Returns false at the end of the rendering: the text is full, or the stream has changed since the
 * check. */
static bool put_value(struct walk *walk, int depth) {
  struct ringcast_token token = {0};
  do { /* definitions and marks come before the value */
    if (walk->text->is_cut || ringcast_token_read(&walk->stream, &token) != 0) return false;
    if (token.tag == RINGCAST_TAG_CLASS && !define_class(walk, &token)) return false;
    if (token.tag == RINGCAST_TAG_SHAPE && !define_shape(walk, &token)) return false;
  } while (token.tag == RINGCAST_TAG_CLASS || token.tag == RINGCAST_TAG_SHAPE ||
           token.tag == RINGCAST_TAG_MARK);
  if (put_leaf(walk, &token)) return !walk->text->is_cut;
  if (depth == DEEPEST) {
    dump_put(walk->text, "...");
    return false;
  }
  return put_container(walk, &token, depth + 1);
}

void dump_value(struct dump_text *text, const struct ringcast_frame_reader *reader,
                const struct ringcast_item *item) {
  static struct walk walk; /* 20 KiB */
  struct ringcast_object_needs needs;
  if (!item->data || ringcast_object_check(item->data, item->bytes, &needs) != 0) {
    dump_put(text, "a damaged value");
    return;
  }
  walk.text = text;
  walk.reader = reader;
  walk.stream =
      (struct ringcast_object){.at = item->data, .end = (const uint8_t *)item->data + item->bytes};
  walk.part = (uint32_t)item->scalar.i;
  walk.names = walk.classes = walk.shapes = 0;
  put_value(&walk, 0);
}
