/* SPDX-License-Identifier: Apache-2.0 */
/* Readers that die, that are stopped or too slow, or that don't play by the rules:
 * what the writer does, and who is told. */
#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>

#include "shm/os.h"
#include "tests/support/fake_files.h"
#include "tests/support/leaks.h"
#include "tests/support/liveness.h"
#include "tests/support/seccomp.h"
#include "tests/support/sleep.h"
#include "tests/support/switches.h"

/* ---- Slow ------------------------------------------------------------------------------------ */

TEST(a_slow_reader_is_evicted_and_told) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_EVICT, 1);
  ringcast_reader *reader = attach(writer);
  struct ringcast_frame frame, next;
  ck_assert_int_eq(ringcast_writer_send(writer, "first", 5, 0, 0), 0);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
  ck_assert_int_eq(ringcast_reader_check(reader), 0);
  ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(ringcast_reader_check(reader), -ESTALE);
  ck_says("evicted");
  ck_says("options.slow_ns");
  ck_assert_int_eq(ringcast_reader_release(reader, &frame), -ESTALE);
  ck_assert_int_eq(ringcast_reader_next(reader, RINGCAST_FOREVER, &next), -ESTALE);
  ck_told(writer, RINGCAST_PEER_EVICTED, getpid());
  ck_all_well(writer);
  struct ringcast_peer peer = {.size = sizeof peer};
  ck_assert_int_eq(ringcast_writer_peers(writer, &peer, 1),
                   1); /* its slot is its own until it closes */
  ck_assert_uint_eq(peer.state, RINGCAST_PEER_EVICTED);
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 0);
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_writer_peers(writer, &peer, 1), 0);
  reader = attach(writer);
  ck_assert_int_eq(ringcast_writer_send(writer, "anew", 4, 0, 0), 0);
  take_one(reader);
  ringcast_reader_close(reader);
}

TEST(all_that_are_too_slow_go_at_once_and_the_others_stay) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_EVICT, 1);
  ringcast_reader *first = attach(writer), *second = attach(writer), *quick = attach(writer);
  for (int i = 0; i < 100; i++) {
    ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, RINGCAST_FOREVER), 0);
    take_one(quick);
  }
  ck_assert_int_eq(ringcast_reader_check(first), -ESTALE);
  ck_assert_int_eq(ringcast_reader_check(second), -ESTALE);
  ck_assert_int_eq(ringcast_reader_check(quick), 0);
  ck_told(writer, RINGCAST_PEER_EVICTED, getpid());
  ck_told(writer, RINGCAST_PEER_EVICTED, getpid());
  ck_all_well(writer);
  ringcast_reader_close(first);
  ringcast_reader_close(second);
  ringcast_reader_close(quick);
}

/* Holds a frame and sleeps until it is woken: no slice ends a sleep here. */
static void hold_and_sleep(void *context) {
  struct party *party = context;
  struct ringcast_frame frame, next;
  sleep_without_slices();
  SCOPED_READER reader = reader_at(party->handle, .spin_ns = -1, .leases = 64);
  gate_open(&party->there);
  child_must(ringcast_reader_next(reader, RINGCAST_FOREVER, &frame) == 0);
  gate_open(&party->there);
  int result = 0;
  while (result == 0) { /* what it is fast enough for it gets, and gives back */
    result = ringcast_reader_next(reader, RINGCAST_FOREVER, &next);
    if (result == 0) result = ringcast_reader_release(reader, &next);
  }
  child_must(result == -ESTALE);
}

TEST(one_that_sleeps_is_woken_to_be_told) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_EVICT, 3600 * SECOND);
  struct party party = {.handle = ringcast_writer_handle(writer), .there = gate_make()};
  pid_t pid = start_child(hold_and_sleep, &party);
  gate_wait(&party.there);
  struct ringcast_span span;
  fill_and_hurry(writer);
  gate_wait(&party.there);
  while (!rc_eventcount_is_asleep(&writer->ring.view.control->not_empty)) sched_yield();
  ck_assert_int_eq(ringcast_writer_reserve(writer, 5, RINGCAST_FOREVER, &span), 0);
  child_must_succeed(pid); /* no commit has woken it */
  gate_free(&party.there);
}

/* ---- Dead ------------------------------------------------------------------------------------ */

