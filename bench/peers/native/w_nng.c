/* SPDX-License-Identifier: Apache-2.0 */
/* NNG: a push0 socket for each reader, with messages made by nng_msg_alloc, which are sent without another copy. */
#include <nng/nng.h>
#include <nng/protocol/pipeline0/pull.h>
#include <nng/protocol/pipeline0/push.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "way.h"

enum { NAME = 96 };

struct state {
  nng_socket sockets[64];
  nng_msg *message; /* of a reader: the latest */
  uint32_t count;
};

static void must(const struct end *end, int result, const char *what) {
  if (result != 0) peers_die(end, "%s: %s", what, nng_strerror(result));
}

static const char *name_of(const struct end *end, uint32_t reader, char *text) {
  char stream[NAME / 2];
  snprintf(text, NAME, "abstract://%s-%u", peers_stream_name(end, stream, sizeof stream), reader);
  return text;
}

static void open_reader(struct end *end) {
  struct state *state = end->state;
  char name[NAME];
  must(end, nng_pull0_open(&state->sockets[0]), "can't make a socket");
  must(end, nng_socket_set_size(state->sockets[0], NNG_OPT_RECVMAXSZ, 0), "can't allow large messages");
  must(end, nng_listen(state->sockets[0], name_of(end, peers_reader(end), name), NULL, 0), "can't listen");
  state->count = 1;
  peers_publish(end, "", 0);
}

static void open_writer(struct end *end) {
  struct state *state = end->state;
  char name[NAME], nothing[1];
  for (uint32_t rank = 0; rank < end->processes; rank++) {
    if (rank == end->writer) continue;
    peers_await(end, rank, nothing, sizeof nothing);
    must(end, nng_push0_open(&state->sockets[state->count]), "can't make a socket");
    must(end, nng_dial(state->sockets[state->count], name_of(end, state->count, name), NULL, 0), "can't dial");
    state->count++;
  }
}

static void open_end(struct end *end) {
  end->state = calloc(1, sizeof(struct state));
  if (!end->state) peers_die(end, "no memory");
  if (end->rank == end->writer) open_writer(end);
  else open_reader(end);
}

static void version(char *text, size_t size) { snprintf(text, size, "%s", nng_version()); }

static void send(struct end *end, const void *data, size_t bytes) {
  struct state *state = end->state;
  nng_msg *message, *last;
  must(end, nng_msg_alloc(&last, bytes), "no memory for a message");
  memcpy(nng_msg_body(last), data, bytes);
  for (uint32_t i = 0; i < state->count; i++) {
    message = last;
    if (i + 1 < state->count) must(end, nng_msg_dup(&message, last), "no memory for a message");
    must(end, nng_sendmsg(state->sockets[i], message, 0), "can't send");
  }
}

static const void *receive(struct end *end, size_t *bytes) {
  struct state *state = end->state;
  must(end, nng_recvmsg(state->sockets[0], &state->message, 0), "can't receive");
  *bytes = nng_msg_len(state->message);
  return nng_msg_body(state->message);
}

static void release(struct end *end) { nng_msg_free(((struct state *)end->state)->message); }

static void close_end(struct end *end) {
  struct state *state = end->state;
  for (uint32_t i = 0; i < state->count; i++) nng_close(state->sockets[i]);
  free(state);
}

extern const struct way_calls nng_calls;
const struct way_calls nng_calls = {
    .version = version, .open = open_end, .write = send, .read = receive, .release = release, .close = close_end};
