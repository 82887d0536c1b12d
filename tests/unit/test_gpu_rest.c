/* SPDX-License-Identifier: Apache-2.0 */
/* Readers that close while a device is still to read the ring: what it reads stays mapped, and is not written over. */
#include <pthread.h>

#include "tests/support/gpu_channel.h"

enum { MUCH = 400000 }; /* of a ring of 1 MiB */

static rc_cu_stream other; /* the reader's own: what stalls it does not stall the writer */

static void stall(void) { ck_assert_int_eq(rc_word_wait(cuda, 64, other, turn_address, turn->whole + 1), 0); }
static int end(struct received *received) { return ringcast_gpu_end(gpu_reader, &received->take); }

/* Of a ring without a pool. */
static void open_by_ring(uint32_t leases) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct ringcast_reader_options how = {.size = sizeof how, .leases = leases};
  options.pool_bytes = RINGCAST_NO_POOL;
  rc_ring_slack_ns = 1000000; /* it is in vain */
  open_writer(&options);
  ck_assert_int_eq(ringcast_reader_attach_ex(ringcast_writer_handle(writer), &how, &reader), 0);
  ck_assert_int_eq(ringcast_gpu_reader_open(reader, NULL, &gpu_reader), 0);
  ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0);
}

/* A frame that the device is told to copy, and does not copy yet. */
static void copy_later(struct received *received, int64_t at) {
  ck_assert_int_eq(send_bytes(at, MUCH, 0), 0);
  next_frame(received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received->frame, other, &received->take), 0);
  stall();
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received->take, &received->item, target), 0);
}

/* As much as there is room for. */
static void write_over(void) {
  static char junk[MUCH];
  int rc, sent = 0;
  while ((rc = ringcast_writer_send(writer, junk, sizeof junk, 0, 0)) == 0) ck_assert_int_lt(sent++, 3);
  ck_assert_int_eq(rc, -EAGAIN);
}

static void ring_is_left(void) { ck_comes(rc_peer_count(&writer->ring.ring) == 0); }

/* The rest's own thread unmaps the ring after it has left it. */
static void close_rest(void) {
  close_writer();
  ck_comes(open_descriptors() == descriptors && ring_mappings() == mappings);
  close_device();
}

static void close_in_order(int order) {
  if (order == 1) ringcast_reader_close(reader);
  if (order == 2) ringcast_reader_leave(reader);
  ringcast_gpu_reader_close(gpu_reader);
  if (order == 3) ringcast_reader_leave(reader);
  if (order != 1) ringcast_reader_close(reader);
}

/* ---- Who has closed all ----------------------------------------------------------------------------------------- */

/* Of a take that has ended, or (4 and on) not. */
START_TEST(the_ring_stays_until_the_device_has_read_it) {
  struct received received;
  open_by_ring(1);
  copy_later(&received, 3);
  if (_i < 4) ck_assert_int_eq(end(&received), 0);
  close_in_order(_i % 4);
  write_over();
  ck_assert_int_eq(cuda->stream_query(other), RC_CU_NOT_READY);
  let_go();
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  target_holds(3, MUCH);
  ring_is_left();
  cuda->stream_destroy(other);
  close_rest();
}
END_TEST

/* What it has to do is done: CUDA says so. Nobody may ask it any more. */
START_TEST(the_stream_may_be_destroyed_once_the_reader_has_closed) {
  struct received received;
  open_by_ring(1);
  copy_later(&received, 3);
  if (_i == 0) ck_assert_int_eq(end(&received), 0);
  ringcast_gpu_reader_close(gpu_reader);
  ck_assert_int_eq(cuda->stream_destroy(other), 0);
  ringcast_reader_close(reader);
  let_go();
  ring_is_left();
  target_holds(3, MUCH);
  close_rest();
}
END_TEST

START_TEST(what_a_stream_reads_that_was_destroyed_too_early_is_waited_for) {
  struct received received;
  open_by_ring(1);
  copy_later(&received, 3);
  ck_assert_int_eq(cuda->stream_destroy(other), 0);
  close_reader();
  write_over();
  ck_comes(fake_cuda()->calls("cuCtxSynchronize") > 0); /* nothing else can be asked */
  let_go();
  ring_is_left();
  target_holds(3, MUCH);
  close_rest();
}
END_TEST

