/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device for who has no library of its own to give it. Each piece holds the primary context by itself, so
 * that it may outlive all handles. */
#include "ringcast/gpu.h"

#include <errno.h>
#include <stdlib.h>

#include "gpu/device.h"
#include "shm/error.h"

struct ringcast_gpu_memory {
  struct rc_device device;
  rc_cu_stream stream;
  rc_cu_ptr memory;
  bool by_stream; /* it was allocated in the order of the stream, and is freed so */
};

/* The device, with its context current. 0, or -errno. */
static int enter(int32_t ordinal, struct rc_device *device, struct rc_cuda_entry *entry) {
  int failed = rc_device_open(ordinal, device);
  if (failed != 0) return failed;
  rc_cu_result result = rc_cuda_enter(device->context, entry);
  if (result == RC_CU_SUCCESS) return 0;
  rc_device_close(device);
  return rc_cuda_fail(result, "cuCtxPushCurrent");
}

static void leave(struct rc_device *device, struct rc_cuda_entry *entry) {
  rc_cuda_leave(entry);
  rc_device_close(device);
}

/* Without memory that is ordered by streams, other memory does, at the price of a wait when it is freed. */
static int allocate(ringcast_gpu_memory *memory, uint64_t bytes) {
  const struct rc_cuda *cuda = memory->device.cuda;
  rc_cu_result result = RC_CU_NOT_SUPPORTED;
  if (cuda->mem_alloc_async && cuda->mem_free_async)
    result = cuda->mem_alloc_async(&memory->memory, bytes, memory->stream);
  memory->by_stream = result == RC_CU_SUCCESS;
  if (result == RC_CU_NOT_SUPPORTED) result = cuda->mem_alloc(&memory->memory, bytes);
  if (result == RC_CU_SUCCESS) return 0;
  return rc_cuda_fail(result, "%llu bytes of device memory", (unsigned long long)bytes);
}

int ringcast_gpu_memory_new(int32_t ordinal, uint64_t bytes, ringcast_stream stream, ringcast_gpu_memory **out,
                            ringcast_device_ptr *address) {
  struct rc_cuda_entry entry;
  if (bytes == 0) return rc_fail_as(-EINVAL, "memory of no bytes");
  ringcast_gpu_memory *memory = calloc(1, sizeof *memory);
  if (!memory) return rc_fail(-ENOMEM, "out of memory");
  memory->stream = stream;
  int failed = enter(ordinal, &memory->device, &entry);
  if (failed != 0) {
    free(memory);
    return failed;
  }
  failed = allocate(memory, bytes);
  if (failed != 0) {
    leave(&memory->device, &entry);
    free(memory);
    return failed;
  }
  rc_cuda_leave(&entry); /* the context is kept */
  *out = memory;
  *address = memory->memory;
  return 0;
}

void ringcast_gpu_memory_free(ringcast_gpu_memory *memory) {
  struct rc_cuda_entry entry;
  if (!memory) return;
  const struct rc_cuda *cuda = rc_cuda(); /* NULL in a child of a fork: there the memory is its parent's */
  if (cuda && rc_cuda_enter(memory->device.context, &entry) == RC_CU_SUCCESS) {
    if (memory->by_stream) cuda->mem_free_async(memory->memory, memory->stream);
    else cuda->mem_free(memory->memory);
    leave(&memory->device, &entry);
  }
  free(memory);
}

int ringcast_gpu_stream_wait(int32_t ordinal, ringcast_stream stream) {
  struct rc_device device;
  struct rc_cuda_entry entry;
  int failed = enter(ordinal, &device, &entry);
  if (failed != 0) return failed;
  rc_cu_result result = device.cuda->stream_synchronize(stream);
  leave(&device, &entry);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "cuStreamSynchronize");
}
