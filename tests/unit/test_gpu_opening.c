/* SPDX-License-Identifier: Apache-2.0 */
/* A reader opens, and leaves, pools: what fails for a moment is tried again, and what was asked of one is not
 * forgotten with it. */
#include <sys/resource.h>

#include "tests/support/children.h"
#include "tests/support/gpu_channel.h"

static rc_cu_stream other;

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

START_TEST(a_pool_that_is_not_as_large_as_is_said_is_refused) {
  struct ringcast_gpu_writer_options options = gpu_options();
  open_writer(&options);
  rc_gpu_control(&gpu_writer->exported->segment)->id.pool_bytes = (uint64_t)1 << 40;
  open_reader();
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), -ENOTSUP);
  ck_says("not as large");
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0); /* the context works */
  ck_assert_int_eq(send_bytes(3, 1000, 0), 0);
  ck_assert_int_eq(receive_bytes(3), RINGCAST_PLACEMENT_INLINE);
  close_pair();
}
END_TEST

/* 900 from each call in turn, as if a thread began a capture just then. */
START_TEST(a_capture_elsewhere_refuses_no_pool) {
  static const char *const names[] = {"cuDeviceGet",          "cuDeviceGetUuid",           "cuDevicePrimaryCtxRetain",
                                      "cuCtxPushCurrent",     "cuCtxGetCurrent",           "cuMemHostRegister",
                                      "cuStreamCreate",       "cuMemHostGetDevicePointer", "cuStreamQuery",
                                      "cuMemGetAddressRange", "cuMemcpyDtoHAsync",         "cuStreamWaitValue64",
                                      "cuStreamWriteValue64"};
  struct ringcast_gpu_writer_options options = gpu_options();
  open_writer(&options);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    for (long nth = 1; nth <= 3; nth++) {
      open_reader();
      call_fails(names[i], nth, RC_CU_STREAM_CAPTURE_UNSUPPORTED);
      int rc = ringcast_gpu_reader_prepare(gpu_reader);
      no_call_fails();
      ck_assert_msg(rc == 0 || rc == -EAGAIN || rc == -EBUSY, "%s, %ld: %d", names[i], nth, rc);
      while (rc == -EAGAIN || rc == -EBUSY) rc = ringcast_gpu_reader_prepare(gpu_reader);
      ck_assert_msg(rc == 0, "%s, %ld: %s", names[i], nth, ringcast_last_error());
      close_reader();
    }
  }
  close_writer();
  close_device();
}
END_TEST

START_TEST(what_a_process_lacks_for_a_moment_refuses_no_pool) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct rlimit before, none;
  open_writer(&options);
  open_reader();
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), -EAGAIN);
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
  ck_says("Too many open files");
  call_fails("cuMemHostRegister", 1, RC_CU_OUT_OF_MEMORY);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), -EAGAIN);
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_REFUSED); /* for now */
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_POOL);
  close_pair();
}
END_TEST

START_TEST(the_writer_says_in_words_why_a_reader_cant) {
  static const struct {
    int32_t reason;
    const char *says;
  } reasons[] = {
      {-EAGAIN, "its device is busy; it is tried again"},
      {-ENOMEM, "no memory for it, or no thread; it is tried again"},
      {-ETIMEDOUT, "its streams are not woken by the host's store"},
      {-ENOTSUP, "Operation not supported"},
      {RC_CU_MAP_FAILED, "CUDA_ERROR_MAP_FAILED"},
      {0, "does not say why"}, /* it is a peer's: any number */
      {INT32_MIN, "does not say why"},
  };
  struct ringcast_gpu_writer_options options = gpu_options();
  open_writer(&options);
  open_reader();
  struct rc_gpu_consumer *place = &rc_gpu_control(&gpu_writer->exported->segment)->consumers[0];
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
    rc_store_relaxed(&place->reason, reasons[i].reason);
    rc_store_release(&place->refused, reader->ring.owner);
    struct ringcast_gpu_info info = writer_info();
    ck_assert_uint_eq(info.way, RINGCAST_GPU_WAY_REFUSED);
    ck_assert_msg(strstr(info.why, reasons[i].says), "%d: %s", reasons[i].reason, info.why);
  }
  close_pair();
}
END_TEST

/* ---- What was asked of a pool ----------------------------------------------------------------------------------- */

static void open_anew(void) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct received received;
  ringcast_gpu_writer_close(gpu_writer);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  next_frame(&received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received.frame, stream, &received.take), 0);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
}

