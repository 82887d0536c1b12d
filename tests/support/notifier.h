/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the notifier share: each runs by io_uring and by the helper thread. */
#ifndef RC_TESTS_NOTIFIER_H
#define RC_TESTS_NOTIFIER_H

#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/notify.h"
#include "shm/uring.h"
#include "shm/wait.h"
#include "tests/support/suite.h"
#include "tests/support/switches.h"

/* No slice ever ends, so none hides a lost wake-up. A loss is a hang, which the time limit ends. */
#define NEVER ((int64_t)100000 * 1000000000)

enum { BY_URING, BY_THREAD, WAYS };

/* Found out before any test, in the process above theirs: what is left of a closed ring ends a blocking call of its
 * thread with EINTR, some time later. */
static int uring_result;

/* Whether the test can run this way. */
static inline bool choose(int way, const char *test) {
  if (way == BY_THREAD) {
    disable_too("io_uring");
    return true;
  }
  char reason[100] = "";
  if (uring_result != 0) snprintf(reason, sizeof reason, "no io_uring: %s", strerror(-uring_result));
  if (*reason) tell_skipped(test, reason);
  return !*reason;
}

static inline struct rc_notifier *make(int way, struct rc_event *event, int64_t slice_ns) {
  struct rc_notifier *notifier;
  ck_assert_int_eq(rc_notifier_create(event, slice_ns, &notifier), 0);
  ck_assert_int_eq(rc_notifier_uses_uring(notifier), way == BY_URING);
  return notifier;
}

static inline void arm(struct rc_notifier *notifier, struct rc_event *event) {
  ck_assert_int_eq(rc_notifier_arm(notifier, rc_event_prepare(event)), 0);
}

static inline bool readable_within(const struct rc_notifier *notifier, int ms) {
  struct pollfd look = {.fd = rc_notifier_fd(notifier), .events = POLLIN};
  int result = poll(&look, 1, ms);
  ck_assert_int_ge(result, 0);
  return result == 1;
}

static inline struct rc_event *shared_event(void) {
  struct rc_event *event = mmap(NULL, sizeof *event, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(event, MAP_FAILED);
  return event;
}

#define must_become_readable(notifier) ck_assert(readable_within((notifier), -1))
#define must_be_readable(notifier)     ck_assert(readable_within((notifier), 0))
#define must_stay_quiet(notifier)      ck_assert(!readable_within((notifier), 20))

/* ---- Many rounds ------------------------------------------------------------------------------------------------ */

struct game {
  struct rc_event event;
  uint64_t rounds;
  _Atomic uint64_t sent, seen;
};

/* Signals again only once the last signal was seen, so each of them matters: a loss is a hang. The pauses differ, so
 * that some come before the arm, some into it, some after it. */
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
