/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that go from the ring to a device: through the reader's pinned buffer, or without one. */
#include <pthread.h>
#include <signal.h>

#include "tests/support/gpu_channel.h"
#include "tests/support/switches.h"

enum { MUCH = 400000 /* of a ring of 1 MiB */, CHUNKS = 16, CHUNK_BYTES = 512 << 10 };

static rc_cu_stream other; /* the reader's own: what stalls it does not stall the writer */

static void stall(void) { ck_assert_int_eq(rc_word_wait(cuda, other, turn_address, turn->whole + 1), 0); }
static int end(struct received *received) { return ringcast_gpu_end(gpu_reader, &received->take); }

static void open_by_ring(void) {
  struct ringcast_gpu_writer_options options = gpu_options();
  options.pool_bytes = RINGCAST_NO_POOL;
  rc_gpu_close_ns = 1000000; /* it is in vain */
  open_writer(&options);
  open_reader();
  ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0);
}

static void begin_next(struct received *received) {
  next_frame(received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received->frame, other, &received->take), 0);
}

static int copy(struct received *received) {
  return ringcast_gpu_copy_out(gpu_reader, &received->take, &received->item, target);
}

static void send_and_copy(struct received *received, int64_t at, int64_t bytes) {
  ck_assert_int_eq(send_bytes(at, bytes, 0), 0);
  begin_next(received);
  ck_assert_int_eq(copy(received), 0);
}

/* As much as there is room for, where no frame is held. */
static void write_over(void) {
  static char junk[MUCH];
  struct ringcast_frame frame;
  for (int i = 0; i < 4; i++) {
    ck_assert_int_eq(ringcast_writer_send(writer, junk, sizeof junk, 0, 0), 0);
    ck_assert_int_eq(ringcast_reader_next(reader, 0, &frame), 0);
    ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  }
}

/* A frame in each chunk but so many, none of which the stream comes to. */
static void fill_all_but(int chunks) {
  struct received received;
  stall();
  for (int i = 0; i < CHUNKS - chunks; i++) {
    send_and_copy(&received, i, 1000);
    ck_assert_int_eq(end(&received), 0);
  }
}

static void catch_up(void) {
  let_go();
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
}

static void close_all(void) {
  cuda->stream_destroy(other);
  close_pair();
}

/* ---- The buffer -------------------------------------------------------------------------------------------------- */

START_TEST(the_ring_may_be_written_over_before_the_stream_comes_to_the_copy) {
  struct received received;
  open_by_ring();
  stall();
  send_and_copy(&received, 3, MUCH);
  ck_assert_int_eq(end(&received), 0);
  ck_assert_uint_eq(reader_info().registered, 1);
  ck_assert_uint_eq(reader_info().syncs, 0);
  write_over();
  ck_assert_int_eq(cuda->stream_query(other), RC_CU_NOT_READY);
  catch_up();
  target_holds(3, MUCH);
  close_all();
}
END_TEST

/* More than there are chunks, so that each is used again. */
START_TEST(each_frame_comes_whole_whichever_chunk_it_is_in) {
  struct received received;
  open_by_ring();
  for (int i = 0; i < 3 * CHUNKS; i++) {
    int64_t bytes = i % 3 == 0 ? SOURCE_BYTES - i : 1 + 1000 * i;
    send_and_copy(&received, i, bytes);
    ck_assert_int_eq(end(&received), 0);
    ck_assert_int_eq(cuda->stream_synchronize(other), 0);
    target_holds(i, (uint64_t)bytes);
  }
  ck_assert_int_eq(fake_cuda()->calls("cuMemHostAlloc"), 1);
  close_all();
}
END_TEST

