/* SPDX-License-Identifier: Apache-2.0 */
/* Observers: readers that see every frame and can't end the writer, nor slow it for long. */
#include <errno.h>

#include "shm/os.h"
#include "tests/support/liveness.h"

#define observer_of(writer) reader_of(writer, .flags = RINGCAST_READER_OBSERVER, .name = "recorder")

static struct ringcast_peer peer_at(ringcast_writer *writer, uint32_t index) {
  struct ringcast_peer peers[8] = {{.size = sizeof *peers}};
  ringcast_tap *tap;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  int count = ringcast_tap_peers(tap, peers, 8);
  ck_assert_int_gt(count, (int)index);
  ringcast_tap_close(tap);
  return peers[index];
}

TEST(an_observer_gets_every_frame_and_is_shown_as_one) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER observer = observer_of(writer);
  for (int i = 0; i < 100; i++) {
    struct ringcast_frame frame;
    ck_assert_int_eq(ringcast_writer_send(writer, &i, sizeof i, 0, 0), 0);
    ck_assert_uint_eq(peer_at(writer, 0).lag_frames, 1);
    ck_assert_int_eq(ringcast_reader_next(observer, 0, &frame), 0);
    ck_assert_mem_eq(frame.data, &i, sizeof i);
    ck_assert_int_eq(ringcast_reader_release(observer, &frame), 0);
  }
  struct ringcast_peer peer = peer_at(writer, 0);
  ck_assert_uint_eq(peer.observer, 1);
  ck_assert_uint_eq(peer.lag_frames, 0);
  ck_assert_str_eq(peer.name, "recorder");
}

TEST(observers_have_slots_of_their_own) {
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .readers = 1);
  SCOPED_READER first = observer_of(writer);
  SCOPED_READER second = observer_of(writer);
  SCOPED_READER reader = attach(writer);
  struct ringcast_reader_options options = {.size = sizeof options, .flags = RINGCAST_READER_OBSERVER};
  ringcast_reader *none = NULL;
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &options, &none), -EUSERS);
  ck_says("both slots for observers");
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &none), -EUSERS);
  ck_says("all 1 reader slots");
  ck_assert_ptr_null(none);
}

TEST(the_writer_does_not_count_observers) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER observer = observer_of(writer);
  ck_assert_int_eq(ringcast_writer_peers(writer, NULL, 0), 0);
  struct ringcast_peer peer = {.size = sizeof peer};
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, 0), -EAGAIN);
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 0);
  SCOPED_READER reader = attach(writer);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 1, 0), 1);
  ck_assert_int_eq(ringcast_writer_wait_readers(writer, 5, 0), -EINVAL); /* 4 slots for readers */
  ck_all_well(writer);
}

TEST(ahead_does_not_count_observers) {
  SCOPED_WRITER writer = writer_of(.capacity = 4096, .readers = 2, .ahead = 2);
  SCOPED_READER observer = observer_of(writer);
  SCOPED_READER reader = attach(writer);
  for (int i = 0; i < 8; i++) {
    ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
    take_one(reader);
  }
  ck_assert_uint_eq(peer_at(writer, 1).lag_frames, 8);
}

/* Whatever the policy, and also where a reader would end the wait by an error. */
LOOP_TEST(an_observer_in_the_way_is_let_go_of, 0, 4) {
  SCOPED_WRITER writer = make(_i & 1, _i & 2 ? RINGCAST_EVICT : RINGCAST_FAIL, _i & 2 ? SECOND : 0);
  SCOPED_READER observer = observer_of(writer);
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  ck_assert_int_eq(ringcast_reader_next(observer, 0, &frame), 0);
  ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(ringcast_reader_release(observer, &frame), -ESTALE);
  ck_all_well(writer); /* check does not report the observer */
}

TEST(a_timeout_because_of_an_observer_is_none) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER observer = observer_of(writer);
  ck_assert_int_eq(fill(writer, 1), 0); /* a nanosecond */
  ck_assert_int_eq(ringcast_reader_check(observer), -ESTALE);
}

TEST(a_reader_in_the_way_beside_an_observer_is_the_one_that_is_named) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER observer = observer_of(writer);
  SCOPED_READER reader = reader_of(writer, .name = "rank 2");
  ck_assert_int_eq(fill(writer, 1), -ETIMEDOUT);
  ck_says("rank 2");
  struct ringcast_peer peer = {.size = sizeof peer};
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_str_eq(peer.name, "rank 2");
}

