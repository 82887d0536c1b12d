/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake driver itself: what the tests of device tensors rely on. That it does in order what it is told, and that
 * what CUDA leaves undefined shows.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/cuda_more.h"
#include "tests/support/gpu.h"
#include "tests/support/suite.h"

enum { BYTES = 1 << 16, PAGE = 4096 };

static const struct rc_cuda *cuda;
static const struct fake_controls *controls;
static rc_cu_context context;
static rc_cu_stream stream, other;

#define must(call)           ck_assert_int_eq((call), RC_CU_SUCCESS)
#define must_be(call, error) ck_assert_int_eq((call), (error))

static void begin(void) {
  struct rc_cuda_entry entry;
  cuda = rc_cuda();
  ck_assert_ptr_nonnull(cuda);
  controls = fake_cuda();
  must(cuda->primary_retain(&context, 0));
  must(rc_cuda_enter(context, &entry));
  must(cuda->stream_create(&stream, RC_CU_STREAM_NON_BLOCKING));
  must(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING));
}

static void end(void) {
  cuda->stream_destroy(stream);
  cuda->stream_destroy(other);
  must(cuda->primary_release(0));
  fake_must_be_empty();
}

static rc_cu_ptr allocate(size_t bytes) {
  rc_cu_ptr memory;
  must(cuda->mem_alloc(&memory, bytes));
  return memory;
}

/* Pages that others may share, registered. */
static void *map_host(size_t bytes, bool registered) {
  void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(host, MAP_FAILED);
  if (registered)
    must(cuda->host_register(host, bytes, RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP));
  return host;
}

static void unmap_host(void *host, size_t bytes) {
  must(cuda->host_unregister(host));
  munmap(host, bytes);
}

static rc_cu_ptr address_of(void *host) {
  rc_cu_ptr address;
  must(cuda->host_get_device_pointer(&address, host, 0));
  return address;
}

static uint64_t load(void *word) { return atomic_load_explicit((_Atomic uint64_t *)word, memory_order_acquire); }
static void store(void *word, uint64_t value) {
  atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_release);
}

static void must_hold(rc_cu_ptr memory, uint8_t byte, size_t bytes) {
  ck_assert_uint_eq(others_than(byte, controls->host(memory), bytes), 0);
}

/* ---- Order ------------------------------------------------------------------------------------------------------ */

START_TEST(the_legacy_stream_and_blocking_ones_wait_for_each_other) {
  uint8_t *host = map_host(PAGE, true);
  rc_cu_ptr words = address_of(host);
  rc_cu_stream blocking;
  must(cuda->stream_create(&blocking, 0));
  must(cuda->wait_value64(blocking, words, 1, 0));
  must(cuda->write_value64(NULL, words + 64, 1, 0));
  must(cuda->write_value64(stream, words + 128, 1, 0)); /* not this one */
  must(cuda->stream_synchronize(stream));
  must_be(cuda->stream_query((rc_cu_stream)1), RC_CU_NOT_READY);
  ck_assert(load(host + 64) == 0 && load(host + 128) == 1);
  must(cuda->write_value64(blocking, words + 192, 1, 0)); /* after the legacy one's */
  store(host, 1);
  must(cuda->stream_synchronize(blocking));
  ck_assert(load(host + 64) == 1 && load(host + 192) == 1);
  must(cuda->stream_destroy(blocking));
  unmap_host(host, PAGE);
}
END_TEST

static void become(rc_cu_capture_mode mode) { must(cuda->exchange_capture_mode(&mode)); }

static void *query_other(void *mode) {
  struct rc_cuda_entry entry;
  must(rc_cuda_enter(context, &entry));
  become(*(rc_cu_capture_mode *)mode);
  rc_cu_result result = cuda->stream_query(other);
  rc_cuda_leave(&entry);
  return (void *)(intptr_t)result;
}

/* GLOBAL, THREAD_LOCAL, RELAXED; by the thread that captures, or by another. */
START_TEST(a_capture_is_spoilt_by_calls_of_threads_that_are_not_relaxed) {
  rc_cu_capture_mode mode = _i % 3;
  bool is_forbidden = mode == 0 || (mode == 1 && _i < 3);
  pthread_t thread;
  void *result;
  must(controls->capture(stream, true));
  if (_i < 3) {
    result = query_other(&mode);
  } else {
    ck_assert_int_eq(pthread_create(&thread, NULL, query_other, &mode), 0);
    ck_assert_int_eq(pthread_join(thread, &result), 0);
  }
  must_be((int)(intptr_t)result, is_forbidden ? RC_CU_STREAM_CAPTURE_UNSUPPORTED : RC_CU_SUCCESS);
  must_be(controls->capture(stream, false), is_forbidden ? RC_CU_STREAM_CAPTURE_INVALIDATED : RC_CU_SUCCESS);
  ck_assert_int_eq(controls->live("spoilt"), is_forbidden);
  become(0);
}
END_TEST

