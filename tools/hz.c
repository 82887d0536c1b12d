/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast hz`: a tap notes when each frame arrives. The tap copies each frame, and holds nothing
 * back: frames that the tap was too slow for are counted as lost. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "ringcast/inspect.h"
#include "tools/cli.h"
#include "tools/text.h"
#include "tools/view.h"

static const char help[] =
    "usage: ringcast hz RING [--count N] [--format text|json]\n"
    "\n"
    "The rate of a ring's frames, and the gaps between them: a line each second, and a summary at\n"
    "the end. RING is a name, NAME@PID, @PID or a handle; 'ringcast list' shows all.\n"
    "\n"
    "  --count N        end after N frames (default: no limit)\n"
    "  --format FORMAT  text or json (default text)\n";

/* ---- Figures --------------------------------------------------------------------------------- */

/* Of the frames since the last line, or of all. The gaps are taken one by one (Welford's way: sums
 * of squares would lose digits). */
struct figures {
  uint64_t frames, bytes;
  uint64_t gaps,
      gap_bytes; /* a gap is before each frame but the first; the bytes of these frames */
  double min, max, mean, squares;
};

struct hz {
  const char *label;
  bool json;
  uint64_t most; /* frames; 0: no limit */
  int64_t last;  /* when the last frame came; 0: none yet */
  struct figures line, all;
  ringcast_tap *tap;
};

/* `gap`: nanoseconds; below 0: none. */
static void add(struct figures *figures, uint64_t bytes, double gap) {
  figures->frames++;
  figures->bytes += bytes;
  if (gap < 0) return;
  double off = gap - figures->mean;
  if (figures->gaps == 0 || gap < figures->min) figures->min = gap;
  if (gap > figures->max) figures->max = gap;
  figures->gaps++;
  figures->gap_bytes += bytes;
  figures->mean += off / (double)figures->gaps;
  figures->squares += off * (gap - figures->mean);
}

static double seconds_of(const struct figures *figures) {
  return figures->mean * (double)figures->gaps / 1e9;
}

static double per_second(const struct figures *figures, uint64_t count) {
  double seconds = seconds_of(figures);
  return seconds > 0 ? (double)count / seconds : NAN;
}

static double stddev_of(const struct figures *figures) {
  return sqrt(figures->squares / (double)figures->gaps); /* without a gap: not a number */
}

/* ---- Printing -------------------------------------------------------------------------------- */

static void print_json(const struct hz *hz, const struct figures *figures) {
  struct report report = {.json = true, .line = true};
  bool any = figures->gaps > 0;
  uint64_t lost_bytes = 0, lost_gaps = 0;
  ringcast_tap_lost(hz->tap, &lost_bytes, &lost_gaps);
  report_open(&report, NULL, '{');
  report_string(&report, "ring", hz->label);
  report_boolean(&report, "summary", figures == &hz->all);
  report_integer(&report, "frames", (int64_t)figures->frames);
  report_integer(&report, "bytes", (int64_t)figures->bytes);
  report_number(&report, "seconds", seconds_of(figures));
  report_number(&report, "frames_per_s", per_second(figures, figures->gaps));
  report_number(&report, "bytes_per_s", per_second(figures, figures->gap_bytes));
  report_open(&report, "gap_ns", '{');
  report_number(&report, "min", any ? figures->min : NAN);
  report_number(&report, "max", any ? figures->max : NAN);
  report_number(&report, "mean", any ? figures->mean : NAN);
  report_number(&report, "stddev", stddev_of(figures));
  report_close(&report);
  report_integer(&report, "lost_bytes", (int64_t)lost_bytes);
  report_integer(&report, "lost_gaps", (int64_t)lost_gaps);
  report_close(&report);
}

static void print_gaps(const struct figures *figures) {
  printf("%s frames/s, %s MB/s", text_rate(per_second(figures, figures->gaps)).text,
         text_rate(per_second(figures, figures->gap_bytes) / 1e6).text);
  printf("; gap mean %s, min %s, max %s, stddev %s", text_duration(figures->mean).text,
         text_duration(figures->min).text, text_duration(figures->max).text,
         text_duration(stddev_of(figures)).text);
  printf(" (%" PRIu64 " frames)", figures->frames);
}

static void print_text(const struct hz *hz, const struct figures *figures) {
  uint64_t lost_bytes = 0, lost_gaps = 0;
  double seconds = seconds_of(figures);
  ringcast_tap_lost(hz->tap, &lost_bytes, &lost_gaps);
  if (figures == &hz->all)
    printf("\n%s: %" PRIu64 " frames, %s in %s\n", hz->label, figures->frames,
           text_bytes((double)figures->bytes).text,
           seconds > 0 ? text_duration(seconds * 1e9).text : "0 s");
  if (figures->gaps > 0) print_gaps(figures);
  else if (figures == &hz->line && figures->frames == 0) fputs("no new frame", stdout);
  else fputs("fewer than two frames: no rate", stdout);
  if (lost_gaps > 0)
    printf("; lost %s, in %" PRIu64 " places, that the writer overwrote first",
           text_bytes((double)lost_bytes).text, lost_gaps);
  putchar('\n');
}

/* False: stdout can't be written. */
static bool print(const struct hz *hz, const struct figures *figures) {
  if (hz->json) print_json(hz, figures);
  else print_text(hz, figures);
  return fflush(stdout) == 0 && !ferror(stdout);
}

/* ---- Counting -------------------------------------------------------------------------------- */

static void note(struct hz *hz, const struct ringcast_frame *frame) {
  int64_t now = cli_now_ns();
  double gap = hz->last > 0 ? (double)(now - hz->last) : -1;
  add(&hz->line, frame->bytes, gap);
  add(&hz->all, frame->bytes, gap);
  hz->last = now;
}

/* The next frame within `left` nanoseconds. While frames come, looks every 0.1 ms; a silence is
 * left to the tap, which also finds out whether the writer lives. */
static int await_frame(const struct hz *hz, int64_t left, struct ringcast_frame *out) {
  static const struct timespec nap = {.tv_nsec = 100000};
  const int64_t end = cli_now_ns() + left, busy = hz->last + 100000000;
  int result = ringcast_tap_next(hz->tap, 0, out);
  for (int64_t now; result == -EAGAIN && !cli_stop && (now = cli_now_ns()) < end && now < busy;) {
    nanosleep(&nap, NULL);
    result = ringcast_tap_next(hz->tap, 0, out);
  }
  if (result != -EAGAIN) return result;
  left = end - cli_now_ns();
  return left > 0 && !cli_stop ? ringcast_tap_next(hz->tap, left, out) : -ETIMEDOUT;
}

/* Counts frames until the end: 0, or what the tap gave. */
static int count_frames(struct hz *hz) {
  int64_t next = cli_now_ns() + 1000000000;
  struct ringcast_frame frame;
  while (!cli_stop && (hz->most == 0 || hz->all.frames < hz->most)) {
    int64_t left = next - cli_now_ns();
    int result = left > 0 ? await_frame(hz, left, &frame) : -ETIMEDOUT;
    if (result == 0) note(hz, &frame);
    else if (result != -ETIMEDOUT && result != -EINTR) return result;
    if (left > 0) continue;
    if (!print(hz, &hz->line)) return 0;
    hz->line = (struct figures){0};
    next += 1000000000;
    if (next < cli_now_ns()) next = cli_now_ns() + 1000000000; /* this process was stopped */
  }
  return 0;
}

static int run(struct hz *hz) {
  char why[256] = "";
  cli_catch_stops();
  int end = count_frames(hz);
  if (end != 0) snprintf(why, sizeof why, "%s", ringcast_last_error());
  if (!ferror(stdout)) print(hz, &hz->all);
  int result = cli_finish(stdout, CLI_OK);
  if (end == 0 || result != CLI_OK) return result;
  if (end == -EPIPE) return cli_fail(CLI_GONE, "the writer of %s is gone", hz->label);
  return cli_fail(CLI_FAILED, "%s", why);
}

int hz_main(int argc, char **argv) {
  struct hz hz = {0};
  const char *ring;
  const struct cli_option options[] = {{"count", parse_count, &hz.most, PARSE_COUNT, false},
                                       {"format", parse_format, &hz.json, PARSE_FORMAT, false}};
  int result = cli_parse(argc, argv, help, options, 2, &ring, 1);
  if (result != CLI_GO_ON) return result;
  if (!ring) return cli_misused(help, "say which ring; 'ringcast list' shows all");
  struct view view = {0};
  result = view_find(ring, view.ring.handle);
  if (result != CLI_GO_ON) return result;
  view_label_as_given(&view, ring);
  result = view_look(&view);
  if (result == 0) result = ringcast_tap_attach(view.ring.handle, &hz.tap);
  if (result != 0) {
    result = cli_fail(cli_status(result), "%s", ringcast_last_error());
  } else {
    hz.label = view.label;
    result = run(&hz);
  }
  ringcast_tap_close(hz.tap);
  view_close(&view);
  return result;
}
