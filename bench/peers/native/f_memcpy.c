/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floors of all other messages: shared memory in slots, handed over by a counter of the writer and one of each
 * reader. Three sizes of the same:
 *   in-place    memcpy in, read in place. A quarter of the last level cache, from 4 to 32 MiB, as a ring of default
 *               size, so that the working set is comparable with ringcast's; at least two messages
 *   memcpy      the same memory; memcpy in and out
 *   past-cache  twice the last level cache; memcpy in and out: what memory itself can do
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "way.h"

enum { LINE = 128, READERS = 64, LEAST_RING = 4 << 20, MOST_RING = 32 << 20, UNKNOWN_CACHE = 32 << 20 };

struct window {
  _Alignas(LINE) _Atomic uint64_t written; /* messages */
  struct {
    _Alignas(LINE) _Atomic uint64_t read;
  } readers[READERS];
  _Alignas(LINE) uint8_t data[];
};

struct state {
  struct window *window;
  uint64_t slots, stride; /* slots: a power of two */
  uint64_t at;            /* messages that this end has written or read */
  uint64_t seen;          /* the other side's counter, at the latest look */
  uint64_t taken;         /* messages of the latest read_many */
  uint8_t *copy;
};

static uint64_t cache_bytes(void) {
  long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? (uint64_t)bytes : UNKNOWN_CACHE;
}

static uint64_t ring_bytes(void) {
  uint64_t bytes = cache_bytes() / 4;
  return bytes < LEAST_RING ? LEAST_RING : bytes > MOST_RING ? MOST_RING : bytes;
}

/* Whole lines, but for tiny messages. */
static uint64_t stride_of(const struct end *end) { return end->bytes <= 16 ? 16 : (end->bytes + 63) / 64 * 64; }

static uint64_t slots_of(const struct end *end, uint64_t room) {
  uint64_t slots = 2;
  while (2 * slots * stride_of(end) <= room) slots *= 2;
  return slots;
}

static uint64_t window_bytes(const struct end *end, uint64_t room) {
  return sizeof(struct window) + slots_of(end, room) * stride_of(end);
}

static void prepare_with(struct end *end, uint64_t room) {
  end->shared = peers_shared_memory(end, window_bytes(end, room));
}

static void prepare_ring(struct end *end) { prepare_with(end, ring_bytes()); }
static void prepare_past_cache(struct end *end) { prepare_with(end, 2 * cache_bytes()); }

static void open_with(struct end *end, uint64_t room) {
  struct state *state = end->state = peers_memory(end, sizeof *state);
  *state = (struct state){.window = end->shared, .slots = slots_of(end, room), .stride = stride_of(end)};
  peers_touch(end->shared, window_bytes(end, room));
  if (end->rank != end->writer) state->copy = peers_memory(end, end->bytes);
}

static void open_ring(struct end *end) { open_with(end, ring_bytes()); }
static void open_past_cache(struct end *end) { open_with(end, 2 * cache_bytes()); }

static uint64_t least_read(const struct end *end, const struct window *window) {
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i + 1 < end->processes; i++) {
    uint64_t read = atomic_load_explicit(&window->readers[i].read, memory_order_acquire);
    if (read < least) least = read;
  }
  return least;
}

static void *slot_of(const struct state *state, uint64_t message) {
  return state->window->data + (message & (state->slots - 1)) * state->stride;
}

static void *reserve(struct end *end, size_t bytes) {
  struct state *state = end->state;
  (void)bytes;
  while (state->at - state->seen >= state->slots)
    if (state->at - (state->seen = least_read(end, state->window)) >= state->slots) peers_relax(end->oversubscribed);
  return slot_of(state, state->at);
}

static void commit(struct end *end, size_t bytes) {
  struct state *state = end->state;
  (void)bytes;
  atomic_store_explicit(&state->window->written, ++state->at, memory_order_release);
}

static void write_slot(struct end *end, const void *data, size_t bytes) {
  memcpy(reserve(end, bytes), data, bytes);
  commit(end, bytes);
}

static const void *read_in_place(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  while (state->seen == state->at)
    if ((state->seen = atomic_load_explicit(&state->window->written, memory_order_acquire)) == state->at)
      peers_relax(end->oversubscribed);
  *bytes = end->bytes;
  return slot_of(state, state->at);
}

static void release(struct end *end) {
  struct state *state = end->state;
  atomic_store_explicit(&state->window->readers[peers_reader(end)].read, ++state->at, memory_order_release);
}

static const void *read_copy(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  return memcpy(state->copy, read_in_place(end, bytes), end->bytes);
}

static void write_many(struct end *end, const void *data, size_t bytes, size_t count) {
  struct state *state = end->state;
  for (size_t i = 0; i < count; i++, state->at++) memcpy(reserve(end, bytes), (const char *)data + i * bytes, bytes);
  atomic_store_explicit(&state->window->written, state->at, memory_order_release);
}

static size_t read_many(struct end *end, const void **data, size_t capacity) {
  struct state *state = end->state;
  size_t bytes;
  read_in_place(end, &bytes);
  for (state->taken = 0; state->taken < capacity && state->at + state->taken < state->seen; state->taken++)
    data[state->taken] = slot_of(state, state->at + state->taken);
  return state->taken;
}

static void release_many(struct end *end) {
  struct state *state = end->state;
  state->at += state->taken;
  atomic_store_explicit(&state->window->readers[peers_reader(end)].read, state->at, memory_order_release);
}

static void close_end(struct end *end) {
  struct state *state = end->state;
  free(state->copy);
  free(state);
}

extern const struct way_calls in_place_calls, memcpy_calls, past_cache_calls;
const struct way_calls in_place_calls = {.prepare = prepare_ring,
                                         .open = open_ring,
                                         .write = write_slot,
                                         .read = read_in_place,
                                         .release = release,
                                         .reserve = reserve,
                                         .commit = commit,
                                         .write_many = write_many,
                                         .read_many = read_many,
                                         .release_many = release_many,
                                         .close = close_end};
const struct way_calls memcpy_calls = {.prepare = prepare_ring,
                                       .open = open_ring,
                                       .write = write_slot,
                                       .read = read_copy,
                                       .release = release,
                                       .close = close_end};
const struct way_calls past_cache_calls = {.prepare = prepare_past_cache,
                                           .open = open_past_cache,
                                           .write = write_slot,
                                           .read = read_copy,
                                           .release = release,
                                           .close = close_end};
