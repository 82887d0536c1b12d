/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other end of a recording, for tests/tools/test_record.py.
 *
 *   record_peer write [name=demo] [seed=1] [count=0] [least=1] [most=5000] [gap_us=0] [readers=0]
 * [capacity=0] [spill=0] [timeout_ms=-1] [slow_ms=0] [evicts=0] [batch=0] [tensors=0] makes a ring,
 * prints its handle, waits for a line on stdin, sends `count` frames (0: until another line or the
 *     end of stdin), prints what it sent, waits for a line again, and closes. Lengths and contents
 * come from the seed. timeout_ms: of each send; slow_ms: the limit of on_slow, which is FAIL, or
 * with evicts=1 EVICT. batch: so many in a call. tensors: typed frames. record_peer read <handle>
 * [name=peer] [latest=0] reads until the writer is gone, and prints what came; prints "attached" at
 * first.
 *
 * What was sent or came: "frames bytes digest", the digest of all lengths, kinds and bytes in their
 * order.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ringcast/batch.h"
#include "ringcast/frame.h"

enum { MOST_BATCH = 64 };

struct told {
  uint64_t frames, bytes, digest;
};

static void die(const char *what) {
  fprintf(stderr, "record_peer: %s: %s\n", what, ringcast_last_error());
  exit(1);
}

static uint64_t stir(uint64_t value) {
  value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
  return value ^ (value >> 31);
}

static void tell(struct told *told, uint16_t kind, const void *data, size_t bytes) {
  const uint8_t *at = data;
  uint64_t digest = stir(told->digest ^ bytes ^ (uint64_t)kind << 48), word;
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    memcpy(&word, at + i, 8);
    digest = (digest ^ word) * UINT64_C(0x100000001b3);
  }
  for (; i < bytes; i++) digest = (digest ^ at[i]) * UINT64_C(0x100000001b3);
  told->digest = digest;
  told->frames++;
  told->bytes += bytes;
}

static void print(const struct told *told) {
  printf("%" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", told->frames, told->bytes, told->digest);
  fflush(stdout);
}

/* The value of an option "name=value" on the command line. */
static const char *text_of(char **argv, const char *name, const char *otherwise) {
  size_t length = strlen(name);
  for (; *argv; argv++)
    if (strncmp(*argv, name, length) == 0 && (*argv)[length] == '=') return *argv + length + 1;
  return otherwise;
}

static int64_t number_of(char **argv, const char *name, int64_t otherwise) {
  const char *text = text_of(argv, name, NULL);
  return text ? strtoll(text, NULL, 10) : otherwise;
}

static void wait_for_line(void) {
  int byte;
  while ((byte = getchar()) != EOF && byte != '\n') continue;
}

static int is_asked(void) {
  struct pollfd stdin_poll = {.fd = STDIN_FILENO, .events = POLLIN};
  return poll(&stdin_poll, 1, 0) > 0;
}

/* ---- Writing --------------------------------------------------------------------------------- */

struct source {
  uint64_t seed, number, least, most;
  int tensors;
  uint8_t *memory[MOST_BATCH];
};

static size_t build(uint8_t *memory, size_t room, uint64_t number, uint64_t bytes) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  const int64_t shape[2] = {2, (int64_t)(bytes / 16 + 1)};
  struct ringcast_tensor tensor = {
      .data = memory, .dtype = {.code = 0, .bits = 64, .lanes = 1}, .ndim = 2, .shape = shape};
  size_t out = 0;
  uint64_t size = 16 * (uint64_t)shape[1];
  uint8_t *data = memory + room / 2; /* the filled half */
  tensor.data = data;
  ringcast_plan_tensor(&plan, 3, 2, size);
  ringcast_plan_item(&plan, 4, 0);
  ringcast_plan_item(&plan, 4, 5);
  if (ringcast_build_begin(&builder, memory, room / 2, &plan, RINGCAST_ROOT_DICT,
                           (uint32_t)number) != 0 ||
      ringcast_build_tensor(&builder, "ids", 3, &tensor) != 0 ||
      ringcast_build_scalar(&builder, RINGCAST_ITEM_INT, "step", 4, (int64_t)number) != 0 ||
      ringcast_build_data(&builder, RINGCAST_ITEM_STR, "text", 4, "a\"b\n\x1b", 5, 0, NULL) != 0 ||
      ringcast_build_end(&builder, &out) != 0)
    die("can't build a frame");
  return out;
}

