/* SPDX-License-Identifier: Apache-2.0 */
/* Sending device tensors: what is there after a failure, and which way they go. */
#include <unistd.h>

#include "tests/support/gpu_draft.h"

/* ---- Sending ---------------------------------------------------------------------------------------------------- */

START_TEST(while_a_stream_captures_nothing_is_enqueued) {
  struct draft open;
  int64_t shape[1] = {10};
  struct ringcast_tensor tensor = bytes_on_device(source, shape);
  uint8_t host[10];
  open_pair(NULL);
  draft(100, &open);
  ck_assert_int_eq(copy_in(&open, 20, 100), 0);
  long copies = fake_cuda()->calls("cuMemcpyDtoDAsync"), words = fake_cuda()->calls("cuStreamWriteValue64");
  fake_cuda()->capture(stream, true);
  ck_assert_int_eq(copy_in(&open, 0, 100), -EBUSY);
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &open.lease, stream, open.bytes), -EBUSY);
  ck_assert_int_eq(ringcast_gpu_fetch(gpu_writer, &tensor, host, stream), -EBUSY);
  fake_cuda()->capture(stream, false);
  ck_assert_int_eq(fake_cuda()->calls("cuMemcpyDtoDAsync"), copies);
  ck_assert_int_eq(fake_cuda()->calls("cuStreamWriteValue64"), words);
  nothing_came();
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &open.lease, stream, open.bytes), 0); /* the lease is open still */
  ck_assert_int_eq(receive_bytes(20), RINGCAST_PLACEMENT_POOL);
  fake_cuda()->capture(stream, true);
  ck_assert_int_eq(send_bytes(0, 10, 0), -EBUSY);
  fake_cuda()->capture(stream, false);
  nothing_came();
  ck_comes(writer_info().slots_used == 0);
  ck_assert_int_eq(send_bytes(0, 10, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(a_commit_that_fails_has_sent_nothing) {
  struct draft open;
  open_pair(NULL);
  draft(100, &open);
  ck_assert_int_eq(copy_in(&open, 0, 100), 0);
  /* The ring's own refusal, once `ready` is enqueued. */
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &open.lease, stream, 1 << 30), -EINVAL);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  nothing_came();
  ck_comes(writer_info().slots_used == 0);
  draft(100, &open);
  ck_assert_int_eq(copy_in(&open, 0, 100), 0);
  call_fails("cuStreamWriteValue64", 1, 999);
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &open.lease, stream, open.bytes), -EIO);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0); /* it was open */
  ringcast_gpu_drop(gpu_writer, &open.lease);
  nothing_came();
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

/* Whatever fails, the pool is not used any more. */
START_TEST(a_send_that_fails_has_sent_nothing_and_keeps_nothing) {
  static const char *const calls[] = {"cuMemcpyDtoDAsync", "cuStreamWriteValue64", "cuStreamIsCapturing"};
  open_pair(NULL);
  call_fails(calls[_i], 1, 999);
  ck_assert_int_eq(send_bytes(0, 100, 0), -EIO);
  no_call_fails();
  nothing_came();
  ck_comes(writer_info().slots_used == 0);
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_LOST);
  ck_assert_ptr_nonnull(strstr(writer_info().why, "CUDA_ERROR_UNKNOWN"));
  ck_assert_int_eq(send_bytes(9, 100, RINGCAST_GPU_NO_INLINE), -EAGAIN);
  ck_assert_int_eq(send_bytes(9, 100, 0), 0);
  ck_assert_int_eq(receive_bytes(9), RINGCAST_PLACEMENT_INLINE);
  close_pair();
}
END_TEST

START_TEST(a_dict_that_is_none_is_refused) {
  int64_t shape[1] = {-1};
  struct ringcast_gpu_item item = {.key = "x", .key_bytes = 1, .tensor = bytes_on_device(0, shape), .on_device = 1};
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_send(gpu_writer, &item, 1, 0, 2, stream, 0), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_send(gpu_writer, &item, 1, 0, 0, stream, 0), -EINVAL);
  shape[0] = 4; /* of no memory */
  ck_assert_int_eq(ringcast_gpu_send(gpu_writer, &item, 1, 0, 0, stream, 0), -EINVAL);
  nothing_came();
  ck_comes(writer_info().slots_used == 0);
  ck_assert_int_eq(ringcast_gpu_send(gpu_writer, NULL, 0, 5, 0, stream, 0), 0); /* an empty one is one */
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &frame), 0);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &frame), 0);
  close_pair();
}
END_TEST

