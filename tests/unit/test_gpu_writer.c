/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's side of ringcast/gpu.h: what it promises, call by call. */
#include "tests/support/children.h"
#include "tests/support/gpu_channel.h"
#include "tests/support/switches.h"

/* A frame of one tensor in the pool, reserved, built and leased, but not committed. */
struct draft {
  struct ringcast_gpu_lease lease;
  uint64_t offset;
  size_t bytes;
};

static int lease_bytes(uint64_t bytes, struct draft *out) {
  return ringcast_gpu_lease(gpu_writer, &bytes, 1, &out->offset, &out->lease);
}

static void draft(uint64_t bytes, struct draft *out) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_span span;
  int64_t shape[1] = {(int64_t)bytes};
  struct ringcast_tensor tensor = bytes_on_device(source, shape);
  tensor.flags = RINGCAST_ITEM_CUDA;
  ck_assert_int_eq(lease_bytes(bytes, out), 0);
  ringcast_plan_device_tensor(&plan, 1, 1);
  ck_assert_int_eq(ringcast_writer_reserve(writer, ringcast_plan_bytes(&plan), 0, &span), 0);
  ck_assert_int_eq(ringcast_build_begin(&builder, span.data, span.bytes, &plan, RINGCAST_ROOT_DICT, 0), 0);
  ck_assert_int_eq(ringcast_build_device_tensor(&builder, "x", 1, &tensor, RINGCAST_PLACEMENT_POOL, out->offset, 0), 0);
  ck_assert_int_eq(ringcast_build_device(&builder, out->lease.slot, out->lease.epoch, out->lease.generation), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, &out->bytes), 0);
}

static int copy_in(const struct draft *draft, int64_t at, int64_t bytes) {
  int64_t shape[1] = {bytes};
  struct ringcast_tensor tensor = bytes_on_device(source + (rc_cu_ptr)at, shape);
  return ringcast_gpu_copy_in(gpu_writer, &draft->lease, draft->offset, &tensor, stream);
}

static void nothing_came(void) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &frame), -EAGAIN);
}

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
  options.size--;
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
  for (const char **bad = (const char *[]){"-1", "4M", " 5", "x", "99999999999999999999", NULL}; *bad; bad++) {
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
/* The words' last test, of 32 bits, and what comes before it all. */
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
    uint32_t lent;
    bool refused = lease_bytes(64, &other) == -ECHILD && copy_in(&draft, 0, 64) == -ECHILD &&
                   ringcast_gpu_commit(gpu_writer, &draft.lease, stream, 64) == -ECHILD &&
                   ringcast_gpu_writer_info(gpu_writer, &info) == -ECHILD && send_bytes(0, 8, 0) == -ECHILD &&
                   ringcast_gpu_wait(gpu_writer, stream) == -ECHILD &&
                   ringcast_gpu_lent_is_idle(gpu_writer, 1) == -ECHILD &&
                   ringcast_gpu_writer_unlend(gpu_writer, 1, 0) == -ECHILD &&
                   ringcast_gpu_writer_lend(gpu_writer, source, &lent) < 0;
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
  struct ringcast_gpu_lease lease;
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
  struct draft drafts[4], more;
  open_pair(NULL);
  for (int i = 0; i < 4; i++) ck_assert_int_eq(lease_bytes(100, &drafts[i]), 0);
  ck_assert_int_eq(lease_bytes(1, &more), -EAGAIN); /* no slot */
  ck_assert_uint_eq(writer_info().full, 1);
  ck_assert_int_eq(send_bytes(0, 10, RINGCAST_GPU_NO_INLINE), -EAGAIN);
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_INLINE);
  for (int i = 0; i < 4; i++) ringcast_gpu_drop(gpu_writer, &drafts[i].lease);
  ck_assert_int_eq(lease_bytes(2 << 20, &more), 0); /* all of it */
  ck_assert_int_eq(lease_bytes(1, &drafts[0]), -EAGAIN); /* no place */
  ringcast_gpu_drop(gpu_writer, &more.lease);
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
  struct ringcast_gpu_lease copy = first.lease;
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

