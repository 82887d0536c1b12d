/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools that can't be had, or that a reader can't open: the bytes come by the ring, and both sides say why. When the
 * reader has left, they come by the pool again. And a fork, whose child may touch nothing of it.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "tests/support/gpu_peers.h"
#include "tests/support/suite.h"

static struct world {
  char handle[128];
  _Atomic int attached, leaves, left, done;
} * world;

static struct gate ready;
static const struct refusal {
  const char *name, *value; /* in the reader's environment */
  const char *says;         /* to the writer */
  const char *own;          /* to itself */
} * refusal;

static void make_world(void) {
  world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(world, MAP_FAILED);
  ready = gate_make();
}

static void free_world(void) {
  munmap(world, sizeof *world);
  gate_free(&ready);
}

/* ---- A reader that can't ---------------------------------------------------------------------------------------- */

static const struct refusal refusals[] = {
    {"FAKE_CUDA_FAIL", "cuIpcOpenMemHandle:1:217", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "on GPU-66616b65, by GPU-66616b65: CUDA_ERROR_PEER_ACCESS"},
    {"FAKE_CUDA_FAIL", "cuIpcOpenMemHandle:1:205", "CUDA_ERROR_MAP_FAILED", "MAP_FAILED"},
    {"FAKE_CUDA_FAIL", "cuIpcOpenMemHandle:1:101", "CUDA_ERROR_INVALID_DEVICE", "INVALID_DEVICE"},
    {"FAKE_CUDA_FAIL", "cuIpcOpenMemHandle:1:201", "CUDA_ERROR_INVALID_CONTEXT", "INVALID_CONTEXT"},
    {"FAKE_CUDA_FAIL", "cuIpcOpenMemHandle:1:208", "CUDA_ERROR_ALREADY_MAPPED", "ALREADY_MAPPED"},
    {"FAKE_CUDA_FAIL", "cuIpcOpenMemHandle:1:711", "CUDA_ERROR_TOO_MANY_PEERS", "TOO_MANY_PEERS"},
    {"FAKE_CUDA_FAIL", "cuMemHostRegister:1:801", "CUDA_ERROR_NOT_SUPPORTED", "cuMemHostRegister"},
    {"FAKE_CUDA_FAIL", "cuMemcpyDtoHAsync:1:999", "CUDA_ERROR_UNKNOWN", "reading the writer's pool"},
    {"FAKE_CUDA_STUCK_WORDS", "1", "its streams are not woken by the host's store", "not woken"},
    {"RINGCAST_DISABLE", "cuda_pool", "not opened", "cuda_pool"},
    {"RINGCAST_DISABLE", "cuda_register", "not supported", "cuda_register"},
    {"FAKE_CUDA_WITHOUT", "cuStreamWaitValue64", "not supported", "words of host memory"},
};

static void be_a_writer_with_one_that_refuses(void *context) {
  (void)context;
  struct own_device own;
  ringcast_writer *writer;
  struct ringcast_gpu_info info;
  int files = begin_peer("writer");
  ringcast_gpu_writer *gpu = open_peer_writer(world->handle, 2, 4, &own, &writer);
  child_must(way_of(gpu, &info) == RINGCAST_GPU_WAY_NO_READER);
  gate_open(&ready);
  await_count(&world->attached, 1);
  child_must(way_of(gpu, &info) == RINGCAST_GPU_WAY_WAITING && info.reader == 0 && strstr(info.why, "not opened"));
  gate_open(&ready);
  await_count(&world->attached, 2);
  send_must(gpu, &own, 0);
  await_count(&world->done, 2);
  bool never_asks = strcmp(refusal->says, "not opened") == 0;
  child_must(way_of(gpu, &info) == (never_asks ? RINGCAST_GPU_WAY_WAITING : RINGCAST_GPU_WAY_REFUSED));
  if (info.reader != 0 || info.reader_pid <= 0 || !strstr(info.why, refusal->says))
    fprintf(stderr, "reader %u (%d): %s\n", info.reader, info.reader_pid, info.why);
  child_must(info.reader == 0 && info.reader_pid > 0 && strcasestr(info.why, refusal->says));
  send_must(gpu, &own, 1);
  child_must(way_of(gpu, &info) && info.pool_frames == 0 && info.inline_frames == 2);
  await_count(&world->done, 4);
  atomic_store(&world->leaves, 1);
  await_count(&world->left, 1);
  child_must(way_of(gpu, &info) == RINGCAST_GPU_WAY_POOL && *info.why == '\0');
  send_must(gpu, &own, 2);
  child_must(way_of(gpu, &info) && info.pool_frames == 1);
  ringcast_gpu_writer_close(gpu);
  ringcast_writer_close(writer);
  own_device_close(&own);
  await_nothing_left(files);
}

