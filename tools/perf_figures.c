/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/perf.h"

enum { LINE = 64, UNKNOWN_CACHE = 64 << 20 };

/* ---- Clock ------------------------------------------------------------------------------------------------------ */

int64_t perf_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double perf_clock_cost(void) {
  enum { BATCHES = 41, READS = 100 };
  double costs[BATCHES];
  for (int batch = 0; batch < BATCHES; batch++) {
    int64_t start = perf_now_ns(), now = start;
    for (int i = 0; i < READS; i++) now = perf_now_ns();
    costs[batch] = (double)(now - start) / READS;
  }
  return perf_median(costs, BATCHES);
}

/* ---- Cold caches ------------------------------------------------------------------------------------------------ */

void perf_walk_make(struct perf_walk *walk, size_t bytes) {
  long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes == 0) bytes = cache > 0 ? 2 * (size_t)cache : UNKNOWN_CACHE;
  void *memory = perf_shared(bytes);
  memset(memory, 1, bytes);
  *walk = (struct perf_walk){.bytes = bytes, .memory = memory};
}

static int64_t cpu_now_ns(void) {
  struct timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

int64_t perf_walk_once(const struct perf_walk *walk) {
  uint64_t sum = 0;
  int64_t start = cpu_now_ns();
  for (size_t i = 0; i < walk->bytes / sizeof sum; i += LINE / sizeof sum) sum += walk->memory[i];
  __asm__ volatile("" ::"r"(sum)); /* keeps the loads: the sum has no other use */
  return cpu_now_ns() - start;
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

static void sort(double *values, size_t count) {
  if (count > 0) qsort(values, count, sizeof *values, compare);
}

static double quantile(const double *sorted, size_t count, double share) {
  return count == 0 ? NAN : sorted[(size_t)(share * (double)(count - 1) + 0.5)];
}

double perf_median(double *values, size_t count) {
  sort(values, count);
  return quantile(values, count, 0.5);
}

void perf_add(struct perf_series *series, const double *values, size_t count) {
  if (series->count + count > series->room) {
    series->room = 2 * (series->room + count);
    double *more = realloc(series->values, series->room * sizeof *values);
    if (!more) perf_die("no memory for the figures");
    series->values = more;
  }
  memcpy(series->values + series->count, values, count * sizeof *values);
  series->count += count;
}

double perf_quantile_of(struct perf_series *series, double share) {
  sort(series->values, series->count);
  return quantile(series->values, series->count, share);
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
