/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tools/measure/stream.h"

#include "ringcast/inspect.h"
#include "ringcast/batch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { HEADER = 16, LINE = 64, FRAME_ALIGN = 128 /* a ring's frames start at multiples */ };
enum {
  PUBLISHED = 4096 /* a counter of the window moves once in so many bytes, or with each frame that
                      is larger */
};
enum mark {
  GO_ON,
  LEAVE
}; /* the bytes of a frame that carries no data: the reader stays in the ring, or leaves */

struct shared {
  _Alignas(PERF_LINE) uint64_t command; /* turn * STREAM_KINDS + kind: what the readers read next */
  _Alignas(PERF_LINE) uint64_t written; /* into the window: frames */
  _Alignas(PERF_LINE) uint64_t last;    /* of these, at the last flush */
  char handle[96], window_handle[96];
  struct {
    _Alignas(PERF_LINE)
        uint64_t done; /* batches that this process has read; of a tap: 1 when attached */
    uint64_t
        faults; /* page faults in the ring's turns but the first two, which put memory in place */
    uint64_t lost;                     /* bytes that this tap has lost */
    _Alignas(PERF_LINE) uint64_t read; /* frames of the window that this process has read */
  } others[];
};

/*
 * The floor: the same copying and the same reading, in memory of the same kind and size, handed
 * over by nothing but two counters. The memory is one frame of a ring of its own, which all readers
 * hold for good: so it has the same pages.
 */
struct window {
  ringcast_writer *ring;
  uint8_t *base;
  uint64_t stride;
  uint64_t slots;  /* frames that it holds */
  uint64_t every;  /* frames between two stores of a counter; a power of two */
  uint64_t frames; /* written or read so far, by this process */
  uint64_t offset; /* of the next frame */
  uint64_t released;
};

struct stream {
  struct stream_options options;
  const struct perf_options *machine;
  bool oversubscribed;
  struct shared *shared;
  struct perf_children children;
  ringcast_writer *ring;
  struct ringcast_info info;
  struct window window;
  uint8_t *source;
  uint8_t *copy; /* of this reader, with options.copy_out */
  uint64_t sum;
  enum stream_kind kind; /* that the readers read now; ALONE: none */
  uint64_t turns, batches, sent;
};

uint64_t stream_writer_faults(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (uint64_t)usage.ru_minflt;
}

/* ---- The window ------------------------------------------------------------------------------ */

/* Where the next frame lies. No division here: it would cost as much as a small frame. */
static inline uint8_t *next_place(struct window *window) {
  uint64_t offset = window->offset;
  window->offset =
      offset + window->stride == window->slots * window->stride ? 0 : offset + window->stride;
  return window->base + offset + HEADER;
}

/* As large as the ring, or two frames where larger frames leave the ring. The window is the largest
 * frame of a ring twice as large as the other ring, since half a ring is the most; or of the same
 * size, where frames leave the ring. */
static void make_window(struct stream *stream) {
  struct window *window = &stream->window;
  struct ringcast_info info = {.size = sizeof info};
  size_t size = stream->options.size;
  uint64_t capacity = stream->info.capacity, room = capacity - 2 * HEADER - LINE;
  window->stride = (size + HEADER + LINE - 1) & ~(uint64_t)(LINE - 1);
  bool inside = window->stride <= room / 2;
  struct ringcast_writer_options options = {.size = sizeof options,
                                            .capacity = inside ? 2 * capacity : capacity,
                                            .readers = stream->options.readers,
                                            .memory = stream->info.memory};
  int result = ringcast_writer_create_ex(&options, &window->ring);
  if (result != 0) { /* the ring may have got the last of the reserved pages */
    options.memory = RINGCAST_MEMORY_AUTO;
    result = ringcast_writer_create_ex(&options, &window->ring);
  }
  perf_must(result, "can't make the memory to compare with");
  perf_must(ringcast_writer_info(window->ring, &info), "no facts of the ring");
  strncpy(stream->shared->window_handle, ringcast_writer_handle(window->ring),
          sizeof stream->shared->window_handle - 1);
  for (window->every = 1; window->every * 2 * window->stride <= PUBLISHED;) window->every *= 2;
  for (window->slots = inside ? room / window->stride : 2;
       window->slots * window->stride > info.max_frame;)
    if ((window->slots /= 2) == 0)
      perf_die(
          "a frame of %zu bytes leaves no room for the memory to compare with; give --capacity",
          size);
}

