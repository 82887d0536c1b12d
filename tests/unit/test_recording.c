/* SPDX-License-Identifier: Apache-2.0 */
/* The writing of a recording, read back: frames of all sizes, kept, dropped and flushed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/pattern.h"
#include "tests/support/suite.h"
#include "tools/recording.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MOST = 4096, BUFFER = 65536, CHUNK = BUFFER / 4, HUGE_FRAME = 6 * CHUNK };

/* What the file has to hold. */
struct expected {
  uint64_t bytes, seed;
};

static char path[64];
static struct recording_writer *writer;
static struct recording_sum sum; /* what the writer has kept */
static struct expected kept[MOST];
static int kept_count, gaps;
static uint8_t data[HUGE_FRAME + 64];

static void fill(uint64_t seed, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i++) data[i] = (uint8_t)mix(seed * 7919 + i / 8);
}

static void open_file(void) {
  char why[256];
  snprintf(path, sizeof path, "/tmp/test_recording.%d", (int)getpid());
  unlink(path); /* of a test that failed */
  const struct recording_header header = {.id = 1234567, .capacity = 1 << 20, .name = "a.ring"};
  ck_assert_msg(recording_create(path, BUFFER, &header, &writer, why) == 0, "%s", why);
  kept_count = gaps = 0;
}

/* With its lock. */
static void close_file(void) {
  sum = *recording_sum_of(writer);
  recording_destroy(writer);
}

static void copy(uint64_t seed, uint64_t bytes) {
  fill(seed, bytes);
  ck_assert_int_eq(
      recording_copy(writer, (uint16_t)(seed % 3), data, bytes, seed * 64, (int64_t)seed), 0);
}

static void copy_and_keep(uint64_t seed, uint64_t bytes, int *result) {
  fill(seed, bytes);
  *result = recording_copy(writer, (uint16_t)(seed % 3), data, bytes, seed * 64, (int64_t)seed);
  if (*result == 0) *result = recording_keep(writer);
  kept[kept_count++] = (struct expected){.bytes = bytes, .seed = seed};
}

/* Whether the frame is whole. */
static bool check_frame(struct recording *recording, const struct recording_item *item,
                        int number) {
  static uint8_t found[HUGE_FRAME + 64];
  const struct expected *frame = &kept[number];
  ck_assert_int_lt(number, kept_count);
  ck_assert_uint_eq(item->record.bytes, frame->bytes);
  ck_assert_uint_eq(item->record.number, (uint64_t)number);
  ck_assert_uint_eq(item->record.position, frame->seed * 64);
  ck_assert_uint_eq(item->record.kind, frame->seed % 3);
  if (recording_load(recording, found) != 0) return false;
  fill(frame->seed, frame->bytes);
  ck_assert_mem_eq(found, data, frame->bytes);
  return true;
}

/* Reads the file. Returns the number of frames. */
static int read_back(bool ended) {
  struct recording *recording;
  struct recording_item item;
  char why[256];
  int found, frames = 0, found_gaps = 0;
  ck_assert_msg(recording_open(path, NULL, &recording, why) == 0, "%s", why);
  ck_assert_str_eq(recording_header_of(recording)->name, "a.ring");
  ck_assert_int_eq(recording_facts_of(recording)->is_ended,
                   ended); /* found at the end of the file, before reading */
  while ((found = recording_next(recording, &item)) != RECORDING_FOUND_END) {
    ck_assert_msg(found == RECORDING_FOUND_FRAME || found == RECORDING_FOUND_GAP, "%d at %llu",
                  found, (unsigned long long)item.offset);
    found_gaps += found == RECORDING_FOUND_GAP;
    if (found != RECORDING_FOUND_FRAME) continue;
    ck_assert_int_eq(recording_pass(recording), 0);
    frames++;
  }
  ck_assert_int_eq(found_gaps, gaps);
  ck_assert_int_eq(recording_facts_of(recording)->is_ended, ended);
  ck_assert_uint_eq(recording_facts_of(recording)->sum.digest, sum.digest);
  recording_close(recording);
  return frames;
}

