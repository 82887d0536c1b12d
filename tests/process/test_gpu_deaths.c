/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A writer, or its device, that goes while readers' streams wait for it: they are released, by whichever reader finds
 * it out first, and each says that what it has is nothing. And readers that go, or stand still, while the writer waits
 * for nobody.
 */
#include <sys/mman.h>

#include "tests/support/gpu_peers.h"
#include "tests/support/suite.h"

enum {
  READERS = 2,
  TIMES = 12,
  MOST_FRAMES = 1024,
  AROUND = 400 /* frames of the pool: more than the ring has room for */
};
enum how { KILLED, DEVICE_FAILS, DEVICE_FAILS_AND_CLOSES, HOWS };

static struct world {
  char handle[128];
  _Atomic int opened, waiting, released, done, holding, gone, received;
  _Atomic bool by_pool[MOST_FRAMES];
} * world;

static struct {
  enum how how;
  bool late; /* the second reader begins only when the first one's stream was released */
  int reader;
  struct gate ready, sent;
} run;

/* ---- The writer goes --------------------------------------------------------------------------------------------- */

static void be_a_writer_that_goes(void *context) {
  (void)context;
  struct own_device own;
  ringcast_writer *writer;
  struct ringcast_gpu_info info;
  begin_peer("writer");
  ringcast_gpu_writer *gpu = open_peer_writer(world->handle, READERS, 4, &own, &writer);
  for (int i = 0; i < READERS; i++) gate_open(&run.ready);
  await_count(&world->opened, READERS); /* attached; they have not opened the pool */
  send_must(gpu, &own, 0);
  await_way(gpu, RINGCAST_GPU_WAY_POOL);
  send_must(gpu, &own, 1);
  spin_for_ever(&own);
  send_must(gpu, &own, 2);
  await_count(&world->waiting, READERS);
  if (run.how == KILLED) raise(SIGKILL);
  fake_cuda()->break_context(own.context);
  if (run.how == DEVICE_FAILS) {
    int rc = send_frame(gpu, &own, 3, 0);
    child_must(rc == -EPIPE || rc == -EIO);
    child_must(way_of(gpu, &info) == RINGCAST_GPU_WAY_LOST && strstr(info.why, "device"));
    await_count(&world->done, READERS);
  }
  ringcast_gpu_writer_close(gpu);
  if (run.how == DEVICE_FAILS_AND_CLOSES) await_count(&world->done, READERS);
  ringcast_writer_close(writer);
}

static void be_a_reader_that_waits(void *context) {
  int number = *(int *)context;
  struct own_device own;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  struct ringcast_frame frame;
  struct ringcast_frame_reader opened;
  struct ringcast_item item;
  struct ringcast_gpu_take take;
  struct received received;
  int files = begin_peer("reader");
  gate_wait(&run.ready);
  attach_peer(world->handle, &own, &reader, &gpu);
  atomic_fetch_add(&world->opened, 1);
  struct ringcast_gpu_info info = {.size = sizeof info};
  for (uint64_t i = 0; i < 2; i++) {
    child_must(receive_frame(gpu, &own, RINGCAST_FOREVER, &received) == 0);
    child_must(received.whole && received.number == i && received.by_pool == (i == 1));
  }
  child_must(ringcast_gpu_reader_info(gpu, &info) == 0);
  child_must(ringcast_gpu_next(gpu, RINGCAST_FOREVER, &frame) == 0);
  child_must(ringcast_frame_open(&opened, frame.data, frame.bytes) == 0);
  child_must(ringcast_frame_item(&opened, 1, &item) == 0 && item.placement == RINGCAST_PLACEMENT_POOL);
  bool is_late = run.late && number == 1;
  if (is_late) {
    atomic_fetch_add(&world->waiting, 1);
    await_count(&world->released, 1);
  }
  int rc = ringcast_gpu_begin(gpu, &frame, own.stream, &take);
  if (rc == 0) {
    child_must(ringcast_gpu_copy_out(gpu, &take, &item, own.memory) == 0);
    child_must(ringcast_gpu_end(gpu, &take) == 0);
    if (!is_late) atomic_fetch_add(&world->waiting, 1);
    child_must(own.cuda->stream_synchronize(own.stream) == RC_CU_SUCCESS);
    child_must(ringcast_gpu_check(gpu) == -EPIPE);
  } else {
    child_must(is_late && rc == -EPIPE);
    child_must(ringcast_gpu_release(gpu, &frame) == 0);
  }
  must_say_why(-1);
  atomic_fetch_add(&world->released, 1);
  child_must(ringcast_gpu_reader_info(gpu, &info) == 0 && (rc != 0 || info.way == RINGCAST_GPU_WAY_LOST));
  atomic_fetch_add(&world->done, 1);
  child_must(ringcast_gpu_next(gpu, RINGCAST_FOREVER, &frame) == -EPIPE);
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
  own_device_close(&own);
  await_nothing_left(files);
}

