/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that has rings and readers, for the tests of the command line. Reads commands from
 * stdin, one a line, and answers each with a line on stdout, "error: ..." if the command failed.
 * Ends with stdin. Names are in hexadecimal, "-" for none; rings and readers are numbered from 0,
 * each in the order of their making.
 *   - ring NAME CAPACITY [SLOW_NS]: makes a ring, which evicts readers that are in the way for so
 *     long; answers with the handle
 *   - read HANDLE NAME: attaches a reader
 *   - send RING COUNT BYTES: sends frames, and waits for room without limit
 *   - stream RING BYTES US: from here on sends a frame every so many microseconds
 *   - take READER COUNT: takes and releases frames
 *   - follow READER: from here on takes and releases every frame
 *   - call NAME: the process calls itself so
 *   - close RING: closes the ring
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "ringcast/ringcast.h"

enum { MOST = 64, LINE = 1024, NAME = 64 };

static struct {
  ringcast_writer *writer;
  size_t bytes;
  long gap_us;
} rings[MOST];
static ringcast_reader *readers[MOST];
static int ring_count, reader_count;
static char payload[1 << 20];

/* "72616e6b" -> "rank"; the number of bytes. */
static size_t unhex(const char *text, char out[NAME]) {
  size_t length = 0;
  unsigned byte;
  memset(out, 0, NAME);
  for (; text[0] && text[1] && length < NAME - 1 && sscanf(text, "%2x", &byte) == 1; text += 2)
    out[length++] = (char)byte;
  return length;
}

static int fail(void) {
  printf("error: %s\n", ringcast_last_error());
  return 0;
}

/* ---- Commands -------------------------------------------------------------------------------- */

static int make_ring(char *word[]) {
  char name[NAME];
  int64_t slow_ns = word[3] ? strtoll(word[3], NULL, 10) : 0;
  struct ringcast_writer_options options = {.size = sizeof options,
                                            .capacity = strtoull(word[2], NULL, 10),
                                            .name = unhex(word[1], name) ? name : NULL,
                                            .on_slow = slow_ns ? RINGCAST_EVICT : RINGCAST_FAIL,
                                            .slow_ns = slow_ns};
  if (ring_count == MOST) return puts("error: too many rings");
  if (ringcast_writer_create_ex(&options, &rings[ring_count].writer) != 0) return fail();
  return puts(ringcast_writer_handle(rings[ring_count++].writer));
}

static int attach(char *word[]) {
  char name[NAME];
  struct ringcast_reader_options options = {.size = sizeof options,
                                            .name = unhex(word[2], name) ? name : NULL};
  if (reader_count == MOST) return puts("error: too many readers");
  if (ringcast_reader_attach_ex(word[1], &options, &readers[reader_count]) != 0) return fail();
  return printf("%d\n", reader_count++);
}

static int send_frames(char *word[]) {
  for (long left = strtol(word[2], NULL, 10); left > 0; left--)
    if (ringcast_writer_send(rings[atoi(word[1])].writer, payload, (size_t)atol(word[3]), 0,
                             RINGCAST_FOREVER) != 0)
      return fail();
  return puts("sent");
}

static void *stream(void *which) {
  struct timespec gap = {.tv_nsec = rings[(intptr_t)which].gap_us % 1000000 * 1000,
                         .tv_sec = rings[(intptr_t)which].gap_us / 1000000};
  while (ringcast_writer_send(rings[(intptr_t)which].writer, payload, rings[(intptr_t)which].bytes,
                              0, RINGCAST_FOREVER) == 0)
    nanosleep(&gap, NULL);
  return NULL;
}

static int start_stream(char *word[]) {
  pthread_t thread;
  intptr_t which = atoi(word[1]);
  rings[which].bytes = (size_t)atol(word[2]);
  rings[which].gap_us = atol(word[3]);
  return pthread_create(&thread, NULL, stream, (void *)which) == 0 ? puts("streams")
                                                                   : puts("error: no thread");
}

static int take_frame(ringcast_reader *reader) {
  struct ringcast_frame frame;
  int result = ringcast_reader_next(reader, RINGCAST_FOREVER, &frame);
  return result == 0 ? ringcast_reader_release(reader, &frame) : result;
}

static int take(char *word[]) {
  for (long left = strtol(word[2], NULL, 10); left > 0; left--)
    if (take_frame(readers[atoi(word[1])]) != 0) return fail();
  return puts("took");
}

static void *follow(void *reader) {
  while (take_frame(reader) == 0) continue;
  return NULL;
}

static int start_follow(char *word[]) {
  pthread_t thread;
  return pthread_create(&thread, NULL, follow, readers[atoi(word[1])]) == 0
             ? puts("follows")
             : puts("error: no thread");
}

static int call(char *word[]) {
  char name[NAME];
  unhex(word[1], name);
  prctl(PR_SET_NAME, name);
  return puts("called");
}

static int close_ring(char *word[]) {
  ringcast_writer_close(rings[atoi(word[1])].writer);
  return puts("closed");
}

/* ---- Lines ----------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  int (*run)(char *word[]);
  int words;
} commands[] = {{"ring", make_ring, 3},      {"read", attach, 3},     {"send", send_frames, 4},
                {"stream", start_stream, 4}, {"take", take, 3},       {"follow", start_follow, 2},
                {"call", call, 2},           {"close", close_ring, 2}};

static void run(char *line) {
  char *word[6] = {0}, *rest;
  int words = 0;
  for (char *at = strtok_r(line, " \n", &rest); at && words < 5; at = strtok_r(NULL, " \n", &rest))
    word[words++] = at;
  for (size_t i = 0; words > 0 && i < sizeof commands / sizeof *commands; i++)
    if (strcmp(word[0], commands[i].name) == 0 && words >= commands[i].words) {
      commands[i].run(word);
      return;
    }
  puts("error: no such command");
}

int main(void) {
  char line[LINE];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (fgets(line, sizeof line, stdin)) {
    run(line);
    fflush(stdout);
  }
  _Exit(0); /* a thread may wait without limit */
}