/* Hands the memory to the readers' processes. */
static void open_window(struct stream *stream) {
  struct window *window = &stream->window;
  size_t bytes = window->slots * window->stride;
  struct ringcast_span span;
  perf_must(ringcast_writer_wait_readers(window->ring, stream->options.readers, RINGCAST_FOREVER),
            "no readers");
  perf_must(ringcast_writer_reserve(window->ring, bytes, RINGCAST_FOREVER, &span), "can't reserve");
  memset(span.data, 0, bytes);
  perf_must(ringcast_writer_commit(window->ring, bytes, RINGCAST_KIND_BYTES), "can't send");
  window->base = span.data;
}

static void attach_window(struct stream *stream) {
  struct ringcast_frame frame;
  ringcast_reader *reader = perf_attach(stream->shared->window_handle, 0);
  perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
  /* Only read from here on; held until the process ends. */
  stream->window.base = (uint8_t *)(uintptr_t)frame.data;
}

static void await_room(struct stream *stream) {
  struct window *window = &stream->window;
  while (window->frames - window->released >= window->slots) {
    uint64_t least = UINT64_MAX;
    perf_store(&stream->shared->written, window->frames);
    for (uint32_t i = 0; i < stream->options.readers; i++) {
      uint64_t read = perf_load(&stream->shared->others[i].read);
      if (read < least) least = read;
    }
    window->released = least;
    if (window->frames - least >= window->slots) perf_relax(stream->oversubscribed);
  }
}

static void write_window(struct stream *stream, uint64_t frames) {
  struct window *window = &stream->window;
  while (frames-- > 0) {
    if (window->frames - window->released >= window->slots) await_room(stream);
    copy_bytes(next_place(window), stream->source, stream->options.size);
    if ((++window->frames & (window->every - 1)) == 0)
      perf_store(&stream->shared->written, window->frames);
  }
}

/* Without the readers; the window is as before. */
static void write_alone(struct stream *stream, uint64_t frames) {
  uint64_t offset = stream->window.offset;
  while (frames-- > 0)
    copy_bytes(next_place(&stream->window), stream->source, stream->options.size);
  stream->window.offset = offset;
}

/* The readers see all frames, and stop there. */
static void flush_window(struct stream *stream) {
  perf_store(&stream->shared->written, stream->window.frames);
  perf_store(&stream->shared->last, stream->window.frames);
}

/* Until the next flush. */
static void read_window(struct stream *stream, uint32_t index) {
  struct window *window = &stream->window;
  struct shared *shared = stream->shared;
  uint64_t start = window->frames, at = start, written;
  for (;; window->frames = at) {
    while ((written = perf_load(&shared->written)) == at) {
      if (at != start && perf_load(&shared->last) == at) return;
      perf_relax(stream->oversubscribed);
    }
    while (at < written) {
      if (sum_bytes(next_place(window), stream->options.size) != stream->sum)
        perf_die("reader %u has read what was not written", index);
      at++;
      if ((at & (window->every - 1)) == 0 || at == written)
        perf_store(&shared->others[index].read, at);
    }
  }
}

/* ---- The other processes --------------------------------------------------------------------- */

/* Until a mark tells the reader to leave. With copy_out the copies are read, once the frame is
 * given back. */
static void read_ring(const struct stream *stream, ringcast_reader *reader, uint64_t *done) {
  void (*copy_out)(void *, const void *, size_t) = stream->options.copy_out;
  for (uint64_t frames = 1;; frames++) {
    struct ringcast_frame frame;
    uint64_t sum = 0;
    perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
    size_t bytes = frame.bytes;
    if (copy_out) copy_out(stream->copy, frame.data, bytes);
    else sum = sum_bytes(frame.data, bytes);
    perf_must(ringcast_reader_release(reader, &frame), "can't release");
    if (__builtin_expect(bytes > LEAVE, 1)) {
      if (copy_out) sum = sum_bytes(stream->copy, bytes);
      if (sum != stream->sum) perf_die("frame %llu arrived damaged", (unsigned long long)frames);
      continue;
    }
    perf_store(done, *done + 1);
    if (bytes == LEAVE) return;
  }
}

/* Of a group: the marks, and which is the last. */
static size_t marks_in(const struct stream *stream, const struct ringcast_frame *frames, int count,
                       size_t *last) {
  size_t marks = 0;
  for (int i = 0; i < count; i++) {
    if (frames[i].bytes > LEAVE && sum_bytes(frames[i].data, frames[i].bytes) != stream->sum)
      perf_die("a frame arrived damaged");
    if (frames[i].bytes > LEAVE) continue;
    *last = frames[i].bytes;
    marks++;
  }
  return marks;
}