/* The same, with the payloads. */
static void compare(void) {
  struct recording *recording;
  struct recording_item item;
  char why[256];
  int found, number = 0;
  ck_assert_msg(recording_open(path, NULL, &recording, why) == 0, "%s", why);
  while ((found = recording_next(recording, &item)) != RECORDING_FOUND_END) {
    if (found != RECORDING_FOUND_FRAME) continue;
    uint64_t before = recording_at(recording);
    ck_assert(check_frame(recording, &item, number++));
    ck_assert_uint_gt(recording_at(recording), before);
  }
  ck_assert_int_eq(number, kept_count);
  recording_close(recording);
}

static uint64_t size_of(uint64_t chance) {
  static const uint64_t most[] = {8, 200, 3000, CHUNK, 3 * CHUNK, HUGE_FRAME};
  return mix(chance) % (most[chance % 6] + 1);
}

/* Some frames, kept together; together no more than a chunk, or one alone, as the recorder has
 * it. */
static void put_group(uint64_t seed) {
  int count = 1 + (int)(mix(seed) % 5);
  uint64_t bytes_so_far = 0;
  for (int i = 0; i < count; i++) {
    uint64_t bytes = size_of(seed * 31 + (uint64_t)i);
    bytes_so_far += bytes;
    if (bytes_so_far > CHUNK && i > 0) break;
    copy(seed * 8 + (uint64_t)i, bytes);
    kept[kept_count++] = (struct expected){.bytes = bytes, .seed = seed * 8 + (uint64_t)i};
  }
  ck_assert_int_eq(recording_keep(writer), 0);
}

/* The last frames are dropped: small ones, or one of which a part is in the file already. */
LOOP_TEST(what_is_kept_is_read_back_and_what_is_dropped_is_not, 0, 40) {
  bool is_huge = _i % 2 == 1;
  open_file();
  for (uint64_t step = 0; step < 100; step++) {
    uint64_t seed = 1 + (uint64_t)_i * 1000 + step;
    put_group(seed);
    if (mix(seed + 5) % 7 == 0) ck_assert_int_eq(recording_flush(writer), 0);
    if (mix(seed + 6) % 11 == 0) {
      const struct recording_gap gap = {.from = 1, .to = 2};
      ck_assert_int_eq(recording_put_gap(writer, &gap), 0);
      gaps++;
    }
  }
  copy(99999, is_huge ? HUGE_FRAME : 1000);
  recording_drop(writer);
  ck_assert_int_eq(recording_finish(writer), 0);
  close_file();
  ck_assert_uint_eq(sum.frames, (uint64_t)kept_count);
  ck_assert_int_eq(read_back(!is_huge), kept_count);
  compare();
  unlink(path);
}

/* The file without its end is read as far as the last flush, at the least. */
TEST(what_is_flushed_is_in_the_file) {
  open_file();
  for (uint64_t step = 1; step < 60; step++) {
    uint64_t bytes = size_of(step);
    copy(step, bytes);
    ck_assert_int_eq(recording_keep(writer), 0);
    kept[kept_count++] = (struct expected){.bytes = bytes, .seed = step};
  }
  ck_assert_int_eq(recording_flush(writer), 0);
  ck_assert_int_eq(recording_flush(writer), 0); /* writes nothing */
  close_file();
  ck_assert_int_eq(read_back(false), kept_count);
  compare();
  unlink(path);
}