START_TEST(a_ring_that_is_full_costs_no_place_in_the_pool) {
  int rc, sent = 0;
  open_pair(NULL);
  while ((rc = ringcast_writer_send(writer, fake_cuda()->host(source), 60000, 0, 0)) == 0) sent++;
  ck_assert_int_eq(rc, -EAGAIN);
  while (ringcast_writer_send(writer, "x", 1, 0, 0) == 0) sent++;
  ck_assert_int_eq(send_bytes(0, 100, 0), -EAGAIN);
  ck_assert_uint_eq(writer_info().slots_used, 0);
  for (struct ringcast_frame frame; sent > 0; sent--) {
    ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &frame), 0);
    ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &frame), 0);
  }
  ck_assert_int_eq(send_bytes(0, 100, 0), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(the_caller_may_write_to_its_tensor_behind_the_send) {
  open_pair(NULL);
  hold_up();
  ck_assert_int_eq(send_bytes(11, 5000, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(cuda->copy_dtod(source, source + 500000, 100000, stream), 0);
  let_go();
  ck_assert_int_eq(receive_bytes(11), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(a_device_that_has_failed_loses_the_pool) {
  struct draft open;
  open_pair(NULL);
  draft(100, &open);
  fake_cuda()->break_context(NULL);
  ck_assert_int_eq(copy_in(&open, 0, 100), -EIO);
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_LOST);
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &open.lease, stream, open.bytes), -EIO);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  ringcast_gpu_drop(gpu_writer, &open.lease);
  ck_assert_int_eq(lease_bytes(100, &open), -EAGAIN);
  ck_assert_int_eq(send_bytes(0, 10, 0), -EIO);
  nothing_came();
  close_reader();
  close_writer();
  abandon_device();
}
END_TEST

/* ---- Ways ------------------------------------------------------------------------------------------------------- */

START_TEST(info_says_which_way_and_why) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct ringcast_gpu_info info = {.size = 1};
  open_writer(&options);
  ck_assert_int_eq(ringcast_gpu_writer_info(gpu_writer, &info), -EINVAL);
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_NO_READER);
  open_reader();
  info = writer_info();
  ck_assert_uint_eq(info.way, RINGCAST_GPU_WAY_WAITING);
  ck_assert_int_eq(info.reader_pid, getpid());
  ck_assert_int_eq(send_bytes(0, 10, RINGCAST_GPU_NO_INLINE), -EAGAIN);
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  call_fails("cuMemHostRegister", 1, RC_CU_NOT_PERMITTED); /* the words; the ring's memory is tried after them */
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_INLINE);
  no_call_fails();
  info = writer_info();
  ck_assert_uint_eq(info.way, RINGCAST_GPU_WAY_REFUSED);
  ck_assert(info.why[0] != '\0');
  ck_assert_int_eq(send_bytes(0, 10, RINGCAST_GPU_NO_INLINE), -EAGAIN);
  ck_assert_uint_eq(reader_info().way, RINGCAST_GPU_WAY_REFUSED);
  ck_assert(reader_info().why[0] != '\0');
  close_reader();
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_NO_READER); /* who can't has gone */
  open_reader();
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_INLINE);
  info = writer_info();
  ck_assert_uint_eq(info.way, RINGCAST_GPU_WAY_POOL);
  ck_assert_uint_eq(info.inline_frames, 2);
  close_pair();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_send");
  TCase *tests = add_case(suite, "send");
  tcase_add_test(tests, while_a_stream_captures_nothing_is_enqueued);
  tcase_add_test(tests, a_commit_that_fails_has_sent_nothing);
  tcase_add_loop_test(tests, a_send_that_fails_has_sent_nothing_and_keeps_nothing, 0, 3);
  tcase_add_test(tests, a_dict_that_is_none_is_refused);
  tcase_add_test(tests, a_ring_that_is_full_costs_no_place_in_the_pool);
  tcase_add_test(tests, the_caller_may_write_to_its_tensor_behind_the_send);
  tcase_add_test(tests, a_device_that_has_failed_loses_the_pool);
  tests = add_case(suite, "ways");
  tcase_add_test(tests, info_says_which_way_and_why);
  return run_gpu_suite(suite, "test_gpu_send");
}
