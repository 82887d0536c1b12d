/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast hz`: a tap notes when each frame arrives. The tap copies each frame, and holds nothing
 * back: frames that the tap was too slow for are counted as lost. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ringcast/inspect.h"
#include "tools/cli.h"
#include "tools/report.h"
#include "tools/screen.h"
#include "tools/text.h"
#include "tools/view.h"

static const char usage[] =
    "usage: ringcast hz RING [--window N] [--count N] [--format text|json]\n";

static const char help[] =
    "\n"
    "The rate of a ring's frames, and the gaps between them: a line each second, and a summary at\n"
    "the end. RING is a name, NAME@PID, @PID or a handle; 'ringcast list' shows all.\n"
    "\n"
    "  --window N       each line is of the last N frames (default 1000, at most 1000000)\n"
    "  --count N        end after N frames (default: no limit)\n"
    "  --format FORMAT  text or json (default text)\n";

/* ---- Figures --------------------------------------------------------------------------------- */

struct arrival {
  int64_t at_ns;
  uint64_t bytes;
};

/* Of gaps, one by one (Welford's way: sums of squares would lose digits). */
struct gaps {
  uint64_t count;
  double min, max, mean, squares;
};

static void gaps_add(struct gaps *gaps, double gap) {
  double off = gap - gaps->mean;
  gaps->min = gaps->count == 0 || gap < gaps->min ? gap : gaps->min;
  gaps->max = gaps->count == 0 || gap > gaps->max ? gap : gaps->max;
  gaps->mean += off / (double)++gaps->count;
  gaps->squares += off * (gap - gaps->mean);
}

/* What is printed: of a window, or of all. */
struct figures {
  bool summary;
  uint64_t frames, bytes; /* the first frame's bytes too */
  double seconds, frames_per_s, bytes_per_s, stddev;
  struct gaps gaps;
  uint64_t lost_bytes, lost_gaps;
};

struct hz {
  const char *label;
  bool json;
  uint64_t window, most; /* most: 0 without limit */
  struct arrival *arrivals, first, last;
  uint64_t frames, bytes;
  struct gaps gaps;
  ringcast_tap *tap;
};

static void finish_figures(const struct hz *hz, struct figures *figures, uint64_t bytes_after_first,
                           double ns) {
  figures->seconds = ns / 1e9;
  figures->frames_per_s = ns > 0 ? (double)figures->gaps.count * 1e9 / ns : NAN;
  figures->bytes_per_s = ns > 0 ? (double)bytes_after_first * 1e9 / ns : NAN;
  figures->stddev =
      figures->gaps.count > 0 ? sqrt(figures->gaps.squares / (double)figures->gaps.count) : 0;
  ringcast_tap_lost(hz->tap, &figures->lost_bytes, &figures->lost_gaps);
}

static struct figures of_window(const struct hz *hz) {
  struct figures figures = {.frames = hz->frames < hz->window ? hz->frames : hz->window};
  uint64_t from = hz->frames - figures.frames, after = 0;
  for (uint64_t i = from; i < hz->frames; i++) {
    const struct arrival *arrival = &hz->arrivals[i % hz->window];
    figures.bytes += arrival->bytes;
    if (i == from) continue;
    after += arrival->bytes;
    gaps_add(&figures.gaps, (double)(arrival->at_ns - hz->arrivals[(i - 1) % hz->window].at_ns));
  }
  double ns =
      figures.frames > 1 ? (double)(hz->last.at_ns - hz->arrivals[from % hz->window].at_ns) : 0;
  finish_figures(hz, &figures, after, ns);
  return figures;
}

static struct figures of_all(const struct hz *hz) {
  struct figures figures = {
      .summary = true, .frames = hz->frames, .bytes = hz->bytes, .gaps = hz->gaps};
  finish_figures(hz, &figures, hz->bytes - hz->first.bytes,
                 (double)(hz->last.at_ns - hz->first.at_ns));
  return figures;
}

/* ---- Printing -------------------------------------------------------------------------------- */

static void print_json(const struct hz *hz, const struct figures *figures) {
  struct report report = {.json = true, .line = true};
  bool any = figures->gaps.count > 0;
  report_open(&report, NULL, '{');
  report_string(&report, "ring", hz->label);
  report_boolean(&report, "summary", figures->summary);
  report_integer(&report, "frames", (int64_t)figures->frames);
  report_integer(&report, "bytes", (int64_t)figures->bytes);
  report_number(&report, "seconds", figures->seconds);
  report_number(&report, "frames_per_s", figures->frames_per_s);
  report_number(&report, "bytes_per_s", figures->bytes_per_s);
  report_open(&report, "gap_ns", '{');
  report_number(&report, "min", any ? figures->gaps.min : NAN);
  report_number(&report, "max", any ? figures->gaps.max : NAN);
  report_number(&report, "mean", any ? figures->gaps.mean : NAN);
  report_number(&report, "stddev", any ? figures->stddev : NAN);
  report_close(&report);
  report_integer(&report, "lost_bytes", (int64_t)figures->lost_bytes);
  report_integer(&report, "lost_gaps", (int64_t)figures->lost_gaps);
  report_close(&report);
}

static void print_gaps(const struct figures *figures) {
  printf("%s frames/s, %s MB/s", text_rate(figures->frames_per_s).text,
         text_rate(figures->bytes_per_s / 1e6).text);
  printf("; gap mean %s, min %s, max %s, stddev %s", text_duration(figures->gaps.mean).text,
         text_duration(figures->gaps.min).text, text_duration(figures->gaps.max).text,
         text_duration(figures->stddev).text);
  printf(" (%" PRIu64 " frames)", figures->frames);
}

static void print_text(const struct hz *hz, const struct figures *figures, bool quiet) {
  if (figures->summary)
    printf("\n%s: %" PRIu64 " frames, %s in %s\n", hz->label, figures->frames,
           text_bytes((double)figures->bytes).text,
           figures->seconds > 0 ? text_duration(figures->seconds * 1e9).text : "0 s");
  if (quiet) fputs("no new frame", stdout);
  else if (figures->gaps.count > 0) print_gaps(figures);
  else fputs("fewer than two frames: no rate", stdout);
  if (figures->lost_gaps > 0)
    printf("; lost %s, in %" PRIu64 " places, that the writer overwrote first",
           text_bytes((double)figures->lost_bytes).text, figures->lost_gaps);
  putchar('\n');
}

/* False: stdout can't be written. */
static bool print(const struct hz *hz, const struct figures *figures, bool quiet) {
  if (hz->json) print_json(hz, figures);
  else print_text(hz, figures, quiet);
  return fflush(stdout) == 0 && !ferror(stdout);
}

/* ---- Counting -------------------------------------------------------------------------------- */

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void note(struct hz *hz, const struct ringcast_frame *frame) {
  const struct arrival arrival = {.at_ns = now_ns(), .bytes = frame->bytes};
  if (hz->frames == 0) hz->first = arrival;
  else gaps_add(&hz->gaps, (double)(arrival.at_ns - hz->last.at_ns));
  /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): the options take no window of 0 */
  hz->arrivals[hz->frames++ % hz->window] = arrival;
  hz->bytes += arrival.bytes;
  hz->last = arrival;
}

/* The next frame within `left` nanoseconds. While frames come, looks every 0.1 ms; a silence is
 * left to the tap, which also finds out whether the writer lives. */
static int await_frame(const struct hz *hz, int64_t left, struct ringcast_frame *out) {
  static const struct timespec nap = {.tv_nsec = 100000};
  const int64_t end = now_ns() + left, busy = hz->last.at_ns + 100000000;
  int result = ringcast_tap_next(hz->tap, 0, out);
  for (int64_t now;
       result == -EAGAIN && !screen_is_stopped() && (now = now_ns()) < end && now < busy;) {
    nanosleep(&nap, NULL);
    result = ringcast_tap_next(hz->tap, 0, out);
  }
  if (result != -EAGAIN) return result;
  left = end - now_ns();
  return left > 0 && !screen_is_stopped() ? ringcast_tap_next(hz->tap, left, out) : -ETIMEDOUT;
}

/* Counts frames until the end: 0, or what the tap gave. */
static int count_frames(struct hz *hz) {
  int64_t next = now_ns() + 1000000000;
  uint64_t told = 0;
  struct ringcast_frame frame;
  while (!screen_is_stopped() && (hz->most == 0 || hz->frames < hz->most)) {
    int64_t left = next - now_ns();
    int result = left > 0 ? await_frame(hz, left, &frame) : -ETIMEDOUT;
    if (result == 0) note(hz, &frame);
    else if (result != -ETIMEDOUT && result != -EINTR) return result;
    if (left > 0) continue;
    struct figures figures = of_window(hz);
    if (!print(hz, &figures, hz->frames == told)) return 0;
    told = hz->frames;
    next += 1000000000;
    if (next < now_ns()) next = now_ns() + 1000000000; /* this process was stopped */
  }
  return 0;
}

static int run(struct hz *hz) {
  char why[256] = "";
  screen_catch_stops();
  hz->arrivals = cli_resize(NULL, hz->window, sizeof *hz->arrivals);
  int end = count_frames(hz);
  if (end != 0) snprintf(why, sizeof why, "%s", ringcast_last_error());
  struct figures all = of_all(hz);
  if (!ferror(stdout)) print(hz, &all, false);
  int result = cli_finish(stdout, CLI_OK);
  free(hz->arrivals);
  if (end == 0 || result != CLI_OK) return result;
  if (end == -EPIPE) return cli_fail(CLI_GONE, "the writer of %s is gone", hz->label);
  return cli_fail(CLI_FAILED, "%s", why);
}

static bool parse_window(const char *text, void *out) {
  return parse_count(text, out) && *(uint64_t *)out <= 1000000;
}

int hz_main(int argc, char **argv) {
  struct hz hz = {.window = 1000};
  const char *ring;
  const struct cli_option options[] = {
      {"window", parse_window, &hz.window, "a whole number, 1 to 1000000", false},
      {"count", parse_count, &hz.most, PARSE_COUNT, false},
      {"format", parse_format, &hz.json, PARSE_FORMAT, false}};
  int result = cli_parse(argc, argv, &(struct cli_texts){usage, help}, options, 3, &ring, 1);
  if (result != CLI_GO_ON) return result;
  if (!ring) return cli_misused(usage, "say which ring; 'ringcast list' shows all");
  struct view view = {0};
  result = view_find(ring, view.ring.handle);
  if (result != CLI_GO_ON) return result;
  view_label_as_given(&view, ring);
  result = view_look(&view);
  if (result == 0) result = ringcast_tap_attach(view.ring.handle, &hz.tap);
  if (result != 0) {
    result = cli_fail(result == -ENOENT ? CLI_NO_RING : CLI_FAILED, "%s", ringcast_last_error());
  } else {
    hz.label = view.label;
    result = run(&hz);
  }
  ringcast_tap_close(hz.tap);
  view_close(&view);
  return result;
}
