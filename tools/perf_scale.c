/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a frame costs its writer, by the number of readers. Two ways of sending take turns, in short blocks:
 *   bursts   a few frames, at most a quarter of the ring, then a wait until every reader has them all: only the sending
 *            is timed, so this is the writer's own time while its readers keep up: writer_ns_per_frame. With fewer CPUs
 *            than processes it is the writer's CPU time: by the clock on the wall it would be the readers' time
 *            on its CPU.
 *   flood    without a stop, so the slowest reader sets the pace once the ring is full: frames_per_s
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/cli.h"
#include "tools/perf.h"

enum { BURST = 64, CROWDED_BURST = 1024, BLOCKS = 40 }; /* a reading of the CPU time costs as much as many frames */

static const int64_t SPIN_NS = 3600000000000; /* while everyone has a CPU, nobody sleeps */

struct shared {
  char handle[96];
  struct {
    _Alignas(PERF_LINE) uint64_t frames; /* that this reader has released */
  } readers[PERF_MAX_READERS];
};

struct scale {
  const struct perf_options *options;
  struct shared *shared;
  uint32_t readers;
  bool crowded;
  ringcast_writer *writer;
  uint8_t *source;
  uint64_t sum, sent;
  uint64_t burst; /* frames */
};

struct step {
  uint32_t readers;
  bool pinned;
  double writer_ns, frames_per_s;
};

static void reader_body(void *context, uint32_t index) {
  struct scale *scale = context;
  ringcast_reader *reader = perf_attach(scale->shared->handle, scale->crowded ? 0 : SPIN_NS);
  for (uint64_t frames = 1;; frames++) {
    struct ringcast_frame frame;
    perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
    uint64_t sum = sum_bytes(frame.data, frame.bytes);
    perf_must(ringcast_reader_release(reader, &frame), "can't release");
    if (sum != scale->sum) perf_die("frame %llu has come damaged", (unsigned long long)frames);
    perf_store(&scale->shared->readers[index].frames, frames);
  }
}

static void send(struct scale *scale) {
  struct ringcast_span span;
  perf_must(ringcast_writer_reserve(scale->writer, scale->options->size, RINGCAST_FOREVER, &span), "can't send");
  memcpy(span.data, scale->source, scale->options->size);
  perf_must(ringcast_writer_commit(scale->writer, scale->options->size, RINGCAST_KIND_BYTES), "can't send");
  scale->sent++;
}

static void await_readers(struct scale *scale) {
  for (uint32_t i = 0; i < scale->readers; i++)
    while (perf_load(&scale->shared->readers[i].frames) != scale->sent) perf_relax(scale->crowded);
}

