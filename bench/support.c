/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "bench/support.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tools/cli.h"

enum { MOST_FIGURES = 16 };

bool bench_dry;
static struct perf_options options;
static char reason[256];
static struct bench_figure figures[MOST_FIGURES];
static size_t figure_count;

void bench_begin(bool dry) {
  cpu_set_t allowed;
  bench_dry = dry;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) perf_die("can't tell the CPUs: %s", strerror(errno));
  for (int cpu = 0; cpu < CPU_SETSIZE && options.cpu_count < PERF_MAX_CPUS; cpu++)
    if (CPU_ISSET(cpu, &allowed)) options.cpus[options.cpu_count++] = cpu;
  perf_watch_children();
}

const struct perf_options *bench_options(void) { return &options; }

/* ---- What can't be done here ------------------------------------------------------------------------------------ */

void *bench_skip(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  return NULL;
}

const char *bench_reason(void) { return reason; }

bool bench_has_cpus(uint32_t parties) {
  if ((uint32_t)options.cpu_count >= parties) return true;
  bench_skip("needs %u CPUs, and %d may be used", parties, options.cpu_count);
  return false;
}

static uint64_t available_memory(void) {
  unsigned long long kibibytes = 0;
  char line[128];
  FILE *file = fopen("/proc/meminfo", "re");
  while (file && fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %llu", &kibibytes) != 1) continue;
  if (file) fclose(file);
  return kibibytes << 10;
}

bool bench_has_memory(size_t frame) {
  const size_t small = 64 << 20; /* a machine that builds this has room for some of these */
  uint64_t needed = 6 * (uint64_t)frame, available = frame <= small ? UINT64_MAX : available_memory();
  if (frame > small && bench_dry) bench_skip("a dry run leaves frames of %zu MiB out", frame >> 20);
  else if (needed > available)
    bench_skip("needs %llu MiB, and %llu are free", (unsigned long long)needed >> 20,
               (unsigned long long)available >> 20);
  else return true;
  return false;
}

ringcast_writer *bench_writer(const struct ringcast_writer_options *wanted, size_t frame) {
  ringcast_writer *writer;
  struct ringcast_info info = {.size = sizeof info};
  if (ringcast_writer_create_ex(wanted, &writer) != 0) return bench_skip("%s", ringcast_last_error());
  perf_must(ringcast_writer_info(writer, &info), "no facts of the ring");
  if (frame <= info.max_frame) return writer;
  ringcast_writer_close(writer);
  return bench_skip("a frame of %zu bytes is larger than this ring takes (%llu)", frame,
                    (unsigned long long)info.max_frame);
}

/* ---- Figures ---------------------------------------------------------------------------------------------------- */

void bench_report(const char *key, double value) {
  if (figure_count < MOST_FIGURES) figures[figure_count++] = (struct bench_figure){key, value};
}

size_t bench_figures(const struct bench_figure **out) {
  size_t count = figure_count;
  figure_count = 0;
  *out = figures;
  return count;
}

double bench_seconds_since(int64_t start) { return (double)(perf_now_ns() - start) * 1e-9; }

const char *bench_cpu(void) {
  static char model[256];
  return cli_cpu_model(model, sizeof model);
}
