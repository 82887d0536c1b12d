/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases between processes, and of the hot path. frames.c has the cases of a frame's contents.
 *
 *   full, spill, pages, tap
 *            streams with a ring of one page, which has room for three frames; with frames just
 *            below and just above half the ring; in each kind of memory; with a tap. `ringcast perf
 *            throughput` measures frames of any size, and more readers
 *   batch    streams of small messages: single calls, batches, and the floor
 *   stores   streams of large frames, copied into the ring and out of the ring by memcpy, or past
 *            the cache
 *   alone    the two halves of the hot path in one process: reserve and commit, next and release;
 * no byte of payload is touched. The half way from process to process is `ringcast perf latency`
 */
#define _GNU_SOURCE
#include "bench/micro/cases.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <stdint.h>
#include <string.h>

#include "tools/measure/stream.h"

enum { KI = 1 << 10, MI = 1 << 20 };

static struct perf_options machine; /* the CPUs alone */

void bench_begin(void) {
  perf_find_cpus(&machine);
  perf_watch_children();
}

void bench_pin(void) { perf_pin(perf_cpu_of(&machine, 0, 1)); }
void bench_unpin(void) { perf_unpin(&machine); }

const char *bench_reason(void) { return perf_reason(); }

/* ---- Streams --------------------------------------------------------------------------------- */

struct stream_case {
  struct stream_options options;
  enum stream_kind kind;
};

static void *set_up_stream(const struct bench_case *self) {
  const struct stream_case *wanted = self->options;
  struct stream_options options = wanted->options;
  uint32_t participants = options.readers + options.taps + 1, cpus = (uint32_t)machine.cpu_count;
  options.size = self->bytes;
  options.floor = wanted->kind != STREAM_RING;
  if (options.taps > 0 && participants > cpus)
    return perf_skip("needs %u CPUs, and %u may be used", participants, cpus);
  return stream_make(&machine, &options);
}

static double run_stream(const struct bench_case *self, void *stream, uint64_t iterations) {
  const struct stream_case *wanted = self->options;
  return stream_run(stream, wanted->kind, iterations);
}

static double tear_down_stream(void *stream) {
  double lost = stream_tap_lost(stream);
  stream_destroy(stream);
  return lost;
}

/* ---- Two ways to copy a large block: on CPUs other than x86-64 both are memcpy --------------- */

static void copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

