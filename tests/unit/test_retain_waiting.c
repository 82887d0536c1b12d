/* SPDX-License-Identifier: Apache-2.0 */
/* Who keeps a frame for long holds nobody up: the ring goes on, a writer that waits gets the
 * memory, and a reader learns from it. A loss is a hang, which the time limit ends: no slice of a
 * sleep does. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "tests/support/children.h"
#include "tests/support/retain.h"
#include "tests/support/sleep.h"
#include "tests/support/switches.h"
#include "tests/support/uring.h"

static struct rc_os real;
static int uring_result; /* found out before any test, see tests/support/poller.h */

/* ---- The ring goes on ------------------------------------------------------------------------ */

static int touches;

static int advise_nothing(void *address, size_t bytes, int advice) {
  touches += advice == MADV_POPULATE_WRITE;
  return advice == MADV_POPULATE_WRITE ? -EINVAL : real.advise(address, bytes, advice);
}

enum { BY_SMALL_FRAMES, BY_LARGE_FRAMES, BY_HAND, LAPS };

/* BY_HAND: without MADV_POPULATE_WRITE (Linux 5.14), each page is made private by a write. */
LOOP_TEST(what_is_kept_stays_for_as_long_as_one_likes, 0, LAPS) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  uint64_t n = 0;
  struct retained retained = send_and_keep(writer, reader, n++, MIB + 9);
  for (size_t at = 0; at < MIB; at += 3 * 4096)
    retained.data[at] ^= 1; /* some pages are private before */
  real = rc_os;
  if (_i == BY_HAND) {
    ck_assert_int_eq(send(writer, n, MIB),
                     0); /* the memory is there, so the writer needs no advice */
    read_one(reader, n++, MIB);
    rc_os.advise = advise_nothing;
  }
  size_t bytes = _i == BY_SMALL_FRAMES ? 1000 : MIB;
  uint64_t sent = 0, most = _i == BY_SMALL_FRAMES ? 4 * 65536 : 20 * MIB;
  for (bool held = true; sent < most; sent += bytes, n++) {
    ck_assert_int_eq(send(writer, n, bytes), 0);
    read_one(reader, n, bytes);
    if (held && reader->retained == 0) { /* given back, a little after a quarter */
      held = false;
      ck_assert_uint_ge(sent, _i == BY_SMALL_FRAMES ? 65536 / 4 - 4096 : 2 * MIB - MIB);
      ck_assert_uint_le(sent, _i == BY_SMALL_FRAMES ? 65536 / 4 + 4096 : 2 * MIB + MIB);
    }
  }
  ck_assert_uint_eq(reader->retained, 0);
  ck_assert_int_eq(touches > 0, _i == BY_HAND);
  for (size_t at = 0; at < MIB; at += 3 * 4096) retained.data[at] ^= 1;
  ck_assert(is_whole(&retained));
  write_to(&retained);
  drop(&retained);
  rc_os = real;
}

TEST(what_is_kept_does_not_count_for_the_bound_in_frames) {
  SCOPED_WRITER writer =
      writer_of(.capacity = 65536, .readers = 1, .ahead = 2, .spill_bytes = 64 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  struct retained retained = send_and_keep(writer, reader, 0, MIB);
  struct ringcast_frame frame;
  for (uint64_t n = 1; n < 20; n += 2) {
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), -EAGAIN);
    for (uint64_t i = n; i < n + 2; i++) ck_assert_int_eq(send(writer, i, 100), 0);
    ck_assert_int_eq(send(writer, 99, 100), -EAGAIN);
    for (uint64_t i = n; i < n + 2; i++) read_one(reader, i, 100);
  }
  ck_assert_uint_eq(reader->retained, 1); /* and is still shared */
  drop(&retained);
}