/* A try with timeout 0 does not wait, so the observer's time runs from one try to the next. */
TEST(tries_wait_for_an_observer_no_longer_than_its_time) {
  use_own_clock();
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER observer = observer_of(writer);
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  ck_assert_int_eq(ringcast_reader_check(observer), 0);
  writer->liveness.since -= SECOND; /* instead of waiting */
  writer->waiter.checked = 0;
  ck_assert_int_eq(fill(writer, 0), 0);
  ck_assert_int_eq(ringcast_reader_check(observer), -ESTALE);
}

/* The time is shared by all waits and all observers, also by one that attaches again and again. */
TEST(time_in_the_way_is_used_up) {
  use_own_clock();
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  ringcast_reader *observer = observer_of(writer);
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  ck_assert_int_eq(writer->liveness.patience, SECOND / 20);
  writer->liveness.since -= SECOND / 50; /* instead of waiting */
  take_one(observer);
  ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  ck_assert_int_le(writer->liveness.patience, SECOND / 20 - SECOND / 50);
  ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(ringcast_reader_check(observer), -ESTALE);
  ringcast_reader_close(observer);
  observer = observer_of(writer);
  writer->liveness.patience = 0;
  writer->liveness.patience_at = rc_now_ns();
  ck_assert_int_eq(fill(writer, 0), 0);
  ck_assert_int_eq(ringcast_reader_check(observer), -ESTALE);
  ringcast_reader_close(observer);
}

TEST(time_in_the_way_comes_back) {
  use_own_clock();
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER observer = observer_of(writer);
  writer->liveness.patience = 0;
  writer->liveness.patience_at = rc_now_ns() - SECOND;
  ck_assert_int_eq(fill(writer, 0), -EAGAIN);
  ck_assert_int_eq(ringcast_reader_check(observer), 0);
}

/* Large frames that the reader has released, and the observer not. */
TEST(an_observer_does_not_hoard_spill_memory) {
  enum { BYTES = 20 << 20 };
  static uint8_t data[BYTES];
  SCOPED_WRITER writer = writer_of(.capacity = 1 << 20, .readers = 1, .spill_bytes = (uint64_t)1 << 30);
  SCOPED_READER reader = attach(writer);
  SCOPED_READER observer = observer_of(writer);
  for (int i = 0; i < 4; i++) {
    ck_assert_int_eq(ringcast_writer_send(writer, data, BYTES, 0, 0), 0);
    take_one(reader);
    ck_assert_int_eq(ringcast_reader_check(observer), 0);
  }
  ck_assert_int_eq(ringcast_writer_send(writer, data, BYTES, 0, 0), 0);
  ck_assert_int_eq(ringcast_reader_check(observer), -ESTALE);
  take_one(reader);
  ck_assert_uint_le(info_of(writer).spill_used, 5 * (uint64_t)(BYTES + (2 << 20)));
}

static int no_memory(void *address, size_t bytes, int advice) {
  (void)address, (void)bytes, (void)advice;
  return -ENOMEM;
}

TEST(lack_of_memory_because_of_an_observer_is_no_error) {
  static uint8_t data[4 << 20];
  SCOPED_WRITER writer = writer_of(.capacity = 1 << 20, .readers = 1, .spill_bytes = (uint64_t)64 << 20);
  SCOPED_READER reader = attach(writer);
  SCOPED_READER observer = observer_of(writer);
  ck_assert_int_eq(ringcast_writer_send(writer, data, sizeof data, 0, 0), 0);
  take_one(reader);
  rc_os.advise = no_memory;
  ck_assert_int_eq(ringcast_writer_send(writer, data, sizeof data, 0, 0), 0);
  ck_assert_int_eq(ringcast_reader_check(observer), -ESTALE);
}

TEST(an_observer_has_no_descriptor) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER observer = observer_of(writer);
  ck_assert_int_eq(ringcast_reader_fd(observer), -EINVAL);
  ck_says("descriptor");
}

