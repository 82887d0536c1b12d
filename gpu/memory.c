/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for received tensors, and functions on streams that need no handle. The memory holds the device's
 * context, so it may outlive the reader. The memory is freed in the order of the stream. The worker frees the memory if
 * the stream captures a graph, which would take in the call, or if the device can't free in order, as the call may
 * wait.
 */
#include <errno.h>
#include <stdlib.h>

#include "gpu/reader.h"
#include "shm/error.h"

struct ringcast_gpu_memory {
  struct rc_device device;
  rc_cu_ptr address;
  rc_cu_stream stream;
  uint32_t forks;
  bool in_order; /* of the stream */
  struct rc_job job;
};

static int allocate(ringcast_gpu_memory *memory, uint64_t bytes) {
  const struct rc_cuda *cuda = memory->device.cuda;
  rc_cu_result result = cuda->mem_alloc_async(&memory->address, bytes, memory->stream);
  memory->in_order = result != RC_CU_NOT_SUPPORTED; /* the result of a device without memory pools */
  if (!memory->in_order) result = cuda->mem_alloc(&memory->address, bytes);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "memory of %llu bytes", (unsigned long long)bytes);
}

/* Called by the worker, or by the caller. If the context can't be entered, the memory has gone with the context. */
static bool try_to_free(struct rc_job *job) {
  ringcast_gpu_memory *memory = RC_CONTAINER_OF(job, ringcast_gpu_memory, job);
  const struct rc_cuda *cuda = memory->device.cuda;
  struct rc_cuda_entry entry;
  if (rc_cuda_enter(memory->device.context, &entry) == RC_CU_SUCCESS) {
    bool captures = memory->in_order && rc_device_check_stream(&memory->device, memory->stream) == -EBUSY;
    if (!memory->in_order) cuda->mem_free(memory->address);
    else if (!captures) cuda->mem_free_async(memory->address, memory->stream);
    rc_cuda_leave(&entry);
    if (captures) return false;
  }
  rc_device_close(&memory->device);
  return true;
}

static void free_job(struct rc_job *job) { free(RC_CONTAINER_OF(job, ringcast_gpu_memory, job)); }

int ringcast_gpu_memory_alloc(ringcast_gpu_reader *gpu, uint64_t bytes, ringcast_stream stream,
                              ringcast_device_ptr *out, ringcast_gpu_memory **out_memory) {
  struct rc_cuda_entry entry;
  int failed = rc_gpu_reader_enter(gpu, &entry);
  if (failed != 0) return failed;
  ringcast_gpu_memory *memory = calloc(1, sizeof *memory);
  failed = memory ? rc_device_check_stream(&gpu->device, stream) : rc_fail(-ENOMEM, "out of memory");
  if (failed == 0) failed = rc_device_open(gpu->device.ordinal, &memory->device);
  if (memory && failed == 0) {
    memory->stream = stream;
    memory->forks = gpu->forks;
    failed = allocate(memory, bytes > 0 ? bytes : 1);
    if (failed != 0) rc_device_close(&memory->device);
  }
  rc_cuda_leave(&entry);
  if (!memory || failed != 0) {
    free(memory);
    return rc_gpu_reader_failed(gpu, failed);
  }
  *out = memory->address;
  *out_memory = memory;
  return 0;
}

void ringcast_gpu_memory_free(ringcast_gpu_memory *memory) {
  if (!memory) return;
  if (memory->forks != rc_fork_count()) { /* the memory is the parent's */
    free(memory);
    return;
  }
  memory->job = (struct rc_job){.run = try_to_free, .end = free_job};
  if (memory->in_order && try_to_free(&memory->job)) free(memory);
  else rc_worker_do(&memory->job, 0);
}

/* ---- Without a handle ------------------------------------------------------------------------------------------- */

/* With the device's context current, and after a look whether the stream captures: 0, or nothing is entered. */
static int enter(int32_t ordinal, rc_cu_stream stream, struct rc_device *device, struct rc_cuda_entry *entry) {
  int failed = rc_device_open(ordinal, device);
  if (failed != 0) return failed;
  failed = rc_device_enter(device, true, entry);
  if (failed == 0) failed = rc_device_check_stream(device, stream);
  if (failed == 0) return 0;
  rc_cuda_leave(entry);
  rc_device_close(device);
  return failed;
}

static int leave(struct rc_device *device, struct rc_cuda_entry *entry, int failed) {
  rc_cuda_leave(entry);
  rc_device_close(device);
  return failed;
}

