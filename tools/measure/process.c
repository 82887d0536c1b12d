/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/measure/perf.h"

static volatile sig_atomic_t stopping; /* children may end now */

void *perf_shared(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) perf_die("can't map %zu bytes: %s", bytes, strerror(errno));
  return memory;
}

void perf_unshare(void *memory, size_t bytes) { munmap(memory, bytes); }

void perf_die(const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  _exit(cli_fail(CLI_FAILED, "%s", text));
}

void perf_die_of(const char *what) { perf_die("%s: %s", what, ringcast_last_error()); }

/* ---- Signals --------------------------------------------------------------------------------- */

static void say(const char *text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return; /* stderr is closed: the text is lost */
}

/* The children die with this process (PR_SET_PDEATHSIG), and a ring's memory with the last
 * child. */
static void on_interrupt(int signal) {
  say("\nringcast: interrupted\n");
  _exit(128 + signal);
}

/* Without this handler the parent would spin forever on a word of a dead child. */
static void on_child(int signal) {
  (void)signal;
  if (stopping) return;
  say("ringcast: a reader process has ended before its time; nothing was measured\n");
  _exit(CLI_FAILED);
}

void perf_watch_children(void) {
  struct sigaction child = {.sa_handler = on_child, .sa_flags = SA_NOCLDSTOP | SA_RESTART};
  struct sigaction interrupt = {.sa_handler = on_interrupt};
  sigaction(SIGCHLD, &child, NULL);
  sigaction(SIGINT, &interrupt, NULL);
  sigaction(SIGTERM, &interrupt, NULL);
}

/* ---- CPUs ------------------------------------------------------------------------------------ */

void perf_find_cpus(struct perf_options *options) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    perf_die("can't tell the CPUs: %s", strerror(errno));
  for (int cpu = 0; cpu < PERF_MAX_CPUS; cpu++)
    if (CPU_ISSET(cpu, &allowed)) options->cpus[options->cpu_count++] = cpu;
}

int perf_cpu_of(const struct perf_options *options, uint32_t party, uint32_t parties) {
  uint32_t count = (uint32_t)options->cpu_count;
  if (count < parties) return -1;
  return options->cpus[party == 0 ? 0 : count - party];
}

void perf_pin(int cpu) {
  cpu_set_t set;
  if (cpu < 0) return;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    perf_die("can't run on CPU %d: %s", cpu, strerror(errno));
}

void perf_unpin(const struct perf_options *options) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int i = 0; i < options->cpu_count; i++) CPU_SET(options->cpus[i], &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    perf_die("can't run on all CPUs: %s", strerror(errno));
}

/* ---- Children -------------------------------------------------------------------------------- */

void perf_start(struct perf_children *children, const struct perf_options *options,
                uint32_t parties, void (*body)(void *context, uint32_t index), void *context) {
  pid_t parent = getpid();
  stopping = 0;
  fflush(NULL); /* or the child prints the buffered text again */
  pid_t pid = fork();
  if (pid < 0) perf_die("can't start a process: %s", strerror(errno));
  if (pid > 0) {
    children->pids[children->count++] = pid;
    return;
  }
  signal(SIGINT, SIG_IGN); /* the parent ends the child */
  signal(SIGTERM, SIG_DFL);
  signal(SIGCHLD, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(CLI_FAILED); /* the parent died before the line above */
  perf_pin(perf_cpu_of(options, children->count + 1, parties));
  body(context, children->count);
  _exit(CLI_FAILED);
}

void perf_stop(struct perf_children *children) {
  stopping = 1;
  for (uint32_t i = 0; i < children->count; i++) kill(children->pids[i], SIGKILL);
  for (uint32_t i = 0; i < children->count; i++)
    while (waitpid(children->pids[i], NULL, 0) < 0 && errno == EINTR) continue;
  children->count = 0;
}

double perf_cpu_ns(const struct perf_children *children, uint32_t index) {
  clockid_t clock;
  struct timespec used;
  if (clock_getcpuclockid(children->pids[index], &clock) != 0 || clock_gettime(clock, &used) != 0)
    perf_die("can't tell the CPU time of reader %u", index);
  return (double)used.tv_sec * 1e9 + (double)used.tv_nsec;
}

/* ---- Rings ----------------------------------------------------------------------------------- */

static char reason[256];

const char *perf_reason(void) { return reason; }

void *perf_skip(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  return NULL;
}

ringcast_writer *perf_try_writer(const struct ringcast_writer_options *wanted, size_t frame) {
  ringcast_writer *writer;
  struct ringcast_info info = {.size = sizeof info};
  if (ringcast_writer_create_ex(wanted, &writer) != 0)
    return perf_skip("%s", ringcast_last_error());
  perf_must(ringcast_writer_info(writer, &info), "no facts of the ring");
  if (frame <= info.max_frame) return writer;
  ringcast_writer_close(writer);
  return perf_skip(
      "a frame of %zu bytes does not fit: this ring takes up to %llu; set RINGCAST_SPILL_BYTES, or "
      "--capacity to more than twice the frame, by 1K or so",
      frame, (unsigned long long)info.max_frame);
}

ringcast_writer *perf_writer(const struct perf_options *options, uint64_t capacity,
                             int64_t spin_ns) {
  struct ringcast_writer_options asked = {
      .size = sizeof asked, .capacity = capacity, .spin_ns = spin_ns, .readers = options->readers};
  ringcast_writer *writer = perf_try_writer(&asked, options->size);
  if (!writer) perf_die("%s", reason);
  return writer;
}

ringcast_reader *perf_attach(const char *handle, int64_t spin_ns) {
  struct ringcast_reader_options asked = {.size = sizeof asked, .spin_ns = spin_ns, .name = "perf"};
  ringcast_reader *reader;
  perf_must(ringcast_reader_attach_ex(handle, &asked, &reader), "can't attach to the ring");
  return reader;
}

/* ---- Clock ----------------------------------------------------------------------------------- */

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

/* ---- Data ------------------------------------------------------------------------------------ */

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

/* ---- Printing -------------------------------------------------------------------------------- */

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

void perf_print_head(struct report *report, const struct perf_options *options,
                     const struct ringcast_info *info, uint32_t parties) {
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
    report_integer(report, NULL,
                   pinned ? perf_cpu_of(options, (uint32_t)i, parties) : options->cpus[i]);
  report_close(report);
  report_string(report, "memory", ringcast_memory_name(info->memory));
  report_integer(report, "capacity", (int64_t)info->capacity);
  report_integer(report, "size", (int64_t)options->size);
  report_integer(report, "readers", options->readers);
  report_number(report, "seconds", options->seconds);
}

/* ---- Reading every byte
 * ---------------------------------------------------------------------------------------------
 */

/* A cache line in registers of 16 bytes, which every 64-bit CPU has. */
typedef uint64_t vector __attribute__((vector_size(16), aligned(8), may_alias));

__attribute__((aligned(64))) uint64_t sum_vectors(const uint8_t *at, size_t bytes) {
  vector sums[4] = {{0}};
  uint64_t sum = 0;
  const size_t step = sizeof sums;
  for (; bytes >= step; bytes -= step, at += step)
    for (size_t i = 0; i < 4; i++) sums[i] += ((const vector *)(const void *)at)[i];
  for (size_t i = 0; i < 4; i++) sum += sums[i][0] + sums[i][1];
  return sum + sum_words(at, bytes);
}