TEST(a_joining_observer_fails_no_grant) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  struct rc_ring *ring = &writer->ring.view;
  uint32_t slot;
  uint64_t owner;
  struct rc_ring_reader reader;
  struct rc_process self;
  ck_assert_int_eq(rc_process_self(&self), 0);
  ck_assert_int_eq(rc_slot_claim(ring, (uint32_t)self.pid, self.start, true, &slot, &owner), 0);
  ck_assert_int_eq(fill(writer, 0), 0);
  ck_assert_int_eq(rc_slot_activate(ring, slot, owner, (struct rc_start){0}, &reader), -EAGAIN); /* claim again */
}

static void observe_nothing(void *context) {
  struct party *party = context;
  reader_at(party->handle, .flags = RINGCAST_READER_OBSERVER);
  gate_open(&party->there);
  for (;;) pause();
}

static pid_t start_observer(ringcast_writer *writer) {
  struct party party = {.handle = ringcast_writer_handle(writer), .there = gate_make()};
  pid_t pid = start_child(observe_nothing, &party);
  gate_wait(&party.there);
  gate_free(&party.there);
  return pid;
}

TEST(the_death_of_an_observer_is_no_error) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  kill_child(start_observer(writer));
  ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), 0);
  ck_all_well(writer);
}

TEST(a_stopped_observer_does_not_stop_the_writer) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  pid_t pid = start_observer(writer);
  ck_assert_int_eq(kill(pid, SIGSTOP), 0);
  ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), 0);
  ck_assert_uint_eq(peer_at(writer, 0).state, RINGCAST_PEER_EVICTED);
  kill_child(pid);
}

TEST(a_dead_observers_slot_is_the_next_ones_without_help_by_the_writer) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  for (int i = 0; i < 2; i++) kill_child(start_observer(writer));
  for (int i = 0; i < 3; i++) ringcast_reader_close(observer_of(writer));
}

/* The writer makes a system call when a participant says that it sleeps. */
static void wait_as_observer(void *context) {
  struct party *party = context;
  ringcast_reader *reader = reader_at(party->handle, .flags = RINGCAST_READER_OBSERVER);
  gate_open(&party->there);
  struct ringcast_frame frame;
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == 0);
  ringcast_reader_close(reader);
}

TEST(no_commit_pays_for_a_sleeping_observer) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  struct party party = {.handle = ringcast_writer_handle(writer), .there = gate_make()};
  pid_t pid = start_child(wait_as_observer, &party);
  gate_wait(&party.there);
  gate_free(&party.there);
  while (state_of(pid) != 'S') sched_yield();
  ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  ck_assert_uint_eq(stats_of_writer(writer).wakes, 0);
  child_must_succeed(pid);
}

static _Atomic uint32_t *slept_on;

static int note_sleep(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)value, (void)timeout_ns;
  slept_on = word;
  return -ETIMEDOUT;
}

/* Waking a reader wakes all that sleep on the word, one after the other. */
TEST(taps_and_observers_do_not_sleep_where_readers_do) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  SCOPED_READER observer = observer_of(writer);
  struct ringcast_frame frame;
  ringcast_tap *tap;
  ck_assert_int_eq(ringcast_tap_attach(ringcast_writer_handle(writer), &tap), 0);
  rc_os.futex_wait = note_sleep;
  for (int i = 0; i < 2; i++) {
    struct rc_control *control = i == 0 ? observer->ring.view.control : rc_segment_control(&writer->segment);
    slept_on = NULL;
    int result = i == 0 ? ringcast_reader_next(observer, 1000000, &frame) : ringcast_tap_next(tap, 1000000, &frame);
    ck_assert_int_eq(result, -ETIMEDOUT);
    ck_assert_ptr_nonnull(slept_on);
    const uint8_t *word = (const uint8_t *)slept_on, *shared = (const uint8_t *)control;
    ck_assert(word < shared || word >= shared + rc_control_bytes(6));
  }
  ringcast_tap_close(tap);
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

/* The writer does not wait any more: it sends smaller frames, or has given up. Or its times can't be right: it is
 * hostile, or its clock is that of another time namespace. */
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
  for (uint32_t i = 0; i < 3; i++) ck_assert_uint_eq(peer_at(writer, i).lag_frames, 9 - 3 * ((i + 1) % 3));
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

RUN_TESTS("observers", remember, nothing_is_left)
