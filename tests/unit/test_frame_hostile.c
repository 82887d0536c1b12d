/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of somebody else: of an earlier version, with fields that lie, cut short, changed at
 * random, and changed while they are read. What is honest is read as it is meant, and built again
 * with the same bytes; of what lies just that is refused, and nothing leads out of the frame. The
 * frames are those of tests/vectors/hostile.py. */
#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>

#include "tests/support/children.h"
#include "tests/support/frame_items.h"
#include "tests/support/hostile.h"
#define require ck_assert
#include "tests/support/frame_walk.h"

#define FRAMES RINGCAST_HOSTILE "/frames.txt"

/* Reads whatever there is. Returns how many entries were good, or -EPROTO if the frame as a whole
 * was not. */
static int walk(const uint8_t *frame, size_t bytes) {
  static const char *const keys[] = {"int", "tensor", "int4", "leaf", "pool", "missing"};
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  int good = 0;
  int rc = ringcast_frame_open(&reader, frame, bytes);
  if (rc < 0) {
    require(rc == -EPROTO || (rc == -EPROTONOSUPPORT && reader.version > RINGCAST_FRAME_VERSION));
    return -EPROTO;
  }
  for (uint32_t i = 0; i < reader.count; i++) {
    rc = ringcast_frame_item(&reader, i, &item);
    require(rc == 0 || rc == -EPROTO);
    if (rc < 0) continue;
    inspect_item(&reader, &item);
    good++;
  }
  require(ringcast_frame_item(&reader, reader.count, &item) == -ENOENT);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    rc = ringcast_frame_find(&reader, keys[i], strlen(keys[i]), &item);
    require(rc == 0 || rc == -ENOENT || rc == -EPROTO);
    if (rc == 0) inspect_item(&reader, &item);
  }
  return good;
}

/* ---- What is refused ------------------------------------------------------------------------- */

/* Whether the number of an entry stands in this text: what is good refuses none. */
static bool is_named(const char *text, uint32_t number) {
  for (char *end; *text; text = end + strspn(end, " ")) {
    unsigned long found = strtoul(text, &end, 10);
    if (end == text) return false;
    if (found == number) return true;
  }
  return false;
}

static void expect(const struct hostile *of, const char *expected) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  int opened = 0;
  if (strcmp(expected, "open") == 0) opened = -EPROTO;
  if (strcmp(expected, "version") == 0) opened = -EPROTONOSUPPORT;
  int rc = ringcast_frame_open(&reader, of->data, of->bytes);
  ck_assert_msg(rc == opened, "%s: %d", of->told, rc);
  if (rc == -EPROTONOSUPPORT) ck_assert_uint_gt(reader.version, RINGCAST_FRAME_VERSION);
  if (rc < 0) return;
  for (uint32_t i = 0; i < reader.count; i++) {
    bool is_refused = is_named(expected, i);
    memset(&item, 0xa5, sizeof item);
    rc = ringcast_frame_item(&reader, i, &item);
    ck_assert_msg(rc == (is_refused ? -EPROTO : 0), "%s: entry %u: %d", of->told, i, rc);
    if (is_refused) ck_assert_uint_eq(others_than(0xa5, &item, sizeof item), 0);
  }
  walk(of->data, of->bytes);
}

TEST(of_each_lie_just_what_it_is_about_is_refused) {
  int lies = 0;
  struct hostile *all = hostile_open(FRAMES);
  while (hostile_next(all)) {
    expect(all, strstr(all->told, " # ") + 3);
    lies++;
  }
  ck_assert_int_gt(lies, 250);
}

/* Calls `body` with each frame that is good. */
static void for_each_good(void (*body)(struct hostile *)) {
  struct hostile *all = hostile_open(FRAMES);
  while (hostile_next(all))
    if (strstr(all->told, " # good")) body(all);
}

static void is_refused_at_any_other_length(struct hostile *of) {
  int whole = walk(of->data, of->bytes);
  const uint64_t longer = of->bytes + 1;
  for (uint64_t length = 0; length <= longer; length++) {
    if (length == of->bytes) continue;
    uint8_t *cut = calloc(1, length ? length : 1);
    memcpy(cut, of->data, length < longer ? length : of->bytes);
    ck_assert_int_eq(walk(cut, length), -EPROTO);
    if (whole > 0 && length >= sizeof(struct ringcast_frame_header) && length < longer) {
      /* Even when its header agrees. */
      memcpy(cut + offsetof(struct ringcast_frame_header, bytes), &length, sizeof length);
      ck_assert_int_lt(walk(cut, length), whole);
    }
    free(cut);
  }
}

TEST(a_frame_of_another_length_is_refused) { for_each_good(is_refused_at_any_other_length); }

