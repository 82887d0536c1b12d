/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages at an engine's cadence: the writer sends one message after each gap, sleeps between two
 * of them, and every reader waits for the next one.
 *
 * Three ways take turns, each in blocks with readers of its own, so that no process of another way
 * waits meanwhile:
 *   ring    a ring with the library's default waiting
 *   futex   the number and the send time in shared memory, and one futex on which all readers sleep
 *   spin    the same words; the readers never sleep (where there are fewer CPUs than processes,
 *           each turn of the loop gives the CPU to another process)
 *
 * A message carries its number and the time just before its commit; a reader takes the time when
 * the wait returns, and then checks the message. The writer sends the next message only when every
 * reader has read the last one. The first messages of a block are not counted: a reader that learns
 * the cadence learns meanwhile.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/measure/perf.h"

enum way { RING, FUTEX, SPIN, WAYS };
enum { ROUNDS = 2, LEARNING = 20, FEWEST = 5, MOST = 100000 };

/* Of perf wake: long enough that every reader and the readers' CPUs are idle again. */
static const double WAKE_GAP_MS = 0.5;

/* By which part of itself a gap varies, at most: no reader learns when the next message comes. */
static const double JITTER = 0.02, WAKE_JITTER = 0.2;

/* After the last message of a block the readers of a bare futex wake as often as a ring's idle
 * reader, which looks whether the writer lives. */
static const struct timespec SLICE = {.tv_nsec = 90 * 1000 * 1000};

/* What precedes the bytes of a message. */
struct stamp {
  uint64_t number; /* counted from 1 in each block */
  int64_t sent_ns;
};

struct shared {
  _Alignas(PERF_LINE) uint32_t futex; /* the futex's and the spinning way's number */
  _Alignas(PERF_LINE) struct stamp stamp;
  char handle[96];
  struct {
    _Alignas(PERF_LINE)
        uint64_t had; /* the number of the last message that this reader has read and checked */
    uint64_t calls;   /* sleeps and wakes, as the reader's statistics count */
  } readers[];
};

struct figures {
  struct perf_series commits, wakes,
      slowest;            /* ns, of each counted message; wakes: of each message and reader */
  double cpu_ns, wall_ns; /* cpu_ns: of all readers together */
  uint64_t calls;
};

struct cadence {
  const struct perf_options *options;
  enum way way, ways; /* the way of this block; the first `ways` ways are measured */
  int64_t spin_ns;    /* of the ring's readers; 0: the library's default, below 0: never */
  double idle_s;      /* seconds without messages at the end of each block; 0: none */
  double idle_percent[WAYS];
  bool oversubscribed;
  struct shared *shared;
  size_t shared_bytes;
  float *wakes; /* shared: [reader][message], ns */
  size_t block; /* messages of a block, the first ones included */
  double jitter;
  struct perf_children children;
  ringcast_writer *writer;
  struct ringcast_info info; /* of the last ring */
  uint8_t *source;
  uint64_t seed;
  int64_t due;
  struct figures figures[WAYS];
};

/* ---- The reader ------------------------------------------------------------------------------ */

static bool is_right(const struct cadence *cadence, const struct ringcast_frame *frame) {
  size_t size = cadence->options->size;
  return frame->bytes == size &&
         memcmp((const uint8_t *)frame->data + sizeof(struct stamp),
                cadence->source + sizeof(struct stamp), size - sizeof(struct stamp)) == 0;
}

static int64_t receive(const struct cadence *cadence, ringcast_reader *reader,
                       struct stamp *stamp) {
  struct ringcast_frame frame;
  perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
  int64_t now = perf_now_ns();
  if (!is_right(cadence, &frame)) perf_die("a message arrived damaged");
  memcpy(stamp, frame.data, sizeof *stamp);
  perf_must(ringcast_reader_release(reader, &frame), "can't release");
  return now;
}

