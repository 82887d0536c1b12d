/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's side where something comes in between: another stream, a capture, a fork, a reader that comes back. */
#include "tests/support/children.h"
#include "tests/support/gpu_draft.h"

#include <pthread.h>

/* ---- Leases ----------------------------------------------------------------------------------------------------- */

START_TEST(a_lease_is_of_one_stream) {
  struct draft filled;
  rc_cu_stream second;
  open_pair(NULL);
  rc_cu_stream first = stream;
  ck_assert_int_eq(cuda->stream_create(&second, RC_CU_STREAM_NON_BLOCKING), 0);
  draft(1000, &filled);
  ck_assert_int_eq(copy_in(&filled, 0, 1000), 0);
  stream = second;
  ck_assert_int_eq(copy_in(&filled, 0, 1000), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &filled.lease, second, filled.bytes), -EINVAL);
  stream = first;
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &filled.lease, first, filled.bytes), 0);
  receive_bytes(0);
  ck_assert_int_eq(cuda->stream_destroy(second), 0);
  close_pair();
}
END_TEST

START_TEST(what_is_dropped_in_a_capture_comes_back_after_it) {
  struct draft draft;
  open_pair(NULL);
  ck_assert_int_eq(lease_bytes(1000, &draft), 0);
  ck_assert_int_eq(copy_in(&draft, 0, 1000), 0);
  uint64_t syncs = writer_info().syncs;
  fake_cuda()->capture(stream, true);
  ringcast_gpu_drop(gpu_writer, &draft.lease);
  ck_assert_uint_eq(writer_info().slots_used, 1);
  ck_assert_uint_eq(writer_info().syncs, syncs);
  fake_cuda()->capture(stream, false);
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

/* ---- A reader comes back ---------------------------------------------------------------------------------------- */

/* The same reader opens the pool again: what it was sent before is not for it. */
START_TEST(a_reader_that_comes_back_is_not_waited_for) {
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  hold_up();
  ck_assert_int_eq(send_bytes(0, 1000, RINGCAST_GPU_NO_INLINE), 0);
  ringcast_gpu_reader_close(gpu_reader);
  ck_assert_int_eq(ringcast_gpu_reader_open(reader, NULL, &gpu_reader), 0);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  let_go();
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

/* It has closed, but for what it still looks at, and is the same one to the ring when it comes back. */
START_TEST(a_reader_that_comes_back_beside_a_view_is_sent_to_by_the_ring) {
  struct received received;
  ringcast_device_ptr where;
  ringcast_gpu_hold *hold;
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  ck_assert_int_eq(send_bytes(0, 1000, 0), 0);
  next_frame(&received);
  begin(&received);
  ck_assert_int_eq(ringcast_gpu_map(gpu_reader, &received.take, &received.item, &where, &hold), 0);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
  ringcast_gpu_reader_close(gpu_reader);
  ck_assert_int_eq(ringcast_gpu_reader_open(reader, NULL, &gpu_reader), 0);
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_WAITING);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), -EAGAIN);
  ck_assert_int_eq(send_bytes(5, 1000, 0), 0);
  ck_assert_int_eq(receive_bytes(5), RINGCAST_PLACEMENT_INLINE);
  ck_assert_uint_eq(writer_info().slots_used, 1);
  ringcast_gpu_unmap(hold);
  ck_comes(ringcast_gpu_reader_prepare(gpu_reader) == 0);
  ck_assert_int_eq(send_bytes(9, 1000, 0), 0);
  ck_assert_int_eq(receive_bytes(9), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

/* ---- Pools that are left, and forks ----------------------------------------------------------------------------- */

static void *close_it(void *unused) {
  (void)unused;
  ringcast_gpu_writer_close(gpu_writer);
  return NULL;
}

/* It hangs if memory is freed under the mutex. */
START_TEST(who_closes_holds_up_nobody_else) {
  struct ringcast_gpu_writer_options options = gpu_options();
  pthread_t closer;
  open_writer(&options);
  struct rc_exported *exported = gpu_writer->exported;
  uint64_t token[2] = {exported->token[0], exported->token[1]};
  uint32_t epoch = exported->segment.epoch;
  struct rc_device device = gpu_writer->device;
  long freed = fake_cuda()->calls("cuMemFree");
  hold_up();
  ck_assert_int_eq(pthread_create(&closer, NULL, close_it, NULL), 0);
  ck_comes(fake_cuda()->calls("cuMemFree") > freed);
  ck_assert_uint_eq(rc_exported_find(token, epoch, &device), 0);
  rc_exported_tidy(rc_gpu_close_ns);
  let_go();
  ck_assert_int_eq(pthread_join(closer, NULL), 0);
  ringcast_writer_close(writer);
  close_device();
}
END_TEST

static void open_in_child(void *unused) {
  ringcast_writer *own;
  ringcast_gpu_writer *opened;
  (void)unused;
  if (ringcast_writer_create(&own) != 0) _exit(2);
  if (ringcast_gpu_writer_open(own, NULL, &opened) != -ECHILD) _exit(3);
}

START_TEST(a_child_of_a_fork_is_told_so) {
  open_pair(NULL);
  child_must_succeed(start_child(open_in_child, NULL));
  close_pair();
}
END_TEST

/* ---- The driver, and the ring ----------------------------------------------------------------------------------- */

START_TEST(what_a_capture_forbids_is_busy) {
  static const rc_cu_result results[] = {900, 901, 905, 906, 907, 908};
  rc_cu_capture_mode mode = RC_CU_STREAM_CAPTURE_MODE_RELAXED;
  open_device();
  for (size_t i = 0; i < sizeof results / sizeof *results; i++)
    ck_assert_int_eq(rc_cuda_fail(results[i], "a call"), -EBUSY);
  ck_assert_int_eq(cuda->exchange_capture_mode(&mode), 0);
  ck_assert_int_eq(mode, 0);
  ck_assert_int_eq(cuda->exchange_capture_mode(&mode), 0);
  ck_assert_int_eq(mode, RC_CU_STREAM_CAPTURE_MODE_RELAXED);
  close_device();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_writer_between");
  TCase *tests = add_case(suite, "between");
  tcase_add_test(tests, a_lease_is_of_one_stream);
  tcase_add_test(tests, what_is_dropped_in_a_capture_comes_back_after_it);
  tcase_add_test(tests, a_reader_that_comes_back_is_not_waited_for);
  tcase_add_test(tests, a_reader_that_comes_back_beside_a_view_is_sent_to_by_the_ring);
  tcase_add_test(tests, who_closes_holds_up_nobody_else);
  tcase_add_test(tests, a_child_of_a_fork_is_told_so);
  tcase_add_test(tests, what_a_capture_forbids_is_busy);
  return run_gpu_suite(suite, "test_gpu_writer_between");
}
