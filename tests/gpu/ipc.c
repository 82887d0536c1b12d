/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of one process, opened by another: whether it works, what it costs, and what becomes of it when the one that
 * it belongs to frees it or dies. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "tests/gpu/probe.h"
#include "tests/gpu/run.h"

enum { MIB = 1 << 20, TRIED = 65536 };

/* ---- The exporter ----------------------------------------------------------------------------------------------- */

/* Answers to a size with the handle of memory of that size, filled with the pattern `seed`; to 0 by freeing it. */
struct offer {
  rc_cu_result result;
  rc_cu_ipc_handle handle;
  unsigned seed;
};

static void serve(struct helper *me, void *context) {
  uint64_t bytes;
  rc_cu_ptr memory = 0;
  unsigned seed = 0;
  (void)context;
  helper_hear(me, &bytes, sizeof bytes);
  struct gpu gpu = gpu_open();
  for (;; helper_hear(me, &bytes, sizeof bytes)) {
    struct offer offer = {.seed = ++seed};
    if (bytes == UINT64_MAX) return;
    if (bytes == 0) {
      offer.result = gpu.cuda->mem_free(memory);
    } else if ((offer.result = gpu.cuda->mem_alloc(&memory, bytes)) == RC_CU_SUCCESS) {
      gpu_fill(&gpu, memory, TRIED, seed);
      offer.result = gpu.cuda->ipc_get_handle(&offer.handle, memory);
    }
    helper_tell(me, &offer, sizeof offer);
  }
}

static struct offer ask(struct helper *helper, uint64_t bytes) {
  struct offer offer;
  helper_tell(helper, &bytes, sizeof bytes);
  helper_hear(helper, &offer, sizeof offer);
  return offer;
}

static void dismiss(struct helper *helper) {
  uint64_t end = UINT64_MAX;
  helper_tell(helper, &end, sizeof end);
  helper_end(helper);
}

