/* SPDX-License-Identifier: Apache-2.0 */
/* The reader where it can't have its way: no current context, no time, a stream that stalls, a writer that evicts. */
#include <pthread.h>

#include "tests/support/gpu_channel.h"
#include "tests/support/switches.h"

static rc_cu_stream other; /* the reader's own: what stalls it does not stall the writer */

static void open_without_pool(uint32_t leases) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct ringcast_reader_options how = {.size = sizeof how, .leases = leases};
  options.pool_bytes = RINGCAST_NO_POOL;
  open_writer(&options);
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &how, &reader), 0);
  ck_assert_int_eq(ringcast_gpu_reader_open(reader, NULL, &gpu_reader), 0);
  ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0);
}

static void stall(void) { ck_assert_int_eq(rc_word_wait(cuda, 64, other, turn_address, turn->whole + 1), 0); }

static void copy(struct received *received) {
  next_frame(received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received->frame, other, &received->take), 0);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received->take, &received->item, target), 0);
}

static int end(struct received *received) { return ringcast_gpu_end(gpu_reader, &received->take); }

/* A frame that reaches over more than a quarter of the ring, and that the device does not copy yet. */
static void defer_much(void) {
  struct received received;
  ck_assert_int_eq(send_bytes(0, 400000, 0), 0);
  stall();
  copy(&received);
  ck_assert_int_eq(end(&received), 0);
  ck_assert_uint_eq(reader->ring.deferred, 1);
}

static void close_all(void) {
  cuda->stream_destroy(other);
  close_pair();
}

/* ---- */

static void *tidy_without_a_context(void *unused) {
  rc_cu_context current = NULL;
  (void)unused;
  cuda->ctx_get_current(&current);
  return (void *)(intptr_t)(current ? 1 : ringcast_gpu_tidy(gpu_reader, RINGCAST_FOREVER));
}

START_TEST(a_thread_without_a_context_waits_for_the_device_too) {
  pthread_t thread;
  void *rc;
  open_without_pool(1);
  defer_much();
  ck_assert_int_eq(pthread_create(&thread, NULL, tidy_without_a_context, NULL), 0);
  for (int i = 0; i < 50; i++) pause_shortly(); /* if it has gone on by now, the frame is deferred still, below */
  let_go();
  ck_assert_int_eq(pthread_join(thread, &rc), 0);
  ck_assert_int_eq((int)(intptr_t)rc, 0);
  ck_assert_uint_eq(reader->ring.deferred, 0);
  close_all();
}
END_TEST

START_TEST(next_keeps_to_its_timeout_and_gives_what_is_there) {
  struct ringcast_frame frame;
  struct received received;
  open_without_pool(1);
  defer_much();
  ck_assert_int_eq(ringcast_gpu_tidy(gpu_reader, 1000000), -ETIMEDOUT);
  ck_assert_int_eq(ringcast_gpu_tidy(gpu_reader, 0), -EAGAIN);
  ck_assert_int_eq(ringcast_gpu_tidy(gpu_reader, -2), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 1000000, &frame), -ETIMEDOUT);
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, -2, &frame), -EINVAL);
  ck_assert_int_eq(send_bytes(5, 100, 0), 0);
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, RINGCAST_FOREVER, &received.frame), 0);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), 0);
  ck_assert_uint_eq(reader->ring.deferred, 1);
  let_go();
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 1000000, &frame), -ETIMEDOUT);
  ck_comes(ringcast_gpu_tidy(gpu_reader, 0) == 0 && reader->ring.deferred == 0);
  close_all();
}
END_TEST

/* The writer waits for room meanwhile: its next frame is what tells this reader, whose calls then fail. */
START_TEST(what_a_lost_device_was_to_read_is_given_back_by_who_waits_for_a_frame) {
  struct ringcast_frame frame;
  open_without_pool(1);
  rc_ring_slack_ns = 1000000; /* it is in vain */
  defer_much();
  fake_cuda()->break_context(NULL);
  if (_i == 0) ck_assert_int_eq(ringcast_gpu_tidy(gpu_reader, RINGCAST_FOREVER), 0);
  int64_t timeout_ns = _i == 1 ? 1000000 : 0;
  ck_comes(reader->ring.deferred == 0 || (ringcast_gpu_next(gpu_reader, timeout_ns, &frame), false));
  close_reader();
  close_writer();
  abandon_device();
}
END_TEST

/* ---- A stream that stalls for longer than is waited for it ------------------------------------------------------- */

enum { PATIENCE_NS = 20000000 };

