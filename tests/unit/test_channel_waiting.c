/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting by the public API, within one process: how it ends, what is counted, the descriptor. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>

#include "shm/os.h"
#include "tests/support/channel.h"
#include "tests/support/switches.h"

TEST(waiting_for_readers_in_vain_says_how_many_came) {
  SCOPED_WRITER writer = make_writer(4096, 4);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 2, 1000000), -ETIMEDOUT);
  ck_says("1 of 2");
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 2, 0), -EAGAIN);
}

TEST(waiting_for_readers_does_not_count_as_waiting_for_room) {
  SCOPED_WRITER writer = make_writer(4096, 4);
  struct ringcast_stats stats = {.size = sizeof stats};
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, 1000000), -ETIMEDOUT);
  ck_assert_int_eq(ringcast_writer_stats(writer, &stats), 0);
  ck_assert_uint_eq(stats.waits, 0);
  ck_assert_uint_eq(stats.waited_ns, 0);
}

/* By io_uring where it is to be had, and by a thread. */
LOOP_TEST(a_descriptor_tells_when_to_look, 0, 2) {
  if (_i == 1) disable_too("io_uring");
  ringcast_writer *writer = make_writer(4096, 2);
  SCOPED_READER reader = attach(writer);
  struct ringcast_frame frame;
  int fd = ringcast_reader_fd(reader), late = 0;
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(ringcast_reader_fd(reader), fd);
  ck_assert(is_readable(fd, 0));
  for (int i = 0; i < 200; i++) {
    /* After a look, the descriptor is quiet, unless the process stands still until it is time for
     * the next look. */
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
    for (; is_readable(fd, 0); late++)
      ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
    for (int k = 0; k <= i % 3; k++)
      ck_assert_int_eq(ringcast_writer_send(writer, &i, sizeof i, 0, 0), 0);
    ck_assert(is_readable(fd, -1));
    for (int k = 0; k <= i % 3; k++) {
      ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
      ck_assert_mem_eq(frame.data, &i, sizeof i);
      ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
    }
  }
  ck_assert_int_lt(late, 100);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
  ringcast_writer_close(writer);
  ck_assert(is_readable(fd, -1));
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EPIPE);
}

/* The reader's release reads "no sleeper" before the writer announces itself, and its cursor comes
 * to memory while the writer sleeps: the fast path has no fence. */
static ringcast_reader *releasing;
static ringcast_writer *waiting;
static struct ringcast_frame to_release;
static int naps, naps_before;
static int64_t last_nap;

/* Before the release, a slice passes, and what the writer wants changes; a late wake-up of another
 * ends the next. */
static int release_unseen(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)word, (void)value;
  last_nap = timeout_ns;
  int nap = naps++;
  if (nap == naps_before) ck_assert(rc_ring_release_only(&releasing->ring, to_release.position));
  else if (nap == 0) waiting->wanted_shown = 0;
  else return 0;
  return -ETIMEDOUT;
}

static ringcast_writer *make_full_writer(void) {
  static const char bytes[1000];
  ringcast_writer *writer = writer_of(.capacity = 4096, .spin_ns = -1);
  releasing = attach(writer);
  while (ringcast_writer_send(writer, bytes, sizeof bytes, 0, 0) == 0) {}
  ck_assert_int_eq(ringcast_reader_next(releasing, 0, &to_release), 0);
  return writer;
}

static void close_both(ringcast_writer *writer) {
  ringcast_reader_close(releasing);
  ringcast_writer_close(writer);
}

LOOP_TEST(a_release_that_the_writer_just_missed_costs_one_short_sleep, 0, 3) {
  struct rc_os real = rc_os;
  struct ringcast_span span;
  ringcast_writer *writer = waiting = make_full_writer();
  naps_before = _i;
  rc_os.futex_wait = release_unseen;
  ck_assert_int_eq(ringcast_writer_reserve(writer, 900, RINGCAST_FOREVER, &span), 0);
  rc_os = real;
  ck_assert_int_eq(naps, naps_before + 1);
  ck_assert_int_le(last_nap, RC_SETTLE_NS);
  close_both(writer);
}

