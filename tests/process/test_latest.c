/* SPDX-License-Identifier: Apache-2.0 */
/* A writer streams, and processes attach at the newest frame all the time: each gets a frame that
 * was the newest at some moment of the call, or the newest of its tag, and then every later frame.
 * One that was killed has the last value when it is started again. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "ringcast/frame.h"
#include "tests/support/children.h"
#include "tests/support/handles.h"
#include "tests/support/pattern.h"
#include "tests/support/switches.h"

enum { TAGS = 3, MOST = 3000, CAPACITY = 64 * 1024, JOINERS = 3 };

/* Apart from the ring: what the writer is about to commit, and what it has committed. */
static struct board {
  _Atomic uint64_t begun, committed;                           /* numbers, from 1 on */
  _Atomic uint64_t begun_of[TAGS + 1], committed_of[TAGS + 1]; /* the same by tag */
} * board;

static void make_board(void) {
  remember();
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(board, MAP_FAILED);
}

static void free_board(void) {
  munmap(board, sizeof *board);
  nothing_is_left();
}

struct content {
  struct ringcast_frame_header header; /* its tag is all that the writer looks at */
  uint64_t number;
};

/* Every fifth frame has no tag, and of those some lie in spill memory; the newest of a tag is never
 * half a ring old. */
static uint32_t tag_of(uint64_t number) {
  return number % 5 == 0 ? 0 : (uint32_t)(number % TAGS) + 1;
}
static size_t bytes_of(uint64_t number) {
  return sizeof(struct content) + (number % 25 == 0 ? CAPACITY : pattern_bytes(number, MOST));
}

static int send_number(ringcast_writer *writer, uint64_t number, int64_t timeout_ns) {
  struct content content = {.header.tag = tag_of(number), .number = number};
  struct ringcast_span span;
  int result = ringcast_writer_reserve(writer, bytes_of(number), timeout_ns, &span);
  if (result != 0) return result;
  memcpy(span.data, &content, sizeof content);
  pattern_fill((uint8_t *)span.data + sizeof content, bytes_of(number) - sizeof content, number);
  atomic_store(&board->begun, number);
  atomic_store(&board->begun_of[content.header.tag], number);
  ck_assert_int_eq(ringcast_writer_commit(writer, bytes_of(number), RINGCAST_KIND_TENSORS), 0);
  atomic_store(&board->committed_of[content.header.tag], number);
  atomic_store(&board->committed, number);
  return 0;
}

/* The number of the next frame, which must be whole. */
static uint64_t read_number(ringcast_reader *reader) {
  struct ringcast_frame frame;
  struct content content;
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == 0);
  child_must(frame.bytes >= sizeof content);
  memcpy(&content, frame.data, sizeof content);
  child_must(frame.bytes == bytes_of(content.number) &&
             content.header.tag == tag_of(content.number));
  child_must(pattern_matches((const uint8_t *)frame.data + sizeof content,
                             frame.bytes - sizeof content, content.number));
  child_must(ringcast_reader_release(reader, &frame) == 0);
  return content.number;
}

/* The reader may start one further, as the newest may lie in spill memory that the writer has taken
 * back for a next frame that was not begun yet. */
static void attach_and_read(const char *handle, uint32_t tag, uint64_t count) {
  struct ringcast_reader_options options = {
      .size = sizeof options, .start = RINGCAST_START_LATEST, .tag = tag};
  ringcast_reader *reader;
  uint64_t least = atomic_load(tag == 0 ? &board->committed : &board->committed_of[tag]);
  int result = ringcast_reader_attach_ex(handle, &options, &reader);
  if (result != 0) fprintf(stderr, "attach, tag %u: %d: %s\n", tag, result, ringcast_last_error());
  child_must(result == 0);
  uint64_t most = tag == 0 ? atomic_load(&board->begun) + 1 : atomic_load(&board->begun_of[tag]);
  uint64_t number = read_number(reader);
  if (number < least || number > most)
    fprintf(stderr, "tag %u: %llu is not from %llu to %llu\n", tag, (unsigned long long)number,
            (unsigned long long)least, (unsigned long long)most);
  child_must(number >= least && number <= most);
  child_must(tag == 0 || tag_of(number) == tag);
  for (uint64_t i = 1; i < count; i++) child_must(read_number(reader) == number + i);
  ringcast_reader_close(reader);
}

