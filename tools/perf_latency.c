/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One way between two processes, each on a CPU of its own: half of a round trip.
 *
 * Three things are timed in turn, in blocks of some hundred round trips, so that what drifts (the clock rate, a
 * neighbour, the host moving the two cores) meets all of them alike:
 *   ring   a frame there over one ring, and one back over another; written and read in full, and checked
 *   line   one cache line that both sides write in turn: the bare ping-pong
 *   flags  two lines, each written by one side only: the least that a ring can do, since a reader never writes what the
 *          writer writes. On some CPUs ownership of a line moves along with the read, and then `line` is the faster one.
 * Each round trip is stamped once, its end being the start of the next; what a stamp costs is measured and taken off. The
 * stamps give p99 and p99.9. Some counters move in steps of 10 ns, so p50 is that of groups of a few trips: the median of
 * what a trip takes in a group.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/histogram.h"
#include "tools/perf.h"

enum { RING, LINE, FLAGS, KINDS };
enum { TRIPS = 512, GROUP = 8, GROUPS = TRIPS / GROUP, WARM = 32, MOST_BLOCKS = 1 << 16 };

static const int64_t SPIN_NS = 3600000000000; /* nobody sleeps here */
static const double APART = 1.6;              /* blocks that differ by more came from cores near and far */

struct shared {
  _Alignas(PERF_LINE) uint64_t command; /* block number * KINDS + kind */
  _Alignas(PERF_LINE) uint64_t answered;
  _Alignas(PERF_LINE) uint64_t line;
  _Alignas(PERF_LINE) uint64_t there;
  _Alignas(PERF_LINE) uint64_t back;
  _Alignas(PERF_LINE) uint64_t handles; /* 1: the one that leads back is there */
  char to[96], from[96];
};

struct side {
  const struct perf_options *options;
  struct shared *shared;
  ringcast_writer *out;
  ringcast_reader *in;
  uint8_t *source;
  uint64_t sum; /* of the source but for its first word */
  uint64_t turn, flag, sent;
};

/* ---- The two sides ---------------------------------------------------------------------------------------------- */

static inline void await(const uint64_t *word, uint64_t value) {
  while (perf_load(word) != value) perf_relax(false);
}

static inline void pass(struct side *side, uint64_t value) {
  struct ringcast_span span;
  memcpy(side->source, &value, sizeof value);
  perf_must(ringcast_writer_reserve(side->out, side->options->size, RINGCAST_FOREVER, &span), "can't send");
  memcpy(span.data, side->source, side->options->size);
  perf_must(ringcast_writer_commit(side->out, side->options->size, RINGCAST_KIND_BYTES), "can't send");
}

static inline void take(struct side *side, uint64_t value) {
  struct ringcast_frame frame;
  perf_must(ringcast_reader_next(side->in, RINGCAST_FOREVER, &frame), "can't receive");
  uint64_t sum = sum_bytes(frame.data, frame.bytes);
  perf_must(ringcast_reader_release(side->in, &frame), "can't release");
  if (sum != side->sum + value) perf_die("frame %llu has come damaged", (unsigned long long)value);
}

static inline void ping(struct side *side, int kind) {
  struct shared *shared = side->shared;
  if (kind == RING) {
    pass(side, side->sent);
    take(side, side->sent++);
  } else if (kind == LINE) {
    perf_store(&shared->line, side->turn + 1);
    await(&shared->line, side->turn += 2);
  } else {
    perf_store(&shared->there, ++side->flag);
    await(&shared->back, side->flag);
  }
}

static inline void pong(struct side *side, int kind) {
  struct shared *shared = side->shared;
  if (kind == RING) {
    take(side, side->sent);
    pass(side, side->sent++);
  } else if (kind == LINE) {
    await(&shared->line, side->turn + 1);
    perf_store(&shared->line, side->turn += 2);
  } else {
    await(&shared->there, ++side->flag);
    perf_store(&shared->back, side->flag);
  }
}

static void prepare(struct side *side) {
  uint64_t zero = 0;
  side->source = perf_source(side->options->size);
  memcpy(side->source, &zero, sizeof zero);
  side->sum = sum_bytes(side->source, side->options->size);
}

