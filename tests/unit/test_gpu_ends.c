/* SPDX-License-Identifier: Apache-2.0 */
/* How the writer's side comes to an end, in whatever order: its context's, and its pool's. */
#include "tests/support/gpu_talk.h"

#include "tests/support/gpu_draft.h"

/* ---- A context, and what was in it ------------------------------------------------------------------------------- */

START_TEST(context_that_cannot_be_entered_once_is_not_lost) {
  struct received received;
  rc_cu_stream other;
  open_pair(NULL);
  ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0);
  ck_assert_int_eq(send_bytes(3, 1000, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received.frame, other, &received.take), 0);
  ck_assert_int_eq(rc_word_wait(cuda, other, turn_address, turn->whole + 1), 0);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), 0);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
  call_fails_elsewhere("cuCtxPushCurrent", 1, RC_CU_OUT_OF_MEMORY); /* the watcher's */
  ringcast_gpu_reader_close(gpu_reader);                            /* waits a second */
  ck_comes(strcmp(fake_cuda()->failed(), "cuCtxPushCurrent") == 0);
  no_call_fails();
  ck_assert_uint_eq(writer_info().slots_used, 1); /* the stream reads it still */
  let_go();
  ck_assert_int_eq(cuda->stream_synchronize(other), 0); /* and the words are there for it to say so */
  ck_comes(writer_info().slots_used == 0);
  ck_assert_int_eq(cuda->stream_destroy(other), 0);
  ringcast_reader_close(reader);
  close_writer();
  close_device();
}
END_TEST

/* The writer frees the pool beside it, once its place is nobody's. */
static void close_where_a_call_fails_once(void *unused) {
  struct received received;
  (void)unused;
  attach_by_told_handle();
  long registered = fake_cuda()->live("registered");
  child_must(ringcast_gpu_next(gpu_reader, RINGCAST_FOREVER, &received.frame) == 0);
  child_must(ringcast_gpu_reader_prepare(gpu_reader) == 0);
  child_must(fake_cuda()->live("imports") == 1);
  child_must(ringcast_gpu_release(gpu_reader, &received.frame) == 0);
  call_fails_elsewhere("cuCtxPushCurrent", 1, RC_CU_OUT_OF_MEMORY);
  ringcast_gpu_reader_close(gpu_reader);
  ck_comes(strcmp(fake_cuda()->failed(), "cuCtxPushCurrent") == 0);
  no_call_fails();
  ck_comes(fake_cuda()->live("imports") == 0);
  ck_comes(fake_cuda()->live("registered") == registered);
  ringcast_reader_close(reader);
  close_device();
}

START_TEST(pool_is_closed_also_where_the_context_cannot_be_entered_once) {
  struct ringcast_gpu_writer_options options = gpu_options();
  pid_t child = start_reader(close_where_a_call_fails_once);
  open_writer(&options);
  tell_handle();
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  child_must_succeed(child);
  close_writer();
  close_device();
}
END_TEST

static void *close_writer_where_a_call_fails_once(void *nth) {
  call_fails("cuCtxPushCurrent", (long)(intptr_t)nth, RC_CU_OUT_OF_MEMORY); /* it is not current in this thread */
  close_writer();
  return NULL;
}

/* The first time, the second, and so on: what it has is given back all the same. */
START_TEST(writer_gives_all_back_also_where_the_context_cannot_be_entered_once) {
  struct ringcast_gpu_writer_options options = gpu_options();
  pthread_t thread;
  open_writer(&options);
  open_reader();
  ck_assert_int_eq(send_bytes(0, 10, 0), 0); /* which registers the ring */
  ck_assert_uint_eq(writer_info().registered, 1);
  close_reader();
  ck_assert_int_eq(pthread_create(&thread, NULL, close_writer_where_a_call_fails_once, (void *)(intptr_t)_i), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert(_i > 4 || strcmp(fake_cuda()->failed(), "cuCtxPushCurrent") == 0);
  no_call_fails();
  close_device();
}
END_TEST

/* Its stream waits for what the writer will never write. */
static void wait_for_the_writer(void *unused) {
  struct received received;
  (void)unused;
  attach_by_told_handle();
  for (int i = 0; i < 2; i++) {
    child_next_frame(&received);
    child_must(ringcast_gpu_begin(gpu_reader, &received.frame, stream, &received.take) == 0);
    child_must(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target) == 0);
    child_must(ringcast_gpu_end(gpu_reader, &received.take) == 0);
    say(talk.told[1]);
  }
  child_must(cuda->stream_query(stream) == RC_CU_NOT_READY);
  say(talk.told[1]);
  ck_comes(cuda->stream_query(stream) == RC_CU_SUCCESS);
  child_must(ringcast_gpu_check(gpu_reader) == -EPIPE);
  say(talk.told[1]);
  close_reader();
  close_device();
}