static int64_t await_word(const struct cadence *cadence, uint32_t value, struct stamp *stamp) {
  uint32_t *word = &cadence->shared->futex;
  const struct timespec *slice = value == cadence->block ? &SLICE : NULL;
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) {
    if (cadence->way == FUTEX) syscall(SYS_futex, word, FUTEX_WAIT, value, slice, NULL, 0);
    else perf_relax(cadence->oversubscribed);
  }
  int64_t now = perf_now_ns();
  *stamp = cadence->shared->stamp;
  return now;
}

static void reader_body(void *context, uint32_t index) {
  struct cadence *cadence = context;
  struct shared *shared = cadence->shared;
  ringcast_reader *reader =
      cadence->way == RING ? perf_attach(shared->handle, cadence->spin_ns) : NULL;
  for (uint64_t number = 1;; number++) {
    struct stamp stamp;
    struct ringcast_stats stats = {.size = sizeof stats};
    int64_t now = reader ? receive(cadence, reader, &stamp)
                         : await_word(cadence, (uint32_t)number - 1, &stamp);
    if (stamp.number != number)
      perf_die("reader %u got message %llu in the place of message %llu", index,
               (unsigned long long)stamp.number, (unsigned long long)number);
    cadence->wakes[index * cadence->block + number - 1] = (float)(now - stamp.sent_ns);
    if (reader) perf_must(ringcast_reader_stats(reader, &stats), "no statistics");
    shared->readers[index].calls = stats.sleeps + stats.wakes;
    perf_store(&shared->readers[index].had, number);
  }
}

/* ---- The writer ------------------------------------------------------------------------------ */

static double vary(struct cadence *cadence) {
  cadence->seed ^= cadence->seed << 13;
  cadence->seed ^= cadence->seed >> 7;
  cadence->seed ^= cadence->seed << 17;
  return 2 * (double)(cadence->seed >> 11) / (double)(1ull << 53) - 1; /* -1 to 1 */
}

static void sleep_until(int64_t due) {
  struct timespec time = {.tv_sec = due / 1000000000, .tv_nsec = due % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) continue;
}

static void await_readers(const struct cadence *cadence, uint64_t number) {
  for (uint32_t i = 0; i < cadence->options->readers; i++)
    while (perf_load(&cadence->shared->readers[i].had) < number) sleep_until(perf_now_ns() + 20000);
}

/* The gaps count from the last send, so that a late message does not shorten the gap that
 * follows. */
static void await_turn(struct cadence *cadence, uint64_t number) {
  const struct perf_options *options = cadence->options;
  int64_t due =
      cadence->due + (int64_t)(options->gap_ms * 1e6 * (1 + cadence->jitter * vary(cadence)));
  sleep_until(due);
  await_readers(cadence, number - 1);
}