/* Those beyond the first reader only read. */
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
  prepare(&side);
  side.out = perf_writer(side.options, side.options->capacity, SPIN_NS);
  strncpy(shared->from, ringcast_writer_handle(side.out), sizeof shared->from - 1);
  perf_store(&shared->handles, 1);
  for (uint64_t block = 1;; block++) {
    uint64_t command;
    while ((command = perf_load(&shared->command)) / KINDS != block) perf_relax(false);
    perf_store(&shared->answered, block);
    for (int i = 0; i < TRIPS + WARM; i++) pong(&side, (int)(command % KINDS));
  }
}

/* ---- Measuring -------------------------------------------------------------------------------------------------- */

struct findings {
  struct perf_clock clock;
  struct histogram trips[KINDS];      /* one way, in picoseconds */
  struct histogram groups[KINDS];
  double *medians[KINDS];             /* of each block, ns */
  size_t blocks;
};

static void add(struct histogram *histogram, double ns) { histogram_add(histogram, (uint64_t)(ns * 1000)); }

/* One block: the median of its groups. */
static double measure_block(struct side *side, struct findings *findings, uint64_t block, int kind) {
  static double ways[TRIPS], groups[GROUPS];
  struct shared *shared = side->shared;
  perf_store(&shared->command, block * KINDS + (uint64_t)kind);
  await(&shared->answered, block);
  for (int i = 0; i < WARM; i++) ping(side, kind);
  uint64_t last = perf_ticks();
  for (int i = 0; i < TRIPS; i++) {
    ping(side, kind);
    uint64_t now = perf_ticks();
    ways[i] = (double)(now - last);
    last = now;
  }
  for (int group = 0; group < GROUPS; group++) {
    double sum = 0;
    for (int i = group * GROUP; i < (group + 1) * GROUP; i++) {
      double way = (ways[i] * findings->clock.ns_per_tick - findings->clock.cost_ns) / 2;
      add(&findings->trips[kind], fmax(0, way));
      sum += way;
    }
    groups[group] = fmax(0, sum / GROUP);
    add(&findings->groups[kind], groups[group]);
  }
  perf_sort(groups, GROUPS);
  return perf_quantile(groups, GROUPS, 0.5);
}

