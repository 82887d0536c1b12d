/* SPDX-License-Identifier: Apache-2.0 */
/* The reader where it can't have its way: a writer that evicts, a stream that captures, a pool that was left. */
#include "tests/support/gpu_channel.h"

static rc_cu_stream other; /* the reader's own: what stalls it does not stall the writer */

static int end(struct received *received) { return ringcast_gpu_end(gpu_reader, &received->take); }

static void close_all(void) {
  cuda->stream_destroy(other);
  close_pair();
}

static void copy(struct received *received) {
  next_frame(received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received->frame, other, &received->take), 0);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received->take, &received->item, target), 0);
}

START_TEST(where_the_writer_evicts_the_frame_is_free_at_once_too) {
  struct ringcast_writer_options how = {
      .size = sizeof how, .capacity = 1 << 20, .readers = 4, .on_slow = RINGCAST_EVICT, .slow_ns = 1000000};
  struct ringcast_gpu_writer_options options = gpu_options();
  struct received received;
  options.pool_bytes = RINGCAST_NO_POOL;
  open_device();
  remember();
  ck_assert_int_eq(ringcast_writer_create_ex(&how, &writer), 0);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  open_reader();
  ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0);
  ck_assert_int_eq(send_bytes(0, 1000, 0), 0);
  copy(&received);
  ck_assert_int_eq(end(&received), 0);
  ck_assert_uint_eq(rc_ring_held(&reader->ring), 0);
  while (ringcast_gpu_check(gpu_reader) == 0) {
    int rc = send_bytes(0, 400000, 0);
    ck_assert(rc == 0 || rc == -EAGAIN); /* full, until the reader is slow */
  }
  ck_assert_int_eq(ringcast_gpu_check(gpu_reader), -ESTALE);
  close_all();
}
END_TEST

START_TEST(what_captures_is_left_alone_and_the_take_stays_open) {
  struct received received;
  ringcast_gpu_memory *memory;
  ringcast_device_ptr where;
  open_pair(NULL);
  for (int by_pool = 0; by_pool < 2; by_pool++) {
    ck_assert_int_eq(send_bytes(3, 100, by_pool ? RINGCAST_GPU_NO_INLINE : 0), 0);
    next_frame(&received);
    begin(&received);
    ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), 0);
    fake_cuda()->capture(stream, true);
    ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), -EBUSY);
    ck_assert_int_eq(ringcast_gpu_copy_frame(gpu_reader, &received.take, received.frame.data, 1, target), -EBUSY);
    ck_assert_int_eq(end(&received), -EBUSY);
    ck_assert_int_eq(ringcast_gpu_memory_alloc(gpu_reader, 10, stream, &where, &memory), -EBUSY);
    fake_cuda()->capture(stream, false);
    ck_assert_int_eq(end(&received), 0);
    ck_assert_int_eq(end(&received), -EINVAL);
  }
  close_pair();
}
END_TEST

START_TEST(the_per_thread_default_stream_is_refused) {
  struct received received;
  ringcast_gpu_memory *memory;
  ringcast_device_ptr where;
  rc_cu_stream per_thread = (rc_cu_stream)(uintptr_t)2;
  open_pair(NULL);
  ck_assert_int_eq(send_bytes(3, 100, 0), 0);
  next_frame(&received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received.frame, per_thread, &received.take), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_memory_alloc(gpu_reader, 10, per_thread, &where, &memory), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), 0);
  close_pair();
}
END_TEST

/* Two pools, and a frame of the earlier one that is held while one of the later one is begun. */
START_TEST(a_pool_stays_open_while_a_frame_of_it_is_held) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct ringcast_reader_options how = {.size = sizeof how, .leases = 4};
  struct received first, second;
  open_writer(&options);
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &how, &reader), 0);
  ck_assert_int_eq(ringcast_gpu_reader_open(reader, NULL, &gpu_reader), 0);
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_INLINE);
  ck_assert_int_eq(send_bytes(5, 1000, RINGCAST_GPU_NO_INLINE), 0);
  ringcast_gpu_writer_close(gpu_writer);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  ck_assert_int_eq(send_bytes(9, 100, 0), 0);
  next_frame(&first);
  next_frame(&second);
  begin(&second);
  begin(&first);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &first.take, &first.item, target), 0);
  target_holds(5, 1000);
  ck_assert_int_eq(end(&first), 0);
  ck_assert_int_eq(end(&second), 0);
  close_pair();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_reader_limits");
  TCase *tests = add_case(suite, "reader");
  tcase_add_test(tests, where_the_writer_evicts_the_frame_is_free_at_once_too);
  tcase_add_test(tests, what_captures_is_left_alone_and_the_take_stays_open);
  tcase_add_test(tests, the_per_thread_default_stream_is_refused);
  tcase_add_test(tests, a_pool_stays_open_while_a_frame_of_it_is_held);
  return run_gpu_suite(suite, "test_gpu_reader_limits");
}
