/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One way between two processes on two CPUs: half of a round trip.
 *
 * Three kinds of trip take turns, in blocks of some hundred round trips, so that a drift (of the clock rate, of a
 * neighbour's load, of the host's choice of cores) affects all kinds alike:
 *   ring   a frame there over one ring, and a frame back over another ring; written and read in full, and checked. The
 *          answering side reads the question, commits the answer, and only then releases the question and reserves room
 *          for the next answer
 *   floor  the bare ping-pong: two cache lines, each written by one side and read by the other, like a ring's lines
 *   line   one cache line that both sides write in turn. A ring can't do so, since its readers don't write the
 *          writer's lines. On some CPUs a read fetches the line together with the right to write: then this kind is
 *          faster.
 *
 * A reading of the clock takes as long as a part of a trip. So p50 comes from blocks with one reading in GROUP trips:
 * the median of a trip's share of a group. p99 and p99.9 are of single trips, in blocks with one reading for each trip;
 * the time of the reading is subtracted.
 *
 * With --cold the same trips follow one by one, and both processes walk over a large block before each trip
 * (tools/measure/walk.h). The time of a cold trip starts when both processes have walked.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/histogram.h"
#include "tools/measure/walk.h"
#include "tools/perf.h"

enum { RING, FLOOR, LINE, KINDS };
enum { TRIPS = 512, GROUP = 8, GROUPS = TRIPS / GROUP, WARM = 32, MOST_BLOCKS = 1 << 16, COLD_TRIPS = 4 };

static const int64_t SPIN_NS = 3600000000000; /* no process sleeps */
static const double APART = 1.6;              /* if blocks differ by more, the host has moved the cores near and far */

struct shared {
  _Alignas(PERF_LINE) uint64_t command; /* block number * 2 * KINDS + kind (+ KINDS: cold) */
  _Alignas(PERF_LINE) uint64_t answered;
  _Alignas(PERF_LINE) uint64_t line;
  _Alignas(PERF_LINE) uint64_t there;
  _Alignas(PERF_LINE) uint64_t back;
  _Alignas(PERF_LINE) uint64_t walks;   /* of the side that answers */
  _Alignas(PERF_LINE) uint64_t handles; /* 1: `from` is set */
  char to[96], from[96];
};

struct side {
  const struct perf_options *options;
  struct shared *shared;
  ringcast_writer *out;
  ringcast_reader *in;
  uint8_t *messages[2]; /* two messages with different numbers in the first word: one is prepared
                         * while the other is on the way */
  uint64_t sum;         /* of all words but the number */
  uint64_t turn, flag, number, walks;
  struct walk walk;
  struct ringcast_span span;   /* for the next message */
  struct ringcast_frame frame; /* the last frame received */
};

/* ---- The two sides ---------------------------------------------------------------------------------------------- */

static inline void await(const uint64_t *word, uint64_t value) {
  while (perf_load(word) != value) perf_relax(false);
}

/* A program that sends such small messages knows the size when the compiler runs. */
enum { USUAL = 40 };

static inline void pass(struct side *side) {
  const uint8_t *message = side->messages[side->number & 1];
  if (side->options->size == USUAL) memcpy(side->span.data, message, USUAL);
  else memcpy(side->span.data, message, side->options->size);
  perf_must(ringcast_writer_commit(side->out, side->options->size, RINGCAST_KIND_BYTES), "can't send");
}

/* Reads every byte. Not a loop over a few words: the CPU would mispredict the end of the loop after each wait, 5 ns. */
static inline bool is_right(const struct side *side, const struct ringcast_frame *frame) {
  const uint8_t *message = side->messages[side->number & 1];
  if (frame->bytes != side->options->size) return false;
  if (frame->bytes == USUAL) return memcmp(frame->data, message, USUAL) == 0;
  if (frame->bytes <= 256) return memcmp(frame->data, message, frame->bytes) == 0;
  return sum_bytes(frame->data, frame->bytes) == side->sum + side->number;
}

static inline void take(struct side *side) {
  perf_must(ringcast_reader_next(side->in, RINGCAST_FOREVER, &side->frame), "can't receive");
  if (!is_right(side, &side->frame)) perf_die("frame %llu has come damaged", (unsigned long long)side->number);
}

