/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver, for a test that runs with it (ringcast_add_gpu_test): see tests/fake_cuda/fake_cuda.h. */
#ifndef RC_TESTS_GPU_H
#define RC_TESTS_GPU_H

#include <check.h>

#include "tests/support/fake_controls.h"
#include "tests/support/suite.h"

/* run_suite for who needs the driver. */
static inline int run_gpu_suite(Suite *suite, const char *test) {
  if (fake_must_be_found(test)) return run_suite(suite);
  srunner_free(srunner_create(suite));
  return EXIT_FAILURE;
}

/* That all was given back: what the driver has is what it had at first. */
static inline void fake_must_be_empty(void) {
  static const char *const kinds[] = {"allocations", "imports", "registered", "streams",
                                      "contexts",    "queued",  "lost",       "events"};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    ck_assert_msg(fake_cuda()->live(kinds[i]) == 0, "%ld left: %s", fake_cuda()->live(kinds[i]), kinds[i]);
}

#endif
