/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the threads of a reader of device tensors do at once: others give tensors back while it closes, it closes while
 * its streams wait, the writer dies between the two halves of a begin. And readers that attach while the writer sends
 * as fast as it can: a frame is either not for them, which only the first can be, or right. For ThreadSanitizer too,
 * and with the named points.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "gpu/reader.h"
#include "gpu/writer.h"
#include "gpu/point.h"
#include "tests/support/gpu_peers.h"
#include "tests/support/suite.h"

enum {
  SLOTS = 16,
  HELD = 8,
  TIMES = 20,
  ATTACHES = 40,
  OF_EACH = 24 /* as the ring has earlier ones */
};

static struct world {
  char handle[128];
  _Atomic int attached, opened, take_noted, released, stop;
} * world;

static _Atomic bool stands_between; /* this process's begin waits between T1 and T2 */

/* The watcher stands between X0 and X1 until the reader's own thread has asked, or waits for it. */
static _Atomic bool stands_in_death;
static _Atomic int seen, checked;

static void stand_in_death(void) {
  const struct timespec pause = {.tv_nsec = 100000};
  if (!atomic_exchange(&stands_in_death, false)) return;
  atomic_store(&seen, 1);
  for (int look = 0; look < 2000 && !atomic_load(&checked); look++) nanosleep(&pause, NULL);
}

void rc_test_point(unsigned point) {
  if (point == RC_POINT_DEATH_SEEN) stand_in_death();
  if (point == RC_POINT_WAITS_RELEASED && world) atomic_store(&world->released, 1);
  if (!atomic_load(&stands_between)) return;
  if (point != RC_POINT_TAKE_NOTED) return;
  atomic_store(&world->take_noted, 1);
  await_count(&world->released, 1);
}

static void make_world(void) {
  world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(world, MAP_FAILED);
}

/* ---- In one process ---------------------------------------------------------------------------------------------- */

static struct both {
  struct own_device own, theirs;
  ringcast_writer *writer;
  ringcast_reader *reader;
  ringcast_gpu_writer *gpu_writer;
  ringcast_gpu_reader *gpu_reader;
  ringcast_gpu_hold *holds[HELD];
  char handle[128];
  pthread_barrier_t start;
} both;

static void open_both(void) {
  struct received received;
  both.gpu_writer = open_peer_writer(both.handle, 2, SLOTS, &both.own, &both.writer);
  attach_peer(both.handle, &both.theirs, &both.reader, &both.gpu_reader);
  send_must(both.gpu_writer, &both.own, 0);
  child_must(receive_frame(both.gpu_reader, &both.theirs, 0, &received) == 0 && received.whole);
}

static void close_writer(int files) {
  ringcast_gpu_writer_close(both.gpu_writer);
  ringcast_writer_close(both.writer);
  own_device_close(&both.theirs);
  own_device_close(&both.own);
  await_nothing_left(files);
}

/* One frame of the pool, of which the first tensor is held. */
static ringcast_gpu_hold *hold_one(uint64_t number) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader opened;
  struct ringcast_item item;
  struct ringcast_gpu_take take;
  ringcast_device_ptr where;
  ringcast_gpu_hold *hold;
  send_must(both.gpu_writer, &both.own, number);
  child_must(ringcast_gpu_next(both.gpu_reader, 0, &frame) == 0);
  child_must(ringcast_frame_open(&opened, frame.data, frame.bytes) == 0);
  child_must(ringcast_frame_item(&opened, 1, &item) == 0);
  child_must(ringcast_gpu_begin(both.gpu_reader, &frame, both.theirs.stream, &take) == 0);
  child_must(ringcast_gpu_map(both.gpu_reader, &take, &item, &where, &hold) == 0);
  child_must(ringcast_gpu_end(both.gpu_reader, &take) == 0);
  return hold;
}

static void *give_back(void *context) {
  int from = *(int *)context;
  pthread_barrier_wait(&both.start);
  for (int i = from; i < HELD; i += 2) ringcast_gpu_unmap(both.holds[i]);
  return NULL;
}

