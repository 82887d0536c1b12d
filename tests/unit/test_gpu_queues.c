/* SPDX-License-Identifier: Apache-2.0 */
/* Streams share the device's queues, and a queue takes no more than so much: what is held up by one stream holds up
 * others, and calls. */
#include <pthread.h>

#include "tests/support/gpu_channel.h"

/* Before the driver starts. */
static void share_queues(const char *count) { ck_assert_int_eq(setenv("FAKE_CUDA_QUEUES", count, 1), 0); }

/* ---- A pool that is opened while the device is busy -------------------------------------------------------------- */

/* The stream that the memory is tried on is held up, or that of the words, or both. */
START_TEST(a_busy_device_refuses_no_pool) {
  struct ringcast_gpu_writer_options options = gpu_options();
  rc_cu_stream one_more;
  share_queues(_i == 0 ? "1" : "2");
  open_writer(&options);
  open_reader();
  if (_i == 2) ck_assert_int_eq(cuda->stream_create(&one_more, RC_CU_STREAM_NON_BLOCKING), 0);
  hold_up();
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), -EAGAIN);
  ck_says("busy");
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_REFUSED); /* for now */
  ck_assert_msg(strstr(writer_info().why, "its device is busy; it is tried again"), "%s", writer_info().why);
  ck_assert_uint_eq(reader_info().way, RINGCAST_GPU_WAY_REFUSED);
  ck_assert_msg(strstr(reader_info().why, "the device is busy: it has not come to a new stream"), "%s",
                reader_info().why);
  let_go();
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  ck_assert_uint_eq(reader_info().way, RINGCAST_GPU_WAY_POOL);
  ck_assert_str_eq(reader_info().why, "");
  ck_assert_int_eq(send_bytes(3, 1000, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(receive_bytes(3), RINGCAST_PLACEMENT_POOL);
  if (_i == 2) ck_assert_int_eq(cuda->stream_destroy(one_more), 0);
  close_pair();
}
END_TEST

START_TEST(frames_do_not_wait_for_a_busy_device_one_after_the_other) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct received first, second;
  share_queues("1");
  open_writer(&options);
  open_reader();
  ck_assert_int_eq(send_bytes(3, 1000, 0), 0);
  ck_assert_int_eq(send_bytes(5, 1000, 0), 0);
  hold_up();
  next_frame(&first);
  begin(&first); /* tries, and waits */
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &first.take), 0);
  next_frame(&second);
  long tried = fake_cuda()->calls("cuStreamCreate");
  begin(&second);
  ck_assert_int_eq(fake_cuda()->calls("cuStreamCreate"), tried);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &second.take), 0);
  let_go();
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0); /* who asks for it is not kept from it */
  close_pair();
}
END_TEST

START_TEST(a_writer_does_without_a_pool_where_the_device_is_busy) {
  struct ringcast_gpu_writer_options options = gpu_options();
  share_queues("1");
  rc_gpu_busy_ns = 50 * 1000 * 1000;
  open_device();
  hold_up();
  writer = make_writer(1 << 20, 8);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_NO_POOL);
  ck_assert_ptr_nonnull(strstr(writer_info().why, "busy"));
  let_go();
  open_reader();
  ck_assert_int_eq(send_bytes(3, 1000, 0), 0);
  ck_assert_int_eq(receive_bytes(3), RINGCAST_PLACEMENT_INLINE);
  close_pair();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_queues");
  TCase *tests = add_case(suite, "a busy device");
  tcase_add_loop_test(tests, a_busy_device_refuses_no_pool, 0, 3);
  tcase_add_test(tests, frames_do_not_wait_for_a_busy_device_one_after_the_other);
  tcase_add_test(tests, a_writer_does_without_a_pool_where_the_device_is_busy);
  return run_gpu_suite(suite, "test_gpu_queues");
}
