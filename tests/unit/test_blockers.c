/* SPDX-License-Identifier: Apache-2.0 */
/* Readers in the way of a wait for room: whose time is counted from when, and what is left of
 * it. */
#include <errno.h>

#include "channel/liveness.h"
#include "shm/os.h"
#include "tests/support/liveness.h"

static struct rc_os real;
static int sleeps;
static int64_t longest;
static void (*at_sleep)(int number); /* the first is 1 */

static int sleep_noted(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  if (timeout_ns > longest) longest = timeout_ns;
  sleeps++;
  if (at_sleep) at_sleep(sleeps);
  return real.futex_wait(word, value, timeout_ns);
}

static void at_each_sleep(void (*what)(int number)) {
  real = rc_os;
  rc_os.futex_wait = sleep_noted;
  at_sleep = what;
}

static int try(ringcast_writer *writer, size_t bytes) {
  struct ringcast_span span;
  writer->waiter.checked = 0; /* as if it were long ago */
  return ringcast_writer_reserve(writer, bytes, 0, &span);
}

/* ---- Whose time it is ------------------------------------------------------------------------ */

static ringcast_reader *slow;
static ringcast_writer *held_back;

/* In the later sleeps a minute passes. */
static void read_in_first(int number) {
  if (number == 1) take_one(slow);
  else held_back->liveness.since -= 60 * SECOND;
}

/* In one and the same wait it is first the ring that lacks room, and then spill memory. */
TEST(who_holds_spill_memory_is_evicted_though_the_ring_was_full_first) {
  static uint8_t large[3 << 20];
  struct ringcast_span span;
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .spill_bytes = 4 << 20,
                                   .on_slow = RINGCAST_EVICT, .slow_ns = 60 * SECOND);
  slow = attach(writer);
  held_back = writer;
  for (int i = 0; i < 2; i++) ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  ck_assert_int_eq(ringcast_writer_send(writer, large, sizeof large, 0, 0), 0);
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  at_each_sleep(read_in_first);
  ck_assert_int_eq(ringcast_writer_reserve(writer, sizeof large, RINGCAST_FOREVER, &span), 0);
  ck_assert_int_eq(ringcast_reader_check(slow), -ESTALE);
  ringcast_reader_close(slow);
}

/* It was in the way of a small frame for long, and is in that of a larger one since just now. */
TEST(the_time_begins_anew_for_another_who_is_in_the_way) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 60 * SECOND);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  writer->liveness.since -= 60 * SECOND;
  ck_assert_int_eq(try(writer, 5), -ETIMEDOUT);
  take_one(reader);
  ck_assert_int_eq(try(writer, 1000), -EAGAIN);
  writer->liveness.since -= 60 * SECOND;
  ck_assert_int_eq(try(writer, 1000), -ETIMEDOUT);
}

/* Neither is one evicted who was in the way of a large frame, and is not in that of the small one
 * tried instead. */
TEST(only_who_is_still_in_the_way_is_too_slow) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_EVICT, 60 * SECOND);
  ringcast_reader *first = attach(writer), *second = attach(writer);
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  for (int i = 0; i < 3; i++) take_one(second);
  writer->liveness = (struct rc_liveness){.on_slow = RINGCAST_EVICT, .slow_ns = 60 * SECOND};
  ck_assert_int_eq(try(writer, 1000), -EAGAIN);
  writer->liveness.since -= 60 * SECOND;
  ck_assert_int_eq(try(writer, 5), 0);
  ck_assert_int_eq(ringcast_reader_check(first), -ESTALE);
  ck_assert_int_eq(ringcast_reader_check(second), 0);
  ringcast_reader_close(first);
  ringcast_reader_close(second);
}

TEST(a_reserve_that_succeeds_ends_the_time_also_if_nothing_is_committed) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_EVICT, 60 * SECOND);
  SCOPED_READER reader = attach(writer);
  struct ringcast_span span;
  struct ringcast_peer peer = {.size = sizeof peer};
  while (writer->ring.tail < 2560)
    ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  ck_assert_int_eq(try(writer, 1900), -EAGAIN);
  writer->liveness.since -= 60 * SECOND;
  ck_assert_int_eq(try(writer, 64), 0);
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_uint_eq(peer.blocked_ns, 0);
  writer->waiter.checked = 0;
  ck_assert_int_eq(ringcast_writer_grow(writer, 1900, 0, &span), -EAGAIN);
  ck_assert_int_eq(ringcast_reader_check(reader), 0);
}

TEST(no_sleep_is_longer_than_somebody_may_be_in_the_way) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, SECOND / 50);
  SCOPED_READER reader = attach(writer);
  use_own_clock();
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  at_each_sleep(NULL);
  ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), -ETIMEDOUT);
  ck_assert_int_ge(sleeps, 1);
  ck_assert_int_le(longest, SECOND / 50);
}

/* ---- Against the rules ----------------------------------------------------------------------- */

static ringcast_reader *broken;

static void break_and_read(int number) {
  if (number == 1) broken->ring.own->cursor = UINT64_MAX;
  else if (number == 2) take_one(slow);
}

TEST(one_wait_is_enough_to_expel_somebody_and_wait_for_another) {
  SCOPED_WRITER writer = make(RINGCAST_EVICT, RINGCAST_FAIL, 0);
  broken = attach(writer);
  slow = attach(writer);
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  at_each_sleep(break_and_read);
  ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(ringcast_reader_check(broken), -ESTALE);
  struct ringcast_stats stats = stats_of_writer(writer);
  ck_assert_uint_eq(stats.waits, 1); /* with one timeout */
  ringcast_reader_close(broken);
  ringcast_reader_close(slow);
}

/* The slot may have gone to another since its cursor was read. */
TEST(nobody_is_expelled_whose_cursor_is_right) {
  SCOPED_WRITER writer = make(RINGCAST_EVICT, RINGCAST_FAIL, 0);
  SCOPED_READER reader = attach(writer);
  writer->ring.blocker = reader->ring.slot;
  ck_assert(rc_liveness_evict_invalid(writer));
  ck_assert_int_eq(ringcast_reader_check(reader), 0);
}

/* Late is late, but a death is told as one, and evicting the slow does not bury the dead. */
TEST(who_is_late_and_dead_is_dead) {
  static const uint32_t policies[] = {RINGCAST_FAIL, RINGCAST_EVICT};
  for (int i = 0; i < 2; i++) {
    ringcast_writer *writer = make(policies[i], policies[!i], 1);
    ringcast_reader *reader = attach(writer);
    pid_t pid = start_reader(writer);
    kill_child(pid);
    /* It is not asked for beside the one that is the furthest behind. */
    writer->liveness.checked = INT64_MAX;
    ck_assert_int_eq(fill(writer, RINGCAST_FOREVER),
                     policies[i] == RINGCAST_FAIL ? -EOWNERDEAD : -ETIMEDOUT);
    ck_assert_int_eq(ringcast_reader_check(reader), policies[!i] == RINGCAST_FAIL ? 0 : -ESTALE);
    if (policies[!i] == RINGCAST_EVICT) ck_told(writer, RINGCAST_PEER_EVICTED, getpid());
    ck_told(writer, RINGCAST_PEER_DEAD, pid);
    ringcast_reader_close(reader);
    ringcast_writer_close(writer);
  }
}

RUN_TESTS("blockers", remember, nothing_is_left)
