/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, and the copy of a tensor of a device. */
#include "gpu/device.h"

#include <errno.h>
#include <string.h>

#include "ring/frame.h"
#include "shm/error.h"

#define PER_THREAD ((uintptr_t)2) /* CU_STREAM_PER_THREAD: the handle means a different stream in each thread */

static int pick(const struct rc_cuda *cuda, int32_t ordinal, rc_cu_device *out) {
  rc_cu_context current = NULL;
  int count = rc_cuda_status()->devices;
  if (ordinal < -1 || ordinal >= count)
    return rc_fail(-EINVAL, "there is no device %d: this process sees %d", ordinal, count);
  if (ordinal == -1 && cuda->ctx_get_current(&current) == RC_CU_SUCCESS && current &&
      cuda->ctx_get_device(out) == RC_CU_SUCCESS)
    return 0;
  rc_cu_result result = cuda->device_get(out, ordinal == -1 ? 0 : ordinal);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "cuDeviceGet of device %d", ordinal);
}

static int open_device(int32_t ordinal, struct rc_device *out) {
  struct rc_device device = {.cuda = rc_cuda()};
  rc_cu_uuid uuid;
  int failed = pick(device.cuda, ordinal, &device.device);
  if (failed != 0) return failed;
  device.ordinal = device.device; /* CUDA's handle of a device is the ordinal */
  rc_cu_result result = device.cuda->device_get_uuid(&uuid, device.device);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "cuDeviceGetUuid of device %d", device.ordinal);
  memcpy(device.uuid, &uuid, sizeof device.uuid);
  result = device.cuda->primary_retain(&device.context, device.device);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "cuDevicePrimaryCtxRetain of device %d", device.ordinal);
  *out = device;
  return 0;
}

int rc_device_open(int32_t ordinal, struct rc_device *out) {
  struct rc_cuda_entry entry;
  if (!rc_cuda())
    return rc_fail(rc_cuda_status()->mode == RC_CUDA_FORKED ? -ECHILD : -ENODEV, "there is no GPU to use: %s",
                   rc_cuda_status()->why);
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
  rc_cu_result result = relaxes ? rc_cuda_enter(device->context, entry) : rc_cuda_enter_context(device->context, entry);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "cuCtxPushCurrent");
}

int rc_device_check_stream(const struct rc_device *device, rc_cu_stream stream) {
  int status;
  if ((uintptr_t)stream == PER_THREAD) /* a close in another thread would miss it */
    return rc_fail_as(-EINVAL, "the per-thread default stream is a different stream in each thread: pass a stream made "
                               "by cuStreamCreate, or NULL");
  rc_cu_result result = device->cuda->stream_is_capturing(stream, &status);
  if (result != RC_CU_SUCCESS)
    return rc_cuda_fail(result,
                        "cuStreamIsCapturing of a stream, which must belong to device %d's primary context, as the "
                        "streams of the CUDA runtime, torch and CuPy do",
                        device->ordinal);
  if (status == RC_CU_STREAM_CAPTURE_STATUS_NONE) return 0;
  return rc_fail_as(-EBUSY, "the stream captures a CUDA graph, which can't hold a message: send and receive outside "
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

int rc_device_copy(const struct rc_device *device, const struct ringcast_tensor *tensor, rc_cu_ptr to, void *to_host,
                   rc_cu_stream stream) {
  rc_cu_ptr from = (rc_cu_ptr)(uintptr_t)tensor->data;
  uint64_t bytes;
  if (ringcast_tensor_bytes(tensor, &bytes) < 0) return rc_fail_as(-EINVAL, "the tensor's dtype or shape is invalid");
  if (bytes == 0) return 0;
  if (!from) return rc_fail_as(-EINVAL, "the tensor has no memory");
  int failed = rc_device_check_order(tensor);
  if (failed != 0) return failed;
  rc_cu_result result = to_host ? device->cuda->copy_dtoh(to_host, from, bytes, stream)
                                : device->cuda->copy_dtod(to, from, bytes, stream);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "the copy of %llu bytes", (unsigned long long)bytes);
}
