/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames in tests/vectors: this file says what they mean. The test builds each anew and finds the same bytes, reads
 * the stored one and finds the same meaning, and finds the .json beside it saying so too.
 *
 *     test_frame_vectors [DIRECTORY]            checks
 *     test_frame_vectors --write [DIRECTORY]    writes them, after the layout or a meaning has changed
 */
#include <check.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ringcast/frame.h"

#ifndef RINGCAST_VECTORS
#define RINGCAST_VECTORS "tests/vectors"
#endif
#define MAX_BYTES           8192
#define HEADER(field)       offsetof(struct ringcast_frame_header, field)
#define ENTRY(index, field) (48 + 64 * (index) + offsetof(struct ringcast_frame_entry, field))

static const char *directory = RINGCAST_VECTORS;

struct entry {
  uint16_t kind;
  const char *key; /* NULL: none */
  uint32_t flags;
  const void *data; /* as the frame has it */
  uint64_t bytes;
  int64_t value; /* of FLOAT: the bits */
  struct ringcast_dtype dtype;
  int32_t ndim;
  int64_t shape[RINGCAST_MAX_NDIM], strides[RINGCAST_MAX_NDIM];
  const void *source; /* of a tensor that isn't in C order before it is sent; else NULL */
  int64_t source_strides[3];
};

struct vector {
  const char *name, *about;
  enum ringcast_root root;
  uint32_t tag;
  struct entry entries[6];
  uint32_t count;
  /* What is overwritten after building: what no builder makes. */
  size_t patch_offset, patch_bytes;
  uint8_t patch[32];
  bool damaged; /* so that a reader must refuse the header or an entry */
};