START_TEST(where_the_buffer_is_full_the_call_waits_as_long_as_it_is_told_to) {
  struct received received;
  open_by_ring();
  fill_all_but(0);
  uint64_t syncs = reader_info().syncs;
  ck_assert_int_eq(send_bytes(5, 1000, 0), 0);
  begin_next(&received);
  received.take.timeout_ns = 0;
  ck_assert_int_eq(copy(&received), -EAGAIN);
  received.take.timeout_ns = 1000000;
  ck_assert_int_eq(copy(&received), -ETIMEDOUT);
  ck_assert_uint_eq(received.take.copied, 0);
  ck_assert_uint_eq(reader_info().syncs, syncs + 2);
  catch_up();
  target_holds(CHUNKS - 1, 1000);
  received.take.timeout_ns = RINGCAST_FOREVER;
  ck_assert_int_eq(copy(&received), 0);
  ck_assert_int_eq(end(&received), 0);
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  target_holds(5, 1000);
  close_all();
}
END_TEST

START_TEST(a_copy_that_has_come_to_its_timeout_goes_on_where_it_was) {
  struct received received;
  open_by_ring();
  fill_all_but(1);
  ck_assert_int_eq(send_bytes(0, SOURCE_BYTES, 0), 0);
  begin_next(&received);
  received.take.timeout_ns = 0;
  ck_assert_int_eq(copy(&received), -EAGAIN);
  ck_assert_uint_eq(received.take.copied, CHUNK_BYTES);
  catch_up();
  const uint8_t *rest = (const uint8_t *)received.item.data + CHUNK_BYTES;
  ck_assert_int_eq(
      ringcast_gpu_copy_frame(gpu_reader, &received.take, rest, SOURCE_BYTES - CHUNK_BYTES, target + CHUNK_BYTES), 0);
  ck_assert_uint_eq(received.take.copied, SOURCE_BYTES - CHUNK_BYTES);
  ck_assert_int_eq(end(&received), 0);
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  target_holds(0, SOURCE_BYTES);
  close_all();
}
END_TEST

static void notice(int signal) { (void)signal; }
static _Atomic bool has_returned;

static void *signal_again_and_again(void *thread) {
  while (!has_returned) {
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    pause_shortly();
  }
  return NULL;
}

START_TEST(a_signal_ends_the_wait) {
  struct received received;
  struct sigaction action = {.sa_handler = notice, .sa_flags = SA_RESTART};
  pthread_t self = pthread_self(), thread;
  if (_i == 1) disable_too("cuda_register");
  open_by_ring();
  if (_i == 0) fill_all_but(0);
  else stall();
  ck_assert_int_eq(send_bytes(5, 1000, 0), 0);
  begin_next(&received);
  sigaction(SIGUSR1, &action, NULL);
  ck_assert_int_eq(pthread_create(&thread, NULL, signal_again_and_again, &self), 0);
  int rc = copy(&received);
  has_returned = true;
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_int_eq(rc, -EINTR);
  catch_up();
  ck_assert_int_eq(copy(&received), 0);
  ck_assert_int_eq(end(&received), 0);
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  target_holds(5, 1000);
  close_all();
}
END_TEST

START_TEST(where_no_event_can_be_recorded_the_stream_is_waited_for) {
  struct received received;
  open_by_ring();
  ck_assert_int_eq(send_bytes(3, 1000, 0), 0);
  begin_next(&received);
  call_fails("cuEventRecord", 1, RC_CU_OUT_OF_MEMORY);
  ck_assert_int_eq(copy(&received), 0);
  ck_assert_int_eq(cuda->stream_query(other), 0);
  ck_assert_int_eq(end(&received), 0);
  target_holds(3, 1000);
  close_all();
}
END_TEST

/* ---- Without it -------------------------------------------------------------------------------------------------- */

/* 0: by the environment; else as the driver refuses one of its calls. */
START_TEST(without_pinned_memory_the_copy_is_waited_for) {
  static const char *const calls[] = {NULL, "cuMemHostAlloc", "cuEventCreate"};
  struct received received;
  if (_i == 0) disable_too("cuda_register");
  open_by_ring();
  if (_i > 0) call_fails(calls[_i], 1, RC_CU_OUT_OF_MEMORY);
  for (int i = 0; i < 3; i++) {
    send_and_copy(&received, i, 1000);
    ck_assert_uint_eq(received.take.copied, 1000);
    ck_assert_int_eq(cuda->stream_query(other), 0);
    ck_assert_int_eq(end(&received), 0);
    target_holds(i, 1000);
  }
  ck_assert_uint_eq(reader_info().registered, 0);
  ck_assert_uint_eq(reader_info().syncs, 3);
  close_all();
}
END_TEST

