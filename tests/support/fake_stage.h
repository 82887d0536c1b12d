/* SPDX-License-Identifier: Apache-2.0 */
/* A context of the fake driver with two streams, and what a test does with them. */
#ifndef RC_TESTS_FAKE_STAGE_H
#define RC_TESTS_FAKE_STAGE_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/support/gpu.h"
#include "tests/support/suite.h"

enum { BYTES = 1 << 16, PAGE = 4096 };

static const struct rc_cuda *cuda;
static const struct fake_controls *controls;
static rc_cu_context context;
static rc_cu_stream stream, other;

#define must(call)           ck_assert_int_eq((call), RC_CU_SUCCESS)
#define must_be(call, error) ck_assert_int_eq((call), (error))

static inline void begin(void) {
  struct rc_cuda_entry entry;
  cuda = rc_cuda();
  ck_assert_ptr_nonnull(cuda);
  controls = fake_cuda();
  must(cuda->primary_retain(&context, 0));
  must(rc_cuda_enter(context, &entry));
  must(cuda->stream_create(&stream, RC_CU_STREAM_NON_BLOCKING));
  must(cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING));
}

static inline void end(void) {
  cuda->stream_destroy(stream);
  cuda->stream_destroy(other);
  must(cuda->primary_release(0));
  fake_must_be_empty();
}

static inline rc_cu_ptr allocate(size_t bytes) {
  rc_cu_ptr memory;
  must(cuda->mem_alloc(&memory, bytes));
  return memory;
}

/* Pages that others may share, registered. */
static inline void *map_host(size_t bytes, bool registered) {
  void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(host, MAP_FAILED);
  if (registered)
    must(cuda->host_register(host, bytes, RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP));
  return host;
}

static inline void unmap_host(void *host, size_t bytes) {
  must(cuda->host_unregister(host));
  munmap(host, bytes);
}

static inline rc_cu_ptr address_of(void *host) {
  rc_cu_ptr address;
  must(cuda->host_get_device_pointer(&address, host, 0));
  return address;
}

static inline uint64_t load(void *word) { return atomic_load_explicit((_Atomic uint64_t *)word, memory_order_acquire); }
static inline void store(void *word, uint64_t value) {
  atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_release);
}

static inline void must_hold(rc_cu_ptr memory, uint8_t byte, size_t bytes) {
  ck_assert_uint_eq(others_than(byte, controls->host(memory), bytes), 0);
}

#endif
