/* SPDX-License-Identifier: Apache-2.0 */
/* Words of host memory: a CPU's store that ends a stream's wait, streams of two processes, and what else is held up by
 * a wait that is pending. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "ringcast/gpu.h"
#include "tests/gpu/probe.h"
#include "tests/gpu/run.h"

enum { ROUNDS = 200, PAGE = 4096 };
static const unsigned LONG_MS = 1500;

static void await_word(struct rc_word *word, uint64_t value) {
  while (!rc_word_has_reached(word, value)) sched_yield();
}

/* ---- Store and wake --------------------------------------------------------------------------------------------- */

/* wait (word 0), then write (word 1): from the CPU's store of the one until it sees the other. */
static void store_wakes(struct gpu *gpu, struct rc_word *words, const char *key) {
  rc_cu_ptr address = gpu_register(gpu, words, PAGE);
  static double took[ROUNDS];
  int count = rounds(ROUNDS);
  for (int i = 0; i < count; i++) {
    uint64_t value = (uint64_t)i + 1;
    must(rc_word_wait(gpu->cuda, gpu->stream, address, value), "cuStreamWaitValue");
    must(rc_word_write(gpu->cuda, gpu->stream, address + sizeof *words, value), "cuStreamWriteValue");
    for (double until = now_us() + 50; now_us() < until;) /* until the device has come to the wait, most likely */
      if (gpu->cuda->stream_query(gpu->stream) != RC_CU_NOT_READY) failed("a stream did not wait for its word");
    double begun = now_us();
    rc_word_store(&words[0], value);
    await_word(&words[1], value);
    took[i] = now_us() - begun;
  }
  figure_spread(key, took, (size_t)count);
  must(gpu->cuda->stream_synchronize(gpu->stream), "cuStreamSynchronize");
  must(gpu->cuda->host_unregister(words), "cuMemHostUnregister");
}

static void store_wakes_64(void) {
  struct rc_word *words = shared_memory(PAGE);
  struct gpu gpu = gpu_open();
  store_wakes(&gpu, words, "store_to_write_us");
}

/* ---- Other processes -------------------------------------------------------------------------------------------- */

static void store_each(struct helper *me, void *context) {
  struct rc_word *words = context;
  int count;
  helper_hear(me, &count, sizeof count);
  for (int i = 0; i < count; i++) {
    uint64_t value;
    helper_hear(me, &value, sizeof value);
    rc_word_store(&words[0], value);
  }
}

/* A process without CUDA stores, as one does that releases what has died. */
static void store_by_another_process(void) {
  struct rc_word *words = shared_memory(PAGE);
  struct helper helper = helper_start(store_each, words);
  struct gpu gpu = gpu_open();
  rc_cu_ptr address = gpu_register(&gpu, words, PAGE);
  int count = rounds(50);
  helper_tell(&helper, &count, sizeof count);
  for (uint64_t value = 1; value <= (uint64_t)count; value++) {
    must(rc_word_wait(gpu.cuda, gpu.stream, address, value), "cuStreamWaitValue64");
    helper_tell(&helper, &value, sizeof value);
    must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
  }
  helper_end(&helper);
}

/* `me` 0 or 1: waits for the other's word, then writes its own, `count` times, all of it enqueued at once. */
static void enqueue_turns(struct gpu *gpu, rc_cu_ptr address, int me, int count) {
  rc_cu_ptr mine = address + (rc_cu_ptr)me * sizeof(struct rc_word);
  rc_cu_ptr other = address + (rc_cu_ptr)!me * sizeof(struct rc_word);
  for (uint64_t i = 1; i <= (uint64_t)count; i++) {
    must(rc_word_wait(gpu->cuda, gpu->stream, other, me == 0 ? i - 1 : i), "cuStreamWaitValue64");
    must(rc_word_write(gpu->cuda, gpu->stream, mine, i), "cuStreamWriteValue64");
  }
}

static void take_turns(struct helper *me, void *context) {
  int count;
  char ready = 1;
  helper_hear(me, &count, sizeof count);
  struct gpu gpu = gpu_open();
  enqueue_turns(&gpu, gpu_register(&gpu, context, PAGE), 1, count);
  helper_tell(me, &ready, 1);
  must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
}

