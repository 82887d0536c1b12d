/* SPDX-License-Identifier: Apache-2.0 */
/* Taps: how they wait, and how they see the readers. */
#include <errno.h>

#include "shm/os.h"
#include "tests/support/liveness.h"

static struct ringcast_peer peer_at(ringcast_writer *writer, uint32_t index) {
  struct ringcast_peer peers[8] = {{.size = sizeof *peers}};
  ringcast_tap *tap;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  int count = ringcast_tap_peers(tap, peers, 8);
  ck_assert_int_gt(count, (int)index);
  ringcast_tap_close(tap);
  return peers[index];
}

/* The writer makes a system call when a participant says that it sleeps. */
static void wait_as_tap(void *context) {
  struct party *party = context;
  struct ringcast_frame frame;
  ringcast_tap *tap;
  child_must(ringcast_tap_attach(party->handle, &tap) == 0);
  gate_open(&party->there);
  child_must(ringcast_tap_next(tap, RINGCAST_FOREVER, &frame) == 0);
  ringcast_tap_close(tap);
}

TEST(no_commit_pays_for_a_sleeping_tap) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  struct party party = {.handle = ringcast_writer_handle(writer), .there = gate_make()};
  pid_t pid = start_child(wait_as_tap, &party);
  gate_wait(&party.there);
  gate_free(&party.there);
  while (state_of(pid) != 'S') sched_yield();
  ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  ck_assert_uint_eq(stats_of_writer(writer).wakes, 0);
  child_must_succeed(pid);
}

TEST(a_stopped_tap_takes_no_slot_and_does_not_stop_the_writer) {
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .readers = 1);
  struct party party = {.handle = ringcast_writer_handle(writer), .there = gate_make()};
  pid_t pid = start_child(wait_as_tap, &party);
  gate_wait(&party.there);
  gate_free(&party.there);
  ck_assert_int_eq(kill(pid, SIGSTOP), 0);
  ck_assert_int_eq(fill(writer, 0), 0);
  ck_assert_int_eq(ringcast_writer_peers(writer, NULL, 0), 0);
  SCOPED_READER reader = attach(writer);
  kill_child(pid);
}

static _Atomic uint32_t *slept_on;

static int note_sleep(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)value, (void)timeout_ns;
  slept_on = word;
  return -ETIMEDOUT;
}

/* Waking a reader wakes all that sleep on the word, one after the other. */
TEST(a_tap_does_not_sleep_where_readers_do) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  struct ringcast_frame frame;
  ringcast_tap *tap;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  rc_os.futex_wait = note_sleep;
  ck_assert_int_eq(ringcast_tap_next(tap, 1000000, &frame), -ETIMEDOUT);
  ck_assert_ptr_nonnull(slept_on);
  const uint32_t before = *slept_on;
  rc_segment_control(&writer->segment)->not_empty.word += 1;
  ck_assert_uint_eq(*slept_on, before);
  ringcast_tap_close(tap);
}

/* Two laps, of which the tap gets nothing. */
static int lap(ringcast_writer *writer, ringcast_tap *tap) {
  static const uint8_t data[1000];
  struct ringcast_frame frame;
  for (int i = 0; i < 130; i++)
    ck_assert_int_eq(ringcast_writer_send(writer, data, sizeof data, 0, 0), 0);
  return ringcast_tap_next(tap, 0, &frame);
}

/* Until a time has passed, or the writer closes. */
LOOP_TEST(a_tap_that_loses_most_of_it_rests, 0, 2) {
  static const uint8_t large[20000];
  struct ringcast_frame frame;
  ringcast_tap *tap;
  use_own_clock();
  ringcast_writer *writer = writer_of(.capacity = 65536, .readers = 1);
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ck_assert_int_eq(lap(writer, tap), -EAGAIN);
  ck_assert_int_eq(ringcast_writer_send(writer, large, sizeof large, 0, 0), 0);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0); /* after one loss it goes on at once */
  ck_assert_int_eq(lap(writer, tap), -EAGAIN);
  ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), -EAGAIN);
  if (_i == 0) own_now += SECOND;
  else ringcast_writer_close(writer);
  ck_assert_int_eq(ringcast_tap_next(tap, 0, &frame), 0);
  ck_assert_uint_eq(frame.bytes, 5);
  ringcast_tap_close(tap);
  if (_i == 0) ringcast_writer_close(writer);
}