static void *close_reader(void *context) {
  (void)context;
  pthread_barrier_wait(&both.start);
  ringcast_gpu_reader_close(both.gpu_reader);
  ringcast_reader_close(both.reader);
  return NULL;
}

START_TEST(tensors_are_given_back_while_the_reader_closes) {
  static int from[2] = {0, 1};
  pthread_t threads[3];
  for (int time = 0; time < TIMES; time++) {
    int files = begin_peer("writer and reader");
    open_both();
    for (int i = 0; i < HELD; i++) both.holds[i] = hold_one((uint64_t)i + 1);
    pthread_barrier_init(&both.start, NULL, 3);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, give_back, &from[i]);
    pthread_create(&threads[2], NULL, close_reader, NULL);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&both.start);
    close_writer(files);
  }
}
END_TEST

/* A kernel on the writer's stream, that ends when the word is stored, which is in device memory. */
static _Atomic uint32_t *hold_up_the_writer(void) {
  rc_cu_module module;
  rc_cu_function spin;
  rc_cu_ptr word = both.own.memory + OWN_BYTES - 64;
  uint64_t turns = UINT64_MAX;
  void *arguments[] = {&word, &turns};
  _Atomic uint32_t *host = fake_cuda()->host(word);
  atomic_store(host, 0);
  child_must(cuda_more()->module_load_data(&module, "spin") == RC_CU_SUCCESS);
  child_must(cuda_more()->module_get_function(&spin, module, "spin") == RC_CU_SUCCESS);
  child_must(cuda_more()->launch_kernel(spin, 1, 1, 1, 1, 1, 1, 0, both.own.stream, arguments, NULL) == 0);
  return host;
}

START_TEST(a_reader_closes_while_its_stream_waits) {
  pthread_t thread;
  int files = begin_peer("writer and reader");
  open_both();
  _Atomic uint32_t *host = hold_up_the_writer();
  ringcast_gpu_unmap(hold_one(1));
  ck_assert_int_eq(both.own.cuda->stream_query(both.theirs.stream), RC_CU_NOT_READY);
  pthread_barrier_init(&both.start, NULL, 2);
  pthread_create(&thread, NULL, close_reader, NULL);
  pthread_barrier_wait(&both.start);
  if (_i == 0) atomic_store(host, 1);
  pthread_join(thread, NULL); /* with the stream still waiting, it has given up waiting for that */
  atomic_store(host, 1);
  pthread_barrier_destroy(&both.start);
  close_writer(files);
}
END_TEST

/* What another reader does that has found the writer dead first; it need not be so. */
static void release_as_another(struct rc_import *import, uint32_t slot) {
  const struct rc_gpu_segment *segment = &import->segment;
  struct rc_semaphore *ready = rc_gpu_ready(segment, slot);
  rc_store_release(&rc_gpu_control(segment)->dead, 1);
  rc_semaphore_store(ready, rc_semaphore_released(import->taken[slot].generation));
}

static void *see_the_death(void *import) {
  rc_import_mark_dead(import);
  return NULL;
}

/* The watcher has seen the death, but not yet what the reader has missed by it. */
START_TEST(what_another_reader_has_released_is_missing_at_once) {
  int files = begin_peer("writer and reader");
  open_both();
  struct rc_import *import = both.gpu_reader->import;
  pthread_t watcher;
  _Atomic uint32_t *host = hold_up_the_writer();
  ringcast_gpu_unmap(hold_one(1));
  uint32_t slot = 0;
  while (import->taken[slot].generation == 0) slot++;
  atomic_store(&stands_in_death, true);
  release_as_another(import, slot);
  ck_assert_int_eq(pthread_create(&watcher, NULL, see_the_death, import), 0);
  await_count(&seen, 1);
  ck_assert_int_eq(both.own.cuda->stream_synchronize(both.theirs.stream), 0);
  ck_assert_int_eq(ringcast_gpu_check(both.gpu_reader), -EPIPE);
  atomic_store(&checked, 1);
  atomic_store(host, 1);
  pthread_join(watcher, NULL);
  ringcast_gpu_reader_close(both.gpu_reader);
  ringcast_reader_close(both.reader);
  close_writer(files);
}
END_TEST

