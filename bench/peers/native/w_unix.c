/* SPDX-License-Identifier: Apache-2.0 */
/* A Unix stream socket for each reader, with the kernel's default buffers. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "way.h"

struct pair {
  int writer, reader;
};

static void prepare(struct end *end) {
  struct pair *pairs = peers_memory(end, end->processes * sizeof *pairs);
  for (uint32_t i = 0; i + 1 < end->processes; i++) {
    int two[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, two) != 0)
      peers_die(end, "can't make a socket: %s", strerror(errno));
    pairs[i] = (struct pair){two[0], two[1]};
  }
  end->shared = pairs;
}

/* A reader's state is the memory into which it reads. */
static void open_end(struct end *end) {
  if (end->rank != end->writer) end->state = peers_memory(end, end->bytes);
}

static void write_all(struct end *end, const void *data, size_t bytes) {
  const struct pair *pairs = end->shared;
  for (uint32_t i = 0; i + 1 < end->processes; i++)
    for (size_t done = 0; done < bytes;) {
      ssize_t sent = send(pairs[i].writer, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
      if (sent < 0 && errno != EINTR) peers_die(end, "can't send: %s", strerror(errno));
      if (sent > 0) done += (size_t)sent;
    }
}

static const void *read_with(struct end *end, size_t *bytes, int flags) {
  const struct pair *pairs = end->shared;
  for (size_t done = 0; done < end->bytes;) {
    ssize_t got = recv(pairs[peers_reader(end)].reader, (char *)end->state + done, end->bytes - done, flags);
    if (got == 0) peers_die(end, "the writer has gone");
    if (got < 0 && errno != EINTR && errno != EAGAIN) peers_die(end, "can't receive: %s", strerror(errno));
    if (got > 0) done += (size_t)got;
    else peers_relax(end->oversubscribed);
  }
  *bytes = end->bytes;
  return end->state;
}

static const void *read_blocking(struct end *end, size_t *bytes) { return read_with(end, bytes, MSG_WAITALL); }
static const void *read_polling(struct end *end, size_t *bytes) { return read_with(end, bytes, MSG_DONTWAIT); }

static void close_end(struct end *end) { free(end->state); }

extern const struct way_calls unix_calls, unix_polled_calls;
const struct way_calls unix_calls = {
    .prepare = prepare, .open = open_end, .write = write_all, .read = read_blocking, .close = close_end};
const struct way_calls unix_polled_calls = {
    .prepare = prepare, .open = open_end, .write = write_all, .read = read_polling, .close = close_end};
