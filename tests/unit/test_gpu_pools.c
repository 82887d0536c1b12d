/* SPDX-License-Identifier: Apache-2.0 */
/* Pools that come and go: several at once, one after the other, and one that outlives its writer. */
#include "tests/support/gpu_talk.h"

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
  rc_exported_tidy(rc_gpu_close_ns);
  ck_assert_int_eq(fake_cuda()->live("allocations"), allocations);
  close_reader();
  ck_comes((rc_exported_tidy(rc_gpu_close_ns), fake_cuda()->live("allocations") == allocations - 1));
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

enum { POOLS = 4 };

static void read_pools(void *unused) {
  (void)unused;
  attach_by_told_handle();
  for (int i = 0; i < POOLS; i++) {
    hear(talk.go[0]);
    child_must(receive_bytes(i) == RINGCAST_PLACEMENT_INLINE);
    say(talk.told[1]);
    hear(talk.go[0]);
    child_must(receive_bytes(i * 10) == RINGCAST_PLACEMENT_POOL);
    child_must(fake_cuda()->calls("cuIpcOpenMemHandle") == i + 1 && reader_info().opens == (uint64_t)i + 1);
    say(talk.told[1]);
  }
  close_reader();
  close_device();
}

START_TEST(the_same_handle_of_a_later_pool_is_opened_anew) {
  struct ringcast_gpu_writer_options options = gpu_options();
  rc_cu_ipc_handle handles[POOLS];
  int same = 0;
  setenv("FAKE_CUDA_SAME_HANDLE", "1", 1);
  pid_t child = start_reader(read_pools);
  open_writer(&options);
  tell_handle();
  for (int i = 0; i < POOLS; i++) {
    if (i > 0) { /* the one before the last is free by now, and its handle */
      ringcast_gpu_writer_close(gpu_writer);
      ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
    }
    handles[i] = rc_gpu_control(&gpu_writer->exported->segment)->id.handle;
    for (int j = 0; j < i; j++) same += memcmp(&handles[i], &handles[j], sizeof *handles) == 0;
    ck_assert_int_eq(send_bytes(i, 300, 0), 0);
    say(talk.go[1]);
    hear(talk.told[0]);
    ck_assert_int_eq(send_bytes(i * 10, 300, RINGCAST_GPU_NO_INLINE), 0);
    say(talk.go[1]);
    hear(talk.told[0]);
  }
  ck_assert_int_gt(same, 0);
  child_must_succeed(child);
  close_writer();
  close_device();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_pools");
  TCase *tests = add_case(suite, "pools");
  tcase_add_test(tests, two_writers_have_pools_of_their_own);
  tcase_add_test(tests, the_pool_stays_until_its_last_reader_has_closed);
  tcase_add_test(tests, a_later_pool_of_the_ring_has_another_epoch);
  tcase_add_test(tests, the_same_handle_of_a_later_pool_is_opened_anew);
  return run_gpu_suite(suite, "test_gpu_pools");
}