START_TEST(without_pinned_memory_a_stream_that_stalls_is_waited_for_no_longer_than_told) {
  struct received received;
  disable_too("cuda_register");
  open_by_ring();
  ck_assert_int_eq(send_bytes(3, 1000, 0), 0);
  begin_next(&received);
  stall();
  received.take.timeout_ns = 0;
  ck_assert_int_eq(copy(&received), -EAGAIN);
  received.take.timeout_ns = 1000000;
  ck_assert_int_eq(copy(&received), -ETIMEDOUT);
  ck_assert_uint_eq(received.take.copied, 0);
  catch_up();
  ck_assert_int_eq(copy(&received), 0);
  ck_assert_int_eq(end(&received), 0);
  target_holds(3, 1000);
  close_all();
}
END_TEST

static void *copy_in_vain(void *received) {
  cuda->ctx_push(context);
  int rc = copy(received);
  cuda->ctx_pop(&context);
  return (void *)(intptr_t)rc;
}

/* Another thread's, of this stream, or of one that the default stream waits for. */
START_TEST(a_capture_that_begins_while_a_copy_waits_is_not_spoilt) {
  struct received received;
  pthread_t thread;
  void *rc;
  disable_too("cuda_register");
  open_by_ring();
  ck_assert_int_eq(send_bytes(3, 1000, 0), 0);
  begin_next(&received);
  stall();
  long asked = fake_cuda()->calls("cuStreamIsCapturing");
  (fake_cuda()->hold)("cuStreamIsCapturing", 3); /* the first two are before it waits */
  ck_assert_int_eq(pthread_create(&thread, NULL, copy_in_vain, &received), 0);
  ck_comes(fake_cuda()->calls("cuStreamIsCapturing") == asked + 3);
  ck_assert_int_eq(fake_cuda()->capture(other, true), 0);
  (fake_cuda()->hold)(NULL, 0);
  ck_assert_int_eq(pthread_join(thread, &rc), 0);
  ck_assert_int_eq((int)(intptr_t)rc, -EBUSY);
  ck_assert_int_eq(fake_cuda()->capture(other, false), 0);
  catch_up();
  ck_assert_int_eq(copy(&received), 0);
  ck_assert_int_eq(end(&received), 0);
  target_holds(3, 1000);
  close_all();
}
END_TEST

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

static void close_in_order(int order) {
  if (order == 1) ringcast_reader_close(reader);
  if (order == 2) ringcast_reader_leave(reader);
  ringcast_gpu_reader_close(gpu_reader);
  if (order == 3) ringcast_reader_leave(reader);
  if (order != 1) ringcast_reader_close(reader);
}

/* Of a take that has ended, or (4 and on) not. The ring is left, and unmapped, at once. */
START_TEST(a_reader_closes_though_its_stream_stalls_and_what_was_copied_comes) {
  struct received received;
  open_by_ring();
  stall();
  send_and_copy(&received, 3, MUCH);
  if (_i < 4) ck_assert_int_eq(end(&received), 0);
  close_in_order(_i % 4);
  ck_assert_uint_eq(rc_peer_count(&writer->ring.view), 0);
  ck_assert_int_eq(cuda->stream_query(other), RC_CU_NOT_READY);
  ck_assert_int_eq(fake_cuda()->calls("cuMemFreeHost"), 0);
  catch_up();
  target_holds(3, MUCH);
  ck_comes(fake_cuda()->calls("cuMemFreeHost") == 1); /* the worker's */
  cuda->stream_destroy(other);
  close_writer();
  close_device();
}
END_TEST