/* ---- Sending ---------------------------------------------------------------------------------------------------- */

START_TEST(while_a_stream_captures_nothing_is_enqueued) {
  struct draft open;
  int64_t shape[1] = {10};
  struct ringcast_tensor tensor = bytes_on_device(source, shape);
  uint8_t host[10];
  open_pair(NULL);
  draft(100, &open);
  ck_assert_int_eq(copy_in(&open, 20, 100), 0);
  long copies = fake_cuda()->calls("cuMemcpyDtoDAsync"), words = fake_cuda()->calls("cuStreamWriteValue64");
  fake_cuda()->capture(stream, true);
  ck_assert_int_eq(copy_in(&open, 0, 100), -EBUSY);
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &open.lease, stream, open.bytes), -EBUSY);
  ck_assert_int_eq(ringcast_gpu_fetch(gpu_writer, &tensor, host, stream), -EBUSY);
  fake_cuda()->capture(stream, false);
  ck_assert_int_eq(fake_cuda()->calls("cuMemcpyDtoDAsync"), copies);
  ck_assert_int_eq(fake_cuda()->calls("cuStreamWriteValue64"), words);
  nothing_came();
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &open.lease, stream, open.bytes), 0); /* the lease is open still */
  ck_assert_int_eq(receive_bytes(20), RINGCAST_PLACEMENT_POOL);
  fake_cuda()->capture(stream, true);
  ck_assert_int_eq(send_bytes(0, 10, 0), -EBUSY);
  fake_cuda()->capture(stream, false);
  nothing_came();
  ck_comes(writer_info().slots_used == 0);
  ck_assert_int_eq(send_bytes(0, 10, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(a_commit_that_fails_has_sent_nothing) {
  struct draft open;
  open_pair(NULL);
  draft(100, &open);
  ck_assert_int_eq(copy_in(&open, 0, 100), 0);
  call_fails("cuStreamWriteValue64", 1, 999);
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &open.lease, stream, open.bytes), -EIO);
  nothing_came();
  ck_assert_int_eq(ringcast_writer_abort(writer), 0); /* it was open */
  ringcast_gpu_drop(gpu_writer, &open.lease);
  ck_comes(writer_info().slots_used == 0);
  draft(100, &open); /* and the ring's own refusal, once `ready` is enqueued */
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &open.lease, stream, 1 << 30), -EINVAL);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  nothing_came();
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

START_TEST(a_send_that_fails_has_sent_nothing_and_keeps_nothing) {
  static const char *const calls[] = {"cuMemcpyDtoDAsync", "cuStreamWriteValue64", "cuStreamIsCapturing"};
  open_pair(NULL);
  call_fails(calls[_i], 1, 999);
  ck_assert_int_eq(send_bytes(0, 100, 0), -EIO);
  no_call_fails();
  nothing_came();
  ck_comes(writer_info().slots_used == 0);
  ck_assert_int_eq(send_bytes(9, 100, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(receive_bytes(9), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(a_dict_that_is_none_is_refused) {
  int64_t shape[1] = {-1};
  struct ringcast_gpu_item item = {.key = "x", .key_bytes = 1, .tensor = bytes_on_device(0, shape), .on_device = 1};
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_send(gpu_writer, &item, 1, 0, 2, stream, 0), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_send(gpu_writer, &item, 1, 0, 0, stream, 0), -EINVAL);
  shape[0] = 4; /* of no memory */
  ck_assert_int_eq(ringcast_gpu_send(gpu_writer, &item, 1, 0, 0, stream, 0), -EINVAL);
  item.tensor.data = (const void *)(uintptr_t)source;
  item.lent = 77;
  ck_assert_int_eq(ringcast_gpu_send(gpu_writer, &item, 1, 0, 0, stream, 0), -EINVAL);
  nothing_came();
  ck_comes(writer_info().slots_used == 0);
  ck_assert_int_eq(ringcast_gpu_send(gpu_writer, NULL, 0, 5, 0, stream, 0), 0); /* an empty one is one */
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &frame), 0);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &frame), 0);
  close_pair();
}
END_TEST

