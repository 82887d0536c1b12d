/* SPDX-License-Identifier: Apache-2.0 */
/* The device that is chosen, and the copy of a tensor of it: one copy, or a refusal before any. */
#include <errno.h>

#include "gpu/device.h"
#include "ringcast/frame.h"
#include "tests/support/gpu.h"
#include "tests/support/handles.h"
#include "tests/support/pattern.h"

enum { SOURCE_BYTES = 1 << 16, NOWHERE = -1 };

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

static const struct {
  struct ringcast_dtype dtype;
  int32_t ndim;
  int64_t shape[4], strides[4]; /* strides of 0: none are given */
  uint32_t flags;
  int64_t first; /* the byte of the source; NOWHERE: no memory */
  int result;
} tensors[] = {
    {{2, 32, 1}, 3, {5, 4, 8}, {0}, 0, 0, 0},
    {{2, 32, 1}, 3, {5, 4, 8}, {32, 8, 1}, 0, 3, 0},
    {{0, 8, 3}, 4, {3, 1, 8, 1}, {8, 7, 1, 99}, 0, 1, 0}, /* the stride of a dimension of one does not matter */
    {{0, 4, 1}, 2, {3, 5}, {0}, 0, 2, 0},                 /* elements of less than a byte */
    {{0, 4, 1}, 2, {3, 5}, {0}, RINGCAST_ITEM_PADDED, 0, 0},
    {{5, 128, 1}, 0, {0}, {0}, 0, 16, 0},
    {{2, 64, 1}, 2, {0, 2}, {0}, 0, NOWHERE, 0},
    {{2, 64, 1}, 2, {2, 2}, {0}, 0, NOWHERE, -EINVAL},
    {{2, 0, 1}, 2, {2, 2}, {0}, 0, 0, -EINVAL},
    {{2, 64, 1}, -1, {2, 2}, {0}, 0, 0, -EINVAL},
    {{2, 64, 1}, 2, {2, 2}, {INT64_MAX / 4, 1}, 0, 0, -ENOTSUP},
    {{2, 32, 1}, 2, {3, 5}, {1, 3}, 0, 0, -ENOTSUP},
    {{2, 32, 1}, 2, {3, 5}, {6, 1}, 0, 0, -ENOTSUP},
    {{2, 32, 1}, 2, {3, 5}, {5, 2}, 0, 0, -ENOTSUP},
    {{2, 32, 1}, 2, {3, 5}, {-5, 1}, 0, 0, -ENOTSUP},
};

/* To the target, or to the host. */
static void is_copied(const struct ringcast_tensor *tensor, bool to_host, int result) {
  static uint8_t host[SOURCE_BYTES];
  uint64_t bytes = 0;
  const char *call = to_host ? "cuMemcpyDtoHAsync" : "cuMemcpyDtoDAsync";
  if (result == 0) ck_assert_int_eq(ringcast_tensor_bytes(tensor, &bytes), 0);
  long before = fake_cuda()->calls(call);
  memset(host, 0xaa, sizeof host);
  ck_assert_int_eq(rc_device_copy(&device, tensor, target, to_host ? host : NULL, stream), result);
  ck_assert_int_eq(fake_cuda()->calls(call), before + (bytes > 0));
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  if (bytes == 0) return;
  const uint8_t *from = fake_cuda()->host((rc_cu_ptr)(uintptr_t)tensor->data);
  ck_assert_mem_eq(to_host ? host : fake_cuda()->host(target), from, bytes);
  ck_assert(!to_host || host[bytes] == 0xaa);
}

START_TEST(a_tensor_in_c_order_is_one_copy_and_any_other_is_refused) {
  open_one();
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
    struct ringcast_tensor tensor = {
        .dtype = tensors[i].dtype, .ndim = tensors[i].ndim, .shape = tensors[i].shape, .flags = tensors[i].flags};
    if (tensors[i].strides[0] != 0) tensor.strides = tensors[i].strides;
    if (tensors[i].first != NOWHERE) tensor.data = (const void *)(uintptr_t)(source + (uint64_t)tensors[i].first);
    is_copied(&tensor, false, tensors[i].result);
    is_copied(&tensor, true, tensors[i].result);
    if (tensors[i].result == -ENOTSUP) ck_says("contiguous");
  }
  close_one();
}
END_TEST

/* -1: the device of the context that is current. */
START_TEST(a_device_is_chosen_by_its_number_or_the_context) {
  struct rc_device other, same;
  struct rc_cuda_entry entry;
  setenv("FAKE_CUDA_DEVICES", "2", 1);
  open_one();
  ck_assert_int_eq(rc_device_open(1, &other), 0);
  ck_assert_int_eq(rc_cuda_enter(other.context, &entry), 0);
  ck_assert_int_eq(rc_device_open(-1, &same), 0);
  ck_assert(device.ordinal == 0 && other.ordinal == 1 && same.ordinal == 1);
  ck_assert_mem_ne(other.uuid, device.uuid, sizeof other.uuid);
  rc_cuda_leave(&entry);
  rc_device_close(&same);
  rc_device_close(&other);
  rc_device_close(&other); /* a second time does nothing */
  close_one();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_copy");
  TCase *tests = add_case(suite, "device");
  tcase_add_test(tests, a_tensor_in_c_order_is_one_copy_and_any_other_is_refused);
  tcase_add_test(tests, a_device_is_chosen_by_its_number_or_the_context);
  return run_gpu_suite(suite, "test_gpu_copy");
}
