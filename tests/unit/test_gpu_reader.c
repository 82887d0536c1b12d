/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of ringcast/gpu.h: opening, takes, holds, and frames of the ring. */
#include "tests/support/children.h"
#include "tests/support/gpu_channel.h"
#include "tests/support/switches.h"

static int open_with(const struct ringcast_gpu_reader_options *options) {
  ringcast_gpu_reader *opened = NULL;
  int rc = ringcast_gpu_reader_open(reader, options, &opened);
  if (rc == 0) ringcast_gpu_reader_close(opened);
  else ck_assert_ptr_null(opened);
  return rc;
}

static int begin_rc(struct received *received) {
  return ringcast_gpu_begin(gpu_reader, &received->frame, stream, &received->take);
}

static void end(struct received *received) { ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received->take), 0); }

/* Sent by the pool, and begun. */
static void send_and_begin(int64_t at, int64_t bytes, struct received *out) {
  ck_assert_int_eq(send_bytes(at, bytes, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(out);
  begin(out);
}

/* A frame by hand, which says what it likes. */
static void send_frame_of(uint32_t slot, uint32_t epoch, uint64_t generation, uint64_t offset, int64_t bytes) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_span span;
  int64_t shape[1] = {bytes};
  struct ringcast_tensor tensor = bytes_on_device(source, shape);
  size_t used;
  tensor.flags = RINGCAST_ITEM_CUDA;
  ringcast_plan_device_tensor(&plan, 1, 1);
  ck_assert_int_eq(ringcast_writer_reserve(writer, ringcast_plan_bytes(&plan), 0, &span), 0);
  ck_assert_int_eq(ringcast_build_begin(&builder, span.data, span.bytes, &plan, RINGCAST_ROOT_DICT, 0), 0);
  ck_assert_int_eq(ringcast_build_device_tensor(&builder, "x", 1, &tensor, offset), 0);
  ck_assert_int_eq(ringcast_build_device(&builder, slot, epoch, generation), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, &used), 0);
  ck_assert_int_eq(ringcast_writer_commit(writer, used, RINGCAST_KIND_TENSORS), 0);
}

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

START_TEST(options_out_of_range_are_refused) {
  struct ringcast_gpu_writer_options defaults = gpu_options();
  struct ringcast_gpu_reader_options options = {.size = sizeof options}, good = options;
  open_writer(&defaults);
  reader = attach(writer);
  options.size = 0;
  ck_assert_int_eq(open_with(&options), -EINVAL);
  options = good;
  options.flags = 1;
  ck_assert_int_eq(open_with(&options), -EINVAL);
  options = good;
  options.reserved = 1;
  ck_assert_int_eq(open_with(&options), -EINVAL);
  options = good;
  options.device = 1;
  ck_assert_int_eq(open_with(&options), -EINVAL);
  ck_assert_int_eq(open_with(&good), 0);
  ck_assert_int_eq(ringcast_gpu_reader_open(reader, NULL, &gpu_reader), 0);
  ck_assert_int_eq(open_with(NULL), -EBUSY);
  ringcast_gpu_reader_close(gpu_reader);
  ringcast_gpu_reader_close(NULL);
  ck_assert_int_eq(open_with(NULL), 0);
  ringcast_reader_close(reader);
  close_writer();
  close_device();
}
END_TEST

START_TEST(without_a_driver_it_is_cpu_mode) {
  disable_too("cuda");
  writer = make_writer(1 << 16, 2);
  reader = attach(writer);
  ck_assert_int_eq(open_with(NULL), -ENODEV);
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}
END_TEST

