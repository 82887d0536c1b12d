/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake driver itself: what the tests of device tensors rely on. That it does in order what it is told, and that
 * what CUDA leaves undefined shows.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "tests/support/fake_stage.h"

/* ---- Order ------------------------------------------------------------------------------------------------------ */

START_TEST(a_stream_does_one_thing_after_the_other) {
  uint8_t *host = map_host(PAGE, true);
  rc_cu_ptr words = address_of(host), memory = allocate(BYTES);
  uint8_t bytes[64];
  must(cuda->wait_value64(stream, words, 1, RC_CU_STREAM_WAIT_VALUE_GEQ));
  memset(bytes, 7, sizeof bytes);
  must(cuda->copy_htod(memory, bytes, sizeof bytes, stream));
  memset(bytes, 8, sizeof bytes); /* it was read when the call was made */
  must(cuda->copy_dtod(memory + 64, memory, 64, stream));
  must(cuda->write_value64(stream, words + 64, 5, RC_CU_STREAM_WRITE_VALUE_DEFAULT));
  must_be(cuda->stream_query(stream), RC_CU_NOT_READY);
  must_be(cuda->stream_query(other), RC_CU_SUCCESS);
  must_hold(memory, 0, 128);
  ck_assert_uint_eq(load(host + 64), 0);
  store(host, 1);
  must(cuda->stream_synchronize(stream));
  must_hold(memory, 7, 128);
  ck_assert_uint_eq(load(host + 64), 5);
  must_be(cuda->stream_query(stream), RC_CU_SUCCESS);
  must(cuda->mem_free(memory));
  unmap_host(host, PAGE);
}
END_TEST

START_TEST(streams_wait_for_each_other_by_words_alone) {
  uint8_t *host = map_host(PAGE, true);
  rc_cu_ptr words = address_of(host);
  for (uint64_t i = 1; i <= 50; i++) {
    must(cuda->wait_value64(other, words, i, RC_CU_STREAM_WAIT_VALUE_GEQ));
    must(cuda->write_value64(other, words + 64, i, RC_CU_STREAM_WRITE_VALUE_DEFAULT));
    must(cuda->write_value64(stream, words, i, RC_CU_STREAM_WRITE_VALUE_DEFAULT));
    must(cuda->wait_value64(stream, words + 64, i, RC_CU_STREAM_WAIT_VALUE_GEQ));
  }
  must(cuda->stream_synchronize(stream));
  ck_assert_uint_eq(load(host + 64), 50);
  unmap_host(host, PAGE);
}
END_TEST

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

START_TEST(a_kernel_spins_until_its_word_or_its_turns) {
  uint8_t *host = map_host(PAGE, true);
  rc_cu_ptr words = address_of(host), none = 0;
  uint64_t turns = UINT64_MAX, few = 3;
  rc_cu_module module;
  rc_cu_function kernel;
  must(cuda_more()->module_load_data(&module, "any"));
  must_be(cuda_more()->module_get_function(&kernel, module, "run"), RC_CU_NOT_FOUND);
  must(cuda_more()->module_get_function(&kernel, module, "spin"));
  must(cuda_more()->launch_kernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&words, &turns}, NULL));
  must(cuda_more()->launch_kernel(kernel, 1, 1, 1, 1, 1, 1, 0, other, (void *[]){&none, &few}, NULL));
  must(cuda->stream_synchronize(other));
  must_be(cuda->stream_query(stream), RC_CU_NOT_READY);
  store(host, 1);
  must(cuda->stream_synchronize(stream));
  must(cuda_more()->module_unload(module));
  unmap_host(host, PAGE);
}
END_TEST

START_TEST(a_stream_that_is_destroyed_does_what_it_was_told) {
  uint8_t *host = map_host(PAGE, true);
  rc_cu_ptr words = address_of(host);
  rc_cu_stream brief;
  must(cuda->stream_create(&brief, RC_CU_STREAM_NON_BLOCKING));
  must(cuda->wait_value64(brief, words, 1, 0));
  must(cuda->write_value64(brief, words + 64, 1, 0));
  must(cuda->stream_destroy(brief));
  must_be(cuda->stream_query(brief), RC_CU_INVALID_HANDLE);
  store(host, 1);
  must(rc_cuda()->ctx_synchronize());
  ck_assert_uint_eq(load(host + 64), 1);
  unmap_host(host, PAGE);
}
END_TEST

