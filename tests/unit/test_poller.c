/* SPDX-License-Identifier: Apache-2.0 */
/* The poller's descriptor: whatever makes it readable is never missed, and nothing else makes it
 * readable. */
#define _GNU_SOURCE
#include "shm/poller.h"

#include <pthread.h>
#include <sys/epoll.h>

#include "tests/support/children.h"
#include "tests/support/poller.h"
#include "tests/support/uring.h"

static struct rc_eventcount *event;
static struct rc_poller *poller;
static struct peer peer;

/* ---- What makes it readable, one row each ---------------------------------------------------- */

static void signal_it(void) { rc_wake(event); }

static void signal_in_child(void *nothing) {
  (void)nothing;
  rc_wake(event);
}
static void signal_from_another_process(void) {
  child_must_succeed(start_child(signal_in_child, NULL));
}

static void let_time_pass(void) {
  ck_assert_int_eq(rc_poller_arm(poller, rc_eventcount_prepare(event), 1000000), 0);
}
static void arm_for_a_time_in_the_past(void) {
  ck_assert_int_eq(rc_poller_arm(poller, rc_eventcount_prepare(event), INT64_MIN), 0);
}
static void arm_with_an_old_value(void) {
  uint32_t value = rc_eventcount_prepare(event);
  rc_wake(event);
  ck_assert_int_eq(rc_poller_arm(poller, value, NEVER), 0);
}

static void watch_peer(void) { rc_poller_watch(poller, 1, 7, &peer.watch); }
static void end_peer(void) {
  ck_assert_int_eq(kill(peer.pid, SIGKILL), 0);
} /* a zombie: nothing has waited for it */
static void watch_one_that_has_ended(void) {
  kill_child(peer.pid);
  watch_peer();
}
static void watch_a_pid_that_was_reused(void) {
  struct rc_watch other = peer.watch;
  other.start++;
  rc_poller_watch(poller, 0, 8, &other);
}

static void raise_it(void) { rc_poller_raise(poller, true); }

static const struct source {
  const char *name;
  void (*before)(void), (*happen)(void);
  bool lasts; /* also after a clear, and an arm */
  bool polls; /* takes a pidfd; else a slice later */
} sources[] = {
    {"a signal", NULL, signal_it, false, false},
    {"a signal of another process", NULL, signal_from_another_process, false, false},
    {"a signal between prepare and arm", NULL, arm_with_an_old_value, false, false},
    {"a time", NULL, let_time_pass, false, false},
    {"a time in the past", NULL, arm_for_a_time_in_the_past, false, false},
    {"the end of a process", watch_peer, end_peer, true, true},
    {"a process that ended before", NULL, watch_one_that_has_ended, true, false},
    {"another process of that pid", NULL, watch_a_pid_that_was_reused, true, false},
    {"the caller's own reasons", NULL, raise_it, true, false},
};

enum { SOURCES = sizeof sources / sizeof *sources };

LOOP_TEST(each_source_makes_it_readable_until_taken_back, 0, WAYS *SOURCES) {
  const struct source *source = &sources[_i % SOURCES];
  if (!choose(_i / SOURCES, source->name)) return;
  if (source->polls && !has_pidfds()) {
    tell_skipped(source->name, "no pidfds: the time alone tells to look");
    return;
  }
  event = shared_event();
  peer = start_peer();
  poller = make(_i / SOURCES, event);
  must_be_readable(poller); /* at first */
  if (source->before) source->before();
  for (int round = 0; round < (source->lasts ? 1 : 3); round++) {
    arm(poller, event);
    must_stay_quiet(poller);
    source->happen();
    must_become_readable(poller);
    must_be_readable(poller);
    rc_poller_clear(poller);
    ck_assert_int_eq(readable_within(poller, source->lasts ? -1 : 20), source->lasts);
    arm(poller, event);
    ck_assert_int_eq(readable_within(poller, source->lasts ? -1 : 20), source->lasts);
  }
  ck_assert_int_eq(rc_poller_uses_uring(poller), _i / SOURCES == BY_URING); /* it did not give up */
  rc_poller_close(poller);
}

LOOP_TEST(what_is_over_does_not_make_it_readable, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  struct peer other = start_peer();
  event = shared_event();
  peer = start_peer();
  poller = make(_i, event);
  rc_poller_clear(poller);
  rc_wake(event); /* it is not armed */
  must_stay_quiet(poller);
  let_time_pass();
  arm(poller, event); /* the time is taken back */
  must_stay_quiet(poller);
  for (int i = 0; i < 100; i++) arm(poller, event); /* more than io_uring has entries */
  must_stay_quiet(poller);
  raise_it();
  rc_poller_raise(poller, false);
  must_stay_quiet(poller);
  watch_peer();
  rc_poller_watch(poller, 1, 9, &other.watch); /* in its place */
  rc_poller_watch(poller, 1, 9, &peer.watch);  /* the same tag: nothing changes */
  ck_assert_uint_eq(rc_poller_tag(poller, 1), 9);
  kill_child(peer.pid);
  if (has_pidfds()) must_stay_quiet(poller);
  rc_poller_watch(poller, 1, 0, NULL);
  ck_assert_uint_eq(rc_poller_tag(poller, 1), 0);
  kill_child(other.pid);
  must_stay_quiet(poller);
  rc_wake(event); /* it has been armed all the while */
  must_become_readable(poller);
  rc_poller_close(poller);
}