/* With a writer that evicts, or with memory that is not registered, what is read can't be waited for later. */
static void open_evicting(bool evicts) {
  struct ringcast_writer_options how = {.size = sizeof how, .capacity = 1 << 20, .readers = 4};
  struct ringcast_gpu_writer_options options = gpu_options();
  if (evicts) {
    how.on_slow = RINGCAST_EVICT;
    how.slow_ns = (uint64_t)1 << 40;
  }
  options.pool_bytes = RINGCAST_NO_POOL;
  rc_ring_patience_ns = PATIENCE_NS;
  open_device();
  remember();
  ck_assert_int_eq(ringcast_writer_create_ex(&how, &writer), 0);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  open_reader();
  ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0);
}

START_TEST(the_end_of_a_take_is_told_that_its_stream_stalls) {
  struct received received;
  if (_i == 1) disable_too("cuda_register");
  open_evicting(_i == 0);
  ck_assert_int_eq(send_bytes(5, 1000, 0), 0);
  next_frame(&received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received.frame, other, &received.take), 0);
  if (_i == 0) stall(); /* else the copy itself would wait: of pageable memory */
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), 0);
  if (_i == 1) stall();
  for (int i = 0; i < 2; i++) ck_assert_int_eq(end(&received), -ETIMEDOUT);
  ck_says("the frame is held until it has: try again"); /* in Python, too, where nobody ends a take */
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), -EINVAL);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &received.frame), -EBUSY); /* the frame is held */
  let_go();
  ck_comes(end(&received) == 0);
  ck_assert_int_eq(end(&received), -EINVAL);
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  ck_assert_int_eq(send_bytes(9, 100, 0), 0);
  ck_assert_int_eq(receive_bytes(9), RINGCAST_PLACEMENT_INLINE);
  close_all();
}
END_TEST

/* 1: too many are deferred. */
START_TEST(the_end_of_a_take_waits_no_longer_than_it_is_told_to) {
  struct received received;
  if (_i == 0) open_evicting(true);
  else open_without_pool(1);
  rc_ring_patience_ns = INT64_MAX / 4; /* nobody waits so long */
  stall();
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED && _i == 1; i++) {
    ck_assert_int_eq(send_bytes(i, 100, 0), 0);
    copy(&received);
    ck_assert_int_eq(ringcast_gpu_end_within(gpu_reader, &received.take, 0), 0);
  }
  ck_assert_int_eq(send_bytes(5, 100, 0), 0);
  copy(&received);
  uint64_t syncs = reader_info().syncs;
  ck_assert_int_eq(ringcast_gpu_end_within(gpu_reader, &received.take, -2), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_end_within(gpu_reader, &received.take, 0), -EAGAIN);
  ck_assert_uint_eq(reader_info().syncs, syncs);
  ck_assert_int_eq(ringcast_gpu_end_within(gpu_reader, &received.take, 1000000), -ETIMEDOUT);
  let_go();
  ck_assert_int_eq(ringcast_gpu_end_within(gpu_reader, &received.take, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(ringcast_gpu_end_within(gpu_reader, &received.take, 0), -EINVAL);
  close_all();
}
END_TEST

static void *end_in_vain(void *received) { return (void *)(intptr_t)end(received); }

/* Another thread's, of this stream, or of one that the default stream waits for. */
START_TEST(a_capture_that_begins_while_the_end_waits_is_not_spoilt_and_the_frame_is_held) {
  struct received received;
  pthread_t thread;
  void *rc;
  disable_too("cuda_register");
  open_evicting(false);
  rc_ring_patience_ns = INT64_MAX / 4; /* nobody waits so long */
  ck_assert_int_eq(send_bytes(5, 1000, 0), 0);
  copy(&received);
  stall();
  long asked = fake_cuda()->calls("cuStreamIsCapturing");
  (fake_cuda()->hold)("cuStreamIsCapturing", 2); /* the first is before it waits */
  ck_assert_int_eq(pthread_create(&thread, NULL, end_in_vain, &received), 0);
  ck_comes(fake_cuda()->calls("cuStreamIsCapturing") == asked + 2);
  ck_assert_int_eq(fake_cuda()->capture(other, true), 0);
  (fake_cuda()->hold)(NULL, 0);
  ck_assert_int_eq(pthread_join(thread, &rc), 0);
  ck_assert_int_eq((int)(intptr_t)rc, -EBUSY);
  ck_assert_int_eq(end(&received), -EBUSY);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &received.frame), -EBUSY); /* the frame is held */
  ck_assert_int_eq(fake_cuda()->capture(other, false), 0);
  let_go();
  ck_assert_int_eq(end(&received), 0);
  ck_assert_int_eq(end(&received), -EINVAL);
  close_all();
}
END_TEST

