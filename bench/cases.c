/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases.
 *   stream, full, spill, pages, tap
 *                tools/measure/stream.h: small and large frames; with a ring of one page, which has room for three
 *                frames; with frames just below and just above half the ring; in each kind of memory; with an observer.
 *                `ringcast perf throughput` and `scale` have more sizes, and more readers
 *   one_way      tools/measure/trip.h: half of a round trip, over rings and over bare cache lines
 *   alone        the two halves of the hot path in one process: reserve and commit, next and release; no byte of
 *                payload is touched
 */
#define _GNU_SOURCE
#include "bench/cases.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/measure/stream.h"
#include "tools/measure/trip.h"
#include "tools/perf.h"

enum { KI = 1 << 10, MI = 1 << 20 };
#define ALONE_BYTES MI /* fits in L2: the memory is not what is measured */

static struct perf_options machine; /* the CPUs; the other fields are zero */
static const char *figure_key;
static double figure_value;

void bench_begin(void) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) perf_die("can't tell the CPUs: %s", strerror(errno));
  for (int cpu = 0; cpu < CPU_SETSIZE && machine.cpu_count < PERF_MAX_CPUS; cpu++)
    if (CPU_ISSET(cpu, &allowed)) machine.cpus[machine.cpu_count++] = cpu;
  perf_watch_children();
}

const char *bench_reason(void) { return perf_reason(); }

bool bench_figure(const char **key, double *value) {
  *key = figure_key;
  *value = figure_value;
  figure_key = NULL;
  return *key;
}

const char *bench_cpu(void) {
  static char model[256];
  return cli_cpu_model(model, sizeof model);
}

/* ---- Streams ---------------------------------------------------------------------------------------------------- */

struct stream_case {
  struct stream_options options;
  enum stream_kind kind;
};

struct running {
  const struct stream_case *self;
  struct stream *stream;
};

static bool has_cpus(const struct stream_options *options) {
  uint32_t participants = options->readers + options->taps + 1, cpus = (uint32_t)machine.cpu_count;
  return options->taps == 0 || participants <= cpus ||
         perf_skip("needs %u CPUs, and %u may be used", participants, cpus);
}

static void *set_up_stream(const struct bench_case *self) {
  const struct stream_case *stream_case = self->options;
  struct stream_options options = stream_case->options;
  options.size = self->bytes;
  options.floor = stream_case->kind != STREAM_RING;
  struct stream *stream = has_cpus(&options) ? stream_make(&machine, &options) : NULL;
  if (!stream) return NULL;
  struct running *running = malloc(sizeof *running);
  if (!running) perf_die("no memory");
  *running = (struct running){stream_case, stream};
  return running;
}

static double run_stream(void *state, uint64_t iterations) {
  const struct running *running = state;
  return stream_run(running->stream, running->self->kind, iterations);
}

static void tear_down_stream(void *state) {
  struct running *running = state;
  if (running->self->options.taps > 0) {
    figure_key = "tap_lost_percent";
    figure_value = 100 * stream_tap_lost(running->stream, 0);
  }
  stream_destroy(running->stream);
  free(running);
}

/* ---- Trips ------------------------------------------------------------------------------------------------------ */

struct trip_state {
  enum trip_kind kind;
  struct trips *trips;
};

static void *set_up_trips(const struct bench_case *self) {
  static struct perf_options options;
  static struct trip_state state;
  options = machine;
  options.size = self->bytes;
  options.readers = 1;
  if (machine.cpu_count < 2) return perf_skip("needs 2 CPUs, and 1 may be used");
  state = (struct trip_state){*(const enum trip_kind *)self->options, trips_make(&options)};
  return &state;
}

static double run_trips(void *state, uint64_t iterations) {
  const struct trip_state *self = state;
  double ns[TRIP_MOST];
  int count = (int)iterations, group = count % TRIP_GROUP == 0 ? TRIP_GROUP : 1;
  trips_run(self->trips, self->kind, count, group, ns);
  return perf_median(ns, (size_t)(count / group)) * count * 1e-9; /* trips without a CPU do not count */
}

static void tear_down_trips(void *state) { trips_destroy(((struct trip_state *)state)->trips); }

/* ---- The two halves --------------------------------------------------------------------------------------------- */

struct alone {
  size_t size;
  ringcast_writer *writer;
  ringcast_reader *reader; /* NULL: only the writer's half is measured */
};

static void *set_up_alone(const struct bench_case *self) {
  struct ringcast_writer_options options = {.size = sizeof options, .readers = 1, .capacity = ALONE_BYTES};
  struct alone *alone = calloc(1, sizeof *alone);
  if (!alone) perf_die("no memory");
  alone->size = self->bytes;
  perf_pin(perf_cpu_of(&machine, 0, 1));
  perf_must(ringcast_writer_create_ex(&options, &alone->writer), "can't make a ring");
  return alone;
}