/* Nanoseconds until the only timer of this process expires. */
static int64_t timer_left(void) {
  char path[64], line[256];
  long long seconds = -1, ns = 0;
  for (int fd = 0; fd < 64 && seconds < 0; fd++) {
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
      sscanf(line, "it_value: (%lld, %lld)", &seconds, &ns);
    if (file) fclose(file);
  }
  ck_assert_int_ge(seconds, 0);
  return seconds * 1000000000 + ns;
}

/* The timer makes the descriptor readable even if no other process does. */
TEST(a_release_that_the_descriptor_just_missed_costs_one_short_sleep) {
  ringcast_writer *writer = make_full_writer();
  struct ringcast_span span;
  int fd = ringcast_writer_room_fd(writer);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 900, 0, &span), -EAGAIN);
  ck_assert_int_le(timer_left(), RC_SETTLE_NS);
  ck_assert(rc_ring_release_only(&releasing->ring, to_release.position));
  ck_assert(is_readable(fd, -1));
  ck_assert_int_eq(ringcast_writer_reserve(writer, 900, 0, &span), 0);
  close_both(writer);
}

TEST(what_was_done_is_counted) {
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .spin_ns = -1); /* so it sleeps */
  SCOPED_READER reader = attach(writer);
  struct ringcast_frame frame;
  struct ringcast_span span;
  struct ringcast_stats stats = {.size = sizeof stats};
  struct ringcast_peer peer = {.size = sizeof peer};
  uint64_t sent = 0, waits = 0;
  ck_assert_int_eq(ringcast_reader_next(reader, 2000000, &frame), -ETIMEDOUT);
  while (ringcast_writer_send(writer, "12345", 5, 0, 0) == 0) sent++;
  ck_assert_int_eq(ringcast_writer_reserve(writer, 5, 2000000, &span), -ETIMEDOUT);
  ck_assert_int_eq(ringcast_writer_stats(writer, &stats), 0);
  ck_assert_uint_eq(stats.frames, sent);
  ck_assert_uint_eq(stats.bytes, sent * 5);
  ck_assert_uint_eq(stats.waits, 1);
  ck_assert_uint_ge(stats.waited_ns, 2000000);
  ck_assert_uint_ge(stats.sleeps, 1);
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_uint_eq(peer.stalls, 1);
  take_one(reader);
  ck_assert_int_eq(ringcast_reader_stats(reader, &stats), 0);
  ck_assert_uint_eq(stats.frames, 1);
  ck_assert_uint_eq(stats.bytes, 5);
  ck_assert_uint_eq(stats.waits, 1);
  for (int i = 0; i < 16; i++) waits += stats.histogram[i];
  ck_assert_uint_eq(waits, 1);
  for (int i = 0; i < 11; i++) ck_assert_uint_eq(stats.histogram[i], 0); /* it took 2 ms at least */
}

TEST(a_wait_for_room_in_slices_is_counted_once) {
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .spin_ns = -1); /* so it sleeps */
  SCOPED_READER reader = attach(writer);
  struct ringcast_span span;
  struct ringcast_stats stats = {.size = sizeof stats};
  struct ringcast_peer peer = {.size = sizeof peer};
  while (ringcast_writer_send(writer, "12345", 5, 0, 0) == 0)
    ;
  for (int i = 0; i < 5; i++)
    ck_assert_int_eq(ringcast_writer_reserve(writer, 5, 1000000, &span), -ETIMEDOUT);
  for (int round = 1; round <= 2; round++) {
    uint32_t waits = 0;
    ck_assert_int_eq(ringcast_writer_stats(writer, &stats), 0);
    ck_assert_uint_eq(stats.waits, (uint64_t)round);
    for (int i = 0; i < 16; i++) waits += stats.histogram[i];
    ck_assert_uint_eq(waits, (uint64_t)round);
    if (round == 1)
      for (int i = 0; i <= 12; i++)
        ck_assert_uint_eq(stats.histogram[i], 0); /* it took 5 ms at least */
    ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
    ck_assert_uint_eq(peer.stalls, (uint64_t)round);
    take_one(reader);
    while (ringcast_writer_send(writer, "12345", 5, 0, 0) == 0)
      ;
    ck_assert_int_eq(ringcast_writer_reserve(writer, 5, 1000000, &span), -ETIMEDOUT);
  }
}