/* So is its stream, until it was told to leave a mark. */
START_TEST(a_capture_at_the_end_is_waited_for_and_not_spoilt) {
  struct received received;
  open_by_ring(1);
  copy_later(&received, 3);
  ck_assert_int_eq(fake_cuda()->capture(other, true), 0);
  close_reader();
  write_over();
  long asked = fake_cuda()->calls("cuStreamIsCapturing");
  ck_comes(fake_cuda()->calls("cuStreamIsCapturing") > asked + 3); /* is it over? */
  long writes = fake_cuda()->calls("cuStreamWriteValue64");
  ck_assert_int_eq(fake_cuda()->capture(other, false), 0);
  ck_comes(fake_cuda()->calls("cuStreamWriteValue64") > writes);
  ck_comes(fake_cuda()->live("queued") > 2); /* the wait, the copy, and the mark */
  ck_assert_int_eq(cuda->stream_destroy(other), 0);
  let_go();
  ring_is_left();
  target_holds(3, MUCH);
  close_rest();
}
END_TEST

START_TEST(a_device_that_is_lost_reads_nothing_any_more) {
  struct received received;
  open_by_ring(1);
  copy_later(&received, 3);
  if (_i == 0) ck_assert_int_eq(end(&received), 0);
  close_reader();
  ck_assert_int_eq(rc_peer_count(&writer->ring.ring), 1);
  fake_cuda()->break_context(NULL);
  ring_is_left();
  close_writer();
  abandon_device();
}
END_TEST

/* More takes than are known by their streams: that of the last one is waited for in vain. 0: all have ended before the
 * reader closes, 1: none has. */
START_TEST(a_take_that_was_one_too_many_keeps_the_ring_no_longer_than_it_is_read) {
  struct received received[RC_GPU_MAX_DEFERRED + 1];
  int64_t patience_ns = rc_ring_patience_ns;
  open_by_ring(RC_GPU_MAX_DEFERRED + 1);
  rc_ring_patience_ns = 1000000;
  stall();
  for (uint32_t i = 0; i <= RC_GPU_MAX_DEFERRED; i++) {
    ck_assert_int_eq(send_bytes(i, 100, 0), 0);
    next_frame(&received[i]);
    ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received[i].frame, other, &received[i].take), 0);
    int rc = ringcast_gpu_copy_out(gpu_reader, &received[i].take, &received[i].item, target);
    ck_assert_int_eq(rc, i < RC_GPU_MAX_DEFERRED ? 0 : -ETIMEDOUT);
  }
  rc_ring_patience_ns = patience_ns;
  if (_i == 0) let_go();
  for (uint32_t i = 0; i <= RC_GPU_MAX_DEFERRED && _i == 0; i++) ck_assert_int_eq(end(&received[i]), 0);
  if (_i == 0) ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  long asked = fake_cuda()->calls("cuCtxSynchronize");
  ringcast_gpu_reader_close(gpu_reader);
  ck_assert_int_eq(reader->rest != NULL, _i);
  ringcast_reader_close(reader);
  if (_i == 1) ck_comes(fake_cuda()->calls("cuCtxSynchronize") > asked);
  if (_i == 1) let_go();
  ring_is_left();
  cuda->stream_destroy(other);
  close_rest();
}
END_TEST

/* ---- Who goes on without a device ------------------------------------------------------------------------------- */

static void *receive_one(void *unused) {
  struct ringcast_frame frame;
  (void)unused;
  int rc = ringcast_reader_next(reader, RINGCAST_FOREVER, &frame);
  if (rc == 0) rc = ringcast_reader_release(reader, &frame);
  return (void *)(intptr_t)rc;
}