static void measure(struct side *side, struct findings *findings) {
  int64_t start = perf_now_ns(), now;
  double total = side->options->seconds * 1e9;
  uint64_t block = 0;
  for (int kind = 0; kind < KINDS; kind++) {
    findings->medians[kind] = calloc(MOST_BLOCKS, sizeof(double));
    if (!findings->medians[kind]) perf_die("no memory for the figures");
  }
  do {
    for (int kind = 0; kind < KINDS; kind++)
      findings->medians[kind][findings->blocks] = measure_block(side, findings, ++block, kind);
    findings->blocks++;
    now = perf_now_ns();
    perf_progress(side->options, (double)(now - start) / total);
  } while ((double)(now - start) < total && findings->blocks < MOST_BLOCKS);
  perf_progress(side->options, 1);
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

/* Blocks measured while the cores were near to or far from each other. */
struct cluster {
  const char *name;
  double share;
  double p50[KINDS];
};

static double median_where(const struct findings *findings, int kind, double low, double high, size_t *count) {
  double *chosen = malloc(findings->blocks * sizeof *chosen);
  if (!chosen) perf_die("no memory for the figures");
  *count = 0;
  for (size_t i = 0; i < findings->blocks; i++)
    if (findings->medians[FLAGS][i] >= low && findings->medians[FLAGS][i] < high)
      chosen[(*count)++] = findings->medians[kind][i];
  perf_sort(chosen, *count);
  double median = perf_quantile(chosen, *count, 0.5);
  free(chosen);
  return median;
}

static double spread(const struct findings *findings, int kind, double share) {
  double *sorted = malloc(findings->blocks * sizeof *sorted);
  if (!sorted) perf_die("no memory for the figures");
  memcpy(sorted, findings->medians[kind], findings->blocks * sizeof *sorted);
  perf_sort(sorted, findings->blocks);
  double value = perf_quantile(sorted, findings->blocks, share);
  free(sorted);
  return value;
}

/* The two flags tell how far the cores are; the one line does not, since on some CPUs it is fast or slow by whether the
 * read took ownership along. Outliers of a twentieth on either side do not count. Returns how many. */
static size_t find_clusters(const struct findings *findings, struct cluster clusters[2]) {
  double low = spread(findings, FLAGS, 0.05), high = spread(findings, FLAGS, 0.95), middle = sqrt(low * high);
  if (high <= APART * low) return 0;
  for (int i = 0; i < 2; i++) {
    size_t count = 0;
    clusters[i].name = i == 0 ? "near" : "far";
    for (int kind = 0; kind < KINDS; kind++)
      clusters[i].p50[kind] = median_where(findings, kind, i == 0 ? 0 : middle, i == 0 ? middle : INFINITY, &count);
    clusters[i].share = (double)count / (double)findings->blocks;
  }
  return 2;
}

static double percentile(const struct findings *findings, int kind, double share) {
  return histogram_percentile(share > 0.5 ? &findings->trips[kind] : &findings->groups[kind], share) / 1000;
}

static const char *const keys[KINDS] = {"one_way_ns", "floor_ns", "flag_ns"};
static const char *const labels[KINDS] = {"ring", "floor: one line in turn", "floor: a line each way"};

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
  json_number(json, "ratio", ring / percentile(findings, LINE, 0.5));
  json_number(json, "ratio_flag", ring / percentile(findings, FLAGS, 0.5));
  json_open(json, "clusters", '[');
  for (size_t i = 0; i < count; i++) {
    json_open(json, NULL, '{');
    json_string(json, "cores", clusters[i].name);
    json_number(json, "share", clusters[i].share);
    for (int kind = 0; kind < KINDS; kind++) json_number(json, keys[kind], clusters[i].p50[kind]);
    json_number(json, "ratio", clusters[i].p50[RING] / clusters[i].p50[LINE]);
    json_number(json, "ratio_flag", clusters[i].p50[RING] / clusters[i].p50[FLAGS]);
    json_close(json, '}');
  }
  json_close(json, ']');
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
  printf("\nratio to one line in turn %.3f, to a line each way %.3f\n", ring / percentile(findings, LINE, 0.5),
         ring / percentile(findings, FLAGS, 0.5));
  for (size_t i = 0; i < count; i++)
    printf("cores %-4s (%2.0f %% of the time): ring %.1f, one line %.1f (ratio %.3f), line each way %.1f (ratio %.3f)\n",
           clusters[i].name, 100 * clusters[i].share, clusters[i].p50[RING], clusters[i].p50[LINE],
           clusters[i].p50[RING] / clusters[i].p50[LINE], clusters[i].p50[FLAGS],
           clusters[i].p50[RING] / clusters[i].p50[FLAGS]);
  printf("%zu blocks of %d round trips each; stamped with %s, whose %.1f ns are taken off each round trip\n",
         findings->blocks, TRIPS, findings->clock.name, findings->clock.cost_ns);
}

int perf_latency(const struct perf_options *options) {
  uint32_t parties = options->readers + 1;
  if (perf_cpu_of(options, 0, parties) < 0)
    perf_die("latency needs a CPU for each of its %u processes, and this process may use %d: give fewer --readers, or "
             "more CPUs (taskset, the container's cpuset)", parties, options->cpu_count);
  static struct findings findings;
  struct perf_children children = {0};
  struct json json = {.out = stdout};
  struct ringcast_info info;
  struct side side = {.options = options, .shared = perf_shared(sizeof(struct shared))};
  side.out = perf_writer(options, options->capacity, SPIN_NS);
  strncpy(side.shared->to, ringcast_writer_handle(side.out), sizeof side.shared->to - 1);
  for (uint32_t i = 0; i < options->readers; i++) perf_start(&children, options, parties, answer, &side);
  perf_pin(perf_cpu_of(options, 0, parties));
  prepare(&side);
  findings.clock = perf_clock_measure();
  await(&side.shared->handles, 1);
  side.in = perf_attach(side.shared->from, SPIN_NS);
  perf_must(ringcast_writer_wait_readers(side.out, options->readers, RINGCAST_FOREVER), "the readers do not come");
  measure(&side, &findings);
  perf_must(ringcast_writer_info(side.out, &info), "no facts of the ring");
  perf_stop(&children);
  perf_print_head(&json, options, &info, parties);
  options->json ? print_json(&json, &findings) : print_text(&findings);
  for (int kind = 0; kind < KINDS; kind++) free(findings.medians[kind]);
  free(side.source);
  ringcast_reader_close(side.in);
  ringcast_writer_close(side.out);
  return CLI_OK;
}