START_TEST(a_capture_is_spoilt_by_all_that_would_have_to_wait_for_it) {
  rc_cu_stream blocking;
  int captures;
  become(RC_CU_STREAM_CAPTURE_MODE_RELAXED);
  must(controls->capture(stream, true));
  must(cuda->stream_query(NULL)); /* the one that captures is none that it waits for */
  must_be(cuda->stream_query(stream), RC_CU_STREAM_CAPTURE_UNSUPPORTED);
  must_be(controls->capture(stream, false), RC_CU_STREAM_CAPTURE_INVALIDATED);
  must(controls->capture(stream, true));
  must_be(rc_cuda()->ctx_synchronize(), RC_CU_STREAM_CAPTURE_UNSUPPORTED);
  must_be(controls->capture(stream, false), RC_CU_STREAM_CAPTURE_INVALIDATED);
  must(cuda->stream_create(&blocking, 0));
  must(controls->capture(blocking, true));
  must_be(cuda->stream_is_capturing(NULL, &captures), RC_CU_STREAM_CAPTURE_IMPLICIT);
  must(controls->capture(blocking, false)); /* to ask that is allowed */
  must(controls->capture(blocking, true));
  must_be(cuda->stream_query(NULL), RC_CU_STREAM_CAPTURE_IMPLICIT);
  must_be(controls->capture(blocking, false), RC_CU_STREAM_CAPTURE_INVALIDATED);
  must(cuda->stream_destroy(blocking));
  become(0);
}
END_TEST

/* ---- Host memory ------------------------------------------------------------------------------------------------ */

START_TEST(registered_memory_is_read_when_the_stream_gets_there) {
  uint8_t *host = map_host(2 * PAGE, true), *plain = map_host(PAGE, false);
  rc_cu_ptr words = address_of(host), memory = allocate(BYTES);
  memset(host + PAGE, 1, 64);
  memset(plain, 1, 64);
  must(cuda->wait_value64(stream, words, 1, 0));
  must(cuda->copy_htod(memory, host + PAGE, 64, stream));
  must(cuda->copy_htod(memory + 64, plain, 64, stream));
  memset(host + PAGE, 2, 64); /* too early: it shows */
  memset(plain, 2, 64);
  store(host, 1);
  must(cuda->stream_synchronize(stream));
  must_hold(memory, 2, 64);
  must_hold(memory + 64, 1, 64);
  ck_assert_int_eq(controls->calls("fake_host_waits"), 0);
  must(cuda->copy_dtoh(plain, memory, 64, stream));
  ck_assert(plain[0] == 2 && plain[63] == 2);
  ck_assert_int_eq(controls->calls("fake_host_waits"), 1);
  must(cuda->copy_dtoh(host + PAGE, memory + 64, 64, stream));
  ck_assert_int_eq(controls->calls("fake_host_waits"), 1);
  must(cuda->stream_synchronize(stream));
  ck_assert(host[PAGE] == 1 && host[PAGE + 63] == 1);
  must(cuda->mem_free(memory));
  munmap(plain, PAGE);
  unmap_host(host, 2 * PAGE);
}
END_TEST

START_TEST(a_copy_over_the_end_of_a_registration_is_refused) {
  uint8_t *host = map_host(3 * PAGE, false);
  rc_cu_ptr memory = allocate(BYTES);
  must(cuda->host_register(host, PAGE, 0));
  must(cuda->host_register(host + PAGE, PAGE, 0));
  must_be(cuda->host_register(host + PAGE / 2, PAGE, 0), RC_CU_HOST_MEMORY_ALREADY_REGISTERED);
  must_be(cuda->copy_htod(memory, host + PAGE - 8, 16, stream), RC_CU_INVALID_VALUE);
  must_be(cuda->copy_htod(memory, host + 2 * PAGE - 8, 16, stream), RC_CU_INVALID_VALUE);
  must_be(cuda->copy_dtoh(host + PAGE - 8, memory, 16, stream), RC_CU_INVALID_VALUE);
  must(cuda->copy_htod(memory, host + PAGE - 8, 8, stream));
  must(cuda->stream_synchronize(stream));
  must_be(cuda->host_unregister(host + 8), RC_CU_HOST_MEMORY_NOT_REGISTERED);
  must(cuda->host_unregister(host));
  must_be(cuda->host_unregister(host), RC_CU_HOST_MEMORY_NOT_REGISTERED);
  must(cuda->host_unregister(host + PAGE));
  must(cuda->mem_free(memory));
  munmap(host, 3 * PAGE);
}
END_TEST