START_TEST(in_a_child_of_a_fork_it_is_the_parents) {
  struct received received;
  ringcast_gpu_hold *hold;
  ringcast_device_ptr where;
  open_pair(NULL);
  send_and_begin(0, 100, &received);
  ck_assert_int_eq(ringcast_gpu_map(gpu_reader, &received.take, &received.item, &where, &hold), 0);
  pid_t pid = fork();
  if (pid == 0) {
    struct ringcast_gpu_info info = {.size = sizeof info};
    struct ringcast_frame frame;
    bool refused = ringcast_gpu_next(gpu_reader, 0, &frame) == -ECHILD && begin_rc(&received) == -ECHILD &&
                   ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target) == -ECHILD &&
                   ringcast_gpu_end(gpu_reader, &received.take) == -ECHILD &&
                   ringcast_gpu_release(gpu_reader, &received.frame) == -ECHILD &&
                   ringcast_gpu_check(gpu_reader) == -ECHILD && ringcast_gpu_reader_info(gpu_reader, &info) == -ECHILD;
    ringcast_gpu_unmap(hold);
    ringcast_gpu_reader_close(gpu_reader);
    ringcast_reader_close(reader);
    _exit(refused ? 0 : 1);
  }
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  ringcast_gpu_unmap(hold);
  end(&received);
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

START_TEST(the_pool_is_opened_by_the_first_frame_and_once) {
  open_pair(NULL);
  ck_assert_uint_eq(reader_info().opens, 1);
  for (int i = 0; i < 5; i++) {
    ck_assert_int_eq(send_bytes(i, 10, 0), 0);
    ck_assert_int_eq(receive_bytes(i), RINGCAST_PLACEMENT_POOL);
  }
  struct ringcast_gpu_info info = reader_info();
  ck_assert_uint_eq(info.opens, 1);
  ck_assert_uint_eq(info.pool_frames, 5);
  ck_assert_uint_eq(info.inline_frames, 1);
  ck_assert_uint_eq(info.way, RINGCAST_GPU_WAY_POOL);
  ck_assert_int_eq(fake_cuda()->calls("cuIpcOpenMemHandle"), 0); /* of this process: no handle is needed */
  close_pair();
}
END_TEST

/* ---- Takes ------------------------------------------------------------------------------------------------------ */

START_TEST(what_is_no_frame_of_tensors_is_refused_and_still_held) {
  struct received received;
  open_pair(NULL);
  ck_assert_int_eq(ringcast_writer_send(writer, "bytes", 5, RINGCAST_KIND_BYTES, 0), 0);
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &received.frame), 0);
  ck_assert_int_eq(begin_rc(&received), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), 0);
  ck_assert_int_eq(ringcast_writer_send(writer, "tensors", 7, RINGCAST_KIND_TENSORS, 0), 0);
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &received.frame), 0);
  ck_assert_int_eq(begin_rc(&received), -EPROTO);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), 0);
  close_pair();
}
END_TEST

