/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast replay`: a recording's frames into a new ring. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ringcast/ringcast.h"
#include "tools/cli.h"
#include "tools/recording.h"
#include "tools/text.h"

static const char help[] =
    "usage: ringcast replay FILE [--name NAME] [--speed X | --fast] [--readers N] [--from S]\n"
    "                       [--to S] [--capacity BYTES] [--format text|json]\n"
    "\n"
    "Makes a new ring and sends the frames of a recording on it, at the pace at which they were\n"
    "recorded.\n"
    "\n"
    "  --name NAME        of the new ring (default: the recorded ring's)\n"
    "  --speed X          so many times as fast as recorded (default 1)\n"
    "  --fast             as fast as the readers take it\n"
    "  --readers N        wait for so many readers before the first frame (default 0)\n"
    "  --from S, --to S   only the frames of these seconds, counted from the first frame\n"
    "  --capacity BYTES   of the new ring (default: the recorded ring's)\n"
    "  --format FORMAT    of the first line and of the summary: text or json (default text)\n";

/* Nanoseconds: so soon a signal that comes before a wait is seen. */
static const int64_t SLICE = 100000000;

struct replay {
  const char *file, *name;
  double speed, from, to; /* `to` below 0: the end */
  uint64_t readers, capacity;
  bool fast, json;
  struct recording *recording;
  ringcast_writer *writer;
  struct recording_sum sent;
  uint64_t too_large; /* frames */
  int64_t first;      /* time of the recording's first frame */
  int64_t start;      /* when the moment `from` is replayed; 0: not begun */
  double seconds;
};

/* ---- One frame ------------------------------------------------------------------------------- */

static void wait_until(int64_t due) {
  const struct timespec time = {.tv_sec = due / 1000000000, .tv_nsec = due % 1000000000};
  while (!cli_stop && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
    continue;
}

/* When the frame is due, or 0: at once. Recorded times that can't be right do not hold the replay
 * up. */
static int64_t due_at(const struct replay *replay, int64_t time) {
  double after = ((double)time - (double)replay->first - replay->from * 1e9) / replay->speed;
  if (replay->fast || after <= 0 || after > 1e18) return 0;
  return replay->start + (int64_t)after;
}

/* 0, or -errno: -EMSGSIZE if the ring can never take the frame, -ECANCELED after a signal. */
static int reserve(struct replay *replay, uint64_t bytes, struct ringcast_span *span) {
  int result;
  if (bytes > SIZE_MAX / 2) return -EMSGSIZE;
  do {
    if (cli_stop) return -ECANCELED;
    result = ringcast_writer_reserve(replay->writer, (size_t)bytes, SLICE, span);
  } while (result == -ETIMEDOUT || result == -EINTR);
  return result;
}

/* The payload is read into the ring, and becomes a frame, if whole, when the frame is due. */
static int send_frame(struct replay *replay, const struct recording_record *record) {
  struct ringcast_span span;
  int64_t due = due_at(replay, record->time);
  int result = reserve(replay, record->bytes, &span);
  if (result == -EMSGSIZE) {
    replay->too_large++;
    return 0;
  }
  if (result != 0) return result;
  uint64_t before = recording_facts_of(replay->recording)->sum.digest;
  result = recording_load(replay->recording, span.data);
  if (result != 0) {
    ringcast_writer_abort(replay->writer);
    return result < 0 ? result : 0;
  }
  if (due > 0) wait_until(due);
  if (cli_stop) {
    ringcast_writer_abort(replay->writer);
    return -ECANCELED;
  }
  replay->sent.frames++;
  replay->sent.bytes += record->bytes;
  replay->sent.digest += recording_facts_of(replay->recording)->sum.digest - before;
  return ringcast_writer_commit(replay->writer, (size_t)record->bytes, record->kind);
}

/* ---- All frames ------------------------------------------------------------------------------ */

static void tell(const struct replay *replay, enum recording_found found,
                 const struct recording_item *item) {
  static const char *const words[] = {
      [RECORDING_FOUND_DAMAGE] = "damaged, left out",
      [RECORDING_FOUND_UNWRITTEN] = "not written: the recorder died first, or is still busy",
      [RECORDING_FOUND_TORN] = "torn, as the recorder died first: cut off",
  };
  if (found >= sizeof words / sizeof *words || !words[found]) return;
  cli_fail(CLI_FAILED, "%s: from byte %llu on: %llu bytes %s", replay->file,
           (unsigned long long)item->offset, (unsigned long long)item->bytes, words[found]);
}

/* -EAGAIN: the end, or `to`. */
static int send_next(struct replay *replay) {
  struct recording_item item;
  int found = recording_next(replay->recording, &item);
  if (found == -ECANCELED) return -EAGAIN;
  if (found < 0) cli_fail(CLI_FAILED, "can't read %s: %s", replay->file, strerror(-found));
  if (found < 0) return found;
  tell(replay, (enum recording_found)found, &item);
  if (found == RECORDING_FOUND_END) return -EAGAIN;
  if (found != RECORDING_FOUND_FRAME) return 0;
  if (replay->first == INT64_MIN) replay->first = item.record.time;
  double after = ((double)item.record.time - (double)replay->first) / 1e9;
  if (replay->to >= 0 && after > replay->to) return -EAGAIN;
  if (after < replay->from) return 0; /* is passed */
  if (replay->start == 0) replay->start = cli_now_ns();
  int result = send_frame(replay, &item.record);
  if (result == -ECANCELED) return -EAGAIN;
  if (result != 0) cli_fail(CLI_FAILED, "can't send: %s", ringcast_last_error());
  return result;
}

static int wait_for_readers(struct replay *replay) {
  int result = 0;
  while (replay->readers > 0 && !cli_stop) {
    result = ringcast_writer_wait_readers(replay->writer, (uint32_t)replay->readers, SLICE);
    if (result != -ETIMEDOUT && result != -EINTR) break;
  }
  if (result < 0 && !cli_stop) cli_fail(CLI_FAILED, "no readers: %s", ringcast_last_error());
  return cli_stop || result >= 0 ? 0 : result;
}

/* ---- The command ----------------------------------------------------------------------------- */

static int make_ring(struct replay *replay) {
  const struct recording_header *header = recording_header_of(replay->recording);
  struct ringcast_writer_options options = {
      .size = sizeof options, .capacity = replay->capacity, .on_death = RINGCAST_EVICT};
  /* A ring takes its memory at once: as much as all frames of the file can use, whatever its first
   * block says. */
  const uint64_t most = 2 * recording_believed(replay->recording);
  if (!replay->name) replay->name = header->name;
  if (options.capacity == 0) options.capacity = header->capacity < most ? header->capacity : most;
  options.name = *replay->name ? replay->name : NULL;
  int result = ringcast_writer_create_ex(&options, &replay->writer);
  if (result != 0) cli_fail(CLI_FAILED, "can't make the ring: %s", ringcast_last_error());
  return result;
}

static void print_ring(const struct replay *replay) {
  const char *handle = ringcast_writer_handle(replay->writer);
  if (replay->json)
    printf("{\"name\": \"%s\", \"pid\": %d, \"handle\": \"%s\"}\n", replay->name, (int)getpid(),
           handle);
  else printf("ring %s@%d, handle %s\n", replay->name, (int)getpid(), handle);
  fflush(stdout);
}

static void print_end(const struct replay *replay) {
  const struct recording_sum *sum = &replay->sent;
  const struct recording_facts *facts = recording_facts_of(replay->recording);
  struct report report = {.json = replay->json};
  char digest[20];
  snprintf(digest, sizeof digest, "%016llx", (unsigned long long)sum->digest);
  report_open(&report, NULL, '{');
  report_string(&report, "file", replay->file);
  report_integer(&report, "frames", (int64_t)sum->frames);
  report_integer(&report, "bytes", (int64_t)sum->bytes);
  report_integer(&report, "gaps", (int64_t)facts->sum.gaps);
  report_integer(&report, "damages", (int64_t)facts->damages);
  report_integer(&report, "frames_too_large", (int64_t)replay->too_large);
  report_number(&report, "seconds", replay->seconds);
  report_number(&report, "bytes_per_s", (double)sum->bytes / replay->seconds);
  report_string(&report, "hash", digest);
  report_close(&report);
}

static int run(struct replay *replay) {
  char why[256];
  int result = recording_open(replay->file, &cli_stop, &replay->recording, why);
  if (result != 0) return cli_fail(CLI_FAILED, "%s", why);
  result = make_ring(replay);
  if (result != 0) {
    recording_close(replay->recording);
    return CLI_FAILED;
  }
  print_ring(replay);
  result = wait_for_readers(replay);
  int64_t start = cli_now_ns();
  while (result == 0 && !cli_stop) result = send_next(replay);
  if (result == -EAGAIN) result = 0;
  replay->seconds = (double)(cli_now_ns() - start) / 1e9;
  ringcast_writer_close(replay->writer); /* readers still take what is in the ring */
  print_end(replay);
  if (replay->too_large > 0)
    cli_fail(
        CLI_FAILED,
        "%llu frames are larger than the ring can take, and were left out: give --capacity, or "
        "RINGCAST_SPILL_BYTES",
        (unsigned long long)replay->too_large);
  bool whole = recording_facts_of(replay->recording)->damages == 0 && replay->too_large == 0;
  recording_close(replay->recording);
  return result == 0 && whole ? CLI_OK : CLI_FAILED;
}

static bool parse_speed(const char *text, void *out) { return parse_number(text, 1e-6, 1e9, out); }

static bool parse_readers(const char *text, void *out) {
  uint64_t *readers = out;
  return parse_whole(text, readers) && *readers <= 1024;
}

static int parse(int argc, char **argv, struct replay *replay) {
  const struct cli_option known[] = {
      {"name", parse_text, &replay->name, NULL, false},
      {"speed", parse_speed, &replay->speed, "a number above 0, such as 0.5 or 10", false},
      {"fast", NULL, &replay->fast, NULL, false},
      {"readers", parse_readers, &replay->readers, "a whole number, 0 to 1024", false},
      {"from", parse_seconds, &replay->from, PARSE_SECONDS, false},
      {"to", parse_seconds, &replay->to, PARSE_SECONDS, false},
      {"capacity", parse_bytes, &replay->capacity, PARSE_BYTES, false},
      {"format", parse_format, &replay->json, PARSE_FORMAT, false},
  };
  int status = cli_parse(argc, argv, help, known, sizeof known / sizeof *known, &replay->file, 1);
  if (status != CLI_GO_ON) return status;
  if (!replay->file) return cli_misused(help, "say which file to replay");
  if (replay->fast && replay->speed > 0)
    return cli_misused(help, "--speed and --fast exclude each other");
  if (replay->speed <= 0) replay->speed = 1;
  return CLI_GO_ON;
}

int replay_main(int argc, char **argv) {
  struct replay replay = {.to = -1, .first = INT64_MIN};
  int status = parse(argc, argv, &replay);
  if (status != CLI_GO_ON) return status;
  cli_catch_stops();
  return cli_finish(stdout, run(&replay));
}