/* ---- Two processes ---------------------------------------------------------------------------------------------*/

static void be_a_writer_to_be_killed(void *context) {
  (void)context;
  struct own_device own;
  ringcast_writer *writer;
  begin_peer("writer");
  ringcast_gpu_writer *gpu = open_peer_writer(world->handle, 2, SLOTS, &own, &writer);
  atomic_store(&world->opened, 1);
  await_count(&world->attached, 1);
  send_must(gpu, &own, 0);
  await_way(gpu, RINGCAST_GPU_WAY_POOL);
  spin_for_ever(&own);
  send_must(gpu, &own, 1);
  await_count(&world->take_noted, 1);
  raise(SIGKILL);
}

START_TEST(a_wait_that_is_enqueued_after_the_release_ends) {
  struct own_device own;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  struct received received;
  int status;
  make_world();
  pid_t writer = start_child(be_a_writer_to_be_killed, NULL);
  int files = begin_peer("reader");
  await_count(&world->opened, 1);
  attach_peer(world->handle, &own, &reader, &gpu);
  atomic_store(&world->attached, 1);
  ck_assert_int_eq(receive_frame(gpu, &own, RINGCAST_FOREVER, &received), 0);
  ck_assert(received.whole);
  atomic_store(&stands_between, true);
  ck_assert_int_eq(receive_frame(gpu, &own, RINGCAST_FOREVER, &received), 0);
  ck_assert_int_eq(received.failed, -EPIPE);
  atomic_store(&stands_between, false);
  ck_assert_int_eq(waitpid(writer, &status, 0), writer);
  ck_assert(WIFSIGNALED(status));
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
  own_device_close(&own);
  await_nothing_left(files);
}
END_TEST

static void be_a_writer_in_haste(void *context) {
  (void)context;
  struct own_device own;
  ringcast_writer *writer;
  begin_peer("writer");
  ringcast_gpu_writer *gpu = open_peer_writer(world->handle, 2, SLOTS, &own, &writer);
  atomic_store(&world->opened, 1);
  for (uint64_t number = 0; !atomic_load(&world->stop); number++) send_must(gpu, &own, number);
  ringcast_gpu_writer_close(gpu);
  ringcast_writer_close(writer);
  own_device_close(&own);
}

START_TEST(a_frame_is_right_or_not_for_who_attaches) {
  struct own_device own;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  struct received received;
  int by_pool = 0, passed_over = 0;
  make_world();
  pid_t writer = start_child(be_a_writer_in_haste, NULL);
  begin_peer("reader");
  await_count(&world->opened, 1);
  for (int i = 0; i < ATTACHES; i++) {
    bool first = true;
    attach_peer(world->handle, &own, &reader, &gpu);
    for (int n = 0; n < OF_EACH; n++) {
      ck_assert_int_eq(receive_frame(gpu, &own, RINGCAST_FOREVER, &received), 0);
      ck_assert_msg(received.whole || (first && received.failed == -ECONNABORTED), "frame %d of attach %d: %d", n, i,
                    received.failed);
      passed_over += !received.whole;
      by_pool += received.whole && received.by_pool;
      first = false;
    }
    ringcast_gpu_reader_close(gpu);
    ringcast_reader_close(reader);
    own_device_close(&own);
  }
  ck_assert_int_gt(by_pool, 0);
  fprintf(stderr, "of %d frames %d came by the pool, and %d were not for their reader\n", ATTACHES * OF_EACH, by_pool,
          passed_over);
  atomic_store(&world->stop, 1);
  child_must_succeed(writer);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_threads");
  TCase *tests = add_case(suite, "threads");
  tcase_add_test(tests, tensors_are_given_back_while_the_reader_closes);
  tcase_add_loop_test(tests, a_reader_closes_while_its_stream_waits, 0, 2);
  tcase_add_test(tests, what_another_reader_has_released_is_missing_at_once);
  tests = add_case(suite, "processes");
  tcase_add_test(tests, a_wait_that_is_enqueued_after_the_release_ends);
  tcase_add_test(tests, a_frame_is_right_or_not_for_who_attaches);
  return run_gpu_suite(suite, "test_gpu_threads");
}
