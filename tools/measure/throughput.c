/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much a ring carries. The three kinds of tools/measure/stream.h take turns in short blocks:
 * the ring, its floor (`memcpy_bytes_per_s`) and the copying alone (`memcpy_alone_bytes_per_s`).
 * The page faults of the ring's blocks are counted too: frames in a ring cause none, since a ring's
 * memory is there from the start.
 */
#include <math.h>

#include "tools/cli.h"
#include "tools/measure/stream.h"

enum {
  FEWEST_ROUNDS = 3,
  MOST_ROUNDS = 4096,
  FEWEST_FRAMES = 4 /* of a block, so that writing and reading overlap */
};

struct count {
  uint64_t frames, faults; /* through the ring, of the writer; in all blocks but the first */
};

/* Frames per second, counted until the last reader is done. */
static double measure_block(struct stream *stream, enum stream_kind kind, int64_t ns,
                            struct count *count) {
  uint64_t frames = 0, stride = stream_stride(stream), faults = stream_writer_faults();
  uint64_t batch = stride < 65536 ? 65536 / stride : 1; /* frames for one look at the clock */
  int64_t start = perf_now_ns(), now;
  do {
    stream_send(stream, kind, batch);
    frames += batch;
  } while ((now = perf_now_ns()) - start < ns || frames < FEWEST_FRAMES);
  stream_finish(stream, kind);
  if (kind != STREAM_ALONE) now = perf_now_ns();
  if (kind == STREAM_RING) {
    count->faults += stream_writer_faults() - faults;
    count->frames += frames;
  }
  return (double)frames * 1e9 / (double)(now - start);
}

static void measure(const struct perf_options *options, struct stream *stream,
                    double p50[STREAM_KINDS], struct count *count) {
  static double rates[STREAM_KINDS][MOST_ROUNDS];
  double rounds = fmin(fmax(FEWEST_ROUNDS, ceil(options->seconds / 0.15)), MOST_ROUNDS);
  int64_t total = (int64_t)(options->seconds * 1e9), ns = total / (STREAM_KINDS * (int64_t)rounds);
  size_t round = 0;
  for (int kind = 0; kind < STREAM_KINDS; kind++)
    measure_block(stream, (enum stream_kind)kind, ns, count);
  *count = (struct count){0}; /* that was the first lap */
  int64_t start = perf_now_ns();
  /* Large frames make long blocks: then there are fewer. */
  for (; round < (size_t)rounds && (round < FEWEST_ROUNDS || perf_now_ns() - start < total);
       round++) {
    for (int kind = 0; kind < STREAM_KINDS; kind++)
      rates[kind][round] = measure_block(stream, (enum stream_kind)kind, ns, count);
    perf_progress(options, (double)round / rounds);
  }
  perf_progress(options, 1);
  for (int kind = 0; kind < STREAM_KINDS; kind++) p50[kind] = perf_median(rates[kind], round);
}

static void print(const struct perf_options *options, const struct stream *stream,
                  const double rates[STREAM_KINDS], const struct count *count) {
  double size = (double)options->size, frames = (double)count->frames;
  struct report report;
  perf_print_head(&report, options, stream_info(stream), options->readers + 1);
  report_number(&report, "frames_per_s", rates[STREAM_RING]);
  report_number(&report, "bytes_per_s", rates[STREAM_RING] * size);
  report_number(&report, "memcpy_bytes_per_s", rates[STREAM_FLOOR] * size);
  report_number(&report, "ratio", rates[STREAM_RING] / rates[STREAM_FLOOR]);
  report_number(&report, "memcpy_alone_bytes_per_s", rates[STREAM_ALONE] * size);
  report_number(&report, "writer_faults_per_frame", (double)count->faults / frames);
  report_number(&report, "reader_faults_per_frame", (double)stream_reader_faults(stream) / frames);
  report_close(&report);
}

int perf_throughput(const struct perf_options *options) {
  double rates[STREAM_KINDS];
  struct count count = {0};
  struct stream *stream =
      stream_make(options, &(struct stream_options){.size = options->size,
                                                    .floor = true,
                                                    .capacity = options->capacity,
                                                    .readers = options->readers});
  if (!stream) perf_die("%s", perf_reason());
  measure(options, stream, rates, &count);
  stream_send(stream, STREAM_ALONE, 1); /* the readers leave the ring, and count their faults */
  print(options, stream, rates, &count);
  stream_destroy(stream);
  return CLI_OK;
}
