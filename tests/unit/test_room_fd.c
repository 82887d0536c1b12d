/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor that says when to ask for room again. What ends a wait by it is in
 * test_channel_deaths. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "tests/support/meanwhile.h"

static int room_fd(ringcast_writer *writer) {
  int fd = ringcast_writer_room_fd(writer);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(ringcast_writer_room_fd(writer), fd);
  return fd;
}

static int try(ringcast_writer *writer) { return ringcast_writer_send(writer, "frame", 5, 0, 0); }

/* As an event loop does: asks again whenever it is told to, and has no clock of its own. */
static int send_by_fd(ringcast_writer *writer, int fd) {
  int result;
  while ((result = try(writer)) == -EAGAIN) ck_assert(is_readable(fd, -1));
  return result;
}

static void read_one(ringcast_reader *reader) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame), 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

static void read_all(ringcast_reader *reader) {
  struct ringcast_frame frame;
  while (ringcast_reader_next(reader, 0, &frame) == 0) ringcast_reader_release(reader, &frame);
}

LOOP_TEST(it_tells_when_to_try_again, BY_URING, WAYS) {
  choose(_i);
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER reader = attach(writer);
  int fd = room_fd(writer);
  ck_assert(is_readable(fd, 0));
  for (int i = 0; i < 100; i++) {
    ck_assert_int_eq(fill(writer, 0), -EAGAIN);
    /* It may have taken so long from there to here that it is time to look again. */
    while (is_readable(fd, 0)) ck_assert_int_eq(try(writer), -EAGAIN);
    read_all(reader);
    ck_assert(is_readable(fd, -1));
    ck_assert_int_eq(try(writer), 0);
  }
}

/* To look for readers in between takes nothing from it. */
LOOP_TEST(who_makes_room_wakes_it_whatever_else_was_waited_for, BY_URING, WAYS) {
  choose(_i);
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER reader = attach(writer);
  struct ringcast_stats before = {.size = sizeof before}, after = {.size = sizeof after};
  int fd = room_fd(writer);
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, 0), 1);
  ck_assert_int_eq(ringcast_reader_stats(reader, &before), 0);
  read_all(reader);
  ck_assert_int_eq(ringcast_reader_stats(reader, &after), 0);
  ck_assert_uint_eq(after.wakes,
                    before.wakes + 1); /* not left to the next time that it looks by itself */
  ck_assert_int_eq(send_by_fd(writer, fd), 0);
}

/* How many frames are read of a full ring until the writer is told of room; 0: it is not. */
static int reads_until_told(ringcast_writer *writer, ringcast_reader *reader, size_t asked_too) {
  struct ringcast_stats before = {.size = sizeof before}, after = {.size = sizeof after};
  struct ringcast_frame frame;
  struct ringcast_span span;
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  if (asked_too != 0)
    ck_assert_int_eq(ringcast_writer_reserve(writer, asked_too, 0, &span), -EAGAIN);
  ck_assert_int_eq(ringcast_reader_stats(reader, &before), 0);
  for (int count = 1; ringcast_reader_next(reader, 0, &frame) == 0; count++) {
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
    ck_assert_int_eq(ringcast_reader_stats(reader, &after), 0);
    if (after.wakes != before.wakes) return count;
  }
  return 0;
}

LOOP_TEST(a_call_that_wants_more_does_not_make_who_wants_less_wait_longer, BY_URING, WAYS) {
  choose(_i);
  for (size_t asked_too = 0; asked_too <= 1024; asked_too += 1024) {
    ringcast_writer *writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
    ringcast_reader *reader = attach(writer);
    room_fd(writer);
    int count = reads_until_told(writer, reader, 0);
    ck_assert_int_gt(count, 0);
    read_all(reader);
    ck_assert_int_eq(reads_until_told(writer, reader, asked_too), count);
    ringcast_reader_close(reader);
    ringcast_writer_close(writer);
  }
}

static int frames;

static void *read_frames(void *context) {
  for (int i = 0; i < frames; i++) read_one(context);
  return NULL;
}

/* Most of them find the ring full, at whatever point the reader is. */
LOOP_TEST(a_writer_that_waits_by_it_gets_all_its_frames_sent, BY_URING, WAYS) {
  frames = share_of(20000);
  choose(_i);
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER reader = attach(writer);
  int fd = room_fd(writer);
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, read_frames, reader), 0);
  for (int i = 0; i < frames; i++) ck_assert_int_eq(send_by_fd(writer, fd), 0);
  pthread_join(thread, NULL);
}

LOOP_TEST(nobody_is_woken_for_who_does_not_wait, BY_URING, WAYS) {
  choose(_i);
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER reader = attach(writer);
  room_fd(writer);
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  for (int i = 0; i < 100; i++) {
    read_all(reader);
    ck_assert_int_eq(try(writer), 0);
  }
  struct ringcast_stats stats = stats_of_reader(reader);
  ck_assert_uint_le(stats.wakes, 1); /* of the one that found no room */
}

TEST(one_that_can_not_be_had_is_told) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER reader = attach(writer);
  rlim_t most = limit_descriptors(0);
  int result = ringcast_writer_room_fd(writer);
  limit_descriptors(most);
  ck_assert_int_eq(result, -EMFILE);
  ck_says("can't make a descriptor to wait on");
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  ck_assert(is_readable(room_fd(writer), 0));
}

RUN_TESTS("room_fd", remember, nothing_is_left)
