/* SPDX-License-Identifier: Apache-2.0 */
/* The frames in tests/vectors: the library reads from each what the .json beside it says, builds
 * the same bytes from what it has read, and refuses those that are damaged. */
#include <errno.h>
#include <glob.h>
#include <inttypes.h>

#include "tests/support/frame_items.h"

enum { MOST_JSON = 8192, GOOD = 23, DAMAGED = 59 }; /* or more */

struct vector {
  const char *path;
  uint8_t *frame; /* a block of exactly its size */
  size_t bytes;
  char json[MOST_JSON];
};

static size_t file_read(const char *path, void *out, size_t most) {
  FILE *file = fopen(path, "rb");
  ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
  size_t bytes = fread(out, 1, most, file);
  ck_assert_msg(bytes < most, "%s is too long", path);
  fclose(file);
  return bytes;
}

/* What a nested value means is left out: test_object reads its tokens, and the reader in Python all
 * of it. */
static void without_values(char *json) {
  for (char *object = json; (object = strstr(object, "{\"kind\": \"object\"")); object++) {
    char *value = strstr(object, ", \"value\": "), *end = strchr(object, '\n') - 1;
    end -= *end == ',';
    memmove(value, end, strlen(end) + 1);
  }
}

static bool is_damaged(const char *path) { return strstr(path, "/bad-"); }

static void vector_open(struct vector *vector, const char *path) {
  static uint8_t content[MOST_JSON];
  char json[4096];
  *vector = (struct vector){.path = path, .bytes = file_read(path, content, sizeof content)};
  vector->frame = malloc(vector->bytes);
  memcpy(vector->frame, content, vector->bytes);
  snprintf(json, sizeof json, "%.*s.json", (int)(strlen(path) - strlen(".bin")), path);
  if (!is_damaged(path)) file_read(json, vector->json, sizeof vector->json - 1);
  without_values(vector->json);
}

/* Calls `body` with each vector that is damaged, or with each that is not. */
static void for_each_vector(bool damaged, void (*body)(const struct vector *)) {
  static struct vector vector;
  int seen = 0;
  glob_t found;
  ck_assert_int_eq(glob("tests/vectors/*.bin", 0, NULL, &found), 0);
  for (size_t i = 0; i < found.gl_pathc; i++) {
    if (is_damaged(found.gl_pathv[i]) != damaged) continue;
    vector_open(&vector, found.gl_pathv[i]);
    body(&vector), seen++;
    free(vector.frame);
  }
  globfree(&found);
  ck_assert_int_ge(seen, damaged ? DAMAGED : GOOD);
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* What of an OBJECT is seen without decoding it: its stream is one value, and uses each of its
 * parts. */
static int object_check(const struct ringcast_frame_reader *reader,
                        const struct ringcast_item *item) {
  struct ringcast_object_needs needs;
  struct ringcast_item part;
  uint32_t first = (uint32_t)item->scalar.i, parts = (uint32_t)((uint64_t)item->scalar.i >> 32);
  int rc = ringcast_object_check(item->data, item->bytes, &needs);
  if (rc < 0 || needs.parts != parts) return -EPROTO;
  for (uint32_t i = first; i < first + parts; i++) {
    if (ringcast_frame_item(reader, i, &part) < 0 || part.key) return -EPROTO;
    if (part.kind != RINGCAST_ITEM_TENSOR && part.kind != RINGCAST_ITEM_STR &&
        part.kind != RINGCAST_ITEM_BYTES)
      return -EPROTO;
  }
  return 0;
}

static int entry_read(const struct ringcast_frame_reader *reader, uint32_t index,
                      struct ringcast_item *out) {
  int rc = ringcast_frame_item(reader, index, out);
  return rc == 0 && out->kind == RINGCAST_ITEM_OBJECT ? object_check(reader, out) : rc;
}

static struct ringcast_frame_reader vector_read(const struct vector *vector) {
  struct ringcast_frame_reader reader;
  ck_assert_msg(ringcast_frame_open(&reader, vector->frame, vector->bytes) == 0, "%s is refused",
                vector->path);
  return reader;
}

static void is_refused(const struct vector *vector) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  int rc = ringcast_frame_open(&reader, vector->frame, vector->bytes);
  if (strstr(vector->path, "bad-version.bin")) { /* the caller is told which version it is */
    ck_assert_int_eq(rc, -EPROTONOSUPPORT);
    ck_assert_uint_eq(reader.version, RINGCAST_FRAME_VERSION + 1);
    return;
  }
  for (uint32_t i = 0; rc == 0 && i < reader.count; i++) rc = entry_read(&reader, i, &item);
  ck_assert_msg(rc == -EPROTO, "%s: %d", vector->path, rc);
}

TEST(a_damaged_frame_is_refused) { for_each_vector(true, is_refused); }

/* ---- Meaning --------------------------------------------------------------------------------- */

static void print_list(FILE *out, const char *name, const int64_t *list, int32_t count) {
  fprintf(out, ", \"%s\": [", name);
  for (int32_t i = 0; i < count; i++) fprintf(out, "%s%" PRId64, i ? ", " : "", list[i]);
  fprintf(out, "]");
}

static void print_flags(FILE *out, uint32_t flags) {
  static const char *const names[] = {"keyed",     "numpy",    "torch",  "requires_grad",
                                      "parameter", "readonly", "sha256", "xxh3",
                                      "padded",    "cuda",     "cupy",   "jax"};
  bool any = false;
  for (int i = 1; i < (int)(sizeof names / sizeof *names); i++)
    if (flags & (1u << i))
      fprintf(out, "%s\"%s\"", any ? ", " : ", \"flags\": [", names[i]), any = true;
  if (any) fprintf(out, "]");
}

