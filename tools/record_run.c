/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recorder is a tap, for which the writer never waits; with --lossless it is a reader.
 *   No writer wakes the recorder. It looks every half millisecond, and more often if frames fill
 * the ring faster. It copies a frame into memory of its own and hashes the copy. The disk never
 * holds a frame. A gap is what the tap lost. A reader that was evicted comes back once all copies
 * are on the disk, and at most once a second, so that the writer waits for a slow disk no more
 * often; what came meanwhile is a gap.
 *
 * The time of a frame is when the recorder took it.
 */
#define _GNU_SOURCE
#include "tools/record.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ringcast/batch.h"
#include "ringcast/inspect.h"
#include "tools/disk.h"

enum {
  GROUP = 128,         /* frames for one call */
  GROUP_BYTES = 262144 /* are copied and then given back together */
};

static const int64_t SLOWEST_POLL = 500000, FASTEST_POLL = 50000; /* nanoseconds */
static const int64_t SLICE = 100000000;                           /* until a frame is written */
static const int64_t COME_BACK = 1000000000;

struct recorder {
  const struct record_options *options;
  const char *handle;
  struct record_result *out;
  struct disk *disk;
  struct recording_writer *writer;
  ringcast_tap *tap; /* one of these; neither: an evicted reader */
  ringcast_reader *reader;
  uint64_t losses; /* of the tap, so far */
  struct ringcast_info info;
  int64_t began, attached, flushed; /* times */
  int64_t last; /* the time of the last frame that was kept; at first, of the beginning */
  int64_t poll_ns;
  uint64_t taken;    /* bytes since the last poll without a frame */
  uint64_t position; /* of the last frame that was kept; at first, of the ring's end */
  bool in_gap, ends;
  struct recording_gap gap;
};

static int64_t now_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t now(void) { return now_ns(CLOCK_MONOTONIC); }

static void pause_for(int64_t ns) {
  const struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL); /* a signal ends it */
}

static void end(struct recorder *recorder, enum record_end how, int error, const char *why) {
  if (recorder->ends) return;
  recorder->ends = true;
  recorder->out->end = how;
  recorder->out->error = error;
  snprintf(recorder->out->why, sizeof recorder->out->why, "%s", why);
}

static void end_by_disk(struct recorder *recorder, int error) {
  end(recorder, RECORD_DISK_FAILED, error, strerror(-error));
}

/* ---- The ring -------------------------------------------------------------------------------- */

static int attach(struct recorder *recorder) {
  const struct ringcast_reader_options options = {.size = sizeof options, .name = "recorder"};
  if (!recorder->options->lossless) return ringcast_tap_attach(recorder->handle, &recorder->tap);
  recorder->attached = now();
  return ringcast_reader_attach_ex(recorder->handle, &options, &recorder->reader);
}

static void leave(struct recorder *recorder) {
  ringcast_tap_close(recorder->tap);
  ringcast_reader_close(recorder->reader);
  recorder->tap = NULL;
  recorder->reader = NULL;
}

static void begin_gap(struct recorder *recorder) {
  if (recorder->in_gap) return; /* once more, before a frame was kept */
  recorder->in_gap = true;
  recorder->gap = (struct recording_gap){.from = recorder->position,
                                         .to = RECORDING_UNKNOWN,
                                         .began = recorder->last,
                                         .reason = recorder->options->lossless ? RECORDING_EVICTED
                                                                               : RECORDING_LOST};
}

/* `to`, `time`: of the frame that ends the gap. */
static void end_gap(struct recorder *recorder, uint64_t to, int64_t time) {
  recorder->in_gap = false;
  recorder->gap.to = to;
  recorder->gap.ended = recorder->last = time;
  if (to != RECORDING_UNKNOWN) {
    recorder->out->gap_bytes += to > recorder->gap.from ? to - recorder->gap.from : 0;
    recorder->position = to; /* where the next gap begins, unless a frame is kept before */
  }
  int result = recording_put_gap(recorder->writer, &recorder->gap);
  if (result != 0) end_by_disk(recorder, result);
}

static void end_by_ring(struct recorder *recorder, int result) {
  switch (result) {
  case -EINTR: return;
  case -EPIPE:
  case -ENOENT: end(recorder, RECORD_WRITER_GONE, 0, "the writer is gone"); return;
  case -ESTALE:
    leave(recorder);
    begin_gap(recorder);
    return;
  default: end(recorder, RECORD_RING_FAILED, result, ringcast_last_error());
  }
}

static void flush(struct recorder *recorder) {
  int result = recording_flush(recorder->writer);
  recorder->flushed = now();
  if (result != 0) end_by_disk(recorder, result);
}

