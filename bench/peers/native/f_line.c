/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor of small messages: one cache line. The first word is the message's number, and is stored last. There is no
 * queue: the writer may write again when all readers have read, as the board says.
 */
#include <stdatomic.h>
#include <string.h>

#include "way.h"

enum { WORDS = 8 };

struct line {
  _Alignas(128) _Atomic uint64_t number; /* plus one; 0: nothing was written yet */
  uint64_t words[WORDS - 1];
};

struct state {
  struct line *line;
  uint64_t latest; /* the line's number when it was last read */
  uint64_t copy[WORDS];
};

static void prepare(struct end *end) { end->shared = peers_shared_memory(end, sizeof(struct line)); }

static void open_end(struct end *end) {
  struct state *state = end->state = peers_memory(end, sizeof *state);
  *state = (struct state){.line = end->shared};
}

static void write_line(struct end *end, const void *data, size_t bytes) {
  struct state *state = end->state;
  uint64_t number;
  memcpy(&number, data, sizeof number);
  if (bytes == sizeof state->copy)
    memcpy(state->line->words, (const char *)data + sizeof number, sizeof state->line->words);
  else memcpy(state->line->words, (const char *)data + sizeof number, bytes - sizeof number);
  atomic_store_explicit(&state->line->number, number + 1, memory_order_release);
}

static const void *read_line(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  uint64_t number;
  while ((number = atomic_load_explicit(&state->line->number, memory_order_acquire)) == state->latest)
    peers_relax(end->oversubscribed);
  state->latest = number;
  state->copy[0] = number - 1;
  memcpy(state->copy + 1, state->line->words, sizeof state->line->words);
  *bytes = end->bytes;
  return state->copy;
}

extern const struct way_calls line_calls;
const struct way_calls line_calls = {.prepare = prepare, .open = open_end, .write = write_line, .read = read_line};
