/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A writer, and a reader in another process, which attaches by the writer's handle. Prints what
 * arrived.
 *
 *   cc hello.c -o hello $(pkg-config --cflags --libs ringcast) && ./hello
 *
 * pkg-config finds an installed ringcast (sudo make install); docs/c.md has other prefixes, and
 * CMake.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ringcast/ringcast.h"

/* Any negative result ends the program with the sentence that says why. */
static int check(int result) {
  if (result >= 0) return result;
  fprintf(stderr, "hello: %s\n", ringcast_last_error());
  exit(1);
}

static void read_all(const char *handle) {
  ringcast_reader *reader;
  struct ringcast_frame frame;
  check(ringcast_reader_attach(handle, &reader));
  for (int i = 0; i < 3; i++) {
    check(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame));
    printf("received %.*s\n", (int)frame.bytes, (const char *)frame.data);
    check(ringcast_reader_release(reader, &frame));
  }
  ringcast_reader_close(reader);
}

static void write_all(ringcast_writer *writer) {
  struct ringcast_span span;
  const int64_t minute = INT64_C(60000000000);
  check(ringcast_writer_wait_readers(writer, 1, minute)); /* a reader gets only later messages */
  for (int i = 0; i < 3; i++) {
    check(ringcast_writer_reserve(writer, 64, minute, &span));
    int bytes = snprintf(span.data, span.bytes, "step %d", i); /* written into the ring itself */
    check(ringcast_writer_commit(writer, (size_t)bytes, RINGCAST_KIND_BYTES));
  }
}

int main(void) {
  ringcast_writer *writer;
  int status = 1;
  check(ringcast_writer_create(&writer));
  pid_t child = fork();
  if (child == 0) {
    read_all(ringcast_writer_handle(writer));
    status = 0;
  } else if (child > 0) {
    write_all(writer);
    waitpid(child, &status, 0);
  }
  /* In the child: frees the child's memory and leaves the ring alone. */
  ringcast_writer_close(writer);
  return status != 0;
}
