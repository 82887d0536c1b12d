/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames in tests/vectors: tests/support/vectors.h says what they mean. The test builds each anew and finds the
 * same bytes, reads the stored one and finds the same meaning, and finds the .json beside it saying so too.
 *
 *     test_frame_vectors [DIRECTORY]            checks
 *     test_frame_vectors --write [DIRECTORY]    writes them, after the layout or a meaning has changed
 */
#include <errno.h>
#include <inttypes.h>

#include "tests/support/object_text.h"
#include "tests/support/suite.h"
#include "tests/support/vectors.h"

#ifndef RINGCAST_VECTORS
#define RINGCAST_VECTORS "tests/vectors"
#endif
#define MAX_BYTES 8192

static const char *directory = RINGCAST_VECTORS;
static const uint32_t HASHES = RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3;

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
                                     .flags = entry->flags & ~HASHES};
    int rc = entry->placement == RINGCAST_PLACEMENT_INLINE
                 ? ringcast_build_tensor(builder, entry->key, key_bytes, &tensor)
                 : ringcast_build_device_tensor(builder, entry->key, key_bytes, &tensor, entry->placement,
                                                entry->offset, entry->lent);
    if (rc < 0 || !(entry->flags & HASHES)) return rc;
    return ringcast_build_hash(builder, builder->next - 1, entry->flags & HASHES, entry->hash);
  }
  case RINGCAST_ITEM_FLOAT:
    memcpy(&number, &entry->value, sizeof number);
    return ringcast_build_float(builder, entry->key, key_bytes, number);
  case RINGCAST_ITEM_NONE:
  case RINGCAST_ITEM_BOOL:
  case RINGCAST_ITEM_INT:
  case RINGCAST_ITEM_LEAF: return ringcast_build_scalar(builder, entry->kind, entry->key, key_bytes, entry->value);
  case RINGCAST_ITEM_OBJECT:
    return ringcast_build_object(builder, entry->key, key_bytes, entry->data, entry->bytes, (uint32_t)entry->value,
                                 (uint32_t)((uint64_t)entry->value >> 32), NULL);
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
    if (entry->placement != RINGCAST_PLACEMENT_INLINE) ringcast_plan_device_tensor(&plan, key_bytes, entry->ndim);
    else if (entry->kind == RINGCAST_ITEM_TENSOR) ringcast_plan_tensor(&plan, key_bytes, entry->ndim, entry->bytes);
    else ringcast_plan_item(&plan, key_bytes, entry->bytes);
  }
  memset(memory, 0xaa, MAX_BYTES);
  int rc = ringcast_build_begin(&builder, memory, MAX_BYTES, &plan, vector->root, vector->tag);
  if (rc == 0 && vector->epoch) rc = ringcast_build_device(&builder, vector->slot, vector->epoch, vector->generation);
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
  static const char *const names[] = {"keyed",  "numpy", "torch",  "requires_grad", "parameter", "readonly",
                                      "sha256", "xxh3",  "padded", "cuda",          "cupy",      "jax"};
  bool any = false;
  for (int i = 1; i < (int)(sizeof names / sizeof *names); i++)
    if (flags & (1u << i)) fprintf(out, "%s\"%s\"", any ? ", " : ", \"flags\": [", names[i]), any = true;
  if (any) fprintf(out, "]");
}

/* Of a tensor whose bytes are not in the frame. */
static void print_place(FILE *out, const struct entry *entry) {
  bool is_lent = entry->placement == RINGCAST_PLACEMENT_EXTERN;
  fprintf(out, ", \"placement\": \"%s\", \"offset\": %" PRIu64, is_lent ? "extern" : "pool", entry->offset);
  fprintf(out, ", \"bytes\": %" PRIu64, entry->bytes);
  if (is_lent) fprintf(out, ", \"lent\": %" PRIu64, entry->lent);
}

