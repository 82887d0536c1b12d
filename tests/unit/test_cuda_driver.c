/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the driver is opened. What libcuda.so.1 is, and what it says at its start, is fixed for a process when it starts,
 * so each case runs this program again, with an environment of its own and the word "child": then it says in a line
 * what it has found.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ringcast/gpu.h"
#include "ringcast/ringcast.h"
#include "shm/error.h"
#include "shm/process.h"
#include "tests/support/children.h"
#include "tests/support/fake_controls.h"
#include "tests/support/leaks.h"
#include "tests/support/suite.h"

enum { MOST_CHANGES = 4 };

/* ---- The child -------------------------------------------------------------------------------------------------- */

static void tell(void) {
  const struct rc_cuda_status *status = rc_cuda_status();
  const struct rc_cuda *cuda = rc_cuda();
  printf("mode %d, result %d, version %d, devices %d, table %d, open %d, %s: %s\n", status->mode, status->result,
         status->version, status->devices, cuda != NULL, rc_cuda_is_open(), rc_cuda_name(2), status->why);
}

static int be_the_child(void) {
  int before = open_descriptors();
  if (rc_cuda_is_open()) return 2;
  tell();
  fflush(stdout);
  return open_descriptors() == before ? 0 : 3;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------ */

static char self[PATH_MAX], fakes[PATH_MAX]; /* this program; the folder of the fake drivers */

/* What the child says, with LD_LIBRARY_PATH as told: a fake by its name, or "none". */
static void run(const char *driver, const char *const changes[MOST_CHANGES], char *out, size_t size) {
  int ends[2], status;
  char path[PATH_MAX + 32];
  ck_assert_int_eq(pipe(ends), 0);
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid == 0) {
    snprintf(path, sizeof path, "%s/%s", fakes, driver);
    setenv("LD_LIBRARY_PATH", path, 1);
    unsetenv("RINGCAST_DISABLE");
    for (int i = 0; i < MOST_CHANGES && changes[i]; i++) putenv(strdup(changes[i]));
    dup2(ends[1], STDOUT_FILENO);
    execl(self, self, "child", NULL);
    _exit(127);
  }
  close(ends[1]);
  FILE *said = fdopen(ends[0], "r");
  size_t bytes = fread(out, 1, size - 1, said);
  out[bytes] = '\0';
  fclose(said);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status 0x%x; it said: %s", status, out);
}

/* Result 2, of a program with a driver to ask, which stays open. */
#define NAMED   ", CUDA_ERROR_OUT_OF_MEMORY: "
#define UNNAMED ", an error without a name: "

static const struct {
  const char *driver;
  const char *changes[MOST_CHANGES];
  const char *begins, *holds; /* the line */
} cases[] = {
    {"new", {0}, "mode 0, result 0, version 13000, devices 1, table 1, open 1" NAMED "\n", ""},
    {"new", {"FAKE_CUDA_DEVICES=3"}, "mode 0, result 0, version 13000, devices 3,", ""},
    {"new", {"RINGCAST_DISABLE=cuda"}, "mode 1, result 0, version 0, devices 0,", UNNAMED "switched off by RINGCAST_"},
    {"none", {0}, "mode 2, result 0, version 0, devices 0, table 0,", "libcuda.so.1: cannot open"},
    {"new", {"FAKE_CUDA_INIT=34"}, "mode 3, result 34,", NAMED "libcuda.so.1 is a toolkit's stub"},
    {"new", {"FAKE_CUDA_INIT=100"}, "mode 4, result 100,", "no device (CUDA_ERROR_NO_DEVICE, 100)"},
    {"new", {"FAKE_CUDA_DEVICES=0"}, "mode 4, result 100,", "no device"},
    {"old", {0}, "mode 5, result 500, version 0, devices 0, table 0, open 0", "has no cuGetProcAddress_v2; install a"},
    {"new", {"FAKE_CUDA_WITHOUT=cuInit"}, "mode 5, result 500, version 0,", UNNAMED "the driver is too old: it has no"},
    {"new", {"FAKE_CUDA_WITHOUT=cuStreamWaitEvent"}, "mode 5,", "it has no cuStreamWaitEvent;"},
    {"new", {"FAKE_CUDA_INIT=999"}, "mode 6, result 999, version 13000,", "cuInit gives CUDA_ERROR_UNKNOWN (999)"},
    {"new", {"FAKE_CUDA_INIT=12345"}, "mode 6, result 12345,", "an error without a name (12345)"},
    {"new", {"FAKE_CUDA_FAIL=cuDeviceGetCount:1:2"}, "mode 6, result 2,", "CUDA_ERROR_OUT_OF_MEMORY (2)"},
    {"new", {"FAKE_CUDA_FAIL=cuDriverGetVersion:1:1"}, "mode 0, result 0, version 0, devices 1,", ""},
    {"new", {"FAKE_CUDA_INIT=3"}, "mode 7, result 3,", "before this process was forked"},
};
enum { CASES = sizeof cases / sizeof *cases };