START_TEST(nothing_is_enqueued_while_a_stream_captures) {
  int captures;
  rc_cu_ptr memory = allocate(BYTES);
  controls->capture(stream, true);
  must(cuda->stream_is_capturing(stream, &captures));
  ck_assert_int_ne(captures, RC_CU_STREAM_CAPTURE_STATUS_NONE);
  must_be(cuda->copy_dtod(memory, memory + 64, 64, stream), RC_CU_STREAM_CAPTURE_UNSUPPORTED);
  must_be(controls->capture(stream, false), RC_CU_STREAM_CAPTURE_INVALIDATED);
  must(cuda->stream_is_capturing(stream, &captures));
  ck_assert_int_eq(captures, RC_CU_STREAM_CAPTURE_STATUS_NONE);
  must(cuda->mem_free(memory));
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

START_TEST(memory_tells_what_it_is) {
  unsigned type = 0;
  int ordinal = -1, exportable = 0; /* it is one byte that is set */
  size_t bytes = 0;
  uint8_t *host = map_host(PAGE, true);
  rc_cu_ptr memory = allocate(BYTES), base = 0, pooled;
  must(cuda_more()->pointer_get_attribute(&type, RC_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 5));
  ck_assert_uint_eq(type, RC_CU_MEMORYTYPE_DEVICE);
  must(cuda_more()->pointer_get_attribute(&type, RC_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (rc_cu_ptr)(uintptr_t)host));
  ck_assert_uint_eq(type, RC_CU_MEMORYTYPE_HOST);
  must_be(cuda_more()->pointer_get_attribute(&type, RC_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (rc_cu_ptr)(uintptr_t)&type),
          1);
  must(cuda_more()->pointer_get_attribute(&ordinal, RC_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
  must(cuda_more()->pointer_get_attribute(&exportable, RC_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory));
  ck_assert(ordinal == 0 && exportable == 1);
  must(cuda->mem_get_address_range(&base, &bytes, memory + 100));
  ck_assert(base == memory && bytes == BYTES);
  must_be(cuda->mem_get_address_range(&base, &bytes, memory + BYTES), RC_CU_NOT_FOUND);
  must(cuda->mem_free(memory));

  rc_cu_ipc_handle handle;
  must(cuda->mem_alloc_async(&pooled, BYTES, stream));
  must(cuda_more()->pointer_get_attribute(&exportable, RC_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pooled));
  ck_assert_int_eq(exportable, 0);
  must_be(cuda->ipc_get_handle(&handle, pooled), RC_CU_INVALID_VALUE);
  must(cuda->mem_free_async(pooled, stream));
  must(cuda->stream_synchronize(stream));
  ck_assert_int_eq(controls->live("allocations"), 0);
  unmap_host(host, PAGE);
}
END_TEST

int main(void) {
  unsetenv("RINGCAST_DISABLE");
  Suite *suite = suite_create("fake_cuda");
  TCase *tests = add_case(suite, "one process");
  tcase_add_checked_fixture(tests, begin, end);
  tcase_add_test(tests, a_stream_does_one_thing_after_the_other);
  tcase_add_test(tests, streams_wait_for_each_other_by_words_alone);
  tcase_add_test(tests, the_legacy_stream_and_blocking_ones_wait_for_each_other);
  tcase_add_test(tests, a_kernel_spins_until_its_word_or_its_turns);
  tcase_add_test(tests, a_stream_that_is_destroyed_does_what_it_was_told);
  tcase_add_test(tests, nothing_is_enqueued_while_a_stream_captures);
  tcase_add_loop_test(tests, a_capture_is_spoilt_by_calls_of_threads_that_are_not_relaxed, 0, 6);
  tcase_add_test(tests, a_capture_is_spoilt_by_all_that_would_have_to_wait_for_it);
  tcase_add_test(tests, registered_memory_is_read_when_the_stream_gets_there);
  tcase_add_test(tests, a_copy_over_the_end_of_a_registration_is_refused);
  tcase_add_test(tests, what_is_unregistered_under_a_copy_that_is_queued_breaks_the_context);
  tcase_add_loop_test(tests, a_wrong_device_address_breaks_the_context_for_good, 0, 4);
  tcase_add_test(tests, freeing_waits_for_the_device_and_overwrites);
  tcase_add_test(tests, memory_tells_what_it_is);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they end the process in their own way */
  tests = add_case(suite, "its end");
  tcase_add_checked_fixture(tests, begin, NULL);
  tcase_add_test_raise_signal(tests, the_host_can_not_follow_a_device_pointer, SIGSEGV);
#endif
  return run_gpu_suite(suite, "test_fake_cuda");
}