static void print_entry(FILE *out, const struct entry *entry) {
  static const char *const kinds[] = {"",       "none",   "bool",   "int",  "float", "str",   "bytes",
                                      "tensor", "pickle", "buffer", "leaf", "error", "object"};
  fprintf(out, "{\"kind\": \"%s\"", kinds[entry->kind]);
  if (entry->key) fprintf(out, ", \"key\": \"%s\"", entry->key);
  switch (entry->kind) {
  case RINGCAST_ITEM_NONE: break;
  case RINGCAST_ITEM_BOOL: fprintf(out, ", \"value\": %s", entry->value ? "true" : "false"); break;
  case RINGCAST_ITEM_INT:
  case RINGCAST_ITEM_LEAF: fprintf(out, ", \"value\": %" PRId64, entry->value); break;
  case RINGCAST_ITEM_FLOAT: fprintf(out, ", \"bits\": \"%016" PRIx64 "\"", (uint64_t)entry->value); break;
  case RINGCAST_ITEM_STR:
  case RINGCAST_ITEM_ERROR: fprintf(out, ", \"text\": \"%.*s\"", (int)entry->bytes, (const char *)entry->data); break;
  case RINGCAST_ITEM_OBJECT:
    fprintf(out, ", \"first\": %" PRIu32 ", \"parts\": %" PRIu32 ", \"value\": ", (uint32_t)entry->value,
            (uint32_t)((uint64_t)entry->value >> 32));
    for (const char *at = entry->meaning; *at; at++) fputc(*at == '\'' ? '"' : *at, out);
    break;
  case RINGCAST_ITEM_TENSOR:
    fprintf(out, ", \"dtype\": [%u, %u, %u]", entry->dtype.code, entry->dtype.bits, entry->dtype.lanes);
    print_list(out, "shape", entry->shape, entry->ndim);
    print_list(out, "strides", entry->strides, entry->ndim);
    if (entry->placement != RINGCAST_PLACEMENT_INLINE) {
      print_place(out, entry);
      break;
    }
    /* fall through */
  default:
    fprintf(out, ", \"data\": \"");
    print_hex(out, entry->data, entry->bytes);
    fprintf(out, "\"");
  }
  print_flags(out, entry->flags);
  if (entry->flags & HASHES) fprintf(out, ", \"hash\": \"%016" PRIx64 "\"", entry->hash);
  fprintf(out, "}");
}