/* The next frame, made of the seed and its number. */
static struct ringcast_message next_of(struct source *source, uint32_t place) {
  uint64_t chance = stir(source->seed * 1000003 + source->number);
  size_t bytes = (size_t)(source->least + chance % (source->most - source->least + 1));
  size_t room = 2 * (source->most + 4096);
  uint8_t *memory = source->memory[place] ? source->memory[place] : malloc(room + 64);
  source->memory[place] = memory;
  uint8_t *to = source->tensors ? memory + room / 2 : memory;
  for (size_t i = 0; i < bytes + 32; i += 8) {
    uint64_t word = chance + i * UINT64_C(0x9e3779b97f4a7c15);
    memcpy(to + i, &word, 8);
  }
  if (source->tensors) bytes = build(memory, room, source->number, bytes);
  source->number++;
  return (struct ringcast_message){.data = memory,
                                   .bytes = bytes,
                                   .kind = source->tensors ? RINGCAST_KIND_TENSORS
                                                           : RINGCAST_KIND_BYTES};
}

static void send_all(ringcast_writer *writer, struct source *source, char **argv,
                     struct told *told) {
  uint64_t count = (uint64_t)number_of(argv, "count", 0),
           batch = (uint64_t)number_of(argv, "batch", 0);
  int64_t gap_us = number_of(argv, "gap_us", 0), timeout_ms = number_of(argv, "timeout_ms", -1);
  int64_t timeout = timeout_ms < 0 ? RINGCAST_FOREVER : timeout_ms * 1000000;
  while (count == 0 ? !is_asked() : told->frames < count) {
    struct ringcast_message messages[MOST_BATCH];
    uint32_t many = batch > 0 ? (uint32_t)batch : 1, sent = 0;
    if (count > 0 && many > count - told->frames) many = (uint32_t)(count - told->frames);
    for (uint32_t i = 0; i < many; i++) {
      messages[i] = next_of(source, i);
      tell(told, messages[i].kind, messages[i].data, messages[i].bytes);
    }
    while (sent < many) {
      int result = batch > 0
                       ? ringcast_writer_send_many(writer, messages + sent, many - sent, timeout)
                       : ringcast_writer_send(writer, messages->data, messages->bytes,
                                              messages->kind, timeout);
      if (result < 0) die("can't send");
      sent += batch > 0 ? (uint32_t)result : 1;
    }
    if (gap_us > 0) usleep((useconds_t)gap_us);
  }
  if (count == 0) wait_for_line(); /* that it was asked by */
}

static int run_writer(char **argv) {
  struct ringcast_writer_options options = {.size = sizeof options,
                                            .name = text_of(argv, "name", "demo"),
                                            .capacity = (uint64_t)number_of(argv, "capacity", 0),
                                            .spill_bytes = (uint64_t)number_of(argv, "spill", 0),
                                            .slow_ns = number_of(argv, "slow_ms", 0) * 1000000,
                                            .on_slow =
                                                (uint32_t)number_of(argv, "evicts", RINGCAST_FAIL)};
  struct source source = {.seed = (uint64_t)number_of(argv, "seed", 1),
                          .least = (uint64_t)number_of(argv, "least", 1),
                          .most = (uint64_t)number_of(argv, "most", 5000),
                          .tensors = (int)number_of(argv, "tensors", 0)};
  uint32_t readers = (uint32_t)number_of(argv, "readers", 0);
  struct told told = {0};
  ringcast_writer *writer;
  if (ringcast_writer_create_ex(&options, &writer) != 0) die("can't make the ring");
  printf("%s\n", ringcast_writer_handle(writer));
  fflush(stdout);
  if (readers > 0 && ringcast_writer_wait_readers(writer, readers, RINGCAST_FOREVER) < 0)
    die("no readers");
  wait_for_line();
  send_all(writer, &source, argv, &told);
  print(&told);
  wait_for_line();
  ringcast_writer_close(writer);
  for (int i = 0; i < MOST_BATCH; i++) free(source.memory[i]);
  return 0;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static int run_reader(char **argv) {
  struct ringcast_reader_options options = {.size = sizeof options,
                                            .name = text_of(argv, "name", "peer")};
  struct told told = {0};
  ringcast_reader *reader;
  if (ringcast_reader_attach_ex(*argv, &options, &reader) != 0) die("can't attach");
  puts("attached");
  fflush(stdout);
  for (;;) {
    struct ringcast_frame frame;
    int result = ringcast_reader_next(reader, RINGCAST_FOREVER, &frame);
    if (result == -EPIPE) break;
    if (result != 0) die("can't receive");
    tell(&told, frame.kind, frame.data, frame.bytes);
    if (ringcast_reader_release(reader, &frame) != 0) die("can't release");
  }
  ringcast_reader_close(reader);
  print(&told);
  return 0;
}

int main(int argc, char **argv) {
  setvbuf(stdin, NULL, _IONBF, 0); /* poll sees what was not read */
  if (argc >= 2 && strcmp(argv[1], "write") == 0) return run_writer(argv + 2);
  if (argc >= 3 && strcmp(argv[1], "read") == 0) return run_reader(argv + 2);
  fprintf(stderr, "usage: record_peer write [name=value...] | read <handle> [name=value...]\n");
  return 2;
}