static const uint8_t COUNTING[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                     16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
#define F32 \
  { 2, 32, 1 }
#define DICT(number)  .root = RINGCAST_ROOT_DICT, .tag = (number)
#define VALUE(number) .root = RINGCAST_ROOT_VALUE, .tag = (number)
#define ONE_TENSOR                                    \
  DICT(1), .count = 1,                                \
           .entries = {{.kind = RINGCAST_ITEM_TENSOR, \
                        .key = "t",                   \
                        .dtype = F32,                 \
                        .ndim = 2,                    \
                        .shape = {2, 3},              \
                        .strides = {3, 1},            \
                        .data = COUNTING,             \
                        .bytes = 24}}
#define PATCH(where, ...) \
  .patch_offset = (where), .patch = {__VA_ARGS__}, .patch_bytes = sizeof((uint8_t[]){__VA_ARGS__})
#define WORD(value) (value), 0, 0, 0, 0, 0, 0, 0

/* clang-format off */
static const struct vector VECTORS[] = {
    {.name = "empty-dict", .about = "A dict without items: nothing but the header.", DICT(0)},
    {.name = "scalars", .about = "Entries without data. The frame ends with its keys.", DICT(0xffffffffu), .count = 6,
     .entries = {{.kind = RINGCAST_ITEM_NONE, .key = "none"},
                 {.kind = RINGCAST_ITEM_BOOL, .key = "true", .value = 1},
                 {.kind = RINGCAST_ITEM_BOOL, .key = "false"},
                 {.kind = RINGCAST_ITEM_INT, .key = "lowest", .value = INT64_MIN},
                 {.kind = RINGCAST_ITEM_INT, .key = "highest", .value = INT64_MAX},
                 {.kind = RINGCAST_ITEM_INT, .key = "", .value = -1}}},
    {.name = "floats", .about = "0.1, -0.0, infinity, a NaN whose payload is kept, the least subnormal.", DICT(7),
     .count = 5,
     .entries = {{.kind = RINGCAST_ITEM_FLOAT, .key = "a", .value = 0x3fb999999999999a},
                 {.kind = RINGCAST_ITEM_FLOAT, .key = "b", .value = INT64_MIN},
                 {.kind = RINGCAST_ITEM_FLOAT, .key = "c", .value = 0x7ff0000000000000},
                 {.kind = RINGCAST_ITEM_FLOAT, .key = "d", .value = 0x7ff8000000000123},
                 {.kind = RINGCAST_ITEM_FLOAT, .key = "e", .value = 1}}},
    {.name = "text-and-bytes", .about = "Data on 8 bytes; what is empty has offset 0; keys are UTF-8.", DICT(2),
     .count = 6,
     .entries = {{.kind = RINGCAST_ITEM_STR, .key = "clé", .data = "d\xc3\xa9j\xc3\xa0 vu", .bytes = 9},
                 {.kind = RINGCAST_ITEM_STR, .key = "empty", .data = "", .bytes = 0},
                 {.kind = RINGCAST_ITEM_BYTES, .key = "zeros", .data = "\0\0\0\0\0\0\0\0", .bytes = 8},
                 {.kind = RINGCAST_ITEM_BYTES, .key = "one", .data = "\xff", .bytes = 1,
                  .flags = RINGCAST_ITEM_READONLY},
                 {.kind = RINGCAST_ITEM_BYTES, .key = "none", .data = "", .bytes = 0},
                 {.kind = RINGCAST_ITEM_STR, .key = "鍵", .data = "\xe5\x80\xa4", .bytes = 3}}},
    {.name = "tensors", .about = "Each tensor on a line: float32, bfloat16, 0-d int64, empty, bool, complex64.",
     DICT(3), .count = 6,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "float32", .flags = RINGCAST_ITEM_TORCH, .dtype = F32, .ndim = 2,
                  .shape = {2, 3}, .strides = {3, 1}, .data = COUNTING, .bytes = 24},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "bfloat16", .dtype = {4, 16, 1}, .ndim = 1, .shape = {3},
                  .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_REQUIRES_GRAD | RINGCAST_ITEM_PARAMETER,
                  .strides = {1}, .data = COUNTING, .bytes = 6},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "0-d", .flags = RINGCAST_ITEM_NUMPY, .dtype = {0, 64, 1},
                  .data = COUNTING, .bytes = 8},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "empty", .flags = RINGCAST_ITEM_NUMPY, .dtype = F32, .ndim = 3,
                  .shape = {2, 0, 4}, .strides = {4, 4, 1}, .data = "", .bytes = 0},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "bool", .dtype = {6, 8, 1}, .ndim = 1, .shape = {3},
                  .strides = {1}, .data = "\1\0\1", .bytes = 3},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "complex64", .dtype = {5, 64, 1}, .ndim = 1, .shape = {2},
                  .strides = {1}, .data = COUNTING, .bytes = 16}}},
    {.name = "bits", .about = "Less than a byte each: five int4, nine fp6; and fp4 in pairs, which are whole bytes.",
     DICT(4), .count = 3,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "int4", .dtype = {0, 4, 1}, .ndim = 1, .shape = {5},
                  .strides = {1}, .data = "\x21\x43\x05", .bytes = 3},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "fp6", .dtype = {15, 6, 1}, .ndim = 2, .shape = {3, 3},
                  .strides = {3, 1}, .data = COUNTING, .bytes = 7},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "fp4x2", .dtype = {17, 4, 2}, .ndim = 1, .shape = {3},
                  .strides = {1}, .data = COUNTING, .bytes = 3}}},
    {.name = "padded", .about = "Less than a byte each, in a byte of their own: uint4 from a transposed tensor, int1.",
     DICT(4), .count = 2,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "uint4", .dtype = {1, 4, 1}, .ndim = 2, .shape = {3, 2},
                  .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_PADDED, .strides = {2, 1}, .data = "\0\3\1\4\2\5",
                  .bytes = 6, .source = COUNTING, .source_strides = {1, 3}},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "int1", .dtype = {0, 1, 1}, .ndim = 1, .shape = {3},
                  .flags = RINGCAST_ITEM_PADDED, .strides = {1}, .data = "\0\1\0", .bytes = 3}}},
    {.name = "packed", .about = "Sent from a transposed tensor and from a reversed one: in C order when it arrives.",
     DICT(5), .count = 2,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "transposed", .dtype = {1, 8, 1}, .ndim = 2, .shape = {3, 2},
                  .strides = {2, 1}, .data = "\0\3\1\4\2\5", .bytes = 6, .source = COUNTING, .source_strides = {1, 3}},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "reversed", .dtype = {1, 16, 1}, .ndim = 1, .shape = {3},
                  .strides = {1}, .data = "\4\5\2\3\0\1", .bytes = 6, .source = COUNTING + 4, .source_strides = {-1}}}},
    {.name = "many-dimensions", .about = "64 dimensions, the most there are.", VALUE(6), .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .dtype = {1, 8, 1}, .ndim = 64, .data = COUNTING, .bytes = 2,
                  .shape = {2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                            1, 1, 1, 1, 1},
                  .strides = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                              1, 1, 1, 1, 1, 1}}}},
    {.name = "value", .about = "No dict: entry 0 is the value, a pickle, and the others are its buffers.", VALUE(8),
     .count = 3,
     .entries = {{.kind = RINGCAST_ITEM_PICKLE, .data = "\x80\x05N.", .bytes = 4},
                 {.kind = RINGCAST_ITEM_BUFFER, .data = COUNTING, .bytes = 17},
                 {.kind = RINGCAST_ITEM_BUFFER, .data = COUNTING, .bytes = 8, .flags = RINGCAST_ITEM_READONLY}}},
    {.name = "leaves", .about = "Items that index the list in the frame's pickle, which is no item itself.", DICT(9),
     .count = 3,
     .entries = {{.kind = RINGCAST_ITEM_LEAF, .key = "first", .value = 0},
                 {.kind = RINGCAST_ITEM_LEAF, .key = "second", .value = 1},
                 {.kind = RINGCAST_ITEM_PICKLE, .data = "\x80\x05]\x94(K\x01K\x02""e.", .bytes = 10}}},
    {.name = "error", .about = "The sender could not send what was due.", VALUE(10), .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_ERROR, .data = "cannot pickle it", .bytes = 16}}},
    {.name = "strided", .about = "Rows that are four elements apart: no builder makes them, readers take them.",
     DICT(1), .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "t", .dtype = F32, .ndim = 2, .shape = {2, 2}, .strides = {4, 1},
                  .data = COUNTING, .bytes = 24}},
     PATCH(120, WORD(2), WORD(2), WORD(4), WORD(1))},

    {.name = "bad-magic", .about = "Another magic.", ONE_TENSOR, .damaged = true, PATCH(HEADER(magic), 'X')},
    {.name = "bad-version", .about = "A later version.", ONE_TENSOR, .damaged = true, PATCH(HEADER(version), 3)},
    {.name = "bad-root", .about = "An unknown root.", ONE_TENSOR, .damaged = true, PATCH(HEADER(root), 3)},
    {.name = "bad-length", .about = "The header names more bytes than there are.", ONE_TENSOR, .damaged = true,
     PATCH(HEADER(bytes), WORD(255))},
    {.name = "bad-count", .about = "More entries than the frame has room for.", ONE_TENSOR, .damaged = true,
     PATCH(HEADER(count), 255)},
    {.name = "bad-reserved", .about = "A reserved field is not 0.", ONE_TENSOR, .damaged = true,
     PATCH(ENTRY(0, reserved), 1)},
    {.name = "bad-kind", .about = "An unknown kind.", ONE_TENSOR, .damaged = true, PATCH(ENTRY(0, kind), 12)},
    {.name = "bad-flags", .about = "An unknown flag.", ONE_TENSOR, .damaged = true, PATCH(ENTRY(0, flags), 129)},
    {.name = "bad-padding", .about = "The second tensor is padded too, but its elements are whole bytes.", DICT(1),
     .count = 2,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "t", .dtype = {1, 4, 1}, .ndim = 1, .shape = {3},
                  .flags = RINGCAST_ITEM_PADDED, .strides = {1}, .data = COUNTING, .bytes = 3},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "u", .dtype = {1, 8, 1}, .ndim = 1, .shape = {3}, .strides = {1},
                  .data = COUNTING, .bytes = 3}},
     .damaged = true, PATCH(ENTRY(1, flags), 65)},
    {.name = "bad-padded-version", .about = "A padded tensor in version 1, which knows of none.", DICT(1), .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "t", .dtype = {1, 4, 1}, .ndim = 1, .shape = {3},
                  .flags = RINGCAST_ITEM_PADDED, .strides = {1}, .data = COUNTING, .bytes = 3}},
     .damaged = true, PATCH(HEADER(version), 1)},
    {.name = "bad-placement", .about = "An unknown placement.", ONE_TENSOR, .damaged = true,
     PATCH(ENTRY(0, placement), 1)},
    {.name = "bad-key", .about = "The key begins before the meta area.", ONE_TENSOR, .damaged = true,
     PATCH(ENTRY(0, key_offset), 48)},
    {.name = "bad-dimensions", .about = "The dimensions end after the meta area.", ONE_TENSOR, .damaged = true,
     PATCH(ENTRY(0, dims_offset), 128)},
    {.name = "bad-line", .about = "The tensor is 8 bytes off its line.", DICT(1), .count = 2,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "t", .dtype = F32, .ndim = 2, .shape = {2, 3}, .strides = {3, 1},
                  .data = COUNTING, .bytes = 24},
                 {.kind = RINGCAST_ITEM_BUFFER, .data = COUNTING, .bytes = 64}},
     .damaged = true, PATCH(ENTRY(0, offset), WORD(248))},
    {.name = "bad-data", .about = "The data ends after the frame.", ONE_TENSOR, .damaged = true,
     PATCH(ENTRY(0, offset), 240)},
    {.name = "bad-shape", .about = "A negative dimension.", ONE_TENSOR, .damaged = true,
     PATCH(120, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)},
    {.name = "bad-strides", .about = "Strides that lead out of the tensor's data.", ONE_TENSOR, .damaged = true,
     PATCH(136, WORD(4))},
    {.name = "bad-overlap", .about = "Elements share their bytes: packed, they would be longer than the data.",
     ONE_TENSOR, .damaged = true, PATCH(128, WORD(5), WORD(1))},
};
/* clang-format on */
#define VECTOR_COUNT ((int)(sizeof VECTORS / sizeof *VECTORS))