static void print_vector(FILE *out, const struct vector *vector) {
  fprintf(out, "{\n  \"about\": \"%s\",\n  \"damaged\": %s", vector->about, vector->damaged ? "true" : "false");
  if (!vector->damaged) {
    fprintf(out, ",\n  \"version\": %u,\n", vector->version ? vector->version : 1);
    fprintf(out, "  \"root\": \"%s\",\n", vector->root == RINGCAST_ROOT_DICT ? "dict" : "value");
    fprintf(out, "  \"tag\": %" PRIu32 ",\n", vector->tag);
    if (vector->epoch)
      fprintf(out, "  \"device\": {\"slot\": %" PRIu32 ", \"epoch\": %" PRIu32 ", \"generation\": %" PRIu64 "},\n",
              vector->slot, vector->epoch, vector->generation);
    fprintf(out, "  \"entries\": [");
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

LOOP_TEST(the_same_content_gives_the_stored_bytes, 0, VECTOR_COUNT) {
  static uint8_t built[MAX_BYTES], stored[MAX_BYTES];
  size_t bytes = vector_build(&VECTORS[_i], built);
  ck_assert_uint_eq(file_read(&VECTORS[_i], ".bin", stored), bytes);
  ck_assert_mem_eq(stored, built, bytes);
}

LOOP_TEST(the_json_says_what_the_frame_means, 0, VECTOR_COUNT) {
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

/* The library's reader of tokens says of it what the table does. */
static void object_compare(const struct ringcast_item *item, const struct entry *entry) {
  static struct object_text text;
  char *found = NULL, *meaning = strdup(entry->meaning);
  size_t bytes = 0;
  for (char *at = meaning; *at; at++) *at = *at == '\'' ? '"' : *at;
  text = (struct object_text){.out = open_memstream(&found, &bytes),
                              .left = {item->data, (const uint8_t *)item->data + item->bytes},
                              .part = (uint32_t)item->scalar.i};
  print_object(&text);
  fclose(text.out);
  ck_assert_str_eq(found, meaning);
  ck_assert_ptr_eq(text.left.at, text.left.end);
  free(found), free(meaning);
}

static void item_compare(const struct ringcast_item *item, const struct entry *entry) {
  ck_assert_uint_eq(item->kind, entry->kind);
  ck_assert_uint_eq(item->flags, entry->flags | (entry->key ? RINGCAST_ITEM_KEYED : 0));
  ck_assert_int_eq(item->key != NULL, entry->key != NULL);
  ck_assert_uint_eq(item->key_bytes, entry->key ? strlen(entry->key) : 0);
  if (item->key_bytes > 0) ck_assert_mem_eq(item->key, entry->key, item->key_bytes);
  ck_assert_int_eq(item->scalar.i, entry->value);
  ck_assert_uint_eq(item->bytes, entry->bytes);
  ck_assert_uint_eq(item->placement, entry->placement);
  ck_assert_uint_eq(item->device_offset, entry->offset);
  ck_assert_uint_eq(item->lent, entry->lent);
  if (item->placement != RINGCAST_PLACEMENT_INLINE) ck_assert_ptr_null(item->data);
  else if (item->bytes > 0) ck_assert_mem_eq(item->data, entry->data, item->bytes);
  ck_assert_mem_eq(&item->dtype, &entry->dtype, sizeof item->dtype);
  ck_assert_uint_eq(item->hash, entry->hash);
  if (item->kind == RINGCAST_ITEM_OBJECT) object_compare(item, entry);
  ck_assert_int_eq(item->ndim, entry->ndim);
  for (int32_t i = 0; i < item->ndim; i++) {
    ck_assert_int_eq(item->shape[i], entry->shape[i]);
    ck_assert_int_eq(item->strides[i], entry->strides[i]);
  }
}

/* What of an OBJECT is seen without decoding it: its stream is one value, and uses each of its parts. */
static int object_check(const struct ringcast_frame_reader *reader, const struct ringcast_item *item) {
  struct ringcast_object_needs needs;
  struct ringcast_item part;
  uint32_t first = (uint32_t)item->scalar.i, parts = (uint32_t)((uint64_t)item->scalar.i >> 32);
  int rc = ringcast_object_check(item->data, item->bytes, &needs);
  if (rc < 0 || needs.parts != parts) return -EPROTO;
  for (uint32_t i = first; i < first + parts; i++) {
    if (ringcast_frame_item(reader, i, &part) < 0 || part.key) return -EPROTO;
    if (part.kind != RINGCAST_ITEM_TENSOR && part.kind != RINGCAST_ITEM_STR && part.kind != RINGCAST_ITEM_BYTES)
      return -EPROTO;
  }
  return 0;
}

static int entry_read(const struct ringcast_frame_reader *reader, uint32_t index, struct ringcast_item *out) {
  int rc = ringcast_frame_item(reader, index, out);
  return rc == 0 && out->kind == RINGCAST_ITEM_OBJECT ? object_check(reader, out) : rc;
}

LOOP_TEST(the_stored_frame_means_the_same, 0, VECTOR_COUNT) {
  static uint8_t stored[MAX_BYTES];
  const struct vector *vector = &VECTORS[_i];
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  size_t bytes = file_read(vector, ".bin", stored);
  int rc = ringcast_frame_open(&reader, stored, bytes);
  if (rc == -EPROTONOSUPPORT) { /* whoever reads is told which version it takes */
    ck_assert_str_eq(vector->name, "bad-version");
    ck_assert_uint_eq(reader.version, RINGCAST_FRAME_VERSION + 1);
    return;
  }
  if (vector->damaged) {
    for (uint32_t i = 0; rc == 0 && i < vector->count; i++) rc = entry_read(&reader, i, &item);
    ck_assert_int_eq(rc, -EPROTO);
    return;
  }
  ck_assert_int_eq(rc, 0);
  ck_assert_uint_eq(reader.version, vector->version ? vector->version : 1);
  ck_assert_uint_eq(reader.root, vector->root);
  ck_assert_uint_eq(reader.tag, vector->tag);
  ck_assert_uint_eq(reader.device_slot, vector->slot);
  ck_assert_uint_eq(reader.device_epoch, vector->epoch);
  ck_assert_uint_eq(reader.device_generation, vector->generation);
  ck_assert_uint_eq(reader.count, vector->count);
  for (uint32_t i = 0; i < vector->count; i++) {
    ck_assert_int_eq(entry_read(&reader, i, &item), 0);
    item_compare(&item, &vector->entries[i]);
  }
}

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
  return run_tests("frame vectors", NULL, NULL);
}
