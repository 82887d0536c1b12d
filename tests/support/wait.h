/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of waiting share: a party that waits for a value, and what may happen
 * meanwhile. */
#ifndef RC_TESTS_WAIT_H
#define RC_TESTS_WAIT_H

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "ringcast/ringcast.h"
#include "shm/os.h"
#include "shm/wait.h"
#include "tests/support/children.h"
#include "tests/support/suite.h"

static struct rc_os real;

struct target {
  struct rc_eventcount event;
  struct rc_cpus cpus;
  struct rc_waiter waiter;
  struct rc_watch watch;
  _Atomic uint64_t value;
  uint64_t wanted;
  int check_result, checks; /* what a check finds, unless a process is watched */
};

static inline void set_up(struct target *target, int64_t spin_ns, int check_result) {
  *target = (struct target){.wanted = 1, .check_result = check_result};
  ck_assert_int_eq(rc_waiter_init(&target->waiter, &target->event, &target->cpus, spin_ns, 0), 0);
}

static inline int poll_target(void *context) {
  struct target *target = context;
  return rc_load_acquire(&target->value) >= target->wanted ? 0 : -EAGAIN;
}

static inline int check_target(void *context) {
  struct target *target = context;
  target->checks++;
  if (target->watch.pid == 0) return target->check_result;
  return rc_watch_look(&target->watch) == RC_PROCESS_ENDED ? -EOWNERDEAD : -EAGAIN;
}

static inline int wait_for(struct target *target, int64_t timeout_ns) {
  const struct rc_wait how = {.poll = poll_target, .check = check_target, .context = target};
  return rc_wait(&target->waiter, &how, timeout_ns);
}

/* Shared with children. peer 0: nobody. */
static inline struct target *make(pid_t peer) {
  struct target *target =
      mmap(NULL, sizeof *target, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  struct rc_process process = {0};
  ck_assert_ptr_ne(target, MAP_FAILED);
  real = rc_os;
  set_up(target, -1, -EAGAIN);
  if (peer) ck_assert_int_eq(rc_process_find(peer, &process), 0);
  rc_watch_init(&target->watch, process.pid, process.start, UINT64_MAX);
  return target;
}

static inline void destroy(struct target *target) {
  rc_watch_close(&target->watch);
  munmap(target, sizeof *target);
}

static inline void signal_value(struct target *target, uint64_t value) {
  rc_store_release(&target->value, value);
  rc_wake(&target->event);
}

/* ---- Something happens once, after the sleeper's last look ----------------------------------- */

static void (*happening)(void *context);
static void *of_it;

static inline void happen(void) {
  void (*what)(void *) = happening;
  happening = NULL;
  if (what) what(of_it);
}

static inline int happen_and_wait(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  happen();
  return real.futex_wait(word, value, timeout_ns);
}

static inline int wait_until_it_happens(struct target *target, int64_t timeout_ns,
                                        void (*what)(void *), void *context) {
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

static inline void kill_peer(void *context) {
  ck_assert_int_eq(kill(*(pid_t *)context, SIGKILL), 0);
}

static inline void give(void *context) { signal_value(context, 1); }

#endif