/* The reservation and the contents of the next message, made while a message of the other side is on the way. */
static inline void prepare_to_send(struct side *side, uint64_t number) {
  memcpy(side->messages[number & 1], &number, sizeof number);
  perf_must(ringcast_writer_reserve(side->out, side->options->size, RINGCAST_FOREVER, &side->span), "can't send");
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
ONE_KIND ping_all(struct side *side, int kind, int trips, int group, uint64_t *stamps) {
  for (int i = 0; i < trips; i += group) {
    for (int j = 0; j < group; j++) ping(side, kind);
    *stamps++ = perf_ticks();
  }
}

ONE_KIND pong_all(struct side *side, int kind) {
  for (int i = 0; i < WARM + TRIPS; i++) pong(side, kind);
}

/* The only branch on the kind. */
static void ask(struct side *side, int kind, int trips, int group, uint64_t *stamps) {
  if (kind == RING) ping_all(side, RING, trips, group, stamps);
  else if (kind == LINE) ping_all(side, LINE, trips, group, stamps);
  else ping_all(side, FLOOR, trips, group, stamps);
}

static void answer_all(struct side *side, int kind) {
  if (kind == RING) pong_all(side, RING);
  else if (kind == LINE) pong_all(side, LINE);
  else pong_all(side, FLOOR);
}

/* Stamps the start and the end of each trip. */
static void ask_cold(struct side *side, int kind, uint64_t *stamps) {
  for (int i = 0; i < COLD_TRIPS; i++) {
    walk_once(&side->walk);
    await(&side->shared->walks, ++side->walks);
    *stamps++ = perf_ticks();
    ping(side, kind);
    *stamps++ = perf_ticks();
  }
}

static void answer_cold(struct side *side, int kind) {
  for (int i = 0; i < COLD_TRIPS; i++) {
    walk_once(&side->walk);
    perf_store(&side->shared->walks, ++side->walks);
    pong(side, kind);
  }
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
    uint64_t command;
    while ((command = perf_load(&shared->command)) / (2 * KINDS) != block) perf_relax(false);
    perf_store(&shared->answered, block);
    int kind = (int)(command % KINDS);
    command % (2 * KINDS) < KINDS ? answer_all(&side, kind) : answer_cold(&side, kind);
  }
}

/* ---- Measuring -------------------------------------------------------------------------------------------------- */

struct findings {
  struct perf_clock clock;
  struct histogram trips[KINDS]; /* one way, in picoseconds */
  struct histogram groups[KINDS];
  struct histogram cold[KINDS];
  double *medians[KINDS]; /* of each block, ns */
  size_t blocks;
  uint64_t next; /* block */
};

static void add(struct histogram *histogram, double ns) { histogram_add(histogram, (uint64_t)(ns * 1000)); }

static void command(struct shared *shared, uint64_t block, int kind) {
  perf_store(&shared->command, block * 2 * KINDS + (uint64_t)kind);
  await(&shared->answered, block);
}

/* One way, in ns, from the ticks of `trips` round trips. */
static double one_way(const struct perf_clock *clock, uint64_t ticks, int trips) {
  return fmax(0, ((double)ticks * clock->ns_per_tick - clock->cost_ns) / (2 * trips));
}

/* `groups` gets one way, in ns, by groups of so many trips. */
static void measure_block(struct side *side, const struct perf_clock *clock, uint64_t block, int kind, int group,
                          double *groups) {
  static uint64_t stamps[TRIPS + 1];
  command(side->shared, block, kind);
  ask(side, kind, WARM, GROUP, stamps);
  stamps[0] = perf_ticks();
  ask(side, kind, TRIPS, group, stamps + 1);
  for (int i = 0; i < TRIPS / group; i++) groups[i] = one_way(clock, stamps[i + 1] - stamps[i], group);
}

/* Keeps the median of the block, and each trip. */
static void measure_kind(struct side *side, struct findings *findings, uint64_t block, int kind) {
  static double groups[GROUPS], trips[TRIPS];
  measure_block(side, &findings->clock, block, kind, GROUP, groups);
  measure_block(side, &findings->clock, block + 1, kind, 1, trips);
  for (int i = 0; i < TRIPS; i++) add(&findings->trips[kind], trips[i]);
  for (int i = 0; i < GROUPS; i++) add(&findings->groups[kind], groups[i]);
  perf_sort(groups, GROUPS);
  findings->medians[kind][findings->blocks] = perf_quantile(groups, GROUPS, 0.5);
}

static void measure(struct side *side, struct findings *findings) {
  int64_t start = perf_now_ns(), now;
  double total = side->options->seconds * 1e9;
  for (int kind = 0; kind < KINDS; kind++) {
    findings->medians[kind] = calloc(MOST_BLOCKS, sizeof(double));
    if (!findings->medians[kind]) perf_die("no memory for the figures");
  }
  do {
    for (int kind = 0; kind < KINDS; kind++, findings->next += 2) measure_kind(side, findings, findings->next, kind);
    findings->blocks++;
    now = perf_now_ns();
    perf_progress(side->options, (double)(now - start) / total);
  } while ((double)(now - start) < total && findings->blocks < MOST_BLOCKS);
  perf_progress(side->options, 1);
}