LOOP_TEST(two_pollers_of_one_event_are_both_told, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  event = shared_event();
  struct rc_poller *first = make(_i, event), *second = make(_i, event);
  arm(first, event);
  arm(second, event);
  must_stay_quiet(first);
  rc_wake(event);
  must_become_readable(first);
  must_become_readable(second);
  arm(first, event);
  arm(second, event);
  rc_poller_close(first); /* may wake the second for nothing, but takes nothing from it */
  rc_wake(event);
  must_become_readable(second);
  rc_poller_close(second);
}

/* ---- Processes ------------------------------------------------------------------------------- */

LOOP_TEST(the_one_of_many_that_has_ended_is_found, 0, 2) {
  enum { PEERS = 8 };
  struct peer peers[PEERS];
  uint32_t found = PEERS;
  if (_i == 1) disable_too("pidfd");
  ck_assert_int_eq(rc_poller_open(NULL, PEERS, &poller), 0);
  must_stay_quiet(poller);
  for (uint32_t i = 0; i < PEERS; i++) {
    peers[i] = start_peer();
    rc_poller_watch(poller, i, i + 1, &peers[i].watch);
  }
  if (_i == 0 && has_pidfds()) must_stay_quiet(poller);
  ck_assert(!rc_poller_find_ended(poller, &found));
  for (uint32_t i = PEERS; i-- > 0;) {
    kill_child(peers[i].pid);
    must_become_readable(poller); /* without a pidfd a slice later */
    ck_assert(rc_poller_find_ended(poller, &found));
    ck_assert_uint_eq(found, i);
    rc_poller_watch(poller, i, 0, NULL);
    ck_assert(!rc_poller_find_ended(poller, &found));
  }
  must_stay_quiet(poller);
  raise_it();
  ck_assert(!rc_poller_find_ended(poller, &found));
  must_become_readable(poller); /* until it is lowered */
  rc_poller_close(poller);
}

/* It calls for a look each slice, and is quiet between them. */
LOOP_TEST(a_process_without_a_pidfd_is_looked_at_each_slice, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  disable_too("pidfd");
  uint32_t found;
  event = shared_event();
  peer = start_peer();
  poller = make(_i, event);
  watch_peer();
  for (int i = 0; i < 3; i++) {
    arm(poller, event);
    must_become_readable(poller);
    ck_assert(!rc_poller_find_ended(poller, &found));
  }
  kill_child(peer.pid);
  arm(poller, event);
  must_become_readable(poller);
  ck_assert(rc_poller_find_ended(poller, &found));
  ck_assert_uint_eq(found, 1);
  rc_poller_close(poller);
}

/* ---- Many rounds ----------------------------------------------------------------------------- */

LOOP_TEST(no_signal_of_many_is_lost_and_epoll_is_not_interrupted, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  static struct game game = {.rounds = 10000};
  poller = make(_i, &game.event);
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event got, wanted = {.events = EPOLLIN};
  ck_assert_int_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, rc_poller_fd(poller), &wanted), 0);
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, play, &game), 0);
  for (uint64_t seen = 0; seen < game.rounds;) {
    uint64_t sent = rc_load_acquire(&game.sent);
    if (sent == seen) {
      uint32_t value = rc_eventcount_prepare(&game.event);
      sent = rc_load_acquire(&game.sent);
      if (sent == seen) {
        ck_assert_int_eq(rc_poller_arm(poller, value, NEVER), 0);
        ck_assert_int_eq(epoll_wait(epoll, &got, 1, -1), 1);
        if (seen % 2) rc_poller_clear(poller);
        continue;
      }
    }
    ck_assert_uint_eq(sent, seen + 1);
    seen = sent;
    rc_store_release(&game.seen, seen);
  }
  pthread_join(thread, NULL);
  ck_assert_int_eq(rc_poller_uses_uring(poller), _i == BY_URING);
  close(epoll);
  rc_poller_close(poller);
}

LOOP_TEST(edge_triggered_epoll_gets_an_edge_each_time, 0, WAYS) {
  if (!choose(_i, __func__)) return;
  event = shared_event();
  poller = make(_i, event);
  rc_poller_clear(poller);
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event got, wanted = {.events = EPOLLIN | EPOLLET};
  ck_assert_int_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, rc_poller_fd(poller), &wanted), 0);
  for (int i = 0; i < 100; i++) {
    arm(poller, event);
    rc_wake(event);
    ck_assert_int_eq(epoll_wait(epoll, &got, 1, -1), 1);
    rc_poller_clear(poller);
  }
  close(epoll);
  rc_poller_close(poller);
}

int main(void) {
  uring_result = probe_uring();
  return run_tests("poller", NULL, NULL);
}
