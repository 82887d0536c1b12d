/* SPDX-License-Identifier: Apache-2.0 */
/* A pipe for each reader, as large as a user may make it without privileges. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "way.h"

enum { ROOM = 1 << 20 /* the default of /proc/sys/fs/pipe-max-size */ };

struct pair {
  int reader, writer;
};

static void prepare(struct end *end) {
  struct pair *pairs = peers_memory(end, end->processes * sizeof *pairs);
  for (uint32_t i = 0; i + 1 < end->processes; i++) {
    int two[2];
    if (pipe2(two, O_CLOEXEC) != 0) peers_die(end, "can't make a pipe: %s", strerror(errno));
    if (fcntl(two[1], F_SETPIPE_SZ, ROOM) < 0) peers_die(end, "can't make a pipe larger: %s", strerror(errno));
    pairs[i] = (struct pair){two[0], two[1]};
  }
  end->shared = pairs;
}

static void open_end(struct end *end) {
  if (end->rank != end->writer) end->state = peers_memory(end, end->bytes);
}

static void write_all(struct end *end, const void *data, size_t bytes) {
  const struct pair *pairs = end->shared;
  for (uint32_t i = 0; i + 1 < end->processes; i++)
    for (size_t done = 0; done < bytes;) {
      ssize_t written = write(pairs[i].writer, (const char *)data + done, bytes - done);
      if (written < 0 && errno != EINTR) peers_die(end, "can't write: %s", strerror(errno));
      if (written > 0) done += (size_t)written;
    }
}

static const void *read_all(struct end *end, size_t *bytes) {
  const struct pair *pairs = end->shared;
  for (size_t done = 0; done < end->bytes;) {
    ssize_t got = read(pairs[peers_reader(end)].reader, (char *)end->state + done, end->bytes - done);
    if (got == 0) peers_die(end, "the writer has gone");
    if (got < 0 && errno != EINTR) peers_die(end, "can't read: %s", strerror(errno));
    if (got > 0) done += (size_t)got;
  }
  *bytes = end->bytes;
  return end->state;
}

static void close_end(struct end *end) { free(end->state); }

extern const struct way_calls pipe_calls;
const struct way_calls pipe_calls = {
    .prepare = prepare, .open = open_end, .write = write_all, .read = read_all, .close = close_end};