TEST(a_tap_sees_since_when_a_reader_blocks) {
  use_own_clock();
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER slow = attach(writer);
  SCOPED_READER quick = attach(writer);
  struct ringcast_peer peers[4] = {{.size = sizeof *peers}};
  ringcast_tap *tap;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  int sent = 0;
  while (ringcast_writer_send(writer, "frame", 5, 0, 1) == 0) {
    take_one(quick);
    sent++;
  }
  ck_assert_int_eq(ringcast_tap_peers(tap, peers, 4), 2);
  ck_assert_uint_gt(peers[0].blocked_ns, 0);
  ck_assert_uint_eq(peers[0].lag_frames, (uint64_t)sent);
  ck_assert_uint_eq(peers[1].blocked_ns, 0);
  ck_assert_uint_eq(peers[1].lag_frames, 0);
  take_one(slow);
  ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  ck_assert_int_eq(ringcast_tap_peers(tap, peers, 4), 2);
  ck_assert_uint_eq(peers[0].blocked_ns, 0);
  ringcast_tap_close(tap);
}

/* The writer does not wait any more: it sends smaller frames, or has given up. Or its times can't
 * be right: it is hostile, or its clock is that of another time namespace. */
LOOP_TEST(a_tap_does_not_believe_an_old_clock, 0, 5) {
  use_own_clock();
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER slow = attach(writer);
  struct ringcast_peer peers[4] = {{.size = sizeof *peers}};
  ringcast_tap *tap;
  uint8_t large[1800] = {0};
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  while (ringcast_writer_send(writer, large, sizeof large, 0, 0) == 0)
    ;
  ck_assert_int_eq(ringcast_tap_peers(tap, peers, 4), 1);
  ck_assert_uint_gt(peers[0].blocked_ns, 0);
  struct rc_control *control = writer->ring.view.control;
  switch (_i) {
  case 0: ck_assert_int_eq(ringcast_writer_send(writer, "small", 5, 0, 0), 0); break;
  case 1: control->blocked_until -= 2 * SECOND; break; /* instead of waiting */
  case 2: control->blocked_since = INT64_MIN; break;
  case 3: control->blocked_since = INT64_MAX; break;
  case 4: control->blocked_since += 1000 * SECOND; break;
  }
  ck_assert_int_eq(ringcast_tap_peers(tap, peers, 4), 1);
  ck_assert_uint_eq(peers[0].blocked_ns, 0);
  ringcast_tap_close(tap);
}

TEST(a_hostile_cursor_is_not_followed) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER slow = attach(writer);
  ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  const uint64_t cursors[] = {1, 127, UINT64_MAX, (uint64_t)1 << 40};
  for (size_t i = 0; i < sizeof cursors / sizeof *cursors; i++) {
    slow->ring.own->cursor = cursors[i];
    ck_assert_uint_eq(peer_at(writer, 0).lag_frames, 0);
  }
}

TEST(lags_in_frames_are_each_readers_own) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  ringcast_reader *readers[3];
  for (int i = 0; i < 3; i++) readers[i] = attach(writer);
  for (int i = 0; i < 9; i++) ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  for (int i = 0; i < 3; i++)
    for (int taken = 0; taken < 3 * ((i + 1) % 3); taken++) take_one(readers[i]);
  for (uint32_t i = 0; i < 3; i++)
    ck_assert_uint_eq(peer_at(writer, i).lag_frames, 9 - 3 * ((i + 1) % 3));
  for (int i = 0; i < 3; i++) ringcast_reader_close(readers[i]);
}

TEST(a_tap_sees_a_reader_that_takes_too_few_frames) {
  use_own_clock();
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .readers = 2, .ahead = 1);
  SCOPED_READER slow = attach(writer);
  struct ringcast_peer peers[4] = {{.size = sizeof *peers}};
  ringcast_tap *tap;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  ck_assert_int_eq(fill(writer, 1), -ETIMEDOUT);
  ck_assert_int_eq(ringcast_tap_peers(tap, peers, 4), 1);
  ck_assert_uint_gt(peers[0].blocked_ns, 0);
  ringcast_tap_close(tap);
}

RUN_TESTS("taps", remember, nothing_is_left)
