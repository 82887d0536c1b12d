/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for a value of the same process by rc_wait, and what it does when it is asked to check. */
#ifndef RC_TESTS_WAITER_H
#define RC_TESTS_WAITER_H

#include <errno.h>

#include "ring/eventcount.h"
#include "shm/topology.h"
#include "shm/wait.h"
#include "tests/support/suite.h"

struct target {
  struct rc_eventcount event;
  struct rc_cpus cpus;
  struct rc_waiter waiter;
  _Atomic uint64_t value;
  uint64_t wanted;
  int check_result, checks;
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
  return target->check_result;
}

static inline int wait_for(struct target *target, int64_t timeout_ns) {
  const struct rc_wait how = {.poll = poll_target, .check = check_target, .context = target};
  return rc_wait(&target->waiter, &how, timeout_ns);
}

#endif