/* From one process's stream to another's and back, by nothing but the words: what two contexts' turns cost. */
static void two_processes_streams(void) {
  struct rc_word *words = shared_memory(PAGE);
  struct helper helper = helper_start(take_turns, words);
  struct gpu gpu = gpu_open();
  rc_cu_ptr address = gpu_register(&gpu, words, PAGE);
  int count = rounds(100);
  char ready;
  helper_tell(&helper, &count, sizeof count);
  helper_hear(&helper, &ready, 1);
  double begun = now_us();
  enqueue_turns(&gpu, address, 0, count);
  must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
  await_word(&words[1], (uint64_t)count);
  figure_number("there_and_back_us", (now_us() - begun) / count);
  helper_end(&helper);
}

/* ---- What a pending wait holds up ------------------------------------------------------------------------------- */

static struct rc_word *pending;
static void release(void *context) {
  (void)context;
  rc_word_store(pending, 1);
}

/* Streams share the device's queues: one that waits may hold up others. Any number is an answer; how many there are is
 * looked at while the wait is still pending. */
static void other_streams_go_on(void) {
  enum { STREAMS = 64 };
  pending = shared_memory(PAGE);
  struct gpu gpu = gpu_open();
  rc_cu_ptr address = gpu_register(&gpu, pending, PAGE), from = gpu_alloc(&gpu, PAGE), to = gpu_alloc(&gpu, PAGE);
  static rc_cu_stream streams[STREAMS];
  for (int i = 0; i < STREAMS; i++)
    must(gpu.cuda->stream_create(&streams[i], RC_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  must(rc_word_wait(gpu.cuda, gpu.stream, address, 1), "cuStreamWaitValue64");
  struct later *bound = later(4 * LONG_MS, release, NULL); /* a call that hangs */
  double begun = now_us();
  for (int i = 0; i < STREAMS; i++) must(gpu.cuda->copy_dtod(to, from, 64, streams[i]), "cuMemcpyDtoDAsync");
  figure_number("enqueue_us", now_us() - begun);
  int held = STREAMS;
  while (held > 0 && now_us() - begun < LONG_MS * 1e3) {
    held = 0;
    for (int i = 0; i < STREAMS; i++) held += gpu.cuda->stream_query(streams[i]) == RC_CU_NOT_READY;
    sched_yield();
  }
  bool waits = gpu.cuda->stream_query(gpu.stream) == RC_CU_NOT_READY, hung = later_cancel(bound);
  release(NULL);
  must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
  for (int i = 0; i < STREAMS; i++) must(gpu.cuda->stream_synchronize(streams[i]), "cuStreamSynchronize of another");
  figure_integer("streams", STREAMS);
  figure_integer("held_up", held);
  figure_integer("a_call_hung", hung);
  if (!waits && !hung) failed("nothing was shown: the stream did not wait for its word");
  if (is_little() && held > 0) failed("%d streams of the fake were held up, each of which is a thread", held);
}

/* Calls that may wait for the whole device: what must not stand on the hot path, nor be needed to release the wait. */
struct call {
  const char *name;
  rc_cu_result (*call)(struct gpu *gpu);
};
static rc_cu_ptr spare, spare_other;
static void *spare_host;
static rc_cu_result call_alloc(struct gpu *gpu) { return gpu->cuda->mem_alloc(&spare, 4 << 20); }
static rc_cu_result call_free(struct gpu *gpu) { return gpu->cuda->mem_free(spare); }
static rc_cu_result call_register(struct gpu *gpu) { return gpu->cuda->host_register(spare_host, PAGE, 0); }
static rc_cu_result call_unregister(struct gpu *gpu) { return gpu->cuda->host_unregister(spare_host); }
static rc_cu_result call_create(struct gpu *gpu) {
  rc_cu_stream stream;
  rc_cu_result result = gpu->cuda->stream_create(&stream, RC_CU_STREAM_NON_BLOCKING);
  return result ? result : gpu->cuda->stream_destroy(stream);
}
static rc_cu_result call_export(struct gpu *gpu) {
  rc_cu_ipc_handle handle;
  return gpu->cuda->ipc_get_handle(&handle, spare_other);
}
static rc_cu_result call_alloc_async(struct gpu *gpu) {
  rc_cu_ptr memory;
  rc_cu_stream other;
  rc_cu_result result = gpu->cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING);
  if (!result) result = gpu->cuda->mem_alloc_async(&memory, 1 << 20, other);
  return result ? result : gpu->cuda->mem_free_async(memory, other);
}
static rc_cu_result call_pageable(struct gpu *gpu) {
  return gpu->cuda->copy_htod(spare_other, spare_host, PAGE, NULL); /* the legacy default stream */
}

static void calls_beside_a_wait(void) {
  static const struct call calls[] = {{"mem_alloc", call_alloc},
                                      {"mem_free", call_free},
                                      {"host_register", call_register},
                                      {"host_unregister", call_unregister},
                                      {"stream_create", call_create},
                                      {"ipc_get_handle", call_export},
                                      {"alloc_and_free_async", call_alloc_async},
                                      {"copy_on_the_default_stream", call_pageable}};
  pending = shared_memory(PAGE);
  spare_host = shared_memory(PAGE);
  struct gpu gpu = gpu_open();
  rc_cu_ptr address = gpu_register(&gpu, pending, PAGE);
  spare_other = gpu_alloc(&gpu, 4 << 20);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    char key[64];
    rc_word_store(pending, 0);
    must(rc_word_wait(gpu.cuda, gpu.stream, address, 1), "cuStreamWaitValue64");
    struct later *bound = later(LONG_MS, release, NULL);
    double begun = now_us();
    rc_cu_result result = calls[i].call(&gpu);
    snprintf(key, sizeof key, "%s_us", calls[i].name);
    figure_number(key, now_us() - begun);
    bool held = later_cancel(bound);
    release(NULL);
    must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
    snprintf(key, sizeof key, "%s_waited_for_the_wait", calls[i].name);
    figure_integer(key, held);
    if (result != RC_CU_SUCCESS) figure_result(calls[i].name, result);
  }
}

