/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the pool that the caller keeps, and a lease with an address: kernels write there, and nothing is copied. */
#include "tests/support/gpu_draft.h"

static ringcast_device_ptr memory;
static struct ringcast_gpu_extent kept;

/* In place of a kernel: `bytes` of the source go to `to`. */
static void compute(int64_t at, int64_t bytes, ringcast_device_ptr to) {
  ck_assert_int_eq(cuda->copy_dtod(to, source + (rc_cu_ptr)at, (size_t)bytes, stream), 0);
}

/* One tensor, from `at` of the memory on. */
static int send_kept(int64_t at, int64_t bytes) {
  int64_t shape[1] = {bytes};
  struct ringcast_gpu_item item = {
      .key = "x", .key_bytes = 1, .tensor = bytes_on_device(memory + (rc_cu_ptr)at, shape), .on_device = 1};
  return ringcast_gpu_send(gpu_writer, &item, 1, 0, RINGCAST_GPU_NO_INLINE, stream, 0);
}

static void open_with_memory(uint64_t bytes) {
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  ck_assert_int_eq(ringcast_gpu_allocate(gpu_writer, bytes, stream, &memory, &kept), 0);
}

static long copies(void) { return fake_cuda()->calls("cuMemcpyDtoDAsync"); }

START_TEST(what_is_written_to_a_leased_address_is_sent_without_a_copy) {
  struct draft frame;
  ringcast_device_ptr where;
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  draft(1000, &frame);
  ck_assert_int_eq(ringcast_gpu_lease_address(gpu_writer, &frame.lease, frame.offset + 1001, stream, &where), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_lease_address(gpu_writer, &frame.lease, frame.offset, stream, &where), 0);
  ck_assert_int_eq(ringcast_gpu_lease_address(gpu_writer, &frame.lease, frame.offset, NULL, &where), -EINVAL);
  compute(7, 1000, where);
  long before = copies();
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &frame.lease, NULL, frame.bytes), -EINVAL); /* another stream */
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &frame.lease, stream, frame.bytes), 0);
  ck_assert_int_eq(copies(), before);
  ck_assert_int_eq(receive_bytes(7), RINGCAST_PLACEMENT_POOL);
  ck_assert_int_eq(ringcast_gpu_lease_address(gpu_writer, &frame.lease, frame.offset, stream, &where), -EINVAL);
  close_pair();
}
END_TEST