/* The same in groups. */
static void read_batches(const struct stream *stream, ringcast_reader *reader, uint64_t *done) {
  static struct ringcast_frame frames[STREAM_BATCH];
  const uint64_t expected = stream->sum;
  for (;;) {
    int count = ringcast_reader_next_many(reader, RINGCAST_FOREVER, frames, stream->options.batch);
    perf_must(count < 0 ? count : 0, "can't receive");
    size_t marks = 0, last = 0;
    uint64_t other = 0; /* a mark, or damage: no word is so small as a mark's sum */
    for (int i = 0; i < count; i++) other |= sum_bytes(frames[i].data, frames[i].bytes) ^ expected;
    if (other != 0) marks = marks_in(stream, frames, count, &last);
    perf_must(ringcast_reader_release_many(reader, frames, (uint32_t)count), "can't release");
    if (marks == 0) continue;
    perf_store(done, *done + marks);
    if (last == LEAVE) return;
  }
}

static void reader_body(struct stream *stream, uint32_t index) {
  struct shared *shared = stream->shared;
  uint64_t *done = &shared->others[index].done, visits = 0;
  ringcast_reader *reader = perf_attach(shared->handle, stream->options.spin_ns);
  if (stream->options.floor) attach_window(stream);
  if (stream->options.copy_out) stream->copy = perf_source(stream->options.size);
  for (uint64_t turn = 1;; turn++) {
    uint64_t command;
    while ((command = perf_load(&shared->command)) / STREAM_KINDS != turn)
      perf_relax(stream->oversubscribed);
    if (command % STREAM_KINDS == STREAM_FLOOR) {
      read_window(stream, index);
      perf_store(done, *done + 1);
      continue;
    }
    uint64_t faults = stream_writer_faults();
    if (stream->options.batch > 0) read_batches(stream, reader, done);
    else read_ring(stream, reader, done);
    if (visits++ > 1) shared->others[index].faults += stream_writer_faults() - faults;
  }
}

static void tap_body(struct stream *stream, uint32_t index) {
  ringcast_tap *tap;
  struct ringcast_frame frame;
  uint64_t gaps;
  perf_must(ringcast_tap_attach(stream->shared->handle, &tap), "can't attach a tap");
  perf_store(&stream->shared->others[index].done, 1);
  for (;;) {
    perf_must(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame), "the tap can't receive");
    perf_must(ringcast_tap_lost(tap, &stream->shared->others[index].lost, &gaps),
              "the tap can't tell its losses");
  }
}

static void child(void *context, uint32_t index) {
  struct stream *stream = context;
  if (index < stream->options.readers) reader_body(stream, index);
  else tap_body(stream, index);
}

/* ---- The writer ------------------------------------------------------------------------------ */

static void write_ring(struct stream *stream, size_t bytes, uint64_t frames) {
  void (*copy_in)(void *, const void *, size_t) = stream->options.copy_in;
  while (frames-- > 0) {
    struct ringcast_span span;
    perf_must(ringcast_writer_reserve(stream->ring, bytes, RINGCAST_FOREVER, &span), "can't send");
    if (copy_in) copy_in(span.data, stream->source, bytes);
    else copy_bytes(span.data, stream->source, bytes);
    perf_must(ringcast_writer_commit(stream->ring, bytes, RINGCAST_KIND_BYTES), "can't send");
  }
}

static void write_batches(struct stream *stream, uint64_t frames) {
  struct ringcast_message messages[STREAM_BATCH];
  for (uint32_t i = 0; i < stream->options.batch; i++)
    messages[i] = (struct ringcast_message){.data = stream->source, .bytes = stream->options.size};
  for (uint64_t count; frames > 0; frames -= count) {
    count = frames < stream->options.batch ? frames : stream->options.batch;
    int sent = ringcast_writer_send_many(stream->ring, messages, (uint32_t)count, RINGCAST_FOREVER);
    perf_must(sent < 0 ? sent : 0, "can't send");
  }
}

static void await_batch(struct stream *stream) {
  stream->batches++;
  for (uint32_t i = 0; i < stream->options.readers; i++)
    while (perf_load(&stream->shared->others[i].done) != stream->batches)
      perf_relax(stream->oversubscribed);
}

static void enter(struct stream *stream, enum stream_kind kind) {
  if (stream->kind == kind) return;
  if (stream->kind == STREAM_RING) {
    write_ring(stream, LEAVE, 1);
    await_batch(stream);
  }
  stream->kind = kind;
  if (kind != STREAM_ALONE)
    perf_store(&stream->shared->command, ++stream->turns * STREAM_KINDS + (uint64_t)kind);
}

