/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringcast perf latency`. The kinds of tools/measure/trip.h take turns, in blocks of some hundred round trips, so that
 * a drift (of the clock rate, of a neighbour's load, of the host's choice of cores) affects all kinds alike. p50 comes
 * from blocks with one reading of the clock in GROUP trips, p99 and p99.9 from blocks with a reading for each trip.
 */
#include "tools/cli.h"
#include "tools/measure/trip.h"

enum { TRIPS = TRIP_MOST, GROUP = TRIP_GROUP, GROUPS = TRIPS / GROUP, SINGLE = 128 /* trips with a reading each */ };

/* One way, in ns. */
struct findings {
  struct perf_series trips[TRIP_KINDS], groups[TRIP_KINDS], cold[TRIP_KINDS];
  struct perf_series medians[TRIP_KINDS]; /* of each block: the host moves the cores near and far */
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

/* ---- Printing --------------------------------------------------------------------------------------------------- */

static void print(struct report *report, struct findings *findings) {
  static const char *const keys[TRIP_KINDS] = {"one_way_ns", "floor_ns", "line_ns"};
  double p50[TRIP_KINDS];
  for (enum trip_kind kind = 0; kind < TRIP_KINDS; kind++) {
    p50[kind] = perf_quantile_of(&findings->groups[kind], 0.5);
    report_open(report, keys[kind], '{');
    report_number(report, "p50", p50[kind]);
    report_number(report, "p99", perf_quantile_of(&findings->trips[kind], 0.99));
    report_number(report, "p999", perf_quantile_of(&findings->trips[kind], 0.999));
    report_number(report, "block_p5", perf_quantile_of(&findings->medians[kind], 0.05));
    report_number(report, "block_p95", perf_quantile_of(&findings->medians[kind], 0.95));
    report_close(report);
  }
  if (findings->cold[TRIP_RING].count > 0) {
    report_open(report, "cold", '{');
    for (enum trip_kind kind = 0; kind < TRIP_KINDS; kind++)
      report_percentiles(report, keys[kind], perf_quantile_of(&findings->cold[kind], 0.5),
                         perf_quantile_of(&findings->cold[kind], 0.99));
    report_close(report);
    report_integer(report, "cold_round_trips", (int64_t)findings->cold[TRIP_RING].count);
  }
  report_number(report, "ratio", p50[TRIP_RING] / p50[TRIP_FLOOR]);
  report_number(report, "ratio_line", p50[TRIP_RING] / p50[TRIP_LINE]);
  report_integer(report, "blocks", (int64_t)findings->medians[TRIP_RING].count);
  report_integer(report, "round_trips", (int64_t)findings->trips[TRIP_RING].count);
}

int perf_latency(const struct perf_options *options) {
  static struct findings findings;
  uint32_t parties = options->readers + 1;
  struct report report;
  if (perf_cpu_of(options, 0, parties) < 0)
    perf_die("latency needs a CPU for each of its %u processes, and this process may use %d: give fewer --readers, or "
             "more CPUs (taskset, the container's cpuset)",
             parties, options->cpu_count);
  struct trips *trips = trips_make(options);
  struct ringcast_info info = trips_info(trips);
  struct perf_clock clock = *trips_clock(trips);
  measure(options, trips, &findings, measure_kind);
  if (options->cold) measure(options, trips, &findings, measure_cold);
  trips_destroy(trips);
  perf_print_head(&report, options, &info, parties);
  print(&report, &findings);
  report_string(&report, "clock", clock.name);
  report_number(&report, "clock_cost_ns", clock.cost_ns);
  report_close(&report);
  return CLI_OK;
}
