/* SPDX-License-Identifier: Apache-2.0 */
/* How the writer's side comes to an end, in whatever order: its context's, and its pool's. */
#include "tests/support/gpu_talk.h"

#include "tests/support/gpu_draft.h"

/* ---- A context, and what was in it ------------------------------------------------------------------------------- */

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

/* As cudaDeviceReset does. */
static void end_context(void) {
  ck_assert_int_eq(cuda->ctx_pop(&context), 0);
  while (cuda->primary_release(0) == 0) continue;
}

/* 0: the next send finds it out; 1: only the close does. */
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
  end_context();
  if (_i == 0) {
    ck_assert_int_eq(send_bytes(5, 1000, RINGCAST_GPU_NO_INLINE), -EIO);
    ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_LOST);
    hear(talk.told[0]);
  }
  ringcast_gpu_writer_close(gpu_writer);
  if (_i != 0) hear(talk.told[0]);
  child_must_succeed(child);
  ringcast_writer_close(writer);
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
  tcase_add_loop_test(tests, readers_do_not_wait_for_a_writer_whose_context_has_ended, 0, 2);
  tcase_add_test(tests, pool_goes_with_the_last_that_has_it_open_in_this_process);
  tcase_add_loop_test(tests, capture_only_puts_off_making_the_pool, 0, sizeof opening / sizeof *opening);
  return run_gpu_suite(suite, "test_gpu_ends");
}