START_TEST(what_is_unregistered_under_a_copy_that_is_queued_breaks_the_context) {
  uint8_t *host = map_host(PAGE, true), *word = map_host(PAGE, true);
  rc_cu_ptr memory = allocate(BYTES);
  must(cuda->wait_value64(stream, address_of(word), 1, 0));
  must(cuda->copy_htod(memory, host, 64, stream));
  unmap_host(host, PAGE);
  store(word, 1);
  must_be(cuda->stream_synchronize(stream), RC_CU_ILLEGAL_ADDRESS);
  must_be(cuda->mem_free(memory), RC_CU_ILLEGAL_ADDRESS);
  must_be(cuda->host_unregister(word), RC_CU_ILLEGAL_ADDRESS);
  munmap(word, PAGE);
}
END_TEST

/* ---- Device memory ---------------------------------------------------------------------------------------------- */

START_TEST(a_wrong_device_address_breaks_the_context_for_good) {
  static uint8_t host[64];
  rc_cu_ptr memory = allocate(BYTES), wrong = _i == 0   ? (rc_cu_ptr)(uintptr_t)host
                                              : _i == 1 ? memory + BYTES - 63
                                              : _i == 2 ? memory - 1
                                                        : 0;
  must(cuda->copy_dtod(memory, wrong, 64, stream));
  must_be(cuda->stream_synchronize(stream), RC_CU_ILLEGAL_ADDRESS);
  must_be(cuda->stream_query(other), RC_CU_ILLEGAL_ADDRESS);
  must_be(cuda->copy_dtod(memory, memory + 64, 64, other), RC_CU_ILLEGAL_ADDRESS);
  must_be(cuda->mem_free(memory), RC_CU_ILLEGAL_ADDRESS);
  must(cuda->primary_release(0)); /* a new one works */
  must(cuda->primary_retain(&context, 0));
  must(cuda->stream_create(&stream, 0));
  must(cuda->stream_create(&other, 0));
  must(cuda->mem_free(allocate(BYTES)));
  ck_assert_int_eq(controls->live("lost"), 2); /* the two streams */
  must(cuda->stream_destroy(stream));
  must(cuda->stream_destroy(other));
  must(cuda->primary_release(0));
  _exit(0);
}
END_TEST

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
START_TEST(the_host_can_not_follow_a_device_pointer) {
  rc_cu_ptr memory = allocate(BYTES);
  *(volatile uint8_t *)(uintptr_t)memory = 1;
}
END_TEST
#endif

START_TEST(freeing_waits_for_the_device_and_overwrites) {
  rc_cu_ptr memory = allocate(BYTES), retained = allocate(BYTES), none = 0;
  uint64_t few = 20;
  rc_cu_module module;
  rc_cu_function kernel;
  must(cuda_more()->module_load_data(&module, "any"));
  must(cuda_more()->module_get_function(&kernel, module, "spin"));
  must(cuda_more()->launch_kernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&none, &few}, NULL));
  must(cuda->copy_dtod(retained, memory, 64, stream));
  must(cuda->mem_free(memory));
  must_be(cuda->stream_query(stream), RC_CU_SUCCESS);
  must_be(cuda->mem_free(memory), RC_CU_INVALID_VALUE);
  must_be(cuda->mem_free(retained + 64), RC_CU_INVALID_VALUE);
  must(cuda->mem_free(retained));
}
END_TEST

/* ---- Faults ----------------------------------------------------------------------------------------------------- */

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
  Suite *suite = suite_create("fake_cuda");
  TCase *tests = add_case(suite, "one process");
  tcase_add_checked_fixture(tests, begin, end);
  tcase_add_test(tests, the_legacy_stream_and_blocking_ones_wait_for_each_other);
  tcase_add_loop_test(tests, a_capture_is_spoilt_by_calls_of_threads_that_are_not_relaxed, 0, 6);
  tcase_add_test(tests, a_capture_is_spoilt_by_all_that_would_have_to_wait_for_it);
  tcase_add_test(tests, registered_memory_is_read_when_the_stream_gets_there);
  tcase_add_test(tests, a_copy_over_the_end_of_a_registration_is_refused);
  tcase_add_test(tests, what_is_unregistered_under_a_copy_that_is_queued_breaks_the_context);
  tcase_add_loop_test(tests, a_wrong_device_address_breaks_the_context_for_good, 0, 4);
  tcase_add_test(tests, freeing_waits_for_the_device_and_overwrites);
  tcase_add_test(tests, calls_fail_as_asked_for_and_do_nothing);
  tcase_add_test(tests, memory_that_is_mapped_read_only_is_refused_as_by_a_card);
  tcase_add_test(tests, a_context_that_is_broken_drops_what_is_queued);
  tests = add_case(suite, "before its start");
  tcase_add_test(tests, the_environment_says_which_calls_fail);
  tcase_add_test(tests, jitter_delays_and_changes_nothing_else);
  tests = add_case(suite, "its end");
  tcase_add_checked_fixture(tests, begin, NULL);
  tcase_add_test(tests, what_is_left_in_a_context_that_ends_is_counted);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they end the process in their own way */
  tcase_add_test_raise_signal(tests, the_host_can_not_follow_a_device_pointer, SIGSEGV);
#endif
  return run_gpu_suite(suite, "test_fake_cuda");
}
