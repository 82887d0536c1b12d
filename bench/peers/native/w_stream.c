/* SPDX-License-Identifier: Apache-2.0 */
/* A pipe for each reader, as large as a user may make it without privileges; or a Unix stream
 * socket for each reader, with the kernel's default buffers. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "way.h"

enum { ROOM = 1 << 20 /* the default of /proc/sys/fs/pipe-max-size */ };

struct pair {
  int reader, writer;
};

typedef ssize_t putter(int fd, const void *data, size_t bytes);
typedef ssize_t getter(int fd, void *data, size_t bytes);

static void open_pipe(struct end *end, int two[2]) {
  if (pipe2(two, O_CLOEXEC) != 0) peers_die(end, "can't make a pipe: %s", strerror(errno));
  if (fcntl(two[1], F_SETPIPE_SZ, ROOM) < 0)
    peers_die(end, "can't make a pipe larger: %s", strerror(errno));
}

static void open_socket(struct end *end, int two[2]) {
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, two) != 0)
    peers_die(end, "can't make a socket: %s", strerror(errno));
}

static void prepare_with(struct end *end, void (*open_pair)(struct end *end, int two[2])) {
  struct pair *pairs = peers_memory(end, end->processes * sizeof *pairs);
  for (uint32_t i = 0; i + 1 < end->processes; i++) {
    int two[2];
    open_pair(end, two);
    pairs[i] = (struct pair){.reader = two[0], .writer = two[1]};
  }
  end->shared = pairs;
}

static void prepare_pipes(struct end *end) { prepare_with(end, open_pipe); }
static void prepare_sockets(struct end *end) { prepare_with(end, open_socket); }

/* A reader's state is the memory into which it reads. */
static void open_end(struct end *end) {
  if (end->rank != end->writer) end->state = peers_memory(end, end->bytes);
}

static inline void put_all(struct end *end, const void *data, size_t bytes, putter *put) {
  const struct pair *pairs = end->shared;
  for (uint32_t i = 0; i + 1 < end->processes; i++)
    for (size_t done = 0; done < bytes;) {
      ssize_t written = put(pairs[i].writer, (const char *)data + done, bytes - done);
      if (written < 0 && errno != EINTR) peers_die(end, "can't write: %s", strerror(errno));
      if (written > 0) done += (size_t)written;
    }
}

static inline const void *get_all(struct end *end, size_t *bytes, getter *get) {
  const struct pair *pairs = end->shared;
  for (size_t done = 0; done < end->bytes;) {
    ssize_t got =
        get(pairs[peers_reader(end)].reader, (char *)end->state + done, end->bytes - done);
    if (got == 0) peers_die(end, "the writer has gone");
    if (got < 0 && errno != EINTR && errno != EAGAIN)
      peers_die(end, "can't read: %s", strerror(errno));
    if (got > 0) done += (size_t)got;
    else peers_relax(end->oversubscribed);
  }
  *bytes = end->bytes;
  return end->state;
}

static ssize_t put_quietly(int fd, const void *data, size_t bytes) {
  return send(fd, data, bytes, MSG_NOSIGNAL);
}
static ssize_t get_whole(int fd, void *data, size_t bytes) {
  return recv(fd, data, bytes, MSG_WAITALL);
}
static ssize_t get_at_once(int fd, void *data, size_t bytes) {
  return recv(fd, data, bytes, MSG_DONTWAIT);
}

static void write_pipe(struct end *end, const void *data, size_t bytes) {
  put_all(end, data, bytes, write);
}
static void write_socket(struct end *end, const void *data, size_t bytes) {
  put_all(end, data, bytes, put_quietly);
}
static const void *read_pipe(struct end *end, size_t *bytes) { return get_all(end, bytes, read); }
static const void *read_socket(struct end *end, size_t *bytes) {
  return get_all(end, bytes, get_whole);
}
static const void *poll_socket(struct end *end, size_t *bytes) {
  return get_all(end, bytes, get_at_once);
}

static void close_end(struct end *end) { free(end->state); }

extern const struct way_calls pipe_calls, unix_calls, unix_polled_calls;
const struct way_calls pipe_calls = {.prepare = prepare_pipes,
                                     .open = open_end,
                                     .write = write_pipe,
                                     .read = read_pipe,
                                     .close = close_end};
const struct way_calls unix_calls = {.prepare = prepare_sockets,
                                     .open = open_end,
                                     .write = write_socket,
                                     .read = read_socket,
                                     .close = close_end};
const struct way_calls unix_polled_calls = {.prepare = prepare_sockets,
                                            .open = open_end,
                                            .write = write_socket,
                                            .read = poll_socket,
                                            .close = close_end};
