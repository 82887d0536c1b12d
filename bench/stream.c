/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/perf_window.h"

struct shared {
  char handle[96];
  struct {
    _Alignas(PERF_LINE) uint64_t frames; /* that this reader has released */
  } readers[PERF_MAX_READERS];
  struct {
    _Alignas(PERF_LINE) uint64_t attached;
    uint64_t frames, lost; /* lost: bytes */
  } taps[PERF_MAX_READERS];
};

struct stream {
  const struct stream_options *options;
  size_t size;
  bool crowded;
  struct shared *shared;
  struct perf_children children;
  ringcast_writer *writer;
  struct window window;
  uint8_t *source;
  uint64_t sum, sent;
};

/* ---- The other processes ---------------------------------------------------------------------------------------- */

static void work(uint32_t ns) {
  int64_t start = ns > 0 ? perf_now_ns() : 0;
  while (ns > 0 && perf_now_ns() - start < ns) continue;
}

static void read_ring(struct stream *stream, uint32_t index) {
  ringcast_reader *reader = perf_attach(stream->shared->handle, 0);
  for (uint64_t frames = 1;; frames++) {
    struct ringcast_frame frame;
    perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
    uint64_t sum = sum_bytes(frame.data, frame.bytes);
    work(stream->options->work_ns);
    perf_must(ringcast_reader_release(reader, &frame), "can't release");
    if (sum != stream->sum) perf_die("frame %llu has come damaged", (unsigned long long)frames);
    perf_store(&stream->shared->readers[index].frames, frames);
  }
}

static void read_tap(struct stream *stream, uint32_t index) {
  ringcast_tap *tap;
  struct ringcast_frame frame;
  uint64_t lost, gaps;
  perf_must(ringcast_tap_attach(stream->shared->handle, &tap), "can't attach a tap");
  perf_store(&stream->shared->taps[index].attached, 1);
  for (uint64_t frames = 1;; frames++) {
    perf_must(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), "the tap can't receive");
    perf_must(ringcast_tap_lost(tap, &lost, &gaps), "the tap can't tell its losses");
    perf_store(&stream->shared->taps[index].frames, frames);
    perf_store(&stream->shared->taps[index].lost, lost);
  }
}

static void child(void *context, uint32_t index) {
  struct stream *stream = context;
  if (stream->options->bare) {
    window_attach(&stream->window);
    for (;;) window_read(&stream->window, index);
  }
  if (index < stream->options->readers) read_ring(stream, index);
  read_tap(stream, index - stream->options->readers);
}

/* ---- The writer ------------------------------------------------------------------------------------------------- */

static ringcast_writer *make_ring(const struct stream_options *wish, size_t size, struct ringcast_info *info) {
  struct ringcast_writer_options options = {.size = sizeof options, .capacity = wish->capacity, .memory = wish->memory,
                                            .readers = wish->readers > 0 ? wish->readers : 1};
  ringcast_writer *writer = bench_writer(&options, size);
  if (writer) perf_must(ringcast_writer_info(writer, info), "no facts of the ring");
  return writer;
}

static void start(struct stream *stream) {
  const struct stream_options *options = stream->options;
  uint32_t parties = options->readers + options->taps + 1;
  for (uint32_t i = 1; i < parties; i++) perf_start(&stream->children, bench_options(), parties, child, stream);
  perf_pin(perf_cpu_of(bench_options(), 0, parties));
  if (options->bare) window_open(&stream->window);
  else perf_must(ringcast_writer_wait_readers(stream->writer, options->readers, RINGCAST_FOREVER), "no readers");
  for (uint32_t i = 0; i < options->taps; i++)
    while (perf_load(&stream->shared->taps[i].attached) == 0) perf_relax(true);
}

/* The ring is made for the floor too: so both are skipped for the same reasons, and of the same memory. */
void *stream_set_up(const struct bench_case *self) {
  const struct stream_options *options = self->options;
  struct ringcast_info info = {.size = sizeof info};
  if (!bench_has_memory(self->bytes)) return NULL;
  ringcast_writer *writer = make_ring(options, self->bytes, &info);
  if (!writer) return NULL;
  struct stream *stream = calloc(1, sizeof *stream);
  if (!stream) perf_die("no memory");
  *stream = (struct stream){.options = options, .size = self->bytes, .writer = writer,
                            .shared = perf_shared(sizeof *stream->shared), .source = perf_source(self->bytes)};
  stream->sum = sum_bytes(stream->source, stream->size);
  stream->crowded = perf_cpu_of(bench_options(), 0, options->readers + options->taps + 1) < 0;
  strncpy(stream->shared->handle, ringcast_writer_handle(writer), sizeof stream->shared->handle - 1);
  if (options->bare) {
    ringcast_writer_close(writer);
    stream->writer = NULL;
    window_make(&stream->window, stream->source, stream->size,
                &(struct window_wish){info.capacity, info.memory, options->readers, stream->crowded});
  }
  start(stream);
  stream_run(stream, 4); /* the readers' mapping */
  return stream;
}

static void write_ring(struct stream *stream, uint64_t frames) {
  struct ringcast_span span;
  while (frames-- > 0) {
    perf_must(ringcast_writer_reserve(stream->writer, stream->size, RINGCAST_FOREVER, &span), "can't send");
    memcpy(span.data, stream->source, stream->size);
    perf_must(ringcast_writer_commit(stream->writer, stream->size, RINGCAST_KIND_BYTES), "can't send");
  }
}

double stream_run(void *state, uint64_t iterations) {
  struct stream *stream = state;
  bool bare = stream->options->bare;
  int64_t start = perf_now_ns();
  if (bare) {
    window_write(&stream->window, iterations);
    window_flush(&stream->window);
  } else {
    write_ring(stream, iterations);
  }
  stream->sent += iterations;
  for (uint32_t i = 0; i < stream->options->readers; i++)
    while ((bare ? window_progress(&stream->window, i) : perf_load(&stream->shared->readers[i].frames)) != stream->sent)
      perf_relax(stream->crowded);
  return bench_seconds_since(start);
}

void stream_tear_down(void *state) {
  struct stream *stream = state;
  perf_stop(&stream->children);
  perf_unpin(bench_options());
  for (uint32_t i = 0; i < stream->options->taps; i++) {
    double sent = (double)stream->sent * (double)((stream->size + 16 + 63) & ~(size_t)63);
    bench_report("tap_lost_percent", 100 * (double)stream->shared->taps[i].lost / sent);
  }
  if (stream->options->bare) window_destroy(&stream->window);
  ringcast_writer_close(stream->writer);
  free(stream->source);
  perf_unshare(stream->shared, sizeof *stream->shared);
  free(stream);
}
