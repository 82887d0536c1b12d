/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the measurements: options, processes on separate CPUs, the clock, and the printing of a
 * head. */
#ifndef TOOLS_MEASURE_PERF_H
#define TOOLS_MEASURE_PERF_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "ringcast/ringcast.h"
#include "tools/text.h"

#define PERF_MAX_CPUS    1024
#define PERF_MAX_READERS 256
#define PERF_MAX_SIZES   32
/* So far apart, two words share no cache line, and no pair that is fetched together. */
#define PERF_LINE 128

struct perf_options {
  const char *name; /* of the measurement */
  uint64_t size;
  int size_count; /* gpu's */
  uint64_t sizes[PERF_MAX_SIZES];
  uint32_t readers;
  double seconds;
  double gap_ms;     /* cadence's */
  uint64_t capacity; /* 0: the library's default */
  bool json;
  int cpu_count;
  int cpus[PERF_MAX_CPUS]; /* that this process may use */
};

/* Each measures, prints, and returns the exit status. */
int perf_latency(const struct perf_options *options);
int perf_throughput(const struct perf_options *options);
int perf_wake(const struct perf_options *options);
int perf_cadence(const struct perf_options *options);
int perf_gpu(const struct perf_options *options);

/* ---- Processes ------------------------------------------------------------------------------- */

/* Zeroed memory that children share. */
void *perf_shared(size_t bytes);
void perf_unshare(void *memory, size_t bytes);

/* Ends the process, with its children, in words. */
__attribute__((noreturn, format(printf, 1, 2))) void perf_die(const char *format, ...);

/* Dies with the library's own words if `result` is negative. Inline, since measured calls use this
 * check. */
__attribute__((noreturn, cold)) void perf_die_of(const char *what);
static inline int perf_must(int result, const char *what) {
  if (__builtin_expect(result < 0, 0)) perf_die_of(what);
  return result;
}

/* Children die with the parent, the parent ends when a child ends, and an interrupt ends all
 * processes. */
void perf_watch_children(void);

void perf_find_cpus(struct perf_options *options); /* sets cpus and cpu_count */

/* The CPU of a party (0 is the writer, then the readers): the writer has the first, the readers the
 * last ones. -1 when there are fewer CPUs than `parties`: then no process is pinned. */
int perf_cpu_of(const struct perf_options *options, uint32_t party, uint32_t parties);
void perf_pin(int cpu);                              /* -1: no change */
void perf_unpin(const struct perf_options *options); /* back to all usable CPUs */

struct perf_children {
  uint32_t count;
  pid_t pids[PERF_MAX_READERS];
};

/* Starts reader `index` on the reader's CPU. `body` never returns. */
void perf_start(struct perf_children *children, const struct perf_options *options,
                uint32_t parties, void (*body)(void *context, uint32_t index), void *context);
void perf_stop(struct perf_children *children);
double perf_cpu_ns(const struct perf_children *children,
                   uint32_t index); /* the CPU time of the reader so far */

/* Notes why a measurement is not possible here, and returns NULL. */
__attribute__((format(printf, 1, 2))) void *perf_skip(const char *format, ...);
const char *perf_reason(void);

/* NULL: the machine has no such ring, or the ring does not take frames of `frame` bytes; see
 * perf_reason. perf_writer ends the process then. */
ringcast_writer *perf_try_writer(const struct ringcast_writer_options *wanted, size_t frame);
ringcast_writer *perf_writer(const struct perf_options *options, uint64_t capacity,
                             int64_t spin_ns);
ringcast_reader *perf_attach(const char *handle, int64_t spin_ns);

/* ---- Clock and waiting ----------------------------------------------------------------------- */

int64_t perf_now_ns(void);

double perf_clock_cost(void); /* nanoseconds that a reading takes */

/* One turn of a spinning wait. `oversubscribed`: there are fewer CPUs than processes, so the
 * process yields. */
static inline void perf_relax(bool oversubscribed) {
  if (oversubscribed) sched_yield();
#if defined(__x86_64__) || defined(__i386__)
  else __builtin_ia32_pause();
#endif
}

static inline uint64_t perf_load(const uint64_t *word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
static inline void perf_store(uint64_t *word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* ---- Figures --------------------------------------------------------------------------------- */

void *perf_source(size_t bytes); /* bytes to send, not all zero */

double perf_median(double *values, size_t count); /* sorts the values */

/* A number of values that is not known in advance. */
struct perf_series {
  double *values;
  size_t count, room;
};
void perf_add(struct perf_series *series, const double *values, size_t count);
double perf_quantile_of(struct perf_series *series, double share); /* sorts the values */

/* Shows the progress on stderr, if stderr is a terminal, some times a second. `done` of 1 clears
 * the line. */
void perf_progress(const struct perf_options *options, double done);

/* Opens the report, with the facts beside the figures. */
void perf_print_head(struct report *report, const struct perf_options *options,
                     const struct ringcast_info *info, uint32_t parties);

/* ---- Writing and reading every byte of a frame at the least cost ----------------------------- */

/* memcpy; small frames without a call, like a copy of constant size. */
static inline void copy_bytes(void *to, const void *from, size_t bytes) {
  if (bytes >= 128 || bytes % 8 != 0) {
    memcpy(to, from, bytes);
    return;
  }
  for (size_t i = 0; i < bytes; i += 8) memcpy((char *)to + i, (const char *)from + i, 8);
}

/* In words, then bytes. */
static inline uint64_t sum_words(const uint8_t *at, size_t bytes) {
  uint64_t sum = 0, word = 0;
  for (; bytes >= sizeof word; bytes -= sizeof word, at += sizeof word) {
    memcpy(&word, at, sizeof word);
    sum += word;
  }
  for (size_t i = 0; i < bytes; i++) sum += (uint64_t)at[i] << 8 * i;
  return sum;
}

/* In vectors; not inline, so that the loop has the same alignment for every caller. */
uint64_t sum_vectors(const uint8_t *at, size_t bytes);

/* Sums all bytes as little-endian words of eight, the last one filled up with zeros. */
static inline uint64_t sum_bytes(const void *data, size_t bytes) {
  return bytes < 128 ? sum_words(data, bytes) : sum_vectors(data, bytes);
}

#endif
