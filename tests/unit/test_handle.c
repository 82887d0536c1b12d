/* SPDX-License-Identifier: Apache-2.0 */
/* Handles as text, and telling processes apart. */
#define _GNU_SOURCE
#include "shm/handle.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/suite.h"

#define TOKEN "0123456789abcdef0123456789abcdef"

TEST(what_is_formatted_is_parsed_back) {
  const struct rc_handle handles[] = {
      {.writer = {1, 0}},
      {.writer = {INT32_MAX, UINT64_MAX},
       .control_fd = INT32_MAX,
       .data_fd = INT32_MAX,
       .token = {UINT64_MAX, UINT64_MAX}},
      {.writer = {4711, 123456}, .control_fd = 3, .data_fd = 4, .token = {0x0123456789abcdef, 0}},
  };
  for (size_t i = 0; i < sizeof handles / sizeof *handles; i++) {
    char text[RC_HANDLE_MAX];
    struct rc_handle parsed;
    rc_handle_format(&handles[i], text);
    ck_assert_uint_lt(strlen(text), RC_HANDLE_MAX - 1);
    ck_assert_int_eq(rc_handle_parse(text, &parsed), 0);
    ck_assert_int_eq(parsed.writer.pid, handles[i].writer.pid);
    ck_assert_uint_eq(parsed.writer.start, handles[i].writer.start);
    ck_assert_int_eq(parsed.control_fd, handles[i].control_fd);
    ck_assert_int_eq(parsed.data_fd, handles[i].data_fd);
    ck_assert_mem_eq(parsed.token, handles[i].token, sizeof parsed.token);
  }
}

TEST(anything_else_is_refused) {
  static const char *const texts[] = {
      "",
      "rc1",
      "rc1:",
      "rc2:1:2:3:4:" TOKEN,
      "rc1:1:2:3:4:",
      "rc1:1:2:3:4:" TOKEN "0",
      "rc1:1:2:3:4:" TOKEN " ",
      "rc1:1:2:3:4:0123456789abcdef0123456789abcde",
      "rc1:1:2:3:4:0123456789ABCDEF0123456789abcdef",
      "rc1:0:2:3:4:" TOKEN,
      "rc1:-1:2:3:4:" TOKEN,
      "rc1:+1:2:3:4:" TOKEN,
      "rc1: 1:2:3:4:" TOKEN,
      "rc1:01:2:3:4:" TOKEN,
      "rc1:2147483648:2:3:4:" TOKEN,
      "rc1:1:18446744073709551616:3:4:" TOKEN,
      "rc1:1:2:2147483648:4:" TOKEN,
      "rc1:1::3:4:" TOKEN,
      "rc1:1:2:3:4:" TOKEN ":5",
  };
  struct rc_handle handle;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    ck_assert_msg(rc_handle_parse(texts[i], &handle) == -EINVAL, "accepted: %s", texts[i]);
  ck_assert_int_eq(rc_handle_parse(NULL, &handle), -EINVAL);
  ck_assert_int_eq(rc_handle_parse("rc1:1:2:3:4:" TOKEN, &handle), 0);
}

TEST(endless_garbage_is_refused_after_a_glance) {
  char *text = malloc(RC_HANDLE_MAX); /* no terminator: reading further is caught by the address sanitizer */
  memset(text, '1', RC_HANDLE_MAX);
  memcpy(text, "rc1:", 4);
  struct rc_handle handle;
  ck_assert_int_eq(rc_handle_parse(text, &handle), -EINVAL);
  free(text);
}

TEST(without_descriptors_nobody_is_taken_for_dead) {
  struct rc_process self;
  struct rlimit limit, none = {0, 0};
  ck_assert_int_eq(rc_process_self(&self), 0);
  getrlimit(RLIMIT_NOFILE, &limit);
  none.rlim_max = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &none);
  int found = rc_process_find(self.pid, &self);
  bool alive = rc_process_is_alive_by(self.pid, self.start, UINT64_MAX);
  setrlimit(RLIMIT_NOFILE, &limit);
  ck_assert_int_eq(found, -EMFILE);
  ck_assert(alive);
}

TEST(a_fork_is_counted_in_the_child_only) {
  uint32_t before = rc_fork_count();
  pid_t pid = fork();
  if (pid == 0) _exit(rc_fork_count() == before + 1 ? 0 : 1);
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  ck_assert_uint_eq(rc_fork_count(), before);
}

RUN_TESTS("handle", NULL, NULL)
