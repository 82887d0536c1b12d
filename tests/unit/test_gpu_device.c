/* SPDX-License-Identifier: Apache-2.0 */
/* What a device is said to do, by trying it; and that trying leaves nothing behind, whatever fails. */
#define _GNU_SOURCE
#include <errno.h>

#include "gpu/words.h"
#include "ringcast/gpu.h"
#include "ringcast/ringcast.h"
#include "tests/support/gpu.h"
#include "tests/support/leaks.h"
#include "tests/support/suite.h"
#include "tests/support/switches.h"

static struct ringcast_gpu_device_info device;

static int look(int32_t ordinal, int probe) {
  device = (struct ringcast_gpu_device_info){.size = sizeof device};
  return ringcast_gpu_device(ordinal, probe, &device);
}

static void must_do(int words, int registers, int exports) {
  ck_assert_int_eq(device.words, words);
  ck_assert_int_eq(device.registers, registers);
  ck_assert_int_eq(device.exports, exports);
}

START_TEST(without_a_probe_there_is_no_context) {
  ck_assert_int_eq(look(0, 0), 0);
  ck_assert_str_eq(device.name, "Fake GPU 0");
  ck_assert_mem_eq(device.uuid, "fake-cuda-gpu-0", 16);
  ck_assert(device.total_bytes == 0 && device.free_bytes == 0);
  must_do(0, 0, 0);
  ck_assert_int_eq(fake_cuda()->live("contexts made"), 0);
}
END_TEST

START_TEST(a_device_that_can_do_all_says_so_and_has_nothing_left) {
  int descriptors = look(0, 0) == 0 ? open_descriptors() : -1;
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(look(0, 1), 0);
    must_do(1, 1, 1);
    ck_assert(device.total_bytes > 0 && device.free_bytes == device.total_bytes);
    fake_must_be_empty();
    rc_cu_context current;
    ck_assert_int_eq(rc_cuda()->ctx_get_current(&current), 0);
    ck_assert_ptr_null(current);
  }
  ck_assert_int_eq(fake_cuda()->live("contexts made"), 3);
  ck_assert_int_eq(open_descriptors(), descriptors);
}
END_TEST

START_TEST(what_there_is_not_is_refused) {
  setenv("FAKE_CUDA_DEVICES", "2", 1);
  setenv("FAKE_CUDA_VISIBLE", "1,0", 1);
  ck_assert_int_eq(look(2, 1), -EINVAL);
  ck_assert_ptr_nonnull(strstr(ringcast_last_error(), "this process sees 2"));
  ck_assert_int_eq(look(-1, 0), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_device(0, 0, NULL), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_device(0, 0, &(struct ringcast_gpu_device_info){.size = 1}), -EINVAL);
  ck_assert_int_eq(look(0, 1), 0);
  ck_assert_str_eq(device.name, "Fake GPU 1"); /* the number is this process's, the name and the UUID the machine's */
  ck_assert_int_eq(device.uuid[14], '1');
}
END_TEST

START_TEST(without_a_driver_there_is_no_device_and_a_reason) {
  disable_too("cuda");
  ck_assert_int_eq(look(0, 1), -ENODEV);
  ck_assert_ptr_nonnull(strstr(ringcast_last_error(), "RINGCAST_DISABLE=cuda"));
  ck_assert_int_eq(device.size, sizeof device);
}
END_TEST

/* ---- What it can't do ------------------------------------------------------------------------------------------- */

START_TEST(what_is_switched_off_is_not_tried) {
  disable_too("cuda_register");
  disable_too("cuda_pool");
  ck_assert_int_eq(look(0, 1), 0);
  must_do(0, 0, 0);
  ck_assert_int_eq(fake_cuda()->calls("cuMemAlloc"), 0);
}
END_TEST

/* A stream that waits for ever: it comes back, and the memory that the stream looks at stays. */
START_TEST(a_driver_whose_words_never_come_does_not_hold_the_caller) {
  setenv("FAKE_CUDA_STUCK_WORDS", "1", 1);
  rc_words_patience_ns = 20 * 1000 * 1000; /* it is in vain */
  ck_assert_int_eq(look(0, 1), 0);
  must_do(-ETIMEDOUT, 1, 1);
  ck_assert_int_eq(fake_cuda()->live("registered"), 1);
  ck_assert_int_eq(fake_cuda()->live("contexts"), 1);
  ck_assert_int_eq(fake_cuda()->live("streams"), 0);
  ck_assert_int_eq(fake_cuda()->live("allocations"), 0);
}
END_TEST

