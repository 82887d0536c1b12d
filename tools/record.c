/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringcast record`. The recorder is a tap, for which the writer never waits; with --lossless it is
 * a reader.
 *   No writer wakes the recorder. It looks every half millisecond, and more often if frames fill
 * the ring faster. It copies a frame into memory of its own and hashes the copy. The disk never
 * holds a frame. A gap is what the tap lost. A reader that the writer evicts ends: the file has all
 * until then.
 *
 * The time of a frame is when the recorder took it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "ringcast/batch.h"
#include "ringcast/inspect.h"
#include "tools/cli.h"
#include "tools/recording.h"
#include "tools/text.h"
#include "tools/view.h"

static const char help[] =
    "usage: ringcast record RING FILE [--seconds S] [--frames N] [--bytes BYTES] [--lossless]\n"
    "                       [--buffer BYTES] [--format text|json]\n"
    "\n"
    "Writes the frames of a ring to a new file, from now on, until Ctrl-C, a limit, or the end of\n"
    "the ring's writer. RING is a name, NAME@PID, @PID or a handle; 'ringcast list' shows all.\n"
    "\n"
    "  --seconds S       end after so many seconds (default 0: no limit)\n"
    "  --frames N        end after so many frames (default 0: no limit)\n"
    "  --bytes BYTES     end with the frame that completes so many bytes, such as 10G (default 0:\n"
    "                    no limit)\n"
    "  --lossless        be an ordinary reader: the writer waits, and nothing is missing\n"
    "  --buffer BYTES    memory for what is not on the disk yet, 64K to 4G (default 64M)\n"
    "  --format FORMAT   of the summary at the end: text or json (default text)\n";

struct record_options {
  const char *ring, *file; /* as given */
  uint64_t buffer;
  double seconds;         /* 0, also of the next two: no limit */
  uint64_t frames, bytes; /* bytes of payload: the last frame reaches the limit */
  bool lossless, json;
};

enum record_end {
  RECORD_STOPPED,
  RECORD_ENOUGH,
  RECORD_WRITER_GONE,
  RECORD_RING_FAILED,
  RECORD_DISK_FAILED
};

/* The result. */
struct record_result {
  enum record_end end;
  int error;                /* -errno of the ring or the disk */
  char why[256];            /* the error in words */
  struct recording_sum sum; /* unless the disk failed */
  uint64_t gap_bytes;       /* of the ring, as far as known */
  double seconds;
};

enum {
  GROUP = 128,         /* frames for one call */
  GROUP_BYTES = 262144 /* are copied and then given back together */
};

static const int64_t SLOWEST_POLL = 500000, FASTEST_POLL = 50000; /* nanoseconds */
static const int64_t SLICE = 100000000;                           /* until a frame is written */

struct recorder {
  const struct record_options *options;
  const char *handle;
  struct record_result *out;
  struct recording_writer *writer;
  ringcast_tap *tap; /* one of these */
  ringcast_reader *reader;
  uint64_t losses; /* of the tap, so far */
  struct ringcast_info info;
  int64_t began, flushed; /* times */
  int64_t last;           /* the time of the last frame that was kept; at first, of the beginning */
  int64_t poll_ns;
  uint64_t taken;    /* bytes since the last poll without a frame */
  uint64_t position; /* of the last frame that was kept; at first, of the ring's end */
  bool in_gap, ends;
  struct recording_gap gap;
};

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
                                         .reason = RECORDING_LOST};
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
  default: end(recorder, RECORD_RING_FAILED, result, ringcast_last_error());
  }
}

static void flush(struct recorder *recorder) {
  int result = recording_flush(recorder->writer);
  recorder->flushed = cli_now_ns();
  if (result != 0) end_by_disk(recorder, result);
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
  if (released != 0) { /* evicted, and the copies may be of later frames */
    recording_drop(recorder->writer);
    end_by_ring(recorder, released);
    return;
  }
  int result = recording_keep(recorder->writer);
  if (result != 0) {
    end_by_disk(recorder, result);
    return;
  }
  recorder->position = frames[count - 1].position;
  recorder->last = time;
  check_limits(recorder);
}

static void copy(struct recorder *recorder, const struct ringcast_frame *frames, uint32_t count) {
  int64_t time = cli_now_ns();
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
  if (cli_now_ns() - recorder->flushed >= SLICE) flush(recorder);
  int result = look(recorder, frames);
  if (result > 0) copy(recorder, frames, choose(recorder, frames, (uint32_t)result));
  else if (result == -EAGAIN) rest(recorder);
  else end_by_ring(recorder, result);
}

static void run(struct recorder *recorder) {
  const struct record_options *options = recorder->options;
  while (!recorder->ends) {
    take(recorder);
    if (cli_stop) end(recorder, RECORD_STOPPED, 0, "stopped by a signal");
    if (options->seconds > 0 && (double)(cli_now_ns() - recorder->began) >= options->seconds * 1e9)
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

static int open_file(struct recorder *recorder) {
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  const struct ringcast_info *info = &recorder->info;
  struct recording_header header = {
      .capacity = info->capacity,
      .wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec,
      .monotonic_ns = cli_now_ns(),
      .writer_pid = info->writer_pid,
  };
  memcpy(header.name, info->name, sizeof header.name);
  snprintf(header.ringcast, sizeof header.ringcast, "%s", ringcast_version());
  if (getrandom(&header.id, sizeof header.id, 0) != sizeof header.id)
    header.id = (uint64_t)header.wall_ns;
  return recording_create(recorder->options->file, recorder->options->buffer, &header,
                          &recorder->writer, recorder->out->why);
}

static void finish(struct recorder *recorder) {
  struct record_result *out = recorder->out;
  if (recorder->in_gap) end_gap(recorder, RECORDING_UNKNOWN, cli_now_ns());
  leave(recorder); /* before the disk takes its time */
  int result = recording_finish(recorder->writer);
  if (result != 0 && out->end != RECORD_DISK_FAILED) {
    recorder->ends = false;
    end_by_disk(recorder, result);
  }
  out->sum = *recording_sum_of(recorder->writer);
  out->seconds = (double)(cli_now_ns() - recorder->began) / 1e9;
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

static void tell_start(const struct record_options *options) {
  cli_fail(CLI_OK, "recording %s to %s%s; Ctrl-C ends it", options->ring, options->file,
           options->lossless ? " as a reader, for which the writer waits" : "");
}

/* Records until a limit, a signal or an error; then the file is whole. 0, or -errno: nothing was
 * recorded, as `out->why` says, and `out->end` whether the ring failed or the disk. */
static int run_recorder(const struct record_options *options, const char *handle,
                        struct record_result *out) {
  struct recorder recorder = {
      .options = options, .handle = handle, .out = out, .poll_ns = SLOWEST_POLL};
  *out = (struct record_result){0};
  int result = begin(&recorder);
  if (result == 0) {
    recorder.began = recorder.flushed = recorder.last = cli_now_ns();
    tell_start(options);
    run(&recorder);
    finish(&recorder);
    if (out->end == RECORD_DISK_FAILED && recording_is_empty(recorder.writer))
      result = give_up_file(&recorder, out->error);
  }
  if (recorder.writer) recording_destroy(recorder.writer);
  return result;
}

/* ---- Words ----------------------------------------------------------------------------------- */

static void tell_end(const struct record_options *options, const struct record_result *result) {
  if (result->end == RECORD_RING_FAILED) cli_fail(CLI_FAILED, "%s: %s", options->ring, result->why);
  if (result->end == RECORD_DISK_FAILED)
    cli_fail(CLI_FAILED, "can't write %s: %s; 'ringcast dump' shows which frames it holds",
             options->file, result->why);
  if (result->sum.gaps > 0)
    cli_fail(
        CLI_OK,
        "%s went on without the recorder: %llu bytes of the ring are missing, in gaps (%llu) that "
        "are marked in the file; a larger ring, a larger --buffer, a faster disk or --lossless "
        "helps",
        options->ring, (unsigned long long)result->gap_bytes, (unsigned long long)result->sum.gaps);
}

static void print(const struct record_options *options, const struct record_result *result) {
  static const char *const ends[] = {[RECORD_STOPPED] = "stopped",
                                     [RECORD_ENOUGH] = "limit",
                                     [RECORD_WRITER_GONE] = "writer gone",
                                     [RECORD_RING_FAILED] = "ring failed"};
  struct report report = {.json = options->json};
  char digest[20];
  snprintf(digest, sizeof digest, "%016llx", (unsigned long long)result->sum.digest);
  report_open(&report, NULL, '{');
  report_string(&report, "file", options->file);
  report_integer(&report, "frames", (int64_t)result->sum.frames);
  report_integer(&report, "bytes", (int64_t)result->sum.bytes);
  report_integer(&report, "gaps", (int64_t)result->sum.gaps);
  report_integer(&report, "gap_bytes", (int64_t)result->gap_bytes);
  report_number(&report, "seconds", result->seconds);
  report_number(&report, "bytes_per_s", (double)result->sum.bytes / result->seconds);
  report_string(&report, "hash", digest);
  report_string(&report, "ended_by", ends[result->end]);
  report_close(&report);
}

/* ---- The command ----------------------------------------------------------------------------- */

static bool parse_buffer(const char *text, void *out) {
  uint64_t *bytes = out;
  return parse_bytes(text, bytes) && *bytes >= RECORDING_LEAST && *bytes <= RECORDING_MOST;
}

static int parse(int argc, char **argv, struct record_options *options) {
  const struct cli_option known[] = {
      {"seconds", parse_seconds, &options->seconds, PARSE_SECONDS, false},
      {"frames", parse_whole, &options->frames, PARSE_WHOLE, false},
      {"bytes", parse_bytes, &options->bytes, PARSE_BYTES, false},
      {"lossless", NULL, &options->lossless, NULL, false},
      {"buffer", parse_buffer, &options->buffer, "a number of bytes, 64K to 4G", false},
      {"format", parse_format, &options->json, PARSE_FORMAT, false},
  };
  const char *words[2];
  int status = cli_parse(argc, argv, help, known, sizeof known / sizeof *known, words, 2);
  if (status != CLI_GO_ON) return status;
  if (!words[1]) return cli_misused(help, "say which ring to record, and the file to write");
  options->ring = words[0];
  options->file = words[1];
  return CLI_GO_ON;
}

int record_main(int argc, char **argv) {
  struct record_options options = {.buffer = 64 << 20};
  struct record_result result;
  char handle[RINGCAST_HANDLE_BYTES];
  int status = parse(argc, argv, &options);
  if (status == CLI_GO_ON) status = view_find(options.ring, handle);
  if (status != CLI_GO_ON) return status;
  cli_catch_stops();
  signal(SIGXFSZ, SIG_IGN); /* a file that may not be longer is an error of the write */
  int failed = run_recorder(&options, handle, &result);
  if (failed != 0) {
    if (result.end != RECORD_RING_FAILED) return cli_fail(CLI_FAILED, "%s", result.why);
    return cli_fail(cli_status(failed), "%s: %s", options.ring, result.why);
  }
  tell_end(&options, &result);
  if (result.end == RECORD_DISK_FAILED) return CLI_FAILED; /* what is in the file is not known */
  print(&options, &result);
  return cli_finish(stdout, result.end == RECORD_RING_FAILED ? CLI_FAILED : CLI_OK);
}