/* The first in its place refuses, and leaves when it is told to. */
static void be_a_reader_of(void *context) {
  bool refuses = *(bool *)context;
  struct own_device own;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  struct received received;
  struct ringcast_gpu_info info = {.size = sizeof info};
  int files = begin_peer(refuses ? "reader that refuses" : "reader");
  if (refuses) setenv(refusal->name, refusal->value, 1);
  gate_wait(&ready);
  attach_peer(world->handle, &own, &reader, &gpu);
  atomic_fetch_add(&world->attached, 1);
  for (uint64_t i = 0; i < (refuses ? 2 : 3); i++) {
    child_must(receive_frame(gpu, &own, RINGCAST_FOREVER, &received) == 0);
    child_must(received.whole && received.number == i && received.by_pool == (i == 2));
    atomic_fetch_add(&world->done, 1);
  }
  child_must(ringcast_gpu_reader_info(gpu, &info) == 0);
  child_must(info.way == (refuses ? RINGCAST_GPU_WAY_REFUSED : RINGCAST_GPU_WAY_POOL));
  if (refuses && !strstr(info.why, refusal->own)) fprintf(stderr, "itself: %s\n", info.why);
  child_must(refuses ? strstr(info.why, refusal->own) != NULL : *info.why == '\0');
  if (refuses) await_count(&world->leaves, 1);
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
  atomic_fetch_add(&world->left, 1);
  own_device_close(&own);
  if (!refuses || strcmp(refusal->name, "FAKE_CUDA_STUCK_WORDS") != 0) await_nothing_left(files);
}

START_TEST(a_reader_that_cannot_open_the_pool_keeps_the_group_inline) {
  static bool refuses[] = {true, false};
  refusal = &refusals[_i];
  make_world();
  pid_t writer = start_child(be_a_writer_with_one_that_refuses, NULL);
  pid_t one = start_child(be_a_reader_of, &refuses[0]);
  while (atomic_load(&world->attached) < 1) sched_yield();
  pid_t other = start_child(be_a_reader_of, &refuses[1]);
  child_must_succeed(one);
  child_must_succeed(other);
  child_must_succeed(writer);
  free_world();
}
END_TEST

/* ---- A writer that can't ---------------------------------------------------------------------------------------- */

static const struct lack {
  const char *name, *value;
  const char *function; /* whose next call fails */
  int result;
  const char *says;
} lacks[] = {
    {NULL, NULL, "cuMemAlloc", RC_CU_OUT_OF_MEMORY, "RINGCAST_GPU_POOL_BYTES"},
    {NULL, NULL, "cuIpcGetMemHandle", RC_CU_NOT_SUPPORTED, "cuIpcGetMemHandle"},
    {NULL, NULL, "cuMemHostRegister", RC_CU_NOT_PERMITTED, "cuMemHostRegister"},
    {NULL, NULL, "cuMemHostGetDevicePointer", 999, "cuMemHostGetDevicePointer"},
    {NULL, NULL, "cuMemcpyHtoDAsync", 999, "first copy"},
    {"FAKE_CUDA_STUCK_WORDS", "1", NULL, 0, "not woken"},
    {"FAKE_CUDA_WITHOUT", "cuStreamWaitValue64", NULL, 0, "no stream operations"},
    {"RINGCAST_DISABLE", "cuda_pool", NULL, 0, "cuda_pool"},
    {"RINGCAST_DISABLE", "cuda_register", NULL, 0, "cuda_register"},
    {"RINGCAST_GPU_POOL_BYTES", "0", NULL, 0, "RINGCAST_GPU_POOL_BYTES is 0: no device pool"},
};

