/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a frame costs its writer, by the number of readers. Two ways of sending take turns, in short blocks:
 *   bursts   a few frames, at most a quarter of the ring, then a wait until every reader has read them: only the
 *            sending is timed, so the figure is the writer's own time while the readers keep up: writer_ns_per_frame.
 *            With fewer CPUs than processes the figure is the writer's CPU time, since the readers run on the same CPU.
 *   flood    without a stop, so the slowest reader sets the pace once the ring is full: frames_per_s
 */
#include <math.h>
#include <time.h>

#include "tools/cli.h"
#include "tools/measure/stream.h"

enum { BURST = 64, CROWDED_BURST = 1024, BLOCKS = 40 }; /* a reading of the CPU time costs as much as many frames */

static const int64_t SPIN_NS = 3600000000000; /* while each process has a CPU, none sleeps */

struct step {
  uint32_t readers;
  bool pinned;
  double writer_ns, frames_per_s;
};

static int64_t writer_now_ns(const struct step *step) {
  struct timespec used;
  if (step->pinned) return perf_now_ns();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Nanoseconds of the writer for a frame. */
static double measure_bursts(struct stream *stream, const struct step *step, uint64_t burst, int64_t ns) {
  int64_t start = perf_now_ns(), busy = 0;
  uint64_t frames = 0;
  for (; frames == 0 || perf_now_ns() - start < ns; frames += burst) {
    int64_t before = writer_now_ns(step);
    stream_send(stream, STREAM_RING, burst);
    busy += writer_now_ns(step) - before;
    stream_finish(stream, STREAM_RING);
  }
  return (double)busy / (double)frames;
}

/* Frames a second, until the last reader has the last frame. */
static double measure_flood(struct stream *stream, uint64_t burst, int64_t ns) {
  int64_t start = perf_now_ns();
  uint64_t frames = 0;
  for (; frames == 0 || perf_now_ns() - start < ns; frames += burst) stream_send(stream, STREAM_RING, burst);
  stream_finish(stream, STREAM_RING);
  return (double)frames * 1e9 / (double)(perf_now_ns() - start);
}

/* A new ring and new processes for each number of readers. */
static void run_step(const struct perf_options *options, struct step *step, struct ringcast_info *info) {
  double bursts[BLOCKS], floods[BLOCKS];
  int64_t ns = (int64_t)(options->seconds * 1e9 / (2 * BLOCKS));
  struct stream *stream = stream_make(options, &(struct stream_options){.size = options->size,
                                                                        .capacity = options->capacity,
                                                                        .readers = step->readers,
                                                                        .spin_ns = step->pinned ? SPIN_NS : 0});
  if (!stream) perf_die("%s", perf_reason());
  *info = *stream_info(stream);
  uint64_t most = step->pinned ? BURST : CROWDED_BURST, fit = info->capacity / 4 / (options->size + PERF_LINE);
  uint64_t burst = fit < 1 ? 1 : fit < most ? fit : most;
  measure_flood(stream, burst, ns); /* warms up */
  for (int i = 0; i < BLOCKS; i++) {
    bursts[i] = measure_bursts(stream, step, burst, ns);
    floods[i] = measure_flood(stream, burst, ns);
    perf_progress(options, (step->readers - 1 + (double)i / BLOCKS) / options->readers);
  }
  stream_destroy(stream);
  step->writer_ns = perf_median(bursts, BLOCKS);
  step->frames_per_s = perf_median(floods, BLOCKS);
}

static void print(const struct perf_options *options, const struct ringcast_info *info, const struct step *steps) {
  struct report report;
  perf_print_head(&report, options, info, options->readers + 1);
  report_open(&report, "scale", '[');
  for (const struct step *step = steps; step < steps + options->readers; step++) {
    report_open(&report, NULL, '{');
    report_integer(&report, "readers", step->readers);
    report_number(&report, "writer_ns_per_frame", step->writer_ns);
    report_number(&report, "ratio", step->writer_ns / steps[0].writer_ns);
    report_number(&report, "frames_per_s", step->frames_per_s);
    report_boolean(&report, "pinned", step->pinned);
    report_close(&report);
  }
  report_close(&report);
  report_close(&report);
}

int perf_scale(const struct perf_options *options) {
  static struct step steps[PERF_MAX_READERS];
  struct ringcast_info info = {.size = sizeof info};
  if (options->readers + 1 > (uint32_t)options->cpu_count)
    cli_fail(CLI_OK, "more readers than CPUs: %u readers and the writer on %d; those steps are not pinned",
             options->readers, options->cpu_count);
  for (uint32_t i = 0; i < options->readers; i++) {
    steps[i] = (struct step){.readers = i + 1, .pinned = perf_cpu_of(options, 0, i + 2) >= 0};
    run_step(options, &steps[i], &info);
  }
  perf_progress(options, 1);
  print(options, &info, steps);
  return CLI_OK;
}
