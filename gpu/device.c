/* SPDX-License-Identifier: Apache-2.0 */
/* A device, the copy of a tensor of a device, streams and semaphores; and what needs no reader and
 * no writer. */
#include "gpu/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/worker.h"
#include "ring/frame.h"
#include "ringcast/gpu.h"
#include "shm/error.h"
#include "shm/options.h"
#include "shm/wait.h"

/* ---- The device ------------------------------------------------------------------------------ */

/* CU_STREAM_PER_THREAD: the handle means a different stream in each thread. */
#define PER_THREAD ((uintptr_t)2)

static int pick(const struct rc_cuda *cuda, int32_t ordinal, rc_cu_device *out) {
  rc_cu_context current = NULL;
  int count = rc_cuda_status()->devices;
  if (ordinal < -1 || ordinal >= count)
    return rc_fail(-EINVAL, "there is no device %d: this process sees %d", ordinal, count);
  if (ordinal == -1 && cuda->ctx_get_current(&current) == RC_CU_SUCCESS && current &&
      cuda->ctx_get_device(out) == RC_CU_SUCCESS)
    return 0;
  rc_cu_result result = cuda->device_get(out, ordinal == -1 ? 0 : ordinal);
  return rc_cuda_code(result, "cuDeviceGet of device %d", ordinal);
}

static int open_device(int32_t ordinal, struct rc_device *out) {
  struct rc_device device = {.cuda = rc_cuda()};
  rc_cu_uuid uuid;
  int failed = pick(device.cuda, ordinal, &device.device);
  if (failed != 0) return failed;
  device.ordinal = device.device; /* CUDA's handle of a device is the ordinal */
  rc_cu_result result = device.cuda->device_get_uuid(&uuid, device.device);
  if (result != RC_CU_SUCCESS)
    return rc_cuda_code(result, "cuDeviceGetUuid of device %d", device.ordinal);
  memcpy(device.uuid, &uuid, sizeof device.uuid);
  result = device.cuda->primary_retain(&device.context, device.device);
  if (result != RC_CU_SUCCESS)
    return rc_cuda_code(result, "cuDevicePrimaryCtxRetain of device %d", device.ordinal);
  *out = device;
  return 0;
}

int rc_device_open(int32_t ordinal, struct rc_device *out) {
  struct rc_cuda_entry entry;
  *out = (struct rc_device){.cuda = rc_cuda()};
  if (!out->cuda) {
    int code = rc_cuda_status()->mode == RC_CUDA_FORKED ? -ECHILD : -ENODEV;
    rc_fail(code, "there is no GPU to use: %s", rc_cuda_status()->why);
    return code;
  }
  rc_cuda_relax(&entry);
  int failed = open_device(ordinal, out);
  rc_cuda_leave(&entry);
  return failed;
}

void rc_device_close(struct rc_device *device) {
  struct rc_cuda_entry entry;
  if (!device->context) return;
  rc_cuda_relax(&entry);
  device->cuda->primary_release(device->device);
  rc_cuda_leave(&entry);
  device->context = NULL;
}

int rc_device_enter(const struct rc_device *device, bool relaxes, struct rc_cuda_entry *entry) {
  rc_cu_result result = relaxes ? rc_cuda_enter(device->context, entry)
                                : rc_cuda_enter_context(device->context, entry);
  return rc_cuda_code(result, "cuCtxPushCurrent");
}

int rc_device_check_stream(const struct rc_device *device, rc_cu_stream stream) {
  int status;
  if ((uintptr_t)stream == PER_THREAD) /* a close in another thread would miss it */
    return rc_fail_as(
        -EINVAL,
        "the per-thread default stream is a different stream in each thread: pass a stream made "
        "by cuStreamCreate, or NULL");
  rc_cu_result result = device->cuda->stream_is_capturing(stream, &status);
  if (result != RC_CU_SUCCESS)
    return rc_cuda_code(
        result,
        "cuStreamIsCapturing of a stream, which must belong to device %d's primary context, as the "
        "streams of the CUDA runtime, torch and CuPy do",
        device->ordinal);
  if (status == RC_CU_STREAM_CAPTURE_STATUS_NONE) return 0;
  return rc_fail_as(
      -EBUSY,
      "the stream captures a CUDA graph, which can't hold a message: send and receive outside "
      "of the capture");
}

