/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two halves of the hot path cost by themselves, in one process, with nobody on the other side: reserve and
 * commit, next and release, no byte of payload touched.
 *
 * The statistics can't be switched off, so what they cost is measured by leaving them out: the same library is built
 * once more with RINGCAST_NO_STATS, and both are loaded and called in the same way.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "bench/support.h"

#define CAPACITY 1048576 /* fits in L2: the memory is not what is measured */

/* The functions that are measured, by the library that they are from. */
struct api {
  void *library;
  __typeof__(ringcast_writer_create_ex) *create;
  __typeof__(ringcast_writer_handle) *handle;
  __typeof__(ringcast_writer_close) *close_writer;
  __typeof__(ringcast_writer_reserve) *reserve;
  __typeof__(ringcast_writer_commit) *commit;
  __typeof__(ringcast_reader_attach) *attach;
  __typeof__(ringcast_reader_next) *next;
  __typeof__(ringcast_reader_release) *release;
  __typeof__(ringcast_reader_close) *close_reader;
};

struct alone {
  struct api api;
  size_t size;
  ringcast_writer *writer;
  ringcast_reader *reader; /* NULL: only the writer's half is measured */
};

struct half {
  const char *library; /* NULL: the one that is linked in */
  bool reads;
};

static bool load(const char *path, struct api *api) {
  if (!path) {
    *api = (struct api){NULL, ringcast_writer_create_ex, ringcast_writer_handle, ringcast_writer_close,
                        ringcast_writer_reserve, ringcast_writer_commit, ringcast_reader_attach, ringcast_reader_next,
                        ringcast_reader_release, ringcast_reader_close};
    return true;
  }
  api->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!api->library) return bench_skip("%s", dlerror()) != NULL;
#define FIND(field, name) *(void **)&api->field = dlsym(api->library, name)
  FIND(create, "ringcast_writer_create_ex");
  FIND(handle, "ringcast_writer_handle");
  FIND(close_writer, "ringcast_writer_close");
  FIND(reserve, "ringcast_writer_reserve");
  FIND(commit, "ringcast_writer_commit");
  FIND(attach, "ringcast_reader_attach");
  FIND(next, "ringcast_reader_next");
  FIND(release, "ringcast_reader_release");
  FIND(close_reader, "ringcast_reader_close");
#undef FIND
  return true;
}

static void *set_up(const struct bench_case *self) {
  const struct half *half = self->options;
  struct ringcast_writer_options options = {.size = sizeof options, .readers = 1, .capacity = CAPACITY};
  struct alone *alone = calloc(1, sizeof *alone);
  if (!alone) perf_die("no memory");
  if (!load(half->library, &alone->api)) {
    free(alone);
    return NULL;
  }
  alone->size = self->bytes;
  perf_pin(perf_cpu_of(bench_options(), 0, 1));
  perf_must(alone->api.create(&options, &alone->writer), "can't make a ring");
  if (half->reads) perf_must(alone->api.attach(alone->api.handle(alone->writer), &alone->reader), "can't attach");
  return alone;
}

static void write_frames(const struct alone *alone, uint64_t frames) {
  struct ringcast_span span;
  while (frames-- > 0) {
    perf_must(alone->api.reserve(alone->writer, alone->size, RINGCAST_FOREVER, &span), "can't reserve");
    perf_must(alone->api.commit(alone->writer, alone->size, RINGCAST_KIND_BYTES), "can't commit");
  }
}

static void read_frames(const struct alone *alone, uint64_t frames) {
  struct ringcast_frame frame;
  while (frames-- > 0) {
    perf_must(alone->api.next(alone->reader, RINGCAST_FOREVER, &frame), "can't receive");
    perf_must(alone->api.release(alone->reader, &frame), "can't release");
  }
}

static double run_writer(void *state, uint64_t iterations) {
  int64_t start = perf_now_ns();
  write_frames(state, iterations);
  return bench_seconds_since(start);
}

/* The frames lie ready: a batch of them fits into half the ring. */
static double run_reader(void *state, uint64_t iterations) {
  write_frames(state, iterations);
  int64_t start = perf_now_ns();
  read_frames(state, iterations);
  return bench_seconds_since(start);
}

static void tear_down(void *state) {
  struct alone *alone = state;
  perf_unpin(bench_options());
  alone->api.close_reader(alone->reader);
  alone->api.close_writer(alone->writer);
  free(alone); /* the library stays: it watches forks */
}

#define WRITER(name, library) {name, 40, set_up, run_writer, tear_down, &(const struct half){library, false}, 1000, 0}
#define READER(name, library) {name, 40, set_up, run_reader, tear_down, &(const struct half){library, true}, 1000, 0}

static const struct bench_case cases[] = {
    WRITER("alone/reserve_commit", NULL),
    READER("alone/next_release", NULL),
    WRITER("statistics/on/reserve_commit", BENCH_LIBRARY),
    WRITER("statistics/off/reserve_commit", BENCH_LIBRARY_WITHOUT_STATISTICS),
    READER("statistics/on/next_release", BENCH_LIBRARY),
    READER("statistics/off/next_release", BENCH_LIBRARY_WITHOUT_STATISTICS),
};
const struct bench_group bench_alone = BENCH_GROUP(cases);