#ifdef __SSE2__
/* The fence orders the stores before the commit that follows. */
static void copy_past_cache(void *to, const void *from, size_t bytes) {
  enum { VECTOR = sizeof(__m128i) };
  size_t done = (size_t)(-(uintptr_t)to % VECTOR);
  if (done > bytes) done = bytes;
  memcpy(to, from, done);
  for (; bytes - done >= VECTOR; done += VECTOR)
    _mm_stream_si128((__m128i *)((uint8_t *)to + done),
                     _mm_loadu_si128((const __m128i *)((const uint8_t *)from + done)));
  memcpy((uint8_t *)to + done, (const uint8_t *)from + done, bytes - done);
  _mm_sfence();
}
#else
static void copy_past_cache(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
#endif

/* ---- The two halves -------------------------------------------------------------------------- */

struct alone {
  ringcast_writer *writer;
  ringcast_reader *reader; /* NULL: only the writer's half is measured */
};

static double run_writer(const struct bench_case *self, void *state, uint64_t iterations) {
  const struct alone *alone = state;
  int64_t start = perf_now_ns();
  for (struct ringcast_span span; iterations > 0; iterations--) {
    perf_must(ringcast_writer_reserve(alone->writer, self->bytes, RINGCAST_FOREVER, &span),
              "can't reserve");
    perf_must(ringcast_writer_commit(alone->writer, self->bytes, RINGCAST_KIND_BYTES),
              "can't commit");
  }
  return (double)(perf_now_ns() - start) * 1e-9;
}

/* The frames are there before the clock starts: a batch fits into half the ring. */
static double run_reader(const struct bench_case *self, void *state, uint64_t iterations) {
  const struct alone *alone = state;
  run_writer(self, state, iterations);
  int64_t start = perf_now_ns();
  for (struct ringcast_frame frame; iterations > 0; iterations--) {
    perf_must(ringcast_reader_next(alone->reader, RINGCAST_FOREVER, &frame), "can't receive");
    perf_must(ringcast_reader_release(alone->reader, &frame), "can't release");
  }
  return (double)(perf_now_ns() - start) * 1e-9;
}

static void *set_up_alone(const struct bench_case *self) {
  static struct alone alone;
  struct ringcast_writer_options options = {
      .size = sizeof options, .readers = 1, .capacity = MI /* fits in L2 */};
  alone = (struct alone){0};
  bench_pin();
  perf_must(ringcast_writer_create_ex(&options, &alone.writer), "can't make a ring");
  if (self->run == run_reader)
    perf_must(ringcast_reader_attach(ringcast_writer_handle(alone.writer), &alone.reader),
              "can't attach");
  return &alone;
}

static double tear_down_alone(void *state) {
  struct alone *alone = state;
  bench_unpin();
  ringcast_reader_close(alone->reader);
  ringcast_writer_close(alone->writer);
  return 0;
}

/* ---- The table ------------------------------------------------------------------------------- */

#define ALONE(name, run) \
  { "alone/" name, 40, 1000, set_up_alone, run, tear_down_alone, NULL }
/* A batch is long enough for the clock's cost, and for the writer to lap the ring. */
#define STREAM(name, bytes, batch, of, ...)                                                        \
  {                                                                                                \
    name, bytes, batch, set_up_stream, run_stream, tear_down_stream, &(const struct stream_case) { \
      {__VA_ARGS__}, of                                                                            \
    }                                                                                              \
  }
#define FULL(name, of, room)      STREAM("full/" name, KI, 1000, of, .readers = 1, .capacity = room)
#define SPILL(name, bytes, of)    STREAM("spill/" name, bytes, 32, of, .readers = 1, .capacity = MI)
#define BATCH(name, bytes, of, n) STREAM("batch/" name, bytes, 100000, of, .readers = 1, .batch = n)
#define TAP(name, readers_of, n) \
  STREAM("tap/" name, 40, 100000, STREAM_RING, .readers = readers_of, .taps = n)
#define STORES(name, mib, batch, ...) \
  STREAM("stores/" name, (size_t)mib *MI, batch, STREAM_RING, .readers = 1, __VA_ARGS__)
#define STORES_OF(mib, batch)                                                    \
  STORES(#mib "_in_memcpy", mib, batch, .copy_in = copy),                        \
      STORES(#mib "_in_past", mib, batch, .copy_in = copy_past_cache),           \
      STORES(#mib "_out_memcpy", mib, batch, .copy_in = copy, .copy_out = copy), \
      STORES(#mib "_out_past", mib, batch, .copy_in = copy, .copy_out = copy_past_cache)
#define PAGES(name, kind)                                                             \
  STREAM("pages/" name, 64 * KI, 256, STREAM_RING, .readers = 1, .capacity = 64 * MI, \
         .memory = kind)
enum { IN_RING = MI / 2 - 2 * 64 /* of payload: half the ring, less two headers' lines */ };

const struct bench_case bench_cases[] = {
    ALONE("reserve_commit", run_writer),
    ALONE("next_release", run_reader),
    FULL("room_enough", STREAM_RING, 0),
    FULL("room_short", STREAM_RING, 4096),
    FULL("memcpy", STREAM_FLOOR, 4096),
    SPILL("in_the_ring", IN_RING, STREAM_RING),
    SPILL("beside_the_ring", IN_RING + 4 * KI, STREAM_RING),
    SPILL("memcpy", IN_RING + 4 * KI, STREAM_FLOOR),
    BATCH("16_one_by_one", 16, STREAM_RING, 0),
    BATCH("16_by_16", 16, STREAM_RING, 16),
    BATCH("16_by_256", 16, STREAM_RING, 256),
    BATCH("16_memcpy", 16, STREAM_FLOOR, 0),
    BATCH("64_one_by_one", 64, STREAM_RING, 0),
    BATCH("64_by_256", 64, STREAM_RING, 256),
    BATCH("64_memcpy", 64, STREAM_FLOOR, 0),
    BATCH("256_one_by_one", 256, STREAM_RING, 0),
    BATCH("256_by_256", 256, STREAM_RING, 256),
    BATCH("256_memcpy", 256, STREAM_FLOOR, 0),
    PAGES("hugetlb", RINGCAST_MEMORY_HUGETLB),
    PAGES("shmem-huge", RINGCAST_MEMORY_SHMEM_HUGE),
    PAGES("small", RINGCAST_MEMORY_PAGES),
    STORES_OF(1, 64),
    STORES_OF(4, 16),
    STORES_OF(16, 4),
    STORES_OF(64, 2),
    STORES_OF(256, 1),
    TAP("nobody", 0, 0),
    TAP("tap", 0, 1),
    TAP("reader", 1, 0),
    TAP("reader_and_tap", 1, 1),
};
const size_t bench_case_count = sizeof bench_cases / sizeof *bench_cases;
