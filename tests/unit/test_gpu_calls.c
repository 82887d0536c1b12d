/* SPDX-License-Identifier: Apache-2.0 */
/* How many calls of the driver a frame takes on each side, once the pool is open. */
#include "tests/support/gpu_channel.h"

enum { MOST = 5 };

static int send_tensors(uint32_t count) {
  static int64_t shape[1] = {1000};
  struct ringcast_gpu_item items[MOST];
  for (uint32_t i = 0; i < count; i++)
    items[i] = (struct ringcast_gpu_item){
        .key = "abcde" + i, .key_bytes = 1, .tensor = bytes_on_device(source + 1024 * i, shape), .on_device = 1};
  return ringcast_gpu_send(gpu_writer, items, count, 0, RINGCAST_GPU_NO_INLINE, stream, 0);
}

static void receive_tensors(void) {
  struct received received;
  next_frame(&received);
  begin(&received);
  for (uint32_t i = 0; i < received.opened.count; i++) {
    ck_assert_int_eq(ringcast_frame_item(&received.opened, i, &received.item), 0);
    ck_assert_int_eq(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target + 1024 * i), 0);
  }
  ck_assert_int_eq(ringcast_gpu_end(gpu_reader, &received.take), 0);
}

/* `is_late`: the reader sees that the tensors are there. */
static void expect_calls(uint32_t count, bool is_late, long sent, long received) {
  if (!is_late) hold_up();
  long before = fake_cuda()->calls("*");
  ck_assert_int_eq(send_tensors(count), 0);
  ck_assert_int_le(fake_cuda()->calls("*") - before, sent);
  if (is_late) ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
  before = fake_cuda()->calls("*");
  receive_tensors();
  ck_assert_int_le(fake_cuda()->calls("*") - before, received);
  if (!is_late) let_go();
  ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
}

START_TEST(a_frame_takes_few_calls_of_the_driver) {
  open_pair(NULL);
  ck_assert_int_eq(ringcast_gpu_reader_prepare(gpu_reader), 0);
  expect_calls(1, true, 4, 8);
  expect_calls(1, false, 4, 9);
  expect_calls(MOST, true, 4 + MOST - 1, 8 + 3 * (MOST - 1));
  close_pair();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_calls");
  TCase *tests = add_case(suite, "calls of the driver");
  tcase_add_test(tests, a_frame_takes_few_calls_of_the_driver);
  return run_gpu_suite(suite, "test_gpu_calls");
}