static int entry_build(struct ringcast_frame_builder *builder, const struct entry *entry, const struct vector *vector) {
  size_t key_bytes = entry->key ? strlen(entry->key) : 0;
  int64_t as_built[] = {2, 3}; /* of the strided one, whose dimensions are overwritten afterwards */
  double number;
  switch (entry->kind) {
  case RINGCAST_ITEM_TENSOR: {
    struct ringcast_tensor tensor = {.data = entry->source ? entry->source : entry->data,
                                     .dtype = entry->dtype,
                                     .ndim = entry->ndim,
                                     .shape = vector->patch_bytes == 32 ? as_built : entry->shape,
                                     .strides = entry->source ? entry->source_strides : NULL,
                                     .flags = entry->flags};
    return ringcast_build_tensor(builder, entry->key, key_bytes, &tensor);
  }
  case RINGCAST_ITEM_FLOAT:
    memcpy(&number, &entry->value, sizeof number);
    return ringcast_build_float(builder, entry->key, key_bytes, number);
  case RINGCAST_ITEM_NONE:
  case RINGCAST_ITEM_BOOL:
  case RINGCAST_ITEM_INT:
  case RINGCAST_ITEM_LEAF:
    return ringcast_build_scalar(builder, entry->kind, entry->key, key_bytes, entry->value);
  default:
    return ringcast_build_data(builder, entry->kind, entry->key, key_bytes, entry->data, entry->bytes, entry->flags,
                               NULL);
  }
}

