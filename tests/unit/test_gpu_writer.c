/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's side of ringcast/gpu.h: opening, and leases. */
#include "tests/support/children.h"
#include "tests/support/gpu_draft.h"
#include "tests/support/switches.h"

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

static int open_with(const struct ringcast_gpu_writer_options *options) {
  ringcast_gpu_writer *opened = NULL;
  int rc = ringcast_gpu_writer_open(writer, options, &opened);
  if (rc == 0) ringcast_gpu_writer_close(opened);
  else ck_assert_ptr_null(opened);
  return rc;
}

START_TEST(options_out_of_range_are_refused) {
  struct ringcast_gpu_writer_options options = gpu_options(), good = options;
  open_device();
  writer = make_writer(1 << 16, 2);
  options.size = 0;
  ck_assert_int_eq(open_with(&options), -EINVAL);
  options = good;
  options.flags = 2;
  ck_assert_int_eq(open_with(&options), -EINVAL);
  options = good;
  options.slots = 1025;
  ck_assert_int_eq(open_with(&options), -EINVAL);
  options = good;
  options.pool_bytes = ((uint64_t)1 << 42) + 1;
  ck_assert_int_eq(open_with(&options), -EINVAL);
  options = good;
  options.device = 1;
  ck_assert_int_eq(open_with(&options), -EINVAL);
  options.device = -2;
  ck_assert_int_eq(open_with(&options), -EINVAL);
  ck_assert_int_eq(open_with(&good), 0);
  ringcast_writer_close(writer);
  close_device();
}
END_TEST

START_TEST(the_environment_fills_in_for_the_default_alone) {
  struct ringcast_gpu_writer_options options = gpu_options();
  options.pool_bytes = 0;
  setenv("RINGCAST_GPU_POOL_BYTES", "3000000", 1);
  open_writer(&options);
  ck_assert_uint_eq(writer_info().pool_bytes, 4 << 20); /* rounded up */
  ringcast_gpu_writer_close(gpu_writer);
  setenv("RINGCAST_GPU_POOL_BYTES", "0", 1);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_NO_POOL);
  ringcast_gpu_writer_close(gpu_writer);
  const char *const values[] = {"-1", "4M", " 5", "x", "1099511627777", "99999999999999999999", NULL};
  for (const char *const *bad = values; *bad; bad++) {
    setenv("RINGCAST_GPU_POOL_BYTES", *bad, 1);
    ck_assert_int_eq(open_with(&options), -EINVAL);
  }
  options.pool_bytes = 1;
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  ck_assert_uint_eq(writer_info().pool_bytes, 2 << 20);
  close_writer();
  close_device();
}
END_TEST

START_TEST(a_writer_has_one_at_a_time) {
  struct ringcast_gpu_writer_options options = gpu_options();
  open_writer(&options);
  ck_assert_int_eq(open_with(&options), -EBUSY);
  ringcast_gpu_writer_close(gpu_writer);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  ringcast_gpu_writer_close(NULL);
  close_writer();
  close_device();
}
END_TEST

START_TEST(without_a_driver_it_is_cpu_mode) {
  struct ringcast_gpu_writer_options options = gpu_options();
  disable_too("cuda");
  writer = make_writer(1 << 16, 2);
  ck_assert_int_eq(open_with(&options), -ENODEV);
  ck_assert_int_eq(ringcast_writer_send(writer, "x", 1, 0, 0), 0);
  ringcast_writer_close(writer);
}
END_TEST

static const char *const pool_calls[] = {"cuMemHostRegister", "cuMemHostGetDevicePointer", "cuMemAlloc",
                                         "cuIpcGetMemHandle", "cuMemcpyHtoDAsync"};
START_TEST(a_pool_that_cannot_be_had_is_no_error) {
  struct ringcast_gpu_writer_options options = gpu_options();
  open_device();
  writer = make_writer(1 << 20, 8);
  call_fails(pool_calls[_i], 1, RC_CU_OUT_OF_MEMORY);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  no_call_fails();
  struct ringcast_gpu_info info = writer_info();
  ck_assert_uint_eq(info.way, RINGCAST_GPU_WAY_NO_POOL);
  ck_assert_ptr_nonnull(strstr(info.why, "OUT_OF_MEMORY"));
  open_reader();
  ck_assert_int_eq(send_bytes(5, 100, RINGCAST_GPU_NO_INLINE), -EAGAIN);
  ck_assert_int_eq(send_bytes(5, 100, 0), 0);
  ck_assert_int_eq(receive_bytes(5), RINGCAST_PLACEMENT_INLINE);
  close_pair();
}
END_TEST

