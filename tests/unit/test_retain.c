/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that are kept, by the public API within one process and its children: what they are, and
 * for how long. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/support/children.h"
#include "tests/support/retain.h"

/* What this process has of a kind, in bytes, as /proc/self/status tells: "VmLck:", "RssAnon:". */
static uint64_t have(const char *kind) {
  char text[4096], *line;
  child_must(rc_os.read_file("/proc/self/status", text, sizeof text) > 0);
  child_must((line = strstr(text, kind)) != NULL);
  return strtoull(line + strlen(kind), NULL, 10) << 10;
}

/* ---- What is kept ---------------------------------------------------------------------------- */

TEST(what_is_kept_is_the_readers_own) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  ringcast_reader *reader = attach(writer, 1), *first = attach_retainer(writer),
                  *second = attach_retainer(writer);
  ck_assert_int_eq(send(writer, 1, MIB + 5), 0);
  struct retained one = keep(first, 1, MIB + 5), other = keep(second, 1, MIB + 5);
  write_to(&one);
  ck_assert(is_whole(&one) && is_whole(&other));
  read_one(reader, 1, MIB + 5);
  ck_assert_uint_eq(first->retained, 1);
  drop(&one);
  find_nothing(first);
  ck_assert_uint_eq(first->retained, 0);
  ck_assert(is_whole(&other));
  drop(&other);
  ringcast_retained_release(NULL);
  struct ringcast_stats stats = stats_of_reader(first);
  ck_assert_uint_eq(stats.frames, 1);
  ck_assert_uint_eq(stats.bytes, MIB + 5);
  ringcast_reader_close(reader);
  ringcast_reader_close(first);
  ringcast_reader_close(second);
}

static int pagemap_of_reader(void) {
  char path[32], target[64] = "";
  for (int fd = 3; fd < 64; fd++) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, target, sizeof target - 1) > 0 && strstr(target, "pagemap")) return fd;
  }
  return -1;
}

/* The program has closed the descriptor, and has a file of zeros at the number. */
static void take_number(int number) {
  int zeros = memfd_create("zeros", MFD_CLOEXEC);
  ck_assert(number >= 0 && ftruncate(zeros, (off_t)1 << 50) == 0 && dup2(zeros, number) == number);
  close(zeros);
}

static int silent_pagemap(void) { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

/* A few bytes are written to some of its pages, or now and then to all, or to none. From the second
 * time on nothing tells which they are: each then counts as written to in every page, and fewer are
 * kept. */
LOOP_TEST(where_something_was_kept_the_next_frame_is_seen, 0, 3) {
  enum { MOST = 40 };
  const uint64_t rounds = _i == 0 ? MOST : 9;
  if (_i == 1) rc_os.pagemap = silent_pagemap;
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  int pagemap = pagemap_of_reader();
  if (_i == 2) take_number(pagemap);
  const uint8_t *places[MOST];
  int again = 0;
  for (uint64_t i = 0; i < rounds; i++) {
    size_t bytes = MIB + (size_t)(mix(i) % MIB);
    bool all = i % 8 == 1;
    let_it_keep(writer, reader);
    struct retained retained = send_and_keep(writer, reader, i, bytes);
    places[i] = retained.place;
    for (uint64_t j = 0; j < i; j++)
      again += places[j] < places[i] + MIB && places[i] < places[j] + MIB;
    for (size_t at = 0; i % 3 && at < bytes; at += 4096 * (all ? 1 : 1 + mix(at + i) % 9))
      retained.data[at] ^= 1;
    if (i % 3) ck_assert(!is_whole(&retained));
    ringcast_retained_release(retained.handle);
    find_nothing(reader);
  }
  ck_assert_int_gt(again, 0);
  if (_i == 2) ck_assert_int_eq(close(pagemap), 0);
}

static void *drop_there(void *retained) {
  drop(retained);
  return NULL;
}

LOOP_TEST(it_outlives_the_reader_and_the_writer_and_is_dropped_by_any_thread, 0, 2) {
  ringcast_writer *writer = make_writer(16 * MIB);
  ringcast_reader *reader = attach_retainer(writer);
  struct retained retained[3];
  pthread_t thread;
  for (uint64_t i = 0; i < 3; i++) { retained[i] = send_and_keep(writer, reader, i, MIB); }
  write_to(&retained[1]);
  if (_i == 0) ringcast_reader_close(reader);
  for (uint64_t i = 0; i < 20 && _i == 0; i++) ck_assert_int_eq(send(writer, 50 + i, 2 * MIB), 0);
  ringcast_writer_close(writer);
  for (int i = 0; i < 3; i++) ck_assert(is_whole(&retained[i]));
  drop(&retained[0]);
  ck_assert_int_eq(pthread_create(&thread, NULL, drop_there, &retained[2]), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  struct ringcast_frame frame;
  if (_i == 1) ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), -EPIPE);
  if (_i == 1) ringcast_reader_close(reader);
  write_to(&retained[1]);
  drop(&retained[1]);
}

