/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of waiting share: who waits for a value, parked or in slices, and what may happen meanwhile. */
#ifndef RC_TESTS_WAIT_H
#define RC_TESTS_WAIT_H

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "ringcast/ringcast.h"
#include "shm/fence.h"
#include "shm/os.h"
#include "shm/uring.h"
#include "shm/wait.h"
#include "tests/support/children.h"
#include "tests/support/suite.h"
#include "tests/support/switches.h"

/* The last is for tests that do not mind a lack of pidfds: who watches a process does not park then. */
enum { PARKED, SLICED, WAYS, PARKED_UNLESS_IT_WATCHES };

static int uring_result; /* found out before any test, in the process above theirs */
static struct rc_os real;

/* Whether the test can run this way. */
static inline bool choose(int way, const char *test) {
  real = rc_os;
  if (way == SLICED) {
    disable_too("io_uring");
    return true;
  }
  char reason[100] = "";
  if (uring_result != 0) snprintf(reason, sizeof reason, "no io_uring: %s", strerror(-uring_result));
  else if (!rc_fence_register()) snprintf(reason, sizeof reason, "no membarrier, so nobody parks");
  else if (way == PARKED && !has_pidfds()) snprintf(reason, sizeof reason, "no pidfds, so who watches does not park");
  if (*reason) tell_skipped(test, reason);
  return !*reason;
}

struct target {
  struct rc_event event;
  struct rc_crowd crowd;
  struct rc_waiter waiter;
  struct rc_watch watch;
  _Atomic uint64_t value;
  uint64_t wanted;
  int checks;
};

static inline int poll_target(void *context) {
  struct target *target = context;
  return rc_load_acquire(&target->value) >= target->wanted ? 0 : -EAGAIN;
}

static inline int check_target(void *context) {
  struct target *target = context;
  target->checks++;
  return target->watch.pid == 0 || rc_watch_is_alive(&target->watch) ? -EAGAIN : -EOWNERDEAD;
}

static inline struct rc_watch *watch_target(void *context) {
  struct rc_watch *watch = &((struct target *)context)->watch;
  return watch->pid ? watch : NULL;
}

/* The last wait counts as long, so that the next one parks at once. */
static inline int wait_for(struct target *target, int64_t timeout_ns) {
  const struct rc_wait how = {
      .poll = poll_target, .check = check_target, .whom = watch_target, .context = target, .sole = true};
  target->waiter.waited_ns = RC_UNPARKED_NS;
  return rc_wait(&target->waiter, &how, timeout_ns);
}

/* Shared with children. peer 0: nobody. */
static inline struct target *make(pid_t peer) {
  struct target *target = mmap(NULL, sizeof *target, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  struct rc_process process = {0};
  ck_assert_ptr_ne(target, MAP_FAILED);
  target->wanted = 1;
  if (peer) ck_assert_int_eq(rc_process_find(peer, &process), 0);
  rc_watch_init(&target->watch, process.pid, process.start, UINT64_MAX);
  ck_assert_int_eq(rc_waiter_init(&target->waiter, &target->event, &target->crowd, -1), 0);
  if (!rc_fence_register()) rc_event_fence(&target->event); /* for those who will signal it */
  return target;
}

static inline void destroy(struct target *target) {
  rc_waiter_destroy(&target->waiter);
  rc_watch_close(&target->watch);
  munmap(target, sizeof *target);
}

#define must_have_slept(target, way) \
  ck_assert_uint_eq((target)->waiter.waiting, (way) == PARKED ? RINGCAST_WAIT_URING : RINGCAST_WAIT_FUTEX)

static inline void signal_value(struct target *target, uint64_t value) {
  rc_store_release(&target->value, value);
  rc_wake(&target->event);
}

/* ---- Once the sleeper has looked for the last time, and is about to sleep, something happens, once. ------------- */

static void (*happening)(void *context);
static void *of_it;

static inline void happen(void) {
  void (*what)(void *) = happening;
  happening = NULL;
  if (what) what(of_it);
}

static inline int happen_and_poll(struct pollfd *files, unsigned count, int64_t timeout_ns) {
  if (timeout_ns > 0) happen();
  return real.poll(files, count, timeout_ns);
}

static inline int happen_and_wait(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  happen();
  return real.futex_wait(word, value, timeout_ns);
}

static inline int wait_until_it_happens(struct target *target, int64_t timeout_ns, void (*what)(void *),
                                        void *context) {
  rc_os.poll = happen_and_poll;
  rc_os.futex_wait = happen_and_wait;
  happening = what;
  of_it = context;
  int result = wait_for(target, timeout_ns);
  ck_assert(!happening);
  rc_os = real;
  return result;
}

static inline void live_for_ever(void *context) {
  (void)context;
  for (;;) pause();
}

static inline void kill_peer(void *context) { ck_assert_int_eq(kill(*(pid_t *)context, SIGKILL), 0); }

static inline void give(void *context) { signal_value(context, 1); }

#endif
