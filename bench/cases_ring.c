/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One way from core to core: half of a round trip between two processes, each pinned to a CPU of its own. The floor is
 * one cache line that both write in turn; the ring's cases send a frame there over one ring and back over another.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/harness.h"
#include "ringcast/ringcast.h"

static const char *reason = "";

const char *bench_reason(void) { return reason; }

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Pins the caller to the first (0) or the last (1) CPU that it may use. */
static int pin(int which) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return -1;
  int chosen = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &allowed) && (chosen < 0 || which == 1)) chosen = cpu;
  CPU_ZERO(&one);
  CPU_SET(chosen, &one);
  return sched_setaffinity(0, sizeof one, &one);
}

struct pair {
  pid_t partner;
  cpu_set_t before;
  uint64_t *line; /* the bare ping-pong's */
  uint64_t turn;
  ringcast_writer *there;
  ringcast_reader *back;
  size_t bytes;
};

/* Starts `answer` on the other CPU. */
static int start_partner(struct pair *pair, void (*answer)(struct pair *)) {
  sched_getaffinity(0, sizeof pair->before, &pair->before);
  pair->partner = fork();
  if (pair->partner == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pin(1) == 0) answer(pair);
    _exit(0);
  }
  return pair->partner < 0 ? -1 : pin(0);
}

static void stop_partner(struct pair *pair) {
  kill(pair->partner, SIGKILL);
  waitpid(pair->partner, NULL, 0);
  sched_setaffinity(0, sizeof pair->before, &pair->before);
}

static struct pair *make_pair(const struct bench_case *self) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) {
    reason = "needs two CPUs";
    return NULL;
  }
  struct pair *pair = calloc(1, sizeof *pair);
  pair->bytes = self->bytes;
  return pair;
}

/* ---- The floor -------------------------------------------------------------------------------------------------- */

static void await(const uint64_t *line, uint64_t turn) {
  while (__atomic_load_n(line, __ATOMIC_ACQUIRE) != turn) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

static void answer_line(struct pair *pair) {
  for (uint64_t turn = 1;; turn += 2) {
    await(pair->line, turn);
    __atomic_store_n(pair->line, turn + 1, __ATOMIC_RELEASE);
  }
}

static void *setup_line(const struct bench_case *self) {
  struct pair *pair = make_pair(self);
  if (!pair) return NULL;
  pair->line = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  start_partner(pair, answer_line);
  return pair;
}

static double run_line(void *state, uint64_t iterations) {
  struct pair *pair = state;
  double start = now();
  for (uint64_t i = 0; i < iterations; i++, pair->turn += 2) {
    __atomic_store_n(pair->line, pair->turn + 1, __ATOMIC_RELEASE);
    await(pair->line, pair->turn + 2);
  }
  return (now() - start) / 2;
}

static void teardown_line(void *state) {
  struct pair *pair = state;
  stop_partner(pair);
  munmap(pair->line, 4096);
  free(pair);
}

/* ---- The ring --------------------------------------------------------------------------------------------------- */

static const int64_t SPIN_NS = 1000000000; /* the sleep is not measured here */

static ringcast_writer *make_writer(void) {
  struct ringcast_writer_options options = {.size = sizeof options, .capacity = 1 << 20, .readers = 1, .spin_ns = SPIN_NS};
  ringcast_writer *writer = NULL;
  if (ringcast_writer_create_ex(&options, &writer) != 0) abort();
  return writer;
}

static ringcast_reader *attach(const char *handle) {
  struct ringcast_reader_options options = {.size = sizeof options, .spin_ns = SPIN_NS};
  ringcast_reader *reader = NULL;
  if (ringcast_reader_attach_ex(handle, &options, &reader) != 0) abort();
  return reader;
}

static void pass(ringcast_writer *writer, uint64_t value, size_t bytes) {
  struct ringcast_span span;
  if (ringcast_writer_reserve(writer, bytes, RINGCAST_FOREVER, &span) != 0) abort();
  memcpy(span.data, &value, sizeof value);
  ringcast_writer_commit(writer, bytes, RINGCAST_KIND_BYTES);
}

static uint64_t take(ringcast_reader *reader) {
  struct ringcast_frame frame;
  uint64_t value;
  if (ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) != 0) abort();
  memcpy(&value, frame.data, sizeof value);
  ringcast_reader_release(reader, &frame);
  return value;
}

/* The pipe through which the partner tells the handle of the ring that leads back. */
static int handles[2];

static void answer_ring(struct pair *pair) {
  ringcast_writer *back = make_writer();
  ringcast_reader *there = attach(ringcast_writer_handle(pair->there));
  char handle[96] = "";
  strncpy(handle, ringcast_writer_handle(back), sizeof handle - 1);
  if (write(handles[1], handle, sizeof handle) != (ssize_t)sizeof handle) abort();
  for (;;) pass(back, take(there), pair->bytes);
}

static void *setup_ring(const struct bench_case *self) {
  struct pair *pair = make_pair(self);
  if (!pair) return NULL;
  char handle[96];
  if (pipe(handles) != 0) abort();
  pair->there = make_writer();
  start_partner(pair, answer_ring);
  if (read(handles[0], handle, sizeof handle) != (ssize_t)sizeof handle) abort();
  close(handles[0]);
  close(handles[1]);
  pair->back = attach(handle);
  return pair;
}

static double run_ring(void *state, uint64_t iterations) {
  struct pair *pair = state;
  double start = now();
  for (uint64_t i = 0; i < iterations; i++) {
    pass(pair->there, i, pair->bytes);
    if (take(pair->back) != i) abort();
  }
  return (now() - start) / 2;
}

static void teardown_ring(void *state) {
  struct pair *pair = state;
  stop_partner(pair);
  ringcast_reader_close(pair->back);
  ringcast_writer_close(pair->there);
  free(pair);
}

const struct bench_case bench_ring_cases[] = {
    {"one_way/bare_line", 0, setup_line, run_line, teardown_line},
    {"one_way/ring/40", 40, setup_ring, run_ring, teardown_ring},
    {"one_way/ring/4096", 4096, setup_ring, run_ring, teardown_ring},
};
const size_t bench_ring_case_count = sizeof bench_ring_cases / sizeof *bench_ring_cases;