/* ---- When it is better not to ---------------------------------------------------------------- */

/* Of 257 pages that a frame of 1 MiB has, behind its first 16 bytes: a quarter, and one more. */
TEST(who_writes_to_most_of_it_gets_copies_for_a_while) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  const struct {
    size_t pages;
    int without; /* so many frames */
  } rounds[] = {{0, 0}, {64, 0}, {65, 4}, {64, 0}, {257, 8}, {64, 0}};
  for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
    ck_assert_int_eq(ringcast_reader_retains(reader), 1);
    struct retained retained = send_and_keep(writer, reader, i, MIB);
    for (size_t page = 0; page < rounds[i].pages; page++)
      retained.data[page == 256 ? MIB - 1 : page * 4096] ^= 1;
    ringcast_retained_release(retained.handle);
    ck_assert_int_eq(ringcast_reader_retains(reader), 1); /* it is seen only then: */
    find_nothing(reader);
    ck_assert_int_eq(let_it_keep(writer, reader), rounds[i].without);
  }
}

static void close_both(bool writer_first) {
  ringcast_writer *writer = make_writer(32 * MIB);
  ringcast_reader *reader = attach_retainer(writer);
  child_must(send(writer, 1, 8 * MIB) == 0);
  struct retained retained = keep(reader, 1, 8 * MIB);
  if (writer_first) ringcast_writer_close(writer);
  uint64_t before = have("RssAnon:");
  ringcast_reader_close(reader);
  child_must((have("RssAnon:") > before + 4 * MIB) == !writer_first);
  drop(&retained);
  if (!writer_first) ringcast_writer_close(writer);
}

static void close_writer_first(void *context) {
  (void)context;
  close_both(true);
}

static void close_reader_first(void *context) {
  (void)context;
  close_both(false);
}

/* Nobody will write there any more. */
LOOP_TEST(closing_copies_nothing_once_the_writer_has_closed, 0, 2) {
  child_must_succeed(start_child(_i == 0 ? close_writer_first : close_reader_first, NULL));
}

/* ---- Forks and locked memory ----------------------------------------------------------------- */

struct family {
  ringcast_writer *writer;
  ringcast_reader *reader;
  struct retained retained[3];
  struct gate overwritten;
};

static void look_in_child(void *context) {
  struct family *family = context;
  struct ringcast_frame frame = {0};
  ringcast_retained *none;
  void *data;
  gate_wait(&family->overwritten);
  child_must(ringcast_reader_retain(family->reader, &frame, &none, &data) == -ECHILD);
  child_must(ringcast_reader_next(family->reader, 0, &frame) == -ECHILD);
  ringcast_reader_close(family->reader);
  for (int i = 0; i < 2; i++) child_must(is_whole(&family->retained[i]));
  write_to(&family->retained[0]);
  for (int i = 0; i < 2; i++) child_must(is_whole(&family->retained[i]));
  uint64_t before = have("RssAnon:");
  ringcast_retained_release(family->retained[0].handle);
  child_must(before - have("RssAnon:") > MIB / 2); /* not only once all of them are dropped */
  ringcast_retained_release(family->retained[1].handle);
  ringcast_writer_close(family->writer);
  child_must(ring_mappings() == 0);
  gate_free(&family->overwritten);
  child_must(open_descriptors() == descriptors_before);
}