static void print_hex(FILE *out, const uint8_t *data, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i++) fprintf(out, "%02x", data[i]);
}

static void print_data(FILE *out, const struct ringcast_item *item) {
  if (item->placement == RINGCAST_PLACEMENT_INLINE) {
    fprintf(out, ", \"data\": \"");
    print_hex(out, item->data, item->bytes);
    fprintf(out, "\"");
    return;
  }
  fprintf(out, ", \"placement\": \"pool\", \"offset\": %" PRIu64, item->device_offset);
  fprintf(out, ", \"bytes\": %" PRIu64, item->bytes);
}

static void print_item(FILE *out, const struct ringcast_item *item) {
  static const char *const kinds[] = {"",     "none",  "bool",   "int",    "float",
                                      "str",  "bytes", "tensor", "pickle", "buffer",
                                      "leaf", "error", "object"};
  fprintf(out, "\n    {\"kind\": \"%s\"", kinds[item->kind]);
  if (item->key) fprintf(out, ", \"key\": \"%.*s\"", (int)item->key_bytes, (const char *)item->key);
  switch (item->kind) {
  case RINGCAST_ITEM_NONE: break;
  case RINGCAST_ITEM_BOOL:
    fprintf(out, ", \"value\": %s", item->scalar.i ? "true" : "false");
    break;
  case RINGCAST_ITEM_INT:
  case RINGCAST_ITEM_LEAF: fprintf(out, ", \"value\": %" PRId64, item->scalar.i); break;
  case RINGCAST_ITEM_FLOAT:
    fprintf(out, ", \"bits\": \"%016" PRIx64 "\"", (uint64_t)item->scalar.i);
    break;
  case RINGCAST_ITEM_STR:
  case RINGCAST_ITEM_ERROR:
    fprintf(out, ", \"text\": \"%.*s\"", (int)item->bytes, (const char *)item->data);
    break;
  case RINGCAST_ITEM_OBJECT:
    fprintf(out, ", \"first\": %" PRIu32 ", \"parts\": %" PRIu32, (uint32_t)item->scalar.i,
            (uint32_t)((uint64_t)item->scalar.i >> 32));
    break;
  case RINGCAST_ITEM_TENSOR:
    fprintf(out, ", \"dtype\": [%u, %u, %u]", item->dtype.code, item->dtype.bits,
            item->dtype.lanes);
    print_list(out, "shape", item->shape, item->ndim);
    print_list(out, "strides", item->strides, item->ndim);
    print_data(out, item);
    break;
  default: print_data(out, item); break;
  }
  print_flags(out, item->flags);
  if (item->flags & HASHES) fprintf(out, ", \"hash\": \"%016" PRIx64 "\"", item->hash);
  fprintf(out, "}");
}

static void means_what_its_json_says(const struct vector *vector) {
  struct ringcast_frame_reader reader = vector_read(vector);
  struct ringcast_item item;
  char *found = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&found, &bytes);
  fprintf(out, "  \"version\": %u,\n", reader.version);
  fprintf(out, "  \"root\": \"%s\",\n", reader.root == RINGCAST_ROOT_DICT ? "dict" : "value");
  fprintf(out, "  \"tag\": %" PRIu32 ",\n", reader.tag);
  if (reader.device_epoch)
    fprintf(out,
            "  \"device\": {\"slot\": %" PRIu32 ", \"epoch\": %" PRIu32 ", \"generation\": %" PRIu64
            "},\n",
            reader.device_slot, reader.device_epoch, reader.device_generation);
  fprintf(out, "  \"entries\": [");
  for (uint32_t i = 0; i < reader.count; i++) {
    ck_assert_msg(entry_read(&reader, i, &item) == 0, "%s: entry %u is refused", vector->path, i);
    if (i > 0) fprintf(out, ",");
    print_item(out, &item);
  }
  fprintf(out, "%s]\n}\n", reader.count ? "\n  " : "");
  fclose(out);
  const char *expected = strstr(vector->json, "  \"version\": ");
  ck_assert_msg(expected && strcmp(found, expected) == 0, "%s means\n%s", vector->path, found);
  free(found);
}

TEST(a_stored_frame_means_what_its_json_says) { for_each_vector(false, means_what_its_json_says); }

/* ---- Building -------------------------------------------------------------------------------- */

static void is_built_with_the_same_bytes(const struct vector *vector) {
  static uint8_t built[MOST_JSON];
  struct ringcast_frame_reader reader = vector_read(vector);
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_item item;
  size_t bytes;
  if (strstr(vector->path, "/strided.bin")) return; /* no builder makes it */
  for (uint32_t i = 0; i < reader.count && ringcast_frame_item(&reader, i, &item) == 0; i++)
    item_plan(&plan, &item);
  memset(built, 0xaa, sizeof built);
  ck_assert_int_eq(
      ringcast_build_begin(&builder, built, sizeof built, &plan, reader.root, reader.tag), 0);
  if (reader.device_epoch)
    ck_assert_int_eq(ringcast_build_device(&builder, reader.device_slot, reader.device_epoch,
                                           reader.device_generation),
                     0);
  for (uint32_t i = 0; i < reader.count && ringcast_frame_item(&reader, i, &item) == 0; i++)
    ck_assert_msg(item_build(&builder, &item) == 0, "%s: entry %u can't be built", vector->path, i);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_uint_eq(bytes, ringcast_plan_bytes(&plan));
  ck_assert_msg(bytes == vector->bytes && memcmp(built, vector->frame, bytes) == 0,
                "%s has other bytes", vector->path);
}

TEST(what_was_read_is_built_with_the_same_bytes) {
  for_each_vector(false, is_built_with_the_same_bytes);
}

RUN_TESTS("frame vectors", NULL, NULL)
