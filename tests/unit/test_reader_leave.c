/* SPDX-License-Identifier: Apache-2.0 */
/* A reader that leaves and goes on looking at where frames were. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>

#include "shm/os.h"
#include "tests/support/children.h"
#include "tests/support/spill.h"

TEST(the_writer_goes_on_at_once_and_the_memory_stays) {
  SCOPED_WRITER writer = make_writer(64 * MIB);
  SCOPED_READER reader = attach(writer, 2);
  struct ringcast_peer peer = {.size = sizeof peer};
  ck_assert_int_eq(send(writer, 1, 20000), 0);
  ck_assert_int_eq(send(writer, 2, 3 * MIB), 0);
  struct ringcast_frame small = expect(reader, 1, 20000), large = expect(reader, 2, 3 * MIB);
  while (send(writer, 3, 20000) == 0) {}
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ringcast_reader_leave(reader);
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 0);
  ck_assert(pattern_matches(small.data, 20000, 1));
  ck_assert(pattern_matches(large.data, 3 * MIB, 2));
  for (uint64_t i = 0; i < 20; i++) ck_assert_int_eq(send(writer, 4, 20000), 0);
  ck_assert(!pattern_matches(small.data, 20000, 1)); /* overwritten, and there to be looked at */
  ck_assert_int_gt(ring_mappings(), mappings_before);
}

TEST(who_has_left_can_only_be_closed) {
  SCOPED_WRITER writer = make_writer(0);
  int before = open_descriptors();
  ringcast_reader *reader = attach(writer, 1);
  struct ringcast_stats stats = {.size = sizeof stats};
  struct ringcast_info info = {.size = sizeof info};
  uint64_t lag;
  ck_assert_int_eq(send(writer, 1, 100), 0);
  struct ringcast_frame frame = expect(reader, 1, 100), other;
  ck_assert_int_eq(send(writer, 2, 100), 0);
  ck_assert_int_ge(ringcast_reader_fd(reader), 0);
  ringcast_reader_leave(reader);
  ringcast_reader_leave(reader);
  ck_assert_int_eq(open_descriptors(), before);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &other), -EINVAL);
  ck_says("has left its ring");
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &other), -EINVAL);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), -EINVAL);
  ck_assert_int_eq(ringcast_reader_check(reader), -EINVAL);
  ck_assert_int_eq(ringcast_reader_fd(reader), -EINVAL);
  ck_assert_int_eq(ringcast_reader_lag(reader, &lag), -EINVAL);
  ck_assert_int_eq(ringcast_reader_stats(reader, &stats), -EINVAL);
  ck_assert_int_eq(ringcast_reader_info(reader, &info), -EINVAL);
  ringcast_reader_cancel(reader);
  /* Its slot is another's by now, and closing leaves that alone. */
  SCOPED_READER next = attach(writer, 1);
  ringcast_reader_close(reader);
  ck_assert_int_eq(send(writer, 3, 100), 0);
  read_one(next, 3, 100);
}

/* What an idle writer does to spill memory, done to all of it. */
TEST(spill_memory_that_was_given_back_reads_as_zeros) {
  ringcast_writer *writer = make_writer(64 * MIB);
  SCOPED_READER reader = attach(writer, 1);
  ck_assert_int_eq(send(writer, 1, 5 * MIB), 0);
  struct ringcast_frame frame = expect(reader, 1, 5 * MIB);
  ringcast_reader_leave(reader);
  ck_assert_int_eq(rc_os.punch(writer->segment.spill.fd, 0, writer->segment.spill.bytes), 0);
  ck_assert_uint_eq(others_than(0, frame.data, 5 * MIB), 0);
  ringcast_writer_close(writer);
  ck_assert_uint_eq(others_than(0, frame.data, 5 * MIB), 0); /* the mapping holds the file */
}

static void *close_it(void *reader) {
  ringcast_reader_close(reader);
  return NULL;
}

TEST(another_thread_may_close_it) {
  SCOPED_WRITER writer = make_writer(0);
  ringcast_reader *reader = attach(writer, 1);
  pthread_t thread;
  ringcast_reader_leave(reader);
  ck_assert_int_eq(pthread_create(&thread, NULL, close_it, reader), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

struct held {
  ringcast_reader *reader;
  struct ringcast_frame frame;
};

static void leave_and_look(void *context) {
  const struct held *held = context;
  ringcast_reader_leave(held->reader);
  child_must(pattern_matches(held->frame.data, 100, 1));
  ringcast_reader_close(held->reader);
}

TEST(in_a_forked_child_the_slot_stays_the_parents) {
  SCOPED_WRITER writer = make_writer(0);
  SCOPED_READER reader = attach(writer, 1);
  ck_assert_int_eq(send(writer, 1, 100), 0);
  struct held held = {reader, expect(reader, 1, 100)};
  child_must_succeed(start_child(leave_and_look, &held));
  ck_assert_int_eq(ringcast_reader_release(reader, &held.frame), 0);
  ck_assert_int_eq(send(writer, 2, 100), 0);
  read_one(reader, 2, 100);
}

RUN_TESTS("reader_leave", remember, nothing_is_left)
