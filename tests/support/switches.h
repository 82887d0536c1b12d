/* SPDX-License-Identifier: Apache-2.0 */
/* RINGCAST_DISABLE in a test: what the whole run is forced to do without stays switched off. */
#ifndef RC_TESTS_SWITCHES_H
#define RC_TESTS_SWITCHES_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

/* Switches off one thing more. */
static inline void disable_too(const char *what) {
  const char *before = getenv("RINGCAST_DISABLE");
  char list[256];
  ck_assert_int_lt(snprintf(list, sizeof list, "%s,%s", before ? before : "", what), (int)sizeof list);
  ck_assert_int_eq(setenv("RINGCAST_DISABLE", list, 1), 0);
}

/* How often a test does what it does `times` times. RINGCAST_TEST_SHARE=n makes it an nth, in repeated runs. */
static inline int share_of(int times) {
  const char *share = getenv("RINGCAST_TEST_SHARE");
  return share && atoi(share) > 1 ? times / atoi(share) : times;
}

#endif