/* Returns the frame's bytes; exits if it can't be built. */
static size_t vector_build(const struct vector *vector, uint8_t *memory) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  size_t bytes = 0;
  for (uint32_t i = 0; i < vector->count; i++) {
    const struct entry *entry = &vector->entries[i];
    size_t key_bytes = entry->key ? strlen(entry->key) : 0;
    if (entry->kind == RINGCAST_ITEM_TENSOR)
      ringcast_plan_tensor(&plan, key_bytes, entry->ndim, entry->bytes);
    else
      ringcast_plan_item(&plan, key_bytes, entry->bytes);
  }
  memset(memory, 0xaa, MAX_BYTES);
  int rc = ringcast_build_begin(&builder, memory, MAX_BYTES, &plan, vector->root, vector->tag);
  for (uint32_t i = 0; i < vector->count && rc == 0; i++) rc = entry_build(&builder, &vector->entries[i], vector);
  if (rc == 0) rc = ringcast_build_end(&builder, &bytes);
  if (rc < 0 || bytes != ringcast_plan_bytes(&plan)) {
    fprintf(stderr, "%s can't be built: %s\n", vector->name, strerror(-rc));
    exit(EXIT_FAILURE);
  }
  memcpy(memory + vector->patch_offset, vector->patch, vector->patch_bytes);
  return bytes;
}

