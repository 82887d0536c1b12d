/* SPDX-License-Identifier: Apache-2.0 */
/* What every C test program shares: how it runs, and how it says that something could not be tested here. */
#ifndef RC_TESTS_SUITE_H
#define RC_TESTS_SUITE_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs the suite and returns the program's exit status. Each test runs in a process of its own (check's default). */
static inline int run_suite(Suite *suite) {
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* A test case with a time limit that only a hang can meet, on a machine that is busy with much else too. */
static inline TCase *add_case(Suite *suite, const char *name) {
  TCase *tests = tcase_create(name);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return tests;
}

/* For what this machine lacks. Never silent, and never counted as a failure or as shown. */
static inline void tell_skipped(const char *test, const char *reason) {
  fprintf(stderr, "SKIPPED %s: %s\n", test, reason);
}

/* Whether the tests run under this tool, "qemu" or "valgrind", which lacks what the test needs; tells so. */
static inline bool cannot_under(const char *tool, const char *test, const char *reason) {
  const char *under = getenv("RINGCAST_TEST_UNDER");
  if (!under || strcmp(under, tool) != 0) return false;
  tell_skipped(test, reason);
  return true;
}

/* How many of so many bytes are not this one: one assertion for all, as check takes a note of each that it comes by. */
static inline size_t others_than(uint8_t byte, const void *memory, size_t bytes) {
  size_t others = 0;
  for (size_t i = 0; i < bytes; i++) others += ((const uint8_t *)memory)[i] != byte;
  return others;
}

/* How often a test does what it does `times` times. RINGCAST_TEST_SHARE=n makes it an nth, in runs that are watched or
 * repeated; without it, it is all of them. */
static inline int share_of(int times) {
  const char *share = getenv("RINGCAST_TEST_SHARE");
  return share && atoi(share) > 1 ? times / atoi(share) : times;
}

#endif
