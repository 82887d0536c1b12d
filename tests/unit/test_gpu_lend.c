/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the caller's that is lent, read where it lies, and taken back. */
#include "tests/support/gpu_talk.h"

static bool fails_for_all; /* of a reader: also its context can't be made current any more */

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

/* Reads frames of lent memory, in a process of its own: a handle is opened by others only. */
static void read_lent(void *unused) {
  struct received received;
  static uint8_t host[1000];
  (void)unused;
  attach_by_told_handle();
  for (int i = 0; i < 4; i++) {
    child_next_frame(&received);
    if (i == 2) hear(talk.go[0]);
    child_must(ringcast_gpu_begin(gpu_reader, &received.frame, stream, &received.take) == 0);
    child_must(received.item.placement == (i == 0 ? RINGCAST_PLACEMENT_INLINE : RINGCAST_PLACEMENT_EXTERN));
    child_must(ringcast_gpu_copy_to_host(gpu_reader, &received.take, &received.item, host) == 0);
    for (int k = 0; k < 1000; k++) child_must(host[k] == (uint8_t)(7 * (k + 50)));
    child_must(ringcast_gpu_end(gpu_reader, &received.take) == 0);
    say(talk.told[1]);
  }
  /* The pool; the memory, and once more when it was lent anew. */
  child_must(fake_cuda()->calls("cuIpcOpenMemHandle") == 3);
  hear(talk.go[0]);
  close_reader();
  close_device();
}

START_TEST(lent_memory_is_read_where_it_lies_and_taken_back) {
  struct ringcast_gpu_writer_options options = gpu_options();
  uint32_t lent, later;
  pid_t child = start_reader(read_lent);
  options.flags = RINGCAST_GPU_EXTERN;
  open_writer(&options);
  tell_handle();
  ck_assert_int_eq(send_bytes(50, 1000, 0), 0);
  hear(talk.told[0]);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, source, &lent), 0);
  ck_assert_int_eq(ringcast_gpu_lent_is_idle(gpu_writer, lent), 1);
  ck_assert_int_eq(send_lent(50, lent), 0);
  hear(talk.told[0]);
  ck_comes(ringcast_gpu_lent_is_idle(gpu_writer, lent) == 1);
  ck_assert_int_eq(send_lent(50, lent), 0); /* the child does not read it yet */
  ck_assert_int_eq(ringcast_gpu_lent_is_idle(gpu_writer, lent), 0);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent, 0), -EAGAIN);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent, 2000000), -ETIMEDOUT);
  ck_assert_int_eq(send_lent(50, lent), -EINVAL); /* it is being taken back */
  say(talk.go[1]);
  hear(talk.told[0]);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent, RINGCAST_FOREVER), 0);
  ck_assert_int_eq(send_lent(50, lent), -EINVAL);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, source, &later), 0);
  ck_assert_uint_ne(later, lent);
  ck_assert_int_eq(send_lent(50, later), 0);
  hear(talk.told[0]);
  say(talk.go[1]);
  child_must_succeed(child);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, later, RINGCAST_FOREVER), 0);
  close_writer();
  close_device();
}
END_TEST

/* ---- Who has died, and has forked -------------------------------------------------------------------------------- */

static struct gate orphans; /* which the test closes: they end */

static void read_two(void) {
  struct received received;
  static uint8_t host[1000];
  attach_by_told_handle();
  for (int i = 0; i < 2; i++) {
    child_next_frame(&received);
    child_must(ringcast_gpu_begin(gpu_reader, &received.frame, stream, &received.take) == 0);
    child_must(ringcast_gpu_copy_to_host(gpu_reader, &received.take, &received.item, host) == 0);
    child_must(ringcast_gpu_end(gpu_reader, &received.take) == 0);
    if (i == 0) say(talk.told[1]);
  }
}

/* The orphan has the device segment open as its parent had it. */
static void read_two_and_fork(void *unused) {
  char byte;
  (void)unused;
  read_two();
  if (fork() == 0) {
    close(orphans.ends[1]);
    _exit(read(orphans.ends[0], &byte, 1) != 0);
  }
  say(talk.told[1]);
  hear(talk.go[0]);
}

static void read_two_and_stay(void *unused) {
  (void)unused;
  close(orphans.ends[1]);
  read_two();
  say(talk.told[1]);
  hear(talk.go[0]);
  close_reader();
  close_device();
}