/* With a writer that evicts there are no marks before, and else there is nothing to be read with. */
START_TEST(a_reader_closes_though_the_stream_of_a_take_stalls) {
  struct received received;
  open_evicting(_i == 0);
  rc_ring_slack_ns = PATIENCE_NS;
  ck_assert_int_eq(send_bytes(5, 1000, 0), 0);
  stall();
  copy(&received);
  if (_i == 0) ck_assert_int_eq(end(&received), -ETIMEDOUT);
  ringcast_gpu_reader_close(gpu_reader);
  ck_assert_int_eq(cuda->stream_query(other), RC_CU_NOT_READY);
  ck_assert_int_eq(ringcast_reader_release(reader, &received.frame), 0); /* it was held */
  ringcast_reader_close(reader);
  ck_assert_int_eq(rc_peer_count(&writer->ring.ring), 1); /* it is held still */
  let_go();
  ck_comes(rc_peer_count(&writer->ring.ring) == 0);
  cuda->stream_destroy(other);
  close_writer();
  close_device();
}
END_TEST

START_TEST(a_frame_that_can_be_deferred_no_more_is_held_while_the_stream_stalls) {
  struct received received;
  open_without_pool(1);
  rc_ring_patience_ns = PATIENCE_NS;
  stall();
  for (uint32_t i = 0; i <= RC_GPU_MAX_DEFERRED; i++) {
    ck_assert_int_eq(send_bytes(i, 100, 0), 0);
    copy(&received);
    ck_assert_int_eq(end(&received), i < RC_GPU_MAX_DEFERRED ? 0 : -ETIMEDOUT);
  }
  let_go();
  ck_comes(end(&received) == 0);
  ck_comes(ringcast_gpu_tidy(gpu_reader, 0) == 0 && reader->ring.deferred == 0);
  close_all();
}
END_TEST

/* ---- */

static void *let_go_later(void *unused) {
  (void)unused;
  for (int i = 0; i < 100; i++) pause_shortly();
  let_go();
  return NULL;
}

START_TEST(to_close_waits_for_the_ring_to_be_read_by_open_takes) {
  struct received received;
  pthread_t thread;
  open_without_pool(1);
  ck_assert_int_eq(send_bytes(0, 1000, 0), 0);
  stall();
  copy(&received);
  ck_assert_int_eq(pthread_create(&thread, NULL, let_go_later, NULL), 0);
  ringcast_gpu_reader_close(gpu_reader);
  ck_assert_int_eq(cuda->stream_query(other), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &received.frame), 0); /* it is held still */
  ringcast_reader_close(reader);
  close_writer();
  cuda->stream_destroy(other);
  close_device();
}
END_TEST

START_TEST(takes_that_are_too_many_to_be_noted_are_waited_for) {
  struct received received[RC_GPU_MAX_DEFERRED + 1];
  open_without_pool(RC_GPU_MAX_DEFERRED + 1);
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED + 1; i++) {
    ck_assert_int_eq(send_bytes(i, 100, 0), 0);
    copy(&received[i]);
  }
  ck_assert_int_eq(cuda->stream_query(other), 0);
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED + 1; i++) ck_assert_int_eq(end(&received[i]), 0);
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++) ck_assert(!gpu_reader->taken[i].used);
  close_all();
}
END_TEST

START_TEST(nothing_is_deferred_where_the_writer_evicts) {
  struct ringcast_writer_options how = {.size = sizeof how, .capacity = 1 << 20, .readers = 4,
                                        .on_slow = RINGCAST_EVICT, .slow_ns = 1000000};
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
  ck_assert_int_eq(cuda->stream_query(other), 0);
  ck_assert_uint_eq(reader->ring.deferred, 0);
  ck_assert_uint_eq(reader_info().registered, 0);
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
  tcase_add_test(tests, a_thread_without_a_context_waits_for_the_device_too);
  tcase_add_test(tests, next_keeps_to_its_timeout_and_gives_what_is_there);
  tcase_add_loop_test(tests, what_a_lost_device_was_to_read_is_given_back_by_who_waits_for_a_frame, 0, 3);
  tcase_add_loop_test(tests, the_end_of_a_take_is_told_that_its_stream_stalls, 0, 2);
  tcase_add_loop_test(tests, the_end_of_a_take_waits_no_longer_than_it_is_told_to, 0, 2);
  tcase_add_test(tests, a_capture_that_begins_while_the_end_waits_is_not_spoilt_and_the_frame_is_held);
  tcase_add_loop_test(tests, a_reader_closes_though_the_stream_of_a_take_stalls, 0, 2);
  tcase_add_test(tests, a_frame_that_can_be_deferred_no_more_is_held_while_the_stream_stalls);
  tcase_add_test(tests, to_close_waits_for_the_ring_to_be_read_by_open_takes);
  tcase_add_test(tests, takes_that_are_too_many_to_be_noted_are_waited_for);
  tcase_add_test(tests, nothing_is_deferred_where_the_writer_evicts);
  tcase_add_test(tests, what_captures_is_left_alone_and_the_take_stays_open);
  tcase_add_test(tests, the_per_thread_default_stream_is_refused);
  tcase_add_test(tests, a_pool_stays_open_while_a_frame_of_it_is_held);
  return run_gpu_suite(suite, "test_gpu_reader_limits");
}