/* ---- The order of two streams ----------------------------------------------------------------------------------- */

/* By an event that is destroyed before either has come to it. */
static void stream_follows_another(void) {
  struct rc_word *word = shared_memory(PAGE);
  struct gpu gpu = gpu_open();
  rc_cu_ptr address = gpu_register(&gpu, word, PAGE);
  rc_cu_ptr from = gpu_alloc(&gpu, PAGE), by = gpu_alloc(&gpu, PAGE), to = gpu_alloc(&gpu, PAGE);
  rc_cu_stream other;
  must(gpu.cuda->stream_create(&other, RC_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  gpu_fill(&gpu, from, PAGE, 3);
  gpu_fill(&gpu, by, PAGE, 4);
  must(rc_word_wait(gpu.cuda, gpu.stream, address, 1), "cuStreamWaitValue64");
  must(gpu.cuda->copy_dtod(by, from, PAGE, gpu.stream), "cuMemcpyDtoDAsync");
  must_ringcast(ringcast_gpu_stream_follow(0, other, gpu.stream), "ringcast_gpu_stream_follow");
  must(gpu.cuda->copy_dtod(to, by, PAGE, other), "cuMemcpyDtoDAsync");
  if (gpu.cuda->stream_query(other) != RC_CU_NOT_READY) failed("a stream has gone on before the one that it follows");
  rc_word_store(word, 1);
  must(gpu.cuda->stream_synchronize(other), "cuStreamSynchronize");
  if (gpu_differing(&gpu, to, PAGE, 3) != 0) failed("a stream has not waited for the one that it follows");
}

const struct probe_case word_probes[] = {{"store_wakes_wait_64", store_wakes_64, 60, false},
                                         {"store_by_another_process", store_by_another_process, 60, false},
                                         {"two_processes_streams", two_processes_streams, 90, false},
                                         {"other_streams_beside_a_wait", other_streams_go_on, 60, false},
                                         {"calls_beside_a_wait", calls_beside_a_wait, 90, false},
                                         {"stream_follows_another", stream_follows_another, 30, false},
                                         {NULL, NULL, 0, false}};
