/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beside a stream that captures a graph in CUDA's mode GLOBAL, which any thread's calls can spoil: neither what is
 * called here nor what a reader's own thread does may. And where a stream of a reader's captures itself.
 */
#include "tests/support/gpu_channel.h"

static rc_cu_stream graph; /* somebody's, that nothing is sent or received on */

static void begin_capture(void) {
  ck_assert_int_eq(cuda->stream_create(&graph, RC_CU_STREAM_NON_BLOCKING), 0);
  ck_assert_int_eq(fake_cuda()->capture(graph, true), 0);
}
static void end_capture(void) {
  ck_assert_int_eq(fake_cuda()->capture(graph, false), 0);
  ck_assert_int_eq(cuda->stream_destroy(graph), 0);
}

static rc_cu_capture_mode mode_of_thread(void) {
  rc_cu_capture_mode mode = RC_CU_STREAM_CAPTURE_MODE_RELAXED, unused;
  ck_assert_int_eq(cuda->exchange_capture_mode(&mode), 0);
  unused = mode;
  ck_assert_int_eq(cuda->exchange_capture_mode(&unused), 0);
  return mode;
}

/* ---- Beside one -------------------------------------------------------------------------------------------------- */

static void open_beside(struct ringcast_gpu_writer_options options) {
  open_device();
  remember();
  writer = make_writer(1 << 20, 8);
  begin_capture();
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  open_reader();
}

static void close_beside(void) {
  close_reader();
  close_writer();
  end_capture();
  ck_assert_int_eq(mode_of_thread(), 0);
  close_device();
}

START_TEST(a_pool_is_opened_used_and_closed) {
  struct ringcast_gpu_writer_options options = gpu_options();
  open_beside(options);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  ck_assert_int_eq(send_bytes(3, 100, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(receive_bytes(3), RINGCAST_PLACEMENT_POOL);
  close_beside();
}
END_TEST

START_TEST(the_ring_is_registered_and_copied_from) {
  struct ringcast_gpu_writer_options options = gpu_options();
  ringcast_gpu_memory *memory;
  ringcast_device_ptr where;
  options.pool_bytes = RINGCAST_NO_POOL;
  open_beside(options);
  for (int i = 0; i < 40; i++) {
    ck_assert_int_eq(send_bytes(i, 1000, 0), 0);
    ck_assert_int_eq(receive_bytes(i), RINGCAST_PLACEMENT_INLINE);
  }
  ck_assert_uint_eq(reader_info().registered, 1);
  ck_assert_int_eq(ringcast_gpu_memory_alloc(gpu_reader, 4096, stream, &where, &memory), 0);
  ringcast_gpu_memory_free(memory);
  close_beside();
}
END_TEST

static int next_call(void) {
  struct ringcast_frame frame;
  return ringcast_gpu_next(gpu_reader, 0, &frame);
}

START_TEST(an_ack_that_fails_is_written_by_the_next_call) {
  struct received received;
  open_pair(NULL);
  ck_assert_int_eq(send_bytes(3, 100, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&received);
  begin(&received);
  begin_capture();
  call_fails("cuStreamWriteValue64", 1, 999);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), -EIO);
  no_call_fails();
  ck_assert_uint_eq(reader_info().way, RINGCAST_GPU_WAY_LOST); /* any failure is one too many */
  ck_assert_ptr_nonnull(strstr(reader_info().why, "cuStreamWriteValue"));
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_REFUSED);
  ck_assert_uint_eq(writer_info().slots_used, 1);
  ck_assert_int_eq(next_call(), -EAGAIN);
  ck_comes(writer_info().slots_used == 0);
  end_capture();
  ck_assert_int_eq(send_bytes(3, 100, 0), 0);
  ck_assert_int_eq(receive_bytes(3), RINGCAST_PLACEMENT_INLINE);
  ck_assert_int_eq(ringcast_gpu_check(gpu_reader), 0);
  close_pair();
}
END_TEST

/* An older driver, or a call of it that fails: all goes on as it did. */
START_TEST(a_thread_that_cannot_be_relaxed_goes_on) {
  if (_i == 0) setenv("FAKE_CUDA_WITHOUT", "cuThreadExchangeStreamCaptureMode", 1);
  open_pair(NULL);
  ck_assert(_i == 0 ? !cuda->exchange_capture_mode : cuda->exchange_capture_mode != NULL);
  if (_i == 1) call_fails("cuThreadExchangeStreamCaptureMode", 0, 999);
  ck_assert_int_eq(send_bytes(3, 100, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(receive_bytes(3), RINGCAST_PLACEMENT_POOL);
  close_reader();
  open_reader();
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  close_pair();
}
END_TEST

/* ---- The reader's own streams ------------------------------------------------------------------------------------ */

static rc_cu_stream other;

static void open_other(void) { ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0); }
static void close_other(void) { ck_assert_int_eq(cuda->stream_destroy(other), 0); }

static void begin_on_other(struct received *received) {
  next_frame(received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received->frame, other, &received->take), 0);
}