/* All copies are on the disk, and a second has passed. */
static void come_back(struct recorder *recorder) {
  flush(recorder);
  if (recorder->ends) return;
  if (!disk_is_idle(recorder->disk) || now() - recorder->attached < COME_BACK) {
    pause_for(SLICE / 10);
    return;
  }
  int result = attach(recorder);
  if (result != 0 && result != -EUSERS)
    end_by_ring(recorder, result); /* the places are taken: tries again later */
}

/* ---- Frames ---------------------------------------------------------------------------------- */

/* How many of the frames are copied and then given back together. A frame larger than a chunk is
 * alone: the disk may have a part of the copy before the frame is given back. */
static uint32_t choose(const struct recorder *recorder, const struct ringcast_frame *frames,
                       uint32_t count) {
  const struct recording_sum *sum = recording_sum_of(recorder->writer);
  const struct record_options *options = recorder->options;
  uint64_t bytes = frames[0].bytes, wanted = UINT64_MAX, most = options->buffer / 8;
  uint32_t chosen = 1;
  if (options->frames > 0 && options->frames - sum->frames < count)
    count = (uint32_t)(options->frames - sum->frames);
  if (most > GROUP_BYTES) most = GROUP_BYTES;
  if (options->bytes > 0) wanted = options->bytes - sum->bytes;
  for (; chosen < count && bytes < wanted && bytes + frames[chosen].bytes <= most; chosen++)
    bytes += frames[chosen].bytes;
  return chosen;
}

static void check_limits(struct recorder *recorder) {
  const struct record_options *options = recorder->options;
  const struct recording_sum *sum = recording_sum_of(recorder->writer);
  if ((options->frames > 0 && sum->frames >= options->frames) ||
      (options->bytes > 0 && sum->bytes >= options->bytes))
    end(recorder, RECORD_ENOUGH, 0, "as much as asked for");
}

static void keep(struct recorder *recorder, const struct ringcast_frame *frames, uint32_t count,
                 int64_t time) {
  int released = recorder->tap ? 0 : ringcast_reader_release_many(recorder->reader, frames, count);
  int result = released == 0 ? recording_keep(recorder->writer) : recording_drop(recorder->writer);
  if (result != 0) {
    end_by_disk(recorder, result);
  } else if (released != 0) {
    end_by_ring(recorder, released);
  } else {
    recorder->position = frames[count - 1].position;
    recorder->last = time;
    check_limits(recorder);
  }
}

static void copy(struct recorder *recorder, const struct ringcast_frame *frames, uint32_t count) {
  int64_t time = now();
  if (recorder->in_gap) end_gap(recorder, frames[0].position, time);
  for (uint32_t i = 0; i < count; i++) {
    int result = recording_copy(recorder->writer, frames[i].kind, frames[i].data, frames[i].bytes,
                                frames[i].position, time);
    if (result != 0) {
      end_by_disk(recorder, result);
      return;
    }
    recorder->taken += frames[i].bytes;
  }
  keep(recorder, frames, count, time);
}

/* No frame now: sleeps while the ring has room. */
static void rest(struct recorder *recorder) {
  if (recorder->taken > recorder->info.capacity / 8) recorder->poll_ns /= 2;
  if (recorder->taken < recorder->info.capacity / 32) recorder->poll_ns *= 2;
  if (recorder->poll_ns < FASTEST_POLL) recorder->poll_ns = FASTEST_POLL;
  if (recorder->poll_ns > SLOWEST_POLL) recorder->poll_ns = SLOWEST_POLL;
  recorder->taken = 0;
  pause_for(recorder->poll_ns);
}

/* How many frames there are, or an error. */
static int look(struct recorder *recorder, struct ringcast_frame frames[GROUP]) {
  uint64_t bytes, losses;
  if (recorder->reader) return ringcast_reader_next_many(recorder->reader, 0, frames, GROUP);
  int result = ringcast_tap_next(recorder->tap, 0, frames);
  ringcast_tap_lost(recorder->tap, &bytes, &losses);
  if (losses != recorder->losses) begin_gap(recorder);
  recorder->losses = losses;
  return result == 0 ? 1 : result;
}

static void take(struct recorder *recorder) {
  struct ringcast_frame frames[GROUP];
  if (now() - recorder->flushed >= SLICE) flush(recorder);
  int result = look(recorder, frames);
  if (result > 0) copy(recorder, frames, choose(recorder, frames, (uint32_t)result));
  else if (result == -EAGAIN) rest(recorder);
  else end_by_ring(recorder, result);
}