LOOP_TEST(each_state_of_the_driver_has_its_mode_and_its_words, 0, CASES) {
  char said[1024];
  run(cases[_i].driver, cases[_i].changes, said, sizeof said);
  ck_assert_msg(strncmp(said, cases[_i].begins, strlen(cases[_i].begins)) == 0, "it said: %s", said);
  ck_assert_msg(strstr(said, cases[_i].holds), "it said: %s", said);
}

/* ---- In one process --------------------------------------------------------------------------------------------- */

static void *open_it(void *out) {
  *(const struct rc_cuda **)out = rc_cuda();
  return NULL;
}

TEST(threads_that_ask_at_once_get_the_same_and_start_it_once) {
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  const struct rc_cuda *found[THREADS];
  for (int i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, open_it, &found[i]), 0);
  for (int i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  for (int i = 0; i < THREADS; i++) ck_assert(found[i] && found[i] == found[0]);
  ck_assert_int_eq(fake_cuda()->calls("cuInit"), 1);
}

static void must_be_forked(void *context) {
  (void)context;
  child_must(!rc_cuda() && !rc_cuda_is_open());
  child_must(rc_cuda_status()->mode == RC_CUDA_FORKED && strstr(rc_cuda_status()->why, "forked"));
  child_must(rc_cuda_code(RC_CU_NOT_INITIALIZED, "x") == -ECHILD);
  struct ringcast_gpu_driver status = {.size = sizeof status};
  child_must(ringcast_gpu_status(&status) == 0 && status.ready == 0 && status.result == RC_CU_NOT_INITIALIZED);
}

TEST(a_child_of_who_has_opened_it_cannot_use_it) {
  ck_assert_ptr_nonnull(rc_cuda());
  child_must_succeed(start_child(must_be_forked, NULL));
  ck_assert_ptr_nonnull(rc_cuda());
  ck_assert(rc_cuda_is_open());
}

TEST(a_failure_says_what_by_which_result_and_has_its_errno) {
  static const struct {
    rc_cu_result result;
    int code;
    const char *name;
  } told[] = {
      {RC_CU_OUT_OF_MEMORY, -ENOMEM, "CUDA_ERROR_OUT_OF_MEMORY"},
      {RC_CU_NOT_SUPPORTED, -ENOTSUP, "CUDA_ERROR_NOT_SUPPORTED"},
      {RC_CU_NOT_PERMITTED, -ENOTSUP, "CUDA_ERROR_NOT_PERMITTED"},
      {RC_CU_STREAM_CAPTURE_UNSUPPORTED, -EBUSY, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {RC_CU_STREAM_CAPTURE_INVALIDATED, -EBUSY, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {RC_CU_STREAM_CAPTURE_ISOLATION, -EBUSY, "an error without a name"},
      {RC_CU_STREAM_CAPTURE_IMPLICIT, -EBUSY, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
      {RC_CU_CAPTURED_EVENT, -EBUSY, "an error without a name"},
      {RC_CU_STREAM_CAPTURE_WRONG_THREAD, -EBUSY, "an error without a name"},
      {RC_CU_NOT_INITIALIZED, -EIO, "CUDA_ERROR_NOT_INITIALIZED"},
      {RC_CU_ILLEGAL_ADDRESS, -EIO, "CUDA_ERROR_ILLEGAL_ADDRESS"},
  };
  ck_assert_ptr_nonnull(rc_cuda());
  for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
    char text[128];
    snprintf(text, sizeof text, "a copy of 7 bytes: %s (%d)", told[i].name, told[i].result);
    ck_assert_int_eq(rc_cuda_code(told[i].result, "a copy of %d bytes", 7), told[i].code);
    ck_assert_str_eq(rc_error_text(), text);
  }
}

/* Where the fakes are: this program runs with one of them. */
static bool find_fakes(void) {
  const char *list = getenv("LD_LIBRARY_PATH");
  if (!list) return false;
  snprintf(fakes, sizeof fakes, "%.*s", (int)strcspn(list, ":"), list);
  char *last = strrchr(fakes, '/');
  if (last) *last = '\0';
  return last && readlink("/proc/self/exe", self, sizeof self - 1) > 0;
}

int main(int count, char **words) {
  if (count == 2 && strcmp(words[1], "child") == 0) return be_the_child();
  if (!find_fakes()) {
    fprintf(stderr, "run it by ctest: it needs the fake driver in LD_LIBRARY_PATH\n");
    return EXIT_FAILURE;
  }
  unsetenv("RINGCAST_DISABLE");
  return run_tests("cuda driver", NULL, NULL);
}
