/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver: two processes see the same memory and wait for each other, and what is to fail does. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "tests/support/children.h"
#include "tests/support/fake_stage.h"

/* ---- Two processes ---------------------------------------------------------------------------------------------- */

/* The child opens the driver itself, so its parent must not have done so before: it asks through this. */
struct shared {
  _Atomic uint64_t words[64]; /* words[8 * i]: on a line of its own */
  rc_cu_ipc_handle handle;
  char padding[PAGE - 64 * 8 - sizeof(rc_cu_ipc_handle)];
};
static struct shared *shared;

static void wait_for(int word, uint64_t value) {
  while (load(&shared->words[8 * word]) < value) usleep(100);
}

static void say(int word, uint64_t value) { store(&shared->words[8 * word], value); }

enum { HANDLE, OPENED, READY, READ, FREED, LOOKED, AGAIN, GONE };

#define child_wants(call, result) child_must((call) == (result))

static void read_it(void *ignored) {
  struct rc_cuda_entry entry;
  rc_cu_ptr pool, again, words, copy;
  (void)ignored;
  cuda = rc_cuda();
  child_must(cuda);
  child_wants(cuda->primary_retain(&context, 0), 0);
  child_wants(rc_cuda_enter(context, &entry), 0);
  child_wants(cuda->stream_create(&stream, RC_CU_STREAM_NON_BLOCKING), 0);
  child_wants(cuda->host_register(shared, PAGE, RC_CU_MEMHOSTREGISTER_DEVICEMAP), 0);
  child_wants(cuda->host_get_device_pointer(&words, shared, 0), 0);
  wait_for(HANDLE, 1);
  child_wants(cuda->ipc_open_handle(&pool, shared->handle, 0), RC_CU_INVALID_VALUE);
  child_wants(cuda->ipc_open_handle(&pool, shared->handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), 0);
  child_wants(cuda->ipc_open_handle(&again, shared->handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), 0);
  child_must(pool == again && fake_cuda()->live("imports") == 1);
  child_wants(cuda->ipc_close_handle(again), 0);
  child_wants(cuda->mem_alloc(&copy, BYTES), 0);
  /* Its stream waits for the writer's, and says when it has read. */
  child_wants(cuda->wait_value64(stream, words + 64 * READY, 1, 0), 0);
  child_wants(cuda->copy_dtod(copy, pool, BYTES, stream), 0);
  child_wants(cuda->write_value64(stream, words + 64 * READ, 1, 0), 0);
  say(OPENED, 1);
  child_wants(cuda->stream_synchronize(stream), 0);
  uint8_t *host = fake_cuda()->host(copy);
  child_must(host[0] == 9 && host[BYTES - 1] == 9);
  wait_for(FREED, 1); /* it is not this process's to keep: it shows */
  host = fake_cuda()->host(pool);
  child_must(host[0] == 0xdd && host[BYTES - 1] == 0xdd);
  child_wants(cuda->ipc_open_handle(&again, shared->handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              getenv("FAKE_CUDA_SAME_HANDLE") ? 0 : RC_CU_INVALID_HANDLE);
  if (getenv("FAKE_CUDA_SAME_HANDLE")) {
    host = fake_cuda()->host(again);
    child_must(again != pool && host[0] == 0); /* other memory, by the same handle */
    child_wants(cuda->ipc_close_handle(again), 0);
  }
  child_wants(cuda->ipc_close_handle(pool), 0);
  child_wants(cuda->ipc_close_handle(pool), RC_CU_INVALID_VALUE);
  child_wants(cuda->mem_free(copy), 0);
  child_must(fake_cuda()->live("imports") == 0 && fake_cuda()->live("allocations") == 0);
}

static void share(void) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(shared, MAP_FAILED);
}