TEST(a_dead_reader_is_found_without_being_in_the_way) {
  static const uint32_t policies[] = {RINGCAST_FAIL, RINGCAST_EVICT};
  for (int i = 0; i < 2; i++) {
    ringcast_writer *writer = make(policies[i], RINGCAST_FAIL, 0);
    pid_t pid = start_reader(writer);
    int fd = ringcast_writer_fd(writer);
    ck_assert_int_ge(fd, 0);
    ck_all_well(writer);
    kill_child(pid);
    ck_assert(is_readable(fd, 60000));
    ck_told(writer, RINGCAST_PEER_DEAD, pid);
    if (policies[i] == RINGCAST_FAIL) {
      ck_told(writer, RINGCAST_PEER_DEAD, pid);
      ck_assert(is_readable(fd, 60000)); /* still, or again */
      ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), -EOWNERDEAD);
      ck_says("rank 2");
      ck_says("has died");
    } else {
      ck_all_well(writer);
      ck_assert(!is_readable(fd, 0));
      ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), 0);
    }
    ck_assert_int_eq(ringcast_writer_fd(writer), fd);
    ringcast_writer_close(writer);
  }
}

TEST(the_descriptor_calls_until_all_that_a_wait_lost_are_told_of) {
  for (int asked_before = 0; asked_before < 2; asked_before++) {
    ringcast_writer *writer = make(RINGCAST_EVICT, RINGCAST_EVICT, 1);
    ringcast_reader *reader = attach(writer);
    if (asked_before) ck_assert_int_ge(ringcast_writer_fd(writer), 0);
    pid_t pid = start_reader(writer);
    kill_child(pid);
    ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), 0);
    ck_assert_int_eq(ringcast_writer_wait_readers(writer, 0, 0),
                     0); /* watches who is there now, so not the dead one */
    int fd = ringcast_writer_fd(writer);
    struct ringcast_peer peer = {.size = sizeof peer};
    for (int i = 0; i < 2; i++) {
      ck_assert(is_readable(fd, 60000));
      ck_assert_int_eq(ringcast_writer_check(writer, &peer), 1);
      ck_assert_uint_eq(peer.state, peer.pid == pid ? RINGCAST_PEER_DEAD : RINGCAST_PEER_EVICTED);
    }
    ck_all_well(writer);
    if (has_pidfds()) ck_assert(!is_readable(fd, 0));
    ringcast_reader_close(reader);
    ringcast_writer_close(writer);
  }
}

TEST(one_that_leaves_and_then_exits_is_not_told_of) {
  ringcast_writer *writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  ringcast_reader *reader = attach(writer);
  int fd = ringcast_writer_fd(writer);
  ck_all_well(writer);
  ringcast_reader_close(reader);
  pid_t pid = start_reader(writer); /* in the same slot */
  ck_all_well(writer);
  kill_child(pid);
  ck_told(writer, RINGCAST_PEER_DEAD, pid);
  ck_assert(is_readable(fd, 60000)); /* still, or again */
  ringcast_writer_close(writer);
}

TEST(one_that_dies_evicted_gives_its_slot_back) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_EVICT, 1);
  ringcast_reader *readers[3];
  pid_t pid = start_reader(writer);
  ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), 0);
  ck_told(writer, RINGCAST_PEER_EVICTED, pid);
  kill_child(pid);
  for (int i = 0; i < 3; i++) readers[i] = attach(writer);
  SCOPED_READER last = attach(writer); /* the fourth of four */
  for (int i = 0; i < 3; i++) ringcast_reader_close(readers[i]);
}

/* ---- Stopped, stuck, broken ------------------------------------------------------------------ */

TEST(a_stopped_reader_is_said_to_be_stopped) {
  SCOPED_WRITER writer = make(RINGCAST_EVICT, RINGCAST_FAIL, 0);
  pid_t pid = start_reader(writer);
  ck_assert_int_eq(kill(pid, SIGSTOP), 0);
  ck_assert_int_eq(waitpid(pid, NULL, WUNTRACED), pid);
  ck_assert_int_eq(fill(writer, 1), -ETIMEDOUT);
  ck_says("stopped by a signal");
  ck_says("'rank 2'");
  ck_says("at position 0");
  /* Nothing was said about how long it may. */
  ck_assert_ptr_null(strstr(ringcast_last_error(), "may ("));
  ck_all_well(writer);
  struct ringcast_peer peer = {.size = sizeof peer};
  ck_assert_int_eq(ringcast_writer_slowest(writer, &peer), 1);
  ck_assert_uint_eq(peer.state, RINGCAST_PEER_STOPPED);
  kill_child(pid);
}