TEST(where_something_has_become_ones_own_the_next_frame_is_copied) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  uint64_t n = 0;
  int refused = 0, later = 0;
  struct retained own = send_and_keep(writer, reader, n++, MIB);
  want_all(writer, reader);
  for (int i = 0; i < 40; i++, n++) {
    ck_assert_int_eq(send(writer, n, MIB), 0);
    struct ringcast_frame frame = expect(reader, n, MIB);
    ringcast_retained *retained;
    void *data;
    bool learns = ringcast_reader_retains(reader) == 0;
    bool there = (const uint8_t *)frame.data < (const uint8_t *)own.place + MIB &&
                 (const uint8_t *)own.place < (const uint8_t *)frame.data + MIB;
    int result = ringcast_reader_retain(reader, &frame, &retained, &data);
    ck_assert_int_eq(result, learns || (there && own.handle) ? -ENOTSUP : 0);
    refused += !learns && there && own.handle;
    later += result == 0 && there;
    if (result == 0) ck_assert(pattern_matches(data, MIB, n));
    if (result == 0) ringcast_retained_release(retained);
    else ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
    find_nothing(reader);
    if (own.handle) ck_assert(is_whole(&own));
    if (refused == 5 && own.handle) drop(&own);
  }
  ck_assert_int_ge(refused, 5);
  ck_assert_int_gt(later, 0);
}

static void keep_for_long(ringcast_writer *writer, ringcast_reader *reader) {
  ck_assert_int_eq(ringcast_reader_retains(reader), 1);
  struct retained retained = send_and_keep(writer, reader, 2, MIB);
  want_all(writer, reader);
  ck_assert_int_eq(ringcast_reader_retains(reader), 0);
  drop(&retained);
}

TEST(a_reader_that_kept_for_long_copies_for_a_while_and_for_longer_each_time) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  for (int round = 0; round < 2; round++) {
    for (int without = 4; without <= 32; without *= 2) {
      keep_for_long(writer, reader);
      ck_assert_int_eq(let_it_keep(writer, reader), without);
    }
    for (uint64_t i = 0; i < 16; i++) { /* all is well again */
      struct retained retained = send_and_keep(writer, reader, i, MIB);
      drop(&retained);
      find_nothing(reader);
    }
  }
}

/* Called while a frame becomes the reader's own. */
static ringcast_retained *dropped_meanwhile;

static int advise_and_drop(void *address, size_t bytes, int advice) {
  if (advice == MADV_POPULATE_WRITE) {
    ringcast_retained_release(dropped_meanwhile);
    dropped_meanwhile = NULL;
  }
  return real.advise(address, bytes, advice);
}