static void make_world(void) {
  world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(world, MAP_FAILED);
  run.ready = gate_make();
  run.sent = gate_make();
}

static void free_world(void) {
  munmap(world, sizeof *world);
  gate_free(&run.ready);
  gate_free(&run.sent);
}

START_TEST(waiting_streams_are_released_and_say_so) {
  int numbers[READERS] = {0, 1}, status;
  run.how = (enum how)(_i / 2);
  run.late = _i % 2;
  for (int time = 0; time < (run.how == KILLED ? TIMES : 3); time++) {
    make_world();
    pid_t writer = start_child(be_a_writer_that_goes, NULL), readers[READERS];
    for (int i = 0; i < READERS; i++) readers[i] = start_child(be_a_reader_that_waits, &numbers[i]);
    for (int i = 0; i < READERS; i++) child_must_succeed(readers[i]);
    ck_assert_int_eq(waitpid(writer, &status, 0), writer);
    ck_assert_int_eq(status, run.how == KILLED ? SIGKILL : 0);
    free_world();
  }
}
END_TEST

/* ---- One writer after the other --------------------------------------------------------------------------------- */

enum { LIVES = 3 };

/* One that is killed, or leaves its pool and makes another first: the reader has an import of each. */
static void be_one_of_several_writers(void *context) {
  int life = *(int *)context;
  struct own_device own;
  ringcast_writer *writer;
  begin_peer("writer");
  ringcast_gpu_writer *gpu = open_peer_writer(world->handle, READERS, 4, &own, &writer);
  atomic_store(&world->opened, life + 1);
  await_count(&world->holding, life + 1); /* attached */
  for (int pools = 0; pools < 2; pools++) {
    send_must(gpu, &own, 0);
    await_way(gpu, RINGCAST_GPU_WAY_POOL);
    if (pools == 1) spin_for_ever(&own);
    send_must(gpu, &own, 1);
    if (pools == 1) break;
    await_count(&world->received, 2 * life + 1);
    const struct ringcast_gpu_writer_options options = {
        .size = sizeof options, .device = 0, .pool_bytes = 2 << 20, .slots = 4};
    ringcast_gpu_writer_close(gpu);
    child_must(ringcast_gpu_writer_open(writer, &options, &gpu) == 0);
  }
  await_count(&world->waiting, life + 1);
  raise(SIGKILL);
}

/* In one process, with one context: its stream waits for each of them when that dies. */
static void outlive(struct own_device *own, int life) {
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  struct ringcast_frame frame;
  struct ringcast_gpu_take take;
  struct received received;
  await_count(&world->opened, life + 1);
  child_must(ringcast_reader_attach(world->handle, &reader) == 0);
  child_must(ringcast_gpu_reader_open(reader, NULL, &gpu) == 0);
  atomic_store(&world->holding, life + 1);
  for (int i = 0; i < 3; i++) { /* INLINE, POOL; INLINE, and the last one below */
    child_must(receive_frame(gpu, own, RINGCAST_FOREVER, &received) == 0);
    child_must(received.whole && received.by_pool == (i == 1));
    if (i == 1) atomic_store(&world->received, 2 * life + 1);
  }
  child_must(ringcast_gpu_next(gpu, RINGCAST_FOREVER, &frame) == 0);
  child_must(ringcast_gpu_begin(gpu, &frame, own->stream, &take) == 0);
  child_must(ringcast_gpu_end(gpu, &take) == 0);
  child_must(own->cuda->stream_query(own->stream) == RC_CU_NOT_READY);
  atomic_store(&world->waiting, life + 1);
  child_must(own->cuda->stream_synchronize(own->stream) == RC_CU_SUCCESS);
  child_must(ringcast_gpu_check(gpu) == -EPIPE);
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
}

