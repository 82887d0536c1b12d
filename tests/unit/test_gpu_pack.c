/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, and tensors packed from wherever their strides lead. */
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

/* Packs it by the device, to the target and to the host, and sees that it is what the host makes of it. */
static void packs_as_the_host_does(struct ringcast_tensor tensor, uint64_t first) {
  uint64_t bytes;
  ck_assert_int_eq(ringcast_tensor_bytes(&tensor, &bytes), 0);
  uint8_t *expected = malloc(bytes + 1), *got = malloc(bytes + 1);
  tensor.data = host_source() + first;
  ck_assert_int_eq(ringcast_tensor_pack(&tensor, expected), 0);
  tensor.data = (const void *)(uintptr_t)(source + first);
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target + 512, NULL, stream), 0);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_mem_eq((uint8_t *)fake_cuda()->host(target) + 512, expected, bytes);
  memset(got, 0xaa, bytes + 1);
  ck_assert_int_eq(rc_device_pack(&device, &tensor, 0, got, stream), 0);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_mem_eq(got, expected, bytes);
  ck_assert_uint_eq(got[bytes], 0xaa);
  free(expected);
  free(got);
}

START_TEST(any_strides_are_packed_as_on_the_host) {
  static const struct ringcast_dtype dtypes[] = {{0, 8, 1}, {2, 32, 1}, {4, 16, 1}, {5, 128, 1}, {2, 32, 3}};
  open_one();
  for (uint64_t round = 0; round < 150; round++) {
    uint64_t random = mix(round), first = 0;
    int64_t shape[5], strides[5];
    struct ringcast_tensor tensor = {.dtype = dtypes[random % 5], .shape = shape, .strides = strides};
    uint64_t element = (uint64_t)tensor.dtype.bits * tensor.dtype.lanes / 8;
    tensor.ndim = (int32_t)(random / 8 % 6);
    for (int i = 0; i < tensor.ndim; i++) {
      random = mix(random);
      shape[i] = (int64_t)(random % 16 == 0 ? 0 : random / 16 % 4 + 1);
      strides[i] = (int64_t)(random / 1024 % 41) - 20; /* any at all; they may overlap */
      if (random / 4096 % 4 == 0) strides[i] = i + 1 < tensor.ndim ? strides[i] : 1;
      if (strides[i] < 0 && shape[i] > 0) first += (uint64_t)(-strides[i] * (shape[i] - 1)) * element;
    }
    packs_as_the_host_does(tensor, first);
  }
  close_one();
}
END_TEST

START_TEST(a_row_is_one_copy) {
  const int64_t shape[3] = {5, 4, 8}, whole[3] = {32, 8, 1}, padded[3] = {64, 8, 1}, ones_shape[4] = {3, 1, 8, 1},
                ones[4] = {16, 7, 1, 99};
  struct ringcast_tensor tensor = {.dtype = {2, 32, 1}, .ndim = 3, .shape = shape};
  static const char *const name = "cuMemcpyDtoDAsync";
  open_one();
  tensor.data = (const void *)(uintptr_t)source;
  long before = fake_cuda()->calls(name);
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), 0);
  tensor.strides = whole;
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), 0);
  ck_assert_int_eq(fake_cuda()->calls(name), before + 2);
  tensor.strides = padded;
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), 0);
  ck_assert_int_eq(fake_cuda()->calls(name), before + 2 + 5);
  tensor.ndim = 4;
  tensor.shape = ones_shape;
  tensor.strides = ones; /* of a dimension of one, the stride is of no matter */
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), 0);
  ck_assert_int_eq(fake_cuda()->calls(name), before + 2 + 5 + 3);
  close_one();
}
END_TEST

START_TEST(too_many_pieces_are_refused_and_none_is_copied) {
  int64_t shape[2] = {4096, 2}, strides[2] = {3, 2};
  struct ringcast_tensor tensor = {.dtype = {1, 8, 1}, .ndim = 2, .shape = shape, .strides = strides};
  open_one();
  tensor.data = (const void *)(uintptr_t)source;
  long before = fake_cuda()->calls("cuMemcpyDtoDAsync");
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), -ENOTSUP);
  ck_says("contiguous");
  shape[0] = 4097;
  strides[1] = 1;
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), -ENOTSUP);
  ck_assert_int_eq(fake_cuda()->calls("cuMemcpyDtoDAsync"), before);
  shape[0] = 4096;
  packs_as_the_host_does(tensor, 0);
  close_one();
}
END_TEST

START_TEST(elements_of_less_than_a_byte_must_be_in_c_order) {
  int64_t shape[2] = {3, 5}, c_order[2] = {5, 1}, other[2] = {6, 1};
  struct ringcast_tensor tensor = {.dtype = {0, 4, 1}, .ndim = 2, .shape = shape};
  open_one();
  packs_as_the_host_does(tensor, 0);
  tensor.strides = c_order;
  packs_as_the_host_does(tensor, 3);
  tensor.strides = other;
  tensor.data = (const void *)(uintptr_t)source;
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), -EINVAL);
  tensor.flags = RINGCAST_ITEM_PADDED; /* a byte each */
  packs_as_the_host_does(tensor, 0);
  close_one();
}
END_TEST

START_TEST(what_is_no_tensor_is_refused) {
  int64_t shape[2] = {2, 2}, far[2] = {INT64_MAX / 4, 1}, empty[2] = {0, 2};
  struct ringcast_tensor good = {.dtype = {2, 64, 1}, .ndim = 2, .shape = shape}, tensor = good;
  open_one();
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), -EINVAL); /* no memory */
  tensor.shape = empty;
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), 0); /* none is needed */
  tensor = good;
  tensor.data = (const void *)(uintptr_t)source;
  tensor.strides = far;
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), -EINVAL);
  tensor.strides = NULL;
  tensor.dtype.bits = 0;
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), -EINVAL);
  tensor = good;
  tensor.data = (const void *)(uintptr_t)source;
  tensor.ndim = -1;
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), -EINVAL);
  close_one();
}
END_TEST

START_TEST(a_copy_that_fails_says_so) {
  int64_t shape[1] = {8};
  struct ringcast_tensor tensor = {.dtype = {1, 8, 1}, .ndim = 1, .shape = shape};
  open_one();
  tensor.data = (const void *)(uintptr_t)source;
  (fake_cuda()->fault)("cuMemcpyDtoDAsync", 1, 999);
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), -EIO);
  ck_says("CUDA_ERROR");
  ck_assert(!rc_device_is_lost(&device));
  ck_assert_int_eq(rc_device_pack(&device, &tensor, target, NULL, stream), 0);
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
  Suite *suite = suite_create("gpu_pack");
  TCase *tests = add_case(suite, "device");
  tcase_add_test(tests, any_strides_are_packed_as_on_the_host);
  tcase_add_test(tests, a_row_is_one_copy);
  tcase_add_test(tests, too_many_pieces_are_refused_and_none_is_copied);
  tcase_add_test(tests, elements_of_less_than_a_byte_must_be_in_c_order);
  tcase_add_test(tests, what_is_no_tensor_is_refused);
  tcase_add_test(tests, a_copy_that_fails_says_so);
  tcase_add_test(tests, a_device_is_one_that_is_there);
  tcase_add_test(tests, a_stream_that_captures_is_told_from_one_that_does_not);
  tcase_add_test(tests, a_context_that_has_failed_is_seen);
  tcase_add_test(tests, without_a_driver_there_is_no_device);
  return run_gpu_suite(suite, "test_gpu_pack");
}