START_TEST(the_stream_may_be_destroyed_once_the_reader_has_closed) {
  struct received received;
  open_by_ring();
  stall();
  send_and_copy(&received, 3, MUCH);
  close_reader();
  ck_assert_int_eq(cuda->stream_destroy(other), 0);
  let_go();
  close_writer();
  ck_comes(fake_cuda()->calls("cuMemFreeHost") == 1);
  target_holds(3, MUCH);
  close_device();
}
END_TEST

START_TEST(a_device_that_is_lost_reads_nothing_any_more) {
  struct received received;
  open_by_ring();
  stall();
  send_and_copy(&received, 3, MUCH);
  if (_i == 0) fake_cuda()->break_context(NULL);
  close_reader();
  if (_i == 1) fake_cuda()->break_context(NULL);
  close_writer();
  abandon_device();
}
END_TEST

/* ---- Handles that are closed in the wrong order ------------------------------------------------------------------ */

START_TEST(who_closes_the_reader_first_ends_what_was_made_of_it) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  struct received received;
  ringcast_device_ptr where;
  ringcast_gpu_memory *memory;
  open_pair(NULL);
  ck_assert_int_eq(send_bytes(3, 100, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&received);
  begin(&received);
  if (_i == 0) ringcast_reader_leave(reader);
  ringcast_reader_close(reader);
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &received.frame), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received.frame, stream, &received.take), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_copy_to_host(gpu_reader, &received.take, &received.item, &where), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_check(gpu_reader), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_memory_alloc(gpu_reader, 10, stream, &where, &memory), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_reader_info(gpu_reader, &info), -EINVAL);
  ringcast_gpu_reader_close(gpu_reader);
  close_writer();
  close_device();
}
END_TEST

START_TEST(who_closes_the_writer_first_ends_what_was_made_of_it) {
  struct ringcast_gpu_info info = {.size = sizeof info};
  struct ringcast_gpu_extent lease;
  uint64_t bytes = 100, offset;
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_lease(gpu_writer, &bytes, 1, &offset, &lease), 0);
  ringcast_writer_close(writer);
  ck_assert_int_eq(send_bytes(3, 100, 0), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_lease(gpu_writer, &bytes, 1, &offset, &lease), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &lease, stream, 64), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_wait(gpu_writer, stream), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_writer_info(gpu_writer, &info), -EINVAL);
  ringcast_gpu_drop(gpu_writer, &lease);
  ringcast_gpu_writer_close(gpu_writer);
  close_reader();
  close_device();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_bounce");
  TCase *tests = add_case(suite, "buffer");
  tcase_add_test(tests, the_ring_may_be_written_over_before_the_stream_comes_to_the_copy);
  tcase_add_test(tests, each_frame_comes_whole_whichever_chunk_it_is_in);
  tcase_add_test(tests, where_the_buffer_is_full_the_call_waits_as_long_as_it_is_told_to);
  tcase_add_test(tests, a_copy_that_has_come_to_its_timeout_goes_on_where_it_was);
  tcase_add_loop_test(tests, a_signal_ends_the_wait, 0, 2);
  tcase_add_test(tests, where_no_event_can_be_recorded_the_stream_is_waited_for);
  tests = add_case(suite, "pageable");
  tcase_add_loop_test(tests, without_pinned_memory_the_copy_is_waited_for, 0, 3);
  tcase_add_test(tests, without_pinned_memory_a_stream_that_stalls_is_waited_for_no_longer_than_told);
  tcase_add_test(tests, a_capture_that_begins_while_a_copy_waits_is_not_spoilt);
  tests = add_case(suite, "ends");
  tcase_add_loop_test(tests, a_reader_closes_though_its_stream_stalls_and_what_was_copied_comes, 0, 8);
  tcase_add_test(tests, the_stream_may_be_destroyed_once_the_reader_has_closed);
  tcase_add_loop_test(tests, a_device_that_is_lost_reads_nothing_any_more, 0, 2);
  tests = add_case(suite, "order");
  tcase_add_loop_test(tests, who_closes_the_reader_first_ends_what_was_made_of_it, 0, 2);
  tcase_add_test(tests, who_closes_the_writer_first_ends_what_was_made_of_it);
  return run_gpu_suite(suite, "test_gpu_bounce");
}
