/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor of a ring's throughput: the same copying and the same reading, in memory of the same kind and size and in
 * the same places, handed over by nothing but two counters. The memory is one frame of a ring of its own, which all
 * readers hold for good: so it has the same pages.
 */
#ifndef TOOLS_MEASURE_WINDOW_H
#define TOOLS_MEASURE_WINDOW_H

#include "tools/perf.h"

struct window_shared {
  _Alignas(PERF_LINE) uint64_t written; /* frames */
  _Alignas(PERF_LINE) uint64_t last;    /* frames at the last flush */
  char handle[96];
  struct {
    _Alignas(PERF_LINE) uint64_t read;
  } readers[];
};

/* One process's view. */
struct window {
  struct window_shared *shared;
  const uint8_t *source;
  size_t size;
  uint64_t sum; /* of the source */
  uint32_t readers;
  bool oversubscribed;
  ringcast_writer *ring;
  uint32_t memory; /* enum ringcast_memory: what was got */
  uint8_t *base;
  uint64_t stride;
  uint64_t slots;  /* frames that it holds */
  uint64_t every;  /* frames between two stores of a counter; a power of two */
  uint64_t frames; /* written or read so far */
  uint64_t offset; /* of the next frame */
  uint64_t released;
};

struct window_wish {
  uint64_t capacity; /* of the ring to compare with */
  uint32_t memory;   /* enum ringcast_memory: what that has got */
  uint32_t readers;
  bool oversubscribed;
};

/* Makes the memory: as large as the ring, or two frames where one is larger than that takes. */
void window_make(struct window *window, const uint8_t *source, size_t size, const struct window_wish *wish);
void window_destroy(struct window *window);

/* The writer, once the readers' processes run: hands the memory to them. */
void window_open(struct window *window);
void window_write(struct window *window, uint64_t frames);
void window_flush(struct window *window);                        /* readers see all frames, and may stop */
void window_write_alone(struct window *window, uint64_t frames); /* without the readers; the window is as before */

/* Reader `index`, with a copy of the struct that was made. window_read returns at the next flush. */
void window_attach(struct window *window);
void window_read(struct window *window, uint32_t index);

/* Frames that reader `index` has read. */
static inline uint64_t window_progress(const struct window *window, uint32_t index) {
  return perf_load(&window->shared->readers[index].read);
}

#endif