/* It sleeps for a frame for which the writer has no room before this one is given back. */
START_TEST(a_reader_that_goes_on_gives_back_what_was_read) {
  static char bytes[MUCH];
  struct received received;
  pthread_t thread;
  void *rc;
  open_by_ring(1);
  copy_later(&received, 3);
  ck_assert_int_eq(end(&received), 0);
  ringcast_gpu_reader_close(gpu_reader);
  ck_assert_int_eq(ringcast_gpu_reader_open(reader, NULL, &gpu_reader), -EBUSY);
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &received.frame), -EAGAIN);
  ck_assert_int_eq(ringcast_reader_next(reader, 1000000, &received.frame), -ETIMEDOUT);
  while (ringcast_writer_send(writer, bytes, sizeof bytes, 0, 0) == 0) receive_one(NULL);
  ck_assert_int_eq(pthread_create(&thread, NULL, receive_one, NULL), 0);
  let_go();
  ck_assert_int_eq(ringcast_writer_send(writer, bytes, sizeof bytes, 0, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(pthread_join(thread, &rc), 0);
  ck_assert_int_eq((int)(intptr_t)rc, 0);
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  target_holds(3, MUCH);
  ck_assert_uint_eq(reader->ring.deferred, 0);
  ck_assert_int_eq(ringcast_gpu_reader_open(reader, NULL, &gpu_reader), 0);
  ck_assert_int_eq(send_bytes(5, 100, 0), 0);
  ck_assert_int_eq(receive_bytes(5), RINGCAST_PLACEMENT_INLINE);
  close_reader();
  cuda->stream_destroy(other);
  close_rest();
}
END_TEST

/* 0: it is released before the device has read it; 1: after that. */
START_TEST(a_frame_that_is_held_is_given_back_when_both_have_done_with_it) {
  struct received received;
  open_by_ring(1);
  copy_later(&received, 3);
  ringcast_gpu_reader_close(gpu_reader);
  if (_i == 0) {
    ck_assert_int_eq(ringcast_reader_release(reader, &received.frame), 0);
    ck_assert_int_eq(ringcast_reader_release(reader, &received.frame), -EINVAL);
  }
  ck_assert_int_eq(ringcast_reader_next(reader, 0, &received.frame), -EAGAIN);
  write_over();
  let_go();
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  target_holds(3, MUCH);
  ck_comes(reader->ring.deferred == 0 || (receive_one(NULL), false));
  if (_i == 1) ck_assert_int_eq(ringcast_reader_release(reader, &received.frame), 0);
  ck_assert_int_eq(ringcast_reader_release(reader, &received.frame), -EINVAL);
  ringcast_reader_close(reader);
  cuda->stream_destroy(other);
  close_rest();
}
END_TEST

/* ---- A context that can't be entered ---------------------------------------------------------------------------- */

static void *close_without_a_context(void *nth) { /* in the test's own thread it is current */
  call_fails("cuCtxPushCurrent", (long)(intptr_t)nth, RC_CU_OUT_OF_MEMORY);
  close_reader();
  return NULL;
}

/* What is registered is unregistered before it is unmapped, and that takes a context. */
START_TEST(closing_enters_the_context_when_it_can) {
  struct received received;
  pthread_t thread;
  open_by_ring(1);
  copy_later(&received, 3);
  let_go();
  ck_assert_int_eq(end(&received), 0);
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  ck_assert_int_eq(pthread_create(&thread, NULL, close_without_a_context, (void *)(intptr_t)(_i + 1)), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_str_eq(fake_cuda()->failed(), "cuCtxPushCurrent");
  no_call_fails();
  ring_is_left();
  cuda->stream_destroy(other);
  close_rest();
}
END_TEST

static void *end_without_a_context(void *received) {
  call_fails("cuCtxPushCurrent", 2, RC_CU_OUT_OF_MEMORY); /* the one by which it is asked for captures can fail */
  return (void *)(intptr_t)end(received);
}

START_TEST(a_take_that_ends_is_not_given_back_unread_where_the_context_cannot_be_entered_once) {
  struct received received;
  pthread_t thread;
  void *rc;
  open_by_ring(1);
  copy_later(&received, 3);
  ck_assert_int_eq(pthread_create(&thread, NULL, end_without_a_context, &received), 0);
  ck_assert_int_eq(pthread_join(thread, &rc), 0);
  ck_assert_str_eq(fake_cuda()->failed(), "cuCtxPushCurrent");
  no_call_fails();
  ck_assert_int_eq((int)(intptr_t)rc, 0);
  write_over();
  let_go();
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  target_holds(3, MUCH);
  close_reader();
  cuda->stream_destroy(other);
  close_rest();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_rest");
  TCase *tests = add_case(suite, "rest");
  tcase_add_loop_test(tests, the_ring_stays_until_the_device_has_read_it, 0, 8);
  tcase_add_loop_test(tests, the_stream_may_be_destroyed_once_the_reader_has_closed, 0, 2);
  tcase_add_test(tests, what_a_stream_reads_that_was_destroyed_too_early_is_waited_for);
  tcase_add_test(tests, a_capture_at_the_end_is_waited_for_and_not_spoilt);
  tcase_add_loop_test(tests, a_device_that_is_lost_reads_nothing_any_more, 0, 2);
  tcase_add_loop_test(tests, a_take_that_was_one_too_many_keeps_the_ring_no_longer_than_it_is_read, 0, 2);
  tcase_add_test(tests, a_reader_that_goes_on_gives_back_what_was_read);
  tcase_add_loop_test(tests, a_frame_that_is_held_is_given_back_when_both_have_done_with_it, 0, 2);
  tcase_add_loop_test(tests, closing_enters_the_context_when_it_can, 0, 2);
  tcase_add_test(tests, a_take_that_ends_is_not_given_back_unread_where_the_context_cannot_be_entered_once);
  return run_gpu_suite(suite, "test_gpu_rest");
}