TEST(more_entries_than_there_can_be_are_refused_where_they_have_room) {
  struct ringcast_frame_reader reader;
  /* But only the first page is ever there. */
  size_t bytes = 48 + 64 * ((size_t)RINGCAST_MAX_ENTRIES + 1);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  struct ringcast_frame_header *frame = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  ck_assert_ptr_ne(frame, MAP_FAILED);
  *frame = (struct ringcast_frame_header){.magic = RINGCAST_FRAME_MAGIC,
                                          .version = 1,
                                          .root = 1,
                                          .count = RINGCAST_MAX_ENTRIES,
                                          .bytes = bytes};
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), 0);
  frame->count++;
  ck_assert_int_eq(ringcast_frame_open(&reader, frame, bytes), -EPROTO);
  munmap(frame, bytes);
}

/* ---- What is honest -------------------------------------------------------------------------- */

static void print_list(FILE *out, const int64_t *list, int32_t count) {
  fprintf(out, " [");
  for (int32_t i = 0; i < count; i++) fprintf(out, "%s%" PRId64, i ? ", " : "", list[i]);
  fprintf(out, "]");
}

static void print_hex(FILE *out, const void *data, uint64_t bytes) {
  const uint8_t *from = data;
  fprintf(out, " '");
  for (uint64_t i = 0; from && i < bytes; i++) fprintf(out, "%02x", from[i]);
  fprintf(out, "'");
}

static void print_item(FILE *out, const struct ringcast_item *item) {
  fprintf(out, "= %u %" PRIu32, item->kind, item->flags);
  print_hex(out, item->key, item->key_bytes);
  fprintf(out, " %" PRIu64 " %" PRIu64, (uint64_t)item->scalar.i, item->hash);
  fprintf(out, " %u,%u,%u", item->dtype.code, item->dtype.bits, item->dtype.lanes);
  print_list(out, item->shape, item->ndim);
  print_list(out, item->strides, item->ndim);
  fprintf(out, " %u %" PRIu64 " %" PRIu64, item->placement, item->device_offset, item->bytes);
  print_hex(out, item->data, item->bytes);
}

static void next_line_is(struct hostile *all, char *text) {
  ck_assert(hostile_line(all));
  ck_assert_str_eq(text, all->line);
  free(text);
}

static void means_what_another_reader_read(struct hostile *of) {
  struct ringcast_frame_reader reader;
  struct ringcast_item item;
  char *text = NULL;
  size_t bytes;
  ck_assert_int_eq(ringcast_frame_open(&reader, of->data, of->bytes), 0);
  FILE *out = open_memstream(&text, &bytes);
  fprintf(out, "= %u %u %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu64, reader.version, reader.root,
          reader.tag, reader.device_slot, reader.device_epoch, reader.device_generation);
  fclose(out);
  next_line_is(of, text);
  for (uint32_t i = 0; i < reader.count; i++) {
    ck_assert_int_eq(ringcast_frame_item(&reader, i, &item), 0);
    out = open_memstream(&text, &bytes);
    print_item(out, &item);
    fclose(out);
    next_line_is(of, text);
  }
}

TEST(an_honest_frame_means_what_another_reader_has_read) {
  for_each_good(means_what_another_reader_read);
}

/* The stored ones and those of hostile.py's builder, which no lie has touched. */
static void is_built_with_the_same_bytes(struct hostile *of) {
  static uint8_t built[1 << 14];
  struct ringcast_frame_reader reader;
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_item item;
  size_t bytes;
  bool is_a_builders = !strchr(of->told, ':') && strncmp(of->told, "strided ", 8) != 0 &&
                       strncmp(of->told, "roomy ", 6) != 0;
  if (!is_a_builders) return;
  ck_assert_int_eq(ringcast_frame_open(&reader, of->data, of->bytes), 0);
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
    ck_assert_msg(item_build(&builder, &item) == 0, "%s: entry %u can't be built", of->told, i);
  ck_assert_int_eq(ringcast_build_end(&builder, &bytes), 0);
  ck_assert_uint_eq(bytes, ringcast_plan_bytes(&plan));
  ck_assert_msg(bytes == of->bytes && memcmp(built, of->data, bytes) == 0, "%s: other bytes",
                of->told);
}

TEST(what_was_read_is_built_with_the_same_bytes) { for_each_good(is_built_with_the_same_bytes); }

/* ---- Frames that change ---------------------------------------------------------------------- */

static uint64_t seed = 0xd1342543de82ef95u;

static uint64_t random_below(uint64_t bound) {
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  return (seed * 0x9e3779b97f4a7c15u >> 16) % bound;
}

