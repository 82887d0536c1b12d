/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One way from process to process, each on a CPU of its own: half of a round trip.
 *   one_way   both sides spin. The ring's cases send a frame there over one ring and back over another. Its floors: one
 *             cache line that both write in turn, and a line each way, which is the least for what goes one way only.
 *   wake      both sides sleep, and are woken by each message. The floor: a bare futex.
 * The time is that of a whole batch, whatever happens in it; in a second batch trips are stamped, for the percentiles:
 * p99 and p99.9 of single trips, p50 of groups of a few, since some clocks move in steps.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench/support.h"
#include "tools/histogram.h"

enum { GROUP = 8 }; /* trips */
enum kind { LINE, FLAGS, RING, FUTEX };

struct way {
  enum kind kind;
  int64_t spin_ns;
};

struct shared {
  _Alignas(PERF_LINE) uint64_t line;
  _Alignas(PERF_LINE) uint64_t there;
  _Alignas(PERF_LINE) uint64_t back;
  _Alignas(PERF_LINE) uint64_t ready;
  char to[96], from[96];
};

struct pair {
  struct way way;
  size_t size;
  struct shared *shared;
  struct perf_children children;
  ringcast_writer *out;
  ringcast_reader *in;
  uint8_t *source;
  uint64_t sum; /* of the source but for its first word */
  uint64_t turn;
  struct perf_clock clock;
  struct histogram trips, groups; /* one way, picoseconds */
};

/* ---- The four ways ---------------------------------------------------------------------------------------------- */

static inline void await(const uint64_t *word, uint64_t value) {
  while (perf_load(word) != value) perf_relax(false);
}

static void sleep_until(uint64_t *word, uint64_t value) {
  while (perf_load(word) != value) syscall(SYS_futex, word, FUTEX_WAIT, (uint32_t)(value - 1), NULL, NULL, 0);
}

