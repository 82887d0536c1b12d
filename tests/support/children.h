/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes of a test: started by fork, told to go on by a pipe, dead when the test is. */
#ifndef RC_TESTS_CHILDREN_H
#define RC_TESTS_CHILDREN_H

#include <check.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Fails a child: says why and ends it with an error. */
#define child_must(condition)                                                     \
  do {                                                                            \
    if (!(condition)) {                                                           \
      fprintf(stderr, "%s:%d: in a child: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                   \
    }                                                                             \
  } while (0)

/* Runs `body` in a child, which dies with its parent. */
static inline pid_t start_child(void (*body)(void *), void *context) {
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  body(context);
  _exit(0);
}

static inline void child_must_succeed(pid_t pid) {
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d ended with status 0x%x",
                (int)pid, status);
}

static inline void kill_child(pid_t pid) {
  ck_assert_int_eq(kill(pid, SIGKILL), 0);
  ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

/* R, S, T, Z, ...; 0: there is none any more. */
static inline char state_of(pid_t pid) {
  char path[40], text[256] = "";
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  const char *end = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
  fclose(file);
  return end ? end[2] : 0;
}

/* A gate: many wait, one opens. */
struct gate {
  int ends[2];
};

static inline struct gate gate_make(void) {
  struct gate gate;
  ck_assert_int_eq(pipe(gate.ends), 0);
  return gate;
}

static inline void gate_open(struct gate *gate) {
  ck_assert_int_eq((int)write(gate->ends[1], "x", 1), 1);
}

static inline void gate_wait(struct gate *gate) {
  char byte;
  if (read(gate->ends[0], &byte, 1) != 1) _exit(1);
}

static inline void gate_free(struct gate *gate) {
  close(gate->ends[0]);
  close(gate->ends[1]);
}

#endif