/* No descriptor is free, and the kernel does not show whether another process has memory. */
TEST(a_wait_for_who_may_be_dead_ends) {
  if (forbid_call(SYS_process_vm_readv) != 0) {
    tell_skipped(__func__, "no seccomp");
    return;
  }
  SCOPED_WRITER writer = make(RINGCAST_EVICT, RINGCAST_FAIL, 0);
  pid_t pid = start_reader(writer);
  struct ringcast_peer peer = {.size = sizeof peer};
  rlim_t most = limit_descriptors(0);
  int sent = fill(writer, RINGCAST_FOREVER),
      found = ringcast_writer_wait_readers(writer, 1, RINGCAST_FOREVER);
  int peers = ringcast_writer_peers(writer, &peer, 1);
  limit_descriptors(most);
  ck_assert_int_eq(sent, -EMFILE);
  ck_assert_int_eq(found, -EMFILE);
  ck_assert_int_eq(peers, 1);
  ck_assert_uint_eq(peer.state, RINGCAST_PEER_UNKNOWN);
  ck_assert_int_eq(fill(writer, 1), -ETIMEDOUT); /* as soon as it can be told */
  kill_child(pid);
}

/* As if it were stopped between claim and activation. */
TEST(who_is_stuck_in_joining_holds_nobody_up) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  const struct rc_ring *ring = &writer->ring.view;
  struct rc_ring_reader reader;
  struct rc_process self;
  uint32_t slot;
  uint64_t owner;
  ck_assert_int_eq(rc_process_self(&self), 0);
  ck_assert_int_eq(rc_slot_claim(ring, (uint32_t)self.pid, self.start, &slot, &owner), 0);
  ck_assert_int_eq(fill(writer, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(rc_slot_activate(ring, slot, owner, (struct rc_start){0}, &reader), -EAGAIN);
  ck_all_well(writer); /* it has lost nothing */
}

static uint64_t another_namespace(void) { return 1; }

TEST(another_pid_namespace_is_refused) {
  SCOPED_WRITER writer = make(RINGCAST_FAIL, RINGCAST_FAIL, 0);
  ringcast_reader *reader = NULL;
  rc_os.pid_namespace = another_namespace;
  ck_assert_int_eq(ringcast_reader_attach(ringcast_writer_handle(writer), &reader), -EPROTO);
  ck_says("PID namespace");
}

/* ---- Options --------------------------------------------------------------------------------- */

TEST(policies_that_make_no_sense_are_refused) {
  static const struct ringcast_writer_options bad[] = {
      {.size = sizeof *bad, .on_death = 2},
      {.size = sizeof *bad, .on_slow = 2, .slow_ns = 1},
      {.size = sizeof *bad, .slow_ns = -1},
      {.size = sizeof *bad, .on_slow = RINGCAST_EVICT},
  };
  ringcast_writer *writer = NULL;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_assert_int_eq(ringcast_writer_create_ex(&bad[i], &writer), -EINVAL);
    ck_says(bad[i].slow_ns < 0 || i == 3 ? "slow_ns" : "policy");
  }
}

/* ---- CPUs ------------------------------------------------------------------------------------ */

static int affinity_of_two(uint64_t *set, size_t bytes) {
  memset(set, 0, bytes);
  set[0] = 3;
  return 0;
}

TEST(a_dead_reader_that_the_writer_has_removed_takes_no_cpu) {
  static const struct fake_file no_quota[] = {{0}};
  struct ringcast_frame frame;
  use_fake_files(no_quota);
  rc_os.affinity = affinity_of_two;
  SCOPED_WRITER writer = make(RINGCAST_EVICT, RINGCAST_FAIL, 0);
  SCOPED_READER reader = attach(writer);
  pid_t pid = start_reader(writer);
  ck_assert_int_eq(ringcast_reader_next(reader, 1, &frame), -ETIMEDOUT);
  ck_assert(reader->waiter.oversubscribed);
  kill_child(pid);
  ck_told(writer, RINGCAST_PEER_DEAD, pid);
  ck_assert_int_eq(ringcast_reader_next(reader, 1, &frame), -ETIMEDOUT);
  ck_assert(!reader->waiter.oversubscribed);
}

RUN_TESTS("liveness", remember, nothing_is_left)