static void measure_cold(struct side *side, struct findings *findings) {
  uint64_t stamps[2 * COLD_TRIPS];
  int64_t start = perf_now_ns();
  do {
    for (int kind = 0; kind < KINDS; kind++) {
      command(side->shared, findings->next++, kind + KINDS);
      ask_cold(side, kind, stamps);
      for (int i = 0; i < COLD_TRIPS; i++)
        add(&findings->cold[kind], one_way(&findings->clock, stamps[2 * i + 1] - stamps[2 * i], 1));
    }
  } while ((double)(perf_now_ns() - start) < side->options->seconds * 1e9);
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

/* Blocks measured while the cores were near to or far from each other. */
struct cluster {
  const char *name;
  double share;
  double p50[KINDS];
};

/* A quantile of a kind's medians, for blocks with a floor from `low` on and below `high`. */
static double quantile_where(const struct findings *findings, int kind, double low, double high, double share,
                             size_t *count) {
  double *chosen = malloc(findings->blocks * sizeof *chosen);
  if (!chosen) perf_die("no memory for the figures");
  *count = 0;
  for (size_t i = 0; i < findings->blocks; i++)
    if (findings->medians[FLOOR][i] >= low && findings->medians[FLOOR][i] < high)
      chosen[(*count)++] = findings->medians[kind][i];
  perf_sort(chosen, *count);
  double value = perf_quantile(chosen, *count, share);
  free(chosen);
  return value;
}

static double spread(const struct findings *findings, int kind, double share) {
  size_t count;
  return quantile_where(findings, kind, 0, INFINITY, share, &count);
}

/* The floor shows the distance of the cores; the line does not, since the time of a line depends on ownership too.
 * Outliers of 5 % on either side do not count. Returns the number of clusters. */
static size_t find_clusters(const struct findings *findings, struct cluster clusters[2]) {
  double low = spread(findings, FLOOR, 0.05), high = spread(findings, FLOOR, 0.95), middle = sqrt(low * high);
  if (high <= APART * low) return 0;
  for (int i = 0; i < 2; i++) {
    size_t count = 0;
    clusters[i].name = i == 0 ? "near" : "far";
    for (int kind = 0; kind < KINDS; kind++)
      clusters[i].p50[kind] =
          quantile_where(findings, kind, i == 0 ? 0 : middle, i == 0 ? middle : INFINITY, 0.5, &count);
    clusters[i].share = (double)count / (double)findings->blocks;
  }
  return 2;
}

static double percentile(const struct findings *findings, int kind, double share) {
  return histogram_percentile(share > 0.5 ? &findings->trips[kind] : &findings->groups[kind], share) / 1000;
}

static const char *const keys[KINDS] = {"one_way_ns", "floor_ns", "line_ns"};
static const char *const labels[KINDS] = {"ring", "floor: a line each way", "one line in turn"};

static void print_json(struct json *json, const struct findings *findings) {
  double ring = percentile(findings, RING, 0.5);
  struct cluster clusters[2];
  size_t count = find_clusters(findings, clusters);
  for (int kind = 0; kind < KINDS; kind++) {
    json_open(json, keys[kind], '{');
    json_number(json, "p50", percentile(findings, kind, 0.5));
    json_number(json, "p99", percentile(findings, kind, 0.99));
    json_number(json, "p999", percentile(findings, kind, 0.999));
    json_number(json, "block_p5", spread(findings, kind, 0.05));
    json_number(json, "block_p95", spread(findings, kind, 0.95));
    json_close(json, '}');
  }
  json_number(json, "ratio", ring / percentile(findings, FLOOR, 0.5));
  json_number(json, "ratio_line", ring / percentile(findings, LINE, 0.5));
  json_open(json, "clusters", '[');
  for (size_t i = 0; i < count; i++) {
    json_open(json, NULL, '{');
    json_string(json, "cores", clusters[i].name);
    json_number(json, "share", clusters[i].share);
    for (int kind = 0; kind < KINDS; kind++) json_number(json, keys[kind], clusters[i].p50[kind]);
    json_number(json, "ratio", clusters[i].p50[RING] / clusters[i].p50[FLOOR]);
    json_number(json, "ratio_line", clusters[i].p50[RING] / clusters[i].p50[LINE]);
    json_close(json, '}');
  }
  json_close(json, ']');
  if (findings->cold[RING].count > 0) {
    json_open(json, "cold", '{');
    for (int kind = 0; kind < KINDS; kind++)
      json_percentiles(json, keys[kind], histogram_percentile(&findings->cold[kind], 0.5) / 1000,
                       histogram_percentile(&findings->cold[kind], 0.99) / 1000);
    json_integer(json, "round_trips", (int64_t)findings->cold[RING].count);
    json_close(json, '}');
  }
  json_integer(json, "blocks", (int64_t)findings->blocks);
  json_integer(json, "round_trips", (int64_t)findings->trips[RING].count);
  json_string(json, "clock", findings->clock.name);
  json_number(json, "clock_cost_ns", findings->clock.cost_ns);
  json_close(json, '}');
}

static void print_text(const struct findings *findings) {
  double ring = percentile(findings, RING, 0.5);
  struct cluster clusters[2];
  size_t count = find_clusters(findings, clusters);
  printf("%-26s %8s %8s %8s   %s\n", "one way, ns", "p50", "p99", "p99.9", "blocks' medians, 5 % to 95 %");
  for (int kind = 0; kind < KINDS; kind++)
    printf("%-26s %8.1f %8.1f %8.1f   %.1f to %.1f\n", labels[kind], percentile(findings, kind, 0.5),
           percentile(findings, kind, 0.99), percentile(findings, kind, 0.999), spread(findings, kind, 0.05),
           spread(findings, kind, 0.95));
  if (findings->cold[RING].count > 0) printf("with cold caches\n");
  for (int kind = 0; kind < KINDS && findings->cold[kind].count > 0; kind++)
    printf("%-26s %8.1f %8.1f\n", labels[kind], histogram_percentile(&findings->cold[kind], 0.5) / 1000,
           histogram_percentile(&findings->cold[kind], 0.99) / 1000);
  printf("\nratio to the floor %.3f, to one line in turn %.3f\n", ring / percentile(findings, FLOOR, 0.5),
         ring / percentile(findings, LINE, 0.5));
  for (size_t i = 0; i < count; i++)
    printf("cores %-4s (%2.0f %% of the time): ring %.1f, floor %.1f (ratio %.3f), one line %.1f (ratio %.3f)\n",
           clusters[i].name, 100 * clusters[i].share, clusters[i].p50[RING], clusters[i].p50[FLOOR],
           clusters[i].p50[RING] / clusters[i].p50[FLOOR], clusters[i].p50[LINE],
           clusters[i].p50[RING] / clusters[i].p50[LINE]);
  printf("%zu blocks of %d round trips for p50 and as many for the rest; stamped with %s, whose %.1f ns are taken "
         "off\n",
         findings->blocks, TRIPS, findings->clock.name, findings->clock.cost_ns);
}

int perf_latency(const struct perf_options *options) {
  uint32_t parties = options->readers + 1;
  if (perf_cpu_of(options, 0, parties) < 0)
    perf_die("latency needs a CPU for each of its %u processes, and this process may use %d: give fewer --readers, or "
             "more CPUs (taskset, the container's cpuset)",
             parties, options->cpu_count);
  static struct findings findings;
  struct perf_children children = {0};
  struct json json = {.out = stdout};
  struct ringcast_info info = {.size = sizeof info};
  struct side side = {.options = options, .shared = perf_shared(sizeof(struct shared))};
  if (options->cold) walk_make(&side.walk, options->cold_bytes);
  side.out = perf_writer(options, options->capacity, SPIN_NS);
  strncpy(side.shared->to, ringcast_writer_handle(side.out), sizeof side.shared->to - 1);
  for (uint32_t i = 0; i < options->readers; i++) perf_start(&children, options, parties, answer, &side);
  perf_pin(perf_cpu_of(options, 0, parties));
  make_messages(&side);
  findings.clock = perf_clock_measure();
  await(&side.shared->handles, 1);
  side.in = perf_attach(side.shared->from, SPIN_NS);
  perf_must(ringcast_writer_wait_readers(side.out, options->readers, RINGCAST_FOREVER), "the readers do not come");
  prepare_to_send(&side, 0);
  findings.next = 1;
  measure(&side, &findings);
  if (options->cold) measure_cold(&side, &findings);
  perf_must(ringcast_writer_info(side.out, &info), "no facts of the ring");
  perf_stop(&children);
  perf_print_head(&json, options, &info, parties);
  options->json ? print_json(&json, &findings) : print_text(&findings);
  for (int kind = 0; kind < KINDS; kind++) free(findings.medians[kind]);
  for (int i = 0; i < 2; i++) free(side.messages[i]);
  walk_destroy(&side.walk);
  ringcast_reader_close(side.in);
  ringcast_writer_close(side.out);
  return CLI_OK;
}
