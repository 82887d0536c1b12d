/* SPDX-License-Identifier: Apache-2.0 */
/* How the driver is opened: once in a process, so each case has a process of its own, by check. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>

#include "ringcast/gpu.h"
#include "ringcast/ringcast.h"
#include "shm/error.h"
#include "shm/process.h"
#include "tests/support/children.h"
#include "tests/support/fake_controls.h"
#include "tests/support/leaks.h"
#include "tests/support/suite.h"

static const struct {
  const char *name, *value; /* in the environment */
  enum rc_cuda_mode mode;
  rc_cu_result result;
  int version, devices;
  const char *why;
} cases[] = {
    {"FAKE_CUDA_DEVICES", "1", RC_CUDA_READY, 0, 13000, 1, ""},
    {"FAKE_CUDA_DEVICES", "3", RC_CUDA_READY, 0, 13000, 3, ""},
    {"FAKE_CUDA_FAIL", "cuDriverGetVersion:1:1", RC_CUDA_READY, 0, 0, 1, ""},
    {"RINGCAST_DISABLE", "cuda", RC_CUDA_SWITCHED_OFF, 0, 0, 0, "switched off by RINGCAST_"},
    {"no library", "", RC_CUDA_NO_LIBRARY, 0, 0, 0, "libcuda.so.1: cannot open"},
    {"FAKE_CUDA_INIT", "34", RC_CUDA_STUB, 34, 13000, 0, "libcuda.so.1 is a toolkit's stub"},
    {"FAKE_CUDA_INIT", "100", RC_CUDA_NO_DEVICE, 100, 13000, 0,
     "no device (CUDA_ERROR_NO_DEVICE, 100)"},
    {"FAKE_CUDA_DEVICES", "0", RC_CUDA_NO_DEVICE, 100, 13000, 0, "no device"},
    {"old library", "", RC_CUDA_TOO_OLD, 500, 0, 0, "has no cuGetProcAddress_v2; install a"},
    {"FAKE_CUDA_WITHOUT", "cuInit", RC_CUDA_TOO_OLD, 500, 0, 0,
     "the driver is too old: it has no cuInit;"},
    {"FAKE_CUDA_WITHOUT", "cuStreamWaitEvent", RC_CUDA_TOO_OLD, 500, 0, 0,
     "it has no cuStreamWaitEvent;"},
    {"FAKE_CUDA_INIT", "999", RC_CUDA_BROKEN, 999, 13000, 0,
     "cuInit gives CUDA_ERROR_UNKNOWN (999)"},
    {"FAKE_CUDA_INIT", "12345", RC_CUDA_BROKEN, 12345, 13000, 0, "an error without a name (12345)"},
    {"FAKE_CUDA_FAIL", "cuDeviceGetCount:1:2", RC_CUDA_BROKEN, 2, 13000, 0,
     "CUDA_ERROR_OUT_OF_MEMORY (2)"},
    {"FAKE_CUDA_INIT", "3", RC_CUDA_FORKED, 3, 0, 0, "before this process was forked"},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Loaded by its path, a library is found by its name too. It lies beside the one that this program
 * runs with. */
static void load_old_library(void) {
  char path[PATH_MAX];
  const char *list = getenv("LD_LIBRARY_PATH");
  ck_assert_ptr_nonnull(list);
  snprintf(path, sizeof path, "%.*s/../old/libcuda.so.1", (int)strcspn(list, ":"), list);
  ck_assert_msg(dlopen(path, RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
}

LOOP_TEST(each_state_of_the_driver_has_its_mode_and_its_words, 0, CASES) {
  int before = open_descriptors();
  rlim_t most = 0;
  if (strcmp(cases[_i].name, "old library") == 0) load_old_library();
  else if (strcmp(cases[_i].name, "no library") == 0) most = limit_descriptors(0);
  else setenv(cases[_i].name, cases[_i].value, 1);
  ck_assert(!rc_cuda_is_open());
  const struct rc_cuda_status *status = rc_cuda_status();
  if (most != 0) limit_descriptors(most);
  ck_assert_msg(strstr(status->why, cases[_i].why) && (*cases[_i].why || !*status->why), "%s",
                status->why);
  ck_assert_int_eq(status->mode, cases[_i].mode);
  ck_assert_int_eq(status->result, cases[_i].result);
  ck_assert_int_eq(status->version, cases[_i].version);
  ck_assert_int_eq(status->devices, cases[_i].devices);
  ck_assert(rc_cuda_is_open() == (status->mode == RC_CUDA_READY) &&
            !rc_cuda() == !rc_cuda_is_open());
  ck_assert_int_eq(open_descriptors(), before);
}

static void *open_it(void *out) {
  *(const struct rc_cuda **)out = rc_cuda();
  return NULL;
}

TEST(threads_that_ask_at_once_get_the_same_and_start_it_once) {
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  const struct rc_cuda *found[THREADS];
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, open_it, &found[i]), 0);
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
  child_must(ringcast_gpu_status(&status) == 0 && status.ready == 0 &&
             status.result == RC_CU_NOT_INITIALIZED);
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

static void set_up(void) { unsetenv("RINGCAST_DISABLE"); }

RUN_TESTS("cuda driver", set_up, NULL)
