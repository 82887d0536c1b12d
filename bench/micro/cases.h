/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A benchmark is a name and three functions in C. main.cc hands each case to Google Benchmark.
 * `ringcast perf` measures the streams of tools/measure/stream.h too. A case's floor stands beside
 * the case, and `make bench ARGS="--benchmark_enable_random_interleaving=true
 * --benchmark_repetitions=5"` runs the cases in turns.
 */
#ifndef BENCH_MICRO_CASES_H
#define BENCH_MICRO_CASES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bench_case {
  const char *name;
  size_t bytes;                                  /* of a frame's payload */
  uint64_t batch;                                /* iterations timed together */
  void *(*setup)(const struct bench_case *self); /* NULL: not possible here, see bench_reason */
  /* Seconds of all iterations. */
  double (*run)(const struct bench_case *self, void *state, uint64_t iterations);
  double (*teardown)(void *state); /* the share of the bytes sent that a tap has lost */
  const void *options;             /* for the three functions */
};

extern const struct bench_case bench_cases[];
extern const size_t bench_case_count;
extern const struct bench_case bench_frame_cases[]; /* frames.c */
extern const size_t bench_frame_case_count;

/* Once, at the start. */
void bench_begin(void);

/* To the writer's CPU, and back to all. */
void bench_pin(void);
void bench_unpin(void);

/* From setup that has returned NULL: why the machine can't do the case. */
const char *bench_reason(void);

#ifdef __cplusplus
}
#endif
#endif