static void be_a_plain_reader(void *context) {
  (void)context;
  struct own_device own;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu;
  struct received received;
  struct ringcast_gpu_info info = {.size = sizeof info};
  int files = begin_peer("reader");
  gate_wait(&ready);
  attach_peer(world->handle, &own, &reader, &gpu);
  atomic_fetch_add(&world->attached, 1);
  for (uint64_t i = 0; i < 2; i++) {
    child_must(receive_frame(gpu, &own, RINGCAST_FOREVER, &received) == 0);
    child_must(received.whole && received.number == i && !received.by_pool);
  }
  child_must(ringcast_gpu_reader_info(gpu, &info) == 0 && info.way == RINGCAST_GPU_WAY_NO_POOL);
  ringcast_gpu_reader_close(gpu);
  ringcast_reader_close(reader);
  own_device_close(&own);
  await_nothing_left(files);
}

START_TEST(a_writer_without_a_pool_says_why) {
  const struct lack *lack = &lacks[_i];
  const struct ringcast_gpu_writer_options options = {.size = sizeof options};
  struct own_device own;
  ringcast_writer *writer;
  ringcast_gpu_writer *gpu;
  struct ringcast_gpu_info info;
  ringcast_device_ptr where;
  struct ringcast_gpu_extent memory;
  make_world();
  pid_t reader = start_child(be_a_plain_reader, NULL);
  if (lack->name) setenv(lack->name, lack->value, 1);
  int files = begin_peer("writer");
  child_must(own_device_open(&own) && ringcast_writer_create(&writer) == 0);
  if (lack->function) fake_cuda()->fault(lack->function, 1, lack->result);
  ck_assert_int_eq(ringcast_gpu_writer_open(writer, &options, &gpu), 0);
  strcpy(world->handle, ringcast_writer_handle(writer));
  gate_open(&ready);
  await_count(&world->attached, 1);
  ck_assert_uint_eq(way_of(gpu, &info), RINGCAST_GPU_WAY_NO_POOL);
  ck_assert_msg(strstr(info.why, lack->says), "%s", info.why);
  ck_assert_int_eq(ringcast_gpu_allocate(gpu, 100, own.stream, &where, &memory), -EAGAIN);
  ck_assert_msg(strstr(ringcast_last_error(), lack->says), "%s", ringcast_last_error());
  for (uint64_t i = 0; i < 2; i++) send_must(gpu, &own, i);
  child_must_succeed(reader);
  ringcast_gpu_writer_close(gpu);
  ringcast_writer_close(writer);
  own_device_close(&own);
  if (!lack->name || strcmp(lack->name, "FAKE_CUDA_STUCK_WORDS") != 0) await_nothing_left(files);
  free_world();
}
END_TEST

/* ---- In one process ---------------------------------------------------------------------------------------------- */

START_TEST(a_reader_in_the_writers_process_reads_the_pool) {
  struct own_device own, theirs;
  ringcast_writer *writer;
  ringcast_reader *reader;
  ringcast_gpu_reader *gpu_reader;
  struct received received;
  struct ringcast_gpu_info info;
  char handle[128];
  int files = begin_peer("writer and reader");
  ringcast_gpu_writer *gpu = open_peer_writer(handle, 2, 4, &own, &writer);
  attach_peer(handle, &theirs, &reader, &gpu_reader);
  for (uint64_t i = 0; i < 20; i++) {
    send_must(gpu, &own, i);
    ck_assert_int_eq(receive_frame(gpu_reader, &theirs, 0, &received), 0);
    ck_assert(received.whole && received.number == i && received.by_pool == (i > 0));
  }
  ck_assert_int_eq((int)fake_cuda()->calls("cuIpcOpenMemHandle"), 0); /* it would give 201 */
  ck_assert_uint_eq(way_of(gpu, &info), RINGCAST_GPU_WAY_POOL);
  ringcast_gpu_writer_close(gpu); /* what the reader has open stays */
  ringcast_writer_close(writer);
  ck_assert_int_ge((int)fake_cuda()->live("allocations"), 3);
  ringcast_gpu_reader_close(gpu_reader);
  ringcast_reader_close(reader);
  own_device_close(&theirs);
  own_device_close(&own);
  await_nothing_left(files);
}
END_TEST