START_TEST(while_a_stream_captures_nothing_begins) {
  struct received received;
  open_pair(NULL);
  ck_assert_int_eq(send_bytes(0, 100, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&received);
  fake_cuda()->capture(stream, true);
  long waits = fake_cuda()->calls("cuStreamWaitValue64");
  ck_assert_int_eq(begin_rc(&received), -EBUSY);
  ck_assert_int_eq(fake_cuda()->calls("cuStreamWaitValue64"), waits);
  fake_cuda()->capture(stream, false);
  begin(&received);
  end(&received);
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

START_TEST(places_that_cannot_be_right_are_refused) {
  struct received received;
  open_pair(NULL);
  uint32_t epoch = writer_info().epoch;
  static const struct {
    uint32_t slot;
    uint64_t generation;
  } bad[] = {{4, 1}, {UINT32_MAX, 1}, {0, 2}, {0, UINT64_MAX}, {1, (uint64_t)1 << 32 | 1}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    send_frame_of(bad[i].slot, epoch, bad[i].generation, 0, 10);
    next_frame(&received);
    ck_assert_int_eq(begin_rc(&received), -EPROTO);
    ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), 0);
  }
  send_frame_of(0, epoch + 7, 1, 0, 10); /* of no pool that there is */
  next_frame(&received);
  ck_assert_int_eq(begin_rc(&received), -ECONNABORTED);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), 0);
  ck_assert_int_eq(send_bytes(0, 10, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(receive_bytes(0), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(items_that_point_outside_are_refused) {
  struct received received;
  ringcast_gpu_hold *hold;
  ringcast_device_ptr where;
  uint8_t host[16];
  open_pair(NULL);
  send_and_begin(0, 100, &received);
  struct ringcast_item item = received.item;
  static const struct {
    uint64_t offset, bytes;
  } bad[] = {{2 << 20, 1}, {(2 << 20) - 99, 100}, {UINT64_MAX, 1}, {0, (2 << 20) + 1}, {1, UINT64_MAX}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    item.device_offset = bad[i].offset;
    item.bytes = bad[i].bytes;
    ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &item, target), -EPROTO);
    ck_assert_int_eq(ringcast_gpu_copy_pool(gpu_reader, &received.take, bad[i].offset, bad[i].bytes, target), -EPROTO);
    ck_assert_int_eq(ringcast_gpu_copy_to_host(gpu_reader, &received.take, &item, host), -EPROTO);
    ck_assert_int_eq(ringcast_gpu_map(gpu_reader, &received.take, &item, &where, &hold), -EPROTO);
  }
  const uint8_t *data = received.frame.data;
  size_t bytes = received.frame.bytes;
  ck_assert_int_eq(ringcast_gpu_copy_frame(gpu_reader, &received.take, data - 1, 1, target), -EPROTO);
  ck_assert_int_eq(ringcast_gpu_copy_frame(gpu_reader, &received.take, data + bytes, 1, target), -EPROTO);
  ck_assert_int_eq(ringcast_gpu_copy_frame(gpu_reader, &received.take, data + 1, bytes, target), -EPROTO);
  ck_assert_int_eq(ringcast_gpu_copy_frame(gpu_reader, &received.take, data, SIZE_MAX, target), -EPROTO);
  item.placement = RINGCAST_PLACEMENT_INLINE;
  item.data = data + bytes - 1;
  item.bytes = 2;
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &item, target), -EPROTO);
  ck_assert_int_eq(ringcast_gpu_copy_to_host(gpu_reader, &received.take, &item, host), -EPROTO);
  ck_assert_int_eq(ringcast_gpu_map(gpu_reader, &received.take, &item, &where, &hold), -ENOTSUP);
  end(&received);
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

START_TEST(a_take_that_has_ended_is_good_for_nothing) {
  struct received received;
  ringcast_gpu_hold *hold;
  ringcast_device_ptr where;
  uint8_t host[100];
  open_pair(NULL);
  send_and_begin(0, 100, &received);
  end(&received);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_copy_pool(gpu_reader, &received.take, 0, 1, target), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_copy_frame(gpu_reader, &received.take, received.frame.data, 1, target), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_copy_to_host(gpu_reader, &received.take, &received.item, host), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_map(gpu_reader, &received.take, &received.item, &where, &hold), -EINVAL);
  close_pair();
}
END_TEST