/* ---- Each call fails in turn ------------------------------------------------------------------------------------ */

START_TEST(each_call_that_fails_is_told_and_leaves_nothing) {
  static const char *const names[] = {"cuDeviceGet",
                                      "cuDeviceGetName",
                                      "cuDeviceGetUuid",
                                      "cuDevicePrimaryCtxRetain",
                                      "cuCtxGetCurrent",
                                      "cuCtxPushCurrent",
                                      "cuMemGetInfo",
                                      "cuMemAlloc",
                                      "cuIpcGetMemHandle",
                                      "cuMemHostRegister",
                                      "cuMemHostGetDevicePointer",
                                      "cuStreamCreate",
                                      "cuStreamWaitValue64",
                                      "cuStreamWriteValue64"};
  ck_assert_int_eq(look(0, 1), 0);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    for (long nth = 1; nth <= 2; nth++) {
      long before = fake_cuda()->calls(names[i]);
      fake_cuda()->fault(names[i], nth, RC_CU_OUT_OF_MEMORY);
      int result = look(0, 1);
      bool failed = fake_cuda()->calls(names[i]) >= before + nth;
      bool told =
          result == -ENOMEM || device.words == -ENOMEM || device.registers == -ENOMEM || device.exports == -ENOMEM;
      ck_assert_msg(failed == told, "%s, call %ld: result %d", names[i], nth, result);
      ck_assert(!failed || strstr(ringcast_last_error(), "CUDA_ERROR_OUT_OF_MEMORY (2)"));
      fake_cuda()->fault(NULL, 0, 0);
      fake_must_be_empty();
    }
  }
}
END_TEST

/* By their place, whatever they are, also those that give something back: that alone may be left. */
START_TEST(whatever_call_fails_it_comes_back) {
  ck_assert_int_eq(look(0, 1), 0);
  long calls = fake_cuda()->calls("*");
  ck_assert_int_eq(look(0, 1), 0);
  calls = fake_cuda()->calls("*") - calls;
  ck_assert_int_gt(calls, 20);
  for (long nth = 1; nth <= calls; nth++) {
    static const char *const kinds[] = {"allocations", "registered", "streams", "contexts"};
    long left = 0, before = 0;
    for (int i = 0; i < 4; i++) before += fake_cuda()->live(kinds[i]);
    fake_cuda()->fault("*", nth, 999);
    int result = look(0, 1);
    fake_cuda()->fault(NULL, 0, 0);
    ck_assert(result == 0 || result == -EIO);
    for (int i = 0; i < 4; i++) left += fake_cuda()->live(kinds[i]);
    ck_assert_msg(left - before <= 2, "call %ld: %ld left", nth, left - before); /* a page and its context */
  }
}
END_TEST

START_TEST(a_context_that_breaks_is_told) {
  ck_assert_int_eq(look(0, 1), 0);
  fake_cuda()->fault("cuMemGetInfo", 1, RC_CU_ILLEGAL_ADDRESS);
  ck_assert_int_eq(look(0, 1), -EIO);
  ck_assert_ptr_nonnull(strstr(ringcast_last_error(), "CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
  fake_must_be_empty();
}
END_TEST

int main(void) {
  unsetenv("RINGCAST_DISABLE");
  Suite *suite = suite_create("gpu_device");
  TCase *tests = add_case(suite, "device");
  tcase_add_test(tests, without_a_probe_there_is_no_context);
  tcase_add_test(tests, a_device_that_can_do_all_says_so_and_has_nothing_left);
  tcase_add_test(tests, what_there_is_not_is_refused);
  tcase_add_test(tests, without_a_driver_there_is_no_device_and_a_reason);
  tcase_add_test(tests, what_is_switched_off_is_not_tried);
  tcase_add_test(tests, a_driver_whose_words_never_come_does_not_hold_the_caller);
  tcase_add_test(tests, each_call_that_fails_is_told_and_leaves_nothing);
  tcase_add_test(tests, whatever_call_fails_it_comes_back);
  tcase_add_test(tests, a_context_that_breaks_is_told);
  return run_gpu_suite(suite, "test_gpu_device");
}