struct joiner {
  const char *handle;
  uint64_t seed;
  int visits;
};

static void join_often(void *context) {
  const struct joiner *joiner = context;
  uint64_t random = mix(joiner->seed);
  for (int visits = 0; visits < joiner->visits; visits++) {
    random = mix(random);
    attach_and_read(joiner->handle, (uint32_t)(random % (TAGS + 1)), 1 + random / 8 % 40);
  }
}

/* With a reader that stays, or with joiners alone: then the writer seldom waits. */
LOOP_TEST(each_starts_at_what_was_newest_during_its_call_and_misses_nothing, 0, 2) {
  struct joiner joiners[JOINERS];
  ringcast_writer *writer = writer_of(.capacity = CAPACITY, .spill_bytes = 4 << 20);
  uint64_t number = 1;
  for (; number <= 10; number++) ck_assert_int_eq(send_number(writer, number, 0), 0);
  ringcast_reader *steady = _i == 0 ? reader_of(writer, .leases = 1) : NULL;
  for (uint64_t i = 0; i < JOINERS; i++) {
    joiners[i] = (struct joiner){ringcast_writer_handle(writer), i, share_of(600)};
    start_child(join_often, &joiners[i]);
  }
  for (int left = JOINERS, status; left > 0; number++) {
    while (send_number(writer, number, 1000000) != 0)
      if (steady) break;
    for (struct ringcast_frame frame; steady && ringcast_reader_next(steady, 0, &frame) == 0;)
      ck_assert_int_eq(ringcast_reader_release(steady, &frame), 0);
    if (atomic_load(&board->committed) != number) number--;
    if (waitpid(-1, &status, WNOHANG) > 0) {
      ck_assert_int_eq(status, 0);
      left--;
    }
  }
  ringcast_reader_close(steady);
  ringcast_writer_close(writer);
}

/* ---- A worker that is started again ---------------------------------------------------------- */

struct worker {
  const char *handle;
  uint32_t tag;
  int ready; /* a pipe to the parent */
};

static void work(void *context) {
  const struct worker *worker = context;
  struct ringcast_reader_options options = {
      .size = sizeof options, .start = RINGCAST_START_LATEST, .tag = worker->tag};
  ringcast_reader *reader;
  child_must(ringcast_reader_attach_ex(worker->handle, &options, &reader) == 0);
  uint64_t number = read_number(reader); /* the writer sends nothing meanwhile: it was there */
  child_must(write(worker->ready, &number, sizeof number) == sizeof number);
  for (;;) read_number(reader);
}

TEST(a_worker_that_was_killed_has_the_state_when_it_is_started_again) {
  int ends[2];
  uint64_t number = 0, has = 0;
  ck_assert_int_eq(pipe(ends), 0);
  ringcast_writer *writer = writer_of(.capacity = CAPACITY, .on_death = RINGCAST_EVICT);
  while (number < 31) ck_assert_int_eq(send_number(writer, ++number, 0), 0);
  for (uint32_t tag = 0; tag <= TAGS; tag++) {
    struct worker worker = {.handle = ringcast_writer_handle(writer), .tag = tag, .ready = ends[1]};
    pid_t pid = start_child(work, &worker);
    ck_assert_int_eq(read(ends[0], &has, sizeof has), sizeof has);
    uint64_t newest = number;
    while (tag != 0 && tag_of(newest) != tag) newest--;
    ck_assert_uint_eq(has, newest);
    kill_child(pid);
    for (int i = 0; i < 7; i++)
      ck_assert_int_eq(send_number(writer, ++number, RINGCAST_FOREVER), 0);
  }
  ringcast_writer_close(writer);
  close(ends[0]);
  close(ends[1]);
}

RUN_TESTS("latest", make_board, free_board)
