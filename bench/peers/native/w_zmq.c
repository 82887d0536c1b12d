/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeroMQ: a PUSH socket for each reader, because one PUSH socket deals messages out in turn. The
 * messages of several readers share their memory (zmq_msg_copy). Default options, but for large
 * messages a queue of 16.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "way.h"

enum { NAME = 96, LARGE = 64 << 10, QUEUE = 16 };

struct state {
  void *context;
  void *sockets[64];
  zmq_msg_t message; /* of a reader: the latest */
  uint32_t count;
};

static void must(const struct end *end, int result, const char *what) {
  if (result < 0) peers_die(end, "%s: %s", what, zmq_strerror(zmq_errno()));
}

/* The name of reader i's socket, in the abstract namespace. */
static const char *name_of(const struct end *end, uint32_t reader, char *text) {
  char stream[NAME / 2];
  snprintf(text, NAME, "ipc://@%s-%u", peers_stream_name(end, stream, sizeof stream), reader);
  return text;
}

static void *make_socket(struct end *end, int type, int option) {
  struct state *state = end->state;
  void *socket = zmq_socket(state->context, type);
  int queue = QUEUE;
  if (!socket) peers_die(end, "can't make a socket: %s", zmq_strerror(zmq_errno()));
  if (end->bytes > LARGE)
    must(end, zmq_setsockopt(socket, option, &queue, sizeof queue), "can't bound the queue");
  return socket;
}

static void open_end(struct end *end) {
  struct state *state = calloc(1, sizeof *state);
  char name[NAME];
  if (!state || !(state->context = zmq_ctx_new())) peers_die(end, "can't make a context");
  end->state = state;
  if (end->rank != end->writer) {
    state->sockets[0] = make_socket(end, ZMQ_PULL, ZMQ_RCVHWM);
    state->count = 1;
    must(end, zmq_connect(state->sockets[0], name_of(end, peers_reader(end), name)),
         "can't connect");
    zmq_msg_init(&state->message);
    return;
  }
  for (; state->count + 1 < end->processes; state->count++) {
    state->sockets[state->count] = make_socket(end, ZMQ_PUSH, ZMQ_SNDHWM);
    must(end, zmq_bind(state->sockets[state->count], name_of(end, state->count, name)),
         "can't bind");
  }
}

static void version(char *text, size_t size) {
  int major, minor, patch;
  zmq_version(&major, &minor, &patch);
  snprintf(text, size, "%d.%d.%d", major, minor, patch);
}

static void send(struct end *end, const void *data, size_t bytes) {
  struct state *state = end->state;
  zmq_msg_t message, copy;
  must(end, zmq_msg_init_size(&message, bytes), "no memory for a message");
  memcpy(zmq_msg_data(&message), data, bytes);
  for (uint32_t i = 0; i + 1 < state->count; i++) {
    zmq_msg_init(&copy);
    must(end, zmq_msg_copy(&copy, &message), "can't share a message");
    must(end, zmq_msg_send(&copy, state->sockets[i], 0), "can't send");
  }
  must(end, zmq_msg_send(&message, state->sockets[state->count - 1], 0), "can't send");
}

static const void *receive(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  must(end, zmq_msg_recv(&state->message, state->sockets[0], 0), "can't receive");
  *bytes = zmq_msg_size(&state->message);
  return zmq_msg_data(&state->message);
}

static void close_end(struct end *end) {
  struct state *state = end->state;
  if (end->rank != end->writer) zmq_msg_close(&state->message);
  for (uint32_t i = 0; i < state->count; i++) zmq_close(state->sockets[i]);
  zmq_ctx_term(state->context);
  free(state);
}

extern const struct way_calls zmq_calls;
const struct way_calls zmq_calls = {
    .version = version, .open = open_end, .write = send, .read = receive, .close = close_end};