static int64_t writer_now_ns(const struct scale *scale) {
  struct timespec used;
  if (!scale->crowded) return perf_now_ns();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Nanoseconds of the writer for a frame. */
static double measure_bursts(struct scale *scale, int64_t ns) {
  int64_t start = perf_now_ns(), busy = 0, before, after;
  uint64_t frames = 0;
  do {
    before = writer_now_ns(scale);
    for (uint64_t i = 0; i < scale->burst; i++) send(scale);
    after = writer_now_ns(scale);
    busy += after - before;
    frames += scale->burst;
    await_readers(scale);
  } while (perf_now_ns() - start < ns);
  return (double)busy / (double)frames;
}

/* Frames a second, until the last reader has the last. */
static double measure_flood(struct scale *scale, int64_t ns) {
  int64_t start = perf_now_ns();
  uint64_t frames = 0;
  do {
    for (uint64_t i = 0; i < scale->burst; i++) send(scale);
    frames += scale->burst;
  } while (perf_now_ns() - start < ns);
  await_readers(scale);
  return (double)frames * 1e9 / (double)(perf_now_ns() - start);
}

static void measure(struct scale *scale, struct step *step) {
  double bursts[BLOCKS], floods[BLOCKS], all = scale->options->readers;
  int64_t ns = (int64_t)(scale->options->seconds * 1e9 / (2 * BLOCKS));
  measure_flood(scale, ns); /* warms up */
  for (int i = 0; i < BLOCKS; i++) {
    bursts[i] = measure_bursts(scale, ns);
    floods[i] = measure_flood(scale, ns);
    perf_progress(scale->options, (scale->readers - 1 + (double)i / BLOCKS) / all);
  }
  perf_sort(bursts, BLOCKS);
  perf_sort(floods, BLOCKS);
  step->writer_ns = perf_quantile(bursts, BLOCKS, 0.5);
  step->frames_per_s = perf_quantile(floods, BLOCKS, 0.5);
}

static uint64_t most_frames(const struct scale *scale, const struct ringcast_info *info) {
  uint64_t most = scale->crowded ? CROWDED_BURST : BURST, fit = info->capacity / 4 / (scale->options->size + PERF_LINE);
  return fit < 1 ? 1 : fit < most ? fit : most;
}

/* A new ring and new processes for each number of readers. */
static void run_step(const struct perf_options *options, struct step *step, struct ringcast_info *info) {
  static struct perf_children children;
  uint32_t parties = step->readers + 1;
  struct scale scale = {.options = options, .readers = step->readers, .crowded = !step->pinned};
  scale.shared = perf_shared(sizeof *scale.shared);
  scale.source = perf_source(options->size);
  scale.sum = sum_bytes(scale.source, options->size);
  scale.writer = perf_writer(options, options->capacity, scale.crowded ? 0 : SPIN_NS);
  strncpy(scale.shared->handle, ringcast_writer_handle(scale.writer), sizeof scale.shared->handle - 1);
  for (uint32_t i = 0; i < step->readers; i++) perf_start(&children, options, parties, reader_body, &scale);
  perf_must(ringcast_writer_wait_readers(scale.writer, step->readers, RINGCAST_FOREVER), "no readers");
  perf_must(ringcast_writer_info(scale.writer, info), "no facts of the ring");
  scale.burst = most_frames(&scale, info);
  measure(&scale, step);
  perf_stop(&children);
  ringcast_writer_close(scale.writer);
  free(scale.source);
  perf_unshare(scale.shared, sizeof *scale.shared);
}

static void print(const struct perf_options *options, const struct ringcast_info *info, const struct step *steps) {
  struct json json = {.out = stdout};
  perf_print_head(&json, options, info, options->readers + 1);
  if (options->json)
    json_open(&json, "scale", '[');
  else
    printf("ns per frame: in bursts that fit into the ring; frames/s: as fast as the slowest reader takes them\n\n"
           "%8s %22s %10s %14s\n", "readers", "writer, ns per frame", "to 1", "frames/s");
  for (uint32_t i = 0; i < options->readers; i++) {
    const struct step *step = &steps[i];
    if (!options->json) {
      printf("%8u %22.1f %10.2f %14.0f%s\n", step->readers, step->writer_ns, step->writer_ns / steps[0].writer_ns,
             step->frames_per_s, step->pinned ? "" : "   more readers than CPUs");
      continue;
    }
    json_open(&json, NULL, '{');
    json_integer(&json, "readers", step->readers);
    json_number(&json, "writer_ns_per_frame", step->writer_ns);
    json_number(&json, "ratio", step->writer_ns / steps[0].writer_ns);
    json_number(&json, "frames_per_s", step->frames_per_s);
    json_boolean(&json, "pinned", step->pinned);
    if (!step->pinned) json_string(&json, "note", "more readers than CPUs");
    json_close(&json, '}');
  }
  if (!options->json) return;
  json_close(&json, ']');
  json_close(&json, '}');
}

int perf_scale(const struct perf_options *options) {
  static struct step steps[PERF_MAX_READERS];
  struct ringcast_info info = {.size = sizeof info};
  int first = perf_cpu_of(options, 0, 2);
  if (options->readers + 1 > (uint32_t)options->cpu_count)
    fprintf(stderr, "ringcast: more readers than CPUs: %u readers and the writer on %d; those steps are not pinned\n",
            options->readers, options->cpu_count);
  for (uint32_t i = 0; i < options->readers; i++) {
    steps[i] = (struct step){.readers = i + 1, .pinned = perf_cpu_of(options, 0, i + 2) >= 0};
    if (steps[i].pinned) perf_pin(first);
    else perf_unpin(options);
    run_step(options, &steps[i], &info);
  }
  perf_progress(options, 1);
  print(options, &info, steps);
  return CLI_OK;
}
