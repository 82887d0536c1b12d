/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringcast perf latency`. The kinds of tools/measure/trip.h take turns, in blocks of some hundred round trips, so that
 * a drift (of the clock rate, of a neighbour's load, of the host's choice of cores) affects all kinds alike. p50 comes
 * from blocks with one reading of the clock in GROUP trips, p99 and p99.9 from blocks with a reading for each trip.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/measure/trip.h"

enum { TRIPS = TRIP_MOST, GROUP = TRIP_GROUP, GROUPS = TRIPS / GROUP, SINGLE = 128 /* trips with a reading each */ };

static const double APART = 1.6; /* if blocks differ by more, the host has moved the cores near and far */

/* One way, in ns. */
struct findings {
  struct perf_series trips[TRIP_KINDS], groups[TRIP_KINDS], cold[TRIP_KINDS];
  struct perf_series medians[TRIP_KINDS]; /* of each block, in the order of the blocks */
};

/* ---- Measuring -------------------------------------------------------------------------------------------------- */

/* Keeps the median of the block, and each trip. */
static void measure_kind(struct trips *trips, struct findings *findings, enum trip_kind kind) {
  double groups[GROUPS], singles[SINGLE];
  trips_run(trips, kind, TRIPS, GROUP, groups);
  trips_run(trips, kind, SINGLE, 1, singles);
  perf_add(&findings->trips[kind], singles, SINGLE);
  perf_add(&findings->groups[kind], groups, GROUPS);
  double median = perf_median(groups, GROUPS);
  perf_add(&findings->medians[kind], &median, 1);
}

static void measure_cold(struct trips *trips, struct findings *findings, enum trip_kind kind) {
  double cold[TRIP_COLD];
  trips_run_cold(trips, kind, cold);
  perf_add(&findings->cold[kind], cold, TRIP_COLD);
}

static void measure(const struct perf_options *options, struct trips *trips, struct findings *findings,
                    void (*one)(struct trips *, struct findings *, enum trip_kind)) {
  int64_t start = perf_now_ns(), now;
  do {
    for (enum trip_kind kind = 0; kind < TRIP_KINDS; kind++) one(trips, findings, kind);
    now = perf_now_ns();
    perf_progress(options, (double)(now - start) / (options->seconds * 1e9));
  } while ((double)(now - start) < options->seconds * 1e9);
  perf_progress(options, 1);
}

/* ---- Near and far cores ----------------------------------------------------------------------------------------- */
/* Blocks measured while the cores were near to or far from each other. */
struct cluster {
  const char *name;
  double share;
  double p50[TRIP_KINDS];
};

/* A quantile of a kind's medians, for blocks with a floor from `low` on and below `high`. */
static double quantile_where(const struct findings *findings, enum trip_kind kind, double low, double high,
                             double share, size_t *count) {
  struct perf_series chosen = {0};
  for (size_t i = 0; i < findings->medians[TRIP_FLOOR].count; i++) {
    double floor = findings->medians[TRIP_FLOOR].values[i];
    if (floor >= low && floor < high) perf_add(&chosen, &findings->medians[kind].values[i], 1);
  }
  double value = perf_quantile_of(&chosen, share);
  *count = chosen.count;
  free(chosen.values);
  return value;
}

static double spread(const struct findings *findings, enum trip_kind kind, double share) {
  size_t count;
  return quantile_where(findings, kind, 0, INFINITY, share, &count);
}

/* The floor shows the distance of the cores; the line does not, since the time of a line depends on ownership too.
 * Outliers of 5 % on either side do not count. Returns the number of clusters. */
static size_t find_clusters(const struct findings *findings, struct cluster clusters[2]) {
  double low = spread(findings, TRIP_FLOOR, 0.05), high = spread(findings, TRIP_FLOOR, 0.95), middle = sqrt(low * high);
  if (high <= APART * low) return 0;
  for (int i = 0; i < 2; i++) {
    size_t count = 0;
    clusters[i].name = i == 0 ? "near" : "far";
    for (enum trip_kind kind = 0; kind < TRIP_KINDS; kind++)
      clusters[i].p50[kind] =
          quantile_where(findings, kind, i == 0 ? 0 : middle, i == 0 ? middle : INFINITY, 0.5, &count);
    clusters[i].share = (double)count / (double)findings->medians[TRIP_FLOOR].count;
  }
  return 2;
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

/* Percentiles of a kind's trips, and of the medians of its blocks. */
static const struct {
  const char *key, *title;
} columns[] = {{"p50", "p50"}, {"p99", "p99"}, {"p999", "p99.9"}, {"block_p5", "blocks 5 %"}, {"block_p95", "95 %"}};
enum { COLUMNS = sizeof columns / sizeof *columns };

/* What is printed, in either format. */
struct report {
  double rows[TRIP_KINDS][COLUMNS];
  struct cluster clusters[2];
  size_t cluster_count;
  double cold[TRIP_KINDS][2]; /* p50, p99 */
  size_t cold_trips, blocks, trips;
  struct perf_clock clock;
};

static const char *const keys[TRIP_KINDS] = {"one_way_ns", "floor_ns", "line_ns"};
static const char *const labels[TRIP_KINDS] = {"ring", "floor: a line each way", "one line in turn"};

static struct report report_of(struct findings *findings, const struct perf_clock *clock) {
  struct report report = {.clock = *clock,
                          .cold_trips = findings->cold[TRIP_RING].count,
                          .blocks = findings->medians[TRIP_RING].count,
                          .trips = findings->trips[TRIP_RING].count};
  report.cluster_count = find_clusters(findings, report.clusters);
  for (enum trip_kind kind = 0; kind < TRIP_KINDS; kind++) {
    double row[COLUMNS] = {
        perf_quantile_of(&findings->groups[kind], 0.5), perf_quantile_of(&findings->trips[kind], 0.99),
        perf_quantile_of(&findings->trips[kind], 0.999), spread(findings, kind, 0.05), spread(findings, kind, 0.95)};
    memcpy(report.rows[kind], row, sizeof row);
    report.cold[kind][0] = perf_quantile_of(&findings->cold[kind], 0.5);
    report.cold[kind][1] = perf_quantile_of(&findings->cold[kind], 0.99);
  }
  return report;
}

static double ratio_to(const double p50[TRIP_KINDS], enum trip_kind kind) { return p50[TRIP_RING] / p50[kind]; }

static void print_json(struct json *json, const struct report *report, const double p50[TRIP_KINDS]) {
  for (enum trip_kind kind = 0; kind < TRIP_KINDS; kind++) {
    json_open(json, keys[kind], '{');
    for (int i = 0; i < COLUMNS; i++) json_number(json, columns[i].key, report->rows[kind][i]);
    json_close(json, '}');
  }
  json_number(json, "ratio", ratio_to(p50, TRIP_FLOOR));
  json_number(json, "ratio_line", ratio_to(p50, TRIP_LINE));
  json_open(json, "clusters", '[');
  for (const struct cluster *at = report->clusters; at < report->clusters + report->cluster_count; at++) {
    json_open(json, NULL, '{');
    json_string(json, "cores", at->name);
    json_number(json, "share", at->share);
    for (enum trip_kind kind = 0; kind < TRIP_KINDS; kind++) json_number(json, keys[kind], at->p50[kind]);
    json_number(json, "ratio", ratio_to(at->p50, TRIP_FLOOR));
    json_number(json, "ratio_line", ratio_to(at->p50, TRIP_LINE));
    json_close(json, '}');
  }
  json_close(json, ']');
  if (report->cold_trips > 0) {
    json_open(json, "cold", '{');
    for (enum trip_kind kind = 0; kind < TRIP_KINDS; kind++)
      json_percentiles(json, keys[kind], report->cold[kind][0], report->cold[kind][1]);
    json_integer(json, "round_trips", (int64_t)report->cold_trips);
    json_close(json, '}');
  }
  json_integer(json, "blocks", (int64_t)report->blocks);
  json_integer(json, "round_trips", (int64_t)report->trips);
  json_string(json, "clock", report->clock.name);
  json_number(json, "clock_cost_ns", report->clock.cost_ns);
  json_close(json, '}');
}

static void print_text(const struct report *report, const double p50[TRIP_KINDS]) {
  printf("%-26s", "one way, ns");
  for (int i = 0; i < COLUMNS; i++) printf(" %10s", columns[i].title);
  for (enum trip_kind kind = 0; kind < TRIP_KINDS; kind++) {
    printf("\n%-26s", labels[kind]);
    for (int i = 0; i < COLUMNS; i++) printf(" %10.1f", report->rows[kind][i]);
  }
  if (report->cold_trips > 0) printf("\nwith cold caches");
  for (enum trip_kind kind = 0; kind < TRIP_KINDS && report->cold_trips > 0; kind++)
    printf("\n%-26s %10.1f %10.1f", labels[kind], report->cold[kind][0], report->cold[kind][1]);
  printf("\n\nratio to the floor %.3f, to one line in turn %.3f\n", ratio_to(p50, TRIP_FLOOR),
         ratio_to(p50, TRIP_LINE));
  for (const struct cluster *at = report->clusters; at < report->clusters + report->cluster_count; at++)
    printf("cores %-4s (%2.0f %% of the time): ring %.1f, floor %.1f (ratio %.3f), one line %.1f (ratio %.3f)\n",
           at->name, 100 * at->share, at->p50[TRIP_RING], at->p50[TRIP_FLOOR], ratio_to(at->p50, TRIP_FLOOR),
           at->p50[TRIP_LINE], ratio_to(at->p50, TRIP_LINE));
  printf("%zu blocks of %d round trips for p50, and of %d for p99 and p99.9; the clock is %s, and the %.1f ns that one "
         "reading takes are subtracted\n",
         report->blocks, TRIPS, SINGLE, report->clock.name, report->clock.cost_ns);
}

int perf_latency(const struct perf_options *options) {
  static struct findings findings;
  uint32_t parties = options->readers + 1;
  struct json json = {.out = stdout};
  double p50[TRIP_KINDS];
  if (perf_cpu_of(options, 0, parties) < 0)
    perf_die("latency needs a CPU for each of its %u processes, and this process may use %d: give fewer --readers, or "
             "more CPUs (taskset, the container's cpuset)",
             parties, options->cpu_count);
  struct trips *trips = trips_make(options);
  struct ringcast_info info = trips_info(trips);
  measure(options, trips, &findings, measure_kind);
  if (options->cold) measure(options, trips, &findings, measure_cold);
  struct report report = report_of(&findings, trips_clock(trips));
  trips_destroy(trips);
  for (enum trip_kind kind = 0; kind < TRIP_KINDS; kind++) p50[kind] = report.rows[kind][0];
  perf_print_head(&json, options, &info, parties);
  options->json ? print_json(&json, &report, p50) : print_text(&report, p50);
  return CLI_OK;
}