/* ---- A fork ------------------------------------------------------------------------------------------------------ */

static struct both {
  struct own_device own, theirs;
  ringcast_writer *writer;
  ringcast_reader *reader;
  ringcast_gpu_writer *gpu_writer;
  ringcast_gpu_reader *gpu_reader;
  struct ringcast_gpu_extent lease;
  struct ringcast_frame frame;
  struct ringcast_gpu_take take;
  struct ringcast_item item;
  ringcast_gpu_hold *hold;
} both;

static void be_a_forked_child(void *context) {
  (void)context;
  struct ringcast_gpu_info info = {.size = sizeof info};
  struct ringcast_gpu_extent lease;
  struct ringcast_gpu_take take;
  ringcast_gpu_writer *writer;
  ringcast_gpu_reader *reader;
  ringcast_gpu_hold *hold;
  ringcast_device_ptr where;
  uint64_t bytes = 100, offset;
  uint8_t host[PLAIN_BYTES];
  const int64_t shape[1] = {100};
  const struct ringcast_tensor tensor = {
      .data = device_data(both.own.memory), .dtype = {1, 8, 1}, .ndim = 1, .shape = shape};
  const struct ringcast_gpu_item item = {"p", 1, tensor, 1};
  ringcast_stream stream = both.own.stream;
  begin_peer("forked child");
  child_must(ringcast_gpu_writer_open(both.writer, NULL, &writer) == -ECHILD);
  child_must(ringcast_gpu_lease(both.gpu_writer, &bytes, 1, &offset, &lease) == -ECHILD);
  child_must(ringcast_gpu_allocate(both.gpu_writer, bytes, stream, &where, &lease) == -ECHILD);
  child_must(ringcast_gpu_attach(both.gpu_writer, &both.lease, &both.lease) == -ECHILD);
  child_must(ringcast_gpu_lease_address(both.gpu_writer, &both.lease, both.lease.base, stream, &where) == -ECHILD);
  child_must(ringcast_gpu_copy_in(both.gpu_writer, &both.lease, both.lease.base, &tensor, stream) == -ECHILD);
  child_must(ringcast_gpu_commit(both.gpu_writer, &both.lease, stream, 64) == -ECHILD);
  child_must(ringcast_gpu_fetch(both.gpu_writer, &tensor, host, stream) == -ECHILD);
  child_must(ringcast_gpu_wait(both.gpu_writer, stream) == -ECHILD);
  child_must(ringcast_gpu_send(both.gpu_writer, &item, 1, 0, 0, stream, 0) == -ECHILD);
  child_must(ringcast_gpu_writer_info(both.gpu_writer, &info) == -ECHILD);
  ringcast_gpu_drop(both.gpu_writer, &both.lease);
  child_must(ringcast_gpu_reader_open(both.reader, NULL, &reader) == -ECHILD);
  child_must(ringcast_gpu_next(both.gpu_reader, 0, &both.frame) == -ECHILD);
  child_must(ringcast_gpu_begin(both.gpu_reader, &both.frame, stream, &take) == -ECHILD);
  child_must(ringcast_gpu_copy_out(both.gpu_reader, &both.take, &both.item, both.theirs.memory) == -ECHILD);
  child_must(ringcast_gpu_copy_pool(both.gpu_reader, &both.take, 0, 8, both.theirs.memory) == -ECHILD);
  child_must(ringcast_gpu_copy_frame(both.gpu_reader, &both.take, both.frame.data, 8, both.theirs.memory) == -ECHILD);
  child_must(ringcast_gpu_copy_to_host(both.gpu_reader, &both.take, &both.item, host) == -ECHILD);
  child_must(ringcast_gpu_map(both.gpu_reader, &both.take, &both.item, &where, &hold) == -ECHILD);
  child_must(ringcast_gpu_check(both.gpu_reader) == -ECHILD);
  child_must(ringcast_gpu_reader_info(both.gpu_reader, &info) == -ECHILD);
  child_must(ringcast_gpu_release(both.gpu_reader, &both.frame) == -ECHILD);
  child_must(ringcast_gpu_end(both.gpu_reader, &both.take) == -ECHILD);
  ringcast_gpu_unmap(both.hold);
  ringcast_gpu_reader_close(both.gpu_reader);
  ringcast_reader_close(both.reader);
  ringcast_gpu_writer_close(both.gpu_writer);
  ringcast_writer_close(both.writer);
}

