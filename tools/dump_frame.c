/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is in a frame of RINGCAST_KIND_TENSORS, and in its nested values (ringcast/object.h): about
 * as Python would show them, each on one line. A frame is hostile: every field is checked, and all
 * text is escaped for the terminal.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "ringcast/object.h"
#include "tools/cli.h"
#include "tools/dump.h"
#include "tools/text.h"

enum { MOST_SHOWN = 1000 /* entries of a frame */, MOST_KEY = 200, MOST_TEXT = 80 };
enum { DEEPEST = 12, MOST_NAMES = 256 }; /* of nested values */

/* ---- Text ------------------------------------------------------------------------------------ */

/* Text of limited length. */
struct dump_text {
  size_t used;
  bool is_cut;
  char data[400];
};

__attribute__((format(printf, 2, 3))) static void put(struct dump_text *text, const char *format,
                                                      ...) {
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

/* In quotes, escaped, at most `most` bytes. */
static void quote(struct dump_text *text, const void *data, uint64_t bytes, size_t most) {
  const uint8_t *at = data;
  put(text, "\"");
  for (uint64_t i = 0; i < bytes && i < most && !text->is_cut; i++) {
    if (at[i] == '"' || at[i] == '\\') put(text, "\\%c", at[i]);
    else if (at[i] >= ' ' && at[i] <= '~') put(text, "%c", at[i]);
    else put(text, "\\x%02x", at[i]);
  }
  put(text, bytes > most ? "...\"" : "\"");
}

/* ---- Words ----------------------------------------------------------------------------------- */

/* "int64"; "float8_e4m3fn"; "int64x2" for lanes. */
static void put_dtype(struct dump_text *text, struct ringcast_dtype dtype) {
  static const char *const plain[] = {"int",    "uint",    "float", "opaque",
                                      "bfloat", "complex", "bool"};
  static const char *const small[] = {"float8_e3m4",     "float8_e4m3",     "float8_e4m3b11fnuz",
                                      "float8_e4m3fn",   "float8_e4m3fnuz", "float8_e5m2",
                                      "float8_e5m2fnuz", "float8_e8m0fnu",  "float6_e2m3fn",
                                      "float6_e3m2fn",   "float4_e2m1fn"};
  if (dtype.code == 6 && dtype.bits == 8) put(text, "bool");
  else if (dtype.code < 7) put(text, "%s%u", plain[dtype.code], dtype.bits);
  else if (dtype.code < 18) put(text, "%s", small[dtype.code - 7]);
  else put(text, "dtype%u_%u", dtype.code, dtype.bits);
  if (dtype.lanes != 1) put(text, "x%u", dtype.lanes);
}

static void put_shape(struct dump_text *text, const struct ringcast_item *item) {
  put(text, "[");
  for (int32_t i = 0; i < item->ndim; i++)
    put(text, "%s%" PRId64, i > 0 ? ", " : "", item->shape[i]);
  put(text, "]");
}

/* ---- Nested values --------------------------------------------------------------------------- */

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

/* A name: without quotes. */
static void put_name(struct walk *walk, const struct named *name) {
  for (uint64_t i = 0; i < name->bytes && i < MOST_TEXT && !walk->text->is_cut; i++) {
    uint8_t byte = name->data[i];
    put(walk->text, "%c", byte > ' ' && byte <= '~' ? byte : '?');
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

/* ---- Nested values: leaves ------------------------------------------------------------------- */

static void put_text(struct walk *walk, const struct ringcast_token *token) {
  static const struct named unknown = {.data = (const uint8_t *)"?", .bytes = 1};
  struct named text = {.data = token->data, .bytes = token->count};
  if (token->tag == RINGCAST_TAG_AGAIN)
    text = token->count < walk->names ? walk->name[token->count] : unknown;
  if (token->tag == RINGCAST_TAG_NAMED && walk->names < MOST_NAMES)
    walk->name[walk->names++] = text;
  quote(walk->text, text.data, text.bytes, MOST_TEXT);
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
  if (token->kind == RINGCAST_PACKED_F64) put(walk->text, "%g", real(token->data + number * each));
  else if (token->kind & 0x10) put(walk->text, "%" PRId64, (int64_t)(value << shift) >> shift);
  else put(walk->text, "%" PRIu64, value);
}

static void put_numbers(struct walk *walk, const struct ringcast_token *token, const char *open,
                        const char *close) {
  put(walk->text, "%s", open);
  for (uint64_t i = 0; i < token->count && !walk->text->is_cut; i++) {
    if (i > 0) put(walk->text, ", ");
    put_packed(walk, token, i);
  }
  put(walk->text, "%s", close);
}

static void put_sizes(struct walk *walk, const struct ringcast_token *token) {
  struct ringcast_token sizes = *token;
  sizes.kind = RINGCAST_PACKED_I64;
  put_numbers(walk, &sizes, "Size[", "]");
}

static void put_bigint(struct walk *walk, const struct ringcast_token *token) {
  if (token->count > 32) {
    put(walk->text, "int of %" PRIu64 " bytes", token->count);
    return;
  }
  put(walk->text, "0x"); /* two's complement */
  for (uint64_t i = token->count; i > 0; i--) put(walk->text, "%02x", token->data[i - 1]);
  if (token->count == 0) put(walk->text, "0");
}

static void put_scalar(struct walk *walk, const struct ringcast_token *token) {
  uint64_t value = 0;
  float single;
  put_dtype(walk->text, token->dtype);
  if (token->count > 8) return;
  memcpy(&value, token->data, token->count);
  memcpy(&single, token->data, token->count < 4 ? 0 : 4);
  unsigned shift = 64 - token->dtype.bits;
  if (token->dtype.code == 0) put(walk->text, "(%" PRId64 ")", (int64_t)(value << shift) >> shift);
  if (token->dtype.code == 1 || token->dtype.code == 6) put(walk->text, "(%" PRIu64 ")", value);
  if (token->dtype.code == 2 && token->count == 8) put(walk->text, "(%g)", real(token->data));
  if (token->dtype.code == 2 && token->count == 4) put(walk->text, "(%g)", (double)single);
}

static void put_part(struct walk *walk) {
  struct ringcast_item part;
  if (ringcast_frame_item(walk->reader, walk->part++, &part) != 0) {
    put(walk->text, "a damaged part");
  } else if (part.kind == RINGCAST_ITEM_TENSOR) {
    put_dtype(walk->text, part.dtype);
    put_shape(walk->text, &part);
  } else if (part.kind == RINGCAST_ITEM_STR && part.data) {
    quote(walk->text, part.data, part.bytes, MOST_TEXT);
  } else put(walk->text, "%" PRIu64 " bytes", part.bytes);
}

static void put_item(struct walk *walk, uint64_t number) {
  struct ringcast_item item;
  bool good = number < walk->reader->count &&
              ringcast_frame_item(walk->reader, (uint32_t)number, &item) == 0;
  put(walk->text, "the item ");
  if (good && item.key) quote(walk->text, item.key, item.key_bytes, MOST_TEXT);
  else put(walk->text, "%" PRIu64, number);
}

/* ---- Nested values: containers --------------------------------------------------------------- */

static bool put_value(struct walk *walk, int depth);

static const char *end_of_tuple(uint64_t count) {
  if (count == 1) return ",)";
  return ")";
}

/* Values between two brackets; of a dict, keys and values in turn. */
static bool put_values(struct walk *walk, uint64_t count, const char *open, const char *close,
                       bool is_dict, int depth) {
  put(walk->text, "%s", open);
  for (uint64_t i = 0; i < count; i++) {
    if (is_dict && i % 2 == 1) put(walk->text, ": ");
    else if (i > 0) put(walk->text, ", ");
    if (!put_value(walk, depth)) return false;
  }
  put(walk->text, "%s", close);
  return !walk->text->is_cut;
}

/* A dict with the keys of a SHAPE. */
static bool put_record(struct walk *walk, uint64_t number, int depth) {
  if (number >= walk->shapes) return false;
  struct shape shape = walk->shape[number];
  put(walk->text, "{");
  for (uint64_t i = 0; i < shape.count; i++) {
    struct ringcast_token key;
    if (ringcast_token_read(&shape.keys, &key) != 0 || !ringcast_token_is_text(&key)) return false;
    if (walk->text->is_cut) return false;
    if (key.tag == RINGCAST_TAG_NAMED)
      key.tag = RINGCAST_TAG_UTF8; /* the key was counted with the SHAPE */
    if (i > 0) put(walk->text, ", ");
    put_text(walk, &key);
    put(walk->text, ": ");
    if (!put_value(walk, depth)) return false;
  }
  put(walk->text, "}");
  return true;
}

static bool put_object(struct walk *walk, uint64_t number, int depth) {
  if (number >= walk->classes) return false;
  const struct class *class = &walk->class[number];
  struct named fields = class->fields;
  bool first = true;
  put_name(walk, &class->name);
  put(walk->text, "(");
  for (; fields.bytes > 0; first = false) {
    struct named field = split(&fields);
    if (!first) put(walk->text, ", ");
    put_name(walk, &field);
    put(walk->text, "=");
    if (!put_value(walk, depth)) return false;
  }
  if (class->kind == RINGCAST_CLASS_INSTANCE) {
    if (!first) put(walk->text, ", ");
    put(walk->text, "**");
    if (!put_value(walk, depth)) return false;
  }
  put(walk->text, ")");
  return !walk->text->is_cut;
}

static bool put_member(struct walk *walk, uint64_t number, int depth) {
  if (number >= walk->classes) return false;
  put_name(walk, &walk->class[number].name);
  put(walk->text, ".");
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
  const char *name = "?";
  if (kind < sizeof names / sizeof *names && names[kind]) name = names[kind];
  put(walk->text, "%s(", name);
  if (!put_value(walk, depth)) return false;
  put(walk->text, ")");
  return !walk->text->is_cut;
}

static bool put_container(struct walk *walk, const struct ringcast_token *token, int depth) {
  uint64_t count = token->count;
  switch (token->tag) {
  case RINGCAST_TAG_LIST: return put_values(walk, count, "[", "]", false, depth);
  case RINGCAST_TAG_TUPLE: return put_values(walk, count, "(", end_of_tuple(count), false, depth);
  case RINGCAST_TAG_SET: return put_values(walk, count, "{", "}", false, depth);
  case RINGCAST_TAG_FROZENSET: return put_values(walk, count, "frozenset({", "})", false, depth);
  case RINGCAST_TAG_RANGE: return put_values(walk, 3, "range(", ")", false, depth);
  case RINGCAST_TAG_SLICE: return put_values(walk, 3, "slice(", ")", false, depth);
  case RINGCAST_TAG_DICT: return put_values(walk, 2 * count, "{", "}", true, depth);
  case RINGCAST_TAG_RECORD: return put_record(walk, count, depth);
  case RINGCAST_TAG_OBJECT: return put_object(walk, count, depth);
  case RINGCAST_TAG_MEMBER: return put_member(walk, count, depth);
  case RINGCAST_TAG_KIND: return put_kind(walk, token->kind, depth);
  default: return false; /* a tag of a later version */
  }
}

/* ---- Nested values: one ---------------------------------------------------------------------- */

/* Returns false if the token is no leaf. */
static bool put_leaf(struct walk *walk, const struct ringcast_token *token) {
  struct dump_text *text = walk->text;
  switch (token->tag) {
  case RINGCAST_TAG_NONE: put(text, "None"); return true;
  case RINGCAST_TAG_FALSE: put(text, "False"); return true;
  case RINGCAST_TAG_TRUE: put(text, "True"); return true;
  case RINGCAST_TAG_INT64: put(text, "%" PRId64, token->i); return true;
  case RINGCAST_TAG_BIGINT: put_bigint(walk, token); return true;
  case RINGCAST_TAG_FLOAT: put(text, "%g", real(token->data)); return true;
  case RINGCAST_TAG_COMPLEX:
    put(text, "(%g%+gj)", real(token->data), real(token->data + 8));
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
  case RINGCAST_TAG_BYTES: put(text, "%" PRIu64 " bytes", token->count); return true;
  case RINGCAST_TAG_BYTEARRAY:
    put(text, "bytearray of %" PRIu64 " bytes", token->count);
    return true;
  case RINGCAST_TAG_PACKED_LIST: put_numbers(walk, token, "[", "]"); return true;
  case RINGCAST_TAG_PACKED_TUPLE:
    put_numbers(walk, token, "(", end_of_tuple(token->count));
    return true;
  case RINGCAST_TAG_SCALAR: put_scalar(walk, token); return true;
  case RINGCAST_TAG_SIZE: put_sizes(walk, token); return true;
  case RINGCAST_TAG_PART:
  case RINGCAST_TAG_PART_BYTEARRAY:
  case RINGCAST_TAG_PART_ARRAY: put_part(walk); return true;
  case RINGCAST_TAG_LEAF: put(text, "a pickle, not loaded"); return true;
  case RINGCAST_TAG_BACK: put(text, "(again)"); return true;
  case RINGCAST_TAG_ITEM: put_item(walk, token->count); return true;
  case RINGCAST_TAG_ARRAY: put(text, "array of %" PRIu64 " bytes", token->count); return true;
  case RINGCAST_TAG_ABSENT: put(text, "absent"); return true;
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
    put(walk->text, "...");
    return false;
  }
  return put_container(walk, &token, depth + 1);
}

/* The value that an OBJECT entry holds. Pickles are not loaded. */
static void put_nested(struct dump_text *text, const struct ringcast_frame_reader *reader,
                       const struct ringcast_item *item) {
  static struct walk walk; /* 20 KiB */
  struct ringcast_object_needs needs;
  if (!item->data || ringcast_object_check(item->data, item->bytes, &needs) != 0) {
    put(text, "a damaged value");
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

/* ---- One entry ------------------------------------------------------------------------------- */

static const char *kind_name(uint16_t kind) {
  static const char *const names[] = {
      [RINGCAST_ITEM_NONE] = "none",     [RINGCAST_ITEM_BOOL] = "bool",
      [RINGCAST_ITEM_INT] = "int",       [RINGCAST_ITEM_FLOAT] = "float",
      [RINGCAST_ITEM_STR] = "str",       [RINGCAST_ITEM_BYTES] = "bytes",
      [RINGCAST_ITEM_TENSOR] = "tensor", [RINGCAST_ITEM_PICKLE] = "pickle",
      [RINGCAST_ITEM_BUFFER] = "buffer", [RINGCAST_ITEM_LEAF] = "leaf",
      [RINGCAST_ITEM_ERROR] = "error",   [RINGCAST_ITEM_OBJECT] = "object"};
  if (kind >= sizeof names / sizeof *names || !names[kind]) return "unknown";
  return names[kind];
}

/* The value of a short entry; nothing for a tensor. */
static void put_short(struct dump_text *text, const struct ringcast_frame_reader *reader,
                      const struct ringcast_item *item) {
  switch (item->kind) {
  case RINGCAST_ITEM_NONE: put(text, "None"); break;
  case RINGCAST_ITEM_BOOL: put(text, item->scalar.i ? "True" : "False"); break;
  case RINGCAST_ITEM_INT: put(text, "%" PRId64, item->scalar.i); break;
  case RINGCAST_ITEM_FLOAT: put(text, "%g", item->scalar.f); break;
  case RINGCAST_ITEM_STR:
  case RINGCAST_ITEM_ERROR:
    if (item->data) quote(text, item->data, item->bytes, MOST_KEY);
    break;
  case RINGCAST_ITEM_OBJECT: put_nested(text, reader, item); break;
  case RINGCAST_ITEM_LEAF: put(text, "a pickle, not loaded"); break;
  default: break;
  }
}

static void print_text_item(const struct ringcast_frame_reader *reader,
                            const struct ringcast_item *item) {
  struct dump_text key = {0}, text = {0};
  if (item->key) quote(&key, item->key, item->key_bytes, MOST_KEY);
  if (item->kind == RINGCAST_ITEM_TENSOR) {
    put_dtype(&text, item->dtype);
    put_shape(&text, item);
    put(&text, " %" PRIu64 " B", item->bytes);
    if (item->placement != RINGCAST_PLACEMENT_INLINE) put(&text, " on the device");
  } else put_short(&text, reader, item);
  if (text.used == 0) put(&text, "%" PRIu64 " B of %s", item->bytes, kind_name(item->kind));
  if (item->kind == RINGCAST_ITEM_ERROR) fputs("error ", stdout);
  printf("%s%s%s", key.data, item->key ? ": " : "", text.data);
}

static void print_json_item(const struct ringcast_frame_reader *reader,
                            const struct ringcast_item *item) {
  struct dump_text text = {0};
  putchar('{');
  if (item->key) {
    fputs("\"key\": ", stdout);
    text_json(item->key, item->key_bytes, stdout);
    fputs(", ", stdout);
  }
  printf("\"kind\": \"%s\"", kind_name(item->kind));
  if (item->kind == RINGCAST_ITEM_TENSOR) {
    put_dtype(&text, item->dtype);
    printf(", \"dtype\": \"%s\", \"shape\": [", text.data);
    for (int32_t i = 0; i < item->ndim; i++)
      printf("%s%" PRId64, i > 0 ? ", " : "", item->shape[i]);
    printf("], \"device\": %s", item->placement != RINGCAST_PLACEMENT_INLINE ? "true" : "false");
  } else put_short(&text, reader, item);
  if (item->kind != RINGCAST_ITEM_TENSOR && text.used > 0) {
    fputs(", \"value\": ", stdout);
    text_json(text.data, text.used, stdout);
  }
  printf(", \"bytes\": %" PRIu64 "}", item->bytes);
}

/* ---- The frame ------------------------------------------------------------------------------- */

/* Items of the dict, or the value; and the pickle, which is told of but not loaded. Parts show in
 * their values. */
static bool is_shown(const struct ringcast_frame_reader *reader, const struct ringcast_item *item,
                     uint32_t index) {
  if (item->kind == RINGCAST_ITEM_PICKLE) return true;
  if (reader->root == RINGCAST_ROOT_DICT) return (item->flags & RINGCAST_ITEM_KEYED) != 0;
  return index == 0;
}

/* Writers give each key and value bytes of its own. Entries that share bytes are damage: a small
 * frame of them would be gigabytes of text, or hours of checks. */
static bool takes_its_own(const struct ringcast_item *item, uint64_t *left) {
  uint64_t bytes = 0;
  if (item->key) bytes += item->key_bytes;
  if (item->data && item->kind != RINGCAST_ITEM_TENSOR) bytes += item->bytes;
  if (bytes > *left) return false;
  *left -= bytes;
  return true;
}

static void print_entries(const struct ringcast_frame_reader *reader, bool json) {
  uint32_t shown = 0, damaged = 0;
  uint64_t left = reader->bytes;
  for (uint32_t i = 0; i < reader->count && !cli_stop; i++) {
    struct ringcast_item item;
    if (ringcast_frame_item(reader, i, &item) != 0 || !takes_its_own(&item, &left)) {
      damaged++;
      continue;
    }
    if (!is_shown(reader, &item, i)) continue;
    if (shown++ >= MOST_SHOWN) continue;
    if (shown > 1) fputs(", ", stdout);
    if (json) print_json_item(reader, &item);
    else print_text_item(reader, &item);
  }
  if (json) printf("], \"entries\": %u, \"damaged_entries\": %u", reader->count, damaged);
  else if (shown > MOST_SHOWN) printf(", and %u more", shown - MOST_SHOWN);
  if (!json && damaged > 0) printf(", and %u damaged entries", damaged);
}

void dump_tensors(const void *data, size_t bytes, bool json) {
  struct ringcast_frame_reader reader;
  int result = ringcast_frame_open(&reader, data, bytes);
  if (result != 0) {
    const char *why = "not a frame of tensors, or damaged";
    if (result == -EPROTONOSUPPORT) why = "of a later version";
    printf(json ? ", \"error\": \"%s\"" : "  (%s)", why);
    return;
  }
  if (json) printf(", \"tag\": %u, \"items\": [", reader.tag);
  else printf("  tag %u  ", reader.tag);
  print_entries(&reader, json);
}
