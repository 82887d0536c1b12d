/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of small frames to 1, 2, ... readers, more of them than CPUs included. */
#include "bench/stream.h"

enum { MOST_FOR_A_CPU = 8 };

static void *set_up(const struct bench_case *self) {
  const struct stream_options *options = self->options;
  int cpus = bench_options()->cpu_count;
  if (options->readers > (uint32_t)(MOST_FOR_A_CPU * cpus))
    return bench_skip("more than %d readers for each of %d CPUs", MOST_FOR_A_CPU, cpus);
  return stream_set_up(self);
}

#define CASE(name, count)                                                                                   \
  {name, 40, set_up, stream_run, stream_tear_down, &(const struct stream_options){.readers = count}, 20000, 0}

static const struct bench_case cases[] = {
    CASE("readers/1", 1),   CASE("readers/2", 2),   CASE("readers/3", 3),   CASE("readers/4", 4),
    CASE("readers/6", 6),   CASE("readers/8", 8),   CASE("readers/10", 10), CASE("readers/12", 12),
    CASE("readers/14", 14), CASE("readers/16", 16), CASE("readers/32", 32), CASE("readers/64", 64),
};
const struct bench_group bench_readers = BENCH_GROUP(cases);
