/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringcast perf latency`: one way between two processes on two CPUs, half of a round trip. There
 * are three kinds of trip:
 *   RING    a frame there over one ring, and a frame back over another ring; written and read in
 *           full, and checked. The answering side reads the question, commits the answer, and only
 *           then releases the question and reserves room for the next answer
 *   FLOOR   the bare ping-pong: two cache lines, each written by one side and read by the other,
 *           like a ring's lines
 *   LINE    one cache line that both sides write in turn. A ring can't do so, since its readers
 *           don't write the writer's lines. On some CPUs a read fetches the line together with the
 *           right to write: then this kind is faster.
 * The kinds take turns, in blocks of some hundred trips, so that a drift (of the clock rate, of a
 * neighbour's load, of the host's choice of cores) affects all kinds alike. A reading of the clock
 * takes as long as a part of a trip: p50 comes from blocks with one reading in GROUP trips, p99 and
 * p99.9 from blocks with a reading for each trip, and the time of the reading is taken off both.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/measure/perf.h"

enum kind { RING, FLOOR, LINE, KINDS };
enum { TRIPS = 512, GROUP = 8, SINGLE = 128 /* trips with a reading each */, WARM = 32 };

static const int64_t SPIN_NS = 3600000000000; /* no process sleeps */

struct shared {
  _Alignas(PERF_LINE) uint64_t block; /* number of the block; written after the next two fields */
  enum kind kind;
  int count;
  _Alignas(PERF_LINE) uint64_t answered;
  _Alignas(PERF_LINE) uint64_t line;
  _Alignas(PERF_LINE) uint64_t there;
  _Alignas(PERF_LINE) uint64_t back;
  _Alignas(PERF_LINE) uint64_t handles; /* 1: `from` is set */
  char to[96], from[96];
};

/* One way, in ns. */
struct findings {
  struct perf_series trips, groups;
};

/* One of the two processes. */
struct side {
  const struct perf_options *options;
  struct shared *shared;
  ringcast_writer *out;
  ringcast_reader *in;
  uint8_t *messages[2]; /* two messages with different numbers in the first word: one is prepared
                         * while the other is on the way */
  uint64_t sum;         /* of all words but the number */
  uint64_t turn, flag, number;
  struct ringcast_span span;   /* for the next message */
  struct ringcast_frame frame; /* the last frame received */
  struct perf_children children;
  double clock_ns; /* that a reading of the clock takes */
  struct findings findings[KINDS];
};

/* ---- The two sides --------------------------------------------------------------------------- */

static inline void await(const uint64_t *word, uint64_t value) {
  while (perf_load(word) != value) perf_relax(false);
}

/* A program that sends such small messages knows the size when the compiler runs. */
enum { USUAL = 40 };

static inline void pass(struct side *side) {
  const uint8_t *message = side->messages[side->number & 1];
  if (side->options->size == USUAL) memcpy(side->span.data, message, USUAL);
  else memcpy(side->span.data, message, side->options->size);
  perf_must(ringcast_writer_commit(side->out, side->options->size, RINGCAST_KIND_BYTES),
            "can't send");
}

/* Reads every byte. Not a loop over a few words: the CPU would mispredict the end of the loop after
 * each wait, 5 ns. */
static inline bool is_right(const struct side *side, const struct ringcast_frame *frame) {
  const uint8_t *message = side->messages[side->number & 1];
  if (frame->bytes != side->options->size) return false;
  if (frame->bytes == USUAL) return memcmp(frame->data, message, USUAL) == 0;
  if (frame->bytes <= 256) return memcmp(frame->data, message, frame->bytes) == 0;
  return sum_bytes(frame->data, frame->bytes) == side->sum + side->number;
}

static inline void take(struct side *side) {
  perf_must(ringcast_reader_next(side->in, RINGCAST_FOREVER, &side->frame), "can't receive");
  if (!is_right(side, &side->frame))
    perf_die("frame %llu has come damaged", (unsigned long long)side->number);
}

/* The reservation and the contents of the next message, made while a message of the other side is
 * on the way. */
static inline void prepare_to_send(struct side *side, uint64_t number) {
  memcpy(side->messages[number & 1], &number, sizeof number);
  perf_must(ringcast_writer_reserve(side->out, side->options->size, RINGCAST_FOREVER, &side->span),
            "can't send");
}

static inline void release(struct side *side) {
  perf_must(ringcast_reader_release(side->in, &side->frame), "can't release");
}

/* Callers pass `kind` as a constant, so that no branch lies between two trips. */
#define ONE_KIND static inline __attribute__((always_inline)) void

ONE_KIND ping(struct side *side, int kind) {
  struct shared *shared = side->shared;
  if (kind == RING) {
    pass(side);
    if (side->number > 0) release(side); /* the answer before */
    prepare_to_send(side, side->number + 1);
    take(side);
    side->number++;
  } else if (kind == LINE) {
    perf_store(&shared->line, side->turn + 1);
    await(&shared->line, side->turn += 2);
  } else {
    perf_store(&shared->there, ++side->flag);
    await(&shared->back, side->flag);
  }
}

ONE_KIND pong(struct side *side, int kind) {
  struct shared *shared = side->shared;
  if (kind == RING) {
    take(side);
    pass(side);
    release(side);
    prepare_to_send(side, side->number + 1);
    side->number++;
  } else if (kind == LINE) {
    await(&shared->line, side->turn + 1);
    perf_store(&shared->line, side->turn += 2);
  } else {
    await(&shared->there, ++side->flag);
    perf_store(&shared->back, side->flag);
  }
}

/* Stamps the end of each `group` trips. */
ONE_KIND ping_all(struct side *side, int kind, int trips, int group, int64_t *stamps) {
  for (int i = 0; i < trips; i += group) {
    for (int j = 0; j < group; j++) ping(side, kind);
    *stamps++ = perf_now_ns();
  }
}

ONE_KIND pong_all(struct side *side, int kind, int trips) {
  for (int i = 0; i < trips; i++) pong(side, kind);
}

/* The only branch on the kind. */
static void ask(struct side *side, enum kind kind, int trips, int group, int64_t *stamps) {
  if (kind == RING) ping_all(side, RING, trips, group, stamps);
  else if (kind == LINE) ping_all(side, LINE, trips, group, stamps);
  else ping_all(side, FLOOR, trips, group, stamps);
}

static void answer_all(struct side *side, enum kind kind, int trips) {
  if (kind == RING) pong_all(side, RING, trips);
  else if (kind == LINE) pong_all(side, LINE, trips);
  else pong_all(side, FLOOR, trips);
}

static void make_messages(struct side *side) {
  uint64_t zero = 0;
  for (int i = 0; i < 2; i++) {
    side->messages[i] = perf_source(side->options->size);
    memcpy(side->messages[i], &zero, sizeof zero);
  }
  side->sum = sum_bytes(side->messages[0], side->options->size);
}

/* The readers after the first only read. */
static void drain(ringcast_reader *reader) {
  for (;;) {
    struct ringcast_frame frame;
    perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
    perf_must(ringcast_reader_release(reader, &frame), "can't release");
  }
}

static void answer(void *context, uint32_t index) {
  struct side side = *(struct side *)context;
  struct shared *shared = side.shared;
  side.in = perf_attach(shared->to, SPIN_NS);
  if (index > 0) drain(side.in);
  make_messages(&side);
  side.out = perf_writer(side.options, side.options->capacity, SPIN_NS);
  strncpy(shared->from, ringcast_writer_handle(side.out), sizeof shared->from - 1);
  prepare_to_send(&side, 0);
  perf_store(&shared->handles, 1);
  for (uint64_t block = 1;; block++) {
    await(&shared->block, block);
    enum kind kind = shared->kind;
    int count = shared->count;
    perf_store(&shared->answered, block);
    answer_all(&side, kind, WARM + count);
  }
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static void command(struct shared *shared, enum kind kind, int count) {
  shared->kind = kind;
  shared->count = count;
  perf_store(&shared->block, shared->block + 1);
  await(&shared->answered, shared->block);
}

static double one_way(const struct side *side, int64_t ns, int count) {
  return fmax(0, ((double)ns - side->clock_ns) / (2 * count));
}

/* A block of `count` trips, after some that are not counted; the clock is read once in `group`
 * trips. */
static void run_block(struct side *side, enum kind kind, int count, int group, double *ns) {
  int64_t stamps[TRIPS + 1];
  command(side->shared, kind, count);
  ask(side, kind, WARM, WARM, stamps);
  stamps[0] = perf_now_ns();
  ask(side, kind, count, group, stamps + 1);
  for (int i = 0; i < count / group; i++) ns[i] = one_way(side, stamps[i + 1] - stamps[i], group);
}

static void measure_kind(struct side *side, enum kind kind) {
  struct findings *findings = &side->findings[kind];
  double groups[TRIPS / GROUP], singles[SINGLE];
  run_block(side, kind, TRIPS, GROUP, groups);
  run_block(side, kind, SINGLE, 1, singles);
  perf_add(&findings->trips, singles, SINGLE);
  perf_add(&findings->groups, groups, TRIPS / GROUP);
}

static void measure(struct side *side) {
  double wanted = side->options->seconds * 1e9, passed;
  int64_t start = perf_now_ns();
  do {
    for (enum kind kind = 0; kind < KINDS; kind++) measure_kind(side, kind);
    passed = (double)(perf_now_ns() - start);
    perf_progress(side->options, passed / wanted);
  } while (passed < wanted);
  perf_progress(side->options, 1);
}

/* ---- The command ----------------------------------------------------------------------------- */

static void start(struct side *side) {
  const struct perf_options *options = side->options;
  uint32_t parties = options->readers + 1;
  side->shared = perf_shared(sizeof *side->shared);
  side->out = perf_writer(options, options->capacity, SPIN_NS);
  strncpy(side->shared->to, ringcast_writer_handle(side->out), sizeof side->shared->to - 1);
  for (uint32_t i = 0; i < options->readers; i++)
    perf_start(&side->children, options, parties, answer, side);
  perf_pin(perf_cpu_of(options, 0, parties));
  make_messages(side);
  side->clock_ns = perf_clock_cost();
  await(&side->shared->handles, 1);
  side->in = perf_attach(side->shared->from, SPIN_NS);
  perf_must(ringcast_writer_wait_readers(side->out, options->readers, RINGCAST_FOREVER),
            "the readers do not come");
  prepare_to_send(side, 0);
}

static void print(struct side *side) {
  static const char *const keys[KINDS] = {"one_way_ns", "floor_ns", "line_ns"};
  struct ringcast_info info = {.size = sizeof info};
  struct report report;
  double p50[KINDS];
  perf_must(ringcast_writer_info(side->out, &info), "no facts of the ring");
  perf_print_head(&report, side->options, &info, side->options->readers + 1);
  for (enum kind kind = 0; kind < KINDS; kind++) {
    struct findings *findings = &side->findings[kind];
    p50[kind] = perf_quantile_of(&findings->groups, 0.5);
    report_open(&report, keys[kind], '{');
    report_number(&report, "p50", p50[kind]);
    report_number(&report, "p99", perf_quantile_of(&findings->trips, 0.99));
    report_number(&report, "p999", perf_quantile_of(&findings->trips, 0.999));
    report_close(&report);
  }
  report_number(&report, "ratio", p50[RING] / p50[FLOOR]);
  report_number(&report, "ratio_line", p50[RING] / p50[LINE]);
  report_integer(&report, "round_trips", (int64_t)side->findings[RING].trips.count);
  report_close(&report);
}

int perf_latency(const struct perf_options *options) {
  static struct side side;
  if (perf_cpu_of(options, 0, options->readers + 1) < 0)
    perf_die("latency needs a CPU for each of its %u processes, and this process may use %d: give "
             "fewer --readers, or more CPUs (taskset, the container's cpuset)",
             options->readers + 1, options->cpu_count);
  side.options = options;
  start(&side);
  measure(&side);
  perf_stop(&side.children);
  print(&side);
  return CLI_OK;
}
