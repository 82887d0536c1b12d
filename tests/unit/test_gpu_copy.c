/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, and copies of their tensors. */
#include <errno.h>

#include "gpu/device.h"
#include "ringcast/frame.h"
#include "tests/support/gpu.h"
#include "tests/support/handles.h"
#include "tests/support/pattern.h"

enum { SOURCE_BYTES = 1 << 18 };

static struct rc_device device;
static const struct rc_cuda *cuda;
static rc_cu_context context;
static rc_cu_stream stream;
static rc_cu_ptr source, target; /* SOURCE_BYTES each */

static void open_one(void) {
  cuda = rc_cuda();
  ck_assert_ptr_nonnull(cuda);
  ck_assert_int_eq(cuda->primary_retain(&context, 0), 0);
  ck_assert_int_eq(cuda->ctx_push(context), 0);
  ck_assert_int_eq(cuda->stream_create(&stream, RC_CU_STREAM_NON_BLOCKING), 0);
  ck_assert_int_eq(cuda->mem_alloc(&source, SOURCE_BYTES), 0);
  ck_assert_int_eq(cuda->mem_alloc(&target, SOURCE_BYTES), 0);
  pattern_fill(fake_cuda()->host(source), SOURCE_BYTES, 1);
  ck_assert_int_eq(rc_device_open(-1, &device), 0);
}

static void close_one(void) {
  rc_device_close(&device);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_int_eq(cuda->stream_destroy(stream), 0);
  ck_assert_int_eq(cuda->mem_free(source), 0);
  ck_assert_int_eq(cuda->mem_free(target), 0);
  ck_assert_int_eq(cuda->ctx_pop(&context), 0);
  ck_assert_int_eq(cuda->primary_release(0), 0);
  fake_must_be_empty();
}

/* The source's bytes, on the host. */
static const uint8_t *host_source(void) { return fake_cuda()->host(source); }

/* Copies the tensor by the device, to the target and to the host, in one copy each. */
static void is_copied(struct ringcast_tensor tensor, uint64_t first) {
  uint64_t bytes;
  ck_assert_int_eq(ringcast_tensor_bytes(&tensor, &bytes), 0);
  uint8_t *got = malloc(bytes + 1);
  tensor.data = (const void *)(uintptr_t)(source + first);
  long before = fake_cuda()->calls("cuMemcpyDtoDAsync");
  ck_assert_int_eq(rc_device_copy(&device, &tensor, target + 512, NULL, stream), 0);
  ck_assert_int_eq(fake_cuda()->calls("cuMemcpyDtoDAsync"), before + 1);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_mem_eq((uint8_t *)fake_cuda()->host(target) + 512, host_source() + first, bytes);
  memset(got, 0xaa, bytes + 1);
  before = fake_cuda()->calls("cuMemcpyDtoHAsync");
  ck_assert_int_eq(rc_device_copy(&device, &tensor, 0, got, stream), 0);
  ck_assert_int_eq(fake_cuda()->calls("cuMemcpyDtoHAsync"), before + 1);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_mem_eq(got, host_source() + first, bytes);
  ck_assert_uint_eq(got[bytes], 0xaa);
  free(got);
}

START_TEST(a_tensor_in_c_order_is_one_copy) {
  const int64_t shape[3] = {5, 4, 8}, strides[3] = {32, 8, 1}, ones_shape[4] = {3, 1, 8, 1}, ones[4] = {8, 7, 1, 99},
                odd[2] = {3, 5};
  struct ringcast_tensor tensor = {.dtype = {2, 32, 1}, .ndim = 3, .shape = shape};
  open_one();
  is_copied(tensor, 0);
  tensor.strides = strides;
  is_copied(tensor, 3);
  tensor = (struct ringcast_tensor){.dtype = {0, 8, 3}, .ndim = 4, .shape = ones_shape, .strides = ones};
  is_copied(tensor, 1); /* the stride of a dimension of one does not matter */
  tensor = (struct ringcast_tensor){.dtype = {0, 4, 1}, .ndim = 2, .shape = odd};
  is_copied(tensor, 2); /* elements of less than a byte */
  tensor.flags = RINGCAST_ITEM_PADDED;
  is_copied(tensor, 0);
  tensor = (struct ringcast_tensor){.dtype = {5, 128, 1}};
  is_copied(tensor, 16); /* no dimension */
  close_one();
}
END_TEST

START_TEST(a_tensor_in_any_other_order_is_refused_and_not_copied) {
  static const int64_t others[][2] = {{1, 3}, {6, 1}, {5, 2}, {5, 0}, {-5, 1}, {0, 1}};
  const int64_t shape[2] = {3, 5};
  struct ringcast_tensor tensor = {.dtype = {2, 32, 1}, .ndim = 2, .shape = shape};
  open_one();
  tensor.data = (const void *)(uintptr_t)source;
  long before = fake_cuda()->calls("cuMemcpyDtoDAsync");
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    tensor.strides = others[i];
    ck_assert_int_eq(rc_device_copy(&device, &tensor, target, NULL, stream), -ENOTSUP);
    ck_says("contiguous");
  }
  ck_assert_int_eq(fake_cuda()->calls("cuMemcpyDtoDAsync"), before);
  close_one();
}
END_TEST

