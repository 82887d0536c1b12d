/* SPDX-License-Identifier: Apache-2.0 */
/* ringcast_gpu_status and ringcast_gpu_device: the driver, and the operations that a device can do. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/semaphore.h"
#include "ringcast/gpu.h"
#include "shm/environment.h"
#include "shm/error.h"
#include "shm/memory.h"
#include "shm/os.h"
#include "shm/sized.h"

#define EXPORT_BYTES ((size_t)2 << 20)

int ringcast_gpu_status(struct ringcast_gpu_driver *out) {
  int failed = rc_sized_check("ringcast_gpu_driver", out ? out->size : 0);
  if (failed != 0) return failed;
  const struct rc_cuda_status *status = rc_cuda_status();
  struct ringcast_gpu_driver driver = {
      .ready = status->mode == RC_CUDA_READY,
      .version = status->version,
      .devices = status->devices,
      .result = status->result,
  };
  snprintf(driver.why, sizeof driver.why, "%s", status->why);
  rc_sized_write(out, out->size, &driver, sizeof driver);
  return 0;
}

/* ---- Trying ----------------------------------------------------------------------------------------------------- */

/* A page of shared host memory, as the pages of a ring; NULL: out of memory. */
static void *map_page(size_t bytes) {
  void *page;
  return rc_os.map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, &page) == 0 ? page : NULL;
}

/* Returns whether the page may be unmapped: not while a stream may wait for a semaphore in the page. */
static bool try_registered(const struct rc_cuda *cuda, void *page, struct ringcast_gpu_device_info *out) {
  struct rc_semaphore *words = page;
  rc_cu_ptr address;
  rc_cu_result result = cuda->host_get_device_pointer(&address, page, 0);
  int failed = result == RC_CU_SUCCESS ? rc_semaphores_try(cuda, words, address, rc_semaphore_patience_ns)
                                       : rc_cuda_fail(result, "cuMemHostGetDevicePointer");
  out->words = failed == 0 ? 1 : failed;
  if (out->words == -ETIMEDOUT) return false;
  result = cuda->host_unregister(page);
  if (result == RC_CU_SUCCESS) return true;
  out->registers = rc_cuda_fail(result, "cuMemHostUnregister");
  return false;
}

/* Returns as try_registered. */
static bool try_memory(const struct rc_cuda *cuda, struct ringcast_gpu_device_info *out) {
  size_t bytes = rc_small_page();
  void *page = rc_feature_disabled("cuda_register") ? NULL : map_page(bytes);
  if (!page) return true;
  rc_cu_result result =
      cuda->host_register(page, bytes, RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP);
  out->registers = result == RC_CU_SUCCESS ? 1 : rc_cuda_fail(result, "cuMemHostRegister");
  if (out->registers == 1 && !try_registered(cuda, page, out)) return false;
  munmap(page, bytes);
  return true;
}

static void try_export(const struct rc_cuda *cuda, struct ringcast_gpu_device_info *out) {
  rc_cu_ptr memory;
  rc_cu_ipc_handle handle;
  if (rc_feature_disabled("cuda_pool")) return;
  rc_cu_result result = cuda->mem_alloc(&memory, EXPORT_BYTES);
  if (result == RC_CU_SUCCESS) {
    result = cuda->ipc_get_handle(&handle, memory);
    rc_cu_result freed = cuda->mem_free(memory);
    if (result == RC_CU_SUCCESS) result = freed;
  }
  out->exports = result == RC_CU_SUCCESS ? 1 : rc_cuda_fail(result, "exporting memory of the device");
}

/* A context in which a stream may hang is not released, as the release could wait for the stream. */
static int try_device(const struct rc_cuda *cuda, rc_cu_device device, struct ringcast_gpu_device_info *out) {
  struct rc_cuda_entry entry;
  rc_cu_context context;
  size_t free_bytes, total_bytes;
  rc_cu_result result = cuda->primary_retain(&context, device);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "the context of device %d", device);
  int failed = 0;
  bool idle = true;
  result = rc_cuda_enter(context, &entry);
  if (result == RC_CU_SUCCESS) result = cuda->mem_get_info(&free_bytes, &total_bytes);
  if (result == RC_CU_SUCCESS) {
    out->free_bytes = free_bytes;
    out->total_bytes = total_bytes;
    try_export(cuda, out);
    idle = try_memory(cuda, out);
  } else {
    failed = rc_cuda_fail(result, "the context of device %d", device);
  }
  rc_cuda_leave(&entry);
  if (idle) cuda->primary_release(device);
  return failed;
}

static int probe_device(const struct rc_cuda *cuda, rc_cu_device device, struct ringcast_gpu_device_info *out) {
  struct rc_cuda_entry entry;
  rc_cuda_relax(&entry);
  int failed = try_device(cuda, device, out);
  rc_cuda_leave(&entry);
  return failed;
}

static int describe(const struct rc_cuda *cuda, int32_t ordinal, rc_cu_device *device,
                    struct ringcast_gpu_device_info *out) {
  rc_cu_uuid uuid;
  rc_cu_result result = cuda->device_get(device, ordinal);
  if (result == RC_CU_SUCCESS) result = cuda->device_get_name(out->name, sizeof out->name, *device);
  if (result == RC_CU_SUCCESS) result = cuda->device_get_uuid(&uuid, *device);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "device %d", ordinal);
  memcpy(out->uuid, &uuid, sizeof out->uuid);
  return 0;
}

int ringcast_gpu_device(int32_t ordinal, int probe, struct ringcast_gpu_device_info *out) {
  int failed = rc_sized_check("ringcast_gpu_device_info", out ? out->size : 0);
  if (failed != 0) return failed;
  const struct rc_cuda *cuda = rc_cuda();
  if (!cuda) return rc_fail(-ENODEV, "there is no GPU to use: %s", rc_cuda_status()->why);
  if (ordinal < 0 || ordinal >= rc_cuda_status()->devices)
    return rc_fail(-EINVAL, "there is no device %d: this process sees %d", ordinal, rc_cuda_status()->devices);
  struct ringcast_gpu_device_info found = {.size = 0}; /* rc_sized_write sets the caller's size */
  rc_cu_device device;
  failed = describe(cuda, ordinal, &device, &found);
  if (failed == 0 && probe) failed = probe_device(cuda, device, &found);
  if (failed == 0) rc_sized_write(out, out->size, &found, sizeof found);
  return failed;
}
