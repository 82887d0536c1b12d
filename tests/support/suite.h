/* SPDX-License-Identifier: Apache-2.0 */
/* What every C test program shares: how it runs, and how it says that something could not be tested
 * here. */
#ifndef RC_TESTS_SUITE_H
#define RC_TESTS_SUITE_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* check notes each assertion that holds by a write to a pipe, which is most of the time that a test
 * with many takes. Without the notes, a test that a signal kills is reported with the place of its
 * first line. */
#define _mark_point(file, line) ((void)0)

/* Runs the suite and returns the program's exit status. Each test runs in a process of its own
 * (check's default). */
static inline int run_suite(Suite *suite) {
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* A test case with a time limit that only a hang can meet, on a machine that is busy with much else
 * too. */
static inline TCase *add_case(Suite *suite, const char *name) {
  TCase *tests = tcase_create(name);
  tcase_set_timeout(tests, 600);
  suite_add_tcase(suite, tests);
  return tests;
}

/* A program of one test case. TEST(name) { ... } defines a test and LOOP_TEST(name, from, to) { ...
 * } one for each `_i` from `from` to below `to`; RUN_TESTS(suite, set_up, tear_down) at the end of
 * the file is main() and runs them all, each between set_up and tear_down (NULL: neither). A test
 * that is defined is run: there is no list to forget it in. */
#define LOOP_TEST(name, from, to)                                  \
  static void name(int _i);                                        \
  __attribute__((constructor)) static void register_##name(void) { \
    static const TTest test = {#name, name, __FILE__, __LINE__};   \
    static struct registered here;                                 \
    here = (struct registered){&test, from, to, NULL};             \
    *registered_last = &here;                                      \
    registered_last = &here.next;                                  \
  }                                                                \
  static void name(int _i CK_ATTRIBUTE_UNUSED)
#define TEST(name) LOOP_TEST(name, 0, 1)
#define RUN_TESTS(suite, set_up, tear_down) \
  int main(void) { return run_tests(suite, set_up, tear_down); }

struct registered {
  const TTest *test;
  int from, to;
  struct registered *next;
};
static struct registered *registered_first;
__attribute__((unused)) static struct registered **registered_last = &registered_first;

static inline int run_tests(const char *name, void (*set_up)(void), void (*tear_down)(void)) {
  Suite *suite = suite_create(name);
  TCase *tests = add_case(suite, name);
  tcase_add_checked_fixture(tests, set_up, tear_down);
  for (const struct registered *each = registered_first; each; each = each->next) {
    tcase_add_loop_test(tests, each->test, each->from, each->to);
  }
  return run_suite(suite);
}

/* For what this machine lacks. Never silent, and never counted as a failure or as shown. */
static inline void tell_skipped(const char *test, const char *reason) {
  fprintf(stderr, "SKIPPED %s: %s\n", test, reason);
}

/* Whether the tests run under this tool, "qemu" or "valgrind", which lacks what the test needs;
 * tells so. */
static inline bool cannot_under(const char *tool, const char *test, const char *reason) {
  const char *under = getenv("RINGCAST_TEST_UNDER");
  if (!under || strcmp(under, tool) != 0) return false;
  tell_skipped(test, reason);
  return true;
}

/* How many of so many bytes are not this one. */
static inline size_t others_than(uint8_t byte, const void *memory, size_t bytes) {
  size_t others = 0;
  for (size_t i = 0; i < bytes; i++) others += ((const uint8_t *)memory)[i] != byte;
  return others;
}

/* How often a test does what it does `times` times. RINGCAST_TEST_SHARE=n makes it an nth, in runs
 * that are watched or repeated; without it, it is all of them. */
static inline int share_of(int times) {
  const char *share = getenv("RINGCAST_TEST_SHARE");
  return share && atoi(share) > 1 ? times / atoi(share) : times;
}

#endif