/* By this reader's own watcher, or, in the second round, by another reader. */
START_TEST(what_never_came_is_missing_also_when_another_pool_is_open) {
  struct received received;
  rc_cu_stream first, reading;
  bool by_another = _i == 1;
  open_pair(NULL);
  ck_assert_int_eq(cuda->stream_create(&reading, RC_CU_STREAM_NON_BLOCKING), 0);
  ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0);
  hold_up();
  ck_assert_int_eq(send_bytes(3, 1000, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received.frame, reading, &received.take), 0);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
  first = stream;
  stream = other; /* what the writer goes on by */
  open_anew();
  struct rc_import *before = gpu_reader->before;
  ck_assert_ptr_nonnull(before);
  ck_assert_int_eq(cuda->stream_query(reading), RC_CU_NOT_READY);
  ck_assert_int_eq(ringcast_gpu_check(gpu_reader), 0);
  if (by_another) rc_store_release(&rc_gpu_control(&before->segment)->dead, 1);
  else rc_import_mark_dead(before);
  ck_assert_int_eq(ringcast_gpu_check(gpu_reader), -EPIPE);
  ck_assert_int_eq(cuda->stream_synchronize(reading), 0);
  let_go();
  ck_assert_int_eq(cuda->stream_synchronize(first), 0);
  bool has_ended = false;
  ck_comes((rc_import_was_missing(before, &has_ended), has_ended));
  ck_assert_int_eq(ringcast_gpu_check(gpu_reader), -EPIPE);
  open_anew();
  ck_assert(gpu_reader->before != before); /* it is forgotten, ... */
  ck_assert(gpu_reader->missing);          /* ... and this is not */
  cuda->stream_destroy(reading);
  cuda->stream_destroy(first);
  close_pair();
}
END_TEST

START_TEST(a_frame_that_was_not_read_is_not_missing) {
  struct received received;
  open_pair(NULL);
  hold_up();
  ck_assert_int_eq(send_bytes(3, 1000, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&received);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), 0);
  rc_import_mark_dead(gpu_reader->import);
  ck_assert_int_eq(ringcast_gpu_check(gpu_reader), 0);
  let_go();
  close_pair();
}
END_TEST

/* ---- Contexts --------------------------------------------------------------------------------------------------- */

START_TEST(memory_whose_context_cant_be_entered_does_not_keep_it) {
  ringcast_gpu_memory *memory;
  ringcast_device_ptr where;
  rc_cu_context current;
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_memory_alloc(gpu_reader, 1000, stream, &where, &memory), 0);
  close_reader();
  close_writer();
  cuda->ctx_pop(&current);
  call_fails("cuCtxPushCurrent", 1, RC_CU_OUT_OF_MEMORY);
  ringcast_gpu_memory_free(memory);
  cuda->primary_release(0);
  ck_comes(fake_cuda()->live("contexts") == 0); /* the watcher has it still, perhaps */
}
END_TEST

static void use_in_child(void *unused) {
  ringcast_writer *own;
  ringcast_reader *ring;
  ringcast_gpu_reader *opened;
  int64_t shape[1] = {10};
  char host[10];
  struct ringcast_tensor tensor = bytes_on_device(source, shape);
  (void)unused;
  child_must(ringcast_gpu_stream_wait(0, stream) == -ECHILD);
  child_must(ringcast_gpu_copy_back(0, &tensor, host, stream) == -ECHILD);
  child_must(ringcast_writer_create(&own) == 0);
  child_must(ringcast_reader_attach(ringcast_writer_handle(own), &ring) == 0);
  child_must(ringcast_gpu_reader_open(ring, NULL, &opened) == -ECHILD);
}

START_TEST(a_child_of_a_fork_is_told_so_also_without_a_handle) {
  open_device();
  child_must_succeed(start_child(use_in_child, NULL));
  close_device();
}
END_TEST

/* ---- Not now ----------------------------------------------------------------------------------------------------- */

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
  struct rc_gpu_control *control = rc_gpu_control(&gpu_writer->exported->segment);
  rc_store_release(&control->closed, 1);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), -EAGAIN);
  ck_assert_ptr_null(gpu_reader->import);
  ck_assert_uint_eq(rc_load_acquire(&control->consumers[reader->ring.slot].owner), 0);
  rc_store_release(&control->closed, 0);
  close_pair();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_opening");
  TCase *tests = add_case(suite, "opening");
  tcase_add_test(tests, a_pool_that_is_not_as_large_as_is_said_is_refused);
  tcase_add_test(tests, a_capture_elsewhere_refuses_no_pool);
  tcase_add_test(tests, what_a_process_lacks_for_a_moment_refuses_no_pool);
  tcase_add_test(tests, the_writer_says_in_words_why_a_reader_cant);
  tcase_add_loop_test(tests, what_never_came_is_missing_also_when_another_pool_is_open, 0, 2);
  tcase_add_test(tests, a_frame_that_was_not_read_is_not_missing);
  tcase_add_test(tests, memory_whose_context_cant_be_entered_does_not_keep_it);
  tcase_add_test(tests, a_child_of_a_fork_is_told_so_also_without_a_handle);
  tcase_add_test(tests, capture_elsewhere_only_puts_off_opening);
  tcase_add_test(tests, pool_that_is_left_is_not_opened);
  return run_suite(suite);
}