static void print_list(FILE *out, const char *name, const int64_t *list, int32_t count) {
  fprintf(out, ", \"%s\": [", name);
  for (int32_t i = 0; i < count; i++) fprintf(out, "%s%" PRId64, i ? ", " : "", list[i]);
  fprintf(out, "]");
}

static void print_flags(FILE *out, uint32_t flags) {
  static const char *const names[] = {"keyed", "numpy", "torch", "requires_grad", "parameter", "readonly", "padded"};
  bool any = false;
  for (int i = 1; i < 7; i++)
    if (flags & (1u << i)) fprintf(out, "%s\"%s\"", any ? ", " : ", \"flags\": [", names[i]), any = true;
  if (any) fprintf(out, "]");
}

static void print_entry(FILE *out, const struct entry *entry) {
  static const char *const kinds[] = {"",      "none",   "bool",   "int",    "float", "str",
                                      "bytes", "tensor", "pickle", "buffer", "leaf",  "error"};
  fprintf(out, "{\"kind\": \"%s\"", kinds[entry->kind]);
  if (entry->key) fprintf(out, ", \"key\": \"%s\"", entry->key);
  switch (entry->kind) {
  case RINGCAST_ITEM_NONE:
    break;
  case RINGCAST_ITEM_BOOL:
    fprintf(out, ", \"value\": %s", entry->value ? "true" : "false");
    break;
  case RINGCAST_ITEM_INT:
  case RINGCAST_ITEM_LEAF:
    fprintf(out, ", \"value\": %" PRId64, entry->value);
    break;
  case RINGCAST_ITEM_FLOAT:
    fprintf(out, ", \"bits\": \"%016" PRIx64 "\"", (uint64_t)entry->value);
    break;
  case RINGCAST_ITEM_STR:
  case RINGCAST_ITEM_ERROR:
    fprintf(out, ", \"text\": \"%.*s\"", (int)entry->bytes, (const char *)entry->data);
    break;
  case RINGCAST_ITEM_TENSOR:
    fprintf(out, ", \"dtype\": [%u, %u, %u]", entry->dtype.code, entry->dtype.bits, entry->dtype.lanes);
    print_list(out, "shape", entry->shape, entry->ndim);
    print_list(out, "strides", entry->strides, entry->ndim);
    /* fall through */
  default:
    fprintf(out, ", \"data\": \"");
    for (uint64_t i = 0; i < entry->bytes; i++) fprintf(out, "%02x", ((const uint8_t *)entry->data)[i]);
    fprintf(out, "\"");
  }
  print_flags(out, entry->flags);
  fprintf(out, "}");
}

static void print_vector(FILE *out, const struct vector *vector) {
  fprintf(out, "{\n  \"about\": \"%s\",\n  \"damaged\": %s", vector->about, vector->damaged ? "true" : "false");
  if (!vector->damaged) {
    fprintf(out, ",\n  \"root\": \"%s\",\n", vector->root == RINGCAST_ROOT_DICT ? "dict" : "value");
    fprintf(out, "  \"tag\": %" PRIu32 ",\n  \"entries\": [", vector->tag);
    for (uint32_t i = 0; i < vector->count; i++) {
      fprintf(out, "%s\n    ", i ? "," : "");
      print_entry(out, &vector->entries[i]);
    }
    fprintf(out, "%s]", vector->count ? "\n  " : "");
  }
  fprintf(out, "\n}\n");
}

static FILE *vector_open(const struct vector *vector, const char *suffix, const char *mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s%s", directory, vector->name, suffix);
  FILE *file = fopen(path, mode);
  if (!file) {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    exit(EXIT_FAILURE);
  }
  return file;
}

static size_t file_read(const struct vector *vector, const char *suffix, void *out) {
  FILE *file = vector_open(vector, suffix, "rb");
  size_t bytes = fread(out, 1, MAX_BYTES, file);
  fclose(file);
  return bytes;
}

