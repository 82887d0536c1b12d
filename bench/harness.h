/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a benchmark is: a name and three functions in C. main.cc hands each to Google Benchmark. Each file of cases is a
 * group; a case's floor stands in the same group, and `make bench ARGS=--benchmark_enable_random_interleaving=true
 * --benchmark_repetitions=5` runs them in turns.
 */
#ifndef BENCH_HARNESS_H
#define BENCH_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bench_case {
  const char *name;
  size_t bytes;                                    /* of a frame's payload; 0 where there is none */
  void *(*setup)(const struct bench_case *self);   /* NULL: can't be done here, see bench_skip */
  double (*run)(void *state, uint64_t iterations); /* seconds that all of them took */
  void (*teardown)(void *state);
  const void *options; /* what the group's functions want to know beside the size */
  uint64_t batch;      /* iterations that are timed as one; 0: 1000, fewer for large frames */
  uint64_t iterations; /* of all; 0: as many as Google Benchmark finds right */
};

struct bench_group {
  const struct bench_case *cases;
  size_t count;
};
#define BENCH_GROUP(cases) {cases, sizeof(cases) / sizeof *(cases)}

extern const struct bench_group bench_one_way, bench_alone, bench_stream, bench_full, bench_readers, bench_crowd,
    bench_tap;

/* Once, at the start. `dry`: each case runs once only, to see that it works. */
void bench_begin(bool dry);

/* From setup: why the case can't be measured here. Returns NULL. */
__attribute__((format(printf, 1, 2))) void *bench_skip(const char *format, ...);
const char *bench_reason(void);

/* From run or teardown: a figure to show beside the time. `key` is a literal. */
struct bench_figure {
  const char *key;
  double value;
};
void bench_report(const char *key, double value);
size_t bench_figures(const struct bench_figure **out); /* since the last call */

/* The processor, in the kernel's words. */
const char *bench_cpu(void);

#ifdef __cplusplus
}
#endif
#endif