bool rc_device_is_lost(const struct rc_device *device) {
  struct rc_cuda_entry entry;
  size_t unused[2];
  rc_cu_result result = rc_cuda_enter(device->context, &entry);
  if (result != RC_CU_SUCCESS) return true;
  result = device->cuda->mem_get_info(&unused[0], &unused[1]);
  rc_cuda_leave(&entry);
  return result != RC_CU_SUCCESS && result != RC_CU_STREAM_CAPTURE_UNSUPPORTED;
}

int rc_device_check_order(const struct ringcast_tensor *tensor) {
  if (!tensor->strides || rc_strides_are_c(tensor->ndim, tensor->shape, tensor->strides)) return 0;
  return rc_fail_as(-ENOTSUP, "the device tensor is not in C order: make it contiguous first");
}

int rc_device_copy(const struct rc_device *device, const struct ringcast_tensor *tensor,
                   rc_cu_ptr to, void *to_host, rc_cu_stream stream) {
  rc_cu_ptr from = (rc_cu_ptr)(uintptr_t)tensor->data;
  uint64_t bytes;
  if (ringcast_tensor_bytes(tensor, &bytes) < 0)
    return rc_fail_as(-EINVAL, "the tensor's dtype or shape is invalid");
  if (bytes == 0) return 0;
  if (!from) return rc_fail_as(-EINVAL, "the tensor has no memory");
  int failed = rc_device_check_order(tensor);
  if (failed != 0) return failed;
  rc_cu_result result = to_host ? device->cuda->copy_dtoh(to_host, from, bytes, stream)
                                : device->cuda->copy_dtod(to, from, bytes, stream);
  return rc_cuda_code(result, "the copy of %llu bytes", (unsigned long long)bytes);
}

/* ---- Semaphores ------------------------------------------------------------------------------ */

#define PAUSE_NS 20000
#define SPIN_NS  50000 /* how long a stream is polled before the host sleeps between two queries */

int64_t rc_semaphore_patience_ns = (int64_t)2 * 1000 * 1000 * 1000;

static bool await_semaphore(struct rc_semaphore *semaphore) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  for (int64_t until = rc_now_ns() + rc_semaphore_patience_ns; rc_now_ns() < until;
       nanosleep(&pause, NULL))
    if (rc_semaphore_has_reached(semaphore, 1)) return true;
  return rc_semaphore_has_reached(semaphore, 1);
}

rc_cu_result rc_stream_await(const struct rc_cuda *cuda, rc_cu_stream stream, int64_t patience_ns) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  rc_cu_result result;
  for (int64_t began = rc_now_ns(); (result = cuda->stream_query(stream)) == RC_CU_NOT_READY;) {
    int64_t waited = rc_now_ns() - began;
    if (waited > patience_ns) break;
    if (waited > SPIN_NS) nanosleep(&pause, NULL);
  }
  return result;
}

/* Enqueues an operation that does nothing, so that an idle stream has shown that the device came to
 * the stream. */
static rc_cu_result enqueue_mark(const struct rc_cuda *cuda, rc_cu_stream stream) {
  rc_cu_event event;
  rc_cu_result result = cuda->event_create(&event, RC_CU_EVENT_DISABLE_TIMING);
  if (result != RC_CU_SUCCESS) return result;
  result = cuda->event_record(event, stream);
  cuda->event_destroy(event);
  return result;
}

int rc_stream_make(const struct rc_cuda *cuda, int64_t patience_ns, rc_cu_stream *out) {
  rc_cu_stream stream;
  rc_cu_result result = cuda->stream_create(&stream, RC_CU_STREAM_NON_BLOCKING);
  if (result != RC_CU_SUCCESS) return rc_cuda_code(result, "cuStreamCreate");
  result = enqueue_mark(cuda, stream);
  if (result == RC_CU_SUCCESS) result = rc_stream_await(cuda, stream, patience_ns);
  if (result == RC_CU_SUCCESS) {
    *out = stream;
    return 0;
  }
  cuda->stream_destroy(stream);
  if (result != RC_CU_NOT_READY) return rc_cuda_code(result, "a new stream");
  return rc_fail(-EAGAIN, "the device is busy: it has not come to a new stream within %lld s",
                 (long long)(patience_ns / 1000000000));
}

