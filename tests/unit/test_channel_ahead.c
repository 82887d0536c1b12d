/* SPDX-License-Identifier: Apache-2.0 */
/* The bound in frames (options.ahead): how far readers may be behind, what counts, and how the wait
 * ends. */
#include <errno.h>
#include <pthread.h>

#include "tests/support/channel.h"

enum { AHEAD = 3 };

static int offer(ringcast_writer *writer) { return ringcast_writer_send(writer, "frame", 5, 0, 0); }

/* Sends until the writer would have to wait, and returns the number of frames. */
static int offer_all(ringcast_writer *writer) {
  for (int sent = 0;; sent++)
    if (offer(writer) != 0) return sent;
}

TEST(the_slowest_reader_bounds_the_writer_and_a_tap_does_not) {
  SCOPED_WRITER writer = writer_of(.capacity = 1 << 16, .readers = 4, .ahead = AHEAD);
  ck_assert_int_eq(offer(writer), 0); /* without readers there is no bound */
  SCOPED_READER fast = attach(writer);
  SCOPED_READER slow = attach(writer);
  ringcast_tap *tap;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  for (int round = 0; round < 50; round++) {
    ck_assert_int_eq(offer_all(writer), round == 0 ? AHEAD : round % AHEAD + 1);
    ck_assert_int_eq(offer(writer), -EAGAIN);
    ck_says("options.ahead");
    for (struct ringcast_frame frame; ringcast_reader_next(fast, 0, &frame) == 0;)
      ck_assert_int_eq(ringcast_reader_release(fast, &frame), 0);
    ck_assert_int_eq(offer(writer), -EAGAIN);
    for (int i = 0; i <= (round + 1) % AHEAD; i++) take_one(slow);
  }
  ringcast_reader_close(slow);
  slow = NULL;
  ck_assert_int_eq(offer(writer), 0); /* a reader that has left is no bound */
  ringcast_tap_close(tap);
}

/* Small frames fill a ring of 4 KiB later than by bytes, large frames earlier. */
TEST(the_bytes_of_the_ring_bound_as_before) {
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .readers = 1, .ahead = 1000);
  SCOPED_READER reader = attach(writer);
  int bytes_alone = offer_all(writer);
  ck_says("ring is full");
  ck_assert_int_lt(bytes_alone, 1000);
  take_one(reader);
  ck_assert_int_eq(offer(writer), 0);
}

TEST(the_last_frame_of_a_credit_can_grow_and_be_aborted) {
  SCOPED_WRITER writer = writer_of(.capacity = 1 << 16, .readers = 1, .ahead = 1);
  SCOPED_READER reader = attach(writer);
  struct ringcast_span span;
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(ringcast_writer_reserve(writer, 10, 0, &span), 0);
    ck_assert_int_eq(ringcast_writer_abort(writer), 0);
    ck_assert_int_eq(ringcast_writer_reserve(writer, 10, 0, &span), 0);
    ck_assert_int_eq(ringcast_writer_grow(writer, 1 << 20, 0, &span), 0); /* to spill memory */
    ck_assert_int_eq(ringcast_writer_commit(writer, 1 << 20, 0), 0);
    ck_assert_int_eq(offer(writer), -EAGAIN);
    take_one(reader);
  }
}

TEST(a_frame_that_was_taken_and_is_held_does_not_count) {
  enum { LEASES = 8 };
  SCOPED_WRITER writer = writer_of(.capacity = 1 << 16, .readers = 1, .ahead = 2);
  SCOPED_READER reader = reader_of(writer, .leases = LEASES);
  struct ringcast_frame frame;
  for (int i = 0; i < LEASES; i++) {
    /* A call of next tells that all earlier frames were taken. */
    ck_assert_int_eq(offer_all(writer), i == 0 ? 2 : i == 1 ? 0 : 1);
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  }
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EBUSY);
}

static void *take_later(void *context) {
  ringcast_reader *reader = context;
  struct ringcast_frame frame;
  struct rc_eventcount *event = &reader->ring.view.control->not_full;
  while (!rc_eventcount_is_asleep(event)) sched_yield();
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame),
                   0); /* the second of two leases: the first is held */
  while (ringcast_reader_next(reader, 0, &frame) == -EAGAIN) sched_yield();
  return NULL;
}

TEST(a_sleeping_writer_is_woken_by_a_reader_that_holds_frames) {
  SCOPED_WRITER writer = writer_of(.capacity = 1 << 16, .readers = 1, .ahead = 1, .spin_ns = -1);
  SCOPED_READER reader = reader_of(writer, .leases = 4);
  struct ringcast_frame frame;
  pthread_t thread;
  ck_assert_int_eq(offer(writer), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_int_eq(offer(writer), -EAGAIN); /* the reader has not asked for the next frame */
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
  ck_assert_int_eq(offer(writer), 0);
  ck_assert_int_eq(pthread_create(&thread, NULL, take_later, reader), 0);
  ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

/* A reader can store what it likes. */
LOOP_TEST(a_wrong_place_changes_at_most_the_count, 0, 4) {
  static const uint64_t wrong[] = {64, 128, UINT64_MAX, (uint64_t)1 << 40};
  SCOPED_WRITER writer = writer_of(.capacity = 1 << 16, .readers = 1, .ahead = AHEAD);
  SCOPED_READER reader = attach(writer);
  rc_store_relaxed(&reader->ring.own->taken, wrong[_i]);
  ck_assert_int_eq(offer_all(writer), wrong[_i] == 128 ? AHEAD + 1 : AHEAD);
}

RUN_TESTS("channel, ahead", remember, nothing_is_left)