START_TEST(the_same_content_gives_the_stored_bytes) {
  static uint8_t built[MAX_BYTES], stored[MAX_BYTES];
  size_t bytes = vector_build(&VECTORS[_i], built);
  ck_assert_uint_eq(file_read(&VECTORS[_i], ".bin", stored), bytes);
  ck_assert_mem_eq(stored, built, bytes);
}
END_TEST

START_TEST(the_json_says_what_the_frame_means) {
  static char stored[MAX_BYTES];
  char *expected = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&expected, &bytes);
  print_vector(out, &VECTORS[_i]);
  fclose(out);
  ck_assert_uint_eq(file_read(&VECTORS[_i], ".json", stored), bytes);
  ck_assert_mem_eq(stored, expected, bytes);
  free(expected);
}
END_TEST

static void item_compare(const struct ringcast_item *item, const struct entry *entry) {
  ck_assert_uint_eq(item->kind, entry->kind);
  ck_assert_uint_eq(item->flags, entry->flags | (entry->key ? RINGCAST_ITEM_KEYED : 0));
  ck_assert_int_eq(item->key != NULL, entry->key != NULL);
  ck_assert_uint_eq(item->key_bytes, entry->key ? strlen(entry->key) : 0);
  if (item->key_bytes > 0) ck_assert_mem_eq(item->key, entry->key, item->key_bytes);
  ck_assert_int_eq(item->scalar.i, entry->value);
  ck_assert_uint_eq(item->bytes, entry->bytes);
  if (item->bytes > 0) ck_assert_mem_eq(item->data, entry->data, item->bytes);
  ck_assert_mem_eq(&item->dtype, &entry->dtype, sizeof item->dtype);
  ck_assert_int_eq(item->ndim, entry->ndim);
  for (int32_t i = 0; i < item->ndim; i++) {
    ck_assert_int_eq(item->shape[i], entry->shape[i]);
    ck_assert_int_eq(item->strides[i], entry->strides[i]);
  }
}

START_TEST(the_stored_frame_means_the_same) {
  static uint8_t stored[MAX_BYTES];
  const struct vector *vector = &VECTORS[_i];
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  size_t bytes = file_read(vector, ".bin", stored);
  int rc = ringcast_frame_open(&reader, stored, bytes);
  if (vector->damaged) {
    for (uint32_t i = 0; rc == 0 && i < vector->count; i++) rc = ringcast_frame_item(&reader, i, &item);
    ck_assert(rc == -EPROTO || rc == -EPROTONOSUPPORT);
    return;
  }
  ck_assert_int_eq(rc, 0);
  ck_assert_uint_eq(reader.root, vector->root);
  ck_assert_uint_eq(reader.tag, vector->tag);
  ck_assert_uint_eq(reader.count, vector->count);
  for (uint32_t i = 0; i < vector->count; i++) {
    ck_assert_int_eq(ringcast_frame_item(&reader, i, &item), 0);
    item_compare(&item, &vector->entries[i]);
  }
}
END_TEST

static void vectors_write(void) {
  static uint8_t built[MAX_BYTES];
  for (int i = 0; i < VECTOR_COUNT; i++) {
    size_t bytes = vector_build(&VECTORS[i], built);
    FILE *bin = vector_open(&VECTORS[i], ".bin", "wb"), *json = vector_open(&VECTORS[i], ".json", "w");
    bool ok = fwrite(built, 1, bytes, bin) == bytes;
    print_vector(json, &VECTORS[i]);
    if (fclose(bin) != 0 || fclose(json) != 0 || !ok) {
      fprintf(stderr, "%s can't be written\n", VECTORS[i].name);
      exit(EXIT_FAILURE);
    }
  }
}

int main(int argc, char **argv) {
  bool write = argc > 1 && strcmp(argv[1], "--write") == 0;
  if (argc > 1 + write) directory = argv[1 + write];
  if (write) {
    vectors_write();
    return EXIT_SUCCESS;
  }
  Suite *suite = suite_create("frame vectors");
  TCase *tests = tcase_create("vectors");
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, the_same_content_gives_the_stored_bytes, 0, VECTOR_COUNT);
  tcase_add_loop_test(tests, the_json_says_what_the_frame_means, 0, VECTOR_COUNT);
  tcase_add_loop_test(tests, the_stored_frame_means_the_same, 0, VECTOR_COUNT);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