START_TEST(a_ring_that_is_full_costs_no_place_in_the_pool) {
  int rc, sent = 0;
  open_pair(NULL);
  while ((rc = ringcast_writer_send(writer, fake_cuda()->host(source), 60000, 0, 0)) == 0) sent++;
  ck_assert_int_eq(rc, -EAGAIN);
  while (ringcast_writer_send(writer, "x", 1, 0, 0) == 0) sent++;
  ck_assert_int_eq(send_bytes(0, 100, 0), -EAGAIN);
  ck_assert_uint_eq(writer_info().slots_used, 0);
  for (struct ringcast_frame frame; sent > 0; sent--) {
    ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &frame), 0);
    ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &frame), 0);
  }
  ck_assert_int_eq(send_bytes(0, 100, 0), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(the_caller_may_write_to_its_tensor_behind_the_send) {
  open_pair(NULL);
  hold_up();
  ck_assert_int_eq(send_bytes(11, 5000, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(cuda->copy_dtod(source, source + 500000, 100000, stream), 0);
  let_go();
  ck_assert_int_eq(receive_bytes(11), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(a_device_that_has_failed_loses_the_pool) {
  struct draft open;
  open_pair(NULL);
  draft(100, &open);
  fake_cuda()->break_context(NULL);
  ck_assert_int_eq(copy_in(&open, 0, 100), -EIO);
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_LOST);
  ck_assert_int_eq(ringcast_gpu_commit(gpu_writer, &open.lease, stream, open.bytes), -EIO);
  ck_assert_int_eq(ringcast_writer_abort(writer), 0);
  ringcast_gpu_drop(gpu_writer, &open.lease);
  ck_assert_int_eq(lease_bytes(100, &open), -EPIPE);
  ck_assert_int_eq(send_bytes(0, 10, 0), -EPIPE);
  nothing_came();
  close_reader();
  close_writer();
  abandon_device();
}
END_TEST

/* ---- Ways ------------------------------------------------------------------------------------------------------- */

START_TEST(info_says_which_way_and_why) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct ringcast_gpu_info info = {.size = 1};
  open_writer(&options);
  ck_assert_int_eq(ringcast_gpu_writer_info(gpu_writer, &info), -EINVAL);
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_NO_READER);
  open_reader();
  info = writer_info();
  ck_assert_uint_eq(info.way, RINGCAST_GPU_WAY_WAITING);
  ck_assert_int_eq(info.reader_pid, getpid());
  ck_assert_int_eq(send_bytes(0, 10, RINGCAST_GPU_NO_INLINE), -EAGAIN);
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  call_fails("cuMemHostRegister", 1, RC_CU_NOT_PERMITTED); /* the words; the ring's memory is tried after them */
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_INLINE);
  no_call_fails();
  info = writer_info();
  ck_assert_uint_eq(info.way, RINGCAST_GPU_WAY_REFUSED);
  ck_assert(info.why[0] != '\0');
  ck_assert_int_eq(send_bytes(0, 10, RINGCAST_GPU_NO_INLINE), -EAGAIN);
  ck_assert_uint_eq(reader_info().way, RINGCAST_GPU_WAY_REFUSED);
  ck_assert(reader_info().why[0] != '\0');
  close_reader();
  ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_NO_READER); /* who can't has gone */
  open_reader();
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_INLINE);
  info = writer_info();
  ck_assert_uint_eq(info.way, RINGCAST_GPU_WAY_POOL);
  ck_assert_uint_eq(info.word_bits, 64);
  ck_assert_uint_eq(info.inline_frames, 2);
  close_pair();
}
END_TEST