/* As cudaDeviceReset does. Gives how often it was retained. */
static int end_context(void) {
  int holds = 0;
  ck_assert_int_eq(cuda->ctx_pop(&context), 0);
  while (cuda->primary_release(0) == 0) holds++;
  return holds;
}

/* 0: the next send finds it out; 1: only the close does; 2: as 1, and the context is there again, without the pool. */
START_TEST(readers_do_not_wait_for_a_writer_whose_context_has_ended) {
  struct ringcast_gpu_writer_options options = gpu_options();
  pid_t child = start_reader(wait_for_the_writer);
  open_writer(&options);
  tell_handle();
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  hear(talk.told[0]);
  hold_up();
  ck_assert_int_eq(send_bytes(5, 1000, RINGCAST_GPU_NO_INLINE), 0);
  hear(talk.told[0]);
  hear(talk.told[0]);
  int holds = end_context();
  if (_i == 0) {
    ck_assert_int_eq(send_bytes(5, 1000, RINGCAST_GPU_NO_INLINE), -EIO);
    ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_LOST);
    hear(talk.told[0]);
  }
  for (int i = 0; i < holds && _i == 2; i++) ck_assert_int_eq(cuda->primary_retain(&context, 0), 0);
  if (_i == 2) ck_assert_int_eq(cuda->ctx_push(context), 0);
  long frees = fake_cuda()->calls("cuMemFree");
  ringcast_gpu_writer_close(gpu_writer);
  if (_i != 0) hear(talk.told[0]);
  child_must_succeed(child);
  rc_estates_tidy();
  ck_assert_int_eq((int)fake_cuda()->calls("cuMemFree"), (int)frees); /* what is there now is somebody else's */
  ringcast_writer_close(writer);
  if (_i == 2) end_context();
}
END_TEST

/* ---- The order of closing ---------------------------------------------------------------------------------------- */

START_TEST(pool_goes_with_the_last_that_has_it_open_in_this_process) {
  open_pair(NULL);
  ck_assert_int_eq((int)fake_cuda()->live("allocations"), 3);
  close_writer();
  ck_assert_int_eq((int)fake_cuda()->live("allocations"), 3);
  close_reader();
  ck_comes(fake_cuda()->live("allocations") == 2); /* the test's own, and nobody has opened or closed anything since */
  close_device();
}
END_TEST

/* ---- While a graph is captured ----------------------------------------------------------------------------------- */

static const char *const opening[] = {"cuDevicePrimaryCtxRetain",  "cuMemAlloc",        "cuMemHostRegister",
                                      "cuMemHostGetDevicePointer", "cuIpcGetMemHandle", "cuStreamCreate",
                                      "cuStreamSynchronize",       "cuMemcpyHtoDAsync", "cuStreamWaitValue64",
                                      "cuStreamWriteValue64"};

/* A driver that knows no modes of threads says so of whatever it does not like meanwhile. */
START_TEST(capture_only_puts_off_making_the_pool) {
  struct ringcast_gpu_writer_options options = gpu_options();
  int put_off = 0;
  open_device();
  writer = make_writer(1 << 20, 8);
  for (long nth = 1; nth <= 2; nth++) {
    call_fails(opening[_i], nth, RC_CU_STREAM_CAPTURE_UNSUPPORTED);
    int rc = ringcast_gpu_writer_open(writer, &options, &gpu_writer);
    ck_assert_msg(rc == 0 || rc == -EBUSY, "%d: %s", rc, ringcast_last_error());
    no_call_fails();
    if (rc != 0) ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
    put_off += rc != 0;
    ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_NO_READER);
    ringcast_gpu_writer_close(gpu_writer);
  }
  ck_assert_int_gt(put_off, 0);
  ringcast_writer_close(writer);
  close_device();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_ends");
  TCase *tests = add_case(suite, "ends");
  tcase_add_test(tests, context_that_cannot_be_entered_once_is_not_lost);
  tcase_add_test(tests, pool_is_closed_also_where_the_context_cannot_be_entered_once);
  tcase_add_loop_test(tests, writer_gives_all_back_also_where_the_context_cannot_be_entered_once, 1, 7);
  tcase_add_loop_test(tests, readers_do_not_wait_for_a_writer_whose_context_has_ended, 0, 3);
  tcase_add_test(tests, pool_goes_with_the_last_that_has_it_open_in_this_process);
  tcase_add_loop_test(tests, capture_only_puts_off_making_the_pool, 0, sizeof opening / sizeof *opening);
  return run_gpu_suite(suite, "test_gpu_ends");
}
