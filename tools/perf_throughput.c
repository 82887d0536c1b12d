/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much a ring carries: one process copies a buffer into each frame, others read each frame in place, every byte.
 *
 * Three things are timed in turn, in short blocks:
 *   ring    frames through the ring
 *   floor   the same copying and the same reading, in memory of the same kind and size and in the same places, handed
 *           over by nothing but two counters. This is `memcpy_bytes_per_s`: what the cores can do when the bytes have
 *           to move from one to the other. The memory is a frame of a second ring, held by all: so it has the same pages.
 *   alone   the copying without anybody who reads: `memcpy_alone_bytes_per_s`. No hand-over reaches it when a cache line
 *           that another core has read costs more to write.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/perf.h"

enum { RING, FLOOR, ALONE, KINDS };
enum { MOST_BLOCKS = 4096 };

#define HEADER    16
#define PUBLISHED 4096 /* the floor's counter of frames written moves once in so many bytes, or with each frame that is larger */

struct shared {
  _Alignas(PERF_LINE) uint64_t command; /* block number * KINDS + kind */
  _Alignas(PERF_LINE) uint64_t written; /* the floor's: frames */
  _Alignas(PERF_LINE) uint64_t last;    /* the block's last frame + 1, 0 while that is open */
  char ring[96], floor[96];
  struct {
    _Alignas(PERF_LINE) uint64_t read;
    _Alignas(PERF_LINE) uint64_t done; /* block number */
    uint64_t sum;
  } readers[];
};

struct bench {
  const struct perf_options *options;
  struct shared *shared;
  bool crowded;
  ringcast_writer *ring, *floor;
  struct ringcast_info info;
  uint8_t *window; /* the floor's memory, as the writer has it */
  uint8_t *source;
  uint64_t sum;    /* of the source */
  uint64_t slots;  /* frames that the window holds */
  uint64_t stride;
  uint64_t every;  /* frames between two stores of a counter */
  uint64_t frames; /* through the floor so far */
  uint64_t released;
};

/* ---- Readers ---------------------------------------------------------------------------------------------------- */

static uint64_t read_ring(ringcast_reader *reader) {
  uint64_t sum = 0;
  for (;;) {
    struct ringcast_frame frame;
    perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
    bool end = frame.bytes == 0;
    sum += perf_sum(frame.data, frame.bytes);
    perf_must(ringcast_reader_release(reader, &frame), "can't release");
    if (end) return sum;
  }
}

static uint64_t read_floor(struct bench *bench, const uint8_t *window, uint32_t index) {
  struct shared *shared = bench->shared;
  uint64_t sum = 0, at = bench->frames, written;
  for (;;) {
    while ((written = perf_load(&shared->written)) == at) {
      if (perf_load(&shared->last) == at + 1) {
        bench->frames = at;
        return sum;
      }
      perf_relax(bench->crowded);
    }
    while (at < written) {
      sum += perf_sum(window + at % bench->slots * bench->stride + HEADER, bench->options->size);
      if (++at % bench->every == 0 || at == written) perf_store(&shared->readers[index].read, at);
    }
  }
}

static void reader_body(void *context, uint32_t index) {
  struct bench bench = *(struct bench *)context;
  struct shared *shared = bench.shared;
  ringcast_reader *ring = perf_attach(shared->ring, 0), *floor = perf_attach(shared->floor, 0);
  struct ringcast_frame window;
  perf_must(ringcast_reader_next(floor, RINGCAST_FOREVER, &window), "can't receive");
  for (uint64_t block = 1;; block++) {
    uint64_t command;
    while ((command = perf_load(&shared->command)) / KINDS != block) perf_relax(bench.crowded);
    int kind = (int)(command % KINDS);
    uint64_t sum = 0;
    if (kind == RING) sum = read_ring(ring);
    if (kind == FLOOR) sum = read_floor(&bench, window.data, index);
    shared->readers[index].sum = sum;
    perf_store(&shared->readers[index].done, block);
  }
}

/* ---- The writer ------------------------------------------------------------------------------------------------- */

static void write_ring(struct bench *bench) {
  struct ringcast_span span;
  perf_must(ringcast_writer_reserve(bench->ring, bench->options->size, RINGCAST_FOREVER, &span), "can't send");
  memcpy(span.data, bench->source, bench->options->size);
  perf_must(ringcast_writer_commit(bench->ring, bench->options->size, RINGCAST_KIND_BYTES), "can't send");
}

