/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A benchmark is a name and three functions in C. main.cc hands each case to Google Benchmark. The kernels are in
 * tools/measure/, and `ringcast perf` calls the same kernels. A case's floor stands beside the case, and
 * `make bench ARGS="--benchmark_enable_random_interleaving=true --benchmark_repetitions=5"` runs the cases in turns.
 */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bench_case {
  const char *name;
  size_t bytes;                                    /* of a frame's payload; 0: no frames */
  void *(*setup)(const struct bench_case *self);   /* NULL: not possible here, see bench_reason */
  double (*run)(void *state, uint64_t iterations); /* seconds that all iterations took */
  void (*teardown)(void *state);
  const void *options; /* what the three functions need to know beside the size */
  uint64_t batch;      /* iterations that are timed as one; 0: 1000, fewer for large frames */
};

extern const struct bench_case bench_cases[];
extern const size_t bench_case_count;

/* Once, at the start. */
void bench_begin(void);

/* From setup that has returned NULL: why the machine can't do the case. */
const char *bench_reason(void);

/* A figure that teardown has left beside the time; false: none. */
bool bench_figure(const char **key, double *value);

/* The processor, as the kernel names it. */
const char *bench_cpu(void);

#ifdef __cplusplus
}
#endif
#endif