/* At any length of the file: whole frames from the first on, and what the file has room for. */
LOOP_TEST(a_full_disk_leaves_whole_frames, 0, 60) {
  const struct rlimit limit = {.rlim_cur = 4096 + (rlim_t)(mix((uint64_t)_i) % 200000),
                               .rlim_max = RLIM_INFINITY};
  struct recording *recording;
  struct recording_item item;
  char why[256];
  open_file();
  signal(SIGXFSZ, SIG_IGN);
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  int result = 0, found, frames = 0;
  uint64_t end = 0;
  for (uint64_t step = 1; step < 2000 && result == 0; step++) {
    uint64_t bytes = mix(step) % 3000;
    copy_and_keep(step, bytes, &result);
  }
  ck_assert_int_lt(result, 0);
  ck_assert_int_eq(recording_finish(writer), result);
  close_file();
  ck_assert_msg(recording_open(path, NULL, &recording, why) == 0, "%s", why);
  while ((found = recording_next(recording, &item)) == RECORDING_FOUND_FRAME)
    if (check_frame(recording, &item, frames)) {
      end = recording_at(recording);
      frames++;
    }
  ck_assert(found == RECORDING_FOUND_TORN || found == RECORDING_FOUND_END);
  ck_assert_uint_ge(end + recording_length(3000) + 4096, limit.rlim_cur); /* no room for one more */
  ck_assert_int_lt(frames, kept_count);
  recording_close(recording);
  unlink(path);
}

/* ---- A file of a few blocks, made long by holes ---------------------------------------------- */

static const struct claim {
  uint64_t bytes;
  bool is_written;
  int found;
} claims[] = {
    {UINT64_C(1) << 55, false, RECORDING_FOUND_TORN}, /* as if the recorder had died in it */
    {UINT64_C(1) << 30, false, RECORDING_FOUND_TORN},
    {(UINT64_C(1) << 26) + 1, true, RECORDING_FOUND_FRAME},
    {UINT64_C(1) << 25, false, RECORDING_FOUND_FRAME}, /* zeros, in a copy that was made sparse */
};

static volatile sig_atomic_t stop;

static struct recording *open_claim(const struct claim *claim) {
  struct recording_header header = {.version = RECORDING_VERSION,
                                    .header_bytes = RECORDING_BLOCK,
                                    .line = RECORDING_LINE,
                                    .record_bytes = sizeof(struct recording_record),
                                    .id = 7};
  struct recording_record record = {
      .magic = RECORDING_RECORD_MAGIC, .type = RECORDING_FRAME, .bytes = claim->bytes};
  struct recording *recording;
  char why[256];
  int fd = memfd_create("claim", MFD_CLOEXEC);
  memcpy(header.magic, RECORDING_MAGIC, sizeof header.magic);
  header.check = recording_header_check(&header);
  record.check = recording_record_check(&record, header.id, RECORDING_BLOCK);
  off_t size = (off_t)(RECORDING_BLOCK + recording_length(claim->bytes));
  ck_assert_int_eq(pwrite(fd, &header, sizeof header, 0), sizeof header);
  for (off_t at = RECORDING_BLOCK; claim->is_written && at < size; at += (off_t)sizeof data)
    ck_assert_int_eq(pwrite(fd, data, sizeof data, at), sizeof data);
  ck_assert_int_eq(pwrite(fd, &record, sizeof record, RECORDING_BLOCK), sizeof record);
  ck_assert_int_eq(ftruncate(fd, size), 0);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  ck_assert_msg(recording_open(path, &stop, &recording, why) == 0, "%s", why);
  close(fd);
  return recording;
}

LOOP_TEST(a_length_is_believed_where_its_bytes_are, 0, sizeof claims / sizeof *claims) {
  struct recording *recording = open_claim(&claims[_i]);
  struct recording_item item;
  ck_assert_int_eq(recording_next(recording, &item), claims[_i].found);
  recording_close(recording);
}

TEST(a_signal_ends_each_loop_of_a_reader) {
  struct recording *recording = open_claim(&claims[3]);
  struct recording_item item;
  ck_assert_int_eq(recording_next(recording, &item), RECORDING_FOUND_FRAME);
  stop = 1;
  ck_assert_int_eq(recording_check(recording), -ECANCELED);
  stop = 0;
  ck_assert_int_eq(recording_check(recording), 1); /* no hash */
  stop = 1;
  ck_assert_int_eq(recording_next(recording, &item), -ECANCELED);
  recording_close(recording);
}

RUN_TESTS("recording", NULL, NULL)