static void be_a_reader_of_several(void *context) {
  (void)context;
  struct own_device own;
  int files = begin_peer("reader");
  child_must(own_device_open(&own));
  for (int life = 0; life < LIVES; life++) outlive(&own, life);
  own_device_close(&own);
  await_nothing_left(files);
}

START_TEST(each_death_is_seen_and_not_the_first_alone) {
  int status;
  make_world();
  pid_t reader = start_child(be_a_reader_of_several, NULL);
  for (int life = 0; life < LIVES; life++) {
    pid_t writer = start_child(be_one_of_several_writers, &life);
    ck_assert_int_eq(waitpid(writer, &status, 0), writer);
    ck_assert_int_eq(status, SIGKILL);
  }
  child_must_succeed(reader);
  free_world();
}
END_TEST

/* ---- A reader goes, or stands still ------------------------------------------------------------------------------ */

enum { SLOTS = 4, HELD = 1 };
enum fate { DIES, STOPS, FATES };
static enum fate fate;

/* By whatever way; the readers know which. */
static void send_known(ringcast_gpu_writer *gpu, struct own_device *own, uint64_t number) {
  struct ringcast_gpu_info before, after;
  way_of(gpu, &before);
  send_must(gpu, own, number);
  way_of(gpu, &after);
  atomic_store(&world->by_pool[number], after.pool_frames > before.pool_frames);
  atomic_store(&world->waiting, (int)number + 1);
}

static void be_a_writer_that_goes_on(void *context) {
  (void)context;
  struct own_device own;
  ringcast_writer *writer;
  struct ringcast_gpu_info info;
  uint64_t number = 0;
  int files = begin_peer("writer");
  ringcast_gpu_writer *gpu = open_peer_writer(world->handle, READERS, SLOTS, &own, &writer);
  for (int i = 0; i < READERS + 1; i++) gate_open(&run.ready);
  await_count(&world->opened, 2);
  send_known(gpu, &own, number++);
  await_way(gpu, RINGCAST_GPU_WAY_POOL);
  send_known(gpu, &own, number++);
  child_must(atomic_load(&world->by_pool[HELD]));
  await_count(&world->holding, 1);
  while (number < HELD + SLOTS + 2) send_known(gpu, &own, number++);
  child_must(!atomic_load(&world->by_pool[number - 1])); /* the pool is full, and nobody waits */
  child_must(way_of(gpu, &info) == RINGCAST_GPU_WAY_POOL && info.full > 0 && info.slots_used == SLOTS);
  atomic_store(&world->released, 1); /* A is to go */
  await_count(&world->gone, 1);
  while (way_of(gpu, &info) != RINGCAST_GPU_WAY_POOL || info.slots_used > 0) sched_yield();
  send_known(gpu, &own, number++);
  child_must(atomic_load(&world->by_pool[number - 1]));
  if (fate == DIES) {
    for (int i = 0; i < AROUND; i++) send_known(gpu, &own, number++); /* until its slot in the ring is free */
    atomic_store(&world->done, 1);
    await_count(&world->opened, 3);
    child_must(way_of(gpu, &info) == RINGCAST_GPU_WAY_WAITING && info.reader == 0 && strstr(info.why, "not opened"));
    send_known(gpu, &own, number++);
    await_way(gpu, RINGCAST_GPU_WAY_POOL);
    send_known(gpu, &own, number++);
    child_must(atomic_load(&world->by_pool[number - 1]));
  }
  ringcast_gpu_writer_close(gpu);
  ringcast_writer_close(writer);
  own_device_close(&own);
  await_nothing_left(files);
}

