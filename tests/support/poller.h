/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the poller share: each runs by io_uring and by the helper thread. */
#ifndef RC_TESTS_POLLER_H
#define RC_TESTS_POLLER_H

#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/os.h"
#include "shm/poller.h"
#include "shm/wait.h"
#include "tests/support/children.h"
#include "tests/support/sleep.h"
#include "tests/support/suite.h"
#include "tests/support/switches.h"

#define NEVER INT64_MAX

enum { BY_URING, BY_THREAD, WAYS };

/* Found out before any test, in the process above theirs: what is left of a closed ring ends a
 * blocking call of its thread with EINTR, some time later. */
static int uring_result;

/* Whether the test can run this way. */
static inline bool choose(int way, const char *test) {
  if (way == BY_THREAD) {
    disable_too("io_uring");
    return true;
  }
  char reason[100] = "";
  if (uring_result != 0)
    snprintf(reason, sizeof reason, "no io_uring: %s", strerror(-uring_result));
  if (*reason) tell_skipped(test, reason);
  return !*reason;
}

/* A poller of one event and room for two processes, quiet until it is armed. */
static inline struct rc_poller *make(int way, struct rc_eventcount *event) {
  struct rc_poller *poller;
  sleep_without_slices();
  ck_assert_int_eq(rc_poller_open(event, 2, &poller), 0);
  ck_assert_int_eq(rc_poller_uses_uring(poller), way == BY_URING);
  return poller;
}

static inline void arm(struct rc_poller *poller, struct rc_eventcount *event) {
  ck_assert_int_eq(rc_poller_arm(poller, rc_eventcount_prepare(event), NEVER), 0);
}

static inline bool readable_within(const struct rc_poller *poller, int ms) {
  struct pollfd look = {.fd = rc_poller_fd(poller), .events = POLLIN};
  int result = poll(&look, 1, ms);
  ck_assert_int_ge(result, 0);
  return result == 1;
}

static inline struct rc_eventcount *shared_event(void) {
  struct rc_eventcount *event =
      mmap(NULL, sizeof *event, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(event, MAP_FAILED);
  return event;
}

/* A process that lives until it is killed, and how to watch it. */
struct peer {
  pid_t pid;
  struct rc_watch watch;
};

static inline void live_for_ever(void *nothing) {
  (void)nothing;
  for (;;) pause();
}

static inline struct peer start_peer(void) {
  struct peer peer = {.pid = start_child(live_for_ever, NULL)};
  struct rc_process process;
  ck_assert_int_eq(rc_process_find(peer.pid, &process), 0);
  rc_watch_init(&peer.watch, process.pid, process.start, UINT64_MAX);
  return peer;
}

#define must_become_readable(poller) ck_assert(readable_within((poller), -1))
#define must_be_readable(poller)     ck_assert(readable_within((poller), 0))
#define must_stay_quiet(poller)      ck_assert(!readable_within((poller), 20))

/* ---- Many rounds ----------------------------------------------------------------------------- */

struct game {
  struct rc_eventcount event;
  uint64_t rounds;
  _Atomic uint64_t sent, seen;
};

/* Signals again only once the last signal was seen, so each of them matters: a loss is a hang. The
 * pauses differ, so that some come before the arm, some into it, some after it. */
static inline void *play(void *context) {
  struct game *game = context;
  for (uint64_t i = 1; i <= game->rounds; i++) {
    for (volatile uint64_t pause = i * 7919 % 4096; pause > 0; pause--) {}
    rc_store_release(&game->sent, i);
    rc_wake(&game->event);
    while (rc_load_acquire(&game->seen) < i) sched_yield();
  }
  return NULL;
}

#endif
