/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeps without slices: a wake-up that is lost can't hide behind the end of a slice. It is a hang,
 * which the test's time limit ends. */
#ifndef RC_TESTS_SLEEP_H
#define RC_TESTS_SLEEP_H

#include "shm/os.h"

static int (*real_futex_wait)(_Atomic uint32_t *, uint32_t, int64_t);

static inline int wait_without_end(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)timeout_ns;
  return real_futex_wait(word, value, (int64_t)100000 * 1000000000);
}

static inline void sleep_without_slices(void) {
  if (rc_os.futex_wait == wait_without_end) return; /* a thread may be asleep in it */
  real_futex_wait = rc_os.futex_wait;
  rc_os.futex_wait = wait_without_end;
}

#endif
