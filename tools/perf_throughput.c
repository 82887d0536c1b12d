/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much a ring carries: one process copies a buffer into each frame, others read each frame in place, every byte.
 *
 * Three things are timed in turn, in short blocks:
 *   ring    frames through the ring
 *   floor   the same copying and the same reading without a ring (tools/perf_window.h). This is `memcpy_bytes_per_s`:
 *           what the cores can do when the bytes have to move from one to the other.
 *   alone   the copying without anybody who reads: `memcpy_alone_bytes_per_s`. No hand-over reaches it when a cache
 *           line that another core has read costs more to write.
 *
 * Counted too: the page faults of the ring's blocks. Frames in a ring cause none, since its memory is there
 * from the start.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tools/cli.h"
#include "tools/perf_window.h"

enum { RING, FLOOR, ALONE, KINDS };
enum { FEWEST_ROUNDS = 3, MOST_ROUNDS = 4096, FEWEST_FRAMES = 4 }; /* frames of a block, so that writing and reading
                                                                    * overlap */

struct shared {
  _Alignas(PERF_LINE) uint64_t command; /* block number * KINDS + kind */
  char ring[96];
  struct {
    _Alignas(PERF_LINE) uint64_t done; /* block number */
    uint64_t faults;                   /* in the ring's blocks but the first */
  } readers[];
};

struct bench {
  const struct perf_options *options;
  struct shared *shared;
  bool crowded;
  ringcast_writer *ring;
  struct ringcast_info info;
  struct window window;
  uint8_t *source;
  uint64_t sum; /* of the source */
  uint64_t frames, faults; /* through the ring and of the writer, in all blocks but the first */
};

static uint64_t page_faults(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (uint64_t)usage.ru_minflt;
}

/* ---- Readers ---------------------------------------------------------------------------------------------------- */

/* Up to an empty frame. */
static void read_ring(const struct bench *bench, ringcast_reader *reader) {
  for (;;) {
    struct ringcast_frame frame;
    perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
    bool end = frame.bytes == 0;
    uint64_t sum = sum_bytes(frame.data, frame.bytes);
    perf_must(ringcast_reader_release(reader, &frame), "can't release");
    if (end) return;
    if (sum != bench->sum) perf_die("a frame has come damaged");
  }
}

static void reader_body(void *context, uint32_t index) {
  struct bench bench = *(struct bench *)context;
  struct shared *shared = bench.shared;
  ringcast_reader *ring = perf_attach(shared->ring, 0);
  window_attach(&bench.window);
  for (uint64_t block = 1;; block++) {
    uint64_t command;
    while ((command = perf_load(&shared->command)) / KINDS != block) perf_relax(bench.crowded);
    uint64_t faults = page_faults();
    if (command % KINDS == RING) read_ring(&bench, ring);
    if (command % KINDS == RING && block >= KINDS) shared->readers[index].faults += page_faults() - faults;
    if (command % KINDS == FLOOR) window_read(&bench.window, index);
    perf_store(&shared->readers[index].done, block);
  }
}

/* ---- The writer ------------------------------------------------------------------------------------------------- */

static void write_ring(struct bench *bench, uint64_t frames) {
  size_t size = bench->options->size;
  while (frames-- > 0) {
    struct ringcast_span span;
    perf_must(ringcast_writer_reserve(bench->ring, size, RINGCAST_FOREVER, &span), "can't send");
    copy_bytes(span.data, bench->source, size);
    perf_must(ringcast_writer_commit(bench->ring, size, RINGCAST_KIND_BYTES), "can't send");
  }
}

static void write_frames(struct bench *bench, int kind, uint64_t frames) {
  if (kind == RING) write_ring(bench, frames);
  else if (kind == FLOOR) window_write(&bench->window, frames);
  else window_write_alone(&bench->window, frames);
}

static void write_end(struct bench *bench, int kind) {
  struct ringcast_span span;
  if (kind == FLOOR) window_flush(&bench->window);
  if (kind != RING) return;
  perf_must(ringcast_writer_reserve(bench->ring, 0, RINGCAST_FOREVER, &span), "can't send");
  perf_must(ringcast_writer_commit(bench->ring, 0, RINGCAST_KIND_BYTES), "can't send");
}

static void await_readers(const struct bench *bench, uint64_t block) {
  for (uint32_t i = 0; i < bench->options->readers; i++)
    while (perf_load(&bench->shared->readers[i].done) != block) perf_relax(bench->crowded);
}

/* Frames per second, counted until the last reader is done. */
static double measure_block(struct bench *bench, uint64_t block, int kind, int64_t ns) {
  uint64_t frames = 0, stride = bench->window.stride;
  uint64_t batch = stride < 65536 ? 65536 / stride : 1; /* frames for one look at the clock */
  perf_store(&bench->shared->command, block * KINDS + (uint64_t)kind);
  uint64_t faults = page_faults();
  int64_t start = perf_now_ns(), now;
  do {
    write_frames(bench, kind, batch);
    frames += batch;
  } while ((now = perf_now_ns()) - start < ns || frames < FEWEST_FRAMES);
  write_end(bench, kind);
  await_readers(bench, block);
  if (kind != ALONE) now = perf_now_ns();
  if (kind == RING && block >= KINDS) {
    bench->faults += page_faults() - faults;
    bench->frames += frames;
  }
  return (double)frames * 1e9 / (double)(now - start);
}