START_TEST(two_processes_share_memory_and_wait_for_each_others_streams) {
  uint8_t *bytes = malloc(BYTES);
  if (_i == 1) setenv("FAKE_CUDA_SAME_HANDLE", "1", 1);
  share();
  pid_t child = start_child(read_it, NULL);
  begin();
  must(cuda->host_register(shared, PAGE, RC_CU_MEMHOSTREGISTER_DEVICEMAP));
  rc_cu_ptr words = address_of(shared), pool = allocate(BYTES), mine;
  rc_cu_ipc_handle again;
  must(cuda->ipc_get_handle(&shared->handle, pool + 100)); /* it is the whole that is exported */
  must_be(cuda->ipc_open_handle(&mine, shared->handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), RC_CU_INVALID_CONTEXT);
  say(HANDLE, 1);
  wait_for(OPENED, 1);
  memset(bytes, 9, BYTES);
  must(cuda->copy_htod(pool, bytes, BYTES, stream));
  must(cuda->write_value64(stream, words + 64 * READY, 1, 0));
  must(cuda->wait_value64(stream, words + 64 * READ, 1, 0));
  must(cuda->stream_synchronize(stream));
  must(cuda->mem_free(pool));
  pool = allocate(BYTES);
  must(cuda->ipc_get_handle(&again, pool));
  ck_assert_int_eq(memcmp(&again, &shared->handle, sizeof again) == 0, _i == 1);
  say(FREED, 1);
  child_must_succeed(child);
  must(cuda->mem_free(pool));
  must(cuda->host_unregister(shared));
  free(bytes);
  end();
}
END_TEST

static void export_and_hang(void *ignored) {
  struct rc_cuda_entry entry;
  rc_cu_ptr pool;
  (void)ignored;
  cuda = rc_cuda();
  child_must(cuda && cuda->primary_retain(&context, 0) == 0 && rc_cuda_enter(context, &entry) == 0);
  child_must(cuda->mem_alloc(&pool, BYTES) == 0 && cuda->ipc_get_handle(&shared->handle, pool) == 0);
  say(HANDLE, 1);
  for (;;) pause();
}