static void *set_up_reader(const struct bench_case *self) {
  struct alone *alone = set_up_alone(self);
  perf_must(ringcast_reader_attach(ringcast_writer_handle(alone->writer), &alone->reader), "can't attach");
  return alone;
}

static void write_frames(const struct alone *alone, uint64_t frames) {
  struct ringcast_span span;
  while (frames-- > 0) {
    perf_must(ringcast_writer_reserve(alone->writer, alone->size, RINGCAST_FOREVER, &span), "can't reserve");
    perf_must(ringcast_writer_commit(alone->writer, alone->size, RINGCAST_KIND_BYTES), "can't commit");
  }
}

static void read_frames(const struct alone *alone, uint64_t frames) {
  struct ringcast_frame frame;
  while (frames-- > 0) {
    perf_must(ringcast_reader_next(alone->reader, RINGCAST_FOREVER, &frame), "can't receive");
    perf_must(ringcast_reader_release(alone->reader, &frame), "can't release");
  }
}

static double run_writer(void *state, uint64_t iterations) {
  int64_t start = perf_now_ns();
  write_frames(state, iterations);
  return (double)(perf_now_ns() - start) * 1e-9;
}

/* The frames are there before the clock starts: a batch fits into half the ring. */
static double run_reader(void *state, uint64_t iterations) {
  write_frames(state, iterations);
  int64_t start = perf_now_ns();
  read_frames(state, iterations);
  return (double)(perf_now_ns() - start) * 1e-9;
}

static void tear_down_alone(void *state) {
  struct alone *alone = state;
  perf_unpin(&machine);
  ringcast_reader_close(alone->reader);
  ringcast_writer_close(alone->writer);
  free(alone);
}

/* ---- The table -------------------------------------------------------------------------------------------------- */

#define STREAM(name, bytes, kind, batch, ...) \
  { name, bytes, set_up_stream, run_stream, tear_down_stream, &(const struct stream_case){{__VA_ARGS__}, kind}, batch }
#define SIZE(text, bytes)                                           \
  STREAM("stream/ring/" text, bytes, STREAM_RING, 0, .readers = 1), \
      STREAM("stream/memcpy/" text, bytes, STREAM_FLOOR, 0, .readers = 1)
#define PAGES(text, wanted)                                                                             \
  STREAM("pages/" text "/40", 40, STREAM_RING, 0, .readers = 1, .capacity = 64 * MI, .memory = wanted), \
      STREAM("pages/" text "/65536", 64 * KI, STREAM_RING, 0, .readers = 1, .capacity = 64 * MI, .memory = wanted)
#define FULL(text, kind, ...)    STREAM("full/" text, KI, kind, 0, .readers = 1, __VA_ARGS__)
#define SPILL(text, bytes, kind) STREAM("spill/" text, bytes, kind, 0, .readers = 1, .capacity = MI)
#define TAP(text, reader_count, tap_count) \
  STREAM("tap/" text, 40, STREAM_RING, 100000, .readers = reader_count, .taps = tap_count)
#define TRIP(text, kind) \
  { "one_way/" text, 40, set_up_trips, run_trips, tear_down_trips, &(const enum trip_kind){kind}, TRIP_MOST }
enum { IN_RING = MI / 2 - 2 * 64 /* of payload: half the ring, less two headers' lines */ };

const struct bench_case bench_cases[] = {
    TRIP("ring", TRIP_RING),
    TRIP("floor", TRIP_FLOOR),
    TRIP("line", TRIP_LINE),
    {"alone/reserve_commit", 40, set_up_alone, run_writer, tear_down_alone, NULL, 1000},
    {"alone/next_release", 40, set_up_reader, run_reader, tear_down_alone, NULL, 1000},
    SIZE("40", 40),
    SIZE("65536", 64 * KI),
    FULL("room_enough", STREAM_RING),
    FULL("room_short", STREAM_RING, .capacity = 4096),
    FULL("memcpy", STREAM_FLOOR, .capacity = 4096),
    FULL("slow_reader_2us", STREAM_RING, .capacity = 4096, .work_ns = 2000),
    SPILL("in_the_ring", IN_RING, STREAM_RING),
    SPILL("beside_the_ring", IN_RING + 4 * KI, STREAM_RING),
    SPILL("memcpy", IN_RING + 4 * KI, STREAM_FLOOR),
    PAGES("hugetlb", RINGCAST_MEMORY_HUGETLB),
    PAGES("shmem-huge", RINGCAST_MEMORY_SHMEM_HUGE),
    PAGES("small", RINGCAST_MEMORY_PAGES),
    TAP("nobody", 0, 0),
    TAP("tap", 0, 1),
    TAP("reader", 1, 0),
    TAP("reader_and_tap", 1, 1),
};
const size_t bench_case_count = sizeof bench_cases / sizeof *bench_cases;