/* What is dropped is that frame, or one that is the reader's own already. */
LOOP_TEST(who_drops_does_not_wait_until_another_frame_is_copied, 0, 2) {
  SCOPED_WRITER writer = make_writer(4 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  struct retained retained[2];
  retained[0] = send_and_keep(writer, reader, 0, MIB);
  want_all(writer, reader);
  let_it_keep(writer, reader);
  for (uint64_t i = 0; i < 2; i++) ck_assert_int_eq(send(writer, i, MIB), 0);
  /* Lies where the first was kept: so the second does not. */
  struct ringcast_frame frame = expect(reader, 0, MIB);
  retained[1] = keep(reader, 1, MIB);
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  dropped_meanwhile = retained[_i].handle;
  real = rc_os;
  rc_os.advise = advise_and_drop;
  want_all(writer, reader);
  rc_os = real;
  ck_assert(!dropped_meanwhile);
  drop(&retained[!_i]);
  for (uint64_t i = 2; i < 9; i++) { /* there is nothing left of either */
    let_it_keep(writer, reader);
    struct retained next = send_and_keep(writer, reader, i, MIB);
    drop(&next);
    find_nothing(reader);
  }
}

/* ---- The writer waits ------------------------------------------------------------------------ */

/* The reader's descriptor: by io_uring, or by the helper thread. */
static bool choose(int way, const char *test) {
  sleep_without_slices();
  if (way == 1) disable_too("io_uring");
  if (way == 0 && (uring_result != 0 || !has_pidfds()))
    tell_skipped(test, "no io_uring or pidfds here");
  return way == 1 || (uring_result == 0 && has_pidfds());
}

struct asleep {
  ringcast_writer *writer;
  ringcast_reader *reader;
  struct retained retained[2];
  struct rc_eventcount *data;
  size_t bytes; /* of the frame that it waits for */
};

/* What comes after 0 and 1, which are kept. */
static void wait_for_the_next(struct asleep *asleep) {
  struct ringcast_frame frame;
  child_must(ringcast_reader_next(asleep->reader, RINGCAST_FOREVER, &frame) == 0);
  child_must(frame.bytes == asleep->bytes && pattern_matches(frame.data, frame.bytes, 5));
  for (int i = 0; i < 2; i++) child_must(is_whole(&asleep->retained[i]));
  child_must(ringcast_reader_release(asleep->reader, &frame) == 0);
  for (int i = 0; i < 2; i++) ringcast_retained_release(asleep->retained[i].handle);
}

static void *read_in_thread(void *asleep) {
  wait_for_the_next(asleep);
  return NULL;
}

static void read_in_process(void *context) {
  struct asleep *asleep = context;
  asleep->reader = attach_retainer(asleep->writer);
  for (uint64_t i = 0; i < 2; i++) {
    struct ringcast_frame frame;
    ringcast_retained *retained;
    void *data;
    child_must(ringcast_reader_next(asleep->reader, RINGCAST_FOREVER, &frame) == 0);
    child_must(ringcast_reader_retain(asleep->reader, &frame, &retained, &data) == 0);
    asleep->retained[i] =
        (struct retained){.handle = retained, .data = data, .number = i, .bytes = MIB};
  }
  wait_for_the_next(asleep);
  ringcast_reader_close(asleep->reader);
}

static void send_all_of_it(struct asleep *asleep) {
  struct ringcast_span span;
  while (!rc_eventcount_is_asleep(asleep->data)) sched_yield();
  ck_assert_int_eq(ringcast_writer_reserve(asleep->writer, asleep->bytes, RINGCAST_FOREVER, &span),
                   0);
  pattern_fill(span.data, asleep->bytes, 5);
  ck_assert_int_eq(ringcast_writer_commit(asleep->writer, asleep->bytes, 5), 0);
}

static struct asleep make_asleep(void) {
  struct asleep asleep = {.writer = make_writer(8 * MIB)};
  asleep.data = &asleep.writer->ring.view.control->not_empty;
  asleep.bytes = (size_t)info_of(asleep.writer).max_frame;
  return asleep;
}

TEST(a_writer_that_waits_gets_what_a_sleeping_thread_has_kept) {
  sleep_without_slices();
  struct asleep asleep = make_asleep();
  pthread_t thread;
  asleep.reader = attach_retainer(asleep.writer);
  for (uint64_t i = 0; i < 2; i++) {
    asleep.retained[i] = send_and_keep(asleep.writer, asleep.reader, i, MIB);
  }
  ck_assert_int_eq(pthread_create(&thread, NULL, read_in_thread, &asleep), 0);
  send_all_of_it(&asleep);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ringcast_reader_close(asleep.reader);
  ringcast_writer_close(asleep.writer);
}

TEST(a_writer_that_waits_gets_what_a_sleeping_process_has_kept) {
  sleep_without_slices();
  struct asleep asleep = make_asleep();
  pid_t pid = start_child(read_in_process, &asleep);
  ck_assert_int_eq(ringcast_writer_wait_readers(asleep.writer, 1, RINGCAST_FOREVER), 1);
  for (uint64_t i = 0; i < 2; i++) ck_assert_int_eq(send(asleep.writer, i, MIB), 0);
  struct ringcast_peer peer = {.size = sizeof peer};
  do ck_assert_int_eq(ringcast_writer_peers(asleep.writer, &peer, 1), 1);
  while (rc_load_relaxed(&asleep.writer->ring.view.control->slots[peer.slot].retains) < 2);
  send_all_of_it(&asleep);
  child_must_succeed(pid);
  ringcast_writer_close(asleep.writer);
}

static void *reserve_all(void *writer) {
  struct ringcast_span span;
  child_must(ringcast_writer_reserve(writer, (size_t)info_of(writer).max_frame, RINGCAST_FOREVER,
                                     &span) == 0);
  return NULL;
}

/* The reader polls its descriptor, and the writer waits in a thread, or polls its own one. */
LOOP_TEST(a_writer_that_waits_gets_what_a_reader_keeps_that_polls, 0, 4) {
  bool polls = _i >= 2;
  if (!choose(_i % 2, __func__)) return;
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  size_t most = (size_t)info_of(writer).max_frame;
  struct ringcast_span span;
  pthread_t thread;
  int fd = ringcast_reader_fd(reader), room = polls ? ringcast_writer_room_fd(writer) : -1;
  struct retained retained = send_and_keep(writer, reader, 1, MIB);
  do find_nothing(reader); /* arms it, for a second at most */
  while (is_readable(fd, 0));
  if (polls) ck_assert_int_eq(ringcast_writer_reserve(writer, most, 0, &span), -EAGAIN);
  else ck_assert_int_eq(pthread_create(&thread, NULL, reserve_all, writer), 0);
  while (reader->retained > 0) {
    ck_assert(is_readable(fd, -1));
    find_nothing(reader);
  }
  for (int result = -EAGAIN; polls && result != 0;) {
    ck_assert(is_readable(room, -1));
    result = ringcast_writer_reserve(writer, most, 0, &span);
    ck_assert(result == 0 || result == -EAGAIN);
  }
  if (!polls) ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert(is_whole(&retained));
  drop(&retained);
}

/* It never sleeps, and is not woken: it looks before each frame that is there already. */
TEST(a_writer_that_waits_gets_what_a_reader_keeps_that_has_more_to_read) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  struct ringcast_span span;
  for (uint64_t i = 0; i < 3; i++) ck_assert_int_eq(send(writer, i, i == 0 ? MIB : 100), 0);
  struct retained retained = keep(reader, 0, MIB);
  read_one(reader, 1, 100);
  ck_assert_uint_eq(reader->retained, 1); /* nobody waits for it */
  ck_assert_int_eq(ringcast_writer_reserve(writer, (size_t)info_of(writer).max_frame, 0, &span),
                   -EAGAIN);
  read_one(reader, 2, 100);
  ck_assert_uint_eq(reader->retained, 0);
  ck_assert_int_eq(ringcast_writer_reserve(writer, (size_t)info_of(writer).max_frame, 0, &span), 0);
  memset(span.data, 0, span.bytes);
  drop(&retained);
}

