/* SPDX-License-Identifier: Apache-2.0 */
/* RINGCAST_DISABLE in a test: what the whole run is forced to do without stays switched off. */
#ifndef RC_TESTS_SWITCHES_H
#define RC_TESTS_SWITCHES_H

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "shm/options.h"
#include "shm/os.h"
#include "tests/support/suite.h"

/* Switches off one thing more. */
static inline void disable_too(const char *what) {
  const char *before = getenv("RINGCAST_DISABLE");
  char list[256];
  ck_assert_int_lt(snprintf(list, sizeof list, "%s,%s", before ? before : "", what),
                   (int)sizeof list);
  ck_assert_int_eq(setenv("RINGCAST_DISABLE", list, 1), 0);
}

/* Whether a process is watched by its pidfd here, and not by what /proc says of it from time to
 * time. */
static inline bool has_pidfds(void) {
  int fd = rc_feature_disabled("pidfd") ? -1 : rc_os.pidfd_open(getpid());
  if (fd >= 0) close(fd);
  return fd >= 0;
}

#endif
