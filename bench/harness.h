/* SPDX-License-Identifier: Apache-2.0 */
/* What a benchmark is: four functions in C. main.cc hands each to Google Benchmark. */
#ifndef BENCH_HARNESS_H
#define BENCH_HARNESS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bench_case {
  const char *name;
  size_t bytes;                                       /* of a frame's payload; 0 where there is none */
  void *(*setup)(const struct bench_case *self);      /* NULL: can't be done here, bench_reason() says why */
  double (*run)(void *state, uint64_t iterations);    /* seconds that all of them took */
  void (*teardown)(void *state);
};

extern const struct bench_case bench_ring_cases[];
extern const size_t bench_ring_case_count;

const char *bench_reason(void);

#ifdef __cplusplus
}
#endif
#endif
