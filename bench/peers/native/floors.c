/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floors, which move the same bytes without a queue:
 *   cache-line  one line, of which the first word is the message's number, stored last. The writer
 *               may write again when all readers have read, as the board says
 *   in-place    shared memory in slots, a counter of the writer and one of each reader; memcpy in,
 *               read in place. A quarter of the last level cache, from 4 to 32 MiB, as a ring of
 *               default size; at least two messages
 *   memcpy      the same; memcpy in and out
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "way.h"

enum { WORDS = 8, LINE = 128, READERS = 64, MI = 1 << 20 };

/* ---- One line -------------------------------------------------------------------------------- */

struct line {
  _Alignas(LINE) _Atomic uint64_t number; /* plus one; 0: nothing was written yet */
  uint64_t words[WORDS - 1];
};

struct line_state {
  uint64_t latest; /* the line's number when it was last read */
  uint64_t copy[WORDS];
};

static void prepare_line(struct end *end) {
  end->shared = peers_shared_memory(end, sizeof(struct line));
}

static void open_line(struct end *end) {
  struct line_state *state = end->state = peers_memory(end, sizeof *state);
  *state = (struct line_state){0};
}

static void write_line(struct end *end, const void *data, size_t bytes) {
  struct line *line = end->shared;
  uint64_t number;
  memcpy(&number, data, sizeof number);
  memcpy(line->words, (const char *)data + sizeof number, bytes - sizeof number);
  atomic_store_explicit(&line->number, number + 1, memory_order_release);
}

static const void *read_line(struct end *end, size_t *bytes) {
  struct line_state *state = end->state;
  struct line *line = end->shared;
  while (atomic_load_explicit(&line->number, memory_order_acquire) == state->latest)
    peers_relax(end->oversubscribed);
  state->latest = atomic_load_explicit(&line->number, memory_order_relaxed);
  state->copy[0] = state->latest - 1;
  memcpy(state->copy + 1, line->words, sizeof line->words);
  *bytes = end->bytes;
  return state->copy;
}

/* ---- Slots ----------------------------------------------------------------------------------- */

struct window {
  _Alignas(LINE) _Atomic uint64_t written; /* messages */
  struct {
    _Alignas(LINE) _Atomic uint64_t read;
  } readers[READERS];
  _Alignas(LINE) uint8_t data[];
};

struct state {
  uint64_t slots, stride; /* slots: a power of two */
  uint64_t at;            /* messages that this end has written or read */
  uint64_t seen;          /* the other side's counter, at the latest look */
  uint8_t *copy;
};

static struct state layout_of(const struct end *end) {
  uint64_t cache =
      sysconf(_SC_LEVEL3_CACHE_SIZE) > 0 ? (uint64_t)sysconf(_SC_LEVEL3_CACHE_SIZE) : 0;
  uint64_t room = cache / 4;
  struct state state = {.slots = 2, .stride = (end->bytes + 63) / 64 * 64}; /* whole lines */
  if (room < 4 * MI) room = 4 * MI;
  if (room > 32 * MI) room = 32 * MI;
  while (2 * state.slots * state.stride <= room) state.slots *= 2;
  return state;
}

static uint64_t window_bytes(const struct state *state) {
  return sizeof(struct window) + state->slots * state->stride;
}

static void prepare(struct end *end) {
  struct state state = layout_of(end);
  end->shared = peers_shared_memory(end, window_bytes(&state));
}

static void open_end(struct end *end) {
  struct state *state = end->state = peers_memory(end, sizeof *state);
  *state = layout_of(end);
  peers_touch(end->shared, window_bytes(state));
  state->copy = peers_memory(end, end->bytes);
}

static uint64_t least_read(const struct end *end, const struct window *window) {
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i + 1 < end->processes; i++) {
    uint64_t read = atomic_load_explicit(&window->readers[i].read, memory_order_acquire);
    if (read < least) least = read;
  }
  return least;
}

static void *slot_of(const struct end *end, uint64_t message) {
  const struct state *state = end->state;
  struct window *window = end->shared;
  return window->data + (message & (state->slots - 1)) * state->stride;
}

static void *reserve(struct end *end, size_t bytes) {
  struct state *state = end->state;
  (void)bytes;
  while (state->at - state->seen >= state->slots) {
    state->seen = least_read(end, end->shared);
    if (state->at - state->seen >= state->slots) peers_relax(end->oversubscribed);
  }
  return slot_of(end, state->at);
}

static void commit(struct end *end, size_t bytes) {
  struct window *window = end->shared;
  struct state *state = end->state;
  (void)bytes;
  state->at++;
  atomic_store_explicit(&window->written, state->at, memory_order_release);
}

static void write_one(struct end *end, const void *data, size_t bytes) {
  memcpy(reserve(end, bytes), data, bytes);
  commit(end, bytes);
}

static const void *read_in_place(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  struct window *window = end->shared;
  while (state->seen == state->at) {
    state->seen = atomic_load_explicit(&window->written, memory_order_acquire);
    if (state->seen == state->at) peers_relax(end->oversubscribed);
  }
  *bytes = end->bytes;
  return slot_of(end, state->at);
}

static void release(struct end *end) {
  struct window *window = end->shared;
  struct state *state = end->state;
  state->at++;
  atomic_store_explicit(&window->readers[peers_reader(end)].read, state->at, memory_order_release);
}

static const void *read_copy(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  return memcpy(state->copy, read_in_place(end, bytes), end->bytes);
}

extern const struct way_calls line_calls, in_place_calls, memcpy_calls;
const struct way_calls line_calls = {
    .prepare = prepare_line, .open = open_line, .write = write_line, .read = read_line};
const struct way_calls in_place_calls = {.prepare = prepare,
                                         .open = open_end,
                                         .write = write_one,
                                         .read = read_in_place,
                                         .release = release,
                                         .reserve = reserve,
                                         .commit = commit};
const struct way_calls memcpy_calls = {.prepare = prepare,
                                       .open = open_end,
                                       .write = write_one,
                                       .read = read_copy,
                                       .release = release};
