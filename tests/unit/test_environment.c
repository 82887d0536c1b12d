/* SPDX-License-Identifier: Apache-2.0 */
/* Settings by environment variables: numbers and choices, and the errors for all other text. */
#include "shm/environment.h"

#include <errno.h>

#include "shm/error.h"
#include "tests/support/suite.h"

#define NAME "RINGCAST_TEST_SETTING"

static int number_of(const char *text, uint64_t *out) {
  if (text) setenv(NAME, text, 1);
  else unsetenv(NAME);
  return rc_environment_number(NAME, 1000, "bytes", "none", out);
}

TEST(a_number_is_taken_as_it_is) {
  uint64_t number = 7;
  ck_assert_int_eq(number_of(NULL, &number), 0);
  ck_assert_int_eq(number_of("", &number), 0);
  ck_assert_uint_eq(number, 7);
  ck_assert_int_eq(number_of("0", &number), 1);
  ck_assert_uint_eq(number, 0);
  ck_assert_int_eq(number_of("1000", &number), 1);
  ck_assert_uint_eq(number, 1000);
}

TEST(all_other_text_is_an_error_that_says_what_is_right) {
  const char *const wrong[] = {"1001", "-1", "+1", " 1", "1 ", "1K", "0x10", "none", "99999999999999999999"};
  uint64_t number = 7;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ck_assert_int_eq(number_of(wrong[i], &number), -EINVAL);
    ck_assert_uint_eq(number, 7);
  }
  ck_assert_str_eq(rc_error_text(), NAME " is '99999999999999999999': it must be a whole number of bytes, 0 (none) to "
                                         "1000");
}

TEST(a_choice_is_one_of_its_names) {
  static const char *const names[] = {"red", "green", "blue"};
  uint32_t choice = 1;
  unsetenv(NAME);
  ck_assert_int_eq(rc_environment_choice(NAME, names, 3, &choice), 0);
  ck_assert_uint_eq(choice, 1);
  setenv(NAME, "blue", 1);
  ck_assert_int_eq(rc_environment_choice(NAME, names, 3, &choice), 1);
  ck_assert_uint_eq(choice, 2);
  setenv(NAME, "Red", 1);
  ck_assert_int_eq(rc_environment_choice(NAME, names, 3, &choice), -EINVAL);
  ck_assert_str_eq(rc_error_text(), NAME " is 'Red': it must be red, green or blue");
  ck_assert_uint_eq(choice, 2);
}

RUN_TESTS("environment", NULL, NULL)
