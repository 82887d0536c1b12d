/* SPDX-License-Identifier: Apache-2.0 */
/* A reader's pool where calls fail for a while: as when some other stream captures a graph. */
#include "tests/support/gpu_talk.h"

static rc_cu_stream other;

static void open_other(void) { ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0); }
static void close_other(void) {
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  ck_assert_int_eq(cuda->stream_destroy(other), 0);
}

/* Ends a take whose copy is not done yet, where neither `ack` can be enqueued, nor anything waited for. */
static void end_without_ack(struct received *received) {
  next_frame(received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received->frame, other, &received->take), 0);
  ck_assert_int_eq(rc_word_wait(cuda, other, turn_address, turn->whole + 1), 0);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received->take, &received->item, target), 0);
  call_fails("cuCtxSynchronize", 0, RC_CU_STREAM_CAPTURE_UNSUPPORTED); /* 0: each; the one of the watcher's, too */
  struct rc_import *import = gpu_reader->import;
  rc_cu_stream none = (rc_cu_stream)(uintptr_t)8; /* a stream that is none: to write the word fails */
  pthread_mutex_lock(&import->mutex);
  import->taken[received->take.slot].stream = none;
  pthread_mutex_unlock(&import->mutex);
  ck_assert_int_lt(ringcast_gpu_end(gpu_reader, &received->take), 0);
}

static bool has_been_told(const struct received *received) {
  struct rc_word *ack = rc_gpu_ack(&gpu_reader->import->segment, received->take.slot, gpu_reader->import->consumer);
  return rc_word_has_reached(ack, received->take.generation);
}

START_TEST(ack_that_cannot_be_enqueued_is_owed_until_nothing_reads) {
  struct received received;
  open_pair(NULL);
  open_other();
  ck_assert_int_eq(send_bytes(3, 100000, RINGCAST_GPU_NO_INLINE), 0);
  end_without_ack(&received);
  ck_assert(!has_been_told(&received));
  long calls = fake_cuda()->calls("cuCtxSynchronize");
  ck_comes(fake_cuda()->calls("cuCtxSynchronize") >= calls + 3); /* the watcher tries, and again */
  ck_assert(!has_been_told(&received));
  no_call_fails();
  calls = fake_cuda()->calls("cuCtxSynchronize");
  ck_comes(fake_cuda()->calls("cuCtxSynchronize") > calls);
  ck_assert(!has_been_told(&received)); /* it waits for the other stream, and others need not */
  ck_assert_int_eq(send_bytes(5, 100, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(receive_bytes(5), RINGCAST_PLACEMENT_POOL);
  let_go();
  ck_comes(has_been_told(&received));
  ck_assert_int_eq(cuda->stream_query(other), 0);
  close_other();
  close_pair();
}
END_TEST

/* To synchronise the context may spoil what some thread captures. */
START_TEST(context_is_synchronised_more_seldom_where_that_fails) {
  struct received received;
  open_pair(NULL);
  open_other();
  ck_assert_int_eq(send_bytes(3, 100000, RINGCAST_GPU_NO_INLINE), 0);
  end_without_ack(&received);
  long syncs = fake_cuda()->calls("cuCtxSynchronize"), looks = fake_cuda()->calls("cuStreamIsCapturing");
  ck_comes(fake_cuda()->calls("cuCtxSynchronize") >= syncs + 5);
  ck_assert_int_ge(fake_cuda()->calls("cuStreamIsCapturing"), looks + 1 + 2 + 4 + 8);
  no_call_fails();
  let_go();
  ck_comes(has_been_told(&received));
  close_other();
  close_pair();
}
END_TEST

START_TEST(reader_that_closes_pays_what_it_owes) {
  struct received received;
  open_pair(NULL);
  open_other();
  ck_assert_int_eq(send_bytes(3, 100000, RINGCAST_GPU_NO_INLINE), 0);
  end_without_ack(&received);
  no_call_fails();
  let_go();
  close_reader();
  ck_comes(writer_info().slots_used == 0);
  close_other();
  close_writer();
  close_device();
}
END_TEST

START_TEST(capture_elsewhere_only_puts_off_opening) {
  struct ringcast_gpu_writer_options options = gpu_options();
  open_writer(&options);
  open_reader();
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  call_fails("cuMemHostRegister", 1, RC_CU_STREAM_CAPTURE_UNSUPPORTED);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), -EAGAIN);
  no_call_fails();
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_INLINE);
  ck_assert_int_eq(send_bytes(5, 100, 0), 0);
  ck_assert_int_eq(receive_bytes(5), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

/* The writer has closed its pool since its segment was found. */
START_TEST(pool_that_is_left_is_not_opened) {
  struct ringcast_gpu_writer_options options = gpu_options();
  open_writer(&options);
  open_reader();
  struct rc_gpu_control *control = rc_gpu_control(&gpu_writer->estate->segment);
  rc_store_release(&control->closed, 1);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), -EAGAIN);
  ck_assert_ptr_null(gpu_reader->import);
  ck_assert_uint_eq(rc_load_acquire(&control->consumers[reader->ring.slot].owner), 0);
  rc_store_release(&control->closed, 0);
  close_pair();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_owed");
  TCase *tests = add_case(suite, "for a while");
  tcase_add_test(tests, ack_that_cannot_be_enqueued_is_owed_until_nothing_reads);
  tcase_add_test(tests, context_is_synchronised_more_seldom_where_that_fails);
  tcase_add_test(tests, reader_that_closes_pays_what_it_owes);
  tcase_add_test(tests, capture_elsewhere_only_puts_off_opening);
  tcase_add_test(tests, pool_that_is_left_is_not_opened);
  return run_gpu_suite(suite, "test_gpu_owed");
}