START_TEST(words_of_32_bits_do_as_well) {
  setenv("FAKE_CUDA_WITHOUT", "cuStreamWriteValue64,cuStreamWaitValue64", 1);
  open_pair(NULL);
  ck_assert_uint_eq(writer_info().word_bits, 32);
  for (int i = 0; i < 20; i++) {
    ck_assert_int_eq(send_bytes(i, 1000, RINGCAST_GPU_NO_INLINE), 0);
    ck_assert_int_eq(receive_bytes(i), RINGCAST_PLACEMENT_POOL);
  }
  close_pair();
}
END_TEST

/* ---- Lending ---------------------------------------------------------------------------------------------------- */

static struct ringcast_gpu_writer_options lending(void) {
  struct ringcast_gpu_writer_options options = gpu_options();
  options.flags = RINGCAST_GPU_EXTERN;
  return options;
}

START_TEST(memory_that_cannot_be_lent_is_refused) {
  struct ringcast_gpu_writer_options options = lending();
  static uint8_t host[64];
  rc_cu_ptr pooled;
  uint32_t lent = 0;
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, source, &lent), -EINVAL); /* the options did not say so */
  close_pair();
  open_pair(&options);
  ck_assert_int_eq(cuda->mem_alloc_async(&pooled, 4096, stream), 0);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, pooled, &lent), -ENOTSUP);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, (rc_cu_ptr)(uintptr_t)host, &lent), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, turn_address, &lent), -EINVAL);
  ck_assert_uint_eq(lent, 0);
  ck_assert_int_eq(ringcast_gpu_lent_is_idle(gpu_writer, 1), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, 1, 0), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, 1, -2), -EINVAL);
  ck_assert_int_eq(cuda->mem_free_async(pooled, stream), 0);
  close_pair();
}
END_TEST

START_TEST(an_allocation_is_lent_once_and_64_at_most) {
  struct ringcast_gpu_writer_options options = lending();
  rc_cu_ptr memory[65];
  uint32_t lent[64], again, more;
  open_writer(&options);
  for (int i = 0; i < 65; i++) ck_assert_int_eq(cuda->mem_alloc(&memory[i], 4096), 0);
  for (int i = 0; i < 64; i++) {
    ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, memory[i], &lent[i]), 0);
    ck_assert_uint_ne(lent[i], 0);
    for (int j = 0; j < i; j++) ck_assert_uint_ne(lent[i], lent[j]);
  }
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, memory[7] + 100, &again), 0); /* within it */
  ck_assert_uint_eq(again, lent[7]);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, memory[64], &more), -EUSERS);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent[7], 0), 0); /* nobody has it open */
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent[7], 0), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, memory[64], &more), 0);
  ck_assert_uint_ne(more, lent[7]); /* the same place, and another number */
  ck_assert_int_eq(ringcast_gpu_lent_is_idle(gpu_writer, lent[7]), -EINVAL);
  for (int i = 0; i < 65; i++) ck_assert_int_eq(cuda->mem_free(memory[i]), 0);
  close_writer();
  close_device();
}
END_TEST

/* ---- Ends ------------------------------------------------------------------------------------------------------- */

START_TEST(two_writers_have_pools_of_their_own) {
  struct ringcast_gpu_writer_options options = gpu_options();
  open_pair(NULL);
  ringcast_writer *first = writer;
  ringcast_reader *first_reader = reader;
  ringcast_gpu_writer *first_gpu = gpu_writer;
  ringcast_gpu_reader *first_gpu_reader = gpu_reader;
  uint32_t epoch = writer_info().epoch;
  writer = make_writer(1 << 20, 8);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  open_reader();
  ck_assert_uint_ne(writer_info().epoch, epoch);
  ck_assert_int_eq(send_bytes(0, 10, 0), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_INLINE);
  for (int64_t i = 0; i < 8; i++) {
    ck_assert_int_eq(send_bytes(i * 100, 1000, RINGCAST_GPU_NO_INLINE), 0);
    ringcast_gpu_writer *other = gpu_writer;
    ringcast_gpu_reader *other_reader = gpu_reader;
    gpu_writer = first_gpu;
    gpu_reader = first_gpu_reader;
    ck_assert_int_eq(send_bytes(i * 100 + 50, 1000, RINGCAST_GPU_NO_INLINE), 0);
    ck_assert_int_eq(receive_bytes(i * 100 + 50), RINGCAST_PLACEMENT_POOL);
    gpu_writer = other;
    gpu_reader = other_reader;
    ck_assert_int_eq(receive_bytes(i * 100), RINGCAST_PLACEMENT_POOL);
  }
  close_reader();
  close_writer();
  writer = first;
  reader = first_reader;
  gpu_writer = first_gpu;
  gpu_reader = first_gpu_reader;
  close_pair();
}
END_TEST