START_TEST(child_of_a_dead_reader_keeps_nothing_lent_when_another_has_its_slot) {
  struct ringcast_gpu_writer_options options = lending();
  struct ringcast_writer_options ring = {
      .size = sizeof ring, .capacity = 1 << 20, .readers = 1, .on_death = RINGCAST_EVICT};
  struct ringcast_peer peer = {.size = sizeof peer};
  uint32_t lent;
  orphans = gate_make();
  pid_t first = start_reader(read_two_and_fork);
  struct talk with_first = talk;
  pid_t second = start_reader(read_two_and_stay);
  struct talk with_second = talk;
  talk = with_first;
  open_device();
  remember();
  ck_assert_int_eq(ringcast_writer_create_ex(&ring, &writer), 0);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu_writer), 0);
  tell_handle();
  ck_assert_int_eq(send_bytes(50, 1000, 0), 0);
  hear(talk.told[0]);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, source, &lent), 0);
  ck_assert_int_eq(send_lent(50, lent), 0);
  hear(talk.told[0]);
  kill_child(first);
  while (ringcast_writer_check(writer, &peer) > 0) continue;
  talk = with_second;
  tell_handle();
  ck_assert_int_eq(send_bytes(50, 1000, 0), 0);
  hear(talk.told[0]);
  ck_assert_int_eq(send_bytes(50, 1000, RINGCAST_GPU_NO_INLINE), 0);
  hear(talk.told[0]);
  ck_assert_int_eq(writer_info().way, RINGCAST_GPU_WAY_POOL);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent, 0), 0);
  say(talk.go[1]);
  child_must_succeed(second);
  close(orphans.ends[1]);
  close_writer();
  close_device();
}
END_TEST

/* ---- Devices that fail while lent memory is read ----------------------------------------------------------------- */

/* Reads it behind something that never ends, and calls nothing more when its device has failed. */
static void read_lent_and_fail(void *unused) {
  struct received received;
  (void)unused;
  attach_by_told_handle();
  for (int i = 0; i < 2; i++) {
    child_next_frame(&received);
    if (i == 1) hold_up();
    child_must(ringcast_gpu_begin(gpu_reader, &received.frame, stream, &received.take) == 0);
    child_must(ringcast_gpu_copy_out(gpu_reader, &received.take, &received.item, target) == 0);
    child_must(ringcast_gpu_end(gpu_reader, &received.take) == 0);
    say(talk.told[1]);
  }
  hear(talk.go[0]);
  fake_cuda()->break_context(context);
  if (fails_for_all) call_fails("cuCtxPushCurrent", 0, 700);
  say(talk.told[1]);
  hear(talk.go[0]);
  no_call_fails();
  child_must(ringcast_gpu_check(gpu_reader) == -EPIPE);
  close_reader();
  abandon_device();
}

START_TEST(memory_lent_to_an_idle_reader_whose_device_fails_is_taken_back) {
  struct ringcast_gpu_writer_options options = gpu_options();
  uint32_t lent;
  fails_for_all = _i;
  pid_t child = start_reader(read_lent_and_fail);
  options.flags = RINGCAST_GPU_EXTERN;
  open_writer(&options);
  tell_handle();
  ck_assert_int_eq(send_bytes(50, 1000, 0), 0);
  hear(talk.told[0]);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, source, &lent), 0);
  ck_assert_int_eq(send_lent(50, lent), 0);
  hear(talk.told[0]);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent, 0), -EAGAIN); /* it is asked, and all is well */
  say(talk.go[1]);
  hear(talk.told[0]);
  if (_i == 0) ck_comes(ringcast_gpu_lent_is_idle(gpu_writer, lent) == 1);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent, RINGCAST_FOREVER), 0);
  say(talk.go[1]);
  child_must_succeed(child);
  close_writer();
  close_device();
}
END_TEST

START_TEST(nobody_waits_for_memory_that_was_lent_of_a_device_that_fails) {
  struct ringcast_gpu_writer_options options = lending();
  uint32_t lent;
  open_pair(&options);
  ck_assert_int_eq(ringcast_gpu_writer_lend(gpu_writer, source, &lent), 0);
  hold_up();
  ck_assert_int_eq(send_lent(50, lent), 0);
  fake_cuda()->break_context(context);
  ck_assert_int_eq(_i == 0 ? ringcast_gpu_writer_unlend(gpu_writer, lent, RINGCAST_FOREVER)
                           : ringcast_gpu_lent_is_idle(gpu_writer, lent),
                   -EPIPE);
  ck_assert_int_eq(ringcast_gpu_writer_unlend(gpu_writer, lent, RINGCAST_FOREVER), -EPIPE);
  close_reader();
  close_writer();
  abandon_device();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_lend");
  TCase *tests = add_case(suite, "lend");
  tcase_add_test(tests, memory_that_cannot_be_lent_is_refused);
  tcase_add_test(tests, an_allocation_is_lent_once_and_64_at_most);
  tcase_add_test(tests, lent_memory_is_read_where_it_lies_and_taken_back);
  tcase_add_test(tests, child_of_a_dead_reader_keeps_nothing_lent_when_another_has_its_slot);
  tcase_add_loop_test(tests, memory_lent_to_an_idle_reader_whose_device_fails_is_taken_back, 0, 2);
  tcase_add_loop_test(tests, nobody_waits_for_memory_that_was_lent_of_a_device_that_fails, 0, 2);
  return run_gpu_suite(suite, "test_gpu_lend");
}