TEST(a_forked_child_has_what_was_kept_whatever_becomes_of_it) {
  struct family family = {.writer = make_writer(16 * MIB), .overwritten = gate_make()};
  family.reader = attach_retainer(family.writer);
  for (uint64_t i = 0; i < 3; i++) {
    family.retained[i] = send_and_keep(family.writer, family.reader, i, MIB);
  }
  memset(family.retained[1].data, 0, MIB / 2);
  pattern_fill(family.retained[1].data, MIB, family.retained[1].number += 7);
  ringcast_retained_release(family.retained[2].handle); /* and not ended when the child is made */
  pid_t pid = start_child(look_in_child, &family);
  drop(&family.retained[0]);
  for (uint64_t i = 0; i < 40; i++) {
    ck_assert_int_eq(send(family.writer, 50 + i, MIB), 0);
    read_one(family.reader, 50 + i, MIB);
  }
  ck_assert(is_whole(&family.retained[1]));
  gate_open(&family.overwritten);
  child_must_succeed(pid);
  ck_assert(is_whole(&family.retained[1]));
  drop(&family.retained[1]);
  gate_free(&family.overwritten);
  ringcast_reader_close(family.reader);
  ringcast_writer_close(family.writer);
}

/* A library that was loaded before ringcast: its handler runs after ringcast's, which hold locks
 * until the fork is done, and takes a lock under which another thread releases a retained frame. */
static struct {
  pthread_mutex_t mutex;
  atomic_bool is_taken, is_forking;
  ringcast_retained *retained;
} other = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void prepare_other(void) {
  atomic_store(&other.is_forking, true);
  pthread_mutex_lock(&other.mutex);
}

static void end_other(void) { pthread_mutex_unlock(&other.mutex); }

static void *release_in_a_fork(void *unused) {
  pthread_mutex_lock(&other.mutex);
  atomic_store(&other.is_taken, true);
  while (!atomic_load(&other.is_forking)) sched_yield();
  ringcast_retained_release(other.retained);
  pthread_mutex_unlock(&other.mutex);
  return unused;
}

TEST(a_frame_is_released_under_a_lock_that_a_fork_waits_for) {
  pthread_t thread;
  pthread_atfork(prepare_other, end_other, end_other);
  ringcast_writer *writer = make_writer(16 * MIB);
  ringcast_reader *reader = attach_retainer(writer);
  other.retained = send_and_keep(writer, reader, 0, MIB).handle;
  pthread_create(&thread, NULL, release_in_a_fork, NULL);
  while (!atomic_load(&other.is_taken)) sched_yield();
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  child_must_succeed(pid);
  pthread_join(thread, NULL);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}

/* What mlockall(MCL_CURRENT) does to the mapping of what is kept, which is the child's own then,
 * all of it, with what the file had there; and not to the rest, for a sanitizer's shadow is larger
 * than any machine. (AddressSanitizer makes it do nothing, and munlock.) */
static bool lock_mapping(const struct ringcast_reader *reader, const struct retained *retained) {
  const uint8_t *start =
      retained->data - ((const uint8_t *)retained->place - reader->segment.spill.base);
  return mlock(start, reader->segment.spill.bytes) == 0;
}

static void lock_what_is_there(void *context) {
  ringcast_writer *writer = make_writer(4 * MIB);
  ringcast_reader *reader = attach_retainer(writer);
  (void)context;
  for (uint64_t i = 0; i < 12; i++) {
    let_it_keep(writer, reader); /* what was locked looks as if it had been written to */
    child_must(send(writer, i, MIB) == 0);
    struct retained retained = keep(reader, i, MIB);
    if (i % 4 == 3 && !lock_mapping(reader, &retained)) _exit(2);
    if (i % 2) retained.data[5000] ^= 1;
    ringcast_retained_release(retained.handle);
    find_nothing(reader);
    if (i % 4 == 1 && !lock_mapping(reader, &retained)) _exit(2);
  }
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}

static void lock_what_will_be(void *context) {
  ringcast_writer *writer = make_writer(512 * MIB);
  (void)context;
  if (mlockall(MCL_FUTURE) != 0) _exit(2);
  ringcast_reader *reader = attach_retainer(writer);
  child_must(reader->retainer != NULL);
  child_must(have("VmLck:") < 64 * MIB);
  child_must(info_of(writer).spill_used == 0);
  child_must(send(writer, 1, MIB) == 0);
  struct retained retained = keep(reader, 1, MIB);
  drop(&retained);
}

LOOP_TEST(a_process_that_locks_its_memory_sees_the_right_bytes_and_does_not_get_all_of_them, 0, 2) {
  int status;
  pid_t pid = start_child(_i == 0 ? lock_what_is_there : lock_what_will_be, NULL);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
    tell_skipped(__func__, "no right to lock so much (ulimit -l)");
  else ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status 0x%x", status);
}

int main(void) {
  if (!can_retain("test_retain")) return EXIT_SUCCESS;
  unsetenv("RINGCAST_SPILL_BYTES");
  return run_tests("retain", remember, nothing_is_left);
}