static void run(struct recorder *recorder) {
  const struct record_options *options = recorder->options;
  while (!recorder->ends) {
    if (recorder->tap || recorder->reader) take(recorder);
    else come_back(recorder);
    if (options->stop && *options->stop) end(recorder, RECORD_STOPPED, 0, "stopped by a signal");
    if (options->seconds > 0 && (double)(now() - recorder->began) >= options->seconds * 1e9)
      end(recorder, RECORD_ENOUGH, 0, "as much as asked for");
  }
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* A file without a frame goes: the next try finds the name free. */
static int give_up_file(const struct recorder *recorder, int result) {
  struct record_result *out = recorder->out;
  unlink(recorder->options->file);
  snprintf(out->why, sizeof out->why, "can't write %.180s: %s", recorder->options->file,
           strerror(-result));
  return result;
}

static bool has_frames(const struct recorder *recorder) {
  struct stat file;
  return fstat(disk_fd(recorder->disk), &file) != 0 || file.st_size > RECORDING_BLOCK;
}

static int open_file(struct recorder *recorder) {
  const struct ringcast_info *info = &recorder->info;
  struct recording_header header = {
      .capacity = info->capacity,
      .wall_ns = now_ns(CLOCK_REALTIME),
      .monotonic_ns = now(),
      .writer_pid = info->writer_pid,
  };
  int result = disk_open(recorder->options->file, recorder->options->buffer, &recorder->disk,
                         recorder->out->why);
  if (result != 0) return result;
  memcpy(header.name, info->name, sizeof header.name);
  snprintf(header.ringcast, sizeof header.ringcast, "%s", ringcast_version());
  if (getrandom(&header.id, sizeof header.id, 0) != sizeof header.id)
    header.id = (uint64_t)header.wall_ns;
  result = recording_create(recorder->disk, &header, &recorder->writer);
  return result == 0 ? 0 : give_up_file(recorder, result);
}

static void finish(struct recorder *recorder) {
  struct record_result *out = recorder->out;
  if (recorder->in_gap) end_gap(recorder, RECORDING_UNKNOWN, now());
  leave(recorder); /* before the disk takes its time */
  int result = recording_finish(recorder->writer);
  if (result != 0 && out->end != RECORD_DISK_FAILED) {
    recorder->ends = false;
    end_by_disk(recorder, result);
  }
  out->sum = *recording_sum_of(recorder->writer);
  out->seconds = (double)(now() - recorder->began) / 1e9;
}

/* A reader holds the writer back only when the file is there, and a tap's first frame comes
 * after. */
static int look_at_ring(struct recorder *recorder) {
  recorder->info.size = sizeof recorder->info;
  int result = ringcast_tap_attach(recorder->handle, &recorder->tap);
  if (result == 0) result = ringcast_tap_info(recorder->tap, &recorder->info);
  leave(recorder);
  return result;
}

/* Where the ring ends. */
static int read_info(struct recorder *recorder) {
  return recorder->tap ? ringcast_tap_info(recorder->tap, &recorder->info)
                       : ringcast_reader_info(recorder->reader, &recorder->info);
}

static int begin(struct recorder *recorder) {
  struct record_result *out = recorder->out;
  int result = look_at_ring(recorder);
  out->end = RECORD_RING_FAILED;
  if (result != 0) {
    snprintf(out->why, sizeof out->why, "%s", ringcast_last_error());
    return result;
  }
  out->end = RECORD_DISK_FAILED;
  result = open_file(recorder);
  if (result != 0) return result;
  out->end = RECORD_RING_FAILED;
  result = attach(recorder);
  if (result != 0) {
    snprintf(out->why, sizeof out->why, "%s", ringcast_last_error());
    unlink(recorder->options->file);
  } else if (read_info(recorder) == 0) recorder->position = recorder->info.tail;
  return result;
}

int record_run(const struct record_options *options, const char *handle,
               void (*started)(void *context), void *context, struct record_result *out) {
  struct recorder recorder = {
      .options = options, .handle = handle, .out = out, .poll_ns = SLOWEST_POLL};
  *out = (struct record_result){0};
  int result = begin(&recorder);
  if (result == 0) {
    recorder.began = recorder.flushed = recorder.last = now();
    if (started) started(context);
    run(&recorder);
    finish(&recorder);
    if (out->end == RECORD_DISK_FAILED && !has_frames(&recorder))
      result = give_up_file(&recorder, out->error);
  }
  if (recorder.writer) recording_destroy(recorder.writer);
  if (recorder.disk) disk_close(recorder.disk);
  return result;
}