static void write_window(struct bench *bench) {
  memcpy(bench->window + bench->frames++ % bench->slots * bench->stride + HEADER, bench->source, bench->options->size);
}

static void write_floor(struct bench *bench) {
  struct shared *shared = bench->shared;
  while (bench->frames - bench->released >= bench->slots) {
    uint64_t least = UINT64_MAX;
    perf_store(&shared->written, bench->frames);
    for (uint32_t i = 0; i < bench->options->readers; i++) {
      uint64_t read = perf_load(&shared->readers[i].read);
      if (read < least) least = read;
    }
    bench->released = least;
    if (bench->frames - least >= bench->slots) perf_relax(bench->crowded);
  }
  write_window(bench);
  if (bench->frames % bench->every == 0) perf_store(&shared->written, bench->frames);
}

static void write_end(struct bench *bench, int kind) {
  struct ringcast_span span;
  if (kind == RING) {
    perf_must(ringcast_writer_reserve(bench->ring, 0, RINGCAST_FOREVER, &span), "can't send");
    perf_must(ringcast_writer_commit(bench->ring, 0, RINGCAST_KIND_BYTES), "can't send");
  } else if (kind == FLOOR) {
    perf_store(&bench->shared->written, bench->frames);
    perf_store(&bench->shared->last, bench->frames + 1);
  }
}

/* Waits until all have read all of it, and compares what they read. */
static void await_readers(struct bench *bench, uint64_t block, uint64_t sum) {
  for (uint32_t i = 0; i < bench->options->readers; i++) {
    while (perf_load(&bench->shared->readers[i].done) != block) perf_relax(bench->crowded);
    if (bench->shared->readers[i].sum != sum) perf_die("reader %u has read something else than was written", i);
  }
}

/* Frames per second, counted until the last reader is done. */
static double measure_block(struct bench *bench, uint64_t block, int kind, int64_t ns) {
  static void (*const writes[])(struct bench *) = {write_ring, write_floor, write_window};
  uint64_t frames = 0, alone = bench->frames;
  uint64_t batch = bench->stride < 65536 ? 65536 / bench->stride : 1; /* frames for one look at the clock */
  bench->shared->last = 0;
  perf_store(&bench->shared->command, block * KINDS + (uint64_t)kind);
  int64_t start = perf_now_ns(), now;
  do {
    for (uint64_t i = 0; i < batch; i++) writes[kind](bench);
    frames += batch;
  } while ((now = perf_now_ns()) - start < ns);
  write_end(bench, kind);
  await_readers(bench, block, kind == ALONE ? 0 : frames * bench->sum);
  if (kind != ALONE) now = perf_now_ns();
  else bench->frames = alone; /* the floor goes on where it was */
  return (double)frames * 1e9 / (double)(now - start);
}

static void measure(struct bench *bench, double p50[KINDS]) {
  static double rates[KINDS][MOST_BLOCKS];
  double rounds = fmin(fmax(3, ceil(bench->options->seconds / 0.15)), MOST_BLOCKS);
  int64_t ns = (int64_t)(bench->options->seconds * 1e9 / (KINDS * rounds));
  uint64_t block = 0;
  measure_block(bench, ++block, RING, ns); /* warms up: the first lap of each, and the readers' mapping */
  measure_block(bench, ++block, FLOOR, ns);
  for (int round = 0; round < (int)rounds; round++) {
    for (int kind = 0; kind < KINDS; kind++) rates[kind][round] = measure_block(bench, ++block, kind, ns);
    perf_progress(bench->options, round / rounds);
  }
  perf_progress(bench->options, 1);
  for (int kind = 0; kind < KINDS; kind++) {
    perf_sort(rates[kind], (size_t)rounds);
    p50[kind] = perf_quantile(rates[kind], (size_t)rounds, 0.5);
  }
}

/* ---- Setting up and printing ------------------------------------------------------------------------------------ */

