/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to wait, and something that happens once while a call waits. A wake-up that is lost is a
 * hang, where no slice of a sleep may make up for it. */
#ifndef RC_TESTS_MEANWHILE_H
#define RC_TESTS_MEANWHILE_H

#include "tests/support/liveness.h"
#include "tests/support/switches.h"

enum way { BY_TRIES, ASLEEP, SPINNING, BY_URING, BY_THREAD, WITHOUT_PIDFDS, WAYS };

static struct {
  struct rc_os os;
  void (*happens)(void); /* NULL: it has */
  bool in_slices;
  int looks; /* at the clock, until it happens */
} meanwhile;

static inline void let_it_happen(void) {
  void (*what)(void) = meanwhile.happens;
  meanwhile.happens = NULL;
  if (what) what();
}

static inline int happen_and_sleep(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  let_it_happen();
  return meanwhile.os.futex_wait(word, value, meanwhile.in_slices ? timeout_ns : 100000 * SECOND);
}

static inline int64_t happen_and_look(void) {
  if (--meanwhile.looks == 0) let_it_happen();
  return meanwhile.os.now_ns();
}

/* Before the handles are made. */
static inline void choose(enum way way) {
  if (way == BY_THREAD || way == WITHOUT_PIDFDS) disable_too("io_uring");
  if (way == WITHOUT_PIDFDS) disable_too("pidfd");
}

static inline int64_t spin_of(enum way way) {
  return way == SPINNING ? (int64_t)1 << 40 : way == ASLEEP ? -1 : 0;
}

static inline bool has_fd(enum way way) { return way >= BY_URING; }

/* What the call gives in the end. An event loop calls again when it is told to, and has no clock of
 * its own. */
static inline int wait_by(enum way way, int fd, int (*call)(int64_t timeout_ns),
                          void (*happens)(void), bool in_slices) {
  meanwhile.os = rc_os;
  meanwhile.happens = happens;
  meanwhile.in_slices = in_slices;
  meanwhile.looks = 5;
  if (way == ASLEEP) rc_os.futex_wait = happen_and_sleep;
  if (way == SPINNING) rc_os.now_ns = happen_and_look;
  int result = call(way == ASLEEP || way == SPINNING ? RINGCAST_FOREVER : 0);
  while (result == -EAGAIN) {
    let_it_happen();
    if (fd >= 0) ck_assert(is_readable(fd, -1));
    result = call(0);
  }
  rc_os = meanwhile.os;
  ck_assert(!meanwhile.happens);
  return result;
}

#endif