void stream_send(struct stream *stream, enum stream_kind kind, uint64_t frames) {
  enter(stream, kind);
  if (kind == STREAM_FLOOR) write_window(stream, frames);
  if (kind == STREAM_ALONE) write_alone(stream, frames);
  if (kind != STREAM_RING) return;
  if (stream->options.batch > 0) write_batches(stream, frames);
  else write_ring(stream, stream->options.size, frames);
  stream->sent += frames;
}

void stream_finish(struct stream *stream, enum stream_kind kind) {
  if (kind == STREAM_RING) write_ring(stream, GO_ON, 1);
  if (kind == STREAM_FLOOR) flush_window(stream);
  if (kind != STREAM_ALONE) await_batch(stream);
  if (kind == STREAM_FLOOR)
    stream->kind = STREAM_ALONE; /* a reader leaves the window at each flush */
}

double stream_run(struct stream *stream, enum stream_kind kind, uint64_t frames) {
  int64_t start = perf_now_ns();
  stream_send(stream, kind, frames);
  stream_finish(stream, kind);
  return (double)(perf_now_ns() - start) * 1e-9;
}

/* ---- Making and destroying ------------------------------------------------------------------- */

static size_t shared_bytes(const struct stream_options *options) {
  return sizeof(struct shared) +
         (options->readers + options->taps) * sizeof((struct shared *)NULL)->others[0];
}

static void start(struct stream *stream) {
  const struct stream_options *options = &stream->options;
  uint32_t parties = options->readers + options->taps + 1;
  for (uint32_t i = 1; i < parties; i++)
    perf_start(&stream->children, stream->machine, parties, child, stream);
  perf_pin(perf_cpu_of(stream->machine, 0, parties));
  perf_must(ringcast_writer_wait_readers(stream->ring, options->readers, RINGCAST_FOREVER),
            "no readers");
  if (options->floor) open_window(stream);
  for (uint32_t i = options->readers; i < parties - 1; i++)
    while (perf_load(&stream->shared->others[i].done) == 0) perf_relax(true);
}

struct stream *stream_make(const struct perf_options *machine,
                           const struct stream_options *options) {
  struct ringcast_writer_options wish = {.size = sizeof wish,
                                         .capacity = options->capacity,
                                         .spin_ns = options->spin_ns,
                                         .memory = options->memory,
                                         .readers = options->readers + !options->readers};
  ringcast_writer *ring = perf_try_writer(&wish, options->size);
  struct stream *stream = ring ? calloc(1, sizeof *stream) : NULL;
  if (!ring) return NULL;
  if (!stream) perf_die("no memory");
  *stream = (struct stream){.options = *options,
                            .machine = machine,
                            .ring = ring,
                            .kind = STREAM_ALONE,
                            .info.size = sizeof stream->info,
                            .shared = perf_shared(shared_bytes(options)),
                            .source = perf_source(options->size)};
  perf_must(ringcast_writer_info(ring, &stream->info), "no facts of the ring");
  stream->sum = sum_bytes(stream->source, options->size);
  stream->oversubscribed = perf_cpu_of(machine, 0, options->readers + options->taps + 1) < 0;
  strncpy(stream->shared->handle, ringcast_writer_handle(ring), sizeof stream->shared->handle - 1);
  if (options->floor) make_window(stream);
  start(stream);
  stream_run(stream, STREAM_RING, 4); /* the readers' mapping */
  if (options->floor) stream_run(stream, STREAM_FLOOR, 4);
  return stream;
}

void stream_destroy(struct stream *stream) {
  perf_stop(&stream->children);
  perf_unpin(stream->machine);
  if (stream->options.floor) ringcast_writer_close(stream->window.ring);
  ringcast_writer_close(stream->ring);
  free(stream->source);
  perf_unshare(stream->shared, shared_bytes(&stream->options));
  free(stream);
}

/* ---- Figures --------------------------------------------------------------------------------- */

const struct ringcast_info *stream_info(const struct stream *stream) { return &stream->info; }

uint64_t stream_stride(const struct stream *stream) {
  return (stream->options.size + HEADER + FRAME_ALIGN - 1) & ~(uint64_t)(FRAME_ALIGN - 1);
}

uint64_t stream_reader_faults(const struct stream *stream) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < stream->options.readers; i++)
    if (stream->shared->others[i].faults > most) most = stream->shared->others[i].faults;
  return most;
}

double stream_tap_lost(const struct stream *stream) {
  if (stream->options.taps == 0) return 0;
  uint64_t lost = stream->shared->others[stream->options.readers].lost;
  return (double)lost / ((double)stream->sent * (double)stream_stride(stream));
}