int rc_semaphores_try(const struct rc_cuda *cuda, struct rc_semaphore semaphores[2],
                      rc_cu_ptr address, int64_t patience_ns) {
  rc_cu_stream stream = NULL;
  int failed = rc_stream_make(cuda, patience_ns, &stream);
  if (failed != 0) return failed;
  rc_cu_result result = rc_semaphore_wait(cuda, stream, address, 1);
  if (result == RC_CU_SUCCESS)
    result = rc_semaphore_write(cuda, stream, address + sizeof *semaphores, 1);
  rc_semaphore_store(&semaphores[0], 1); /* also if only the wait was enqueued */
  failed = rc_cuda_code(result, "a stream operation on a word of host memory");
  /* Also after a failure: the stream must not read the semaphores once the memory is no longer
   * registered. */
  bool has_come = false;
  if (failed == 0) has_come = await_semaphore(&semaphores[1]);
  else has_come = rc_stream_await(cuda, stream, rc_semaphore_patience_ns) != RC_CU_NOT_READY;
  if (!has_come)
    failed = rc_fail_as(
        -ETIMEDOUT,
        "a stream that waits for a word of host memory is not woken by the host's store");
  cuda->stream_destroy(stream); /* does not wait for the stream's work */
  return failed;
}

/* ---- The names of the devices ---------------------------------------------------------------- */

static int describe(const struct rc_cuda *cuda, int32_t ordinal,
                    struct ringcast_gpu_device_info *out) {
  rc_cu_device device;
  rc_cu_uuid uuid;
  rc_cu_result result = cuda->device_get(&device, ordinal);
  if (result == RC_CU_SUCCESS) result = cuda->device_get_name(out->name, sizeof out->name, device);
  if (result == RC_CU_SUCCESS) result = cuda->device_get_uuid(&uuid, device);
  if (result != RC_CU_SUCCESS) return rc_cuda_code(result, "device %d", ordinal);
  memcpy(out->uuid, &uuid, sizeof out->uuid);
  return 0;
}

int ringcast_gpu_device(int32_t ordinal, struct ringcast_gpu_device_info *out) {
  int failed = rc_sized_check("ringcast_gpu_device_info", out ? out->size : 0);
  if (!out || failed != 0) return failed;
  const struct rc_cuda *cuda = rc_cuda();
  if (!cuda) return rc_fail(-ENODEV, "there is no GPU to use: %s", rc_cuda_status()->why);
  if (ordinal < 0 || ordinal >= rc_cuda_status()->devices)
    return rc_fail(-EINVAL, "there is no device %d: this process sees %d", ordinal,
                   rc_cuda_status()->devices);
  struct ringcast_gpu_device_info found = {.size = 0}; /* rc_sized_write sets the caller's size */
  failed = describe(cuda, ordinal, &found);
  if (failed == 0) rc_sized_write(out, out->size, &found, sizeof found);
  return failed;
}

/* ---- Streams, without a handle --------------------------------------------------------------- */

/* With the device's context current, and after a look whether the stream captures: 0, or nothing is
 * entered. */
static int enter(int32_t ordinal, rc_cu_stream stream, struct rc_device *device,
                 struct rc_cuda_entry *entry) {
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
  return rc_cuda_code(result, "cuStreamSynchronize");
}

int ringcast_gpu_copy_back(int32_t ordinal, const struct ringcast_tensor *tensor, void *to,
                           ringcast_stream stream) {
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
  if (failed != 0) return failed;
  return leave(&device, &entry, wait_for(&device, stream));
}

struct idle_job {
  struct rc_job job;
  struct rc_device device;
  void (*run)(void *context);
  void *context;
};

/* Called by the worker. CUDA refuses to wait for a context while a stream of the context captures a
 * graph: the worker tries again. After any other failure the context is lost, and its streams do
 * nothing more. */
static bool await_all(struct rc_job *job) {
  struct idle_job *idle = RC_CONTAINER_OF(job, struct idle_job, job);
  struct rc_cuda_entry entry;
  rc_cu_result result = rc_cuda_enter(idle->device.context, &entry);
  if (result == RC_CU_SUCCESS) {
    result = idle->device.cuda->ctx_synchronize();
    rc_cuda_leave(&entry);
  }
  if (result != RC_CU_SUCCESS && rc_cuda_code(result, "cuCtxSynchronize") == -EBUSY) return false;
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
  *tried =
      (struct try_job){.job = {.run = try_it, .end = free_try}, .run = run, .context = context};
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
  if (failed == 0 && follow(device.cuda, stream, before) != RC_CU_SUCCESS)
    failed = wait_for(&device, before);
  return leave(&device, &entry, failed);
}