START_TEST(a_forked_child_is_refused_and_harms_nothing) {
  struct ringcast_frame_reader opened;
  struct received received;
  ringcast_device_ptr where;
  uint64_t bytes = 100, offset;
  char handle[128];
  int files = begin_peer("parent");
  both.gpu_writer = open_peer_writer(handle, 2, 4, &both.own, &both.writer);
  attach_peer(handle, &both.theirs, &both.reader, &both.gpu_reader);
  send_must(both.gpu_writer, &both.own, 0);
  ck_assert_int_eq(receive_frame(both.gpu_reader, &both.theirs, 0, &received), 0);
  send_must(both.gpu_writer, &both.own, 1);
  ck_assert_int_eq(ringcast_gpu_next(both.gpu_reader, 0, &both.frame), 0);
  ck_assert_int_eq(ringcast_frame_open(&opened, both.frame.data, both.frame.bytes), 0);
  ck_assert_int_eq(ringcast_frame_item(&opened, 1, &both.item), 0);
  ck_assert_int_eq(ringcast_gpu_begin(both.gpu_reader, &both.frame, both.theirs.stream, &both.take), 0);
  ck_assert_int_eq(ringcast_gpu_map(both.gpu_reader, &both.take, &both.item, &where, &both.hold), 0);
  ck_assert_int_eq(ringcast_gpu_lease(both.gpu_writer, &bytes, 1, &offset, &both.lease), 0);
  long calls = fake_cuda()->calls("*");
  child_must_succeed(start_child(be_a_forked_child, NULL));
  ck_assert_int_eq((int)fake_cuda()->calls("*"), (int)calls);
  ringcast_gpu_drop(both.gpu_writer, &both.lease);
  ck_assert_int_eq(ringcast_gpu_end(both.gpu_reader, &both.take), 0);
  ringcast_gpu_unmap(both.hold);
  for (uint64_t i = 2; i < 8; i++) {
    send_must(both.gpu_writer, &both.own, i);
    ck_assert_int_eq(receive_frame(both.gpu_reader, &both.theirs, 0, &received), 0);
    ck_assert(received.whole && received.number == i && received.by_pool);
  }
  ringcast_gpu_reader_close(both.gpu_reader);
  ringcast_reader_close(both.reader);
  ringcast_gpu_writer_close(both.gpu_writer);
  ringcast_writer_close(both.writer);
  own_device_close(&both.theirs);
  own_device_close(&both.own);
  await_nothing_left(files);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gpu_refusals");
  TCase *tests = add_case(suite, "who can't");
  tcase_add_loop_test(tests, a_reader_that_cannot_open_the_pool_keeps_the_group_inline, 0,
                      sizeof refusals / sizeof *refusals);
  tcase_add_loop_test(tests, a_writer_without_a_pool_says_why, 0, sizeof lacks / sizeof *lacks);
  tests = add_case(suite, "one process, and a fork");
  tcase_add_test(tests, a_reader_in_the_writers_process_reads_the_pool);
  tcase_add_test(tests, a_forked_child_is_refused_and_harms_nothing);
  return run_gpu_suite(suite, "test_gpu_refusals");
}
