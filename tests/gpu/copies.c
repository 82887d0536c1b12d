/* SPDX-License-Identifier: Apache-2.0 */
/* Copies from registered memory, from ordinary memory and within the device, and how fast. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/gpu/probe.h"
#include "tests/gpu/run.h"

enum { ROUNDS = 50 };

struct timed {
  double call[ROUNDS], whole[ROUNDS];
};

static void figures_of(const char *name, struct timed *timed, int count, uint64_t bytes) {
  char key[96];
  snprintf(key, sizeof key, "%s_call_us", name);
  figure_spread(key, timed->call, (size_t)count);
  snprintf(key, sizeof key, "%s_whole_us", name);
  figure_spread(key, timed->whole, (size_t)count);
  if (!bytes) return;
  snprintf(key, sizeof key, "%s_gb_per_s", name);
  figure_number(key, (double)bytes / timed->whole[count / 2] / 1e3);
}

/* `tensors` copies of `each` bytes, one after the other. */
static void copy_in(struct gpu *gpu, struct timed *timed, int round, rc_cu_ptr to, const uint8_t *from, int tensors,
                    size_t each) {
  double begun = now_us();
  for (int i = 0; i < tensors; i++)
    must(gpu->cuda->copy_htod(to + (rc_cu_ptr)i * each, from + (size_t)i * each, each, gpu->stream),
         "cuMemcpyHtoDAsync");
  timed->call[round] = now_us() - begun;
  must(gpu->cuda->stream_synchronize(gpu->stream), "cuStreamSynchronize");
  timed->whole[round] = now_us() - begun;
}

static void bandwidths(void) {
  const size_t bytes = is_little() ? 1 << 20 : 256 << 20;
  static struct timed pinned, pageable, back, within;
  uint8_t *registered = shared_memory(bytes), *plain = shared_memory(bytes);
  struct gpu gpu = gpu_open();
  rc_cu_ptr device = gpu_alloc(&gpu, bytes), other = gpu_alloc(&gpu, bytes);
  gpu_register(&gpu, registered, bytes);
  memset(plain, 1, bytes);
  int count = rounds(10);
  for (int round = -1; round < count; round++) {
    int at = round < 0 ? 0 : round;
    copy_in(&gpu, &pinned, at, device, registered, 1, bytes);
    copy_in(&gpu, &pageable, at, device, plain, 1, bytes);
    double begun = now_us();
    must(gpu.cuda->copy_dtoh(registered, device, bytes, gpu.stream), "cuMemcpyDtoHAsync");
    back.call[at] = now_us() - begun;
    must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
    back.whole[at] = now_us() - begun;
    begun = now_us();
    must(gpu.cuda->copy_dtod(other, device, bytes, gpu.stream), "cuMemcpyDtoDAsync");
    within.call[at] = now_us() - begun;
    must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
    within.whole[at] = now_us() - begun;
  }
  figure_integer("bytes", (int64_t)bytes);
  figures_of("host_to_device_registered", &pinned, count, bytes);
  figures_of("host_to_device_pageable", &pageable, count, bytes);
  figures_of("device_to_host_registered", &back, count, bytes);
  figures_of("within_the_device", &within, count, bytes);
}

/* That the kernel by which producers are delayed does delay, and is bounded. */
static void spinning_kernel(void) {
  uint32_t *word = shared_memory(4096);
  struct gpu gpu = gpu_open();
  rc_cu_ptr address = gpu_register(&gpu, word, 4096);
  double begun = now_us();
  gpu_spin(gpu.stream, address, UINT64_C(10000000000));
  figure_number("load_and_launch_us", now_us() - begun);
  for (double until = now_us() + 20000; now_us() < until;)
    if (gpu.cuda->stream_query(gpu.stream) != RC_CU_NOT_READY) failed("it does not spin");
  begun = now_us();
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
  figure_number("store_to_end_us", now_us() - begun);
  __atomic_store_n(word, 0, __ATOMIC_RELEASE);
  begun = now_us();
  gpu_spin(gpu.stream, address, 20000000);
  must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
  figure_number("bound_of_20_ms_us", now_us() - begun);
}

const struct probe_case copy_probes[] = {
    {"spinning_kernel", spinning_kernel, 60, false}, {"bandwidths", bandwidths, 60, false}, {NULL, NULL, 0, false}};
