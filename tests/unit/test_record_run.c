/* SPDX-License-Identifier: Apache-2.0 */
/* A lossless recorder that is evicted in the moment between the copy of frames and their release: the copies are not in
 * the file, and a gap is. It comes back once a second. And a tap that is too slow: the gap is where the loss is. The
 * linker puts the functions with __wrap_ in the place of others. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "ringcast/batch.h"
#include "tests/support/suite.h"
#include "tools/record.h"
#include "tools/recording.h"

enum { FRAMES = 300, MOST = 256, EARLIER = 50 /* frames that nobody records */, CAPACITY = 1 << 20, LARGE = 4096 };

int __real_ringcast_reader_release_many(ringcast_reader *reader, const struct ringcast_frame *frames, uint32_t count);
int __wrap_ringcast_reader_release_many(ringcast_reader *reader, const struct ringcast_frame *frames, uint32_t count);

static bool refuses, refuses_all, overruns;
static int releases, refused_release; /* counts; the release that fails */
static uint64_t refused[MOST], before, refused_count;
static volatile int stop;
static volatile sig_atomic_t enough;

int __wrap_ringcast_reader_release_many(ringcast_reader *reader, const struct ringcast_frame *frames, uint32_t count) {
  int result = __real_ringcast_reader_release_many(reader, frames, count);
  if (refuses_all && ++releases > 1) {
    if (releases == 4) enough = 1; /* the recorder is attached for the third time */
    return -ESTALE;
  }
  if (!refuses) return result;
  if (++releases < refused_release) before = frames[count - 1].position;
  if (releases != refused_release) return result;
  ck_assert_uint_lt(count, MOST);
  for (uint32_t i = 0; i < count; i++) refused[refused_count++] = frames[i].position;
  return -ESTALE;
}

static void *send_frames(void *context) {
  ringcast_writer *writer = context;
  for (uint64_t number = 0; !stop; number++) {
    ck_assert_int_eq(ringcast_writer_send(writer, &number, sizeof number, 0, RINGCAST_FOREVER), 0);
    usleep(200);
  }
  return NULL;
}

static void begin(void *context) {
  ringcast_writer *writer = *(void **)context;
  const uint8_t large[LARGE] = {0};
  for (uint64_t sent = 0; overruns && sent < 2 * CAPACITY; sent += LARGE)
    ck_assert_int_eq(ringcast_writer_send(writer, large, sizeof large, 0, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(pthread_create(context, NULL, send_frames, writer), 0);
}

/* pthread_create stores the thread where the writer's handle was. */
union started {
  void *writer;
  pthread_t thread;
};

static void check_file(const char *file) {
  struct recording *recording;
  struct recording_item item;
  char why[256];
  int found, frames = 0, gaps = 0;
  ck_assert_msg(recording_open(file, NULL, &recording, why) == 0, "%s", why);
  while ((found = recording_next(recording, &item)) != RECORDING_FOUND_END) {
    ck_assert(found == RECORDING_FOUND_FRAME || found == RECORDING_FOUND_GAP);
    if (found == RECORDING_FOUND_GAP) {
      gaps++;
      ck_assert_uint_eq(item.gap.from, before);
      ck_assert_uint_gt(item.gap.to, refused[refused_count - 1]);
      ck_assert_uint_eq(item.gap.reason, RECORDING_EVICTED);
      continue;
    }
    frames++;
    for (uint64_t i = 0; i < refused_count; i++) ck_assert_uint_ne(item.record.position, refused[i]);
    ck_assert_int_eq(recording_check(recording), 0);
  }
  ck_assert_int_eq(frames, FRAMES);
  ck_assert_int_eq(gaps, 1);
  recording_close(recording);
}

static char path[64];

/* Records what a thread sends. The caller removes the file. */
static struct record_result record(struct record_options options) {
  ringcast_writer *writer;
  struct record_result result;
  snprintf(path, sizeof path, "/tmp/test_record_run.%d", (int)getpid());
  unlink(path); /* of a test that failed */
  options.file = path;
  options.buffer = RECORD_BUFFER;
  struct ringcast_info info = {.size = sizeof info};
  struct ringcast_writer_options ring = {.size = sizeof ring, .capacity = CAPACITY};
  ck_assert_int_eq(ringcast_writer_create_ex(&ring, &writer), 0);
  for (uint64_t i = 0; i < EARLIER; i++)
    ck_assert_int_eq(ringcast_writer_send(writer, &i, sizeof i, 0, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(ringcast_writer_info(writer, &info), 0);
  before = info.tail;
  union started started = {.writer = writer};
  ck_assert_msg(record_run(&options, ringcast_writer_handle(writer), begin, &started, &result) == 0, "%s", result.why);
  stop = 1;
  pthread_join(started.thread, NULL);
  ringcast_writer_close(writer);
  return result;
}

/* The first release, before a frame was kept, or a later one. */
LOOP_TEST(frames_that_the_writer_took_back_are_not_recorded, 0, 2) {
  refuses = true;
  refused_release = _i == 0 ? 1 : 10;
  struct record_result result = record((struct record_options){.frames = FRAMES, .lossless = true});
  ck_assert_int_eq(result.end, RECORD_ENOUGH);
  ck_assert_uint_eq(result.sum.gaps, 1);
  ck_assert_uint_gt(refused_count, 0);
  check_file(path);
  unlink(path);
}

/* Attached at 0 s, at 1 s or later, at 2 s or later, and let go of each time. */
TEST(a_recorder_that_is_in_the_way_comes_back_once_a_second) {
  struct recording *recording;
  struct recording_item item;
  char why[256];
  int found;
  refuses_all = true;
  struct record_result result = record((struct record_options){.stop = &enough, .lossless = true});
  ck_assert_int_eq(result.end, RECORD_STOPPED);
  ck_assert_uint_ge(result.sum.gaps, 1);
  ck_assert_int_eq(releases, 4); /* the first one succeeds */
  ck_assert_double_ge(result.seconds, 2);
  ck_assert_int_eq(recording_open(path, NULL, &recording, why), 0);
  while ((found = recording_next(recording, &item)) != RECORDING_FOUND_END)
    ck_assert(found == RECORDING_FOUND_FRAME || found == RECORDING_FOUND_GAP);
  ck_assert_uint_eq(recording_facts_of(recording)->sum.gaps, result.sum.gaps);
  ck_assert_uint_gt(recording_facts_of(recording)->sum.frames, 0);
  recording_close(recording);
  unlink(path);
}

/* The writer laps the tap before the first look. */
TEST(what_the_writer_overwrote_is_a_gap_where_it_was) {
  struct recording *recording;
  struct recording_item item;
  char why[256];
  overruns = true;
  struct record_result result = record((struct record_options){.frames = 1});
  ck_assert_int_eq(result.end, RECORD_ENOUGH);
  ck_assert_int_eq(recording_open(path, NULL, &recording, why), 0);
  ck_assert_int_eq(recording_next(recording, &item), RECORDING_FOUND_GAP);
  ck_assert_uint_eq(item.gap.reason, RECORDING_LOST);
  ck_assert_uint_eq(item.gap.from, before);
  ck_assert_uint_eq(item.gap.to - item.gap.from, result.gap_bytes);
  ck_assert_uint_ge(result.gap_bytes, 2 * CAPACITY);
  ck_assert_int_eq(recording_next(recording, &item), RECORDING_FOUND_FRAME);
  ck_assert_uint_eq(item.record.position, before + result.gap_bytes);
  recording_close(recording);
  unlink(path);
}

RUN_TESTS("record_run", NULL, NULL)