static void wake(uint64_t *word, uint64_t value) {
  perf_store(word, value);
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static inline void pass(struct pair *pair, uint64_t value) {
  struct ringcast_span span;
  perf_must(ringcast_writer_reserve(pair->out, pair->size, RINGCAST_FOREVER, &span), "can't send");
  memcpy(pair->source, &value, sizeof value);
  memcpy(span.data, pair->source, pair->size);
  perf_must(ringcast_writer_commit(pair->out, pair->size, RINGCAST_KIND_BYTES), "can't send");
}

static inline void take(struct pair *pair, uint64_t value) {
  struct ringcast_frame frame;
  perf_must(ringcast_reader_next(pair->in, RINGCAST_FOREVER, &frame), "can't receive");
  uint64_t sum = sum_bytes(frame.data, frame.bytes);
  perf_must(ringcast_reader_release(pair->in, &frame), "can't release");
  if (sum != pair->sum + value) perf_die("frame %llu has come damaged", (unsigned long long)value);
}

static inline void ping(struct pair *pair) {
  struct shared *shared = pair->shared;
  uint64_t turn = pair->turn++;
  switch (pair->way.kind) {
  case LINE: perf_store(&shared->line, 2 * turn + 1), await(&shared->line, 2 * turn + 2); break;
  case FLAGS: perf_store(&shared->there, turn + 1), await(&shared->back, turn + 1); break;
  case RING: pass(pair, turn), take(pair, turn); break;
  case FUTEX: wake(&shared->there, turn + 1), sleep_until(&shared->back, turn + 1); break;
  }
}

static inline void pong(struct pair *pair) {
  struct shared *shared = pair->shared;
  uint64_t turn = pair->turn++;
  switch (pair->way.kind) {
  case LINE: await(&shared->line, 2 * turn + 1), perf_store(&shared->line, 2 * turn + 2); break;
  case FLAGS: await(&shared->there, turn + 1), perf_store(&shared->back, turn + 1); break;
  case RING: take(pair, turn), pass(pair, turn); break;
  case FUTEX: sleep_until(&shared->there, turn + 1), wake(&shared->back, turn + 1); break;
  }
}

/* ---- The case --------------------------------------------------------------------------------------------------- */

static ringcast_writer *make_ring(struct pair *pair, char handle[96]) {
  struct ringcast_writer_options options = {.size = sizeof options, .readers = 1, .spin_ns = pair->way.spin_ns};
  ringcast_writer *writer;
  perf_must(ringcast_writer_create_ex(&options, &writer), "can't make a ring");
  strncpy(handle, ringcast_writer_handle(writer), 95);
  return writer;
}

static void answer(void *context, uint32_t index) {
  struct pair *pair = context;
  (void)index;
  if (pair->way.kind == RING) {
    pair->in = perf_attach(pair->shared->to, pair->way.spin_ns);
    pair->out = make_ring(pair, pair->shared->from);
  }
  perf_store(&pair->shared->ready, 1);
  for (;;) pong(pair);
}

static void *set_up(const struct bench_case *self) {
  if (!bench_has_cpus(2)) return NULL;
  struct pair *pair = calloc(1, sizeof *pair);
  if (!pair) perf_die("no memory");
  pair->way = *(const struct way *)self->options;
  pair->size = self->bytes;
  pair->shared = perf_shared(sizeof *pair->shared);
  pair->clock = perf_clock_measure();
  if (pair->way.kind == RING) {
    uint64_t zero = 0;
    pair->source = perf_source(pair->size);
    memcpy(pair->source, &zero, sizeof zero);
    pair->sum = sum_bytes(pair->source, pair->size);
    pair->out = make_ring(pair, pair->shared->to);
  }
  perf_start(&pair->children, bench_options(), 2, answer, pair);
  perf_pin(perf_cpu_of(bench_options(), 0, 2));
  await(&pair->shared->ready, 1);
  if (pair->way.kind == RING) pair->in = perf_attach(pair->shared->from, pair->way.spin_ns);
  return pair;
}

static void add(struct histogram *histogram, const struct pair *pair, uint64_t ticks, int trips) {
  double way = ((double)ticks * pair->clock.ns_per_tick / trips - pair->clock.cost_ns) / 2;
  histogram_add(histogram, way > 0 ? (uint64_t)(way * 1000) : 0);
}

static void stamp_group(struct pair *pair) {
  uint64_t stamps[GROUP + 1];
  stamps[0] = perf_ticks();
  for (int i = 1; i <= GROUP; i++) {
    ping(pair);
    stamps[i] = perf_ticks();
  }
  for (int i = 1; i <= GROUP; i++) add(&pair->trips, pair, stamps[i] - stamps[i - 1], 1);
  add(&pair->groups, pair, stamps[GROUP] - stamps[0], GROUP);
}

static double run(void *state, uint64_t iterations) {
  struct pair *pair = state;
  int64_t start = perf_now_ns();
  for (uint64_t i = 0; i < iterations; i++) ping(pair);
  double seconds = bench_seconds_since(start) / 2;
  for (uint64_t i = 0; i < iterations; i += GROUP) stamp_group(pair);
  return seconds;
}

static void tear_down(void *state) {
  struct pair *pair = state;
  perf_stop(&pair->children);
  perf_unpin(bench_options());
  bench_report("p50_ns", histogram_percentile(&pair->groups, 0.5) / 1000);
  bench_report("p99_ns", histogram_percentile(&pair->trips, 0.99) / 1000);
  bench_report("p999_ns", histogram_percentile(&pair->trips, 0.999) / 1000);
  ringcast_reader_close(pair->in);
  ringcast_writer_close(pair->out);
  free(pair->source);
  perf_unshare(pair->shared, sizeof *pair->shared);
  free(pair);
}

#define CASE(name, bytes, kind, spin, batch) \
  {name, bytes, set_up, run, tear_down, &(const struct way){kind, spin}, batch, 0}

static const struct bench_case cases[] = {
    CASE("one_way/bare_line", 0, LINE, 0, 1000),
    CASE("one_way/bare_flags", 0, FLAGS, 0, 1000),
    CASE("one_way/ring/40", 40, RING, BENCH_SPIN_NS, 1000),
    CASE("one_way/ring/1024", 1024, RING, BENCH_SPIN_NS, 1000),
    CASE("one_way/ring/16384", 16384, RING, BENCH_SPIN_NS, 1000),
    CASE("wake/bare_futex", 0, FUTEX, 0, 100),
    CASE("wake/ring/40", 40, RING, -1, 100),
};
const struct bench_group bench_one_way = BENCH_GROUP(cases);