/* All that comes, to the end. */
static void read_to_the_end(ringcast_gpu_reader *gpu, struct own_device *own) {
  struct received received;
  int rc;
  while ((rc = receive_frame(gpu, own, RINGCAST_FOREVER, &received)) == 0) {
    child_must(received.whole);
    await_count(&world->waiting, (int)received.number + 1);
    child_must(received.by_pool == atomic_load(&world->by_pool[received.number]));
  }
  child_must(rc == -EPIPE);
}

static void be_a_reader_to_the_end(void *context) {
  (void)context;
  struct own_device own;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  int files = begin_peer("reader");
  gate_wait(&run.ready);
  attach_peer(world->handle, &own, &reader, &gpu);
  atomic_fetch_add(&world->opened, 1);
  read_to_the_end(gpu, &own);
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
  own_device_close(&own);
  await_nothing_left(files);
}

/* It looks at a frame where it lies, and at nothing else. */
static void be_a_reader_that_holds(void *context) {
  (void)context;
  struct own_device own;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  struct received received;
  struct ringcast_frame frame;
  struct ringcast_frame_reader opened;
  struct ringcast_item item;
  struct ringcast_gpu_take take;
  ringcast_device_ptr where;
  ringcast_gpu_hold *hold;
  int files = begin_peer("reader that holds");
  gate_wait(&run.ready);
  attach_peer(world->handle, &own, &reader, &gpu);
  atomic_fetch_add(&world->opened, 1);
  child_must(receive_frame(gpu, &own, RINGCAST_FOREVER, &received) == 0 && received.whole);
  child_must(ringcast_gpu_next(gpu, RINGCAST_FOREVER, &frame) == 0);
  child_must(ringcast_frame_open(&opened, frame.data, frame.bytes) == 0);
  child_must(ringcast_frame_item(&opened, 1, &item) == 0);
  child_must(ringcast_gpu_begin(gpu, &frame, own.stream, &take) == 0);
  child_must(ringcast_gpu_map(gpu, &take, &item, &where, &hold) == 0);
  child_must(ringcast_gpu_end(gpu, &take) == 0);
  atomic_store(&world->holding, 1);
  await_count(&world->released, 1);
  if (fate == DIES) raise(SIGKILL);
  raise(SIGSTOP);
  static uint8_t found[PLAIN_BYTES];
  child_must(own.cuda->copy_dtoh(found, where, sizeof found, own.stream) == RC_CU_SUCCESS);
  child_must(own.cuda->stream_synchronize(own.stream) == RC_CU_SUCCESS);
  child_must(pattern_matches(found, sizeof found, 4 * HELD));
  ringcast_gpu_unmap(hold);
  atomic_store(&world->gone, 1);
  read_to_the_end(gpu, &own);
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
  own_device_close(&own);
  await_nothing_left(files);
}

START_TEST(the_writer_goes_on_without_a_reader) {
  int status;
  make_world();
  fate = (enum fate)_i;
  pid_t writer = start_child(be_a_writer_that_goes_on, NULL);
  pid_t holds = start_child(be_a_reader_that_holds, NULL);
  while (atomic_load(&world->opened) < 1) sched_yield(); /* its place is the first */
  pid_t other = start_child(be_a_reader_to_the_end, NULL);
  ck_assert_int_eq(waitpid(holds, &status, WUNTRACED), holds);
  if (fate == STOPS) {
    ck_assert(WIFSTOPPED(status));
    ck_assert_int_eq(kill(holds, SIGCONT), 0);
  } else {
    ck_assert(WIFSIGNALED(status));
    atomic_store(&world->gone, 1);
    while (!atomic_load(&world->done)) sched_yield();
    child_must_succeed(start_child(be_a_reader_to_the_end, NULL));
  }
  if (fate == STOPS) child_must_succeed(holds);
  child_must_succeed(other);
  child_must_succeed(writer);
  free_world();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_deaths");
  TCase *tests = add_case(suite, "the writer goes");
  tcase_add_loop_test(tests, waiting_streams_are_released_and_say_so, 0, 2 * HOWS);
  tcase_add_test(tests, each_death_is_seen_and_not_the_first_alone);
  tests = add_case(suite, "a reader goes");
  tcase_add_loop_test(tests, the_writer_goes_on_without_a_reader, 0, FATES);
  return run_gpu_suite(suite, "test_gpu_deaths");
}
