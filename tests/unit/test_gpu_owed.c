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
  ck_assert_int_eq(rc_word_wait(cuda, 64, other, turn_address, turn->whole + 1), 0);
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
  return rc_word_has_reached(ack, 64, received->take.generation);
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
  ck_assert_uint_eq(writer_info().slots_used, 0);
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

/* ---- Lent memory, while a view of another frame is held --------------------------------------------------------- */

static void begin_next(struct received *received) {
  child_next_frame(received);
  child_must(ringcast_gpu_begin(gpu_reader, &received->frame, stream, &received->take) == 0);
}

static bool closes_first;

static void hold_and_read_lent(void *unused) {
  struct received received;
  ringcast_device_ptr where;
  ringcast_gpu_hold *hold;
  (void)unused;
  attach_by_told_handle();
  for (int i = 0; i < 3; i++) { /* INLINE, POOL, EXTERN */
    begin_next(&received);
    if (i == 1) child_must(ringcast_gpu_map(gpu_reader, &received.take, &received.item, &where, &hold) == 0);
    else child_must(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target) == 0);
    child_must(ringcast_gpu_end(gpu_reader, &received.take) == 0);
    say(talk.told[1]);
  }
  if (closes_first) close_reader();
  if (closes_first) say(talk.told[1]);
  hear(talk.go[0]);
  ringcast_gpu_unmap(hold);
  if (!closes_first) close_reader();
  close_device();
}

START_TEST(lent_memory_is_taken_back_though_a_view_is_held) {
  struct ringcast_gpu_writer_options options = gpu_options();
  uint32_t lent;
  closes_first = _i;
  pid_t child = start_reader(hold_and_read_lent);
  options.flags = RINGCAST_GPU_EXTERN;
  open_writer(&options);
  tell_handle();
  ck_assert_int_eq(send_bytes(0, 1000, 0), 0);
  hear(talk.told[0]);
  ck_assert_int_eq(send_bytes(0, 1000, RINGCAST_GPU_NO_INLINE), 0);
  hear(talk.told[0]);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, source, &lent), 0);
  ck_assert_int_eq(send_lent(0, lent), 0);
  hear(talk.told[0]);
  if (closes_first) hear(talk.told[0]);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent, RINGCAST_FOREVER), 0);
  say(talk.go[1]);
  child_must_succeed(child);
  close_writer();
  close_device();
}
END_TEST

/* ---- While lent memory is being closed, which may wait for the device -------------------------------------------- */

static struct rc_cuda slow; /* the driver, but that it does not close before it may */
static _Atomic bool closes, may_close, has_begun;

static rc_cu_result close_slowly(rc_cu_ptr memory) {
  (void)memory; /* the writer is in this process: nothing is open by a handle */
  rc_store_release(&closes, true);
  ck_comes(rc_load_acquire(&may_close));
  return RC_CU_SUCCESS;
}

static void *begin_meanwhile(void *received) {
  struct received *next = received;
  int rc = ringcast_gpu_begin(gpu_reader, &next->frame, stream, &next->take);
  rc_store_release(&has_begun, true);
  return (void *)(intptr_t)rc;
}

START_TEST(who_does_not_wait_for_the_device_goes_on_while_lent_memory_is_closed) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct received received;
  ringcast_device_ptr where;
  ringcast_gpu_hold *hold;
  pthread_t thread;
  uint32_t lent;
  bool has_ended;
  void *rc;
  options.flags = RINGCAST_GPU_EXTERN;
  open_pair(&options);
  struct rc_import *import = gpu_reader->import;
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, source, &lent), 0);
  ck_assert_int_eq(send_lent(0, lent), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_EXTERN);
  ck_assert_int_eq(send_bytes(5, 100, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&received);
  begin(&received);
  ck_assert_int_eq(ringcast_gpu_map(gpu_reader, &received.take, &received.item, &where, &hold), 0);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  slow = *cuda;
  slow.ipc_close_handle = close_slowly;
  pthread_mutex_lock(&import->mutex);
  import->device.cuda = &slow;
  import->by_handle = true;
  pthread_mutex_unlock(&import->mutex);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent, 0), -EAGAIN);
  ck_comes(rc_load_acquire(&closes));
  ck_assert_int_eq(ringcast_gpu_check(gpu_reader), 0);
  ck_assert(!rc_import_was_missing(import, &has_ended));
  ringcast_gpu_unmap(hold);
  ck_assert_int_eq(send_bytes(9, 100, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&received);
  ck_assert_int_eq(pthread_create(&thread, NULL, begin_meanwhile, &received), 0);
  for (int i = 0; i < 50; i++) pause_shortly(); /* it does not begin, whose stream might wait for the writer */
  ck_assert(!rc_load_acquire(&has_begun));
  import->by_handle = false;
  rc_store_release(&may_close, true);
  ck_assert_int_eq(pthread_join(thread, &rc), 0);
  ck_assert_int_eq((int)(intptr_t)rc, 0);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent, RINGCAST_FOREVER), 0);
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
  tcase_add_loop_test(tests, lent_memory_is_taken_back_though_a_view_is_held, 0, 2);
  tcase_add_test(tests, who_does_not_wait_for_the_device_goes_on_while_lent_memory_is_closed);
  return run_gpu_suite(suite, "test_gpu_owed");
}