START_TEST(a_frame_that_was_under_way_when_it_attached_is_not_for_it) {
  uint64_t bytes = 100, offset;
  struct ringcast_gpu_writer_options options = gpu_options();
  struct ringcast_gpu_extent lease;
  struct received received;
  open_writer(&options);
  ck_assert_int_eq(ringcast_gpu_lease(gpu_writer, &bytes, 1, &offset, &lease), 0);
  open_reader();
  send_frame_of(lease.slot, lease.epoch, lease.generation, offset, 100);
  next_frame(&received);
  ck_assert_int_eq(begin_rc(&received), -ECONNABORTED);
  ck_assert_uint_eq(reader_info().opens, 1); /* and it has opened the pool by it */
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), 0);
  ringcast_gpu_drop(gpu_writer, &lease);
  ck_assert_int_eq(send_bytes(8, 100, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(receive_bytes(8), RINGCAST_PLACEMENT_POOL);
  close_pair();
}
END_TEST

START_TEST(a_frame_that_is_given_back_unread_is_not_waited_for) {
  struct received received;
  open_pair(NULL);
  hold_up();
  ck_assert_int_eq(send_bytes(0, 100, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&received);
  long waits = fake_cuda()->calls("cuStreamWaitValue64");
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), 0);
  ck_assert_int_eq(fake_cuda()->calls("cuStreamWaitValue64"), waits);
  ck_assert_uint_eq(writer_info().slots_used, 1); /* its own copy is not done */
  let_go();
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

START_TEST(the_host_gets_its_copy_at_once) {
  struct received received;
  uint8_t host[100];
  open_pair(NULL);
  send_and_begin(33, 100, &received);
  ck_assert_int_eq(ringcast_gpu_copy_to_host(gpu_reader, &received.take, &received.item, host), 0);
  for (int i = 0; i < 100; i++) ck_assert_uint_eq(host[i], (uint8_t)(7 * (33 + i)));
  end(&received);
  close_pair();
}
END_TEST

/* ---- Holds ------------------------------------------------------------------------------------------------------ */

START_TEST(a_slot_is_free_when_its_last_hold_has_gone) {
  struct received received;
  ringcast_gpu_hold *holds[3];
  ringcast_device_ptr where;
  open_pair(NULL);
  send_and_begin(0, 100, &received);
  for (int i = 0; i < 3; i++)
    ck_assert_int_eq(ringcast_gpu_map(gpu_reader, &received.take, &received.item, &where, &holds[i]), 0);
  ringcast_gpu_unmap(holds[0]);
  end(&received);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_uint_eq(writer_info().slots_used, 1);
  ringcast_gpu_unmap(holds[1]);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_uint_eq(writer_info().slots_used, 1);
  ck_assert_int_eq(cuda->copy_dtod(target, where, 100, stream), 0);
  target_holds(0, 100);
  ringcast_gpu_unmap(holds[2]);
  ringcast_gpu_unmap(NULL);
  ck_comes(writer_info().slots_used == 0);
  close_pair();
}
END_TEST

START_TEST(a_hold_outlives_reader_and_writer) {
  struct received received;
  ringcast_gpu_hold *hold;
  ringcast_device_ptr where;
  open_pair(NULL);
  long allocations = fake_cuda()->live("allocations");
  send_and_begin(21, 100, &received);
  ck_assert_int_eq(ringcast_gpu_map(gpu_reader, &received.take, &received.item, &where, &hold), 0);
  end(&received);
  close_reader(); /* it waits for a second, at most */
  close_writer();
  rc_exported_tidy(rc_gpu_close_ns);
  ck_assert_int_eq(fake_cuda()->live("allocations"), allocations);
  ck_assert_int_eq(cuda->copy_dtod(target, where, 100, stream), 0);
  target_holds(21, 100);
  ringcast_gpu_unmap(hold);
  ck_comes((rc_exported_tidy(rc_gpu_close_ns), fake_cuda()->live("allocations") == allocations - 1));
  close_device();
}
END_TEST

START_TEST(to_close_gives_back_what_was_begun) {
  struct received received;
  open_pair(NULL);
  send_and_begin(0, 100, &received);
  close_reader();
  ck_comes(writer_info().slots_used == 0);
  close_writer();
  close_device();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_reader");
  TCase *tests = add_case(suite, "open");
  tcase_add_test(tests, options_out_of_range_are_refused);
  tcase_add_test(tests, without_a_driver_it_is_cpu_mode);
  tcase_add_test(tests, in_a_child_of_a_fork_it_is_the_parents);
  tcase_add_test(tests, the_pool_is_opened_by_the_first_frame_and_once);
  tests = add_case(suite, "take");
  tcase_add_test(tests, what_is_no_frame_of_tensors_is_refused_and_still_held);
  tcase_add_test(tests, while_a_stream_captures_nothing_begins);
  tcase_add_test(tests, places_that_cannot_be_right_are_refused);
  tcase_add_test(tests, items_that_point_outside_are_refused);
  tcase_add_test(tests, a_take_that_has_ended_is_good_for_nothing);
  tcase_add_test(tests, a_frame_that_was_under_way_when_it_attached_is_not_for_it);
  tcase_add_test(tests, a_frame_that_is_given_back_unread_is_not_waited_for);
  tcase_add_test(tests, the_host_gets_its_copy_at_once);
  tests = add_case(suite, "hold");
  tcase_add_test(tests, a_slot_is_free_when_its_last_hold_has_gone);
  tcase_add_test(tests, a_hold_outlives_reader_and_writer);
  tcase_add_test(tests, to_close_gives_back_what_was_begun);
  return run_gpu_suite(suite, "test_gpu_reader");
}