static void measure(struct bench *bench, double p50[KINDS]) {
  static double rates[KINDS][MOST_ROUNDS];
  double rounds = fmin(fmax(FEWEST_ROUNDS, ceil(bench->options->seconds / 0.15)), MOST_ROUNDS);
  int64_t total = (int64_t)(bench->options->seconds * 1e9), ns = total / (KINDS * (int64_t)rounds);
  uint64_t block = 0;
  size_t round = 0;
  /* The first lap, the readers' mapping. */
  for (int kind = 0; kind < KINDS; kind++) measure_block(bench, ++block, kind, ns);
  int64_t start = perf_now_ns();
  /* Large frames make long blocks: then there are fewer. */
  for (; round < (size_t)rounds && (round < FEWEST_ROUNDS || perf_now_ns() - start < total); round++) {
    for (int kind = 0; kind < KINDS; kind++) rates[kind][round] = measure_block(bench, ++block, kind, ns);
    perf_progress(bench->options, (double)round / rounds);
  }
  perf_progress(bench->options, 1);
  for (int kind = 0; kind < KINDS; kind++) {
    perf_sort(rates[kind], round);
    p50[kind] = perf_quantile(rates[kind], round, 0.5);
  }
}

/* ---- Setting up and printing ------------------------------------------------------------------------------------ */

static void print(const struct bench *bench, const double rates[KINDS]) {
  double size = (double)bench->options->size;
  double reader_faults = 0; /* of the one with most */
  struct json json = {.out = stdout};
  for (uint32_t i = 0; i < bench->options->readers; i++)
    reader_faults = fmax(reader_faults, (double)bench->shared->readers[i].faults);
  perf_print_head(&json, bench->options, &bench->info, bench->options->readers + 1);
  if (bench->options->json) {
    json_number(&json, "frames_per_s", rates[RING]);
    json_number(&json, "bytes_per_s", rates[RING] * size);
    json_number(&json, "memcpy_bytes_per_s", rates[FLOOR] * size);
    json_number(&json, "ratio", rates[RING] / rates[FLOOR]);
    json_number(&json, "memcpy_alone_bytes_per_s", rates[ALONE] * size);
    json_number(&json, "ratio_alone", rates[RING] / rates[ALONE]);
    json_number(&json, "writer_faults_per_frame", (double)bench->faults / (double)bench->frames);
    json_number(&json, "reader_faults_per_frame", reader_faults / (double)bench->frames);
    json_close(&json, '}');
    return;
  }
  static const char *const labels[KINDS] = {"ring", "memcpy, read by the others", "memcpy alone, nobody reads"};
  printf("%-28s %14s %10s\n", "", "frames/s", "GB/s");
  for (int kind = 0; kind < KINDS; kind++)
    printf("%-28s %14.*f %10.2f\n", labels[kind], rates[kind] < 1000 ? 2 : 0, rates[kind], rates[kind] * size / 1e9);
  printf("\nratio to memcpy, read by the others %.3f, to memcpy alone %.3f\n", rates[RING] / rates[FLOOR],
         rates[RING] / rates[ALONE]);
  printf("page faults for a frame: writer %.4g, reader %.4g\n", (double)bench->faults / (double)bench->frames,
         reader_faults / (double)bench->frames);
}

int perf_throughput(const struct perf_options *options) {
  uint32_t parties = options->readers + 1;
  struct perf_children children = {0};
  struct bench bench = {.options = options, .crowded = perf_cpu_of(options, 0, parties) < 0};
  double rates[KINDS];
  bench.shared = perf_shared(sizeof(struct shared) + options->readers * sizeof bench.shared->readers[0]);
  bench.ring = perf_writer(options, options->capacity, 0);
  bench.info.size = sizeof bench.info;
  perf_must(ringcast_writer_info(bench.ring, &bench.info), "no facts of the ring");
  bench.source = perf_source(options->size);
  bench.sum = sum_bytes(bench.source, options->size);
  window_make(&bench.window, bench.source, options->size,
              &(struct window_wish){bench.info.capacity, bench.info.memory, options->readers, bench.crowded});
  strncpy(bench.shared->ring, ringcast_writer_handle(bench.ring), sizeof bench.shared->ring - 1);
  for (uint32_t i = 0; i < options->readers; i++) perf_start(&children, options, parties, reader_body, &bench);
  perf_pin(perf_cpu_of(options, 0, parties));
  perf_must(ringcast_writer_wait_readers(bench.ring, options->readers, RINGCAST_FOREVER), "no readers");
  window_open(&bench.window);
  measure(&bench, rates);
  perf_stop(&children);
  print(&bench, rates);
  free(bench.source);
  window_destroy(&bench.window);
  ringcast_writer_close(bench.ring);
  return CLI_OK;
}
