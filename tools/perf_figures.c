/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "tools/cli.h"
#include "tools/perf.h"

/* ---- Clock ------------------------------------------------------------------------------------------------------ */

int64_t perf_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#if defined(__x86_64__)
/* The time stamp counter ticks evenly and never stops, on all CPUs alike. */
static bool counter_is_steady(void) {
  static int steady = -1;
  char line[8192];
  FILE *file = steady < 0 ? fopen("/proc/cpuinfo", "re") : NULL;
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, "flags", 5) == 0) {
      steady = strstr(line, " constant_tsc") && strstr(line, " nonstop_tsc");
      break;
    }
  if (file) fclose(file);
  return steady > 0;
}

uint64_t perf_ticks(void) {
  static int use = -1;
  if (__builtin_expect(use < 0, 0)) use = counter_is_steady();
  return use ? __rdtsc() : (uint64_t)perf_now_ns();
}
#else
static bool counter_is_steady(void) { return false; }
uint64_t perf_ticks(void) { return (uint64_t)perf_now_ns(); }
#endif

/* The cost is that of many readings in a row: some counters move in steps that are longer than a reading. */
struct perf_clock perf_clock_measure(void) {
  enum { BATCHES = 41, READS = 100 };
  double costs[BATCHES];
  int64_t start = perf_now_ns();
  uint64_t first = perf_ticks();
  while (perf_now_ns() - start < 20000000) continue;
  int64_t passed = perf_now_ns() - start;
  double ns_per_tick = (double)passed / (double)(perf_ticks() - first);
  for (int batch = 0; batch < BATCHES; batch++) {
    uint64_t now = first = perf_ticks();
    for (int i = 0; i < READS; i++) now = perf_ticks();
    costs[batch] = (double)(now - first) * ns_per_tick / READS;
  }
  perf_sort(costs, BATCHES);
  return (struct perf_clock){.name = counter_is_steady() ? "rdtsc" : "CLOCK_MONOTONIC",
                             .ns_per_tick = ns_per_tick,
                             .cost_ns = costs[BATCHES / 2]};
}

/* ---- Data ------------------------------------------------------------------------------------------------------- */

void *perf_source(size_t bytes) {
  uint8_t *source = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
  if (!source) perf_die("no memory for %zu bytes", bytes);
  for (size_t i = 0; i < bytes; i++) source[i] = (uint8_t)(i * 131 + 7);
  return source;
}

static int compare(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

void perf_sort(double *values, size_t count) {
  if (count > 0) qsort(values, count, sizeof *values, compare);
}

double perf_quantile(const double *sorted, size_t count, double share) {
  return count == 0 ? NAN : sorted[(size_t)(share * (double)(count - 1) + 0.5)];
}

double perf_median(double *values, size_t count) {
  perf_sort(values, count);
  return perf_quantile(values, count, 0.5);
}

void perf_add(struct perf_series *series, const double *values, size_t count) {
  if (series->count + count > series->room) {
    series->room = 2 * (series->room + count);
    series->values = realloc(series->values, series->room * sizeof *values);
    if (!series->values) perf_die("no memory for the figures");
  }
  memcpy(series->values + series->count, values, count * sizeof *values);
  series->count += count;
}

double perf_quantile_of(struct perf_series *series, double share) {
  perf_sort(series->values, series->count);
  return perf_quantile(series->values, series->count, share);
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

void perf_progress(const struct perf_options *options, double done) {
  static int64_t shown;
  int64_t now = perf_now_ns();
  if (!isatty(STDERR_FILENO)) return;
  if (done >= 1) {
    if (shown) fputs("\r\033[K", stderr);
    shown = 0;
  } else if (now - shown > 200000000) {
    fprintf(stderr, "\r%s: %3.0f %%", options->name, 100 * done);
    shown = now;
  }
}

void perf_print_head(struct report *report, const struct perf_options *options, const struct ringcast_info *info,
                     uint32_t parties) {
  char cpu[256];
  bool pinned = perf_cpu_of(options, 0, parties) >= 0;
  *report = (struct report){.json = options->json};
  report_open(report, NULL, '{');
  report_string(report, "measurement", options->name);
  report_string(report, "version", ringcast_version());
  report_string(report, "cpu", cli_cpu_model(cpu, sizeof cpu));
  report_boolean(report, "pinned", pinned);
  report_open(report, "cpus", '[');
  for (int i = 0; i < (pinned ? (int)parties : options->cpu_count); i++)
    report_integer(report, NULL, pinned ? perf_cpu_of(options, (uint32_t)i, parties) : options->cpus[i]);
  report_close(report);
  report_string(report, "memory", ringcast_memory_name(info->memory));
  report_integer(report, "capacity", (int64_t)info->capacity);
  report_integer(report, "size", (int64_t)options->size);
  report_integer(report, "readers", options->readers);
  report_number(report, "seconds", options->seconds);
}
