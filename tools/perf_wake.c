/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a sleeping reader takes to run: from just before the send to the reader's first look at the clock, which
 * both processes share. In turn with the ring, a bare futex: the word is stored, FUTEX_WAKE is called, the other side
 * has slept in FUTEX_WAIT. Before each send the writer sees in /proc that every reader sleeps, and lets some time pass,
 * so that all find the readers' CPUs idle alike.
 *
 * Then nothing is sent for as long again, and the CPU time that the readers take meanwhile is the price of
 * being parked.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/histogram.h"
#include "tools/perf.h"

enum { RING, FUTEX, KINDS };

static const int64_t NEVER_SPINS = -1;
static const int64_t IDLE_NS = 50000;           /* between falling asleep and the send */
static const int64_t ASLEEP_NS = 10000000000;   /* a reader that is not asleep by then never will be */

struct shared {
  _Alignas(PERF_LINE) uint32_t futex;
  _Alignas(PERF_LINE) int64_t sent; /* the futex's send time */
  char handle[96];
  struct {
    _Alignas(PERF_LINE) uint64_t waiting; /* for the send of this number, counted from 1 */
    struct histogram histograms[KINDS];   /* ns */
  } readers[];
};

struct wake {
  const struct perf_options *options;
  struct shared *shared;
  bool crowded;
  ringcast_writer *writer;
  uint8_t *source;
  uint64_t sends;
  struct perf_children children;
  int states[PERF_MAX_READERS]; /* /proc/<pid>/stat of each reader */
};

/* ---- The reader ------------------------------------------------------------------------------------------------- */

static int64_t await_ring(ringcast_reader *reader) {
  struct ringcast_frame frame;
  int64_t sent;
  perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
  int64_t now = perf_now_ns();
  memcpy(&sent, frame.data, sizeof sent);
  perf_must(ringcast_reader_release(reader, &frame), "can't release");
  return now - sent;
}

static int64_t await_futex(struct shared *shared, uint32_t value) {
  while (__atomic_load_n(&shared->futex, __ATOMIC_ACQUIRE) == value)
    syscall(SYS_futex, &shared->futex, FUTEX_WAIT, value, NULL, NULL, 0);
  return perf_now_ns() - shared->sent;
}

static void reader_body(void *context, uint32_t index) {
  struct wake *wake = context;
  struct shared *shared = wake->shared;
  ringcast_reader *reader = perf_attach(shared->handle, NEVER_SPINS);
  for (uint64_t number = 1;; number++) {
    int kind = number % 2 == 1 ? RING : FUTEX;
    perf_store(&shared->readers[index].waiting, number);
    int64_t ns = kind == RING ? await_ring(reader) : await_futex(shared, (uint32_t)(number / 2 - 1));
    histogram_add(&shared->readers[index].histograms[kind], ns > 0 ? (uint64_t)ns : 0);
  }
}

/* ---- The writer ------------------------------------------------------------------------------------------------- */

/* The third field of /proc/<pid>/stat, after a name that may hold anything. */
static bool is_asleep(int fd) {
  char text[256];
  ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
  if (bytes <= 0) return false;
  text[bytes] = '\0';
  const char *end = strrchr(text, ')');
  return end && end[1] == ' ' && end[2] == 'S';
}

/* Waits until every reader sleeps and waits for the next send. */
static void await_sleepers(struct wake *wake) {
  int64_t start = perf_now_ns();
  for (uint32_t i = 0; i < wake->options->readers; i++)
    while (perf_load(&wake->shared->readers[i].waiting) != wake->sends + 1 || !is_asleep(wake->states[i])) {
      if (perf_now_ns() - start > ASLEEP_NS) perf_die("reader %u does not fall asleep", i);
      perf_relax(wake->crowded);
    }
}

static void send_ring(struct wake *wake) {
  struct ringcast_span span;
  int64_t now = perf_now_ns();
  memcpy(wake->source, &now, sizeof now);
  perf_must(ringcast_writer_reserve(wake->writer, wake->options->size, RINGCAST_FOREVER, &span), "can't send");
  memcpy(span.data, wake->source, wake->options->size);
  perf_must(ringcast_writer_commit(wake->writer, wake->options->size, RINGCAST_KIND_BYTES), "can't send");
}

