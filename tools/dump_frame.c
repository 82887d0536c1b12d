/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "tools/dump.h"
#include "tools/text.h"

enum { MOST_SHOWN = 1000 /* entries of a frame */, MOST_KEY = 200 };

/* ---- Words ----------------------------------------------------------------------------------- */

void dump_dtype(struct dump_text *text, struct ringcast_dtype dtype) {
  static const char *const plain[] = {"int",    "uint",    "float", "opaque",
                                      "bfloat", "complex", "bool"};
  static const char *const small[] = {"float8_e3m4",     "float8_e4m3",     "float8_e4m3b11fnuz",
                                      "float8_e4m3fn",   "float8_e4m3fnuz", "float8_e5m2",
                                      "float8_e5m2fnuz", "float8_e8m0fnu",  "float6_e2m3fn",
                                      "float6_e3m2fn",   "float4_e2m1fn"};
  if (dtype.code == 6 && dtype.bits == 8) dump_put(text, "bool");
  else if (dtype.code < 7) dump_put(text, "%s%u", plain[dtype.code], dtype.bits);
  else if (dtype.code < 18) dump_put(text, "%s", small[dtype.code - 7]);
  else dump_put(text, "dtype%u_%u", dtype.code, dtype.bits);
  if (dtype.lanes != 1) dump_put(text, "x%u", dtype.lanes);
}

void dump_shape(struct dump_text *text, const struct ringcast_item *item) {
  dump_put(text, "[");
  for (int32_t i = 0; i < item->ndim; i++)
    dump_put(text, "%s%" PRId64, i > 0 ? ", " : "", item->shape[i]);
  dump_put(text, "]");
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
  return kind < sizeof names / sizeof *names && names[kind] ? names[kind] : "unknown";
}

/* The value of a short entry; nothing for a tensor. */
static void put_value(struct dump_text *text, const struct ringcast_frame_reader *reader,
                      const struct ringcast_item *item) {
  switch (item->kind) {
  case RINGCAST_ITEM_NONE: dump_put(text, "None"); break;
  case RINGCAST_ITEM_BOOL: dump_put(text, item->scalar.i ? "True" : "False"); break;
  case RINGCAST_ITEM_INT: dump_put(text, "%" PRId64, item->scalar.i); break;
  case RINGCAST_ITEM_FLOAT: dump_put(text, "%g", item->scalar.f); break;
  case RINGCAST_ITEM_STR:
  case RINGCAST_ITEM_ERROR:
    if (item->data) dump_quote(text, item->data, item->bytes, MOST_KEY);
    break;
  case RINGCAST_ITEM_OBJECT: dump_value(text, reader, item); break;
  case RINGCAST_ITEM_LEAF: dump_put(text, "a pickle, not loaded"); break;
  default: break;
  }
}

static void print_text_item(const struct ringcast_frame_reader *reader,
                            const struct ringcast_item *item) {
  struct dump_text key = {0}, text = {0};
  if (item->key) dump_quote(&key, item->key, item->key_bytes, MOST_KEY);
  if (item->kind == RINGCAST_ITEM_TENSOR) {
    dump_dtype(&text, item->dtype);
    dump_shape(&text, item);
    dump_put(&text, " %" PRIu64 " B%s", item->bytes,
             item->placement != RINGCAST_PLACEMENT_INLINE ? " on the device" : "");
  } else put_value(&text, reader, item);
  if (text.used == 0) dump_put(&text, "%" PRIu64 " B of %s", item->bytes, kind_name(item->kind));
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
    dump_dtype(&text, item->dtype);
    printf(", \"dtype\": \"%s\", \"shape\": [", text.data);
    for (int32_t i = 0; i < item->ndim; i++)
      printf("%s%" PRId64, i > 0 ? ", " : "", item->shape[i]);
    printf("], \"device\": %s", item->placement != RINGCAST_PLACEMENT_INLINE ? "true" : "false");
  } else put_value(&text, reader, item);
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
  return reader->root == RINGCAST_ROOT_DICT ? (item->flags & RINGCAST_ITEM_KEYED) != 0 : index == 0;
}

/* Writers give each key and value bytes of its own. Entries that share bytes are damage: a small
 * frame of them would be gigabytes of text, or hours of checks. */
static bool takes_its_own(const struct ringcast_item *item, uint64_t *left) {
  uint64_t bytes = item->key ? item->key_bytes : 0;
  if (item->data && item->kind != RINGCAST_ITEM_TENSOR) bytes += item->bytes;
  if (bytes > *left) return false;
  *left -= bytes;
  return true;
}

static void print_entries(const struct ringcast_frame_reader *reader, bool json) {
  uint32_t shown = 0, damaged = 0;
  uint64_t left = reader->bytes;
  for (uint32_t i = 0; i < reader->count && !dump_is_stopped(); i++) {
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
    const char *why =
        result == -EPROTONOSUPPORT ? "of a later version" : "not a frame of tensors, or damaged";
    printf(json ? ", \"error\": \"%s\"" : "  (%s)", why);
    return;
  }
  if (json) printf(", \"tag\": %u, \"items\": [", reader.tag);
  else printf("  tag %u  ", reader.tag);
  print_entries(&reader, json);
}