START_TEST(the_pool_stays_until_its_last_reader_has_closed) {
  struct received received;
  open_pair(NULL);
  long allocations = fake_cuda()->live("allocations");
  ck_assert_int_eq(send_bytes(4, 1000, RINGCAST_GPU_NO_INLINE), 0);
  close_writer();
  ck_assert_int_eq(fake_cuda()->live("allocations"), allocations);
  next_frame(&received); /* what was committed stays readable */
  begin(&received);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), 0);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
  target_holds(4, 1000);
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &frame), -EPIPE);
  rc_estates_tidy();
  ck_assert_int_eq(fake_cuda()->live("allocations"), allocations);
  close_reader();
  rc_estates_tidy();
  ck_assert_int_eq(fake_cuda()->live("allocations"), allocations - 1);
  close_device();
}
END_TEST

START_TEST(a_later_pool_of_the_ring_has_another_epoch) {
  struct ringcast_gpu_writer_options options = gpu_options();
  open_pair(NULL);
  for (int i = 1; i <= 3; i++) {
    uint32_t epoch = writer_info().epoch;
    ck_assert_int_eq(send_bytes(i, 500, RINGCAST_GPU_NO_INLINE), 0);
    ck_assert_int_eq(receive_bytes(i), RINGCAST_PLACEMENT_POOL);
    ringcast_gpu_writer_close(gpu_writer);
    ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
    ck_assert_uint_ne(writer_info().epoch, epoch);
    ck_assert_uint_eq(writer_info().way, RINGCAST_GPU_WAY_WAITING);
    ck_assert_int_eq(send_bytes(i, 500, 0), 0);
    ck_assert_int_eq(receive_bytes(i), RINGCAST_PLACEMENT_INLINE);
    ck_assert_uint_eq(reader_info().epoch, writer_info().epoch);
  }
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
  tests = add_case(suite, "send");
  tcase_add_test(tests, while_a_stream_captures_nothing_is_enqueued);
  tcase_add_test(tests, a_commit_that_fails_has_sent_nothing);
  tcase_add_loop_test(tests, a_send_that_fails_has_sent_nothing_and_keeps_nothing, 0, 3);
  tcase_add_test(tests, a_dict_that_is_none_is_refused);
  tcase_add_test(tests, a_ring_that_is_full_costs_no_place_in_the_pool);
  tcase_add_test(tests, the_caller_may_write_to_its_tensor_behind_the_send);
  tcase_add_test(tests, a_device_that_has_failed_loses_the_pool);
  tests = add_case(suite, "ways");
  tcase_add_test(tests, info_says_which_way_and_why);
  tcase_add_test(tests, words_of_32_bits_do_as_well);
  tests = add_case(suite, "lend");
  tcase_add_test(tests, memory_that_cannot_be_lent_is_refused);
  tcase_add_test(tests, an_allocation_is_lent_once_and_64_at_most);
  tests = add_case(suite, "ends");
  tcase_add_test(tests, two_writers_have_pools_of_their_own);
  tcase_add_test(tests, the_pool_stays_until_its_last_reader_has_closed);
  tcase_add_test(tests, a_later_pool_of_the_ring_has_another_epoch);
  return run_suite(suite);
}