/* Returns how long the commit took, ns. */
static int64_t send(struct cadence *cadence, uint64_t number) {
  struct shared *shared = cadence->shared;
  size_t size = cadence->options->size;
  int64_t now = perf_now_ns();
  struct stamp stamp = {number, now};
  if (cadence->way == RING) {
    struct ringcast_span span;
    perf_must(ringcast_writer_reserve(cadence->writer, size, RINGCAST_FOREVER, &span),
              "can't send");
    memcpy(span.data, &stamp, sizeof stamp);
    memcpy((uint8_t *)span.data + sizeof stamp, cadence->source + sizeof stamp,
           size - sizeof stamp);
    perf_must(ringcast_writer_commit(cadence->writer, size, RINGCAST_KIND_BYTES), "can't send");
  } else {
    shared->stamp = stamp;
    __atomic_store_n(&shared->futex, (uint32_t)number, __ATOMIC_RELEASE);
    if (cadence->way == FUTEX)
      syscall(SYS_futex, &shared->futex, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  }
  cadence->due = now;
  return perf_now_ns() - now;
}

/* ---- CPU time -------------------------------------------------------------------------------- */

struct meter {
  int64_t wall_ns;
  double cpu_ns;
  uint64_t calls;
};

static void read_meter(const struct cadence *cadence, struct meter *meter) {
  *meter = (struct meter){.wall_ns = perf_now_ns()};
  for (uint32_t i = 0; i < cadence->options->readers; i++) {
    meter->cpu_ns += perf_cpu_ns(&cadence->children, i);
    meter->calls += cadence->shared->readers[i].calls;
  }
}

static void add_meters(struct figures *figures, const struct meter *from, const struct meter *to) {
  figures->wall_ns += (double)(to->wall_ns - from->wall_ns);
  figures->cpu_ns += to->cpu_ns - from->cpu_ns;
  figures->calls += to->calls - from->calls;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static void start(struct cadence *cadence) {
  const struct perf_options *options = cadence->options;
  struct shared *shared = cadence->shared;
  memset(shared, 0, cadence->shared_bytes);
  if (cadence->way == RING) {
    cadence->writer = perf_writer(options, options->capacity, 0);
    cadence->info.size = sizeof cadence->info;
    perf_must(ringcast_writer_info(cadence->writer, &cadence->info), "no facts of the ring");
    strncpy(shared->handle, ringcast_writer_handle(cadence->writer), sizeof shared->handle - 1);
  }
  for (uint32_t i = 0; i < options->readers; i++)
    perf_start(&cadence->children, options, options->readers + 1, reader_body, cadence);
  if (cadence->writer)
    perf_must(ringcast_writer_wait_readers(cadence->writer, options->readers, RINGCAST_FOREVER),
              "no readers");
  cadence->due = perf_now_ns();
  send(cadence, 1);
  await_readers(cadence, 1);
}

static void count(struct cadence *cadence, struct figures *figures, size_t message,
                  int64_t commit_ns) {
  double slowest = 0, commit = (double)commit_ns;
  for (uint32_t i = 0; i < cadence->options->readers; i++) {
    double wake = (double)cadence->wakes[i * cadence->block + message];
    perf_add(&figures->wakes, &wake, 1);
    slowest = fmax(slowest, wake);
  }
  perf_add(&figures->slowest, &slowest, 1);
  perf_add(&figures->commits, &commit, 1);
}

/* The CPU time of a reader that waits without messages, in percent of a CPU. */
static double measure_idle(const struct cadence *cadence) {
  struct meter from, to;
  read_meter(cadence, &from);
  sleep_until(from.wall_ns + (int64_t)(cadence->idle_s * 1e9));
  read_meter(cadence, &to);
  return 100 * (to.cpu_ns - from.cpu_ns) / (double)(to.wall_ns - from.wall_ns) /
         cadence->options->readers;
}

static void measure_block(struct cadence *cadence, enum way way, double done) {
  struct figures *figures = &cadence->figures[way];
  struct meter from = {0}, to;
  int64_t commit_ns = 0;
  cadence->way = way;
  prctl(PR_SET_TIMERSLACK, 0); /* the usual one, which the readers inherit */
  start(cadence);
  prctl(PR_SET_TIMERSLACK, 1); /* the gaps vary by the jitter, and by little else */
  for (uint64_t number = 2; number <= cadence->block; number++) {
    await_turn(cadence, number);
    if (number > LEARNING + 1) count(cadence, figures, number - 2, commit_ns);
    if (number == LEARNING + 1) read_meter(cadence, &from);
    commit_ns = send(cadence, number);
    perf_progress(cadence->options,
                  done + (double)number / (double)(cadence->block * ROUNDS * cadence->ways));
  }
  await_turn(cadence, cadence->block + 1);
  count(cadence, figures, cadence->block - 1, commit_ns);
  read_meter(cadence, &to);
  add_meters(figures, &from, &to);
  if (cadence->idle_s > 0) cadence->idle_percent[way] += measure_idle(cadence) / ROUNDS;
  perf_stop(&cadence->children);
  ringcast_writer_close(cadence->writer);
  cadence->writer = NULL;
}

/* ---- Printing -------------------------------------------------------------------------------- */

static double calls_per_message(const struct cadence *cadence) {
  const struct figures *figures = &cadence->figures[RING];
  return (double)figures->calls / (double)figures->commits.count / cadence->options->readers;
}

static void print(struct cadence *cadence) {
  static const char *const keys[WAYS][4] = {
      {"wake_us", "commit_us", "slowest_us", "reader_cpu_percent"},
      {"futex_us", "futex_commit_us", "futex_slowest_us", "futex_cpu_percent"},
      {"spin_us", "spin_commit_us", "spin_slowest_us", "spin_cpu_percent"}};
  const struct perf_options *options = cadence->options;
  struct report report;
  perf_print_head(&report, options, &cadence->info, options->readers + 1);
  report_number(&report, "gap_ms", options->gap_ms);
  report_integer(&report, "messages", (int64_t)cadence->figures[RING].commits.count);
  for (enum way way = 0; way < cadence->ways; way++) {
    struct perf_series *series[] = {&cadence->figures[way].wakes, &cadence->figures[way].commits,
                                    &cadence->figures[way].slowest};
    for (int i = 0; i < 3; i++)
      report_percentiles(&report, keys[way][i], perf_quantile_of(series[i], 0.5) / 1000,
                         perf_quantile_of(series[i], 0.99) / 1000);
  }
  for (enum way way = 0; way < cadence->ways; way++) {
    const struct figures *figures = &cadence->figures[way];
    report_number(&report, keys[way][3],
                  100 * figures->cpu_ns / figures->wall_ns / options->readers);
  }
  report_number(&report, "system_calls_per_message", calls_per_message(cadence));
  report_number(&report, "ratio",
                perf_quantile_of(&cadence->figures[RING].wakes, 0.5) /
                    perf_quantile_of(&cadence->figures[FUTEX].wakes, 0.5));
  if (cadence->idle_s > 0) {
    report_number(&report, "idle_cpu_percent", cadence->idle_percent[RING]);
    report_number(&report, "futex_idle_cpu_percent", cadence->idle_percent[FUTEX]);
  }
  report_close(&report);
}

/* ---- Setting up ------------------------------------------------------------------------------ */

static void set_up(struct cadence *cadence, const struct perf_options *options) {
  double wanted = options->seconds * 1000 / options->gap_ms / ROUNDS;
  size_t counted = (size_t)fmin(fmax(wanted, FEWEST), MOST);
  if (options->size < sizeof(struct stamp))
    perf_die("--size is at least %zu for %s", sizeof(struct stamp), options->name);
  cadence->options = options;
  cadence->block = LEARNING + counted;
  cadence->seed = 88172645463325252;
  cadence->info.size = sizeof cadence->info;
  cadence->oversubscribed = perf_cpu_of(options, 0, options->readers + 1) < 0;
  cadence->shared_bytes =
      sizeof *cadence->shared + options->readers * sizeof cadence->shared->readers[0];
  cadence->shared = perf_shared(cadence->shared_bytes);
  cadence->source = perf_source(options->size);
  cadence->wakes = perf_shared(options->readers * cadence->block * sizeof *cadence->wakes);
}

static int run(struct cadence *cadence, const struct perf_options *options) {
  set_up(cadence, options);
  perf_pin(perf_cpu_of(options, 0, options->readers + 1));
  for (int round = 0; round < ROUNDS; round++)
    for (enum way way = 0; way < cadence->ways; way++)
      measure_block(cadence, way, (round * cadence->ways + way) / (double)(ROUNDS * cadence->ways));
  perf_progress(options, 1);
  print(cadence);
  return CLI_OK;
}

int perf_cadence(const struct perf_options *options) {
  static struct cadence cadence = {.ways = WAYS, .jitter = JITTER};
  return run(&cadence, options);
}

/* `ringcast perf wake`: the readers never spin, and each block ends with a time without
 * messages. */
int perf_wake(const struct perf_options *asked) {
  static struct cadence cadence = {.ways = SPIN, .spin_ns = -1, .jitter = WAKE_JITTER};
  struct perf_options options = *asked;
  options.gap_ms = WAKE_GAP_MS;
  cadence.idle_s = options.seconds / ROUNDS;
  return run(&cadence, &options);
}
