/* SPDX-License-Identifier: Apache-2.0 */
/* ringcast, as a program would use it that waits for latency, and with default options. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ringcast/ringcast.h"
#include "way.h"

enum { HANDLE = 96, MI = 1 << 20 };
static const int64_t SPIN_NS = 1000000000;

struct state {
  ringcast_writer *writer;
  ringcast_reader *reader;
  struct ringcast_frame frame;
};

static void must(const struct end *end, int result, const char *what) {
  if (result < 0) peers_die(end, "%s: %s", what, ringcast_last_error());
}

static void open_writer(struct end *end, int64_t spin_ns, uint64_t capacity) {
  struct state *state = end->state;
  struct ringcast_writer_options options = {
      .size = sizeof options, .spin_ns = spin_ns, .capacity = capacity};
  must(end, ringcast_writer_create_ex(&options, &state->writer), "can't make a ring");
  peers_publish(end, ringcast_writer_handle(state->writer),
                strlen(ringcast_writer_handle(state->writer)) + 1);
  must(end, ringcast_writer_wait_readers(state->writer, end->processes - 1, RINGCAST_FOREVER),
       "no readers");
}

static void open_reader(struct end *end, int64_t spin_ns) {
  struct state *state = end->state;
  struct ringcast_reader_options options = {.size = sizeof options, .spin_ns = spin_ns};
  char handle[HANDLE];
  peers_await(end, end->writer, handle, sizeof handle);
  must(end, ringcast_reader_attach_ex(handle, &options, &state->reader), "can't attach");
}

static void open_with(struct end *end, int64_t spin_ns, uint64_t capacity) {
  end->state = calloc(1, sizeof(struct state));
  if (!end->state) peers_die(end, "no memory");
  if (end->rank == end->writer) open_writer(end, spin_ns, capacity);
  else open_reader(end, spin_ns);
}

/* Large messages in place: a ring of 16, so that they need no spill memory and few grants of room.
 * What is copied stays in the cache only in a ring of default size. */
static uint64_t capacity_for(const struct end *end) {
  const uint64_t most = (uint64_t)256 * MI;
  if (!end->in_place || end->bytes < MI) return 0;
  return 16 * end->bytes < most ? 16 * end->bytes : most;
}

static void open_for_latency(struct end *end) {
  open_with(end, end->oversubscribed ? 0 : SPIN_NS, capacity_for(end));
}

static void open_default(struct end *end) { open_with(end, 0, 0); }

static void version(char *text, size_t size) { snprintf(text, size, "%s", ringcast_version()); }

static void send(struct end *end, const void *data, size_t bytes) {
  struct state *state = end->state;
  must(end, ringcast_writer_send(state->writer, data, bytes, RINGCAST_KIND_BYTES, RINGCAST_FOREVER),
       "can't send");
}

static const void *next(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  must(end, ringcast_reader_next(state->reader, RINGCAST_FOREVER, &state->frame), "can't receive");
  *bytes = state->frame.bytes;
  return state->frame.data;
}

static void release(struct end *end) {
  struct state *state = end->state;
  must(end, ringcast_reader_release(state->reader, &state->frame), "can't release");
}

static void *reserve(struct end *end, size_t bytes) {
  struct state *state = end->state;
  struct ringcast_span span;
  must(end, ringcast_writer_reserve(state->writer, bytes, RINGCAST_FOREVER, &span),
       "can't reserve");
  return span.data;
}

static void commit(struct end *end, size_t bytes) {
  struct state *state = end->state;
  must(end, ringcast_writer_commit(state->writer, bytes, RINGCAST_KIND_BYTES), "can't commit");
}

static void close_ends(struct end *end) {
  struct state *state = end->state;
  ringcast_reader_close(state->reader);
  ringcast_writer_close(state->writer);
  free(state);
}

extern const struct way_calls ringcast_calls, ringcast_default_calls;
#define CALLS                                                                              \
  .version = version, .write = send, .read = next, .release = release, .reserve = reserve, \
  .commit = commit, .close = close_ends
const struct way_calls ringcast_calls = {.open = open_for_latency, CALLS};
const struct way_calls ringcast_default_calls = {.open = open_default, CALLS};
