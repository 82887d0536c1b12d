/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/measure/window.h"

#include <string.h>

#define HEADER    16   /* a ring's frames start so far into a line */
#define PUBLISHED 4096 /* a counter moves once in so many bytes, or with each frame that is larger */

/* Where the next frame lies. No division here: it would cost as much as a small frame. */
static inline uint8_t *next_place(struct window *window) {
  uint64_t offset = window->offset;
  window->offset = offset + window->stride == window->slots * window->stride ? 0 : offset + window->stride;
  return window->base + offset + HEADER;
}

/* ---- The writer ------------------------------------------------------------------------------------------------- */

/* A ring with the window as largest frame: twice as large as the other ring, since half a ring is the most; or of the
 * same size, where frames leave the ring. */
static void make_ring(struct window *window, const struct window_wish *wish) {
  struct ringcast_info info = {.size = sizeof info};
  uint64_t room = wish->capacity - 2 * HEADER - 64;
  bool inside = window->stride <= room / 2;
  struct ringcast_writer_options options = {.size = sizeof options,
                                            .capacity = inside ? 2 * wish->capacity : wish->capacity,
                                            .readers = wish->readers,
                                            .memory = wish->memory};
  int result = ringcast_writer_create_ex(&options, &window->ring);
  if (result != 0) { /* the ring may have got the last of the reserved pages */
    options.memory = RINGCAST_MEMORY_AUTO;
    result = ringcast_writer_create_ex(&options, &window->ring);
  }
  perf_must(result, "can't make the memory to compare with");
  perf_must(ringcast_writer_info(window->ring, &info), "no facts of the ring");
  window->memory = info.memory;
  for (window->slots = inside ? room / window->stride : 2; window->slots > 0; window->slots /= 2)
    if (window->slots * window->stride <= info.max_frame) return;
  perf_die("a frame of %zu bytes leaves no room for the memory to compare with; give --capacity", window->size);
}

void window_make(struct window *window, const uint8_t *source, size_t size, const struct window_wish *wish) {
  *window = (struct window){.source = source,
                            .size = size,
                            .sum = sum_bytes(source, size),
                            .readers = wish->readers,
                            .oversubscribed = wish->oversubscribed,
                            .stride = (size + HEADER + 63) & ~(uint64_t)63};
  make_ring(window, wish);
  window->shared = perf_shared(sizeof *window->shared + wish->readers * sizeof window->shared->readers[0]);
  strncpy(window->shared->handle, ringcast_writer_handle(window->ring), sizeof window->shared->handle - 1);
  for (window->every = 1; window->every * 2 * window->stride <= PUBLISHED;) window->every *= 2;
}

void window_destroy(struct window *window) {
  ringcast_writer_close(window->ring);
  perf_unshare(window->shared, sizeof *window->shared + window->readers * sizeof window->shared->readers[0]);
}

void window_open(struct window *window) {
  size_t bytes = window->slots * window->stride;
  struct ringcast_span span;
  perf_must(ringcast_writer_wait_readers(window->ring, window->readers, RINGCAST_FOREVER), "no readers");
  perf_must(ringcast_writer_reserve(window->ring, bytes, RINGCAST_FOREVER, &span), "can't reserve");
  memset(span.data, 0, bytes);
  perf_must(ringcast_writer_commit(window->ring, bytes, RINGCAST_KIND_BYTES), "can't send");
  window->base = span.data;
}

static void await_room(struct window *window) {
  struct window_shared *shared = window->shared;
  while (window->frames - window->released >= window->slots) {
    uint64_t least = UINT64_MAX;
    perf_store(&shared->written, window->frames);
    for (uint32_t i = 0; i < window->readers; i++) {
      uint64_t read = perf_load(&shared->readers[i].read);
      if (read < least) least = read;
    }
    window->released = least;
    if (window->frames - least >= window->slots) perf_relax(window->oversubscribed);
  }
}

void window_write(struct window *window, uint64_t frames) {
  while (frames-- > 0) {
    if (window->frames - window->released >= window->slots) await_room(window);
    copy_bytes(next_place(window), window->source, window->size);
    if ((++window->frames & (window->every - 1)) == 0) perf_store(&window->shared->written, window->frames);
  }
}

void window_flush(struct window *window) {
  perf_store(&window->shared->written, window->frames);
  perf_store(&window->shared->last, window->frames);
}

void window_write_alone(struct window *window, uint64_t frames) {
  uint64_t offset = window->offset;
  while (frames-- > 0) copy_bytes(next_place(window), window->source, window->size);
  window->offset = offset;
}

/* ---- The readers ------------------------------------------------------------------------------------------------ */

void window_attach(struct window *window) {
  struct ringcast_frame frame;
  ringcast_reader *reader = perf_attach(window->shared->handle, 0);
  perf_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), "can't receive");
  window->base = (uint8_t *)(uintptr_t)frame.data; /* only read from here on; held until the process ends */
}

void window_read(struct window *window, uint32_t index) {
  struct window_shared *shared = window->shared;
  uint64_t start = window->frames, at = start, written;
  for (;; window->frames = at) {
    while ((written = perf_load(&shared->written)) == at) {
      if (at != start && perf_load(&shared->last) == at) return;
      perf_relax(window->oversubscribed);
    }
    while (at < written) {
      if (sum_bytes(next_place(window), window->size) != window->sum)
        perf_die("reader %u has read what was not written", index);
      if ((++at & (window->every - 1)) == 0 || at == written) perf_store(&shared->readers[index].read, at);
    }
  }
}