static uint64_t random_extreme(size_t bytes) {
  static const uint64_t extremes[] = {0,
                                      1,
                                      7,
                                      8,
                                      47,
                                      48,
                                      63,
                                      64,
                                      255,
                                      65535,
                                      INT32_MAX,
                                      UINT32_MAX,
                                      INT64_MAX,
                                      1ull << 31,
                                      1ull << 32,
                                      1ull << 62,
                                      1ull << 63,
                                      UINT64_MAX,
                                      UINT64_MAX - 7,
                                      UINT64_MAX - 63};
  uint64_t pick = random_below(sizeof extremes / sizeof *extremes + 4);
  return pick < sizeof extremes / sizeof *extremes ? extremes[pick] : bytes - 32 + random_below(64);
}

static size_t meta_end(const uint8_t *frame) {
  struct ringcast_frame_header header;
  memcpy(&header, frame, sizeof header);
  return sizeof header + header.count * sizeof(struct ringcast_frame_entry) + header.meta_bytes;
}

/* The honest frame `which`: 0 host, 1 nibbles, 2 device. */
static uint8_t *sample_new(int which, size_t *bytes) {
  static const char *const names[] = {"host #", "nibbles #", "device #"};
  struct hostile *all = hostile_open(FRAMES);
  uint8_t *sample = NULL;
  while (hostile_next(all)) {
    if (strncmp(all->told, names[which], strlen(names[which])) != 0) continue;
    ck_assert_ptr_null(sample); /* a name is of one frame */
    sample = malloc(all->bytes);
    memcpy(sample, all->data, all->bytes);
    *bytes = all->bytes;
  }
  ck_assert_ptr_nonnull(sample);
  return sample;
}

/* One byte anywhere, or a field of 1, 2, 4 or 8 bytes where entries and dimensions are. */
static void mutate(uint8_t *frame, size_t bytes, size_t end) {
  if (random_below(2)) {
    frame[random_below(4) ? random_below(end) : random_below(bytes)] = (uint8_t)random_below(256);
    return;
  }
  size_t size = (size_t)1 << random_below(4);
  uint64_t value = random_extreme(bytes);
  memcpy(frame + random_below(end / size) * size, &value, size);
}

LOOP_TEST(mutated_frames_never_lead_out_of_the_frame, 0, 3) {
  size_t bytes;
  uint8_t *sample = sample_new(_i, &bytes);
  size_t end = meta_end(sample);
  int whole = walk(sample, bytes), rounds = share_of(70000), opened = 0, bad = 0;
  for (int round = 0; round < rounds; round++) {
    uint8_t *frame = malloc(bytes);
    memcpy(frame, sample, bytes);
    for (uint64_t i = random_below(6) + 1; i > 0; i--) mutate(frame, bytes, end);
    if (random_below(4)) { /* else few would open */
      memcpy(frame, sample, offsetof(struct ringcast_frame_header, count));
      memcpy(frame + 16, sample + 16, sizeof(uint64_t));
    }
    int rc = walk(frame, bytes);
    opened += rc >= 0;
    bad += rc >= 0 && rc < whole;
    free(frame);
  }
  /* It did try something. */
  ck_assert(opened > rounds / 4 && opened < rounds && bad > rounds / 8);
  free(sample);
}

struct changing {
  uint8_t *frame;
  size_t bytes, end;
};

/* The writing process: lies and takes it back, for ever. */
static void change_for_ever(void *context) {
  const struct changing *of = context;
  for (;;) {
    size_t size = (size_t)1 << random_below(4), offset = random_below(of->end / size) * size;
    uint64_t truth, value = random_extreme(of->bytes);
    if (offset < sizeof(struct ringcast_frame_header)) continue;
    memcpy(&truth, of->frame + offset, size);
    memcpy(of->frame + offset, &value, size);
    __asm__ volatile("" : : : "memory");
    memcpy(of->frame + offset, &truth, size);
  }
}

LOOP_TEST(a_frame_that_changes_while_it_is_read_never_leads_out_of_it, 0, 3) {
  size_t bytes, page = (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *sample = sample_new(_i, &bytes);
  ck_assert_uint_le(bytes, page);
  uint8_t *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(memory, MAP_FAILED);
  /* The frame ends where nothing may be read. */
  ck_assert_int_eq(mprotect(memory + page, page, PROT_NONE), 0);
  struct changing of = {memory + page - bytes, bytes, meta_end(sample)};
  memcpy(of.frame, sample, bytes);
  pid_t writer = start_child(change_for_ever, &of);
  for (int round = 0; round < share_of(70000); round++) walk(of.frame, bytes);
  kill_child(writer);
  munmap(memory, 2 * page);
  free(sample);
}

RUN_TESTS("hostile frame", NULL, NULL)