TEST(a_reserve_that_gave_up_asks_readers_for_nothing) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  struct ringcast_span span;
  for (uint64_t i = 0; i < 2; i++) ck_assert_int_eq(send(writer, i, i == 0 ? MIB : 100), 0);
  struct retained retained = keep(reader, 0, MIB);
  ck_assert_int_eq(
      ringcast_writer_reserve(writer, (size_t)info_of(writer).max_frame, 1000000, &span),
      -ETIMEDOUT);
  ck_assert_uint_eq(writer->ring.view.control->wanted, 0);
  read_one(reader, 1, 100);
  ck_assert_uint_eq(reader->retained, 1); /* and so the frame is not copied */
  drop(&retained);
}

/* After -EAGAIN a caller may as well send a smaller frame. */
TEST(a_writer_that_has_found_room_asks_readers_for_nothing) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  struct ringcast_span span;
  struct retained retained = send_and_keep(writer, reader, 0, MIB);
  ck_assert_int_eq(ringcast_writer_reserve(writer, (size_t)info_of(writer).max_frame, 0, &span),
                   -EAGAIN);
  ck_assert_int_eq(send(writer, 1, MIB), 0);
  read_one(reader, 1, MIB);
  find_nothing(reader);
  ck_assert_uint_eq(reader->retained, 1);
  drop(&retained);
}

/* What no writer waits for is not asked for: a reader that sleeps and keeps is left alone. */
TEST(a_writer_that_has_room_wakes_nobody_for_what_is_kept) {
  SCOPED_WRITER writer = make_writer(8 * MIB);
  SCOPED_READER reader = attach_retainer(writer);
  struct rc_eventcount *data = &writer->ring.view.control->not_empty;
  struct ringcast_span span;
  struct retained retained = send_and_keep(writer, reader, 1, MIB);
  rc_eventcount_announce(data); /* as if it slept */
  ck_assert_int_eq(ringcast_writer_reserve(writer, MIB, 0, &span), 0);
  ck_assert(rc_eventcount_is_asleep(data));
  ck_assert_int_eq(ringcast_writer_grow(writer, 7 * MIB + MIB / 2, 0, &span), -EAGAIN);
  ck_assert(!rc_eventcount_is_asleep(data));
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  drop(&retained);
  find_nothing(reader);
  rc_eventcount_announce(data);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 5 * MIB, 0, &span), 0);
  ck_assert_int_eq(ringcast_writer_commit(writer, 0, 3), 0); /* wakes, for the frame */
  rc_eventcount_announce(data);
  ck_assert_int_eq(ringcast_writer_reserve(writer, 8 * MIB - 16, 0, &span), -EAGAIN);
  ck_assert(rc_eventcount_is_asleep(data)); /* nothing is kept: to wake it would be of no use */
}

int main(void) {
  if (!can_retain("test_retain_waiting")) return EXIT_SUCCESS;
  uring_result = probe_uring();
  unsetenv("RINGCAST_SPILL_BYTES");
  return run_tests("retain_waiting", remember, nothing_is_left);
}
