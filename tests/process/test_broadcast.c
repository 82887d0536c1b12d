/* SPDX-License-Identifier: Apache-2.0 */
/* One writer and 1 to 8 reading processes: every frame arrives, whole, in order, once. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "tests/support/children.h"
#include "tests/support/handles.h"
#include "tests/support/pattern.h"
#include "tests/support/switches.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MANY = 100000, SOME = 20000 };
#else
enum { MANY = 1000000, SOME = 100000 };
#endif

struct stream {
  const char *handle;
  uint64_t frames;
  size_t most;
  int64_t spin_ns;
  uint64_t seed;
};

/* Reads the whole stream; then nothing more may come but the writer's end. */
static void read_stream(void *context) {
  const struct stream *stream = context;
  struct ringcast_frame frame;
  remember();
  ringcast_reader *reader = reader_at(stream->handle, .spin_ns = stream->spin_ns);
  for (uint64_t n = 0; n < stream->frames; n++) {
    child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == 0);
    child_must(frame.kind == (uint16_t)n);
    child_must(frame.bytes == pattern_bytes(n, stream->most));
    child_must(pattern_matches(frame.data, frame.bytes, n));
    child_must(ringcast_reader_release(reader, &frame) == 0);
  }
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == -EPIPE);
  ringcast_reader_close(reader);
  nothing_is_left();
}

static void write_stream(ringcast_writer *writer, const struct stream *stream) {
  for (uint64_t n = 0; n < stream->frames; n++) {
    struct ringcast_span span;
    size_t bytes = pattern_bytes(n, stream->most);
    size_t estimate =
        bytes + bytes / 4 <= stream->most ? bytes + bytes / 4 : bytes; /* trimmed at commit */
    ck_assert_int_eq(ringcast_writer_reserve(writer, estimate, RINGCAST_FOREVER, &span), 0);
    pattern_fill(span.data, bytes, n);
    ck_assert_int_eq(ringcast_writer_commit(writer, bytes, (uint16_t)n), 0);
  }
}

static void broadcast(uint32_t readers, uint64_t capacity, uint64_t frames, int64_t spin_ns) {
  pid_t children[8];
  ringcast_writer *writer = writer_of(.capacity = capacity, .spin_ns = spin_ns);
  struct ringcast_info info = info_of(writer);
  struct stream stream = {.handle = ringcast_writer_handle(writer),
                          .frames = frames,
                          .most = (size_t)info.ring_frame,
                          .spin_ns = spin_ns};
  for (uint32_t i = 0; i < readers; i++) children[i] = start_child(read_stream, &stream);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, readers, RINGCAST_FOREVER), (int)readers);
  write_stream(writer, &stream);
  ringcast_writer_close(writer);
  for (uint32_t i = 0; i < readers; i++) child_must_succeed(children[i]);
}

LOOP_TEST(a_million_frames_reach_1_to_8_processes, 1, 9) {
  broadcast((uint32_t)_i, 64 * 1024, (uint64_t)share_of(_i == 8 ? MANY : SOME), 0);
}

LOOP_TEST(rings_of_all_sizes_and_both_ways_of_waiting, 0, 8) {
  const uint64_t capacities[] = {4096, 16 * 1024, 1 << 20, 16 << 20};
  broadcast(3, capacities[_i / 2], (uint64_t)share_of(SOME / 4), _i % 2 ? -1 : 0);
}

/* ---- Coming and going while frames fly ------------------------------------------------------- */

enum { VISITS = 100, LAST = 0xffff };

/* Attaches, reads a stretch without a gap, leaves; again and again. */
static void visit(void *context) {
  const struct stream *stream = context;
  struct ringcast_frame frame;
  uint64_t random = mix(stream->seed), earlier = 0;
  for (int visits = 0; visits < VISITS; visits++) {
    ringcast_reader *reader;
    uint64_t number = 0;
    child_must(ringcast_reader_attach(stream->handle, &reader) == 0);
    for (uint64_t left = (random = mix(random)) % 200, first = 1; left > 0; left--, first = 0) {
      uint64_t found;
      child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == 0);
      child_must(frame.bytes >= sizeof found);
      memcpy(&found, frame.data, sizeof found);
      child_must(first ? found >= earlier : found == number + 1);
      child_must(pattern_matches((const uint8_t *)frame.data + 8, frame.bytes - 8, found));
      earlier = number = found;
      child_must(ringcast_reader_release(reader, &frame) == 0);
    }
    ringcast_reader_close(reader);
  }
}

TEST(readers_come_and_go_in_mid_stream) {
  enum { VISITORS = 3 };
  struct stream streams[VISITORS];
  ringcast_writer *writer = writer_of(.capacity = 16 * 1024);
  for (uint64_t i = 0; i < VISITORS; i++) {
    streams[i] = (struct stream){.handle = ringcast_writer_handle(writer), .seed = i};
    start_child(visit, &streams[i]);
  }
  int left = VISITORS, status;
  for (uint64_t n = 0; left > 0; n++) {
    uint8_t data[8 + 4000];
    size_t bytes = 8 + pattern_bytes(n, 4000);
    memcpy(data, &n, sizeof n);
    pattern_fill(data + 8, bytes - 8, n);
    ck_assert_int_eq(ringcast_writer_send(writer, data, bytes, 0, RINGCAST_FOREVER), 0);
    if (n % 64 == 0 && waitpid(-1, &status, WNOHANG) > 0) {
      ck_assert_int_eq(status, 0);
      left--;
    }
  }
  struct ringcast_peer peer = {.size = sizeof peer};
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 0);
  ringcast_writer_close(writer);
}

RUN_TESTS("broadcast", NULL, NULL)
