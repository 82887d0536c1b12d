/* SPDX-License-Identifier: Apache-2.0 */
/*
 * More processes than CPUs: eight readers, wherever the machine puts them.
 *   in_step   a frame is sent when all have had the one before; the last of them wakes the writer by a futex. The
 *             floor: the same with a bare futex in place of the ring, on which all readers sleep.
 *   free      the writer sends a million frames as it can, each reader reads as it can. `fewest` and `most` are the
 *             frames that a reader had when the writer was done, over all batches: whether one of them starves. (Since
 *             none is lost, nobody can be further behind than a ring.)
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench/support.h"

enum { READERS = 8, FREE_BATCH = 1000000 };
enum kind { FUTEX, IN_STEP, FREE };

struct shared {
  _Alignas(PERF_LINE) uint32_t sent;  /* the floor's word: frames */
  _Alignas(PERF_LINE) uint32_t acks;
  _Alignas(PERF_LINE) uint32_t had;   /* frames that all have had; the writer sleeps on it */
  _Alignas(PERF_LINE) uint32_t attached;
  char handle[96];
  struct {
    _Alignas(PERF_LINE) uint64_t frames;
  } readers[READERS];
};

struct crowd {
  enum kind kind;
  size_t size;
  struct shared *shared;
  struct perf_children children;
  ringcast_writer *writer;
  uint8_t *source;
  uint64_t sum, sent;
  double fewest, most; /* frames of a batch */
};

static void futex_wait(uint32_t *word, uint32_t value) { syscall(SYS_futex, word, FUTEX_WAIT, value, NULL, NULL, 0); }
static void futex_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }
static uint32_t load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/* ---- Readers ---------------------------------------------------------------------------------------------------- */

static void acknowledge(struct shared *shared) {
  if (__atomic_add_fetch(&shared->acks, 1, __ATOMIC_ACQ_REL) % READERS != 0) return;
  __atomic_add_fetch(&shared->had, 1, __ATOMIC_RELEASE);
  futex_wake(&shared->had);
}

static void reader_body(void *context, uint32_t index) {
  struct crowd *crowd = context;
  struct shared *shared = crowd->shared;
  ringcast_reader *reader = crowd->kind == FUTEX ? NULL : perf_attach(shared->handle, 0);
  struct ringcast_frame frame;
  __atomic_add_fetch(&shared->attached, 1, __ATOMIC_RELEASE);
  for (uint64_t frames = 0;;) {
    if (reader) {
      perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
      uint64_t sum = sum_bytes(frame.data, frame.bytes);
      perf_must(ringcast_reader_release(reader, &frame), "can't release");
      if (sum != crowd->sum) perf_die("frame %llu has come damaged", (unsigned long long)frames);
    } else {
      while (load(&shared->sent) == (uint32_t)frames) futex_wait(&shared->sent, (uint32_t)frames);
    }
    perf_store(&shared->readers[index].frames, ++frames);
    if (crowd->kind != FREE) acknowledge(shared);
  }
}

/* ---- The writer ------------------------------------------------------------------------------------------------- */

static void *set_up(const struct bench_case *self) {
  struct crowd *crowd = calloc(1, sizeof *crowd);
  if (!crowd) perf_die("no memory");
  *crowd = (struct crowd){.kind = *(const enum kind *)self->options, .size = self->bytes, .fewest = INFINITY,
                          .shared = perf_shared(sizeof *crowd->shared), .source = perf_source(self->bytes)};
  crowd->sum = sum_bytes(crowd->source, crowd->size);
  if (crowd->kind != FUTEX) {
    struct ringcast_writer_options options = {.size = sizeof options, .readers = READERS};
    perf_must(ringcast_writer_create_ex(&options, &crowd->writer), "can't make a ring");
    strncpy(crowd->shared->handle, ringcast_writer_handle(crowd->writer), sizeof crowd->shared->handle - 1);
  }
  for (int i = 0; i < READERS; i++) perf_start(&crowd->children, bench_options(), INT_MAX, reader_body, crowd);
  while (load(&crowd->shared->attached) != READERS) perf_relax(true);
  return crowd;
}

static void send(struct crowd *crowd) {
  crowd->sent++;
  if (crowd->writer) {
    perf_must(ringcast_writer_send(crowd->writer, crowd->source, crowd->size, RINGCAST_KIND_BYTES, RINGCAST_FOREVER),
              "can't send");
    return;
  }
  __atomic_store_n(&crowd->shared->sent, (uint32_t)crowd->sent, __ATOMIC_RELEASE);
  futex_wake(&crowd->shared->sent);
}

static double run_in_step(void *state, uint64_t iterations) {
  struct crowd *crowd = state;
  uint32_t *had = &crowd->shared->had, seen;
  int64_t start = perf_now_ns();
  while (iterations-- > 0) {
    send(crowd);
    while ((seen = load(had)) != (uint32_t)crowd->sent) futex_wait(had, seen);
  }
  return bench_seconds_since(start);
}

static double run_free(void *state, uint64_t iterations) {
  struct crowd *crowd = state;
  uint64_t before = crowd->sent;
  int64_t start = perf_now_ns();
  for (uint64_t i = 0; i < iterations; i++) send(crowd);
  for (int i = 0; i < READERS; i++) { /* what each has when the writer is done */
    double frames = (double)(perf_load(&crowd->shared->readers[i].frames) - before);
    crowd->fewest = fmin(crowd->fewest, frames);
    crowd->most = fmax(crowd->most, frames);
  }
  for (int i = 0; i < READERS; i++)
    while (perf_load(&crowd->shared->readers[i].frames) != crowd->sent) perf_relax(true);
  return bench_seconds_since(start);
}

static void tear_down(void *state) {
  struct crowd *crowd = state;
  perf_stop(&crowd->children);
  if (crowd->kind == FREE) {
    bench_report("fewest", crowd->fewest);
    bench_report("most", crowd->most);
  }
  ringcast_writer_close(crowd->writer);
  free(crowd->source);
  perf_unshare(crowd->shared, sizeof *crowd->shared);
  free(crowd);
}

#define CASE(name, run, which, batch) {name, 40, set_up, run, tear_down, &(const enum kind){which}, batch, 0}

static const struct bench_case cases[] = {
    CASE("crowd/bare_futex/8", run_in_step, FUTEX, 100),
    CASE("crowd/ring_in_step/8", run_in_step, IN_STEP, 100),
    CASE("crowd/ring_free/8", run_free, FREE, FREE_BATCH),
};
const struct bench_group bench_crowd = BENCH_GROUP(cases);