TEST(a_cancelled_handle_does_all_that_takes_no_wait) {
  SCOPED_WRITER writer = make_writer(4096, 2);
  SCOPED_READER reader = attach(writer);
  ringcast_writer_cancel(writer);
  ringcast_reader_cancel(reader);
  ck_assert_int_eq(ringcast_writer_send(writer, "x", 1, 0, RINGCAST_FOREVER), 0);
  take_one(reader);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 2, RINGCAST_FOREVER), -ECANCELED);
}

TEST(a_timeout_that_is_negative_by_mistake_is_refused) {
  ringcast_writer *writer = make_writer(4096, 2), *other = NULL;
  ringcast_reader *reader = attach(writer), *never = NULL;
  struct ringcast_frame frame;
  struct ringcast_span span;
  ck_assert_int_eq(ringcast_reader_next(reader, -2, &frame), -EINVAL);
  ck_says("negative");
  ck_assert_int_eq(ringcast_writer_reserve(writer, 8, INT64_MIN, &span), -EINVAL);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, -3), -EINVAL);
  struct ringcast_writer_options writer_options = {.size = sizeof writer_options, .spin_ns = -2};
  struct ringcast_reader_options reader_options = {.size = sizeof reader_options, .spin_ns = -2};
  ck_assert_int_eq(ringcast_writer_create_ex(&writer_options, &other), -EINVAL);
  ck_assert_int_eq(
      ringcast_reader_attach_ex(ringcast_writer_handle(writer), &reader_options, &never), -EINVAL);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}

static void *wait_for_ever(void *context) {
  struct ringcast_frame frame;
  return (void *)(intptr_t)ringcast_reader_next(context, RINGCAST_FOREVER, &frame);
}

TEST(a_second_thread_in_a_wait_is_told) {
  SCOPED_WRITER writer = make_writer(4096, 2);
  SCOPED_READER reader = attach(writer);
  struct ringcast_frame frame;
  pthread_t thread;
  void *result;
  ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_ever, reader), 0);
  while (rc_load_acquire(&reader->waiter.inside) == 0) sched_yield();
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EDEADLK);
  ck_says("another thread");
  ringcast_reader_cancel(reader);
  ck_assert_int_eq(pthread_join(thread, &result), 0);
  ck_assert_int_eq((intptr_t)result, -ECANCELED);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame),
                   -ECANCELED); /* and the way is free again */
}

/* ---- Who leaves a wait in the middle --------------------------------------------------------- */

static ringcast_reader *asleep;
static sigjmp_buf way_out;
static int told;

/* In place of the sleep: a signal handler that makes a forbidden call, and then jumps. */
static int handle_and_jump(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)word, (void)value, (void)timeout_ns;
  struct ringcast_frame frame;
  told = ringcast_reader_next(asleep, 0, &frame);
  siglongjmp(way_out, 1);
}

static int cancel_the_thread(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)word, (void)value, (void)timeout_ns;
  pthread_cancel(pthread_self());
  pthread_testcancel();
  return 0;
}

static void must_only_close(ringcast_writer *writer, ringcast_reader *reader) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EDEADLK);
  ck_says("close it");
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 0, 0), 0); /* its slot is free */
  ringcast_writer_close(writer);
}

TEST(a_wait_that_is_left_by_longjmp_leaves_a_handle_to_close) {
  ringcast_writer *writer = make_writer(4096, 1);
  struct ringcast_frame frame;
  asleep = attach(writer);
  rc_os.futex_wait = handle_and_jump;
  if (sigsetjmp(way_out, 1) == 0) ringcast_reader_next(asleep, RINGCAST_FOREVER, &frame);
  ck_assert_int_eq(told, -EDEADLK);
  must_only_close(writer, asleep);
}

TEST(a_wait_whose_thread_is_cancelled_leaves_a_handle_to_close) {
#if defined(__SANITIZE_ADDRESS__)
  tell_skipped(__func__, "AddressSanitizer does not know that a cancelled thread leaves its stack");
  return;
#endif
  ringcast_writer *writer = make_writer(4096, 1);
  ringcast_reader *reader = attach(writer);
  pthread_t thread;
  void *result;
  rc_os.futex_wait = cancel_the_thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_ever, reader), 0);
  ck_assert_int_eq(pthread_join(thread, &result), 0);
  ck_assert_ptr_eq(result, PTHREAD_CANCELED);
  must_only_close(writer, reader);
}

RUN_TESTS("channel, waiting", remember, nothing_is_left)