START_TEST(in_a_child_of_a_fork_it_is_the_parents) {
  open_pair(NULL);
  struct draft draft;
  ck_assert_int_eq(lease_bytes(64, &draft), 0);
  pid_t pid = fork();
  if (pid == 0) {
    struct draft other;
    struct ringcast_gpu_info info = {.size = sizeof info};
    bool refused = lease_bytes(64, &other) == -ECHILD && copy_in(&draft, 0, 64) == -ECHILD &&
                   ringcast_gpu_commit(gpu_writer, &draft.lease, stream, 64) == -ECHILD &&
                   ringcast_gpu_writer_info(gpu_writer, &info) == -ECHILD && send_bytes(0, 8, 0) == -ECHILD &&
                   ringcast_gpu_wait(gpu_writer, stream) == -ECHILD;
    ringcast_gpu_drop(gpu_writer, &draft.lease);
    ringcast_gpu_writer_close(gpu_writer);
    ringcast_writer_close(writer);
    _exit(refused ? 0 : 1);
  }
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  ringcast_gpu_drop(gpu_writer, &draft.lease);
  ck_assert_int_eq(send_bytes(3, 50, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(receive_bytes(3), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

/* ---- Leases ----------------------------------------------------------------------------------------------------- */

START_TEST(tensors_lie_on_256_bytes_within_the_lease) {
  uint64_t bytes[4] = {1, 256, 0, 300}, offsets[4];
  struct ringcast_gpu_extent lease;
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_lease(gpu_writer, bytes, 4, offsets, &lease), 0);
  ck_assert_uint_eq(lease.bytes, 256 + 256 + 300);
  for (int i = 0; i < 4; i++) {
    ck_assert_uint_eq(offsets[i] % 256, 0);
    ck_assert_uint_le(offsets[i] + bytes[i], lease.base + lease.bytes);
    if (i > 0) ck_assert_uint_ge(offsets[i], offsets[i - 1] + bytes[i - 1]);
  }
  ck_assert_uint_gt(lease.generation, 0);
  ck_assert_uint_eq(lease.epoch, writer_info().epoch);
  ringcast_gpu_drop(gpu_writer, &lease);
  ck_assert_uint_eq(writer_info().slots_used, 0);
  close_pair();
}
END_TEST

START_TEST(a_pool_that_is_full_says_again) {
  struct draft more;
  open_pair(NULL);
  for (int i = 0; i < 4; i++) ck_assert_int_eq(send_bytes(i, 100, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(lease_bytes(1, &more), -EAGAIN); /* no slot */
  ck_assert_uint_eq(writer_info().full, 1);
  ck_assert_int_eq(send_bytes(4, 100, RINGCAST_GPU_NO_INLINE), -EAGAIN);
  ck_assert_int_eq(send_bytes(4, 100, 0), 0);
  for (int i = 0; i < 5; i++)
    ck_assert_int_eq(receive_bytes(i), i < 4 ? RINGCAST_PLACEMENT_POOL : RINGCAST_PLACEMENT_INLINE);
  ck_comes(writer_info().slots_used == 0);
  ck_assert_int_eq(lease_bytes(2 << 20, &more), 0); /* all of it */
  ringcast_gpu_drop(gpu_writer, &more.lease);
  hold_up();
  ck_assert_int_eq(send_bytes(0, 600000, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(lease_bytes((2 << 20) - 600000, &more), -EAGAIN); /* no place */
  let_go();
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(what_the_pool_can_never_hold_is_told_apart) {
  struct draft draft;
  uint64_t bytes[3] = {UINT64_MAX, UINT64_MAX, 2}, offsets[3];
  open_pair(NULL);
  ck_assert_int_eq(lease_bytes((2 << 20) + 1, &draft), -EMSGSIZE);
  ck_assert_int_eq(ringcast_gpu_lease(gpu_writer, bytes, 3, offsets, &draft.lease), -EMSGSIZE);
  bytes[0] = bytes[1] = bytes[2] = 1 << 20;
  ck_assert_int_eq(ringcast_gpu_lease(gpu_writer, bytes, 3, offsets, &draft.lease), -EMSGSIZE);
  ck_assert_uint_eq(writer_info().slots_used, 0);
  close_pair();
}
END_TEST

START_TEST(small_ones_go_inline_if_the_options_say_so) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct draft draft;
  options.inline_most = 100;
  open_pair(&options);
  ck_assert_int_eq(lease_bytes(100, &draft), -EAGAIN);
  ck_assert_int_eq(lease_bytes(101, &draft), 0);
  ringcast_gpu_drop(gpu_writer, &draft.lease);
  uint64_t bytes[2] = {60, 41}, offsets[2];
  ck_assert_int_eq(ringcast_gpu_lease(gpu_writer, bytes, 2, offsets, &draft.lease), 0); /* together they are more */
  ringcast_gpu_drop(gpu_writer, &draft.lease);
  ck_assert_int_eq(send_bytes(0, 100, 0), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_INLINE);
  ck_assert_int_eq(send_bytes(0, 101, 0), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(a_lease_that_is_used_up_is_refused) {
  struct draft first, second;
  open_pair(NULL);
  draft(100, &first);
  ck_assert_int_eq(copy_in(&first, 0, 100), 0);
  struct ringcast_gpu_extent copy = first.lease;
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &first.lease, stream, first.bytes), 0);
  ck_assert_int_eq(copy_in(&first, 0, 100), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &copy, stream, first.bytes), -EINVAL);
  ringcast_gpu_drop(gpu_writer, &copy); /* does nothing: the frame is under way */
  ck_assert_uint_eq(writer_info().slots_used, 1);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_POOL);
  ck_assert_int_eq(lease_bytes(100, &second), 0);
  ck_assert_uint_eq(second.lease.slot, copy.slot); /* the same slot, and another generation */
  ck_assert_int_eq(copy_in(&first, 0, 100), -EINVAL);
  ringcast_gpu_drop(gpu_writer, &second.lease);
  ck_assert_int_eq(copy_in(&second, 0, 100), -EINVAL);
  ringcast_gpu_drop(gpu_writer, &second.lease);
  second.lease.slot = 1u << 30;
  ck_assert_int_eq(copy_in(&second, 0, 100), -EINVAL);
  second.lease.epoch++;
  ck_assert_int_eq(copy_in(&second, 0, 100), -EINVAL);
  close_pair();
}
END_TEST

START_TEST(a_copy_stays_within_its_lease) {
  int64_t shape[2] = {4097, 1}, strides[2] = {2, 1};
  struct ringcast_tensor pieces = {.dtype = {1, 8, 1}, .ndim = 2, .shape = shape, .strides = strides};
  struct draft draft;
  open_pair(NULL);
  pieces.data = (const void *)(uintptr_t)source;
  ck_assert_int_eq(lease_bytes(8192, &draft), 0);
  ck_assert_int_eq(copy_in(&draft, 0, 8193), -EINVAL);
  draft.offset += 1;
  ck_assert_int_eq(copy_in(&draft, 0, 8192), -EINVAL);
  draft.offset = UINT64_MAX - 100;
  ck_assert_int_eq(copy_in(&draft, 0, 1), -EINVAL);
  draft.offset = draft.lease.base - 1;
  ck_assert_int_eq(copy_in(&draft, 0, 1), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_copy_in(gpu_writer, &draft.lease, draft.lease.base, &pieces, stream), -ENOTSUP);
  pieces.ndim = 65;
  ck_assert_int_eq(ringcast_gpu_copy_in(gpu_writer, &draft.lease, draft.lease.base, &pieces, stream), -EINVAL);
  ringcast_gpu_drop(gpu_writer, &draft.lease);
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

START_TEST(a_slot_that_was_dropped_is_good_for_the_next_frame) {
  struct draft draft;
  open_pair(NULL);
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(lease_bytes(100, &draft), 0);
    ringcast_gpu_drop(gpu_writer, &draft.lease);
  }
  hold_up();
  ck_assert_int_eq(send_bytes(3, 100, RINGCAST_GPU_NO_INLINE), 0);
  struct received received;
  next_frame(&received);
  begin(&received); /* before its bytes have come */
  let_go();
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), 0);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
  target_holds(3, 100);
  close_pair();
}
END_TEST

START_TEST(what_is_dropped_is_used_again_when_its_copies_are_done) {
  struct draft draft;
  open_pair(NULL);
  hold_up();
  ck_assert_int_eq(lease_bytes(100, &draft), 0);
  ck_assert_int_eq(copy_in(&draft, 0, 100), 0);
  ringcast_gpu_drop(gpu_writer, &draft.lease);
  ck_assert_uint_eq(writer_info().slots_used, 1);
  ck_assert_int_eq(writer_info().syncs, 1); /* of the first frame, INLINE */
  let_go();
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_writer");
  TCase *tests = add_case(suite, "open");
  tcase_add_test(tests, options_out_of_range_are_refused);
  tcase_add_test(tests, the_environment_fills_in_for_the_default_alone);
  tcase_add_test(tests, a_writer_has_one_at_a_time);
  tcase_add_test(tests, without_a_driver_it_is_cpu_mode);
  tcase_add_loop_test(tests, a_pool_that_cannot_be_had_is_no_error, 0, 5);
  tcase_add_test(tests, in_a_child_of_a_fork_it_is_the_parents);
  tests = add_case(suite, "lease");
  tcase_add_test(tests, tensors_lie_on_256_bytes_within_the_lease);
  tcase_add_test(tests, a_pool_that_is_full_says_again);
  tcase_add_test(tests, what_the_pool_can_never_hold_is_told_apart);
  tcase_add_test(tests, small_ones_go_inline_if_the_options_say_so);
  tcase_add_test(tests, a_lease_that_is_used_up_is_refused);
  tcase_add_test(tests, a_copy_stays_within_its_lease);
  tcase_add_test(tests, a_slot_that_was_dropped_is_good_for_the_next_frame);
  tcase_add_test(tests, what_is_dropped_is_used_again_when_its_copies_are_done);
  return run_gpu_suite(suite, "test_gpu_writer");
}