static rc_cu_result open_it(struct gpu *gpu, const struct offer *offer, rc_cu_ptr *out) {
  return gpu->cuda->ipc_open_handle(out, offer->handle, RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static void must_share(rc_cu_result result, const char *what) {
  char why[160];
  snprintf(why, sizeof why, "%s: %s (%d)", what, rc_cuda_name(result), result);
  if (result != RC_CU_SUCCESS) no_pool(why);
}

/* ---- Probes ----------------------------------------------------------------------------------------------------- */

static void open_costs(void) {
  static const struct {
    const char *name;
    uint64_t bytes;
  } sizes[] = {{"2MiB", 2 * MIB}, {"256MiB", 256 * (uint64_t)MIB}, {"8GiB", 8192 * (uint64_t)MIB}};
  struct helper helper = helper_start(serve, NULL);
  struct gpu gpu = gpu_open();
  for (int i = 0; i < 3; i++) {
    char key[64];
    if (is_little() && i > 0) break; /* 8 GiB are for a device */
    struct offer offer = ask(&helper, sizes[i].bytes);
    if (offer.result != RC_CU_SUCCESS) {
      figure_result(sizes[i].name, offer.result);
      continue;
    }
    double opened[8], closed[8];
    for (int round = 0; round < 8; round++) {
      rc_cu_ptr memory;
      double begun = now_us();
      must_share(open_it(&gpu, &offer, &memory), "cuIpcOpenMemHandle");
      opened[round] = now_us() - begun;
      if (round == 0 && gpu_differing(&gpu, memory, TRIED, offer.seed) != 0) failed("the bytes are not the exporter's");
      begun = now_us();
      must(gpu.cuda->ipc_close_handle(memory), "cuIpcCloseMemHandle");
      closed[round] = now_us() - begun;
    }
    snprintf(key, sizeof key, "open_%s_first_us", sizes[i].name);
    figure_number(key, opened[0]);
    snprintf(key, sizeof key, "open_%s_us", sizes[i].name);
    figure_spread(key, opened, 8);
    snprintf(key, sizeof key, "close_%s_us", sizes[i].name);
    figure_spread(key, closed, 8);
    offer = ask(&helper, 0);
    figure_result("free_after_close", offer.result);
  }
  dismiss(&helper);
}

/* As a figure, whatever it is. */
static bool did(const char *key, rc_cu_result result) {
  figure_result(key, result);
  return result == RC_CU_SUCCESS;
}

static void open_twice_and_by_itself(void) {
  struct helper helper = helper_start(serve, NULL);
  struct gpu gpu = gpu_open();
  rc_cu_ptr one, two, mine = gpu_alloc(&gpu, 2 * MIB);
  struct offer offer = ask(&helper, 2 * MIB), own;
  if (did("export", gpu.cuda->ipc_get_handle(&own.handle, mine)))
    figure_result("open_in_the_same_process", open_it(&gpu, &own, &one)); /* 201 is expected */
  if (!did("export_elsewhere", offer.result) || !did("open", open_it(&gpu, &offer, &one))) return;
  rc_cu_result again = open_it(&gpu, &offer, &two);
  figure_result("open_again", again);
  if (again == RC_CU_SUCCESS) {
    figure_integer("same_address", one == two);
    figure_result("close_one", gpu.cuda->ipc_close_handle(two));
  }
  figure_shows("the_other_is_still_open", &gpu, one, TRIED, offer.seed);
  figure_result("close_the_other", gpu.cuda->ipc_close_handle(one));
  dismiss(&helper);
}

/* Free and allocate again: are the handle's bytes the same, and what does an opener of the old one see? */
static void handles_after_free(void) {
  struct helper helper = helper_start(serve, NULL);
  struct gpu gpu = gpu_open();
  struct offer before = ask(&helper, 2 * MIB), freed = ask(&helper, 0), after = ask(&helper, 2 * MIB);
  if (!did("export", before.result) || !did("free", freed.result) || !did("export_again", after.result)) return;
  figure_integer("same_bytes_when_nobody_had_it_open", memcmp(&before.handle, &after.handle, 64) == 0);
  rc_cu_ptr memory;
  rc_cu_result result = open_it(&gpu, &before, &memory);
  figure_result("open_old_handle", result);
  if (result == RC_CU_SUCCESS) {
    figure_shows("old_handle_shows_new_memory", &gpu, memory, TRIED, after.seed);
    gpu.cuda->ipc_close_handle(memory);
  }
  if (!did("open", open_it(&gpu, &after, &memory))) return;
  freed = ask(&helper, 0); /* while it is open here */
  figure_result("free_while_open", freed.result);
  struct offer third = ask(&helper, 2 * MIB);
  figure_integer("same_bytes_when_it_was_open", memcmp(&third.handle, &after.handle, 64) == 0);
  figure_shows("old_view_shows_new_memory", &gpu, memory, TRIED, third.seed);
  figure_shows("old_view_shows_old_memory", &gpu, memory, TRIED, after.seed);
  rc_cu_ptr again = 0;
  result = open_it(&gpu, &third, &again);
  figure_result("open_new_handle_while_old_is_open", result);
  if (result == RC_CU_SUCCESS) {
    figure_integer("new_view_at_the_old_address", again == memory);
    figure_shows("new_view_shows_new_memory", &gpu, again, TRIED, third.seed);
    gpu.cuda->ipc_close_handle(again);
  }
  figure_result("close_old", gpu.cuda->ipc_close_handle(memory));
  dismiss(&helper);
}

/* SIGKILL of the one that the memory belongs to, while it is open here. What is read then is undefined; it must only be
 * known whether the reader's context survives it. */
static void exporter_dies(void) {
  struct helper helper = helper_start(serve, NULL);
  struct gpu gpu = gpu_open();
  struct offer offer = ask(&helper, 2 * MIB);
  static uint8_t host[TRIED];
  rc_cu_ptr memory, mine = gpu_alloc(&gpu, TRIED);
  must_share(offer.result, "cuIpcGetMemHandle");
  must_share(open_it(&gpu, &offer, &memory), "cuIpcOpenMemHandle");
  helper_kill(&helper);
  rc_cu_result result = gpu.cuda->copy_dtoh(host, memory, TRIED, gpu.stream);
  if (result == RC_CU_SUCCESS) result = gpu.cuda->stream_synchronize(gpu.stream);
  figure_result("read_after_death", result);
  if (result == RC_CU_SUCCESS) figure_integer("bytes_differ", (int64_t)gpu_differing(&gpu, memory, TRIED, offer.seed));
  rc_cu_ptr again;
  figure_result("open_after_death", open_it(&gpu, &offer, &again));
  figure_result("close_after_death", gpu.cuda->ipc_close_handle(memory));
  must(gpu.cuda->copy_htod(mine, host, TRIED, gpu.stream), "this process's own memory after that");
  must(gpu.cuda->stream_synchronize(gpu.stream), "this process's own stream after that");
}

/* Its memory is the device's until the opener closes, too. */
static void memory_of_the_dead(void) {
  struct helper helper = helper_start(serve, NULL);
  struct gpu gpu = gpu_open();
  uint64_t bytes = (is_little() ? 2 : 512) * (uint64_t)MIB;
  struct offer offer = ask(&helper, bytes);
  rc_cu_ptr memory;
  must_share(offer.result, "cuIpcGetMemHandle");
  must_share(open_it(&gpu, &offer, &memory), "cuIpcOpenMemHandle");
  size_t before = gpu_free_bytes(&gpu);
  helper_kill(&helper);
  figure_number("free_after_death_mib", ((double)gpu_free_bytes(&gpu) - (double)before) / MIB);
  figure_result("close", gpu.cuda->ipc_close_handle(memory));
  figure_number("free_after_close_mib", ((double)gpu_free_bytes(&gpu) - (double)before) / MIB);
  figure_number("memory_mib", (double)bytes / MIB);
}

/* What can't be exported, and how that is told: the base of memory that is not the caller's to give. */
static void what_is_not_exported(void) {
  struct gpu gpu = gpu_open();
  rc_cu_ipc_handle handle;
  rc_cu_ptr memory = gpu_alloc(&gpu, 2 * MIB), pooled;
  int capable = 0; /* of which the driver may write one byte */
  figure_result("from_the_middle", gpu.cuda->ipc_get_handle(&handle, memory + 4096));
  must(gpu.cuda->mem_alloc_async(&pooled, 2 * MIB, gpu.stream), "cuMemAllocAsync");
  must(gpu.cuda->stream_synchronize(gpu.stream), "cuStreamSynchronize");
  must(cuda_more()->pointer_get_attribute(&capable, RC_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pooled),
       "cuPointerGetAttribute");
  figure_integer("pooled_is_said_to_be_capable", capable);
  figure_result("pooled", gpu.cuda->ipc_get_handle(&handle, pooled));
  capable = 0;
  must(cuda_more()->pointer_get_attribute(&capable, RC_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory),
       "cuPointerGetAttribute");
  figure_integer("allocated_is_said_to_be_capable", capable);
}

const struct probe_case ipc_probes[] = {{"ipc_open_costs", open_costs, 120, false},
                                        {"ipc_open_twice_and_by_itself", open_twice_and_by_itself, 60, true},
                                        {"ipc_handles_after_free", handles_after_free, 60, true},
                                        {"ipc_exporter_dies", exporter_dies, 60, false},
                                        {"ipc_memory_of_the_dead", memory_of_the_dead, 60, false},
                                        {"ipc_what_is_not_exported", what_is_not_exported, 30, false},
                                        {NULL, NULL, 0, false}};
