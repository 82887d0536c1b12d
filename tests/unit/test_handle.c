/* SPDX-License-Identifier: Apache-2.0 */
/* Handles as text, and telling processes apart. */
#define _GNU_SOURCE
#include "shm/handle.h"

#include <errno.h>
#include <pthread.h>
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

TEST(a_process_lives_until_it_exits_even_if_nobody_waits_for_it) {
  struct rc_process self, child;
  ck_assert_int_eq(rc_process_self(&self), 0);
  ck_assert_int_eq(self.pid, getpid());
  ck_assert(rc_process_is_alive(&self));
  int gate[2], done[2];
  ck_assert_int_eq(pipe(gate) | pipe(done), 0);
  pid_t pid = fork();
  if (pid == 0) {
    char byte;
    close(gate[1]);
    if (read(gate[0], &byte, 1) != 0) abort();
    _exit(0);
  }
  close(done[1]);
  ck_assert_int_eq(rc_process_find(pid, &child), 0);
  ck_assert(rc_process_is_alive(&child));
  close(gate[1]);
  siginfo_t info;
  ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0); /* it is a zombie now */
  ck_assert(!rc_process_is_alive(&child));
  ck_assert_int_eq(rc_process_find(pid, &child), -ENOENT);
  ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
  ck_assert(!rc_process_is_alive(&child));
}

static void *outlive_the_main_thread(void *pipe) {
  char byte;
  if (read(((int *)pipe)[0], &byte, 1) != 0) abort();
  _exit(0);
}

TEST(a_process_lives_as_long_as_any_of_its_threads) {
  int gate[2];
  struct rc_process child;
  char path[32], state = 0;
  ck_assert_int_eq(pipe(gate), 0);
  pid_t pid = fork();
  if (pid == 0) {
    pthread_t thread;
    close(gate[1]);
    pthread_create(&thread, NULL, outlive_the_main_thread, gate);
    pthread_exit(NULL);
  }
  ck_assert_int_eq(rc_process_find(pid, &child), 0);
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  while (state != 'Z') { /* until its main thread has ended */
    FILE *file = fopen(path, "re");
    ck_assert_int_eq(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
    fclose(file);
  }
  ck_assert(rc_process_is_alive(&child));
  close(gate[1]);
  ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
  ck_assert(!rc_process_is_alive(&child));
}

TEST(a_process_that_proc_does_not_show_is_not_taken_for_dead) {
  if (geteuid() != 0) {
    tell_skipped("a_process_that_proc_does_not_show_is_not_taken_for_dead", "only root can change its root directory");
    return;
  }
  struct rc_process self, dead;
  ck_assert_int_eq(rc_process_self(&self), 0);
  dead = self, dead.pid = fork();
  if (dead.pid == 0) _exit(0);
  ck_assert_int_eq(waitpid(dead.pid, NULL, 0), dead.pid);
  pid_t pid = fork(); /* leak checkers need /proc at the end, so the test itself keeps it */
  if (pid == 0)
    _exit(chroot("/sys") == 0 && rc_process_is_alive(&self) && !rc_process_is_alive(&dead) &&
                  rc_process_find(self.pid, &self) == -EIO
              ? 0
              : 1);
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
}

TEST(without_descriptors_nobody_is_taken_for_dead) {
  struct rc_process self;
  struct rlimit limit, none = {0, 0};
  ck_assert_int_eq(rc_process_self(&self), 0);
  getrlimit(RLIMIT_NOFILE, &limit);
  none.rlim_max = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &none);
  int found = rc_process_find(self.pid, &self);
  bool alive = rc_process_is_alive(&self);
  setrlimit(RLIMIT_NOFILE, &limit);
  ck_assert_int_eq(found, -EMFILE);
  ck_assert(alive);
}

TEST(a_reused_pid_is_another_process) {
  struct rc_process self;
  ck_assert_int_eq(rc_process_self(&self), 0);
  self.start += 1;
  ck_assert(!rc_process_is_alive(&self));
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