static int wait_for(const struct rc_device *device, rc_cu_stream stream) {
  rc_cu_result result = device->cuda->stream_synchronize(stream);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "cuStreamSynchronize");
}

int ringcast_gpu_copy_back(int32_t ordinal, const struct ringcast_tensor *tensor, void *to, ringcast_stream stream) {
  struct rc_device device;
  struct rc_cuda_entry entry;
  int failed = enter(ordinal, stream, &device, &entry);
  if (failed != 0) return failed;
  failed = rc_device_copy(&device, tensor, 0, to, stream);
  if (failed == 0) failed = wait_for(&device, stream);
  return leave(&device, &entry, failed);
}

int ringcast_gpu_stream_wait(int32_t ordinal, ringcast_stream stream) {
  struct rc_device device;
  struct rc_cuda_entry entry;
  int failed = enter(ordinal, stream, &device, &entry);
  return failed != 0 ? failed : leave(&device, &entry, wait_for(&device, stream));
}

struct idle_job {
  struct rc_job job;
  struct rc_device device;
  void (*run)(void *context);
  void *context;
};

/* Called by the worker. CUDA refuses to wait for a context while a stream of the context captures a graph: the worker
 * tries again. After any other failure the context is lost, and its streams do nothing more. */
static bool await_all(struct rc_job *job) {
  struct idle_job *idle = RC_CONTAINER_OF(job, struct idle_job, job);
  struct rc_cuda_entry entry;
  rc_cu_result result = rc_cuda_enter(idle->device.context, &entry);
  if (result == RC_CU_SUCCESS) {
    result = idle->device.cuda->ctx_synchronize();
    rc_cuda_leave(&entry);
  }
  if (result != RC_CU_SUCCESS && rc_cuda_fail(result, "cuCtxSynchronize") == -EBUSY) return false;
  rc_device_close(&idle->device);
  idle->run(idle->context);
  return true;
}

static void free_idle(struct rc_job *job) { free(RC_CONTAINER_OF(job, struct idle_job, job)); }

int ringcast_gpu_run_when_idle(int32_t ordinal, void (*run)(void *context), void *context) {
  struct idle_job *idle = calloc(1, sizeof *idle);
  if (!idle) return rc_fail(-ENOMEM, "out of memory");
  int failed = rc_device_open(ordinal, &idle->device);
  if (failed != 0) {
    free(idle);
    return failed;
  }
  idle->job = (struct rc_job){.run = await_all, .end = free_idle};
  idle->run = run;
  idle->context = context;
  rc_worker_do(&idle->job, 0);
  return 0;
}

struct try_job {
  struct rc_job job;
  int (*run)(void *context);
  void *context;
};

static bool try_it(struct rc_job *job) {
  struct try_job *tried = RC_CONTAINER_OF(job, struct try_job, job);
  return tried->run(tried->context) != 0;
}

static void free_try(struct rc_job *job) { free(RC_CONTAINER_OF(job, struct try_job, job)); }

int ringcast_gpu_run_until_done(int (*run)(void *context), void *context) {
  struct try_job *tried = malloc(sizeof *tried);
  if (!tried) return rc_fail(-ENOMEM, "out of memory");
  *tried = (struct try_job){.job = {.run = try_it, .end = free_try}, .run = run, .context = context};
  rc_worker_do(&tried->job, 0);
  return 0;
}

/* By an event. The driver frees the destroyed event once both streams have passed the event. */
static rc_cu_result follow(const struct rc_cuda *cuda, rc_cu_stream stream, rc_cu_stream before) {
  rc_cu_event event;
  rc_cu_result result = cuda->event_create(&event, RC_CU_EVENT_DISABLE_TIMING);
  if (result != RC_CU_SUCCESS) return result;
  result = cuda->event_record(event, before);
  if (result == RC_CU_SUCCESS) result = cuda->stream_wait_event(stream, event, 0);
  cuda->event_destroy(event);
  return result;
}

int ringcast_gpu_stream_follow(int32_t ordinal, ringcast_stream stream, ringcast_stream before) {
  struct rc_device device;
  struct rc_cuda_entry entry;
  int failed = enter(ordinal, stream, &device, &entry);
  if (failed != 0) return failed;
  if (stream == before) return leave(&device, &entry, 0);
  failed = rc_device_check_stream(&device, before);
  if (failed == 0 && follow(device.cuda, stream, before) != RC_CU_SUCCESS) failed = wait_for(&device, before);
  return leave(&device, &entry, failed);
}
