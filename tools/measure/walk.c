/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tools/measure/walk.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/perf.h"

enum { LINE = 64, UNKNOWN = 64 << 20 };

void walk_make(struct walk *walk, size_t bytes) {
  long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes == 0) bytes = cache > 0 ? 2 * (size_t)cache : UNKNOWN;
  void *memory = perf_shared(bytes);
  memset(memory, 1, bytes);
  *walk = (struct walk){.bytes = bytes, .memory = memory};
}

void walk_destroy(struct walk *walk) {
  if (walk->bytes > 0) perf_unshare((void *)(uintptr_t)walk->memory, walk->bytes);
}

static int64_t cpu_now_ns(void) {
  struct timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

int64_t walk_once(const struct walk *walk) {
  uint64_t sum = 0;
  int64_t start = cpu_now_ns();
  for (size_t i = 0; i < walk->bytes / sizeof sum; i += LINE / sizeof sum) sum += walk->memory[i];
  __asm__ volatile("" ::"r"(sum)); /* keeps the loads: the sum has no other use */
  return cpu_now_ns() - start;
}