/* Makes the second ring, whose one frame will be the floor's memory: as large as the first ring, if it takes that. */
static void make_floor(struct bench *bench) {
  struct ringcast_info info;
  bench->floor = perf_writer(bench->options, 2 * bench->info.capacity, 0);
  perf_must(ringcast_writer_info(bench->floor, &info), "no facts of the ring");
  bench->slots = (info.ring_frame < bench->info.capacity ? info.ring_frame : bench->info.capacity) / bench->stride;
  if (bench->slots == 0) perf_die("a frame of %zu bytes leaves no room; give --capacity", bench->options->size);
  if (info.memory != bench->info.memory)
    fprintf(stderr, "ringcast: the ring is of %s memory and the floor of %s: the ratio says little\n",
            ringcast_memory_name(bench->info.memory), ringcast_memory_name(info.memory));
}

/* Hands the window to all. The readers hold the frame for good, so it stays where it is. */
static void send_window(struct bench *bench) {
  size_t bytes = bench->slots * bench->stride;
  struct ringcast_span span;
  perf_must(ringcast_writer_wait_readers(bench->ring, bench->options->readers, RINGCAST_FOREVER), "no readers");
  perf_must(ringcast_writer_wait_readers(bench->floor, bench->options->readers, RINGCAST_FOREVER), "no readers");
  perf_must(ringcast_writer_reserve(bench->floor, bytes, RINGCAST_FOREVER, &span), "can't reserve");
  memset(span.data, 0, bytes);
  perf_must(ringcast_writer_commit(bench->floor, bytes, RINGCAST_KIND_BYTES), "can't send");
  bench->window = span.data;
}

static void print(const struct bench *bench, const double rates[KINDS]) {
  double size = (double)bench->options->size;
  struct json json = {.out = stdout};
  perf_print_head(&json, bench->options, &bench->info, bench->options->readers + 1);
  if (bench->options->json) {
    json_number(&json, "frames_per_s", rates[RING]);
    json_number(&json, "bytes_per_s", rates[RING] * size);
    json_number(&json, "memcpy_bytes_per_s", rates[FLOOR] * size);
    json_number(&json, "ratio", rates[RING] / rates[FLOOR]);
    json_number(&json, "memcpy_alone_bytes_per_s", rates[ALONE] * size);
    json_number(&json, "ratio_alone", rates[RING] / rates[ALONE]);
    json_close(&json, '}');
    return;
  }
  static const char *const labels[KINDS] = {"ring", "memcpy, read by the others", "memcpy alone, nobody reads"};
  printf("%-28s %14s %10s\n", "", "frames/s", "GB/s");
  for (int kind = 0; kind < KINDS; kind++)
    printf("%-28s %14.0f %10.2f\n", labels[kind], rates[kind], rates[kind] * size / 1e9);
  printf("\nratio to memcpy, read by the others %.3f, to memcpy alone %.3f\n", rates[RING] / rates[FLOOR],
         rates[RING] / rates[ALONE]);
}

int perf_throughput(const struct perf_options *options) {
  uint32_t parties = options->readers + 1;
  struct perf_children children = {0};
  struct bench bench = {.options = options, .source = perf_source(options->size)};
  double rates[KINDS];
  bench.shared = perf_shared(sizeof(struct shared) + options->readers * sizeof bench.shared->readers[0]);
  bench.crowded = perf_cpu_of(options, 0, parties) < 0;
  bench.sum = perf_sum(bench.source, options->size);
  bench.stride = (options->size + HEADER + 63) & ~(uint64_t)63;
  bench.every = bench.stride < PUBLISHED ? PUBLISHED / bench.stride : 1;
  bench.ring = perf_writer(options, options->capacity, 0);
  perf_must(ringcast_writer_info(bench.ring, &bench.info), "no facts of the ring");
  make_floor(&bench);
  strncpy(bench.shared->ring, ringcast_writer_handle(bench.ring), sizeof bench.shared->ring - 1);
  strncpy(bench.shared->floor, ringcast_writer_handle(bench.floor), sizeof bench.shared->floor - 1);
  for (uint32_t i = 0; i < options->readers; i++) perf_start(&children, options, parties, reader_body, &bench);
  perf_pin(perf_cpu_of(options, 0, parties));
  send_window(&bench);
  measure(&bench, rates);
  perf_stop(&children);
  print(&bench, rates);
  free(bench.source);
  ringcast_writer_close(bench.floor);
  ringcast_writer_close(bench.ring);
  return CLI_OK;
}