START_TEST(kept_memory_is_sent_again_and_again_without_a_copy) {
  open_with_memory(1000);
  for (int i = 0; i < 3; i++) {
    compute(i, 1000, memory);
    long before = copies();
    ck_assert_int_eq(send_kept(0, 1000), 0);
    ck_assert_int_eq(copies(), before);
    ck_assert_int_eq(receive_bytes(i), RINGCAST_PLACEMENT_POOL);
    ck_assert_int_eq(cuda->stream_synchronize(stream), 0); /* the reader's, too */
  }
  ck_assert_int_eq(send_kept(100, 900), 0); /* a part of it */
  ck_assert_int_eq(receive_bytes(102), RINGCAST_PLACEMENT_POOL);
  ringcast_gpu_drop(gpu_writer, &kept);
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

/* The frame that is under way counts on the memory; another one gets a copy. */
START_TEST(kept_memory_is_copied_where_a_frame_refers_to_it_still) {
  struct ringcast_gpu_extent lease;
  open_with_memory(1000);
  compute(5, 1000, memory);
  ck_assert_int_eq(send_kept(0, 1000), 0);
  long before = copies();
  ck_assert_int_eq(send_kept(0, 1000), 0);
  ck_assert_int_eq(copies(), before + 1);
  ck_assert_int_eq(ringcast_gpu_lease(gpu_writer, NULL, 0, NULL, &lease), 0);
  ck_assert_int_eq(ringcast_gpu_attach(gpu_writer, &lease, &kept), -EBUSY);
  ringcast_gpu_drop(gpu_writer, &lease);
  for (int i = 0; i < 2; i++) ck_assert_int_eq(receive_bytes(5), RINGCAST_PLACEMENT_POOL);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_int_eq(ringcast_gpu_lease(gpu_writer, NULL, 0, NULL, &lease), 0);
  ck_assert_int_eq(ringcast_gpu_attach(gpu_writer, &lease, &kept), 0);
  ck_assert_int_eq(ringcast_gpu_attach(gpu_writer, &lease, &kept), 0); /* once more is no more */
  ck_assert_int_eq(ringcast_gpu_attach(gpu_writer, &lease, &lease), -EINVAL);
  ringcast_gpu_drop(gpu_writer, &lease);
  ck_assert_int_eq(ringcast_gpu_attach(gpu_writer, &lease, &kept), -EINVAL);
  ringcast_gpu_drop(gpu_writer, &kept);
  close_pair();
}
END_TEST

/* Dropped while a frame is under way, or its stream is behind. */
START_TEST(kept_memory_is_used_again_when_it_was_dropped_and_read) {
  struct ringcast_gpu_extent other;
  ringcast_device_ptr where;
  open_with_memory(2 << 20); /* all of it */
  compute(3, 1000, memory);
  if (_i == 0) ck_assert_int_eq(send_kept(0, 1000), 0);
  ck_assert_int_eq(ringcast_gpu_allocate(gpu_writer, 1, stream, &where, &other), -EAGAIN);
  if (_i == 1) hold_up();
  ringcast_gpu_drop(gpu_writer, &kept);
  ringcast_gpu_drop(gpu_writer, &kept); /* once */
  ck_assert_int_eq(ringcast_gpu_allocate(gpu_writer, 1, stream, &where, &other), -EAGAIN);
  if (_i == 0) ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  if (_i == 0) ck_assert_int_eq(ringcast_gpu_allocate(gpu_writer, 1, stream, &where, &other), -EAGAIN);
  if (_i == 0) ck_assert_int_eq(receive_bytes(3), RINGCAST_PLACEMENT_POOL);
  if (_i == 1) let_go();
  ck_comes(ringcast_gpu_allocate(gpu_writer, 1, stream, &where, &other) == 0);
  ringcast_gpu_drop(gpu_writer, &other);
  close_pair();
}
END_TEST

START_TEST(kept_memory_that_is_not_in_order_is_copied) {
  int64_t shape[2] = {10, 10}, strides[2] = {1, 10};
  struct ringcast_tensor tensor = bytes_on_device(0, shape);
  struct ringcast_gpu_item item = {.key = "x", .key_bytes = 1, .on_device = 1};
  open_with_memory(100);
  tensor.data = (const void *)(uintptr_t)memory;
  tensor.ndim = 2;
  tensor.strides = strides;
  item.tensor = tensor;
  long before = copies();
  ck_assert_int_eq(ringcast_gpu_send(gpu_writer, &item, 1, 0, RINGCAST_GPU_NO_INLINE, stream, 0), 0);
  ck_assert_int_ge(copies(), before + 10);
  ringcast_gpu_drop(gpu_writer, &kept);
  close_pair();
}
END_TEST

START_TEST(it_needs_a_pool_with_room_and_no_reader) {
  open_writer(NULL);
  ck_assert_int_eq(ringcast_gpu_allocate(gpu_writer, 100, stream, &memory, &kept), 0);
  ck_assert_int_eq(ringcast_gpu_allocate(gpu_writer, UINT64_MAX, stream, &memory, &kept), -EMSGSIZE);
  ringcast_gpu_drop(gpu_writer, &kept);
  close_writer();
  struct ringcast_gpu_writer_options options = gpu_options();
  options.pool_bytes = RINGCAST_NO_POOL;
  open_writer(&options);
  ck_assert_int_eq(ringcast_gpu_allocate(gpu_writer, 100, stream, &memory, &kept), -EAGAIN);
  close_writer();
}
END_TEST

/* The caller has its address still. */
START_TEST(kept_memory_outlives_its_writer) {
  open_with_memory(100);
  ringcast_gpu_writer_close(gpu_writer);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, NULL, &gpu_writer), 0);
  compute(0, 100, memory);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  close_writer();
  ck_assert_int_gt((int)fake_cuda()->live("allocations"), 2);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_allocate");
  TCase *tests = add_case(suite, "memory in the pool");
  tcase_add_test(tests, what_is_written_to_a_leased_address_is_sent_without_a_copy);
  tcase_add_test(tests, kept_memory_is_sent_again_and_again_without_a_copy);
  tcase_add_test(tests, kept_memory_is_copied_where_a_frame_refers_to_it_still);
  tcase_add_loop_test(tests, kept_memory_is_used_again_when_it_was_dropped_and_read, 0, 2);
  tcase_add_test(tests, kept_memory_that_is_not_in_order_is_copied);
  tcase_add_test(tests, it_needs_a_pool_with_room_and_no_reader);
  tcase_add_test(tests, kept_memory_outlives_its_writer);
  return run_gpu_suite(suite, "test_gpu_allocate");
}