START_TEST(what_is_no_tensor_is_refused) {
  int64_t shape[2] = {2, 2}, far[2] = {INT64_MAX / 4, 1}, empty[2] = {0, 2};
  struct ringcast_tensor good = {.dtype = {2, 64, 1}, .ndim = 2, .shape = shape}, tensor = good;
  open_one();
  ck_assert_int_eq(rc_device_copy(&device, &tensor, target, NULL, stream), -EINVAL); /* no memory */
  tensor.shape = empty;
  ck_assert_int_eq(rc_device_copy(&device, &tensor, target, NULL, stream), 0); /* none is needed */
  tensor = good;
  tensor.data = (const void *)(uintptr_t)source;
  tensor.strides = far;
  ck_assert_int_eq(rc_device_copy(&device, &tensor, target, NULL, stream), -ENOTSUP);
  tensor.strides = NULL;
  tensor.dtype.bits = 0;
  ck_assert_int_eq(rc_device_copy(&device, &tensor, target, NULL, stream), -EINVAL);
  tensor = good;
  tensor.data = (const void *)(uintptr_t)source;
  tensor.ndim = -1;
  ck_assert_int_eq(rc_device_copy(&device, &tensor, target, NULL, stream), -EINVAL);
  close_one();
}
END_TEST

START_TEST(a_copy_that_fails_says_so) {
  int64_t shape[1] = {8};
  struct ringcast_tensor tensor = {.dtype = {1, 8, 1}, .ndim = 1, .shape = shape};
  open_one();
  tensor.data = (const void *)(uintptr_t)source;
  (fake_cuda()->fault)("cuMemcpyDtoDAsync", 1, 999);
  ck_assert_int_eq(rc_device_copy(&device, &tensor, target, NULL, stream), -EIO);
  ck_says("CUDA_ERROR");
  ck_assert(!rc_device_is_lost(&device));
  ck_assert_int_eq(rc_device_copy(&device, &tensor, target, NULL, stream), 0);
  close_one();
}
END_TEST

START_TEST(a_device_is_one_that_is_there) {
  struct rc_device other;
  setenv("FAKE_CUDA_DEVICES", "2", 1);
  open_one();
  ck_assert_int_eq(device.ordinal, 0);
  ck_assert_int_eq(rc_device_open(2, &other), -EINVAL);
  ck_assert_int_eq(rc_device_open(-2, &other), -EINVAL);
  ck_assert_int_eq(rc_device_open(1, &other), 0);
  ck_assert_int_eq(other.ordinal, 1);
  ck_assert_mem_ne(other.uuid, device.uuid, sizeof other.uuid);
  struct rc_cuda_entry entry;
  ck_assert_int_eq(rc_cuda_enter(other.context, &entry), 0); /* -1: that of the context that is current */
  struct rc_device same;
  ck_assert_int_eq(rc_device_open(-1, &same), 0);
  ck_assert_int_eq(same.ordinal, 1);
  rc_cuda_leave(&entry);
  rc_device_close(&same);
  rc_device_close(&other);
  rc_device_close(&other); /* a second time does nothing */
  close_one();
}
END_TEST

START_TEST(a_stream_that_captures_is_told_from_one_that_does_not) {
  open_one();
  ck_assert_int_eq(rc_device_check_stream(&device, stream), 0);
  ck_assert_int_eq(rc_device_check_stream(&device, NULL), 0);
  fake_cuda()->capture(stream, true);
  ck_assert_int_eq(rc_device_check_stream(&device, stream), -EBUSY);
  fake_cuda()->capture(stream, false);
  ck_assert_int_eq(rc_device_check_stream(&device, stream), 0);
  close_one();
}
END_TEST

START_TEST(a_context_that_has_failed_is_seen) {
  open_one();
  ck_assert(!rc_device_is_lost(&device));
  fake_cuda()->break_context(NULL);
  ck_assert(rc_device_is_lost(&device));
  rc_device_close(&device);
}
END_TEST

START_TEST(without_a_driver_there_is_no_device) {
  struct rc_device none;
  setenv("RINGCAST_DISABLE", "cuda", 1);
  ck_assert_int_eq(rc_device_open(-1, &none), -ENODEV);
  ck_says("RINGCAST_DISABLE");
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_copy");
  TCase *tests = add_case(suite, "device");
  tcase_add_test(tests, a_tensor_in_c_order_is_one_copy);
  tcase_add_test(tests, a_tensor_in_any_other_order_is_refused_and_not_copied);
  tcase_add_test(tests, what_is_no_tensor_is_refused);
  tcase_add_test(tests, a_copy_that_fails_says_so);
  tcase_add_test(tests, a_device_is_one_that_is_there);
  tcase_add_test(tests, a_stream_that_captures_is_told_from_one_that_does_not);
  tcase_add_test(tests, a_context_that_has_failed_is_seen);
  tcase_add_test(tests, without_a_driver_there_is_no_device);
  return run_gpu_suite(suite, "test_gpu_copy");
}