/* 0: the next call acknowledges it; 1: the reader has closed, before the capture ends; 2: before the view is dropped.
 */
START_TEST(a_view_that_is_dropped_while_its_stream_captures_is_acknowledged_after_it) {
  struct received received;
  ringcast_gpu_hold *hold;
  ringcast_device_ptr where;
  open_pair(NULL);
  open_other();
  ck_assert_int_eq(send_bytes(3, 100, RINGCAST_GPU_NO_INLINE), 0);
  begin_on_other(&received);
  ck_assert_int_eq(ringcast_gpu_map(gpu_reader, &received.take, &received.item, &where, &hold), 0);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
  if (_i == 2) close_reader();
  ck_assert_int_eq(fake_cuda()->capture(other, true), 0);
  long words = fake_cuda()->calls("cuStreamWriteValue64");
  ringcast_gpu_unmap(hold);
  if (_i == 0) ck_assert_int_eq(next_call(), -EAGAIN);
  if (_i == 1) close_reader();
  ck_assert_int_eq(fake_cuda()->calls("cuStreamWriteValue64"), words);
  ck_assert_uint_eq(writer_info().slots_used, 1);
  ck_assert_int_eq(fake_cuda()->capture(other, false), 0);
  if (_i == 0) ck_assert_int_eq(next_call(), -EAGAIN);
  ck_comes(writer_info().slots_used == 0);
  close_other();
  if (_i == 0) close_reader();
  close_writer();
  close_device();
}
END_TEST

START_TEST(a_reader_closes_while_the_stream_of_a_take_captures) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct received received;
  options.pool_bytes = RINGCAST_NO_POOL;
  open_writer(&options);
  open_reader();
  open_other();
  ck_assert_int_eq(send_bytes(3, 100, 0), 0);
  begin_on_other(&received);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), 0);
  ck_assert_int_eq(fake_cuda()->capture(other, true), 0);
  close_reader();
  ck_assert_int_eq(fake_cuda()->capture(other, false), 0); /* not spoilt */
  close_other();
  close_writer();
  close_device();
}
END_TEST

START_TEST(memory_is_freed_once_its_stream_captures_no_more) {
  ringcast_gpu_memory *memory, *more;
  ringcast_device_ptr where;
  open_pair(NULL);
  open_other();
  long before = fake_cuda()->live("allocations");
  ck_assert_int_eq(ringcast_gpu_memory_alloc(gpu_reader, 4096, other, &where, &memory), 0);
  ck_assert_int_eq(fake_cuda()->capture(other, true), 0);
  ringcast_gpu_memory_free(memory);
  ck_assert_int_eq(fake_cuda()->live("allocations"), before + 1);
  ck_assert_int_eq(fake_cuda()->capture(other, false), 0);
  ck_assert_int_eq(ringcast_gpu_memory_alloc(gpu_reader, 4096, stream, &where, &more), 0);
  ck_comes(fake_cuda()->live("allocations") == before + 1);
  ringcast_gpu_memory_free(more);
  ck_comes(fake_cuda()->live("allocations") == before);
  close_other();
  close_pair();
}
END_TEST

/* ---- The writer's ------------------------------------------------------------------------------------------------ */

START_TEST(what_waits_for_a_stream_that_captures_is_refused) {
  struct ringcast_gpu_writer_options options = gpu_options();
  options.pool_bytes = RINGCAST_NO_POOL;
  open_writer(&options);
  open_reader();
  ck_assert_int_eq(fake_cuda()->capture(stream, true), 0);
  ck_assert_int_eq(send_bytes(3, 100, 0), -EBUSY);
  ck_assert_int_eq(ringcast_gpu_wait(gpu_writer, stream), -EBUSY);
  ck_assert_int_eq(ringcast_gpu_stream_wait(0, stream), -EBUSY);
  ck_assert_int_eq(fake_cuda()->capture(stream, false), 0);
  ck_assert_int_eq(send_bytes(3, 100, 0), 0);
  ck_assert_int_eq(receive_bytes(3), RINGCAST_PLACEMENT_INLINE);
  close_pair();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_captures");
  TCase *tests = add_case(suite, "beside one");
  tcase_add_test(tests, a_pool_is_opened_used_and_closed);
  tcase_add_test(tests, the_ring_is_registered_and_copied_from);
  tcase_add_test(tests, an_ack_that_fails_is_written_by_the_next_call);
  tcase_add_loop_test(tests, a_thread_that_cannot_be_relaxed_goes_on, 0, 2);
  tests = add_case(suite, "a stream that captures itself");
  tcase_add_loop_test(tests, a_view_that_is_dropped_while_its_stream_captures_is_acknowledged_after_it, 0, 3);
  tcase_add_test(tests, a_reader_closes_while_the_stream_of_a_take_captures);
  tcase_add_test(tests, memory_is_freed_once_its_stream_captures_no_more);
  tcase_add_test(tests, what_waits_for_a_stream_that_captures_is_refused);
  return run_gpu_suite(suite, "test_gpu_captures");
}