START_TEST(memory_of_who_was_killed_stays_mapped_and_opens_no_more) {
  rc_cu_ptr pool, again;
  share();
  pid_t child = start_child(export_and_hang, NULL);
  begin();
  wait_for(HANDLE, 1);
  must(cuda->ipc_open_handle(&pool, shared->handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  kill_child(child);
  must_hold(pool, 0, 64);
  must_be(cuda->ipc_open_handle(&again, shared->handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), RC_CU_INVALID_HANDLE);
  must(cuda->ipc_close_handle(pool));
  end();
}
END_TEST

/* ---- Faults ----------------------------------------------------------------------------------------------------- */

static void *query_stream(void *unused) {
  (void)unused;
  struct rc_cuda_entry entry;
  rc_cuda_enter(context, &entry);
  rc_cu_result result = cuda->stream_query(stream);
  rc_cuda_leave(&entry);
  return (void *)(intptr_t)result;
}

static rc_cu_result query_elsewhere(void) {
  pthread_t thread;
  void *result;
  ck_assert_int_eq(pthread_create(&thread, NULL, query_stream, NULL), 0);
  ck_assert_int_eq(pthread_join(thread, &result), 0);
  return (rc_cu_result)(intptr_t)result;
}

START_TEST(calls_fail_in_the_thread_that_is_meant) {
  controls->fault("cuStreamQuery", 1, 999);
  must(query_elsewhere());
  must_be(cuda->stream_query(stream), 999);
  controls->fault("cuStreamQuery", -2, 999);
  for (int i = 0; i < 3; i++) must(cuda->stream_query(stream));
  must(query_elsewhere());
  must_be(query_elsewhere(), 999);
}
END_TEST

START_TEST(calls_fail_as_asked_for_and_do_nothing) {
  rc_cu_ptr memory = 0;
  controls->fault("cuMemAlloc", 2, RC_CU_OUT_OF_MEMORY);
  must(cuda->mem_free(allocate(BYTES)));
  must_be(cuda->mem_alloc(&memory, BYTES), RC_CU_OUT_OF_MEMORY);
  ck_assert(memory == 0 && controls->live("allocations") == 0);
  must(cuda->mem_free(allocate(BYTES)));
  controls->fault("cuStreamQuery", 0, RC_CU_NOT_SUPPORTED);
  for (int i = 0; i < 3; i++) must_be(cuda->stream_query(stream), RC_CU_NOT_SUPPORTED);
  controls->fault(NULL, 0, 0);
  must(cuda->stream_query(stream));
  controls->fault("*", 2, 999);
  must(cuda->stream_query(stream));
  must_be(cuda->stream_query(stream), 999);
  ck_assert_int_eq(controls->calls("cuMemAlloc"), 3);
  ck_assert_int_eq(controls->calls("cuNothing"), -1);
}
END_TEST

START_TEST(memory_that_is_mapped_read_only_is_refused_as_by_a_card) {
  uint8_t *host = map_host(PAGE, false);
  int supported = 1;
  ck_assert_int_eq(mprotect(host, PAGE, PROT_READ), 0);
  must(cuda_more()->device_get_attribute(&supported, RC_CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0));
  ck_assert_int_eq(supported, 0);
  must_be(cuda->host_register(host, PAGE, RC_CU_MEMHOSTREGISTER_PORTABLE), RC_CU_INVALID_VALUE);
  must_be(cuda->host_register(host, PAGE, RC_CU_MEMHOSTREGISTER_READ_ONLY), RC_CU_NOT_SUPPORTED);
  munmap(host, PAGE);
}
END_TEST

START_TEST(the_environment_says_which_calls_fail) {
  struct rc_cuda_entry entry;
  rc_cu_ptr memory;
  setenv("FAKE_CUDA_FAIL", "cuMemAlloc:2:2,cuStreamCreate:1:801", 1);
  cuda = rc_cuda();
  must(cuda->primary_retain(&context, 0));
  must_be(cuda->mem_alloc(&memory, BYTES), RC_CU_INVALID_CONTEXT); /* the first call: no context is current */
  must(rc_cuda_enter(context, &entry));
  must_be(cuda->mem_alloc(&memory, BYTES), RC_CU_OUT_OF_MEMORY);
  must(cuda->mem_free(allocate(BYTES)));
  must_be(cuda->stream_create(&stream, 0), RC_CU_NOT_SUPPORTED);
  must(cuda->primary_release(0));
  fake_must_be_empty();
}
END_TEST

START_TEST(a_context_that_is_broken_drops_what_is_queued) {
  uint8_t *host = map_host(PAGE, true);
  rc_cu_ptr words = address_of(host);
  must(cuda->wait_value64(stream, words, 1, 0));
  must(cuda->write_value64(stream, words + 64, 1, 0));
  controls->break_context(NULL);
  must_be(cuda->stream_synchronize(stream), RC_CU_ILLEGAL_ADDRESS);
  while (controls->live("queued") > 0) usleep(100);
  ck_assert_uint_eq(load(host + 64), 0);
  must_be(cuda->host_unregister(host), RC_CU_ILLEGAL_ADDRESS);
  munmap(host, PAGE);
}
END_TEST

START_TEST(what_is_left_in_a_context_that_ends_is_counted) {
  allocate(BYTES);
  map_host(PAGE, true);
  must(cuda->wait_value64(stream, allocate(BYTES), 1, 0)); /* for ever: it is dropped */
  must(cuda->stream_destroy(other));
  must(cuda->primary_release(0));
  ck_assert_int_eq(controls->live("lost"), 4);
  ck_assert_int_eq(controls->live("contexts"), 0);
  must_be(cuda->stream_query(stream), RC_CU_INVALID_CONTEXT);
}
END_TEST

START_TEST(jitter_delays_and_changes_nothing_else) {
  setenv("FAKE_CUDA_JITTER", "7", 1);
  begin();
  rc_cu_ptr memory = allocate(BYTES);
  for (uint8_t i = 0; i < 100; i++) must(cuda->copy_htod(memory, &i, 1, stream));
  must(cuda->stream_synchronize(stream));
  must_hold(memory, 99, 1);
  must(cuda->mem_free(memory));
  end();
}
END_TEST

int main(void) {
  unsetenv("RINGCAST_DISABLE");
  Suite *suite = suite_create("fake_cuda_shared");
  TCase *tests = add_case(suite, "before its start");
  tcase_add_loop_test(tests, two_processes_share_memory_and_wait_for_each_others_streams, 0, 2);
  tcase_add_test(tests, memory_of_who_was_killed_stays_mapped_and_opens_no_more);
  tcase_add_test(tests, the_environment_says_which_calls_fail);
  tcase_add_test(tests, jitter_delays_and_changes_nothing_else);
  tests = add_case(suite, "after it");
  tcase_add_checked_fixture(tests, begin, end);
  tcase_add_test(tests, calls_fail_as_asked_for_and_do_nothing);
  tcase_add_test(tests, memory_that_is_mapped_read_only_is_refused_as_by_a_card);
  tcase_add_test(tests, calls_fail_in_the_thread_that_is_meant);
  tcase_add_test(tests, a_context_that_is_broken_drops_what_is_queued);
  tests = add_case(suite, "its end");
  tcase_add_checked_fixture(tests, begin, NULL);
  tcase_add_test(tests, what_is_left_in_a_context_that_ends_is_counted);
  return run_gpu_suite(suite, "test_fake_cuda_shared");
}
