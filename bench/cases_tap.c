/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an observer costs: a writer with nobody, with a tap that follows all it can, with a reader, with both. Who looks
 * at a line takes it from the writer's cache, a tap as much as a reader; but a reader also holds the writer back.
 */
#include "bench/stream.h"

static void *set_up(const struct bench_case *self) {
  const struct stream_options *options = self->options;
  return bench_has_cpus(options->readers + options->taps + 1) ? stream_set_up(self) : NULL;
}

#define CASE(name, reader_count, tap_count)                \
  {name, 40, set_up, stream_run, stream_tear_down,         \
   &(const struct stream_options){.readers = reader_count, .taps = tap_count}, 100000, 0}

static const struct bench_case cases[] = {
    CASE("tap/nobody", 0, 0),
    CASE("tap/tap", 0, 1),
    CASE("tap/reader", 1, 0),
    CASE("tap/reader_and_tap", 1, 1),
};
const struct bench_group bench_tap = BENCH_GROUP(cases);
