/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that is registered: of every kind that a ring may be made of; and what a process costs the device. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ringcast/gpu.h"
#include "tests/gpu/probe.h"
#include "tests/gpu/run.h"

enum { HUGE = 2 << 20, PAGE = 4096 };
static const unsigned MAPPED = RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP;

/* ---- Registering ------------------------------------------------------------------------------------------------ */

/* Whether bytes get there and back, `at` bytes into it; and what registering took. */
static void try_registering(struct gpu *gpu, const char *name, uint8_t *memory, size_t bytes, size_t at) {
  enum { TRIED = 65536 };
  static uint8_t came[TRIED];
  char key[96];
  double begun = now_us();
  rc_cu_result result = gpu->cuda->host_register(memory, bytes, MAPPED);
  snprintf(key, sizeof key, "%s_register_us", name);
  figure_number(key, now_us() - begun);
  figure_result(name, result);
  if (result != RC_CU_SUCCESS) return;
  rc_cu_ptr device = gpu_alloc(gpu, TRIED);
  for (size_t i = 0; i < TRIED; i++) memory[at + i] = (uint8_t)(i * 7 + 3);
  must(gpu->cuda->copy_htod(device, memory + at, TRIED, gpu->stream), "cuMemcpyHtoDAsync from registered memory");
  must(gpu->cuda->stream_synchronize(gpu->stream), "cuStreamSynchronize");
  must(gpu->cuda->copy_dtoh(came, device, TRIED, gpu->stream), "cuMemcpyDtoHAsync");
  memset(memory + at, 0, TRIED);
  must(gpu->cuda->stream_synchronize(gpu->stream), "cuStreamSynchronize");
  must(gpu->cuda->copy_dtoh(memory + at, device, TRIED, gpu->stream), "cuMemcpyDtoHAsync to registered memory");
  must(gpu->cuda->stream_synchronize(gpu->stream), "cuStreamSynchronize");
  for (size_t i = 0; i < TRIED; i++)
    if (came[i] != (uint8_t)(i * 7 + 3) || memory[at + i] != came[i]) failed("%s: byte %zu is wrong", name, i);
  must(gpu->cuda->host_unregister(memory), "cuMemHostUnregister");
  must(gpu->cuda->mem_free(device), "cuMemFree");
}

static int memory_file(unsigned flags, size_t bytes) {
  int fd = memfd_create("probe", MFD_CLOEXEC | flags);
  if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

static void register_kinds(void) {
  enum { BYTES = 8 * HUGE };
  struct gpu gpu = gpu_open();
  uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  try_registering(&gpu, "anonymous", memory, BYTES, 100);
  int fd = memory_file(0, BYTES);
  memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  try_registering(&gpu, "memfd", memory, BYTES, 100);
  madvise(memory, BYTES, MADV_HUGEPAGE);
#ifdef MADV_COLLAPSE
  figure_integer("collapse_errno", madvise(memory, BYTES, MADV_COLLAPSE) == 0 ? 0 : errno);
#endif
  try_registering(&gpu, "memfd_collapsed", memory, BYTES, 100);
  fd = memory_file(MFD_HUGETLB | MFD_HUGE_2MB, BYTES);
  memory = fd < 0 ? MAP_FAILED : mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) figure_text("hugetlb", "no pages of 2 MiB are reserved");
  else try_registering(&gpu, "hugetlb", memory, BYTES, 100);
}

/* The same file twice in a row, as a ring maps its data, registered as one range; bytes across the seam. */
static void register_mirrored(void) {
  enum { BYTES = 4 * HUGE };
  struct gpu gpu = gpu_open();
  int fd = memory_file(0, BYTES);
  uint8_t *memory = mmap(NULL, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < 2; i++)
    if (mmap(memory + i * BYTES, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
      failed("can't map it twice: %s", strerror(errno));
  try_registering(&gpu, "mirrored", memory, 2 * BYTES, BYTES - 1000);
}

/* ---- What a process costs --------------------------------------------------------------------------------------- */

static void hold_context(struct helper *me, void *context) {
  char byte = 1;
  (void)context;
  helper_hear(me, &byte, 1);
  double begun = now_us();
  gpu_open();
  double took = now_us() - begun;
  helper_tell(me, &took, sizeof took);
  helper_hear(me, &byte, 1);
}

static void contexts(void) {
  enum { HELPERS = 3 };
  struct helper helpers[HELPERS];
  double took[HELPERS], held[HELPERS];
  char byte = 1;
  for (int i = 0; i < HELPERS; i++) helpers[i] = helper_start(hold_context, NULL);
  double begun = now_us();
  struct gpu gpu = gpu_open();
  figure_number("first_open_ms", (now_us() - begun) / 1e3);
  for (int i = 0; i < HELPERS; i++) {
    size_t before = gpu_free_bytes(&gpu);
    helper_tell(&helpers[i], &byte, 1);
    helper_hear(&helpers[i], &took[i], sizeof took[i]);
    held[i] = ((double)before - (double)gpu_free_bytes(&gpu)) / (1 << 20);
    took[i] /= 1e3;
  }
  size_t before = gpu_free_bytes(&gpu);
  for (int i = 0; i < HELPERS; i++) {
    helper_tell(&helpers[i], &byte, 1);
    helper_end(&helpers[i]);
  }
  figure_spread("open_ms", took, HELPERS);
  figure_spread("context_mib", held, HELPERS);
  figure_number("given_back_mib", ((double)gpu_free_bytes(&gpu) - (double)before) / (1 << 20));
}

/* ---- The driver, and what the library finds --------------------------------------------------------------------- */

static void driver(void) {
  double begun = now_us();
  bool has_driver = rc_cuda() != NULL;
  figure_number("start_ms", (now_us() - begun) / 1e3);
  if (!has_driver) skipped("%s", rc_cuda_status()->why);
  struct ringcast_gpu_device_info device = {.size = sizeof device};
  figure_integer("version", rc_cuda_status()->version);
  figure_integer("devices", rc_cuda_status()->devices);
  begun = now_us();
  must_ringcast(ringcast_gpu_device(0, 1, &device), "ringcast_gpu_device");
  figure_number("probe_ms", (now_us() - begun) / 1e3);
  figure_text("name", device.name);
  figure_integer("words", device.words);
  figure_integer("registers", device.registers);
  figure_integer("exports", device.exports);
  if (device.words != 1) failed("no words: all would go INLINE");
}

const struct probe_case memory_probes[] = {{"driver", driver, 60, false},
                                           {"contexts", contexts, 90, false},
                                           {"register_kinds_of_memory", register_kinds, 60, false},
                                           {"register_mirrored", register_mirrored, 60, false},
                                           {NULL, NULL, 0, false}};
