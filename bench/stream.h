/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream: this process copies frames into a ring, others read each one in place, every byte. The time ends when the
 * last reader is done. Its floor is the same without a ring (tools/perf_window.h).
 */
#ifndef BENCH_STREAM_H
#define BENCH_STREAM_H

#include "bench/support.h"

struct stream_options {
  uint64_t capacity; /* 0: the library's default */
  uint32_t memory;   /* enum ringcast_memory */
  uint32_t readers;
  uint32_t taps;     /* in addition: observers, for whom nobody waits */
  uint32_t work_ns;  /* that a reader spends on each frame, beside reading it */
  bool bare;         /* the floor */
};

void *stream_set_up(const struct bench_case *self);
double stream_run(void *state, uint64_t iterations);
void stream_tear_down(void *state);

#define STREAM_CASE(name, bytes, ...) \
  {name, bytes, stream_set_up, stream_run, stream_tear_down, &(const struct stream_options){__VA_ARGS__}, 0, 0}

#endif