static void send_futex(struct shared *shared) {
  shared->sent = perf_now_ns();
  __atomic_store_n(&shared->futex, shared->futex + 1, __ATOMIC_RELEASE);
  syscall(SYS_futex, &shared->futex, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void send_both(struct wake *wake) {
  for (int kind = 0; kind < KINDS; kind++) {
    await_sleepers(wake);
    int64_t start = perf_now_ns();
    while (perf_now_ns() - start < IDLE_NS) perf_relax(wake->crowded);
    kind == RING ? send_ring(wake) : send_futex(wake->shared);
    wake->sends++;
  }
}

static void measure(struct wake *wake) {
  double total = wake->options->seconds * 1e9;
  int64_t start = perf_now_ns(), now;
  do {
    send_both(wake);
    now = perf_now_ns();
    perf_progress(wake->options, (double)(now - start) / total / 2);
  } while ((double)(now - start) < total);
  await_sleepers(wake);
}

/* ---- Parked ----------------------------------------------------------------------------------------------------- */

static double cpu_ns(const struct wake *wake) {
  double sum = 0;
  for (uint32_t i = 0; i < wake->options->readers; i++) sum += perf_cpu_ns(&wake->children, i);
  return sum;
}

/* Percent of one CPU, for one reader. */
static double measure_parked(struct wake *wake) {
  double before = cpu_ns(wake), total = wake->options->seconds * 1e9;
  int64_t start = perf_now_ns(), passed = 0;
  while ((double)passed < total) {
    int64_t left = (int64_t)total - passed, slice = left < 200000000 ? left : 200000000;
    nanosleep(&(struct timespec){.tv_sec = slice / 1000000000, .tv_nsec = slice % 1000000000}, NULL);
    passed = perf_now_ns() - start;
    perf_progress(wake->options, 0.5 + (double)passed / total / 2);
  }
  perf_progress(wake->options, 1);
  return 100 * (cpu_ns(wake) - before) / (double)passed / wake->options->readers;
}

/* ---- Setting up and printing ------------------------------------------------------------------------------------ */

static void start(struct wake *wake, uint32_t parties) {
  char path[64];
  strncpy(wake->shared->handle, ringcast_writer_handle(wake->writer), sizeof wake->shared->handle - 1);
  for (uint32_t i = 0; i < wake->options->readers; i++) {
    perf_start(&wake->children, wake->options, parties, reader_body, wake);
    snprintf(path, sizeof path, "/proc/%d/stat", (int)wake->children.pids[i]);
    wake->states[i] = open(path, O_RDONLY | O_CLOEXEC);
    if (wake->states[i] < 0) perf_die("can't open %s: %s", path, strerror(errno));
  }
  perf_pin(perf_cpu_of(wake->options, 0, parties));
  perf_must(ringcast_writer_wait_readers(wake->writer, wake->options->readers, RINGCAST_FOREVER), "no readers");
}

static void print(const struct wake *wake, const struct ringcast_info *info, double idle_percent) {
  static struct histogram all[KINDS];
  double p50[KINDS], p99[KINDS];
  struct json json = {.out = stdout};
  for (int kind = 0; kind < KINDS; kind++) {
    for (uint32_t i = 0; i < wake->options->readers; i++)
      histogram_merge(&all[kind], &wake->shared->readers[i].histograms[kind]);
    p50[kind] = histogram_percentile(&all[kind], 0.5) / 1000;
    p99[kind] = histogram_percentile(&all[kind], 0.99) / 1000;
  }
  perf_print_head(&json, wake->options, info, wake->options->readers + 1);
  if (wake->options->json) {
    static const char *const keys[KINDS] = {"wake_us", "futex_us"};
    for (int kind = 0; kind < KINDS; kind++) {
      json_open(&json, keys[kind], '{');
      json_number(&json, "p50", p50[kind]);
      json_number(&json, "p99", p99[kind]);
      json_close(&json, '}');
    }
    json_number(&json, "ratio", p50[RING] / p50[FUTEX]);
    json_number(&json, "idle_cpu_percent", idle_percent);
    json_integer(&json, "wakes", (int64_t)all[RING].count);
    json_close(&json, '}');
    return;
  }
  printf("%-30s %8s %8s\n", "from send to running, us", "p50", "p99");
  printf("%-30s %8.2f %8.2f\n", "ring", p50[RING], p99[RING]);
  printf("%-30s %8.2f %8.2f\n", "floor: a bare futex", p50[FUTEX], p99[FUTEX]);
  printf("\nratio %.3f, of %llu wake-ups each\n", p50[RING] / p50[FUTEX], (unsigned long long)all[RING].count);
  printf("parked, a reader takes %.3f %% of a CPU\n", idle_percent);
}

int perf_wake(const struct perf_options *options) {
  static struct wake wake;
  uint32_t parties = options->readers + 1;
  struct ringcast_info info = {.size = sizeof info};
  wake.options = options;
  wake.crowded = perf_cpu_of(options, 0, parties) < 0;
  wake.source = perf_source(options->size);
  wake.shared = perf_shared(sizeof *wake.shared + options->readers * sizeof wake.shared->readers[0]);
  wake.writer = perf_writer(options, options->capacity, 0);
  start(&wake, parties);
  measure(&wake);
  double idle_percent = measure_parked(&wake);
  perf_must(ringcast_writer_info(wake.writer, &info), "no facts of the ring");
  perf_stop(&wake.children);
  print(&wake, &info, idle_percent);
  free(wake.source);
  ringcast_writer_close(wake.writer);
  return CLI_OK;
}
