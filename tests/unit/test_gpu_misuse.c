/* SPDX-License-Identifier: Apache-2.0 */
/* Calls made twice, too late, or in the wrong order: nobody else's frame suffers. */
#include "tests/support/gpu_channel.h"

enum { MUCH = 400000 }; /* of a ring of 1 MiB */

static rc_cu_stream other;

static void open_without_pool(void) {
  struct ringcast_gpu_writer_options options = gpu_options();
  options.pool_bytes = RINGCAST_NO_POOL;
  open_writer(&options);
  open_reader();
  ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0);
}

static void close_all(void) {
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  cuda->stream_destroy(other);
  close_pair();
}

static void stall(void) { ck_assert_int_eq(rc_word_wait(cuda, other, turn_address, turn->whole + 1), 0); }

static void begin_on(rc_cu_stream on, struct received *received) {
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received->frame, on, &received->take), 0);
}

static int copy(struct received *received) {
  return ringcast_gpu_copy_out(gpu_reader, &received->take, &received->item, target);
}

static int end(struct received *received) { return ringcast_gpu_end(gpu_reader, &received->take); }

/* Frames of something else, for as long as there is room. */
static void write_over(void) {
  static char junk[MUCH];
  struct ringcast_frame frame;
  for (int i = 0; i < 3 && ringcast_writer_send(writer, junk, sizeof junk, 0, 0) == 0; i++)
    if (ringcast_gpu_next(gpu_reader, 0, &frame) == 0) ringcast_gpu_release(gpu_reader, &frame);
}

/* ---- Frames ----------------------------------------------------------------------------------------------------- */

/* Until the writer's next frame lies where `stale` lay. */
static void go_round(const struct ringcast_frame *stale) {
  static char bytes[16384];
  struct ringcast_frame frame;
  uint64_t goal = stale->position + reader->ring.view.capacity;
  for (uint64_t left; (left = goal - writer->ring.tail) > 0;) {
    ck_assert_int_eq(ringcast_writer_send(writer, bytes, left > sizeof bytes ? sizeof bytes / 2 : left - 16, 0, 0), 0);
    ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &frame), 0);
    ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &frame), 0);
  }
}

START_TEST(a_frame_that_was_given_back_is_not_taken_for_what_lies_there_now) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct received first, second;
  struct ringcast_gpu_take take;
  open_device();
  remember();
  writer = make_writer(1 << 16, 8);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  open_reader();
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  ck_assert_int_eq(send_bytes(1, 1000, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&first);
  begin(&first);
  ck_assert_int_eq(end(&first), 0);
  go_round(&first.frame);
  ck_assert_int_eq(send_bytes(40, 1000, RINGCAST_GPU_NO_INLINE), 0);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &first.frame), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &first.frame, stream, &take), -EINVAL);
  ck_assert_uint_eq(writer_info().slots_used, 1);
  next_frame(&second);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &first.frame, stream, &take), -EINVAL);
  begin(&second);
  ck_assert_int_eq(copy(&second), 0);
  ck_assert_int_eq(end(&second), 0);
  target_holds(40, 1000);
  close_pair();
}
END_TEST

START_TEST(a_frame_that_is_being_read_is_not_given_back) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct received received;
  bool by_pool = _i == 1;
  if (!by_pool) options.pool_bytes = RINGCAST_NO_POOL;
  open_writer(&options);
  open_reader();
  ck_assert_int_eq(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), 0);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), by_pool ? 0 : -EAGAIN);
  ck_assert_int_eq(send_bytes(3, MUCH, 0), 0);
  next_frame(&received);
  ck_assert_int_eq(received.item.placement, by_pool ? RINGCAST_PLACEMENT_POOL : RINGCAST_PLACEMENT_INLINE);
  stall();
  begin_on(other, &received);
  ck_assert_int_eq(copy(&received), 0);
  ck_assert_int_eq(ringcast_gpu_release(gpu_reader, &received.frame), -EBUSY);
  write_over();
  let_go();
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  target_holds(3, MUCH);
  ck_assert_int_eq(end(&received), 0);
  ck_assert_int_eq(cuda->stream_synchronize(other), 0);
  ck_assert_uint_eq(writer_info().slots_used, 0);
  close_all();
}
END_TEST

START_TEST(a_frame_has_one_take_at_a_time) {
  struct received received;
  struct ringcast_gpu_take second;
  open_without_pool();
  ck_assert_int_eq(send_bytes(3, 1000, 0), 0);
  next_frame(&received);
  begin(&received);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received.frame, other, &second), -EBUSY);
  ck_assert_int_eq(copy(&received), 0);
  ck_assert_int_eq(end(&received), 0);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_int_eq(ringcast_gpu_begin(gpu_reader, &received.frame, stream, &second), -EINVAL);
  ck_assert_int_eq(send_bytes(7, 1000, 0), 0);
  ck_assert_int_eq(receive_bytes(7), RINGCAST_PLACEMENT_INLINE);
  close_all();
}
END_TEST

/* One slot: the next frame is in the same. */
START_TEST(a_take_that_was_ended_does_not_end_another) {
  struct ringcast_gpu_writer_options options = gpu_options();
  struct received first, second;
  ringcast_device_ptr where;
  ringcast_gpu_hold *hold;
  options.slots = 1;
  open_pair(&options);
  ck_assert_int_eq(send_bytes(1, 1000, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&first);
  begin(&first);
  struct ringcast_gpu_take again = first.take;
  ck_assert_int_eq(end(&first), 0);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_int_eq(send_bytes(40, 1000, RINGCAST_GPU_NO_INLINE), 0);
  next_frame(&second);
  begin(&second);
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &again), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &again, &first.item, target), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_map(gpu_reader, &again, &first.item, &where, &hold), -EINVAL);
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  ck_assert_uint_eq(writer_info().slots_used, 1);
  ck_assert_int_eq(copy(&second), 0);
  ck_assert_int_eq(end(&second), 0);
  target_holds(40, 1000);
  ck_assert_uint_eq(writer_info().slots_used, 0);
  close_pair();
}
END_TEST

/* Their takes were never ended, and there is still room for others. */
START_TEST(takes_of_frames_that_the_ring_has_released_are_forgotten) {
  struct received received;
  open_without_pool();
  for (uint32_t i = 0; i <= RC_MAX_LEASES; i++) {
    ck_assert_int_eq(send_bytes(i, 100, 0), 0);
    next_frame(&received);
    begin(&received);
    ck_assert_int_eq(ringcast_reader_release(reader, &received.frame), 0);
  }
  ck_assert_int_eq(end(&received), -EINVAL); /* as the release of what is not held */
  close_all();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_misuse");
  TCase *tests = add_case(suite, "misuse");
  tcase_add_test(tests, a_frame_that_was_given_back_is_not_taken_for_what_lies_there_now);
  tcase_add_loop_test(tests, a_frame_that_is_being_read_is_not_given_back, 0, 2);
  tcase_add_test(tests, a_frame_has_one_take_at_a_time);
  tcase_add_test(tests, a_take_that_was_ended_does_not_end_another);
  tcase_add_test(tests, takes_of_frames_that_the_ring_has_released_are_forgotten);
  return run_suite(suite);
}
