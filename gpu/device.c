/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, and packing a tensor that lies on one. */
#include "gpu/device.h"

#include <errno.h>
#include <string.h>

#include "ring/tensor.h"
#include "shm/error.h"

#define MOST_COPIES 4096 /* each takes the host a microsecond; a kernel of the caller's packs the rest better */
#define PER_THREAD  ((uintptr_t)2) /* CU_STREAM_PER_THREAD: a handle that is another stream in each thread */

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
  device.ordinal = device.device; /* CUDA's devices are their ordinals */
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

int rc_device_check_stream(const struct rc_device *device, rc_cu_stream stream) {
  int status;
  if ((uintptr_t)stream == PER_THREAD) /* a close in another thread would miss it */
    return rc_fail_as(-EINVAL, "the per-thread default stream is another one in each thread: give a stream of your "
                               "own");
  rc_cu_result result = device->cuda->stream_is_capturing(stream, &status);
  if (result != RC_CU_SUCCESS)
    return rc_cuda_fail(result,
                        "cuStreamIsCapturing of a stream, which must be one of device %d's primary context, as "
                        "those of the CUDA runtime, torch and CuPy are",
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

/* ---- Packing ---------------------------------------------------------------------------------------------------- */

/* A tensor as rows of bytes that lie in a row: `dims` outer dimensions count them. */
struct rows {
  int32_t dims;
  int64_t shape[RINGCAST_MAX_NDIM], stride[RINGCAST_MAX_NDIM]; /* bytes */
  int64_t count;
  uint64_t bytes; /* of each */
};

static int make_rows(const struct ringcast_tensor *tensor, uint64_t total, struct rows *out) {
  uint32_t bits = rc_element_bits(tensor->dtype, tensor->flags);
  int32_t inner = tensor->ndim;
  out->dims = 0;
  out->count = 1;
  out->bytes = total;
  if (!tensor->strides || rc_strides_are_c(tensor->ndim, tensor->shape, tensor->strides)) return 0;
  if (bits % 8 != 0)
    return rc_fail_as(-EINVAL, "a tensor of elements of less than a byte must be in C order: make it contiguous first");
  int64_t row = 1;
  while (inner > 0 && (tensor->strides[inner - 1] == row || tensor->shape[inner - 1] == 1))
    row *= tensor->shape[--inner];
  out->bytes = (uint64_t)row * (bits / 8);
  for (int32_t i = 0; i < inner; i++) {
    if (__builtin_mul_overflow(tensor->strides[i], (int64_t)(bits / 8), &out->stride[out->dims]))
      return rc_fail_as(-EINVAL, "the tensor's strides reach beyond any memory");
    out->shape[out->dims++] = tensor->shape[i];
    out->count *= tensor->shape[i]; /* as all that ringcast_tensor_bytes counts, this fits */
    if (out->count > MOST_COPIES)
      return rc_fail(-ENOTSUP, "the tensor's strides would take more than %d copies: make it contiguous first",
                     MOST_COPIES);
  }
  return 0;
}

static rc_cu_result copy_row(const struct rc_device *device, rc_cu_ptr from, rc_cu_ptr to, void *to_host, uint64_t at,
                             uint64_t bytes, rc_cu_stream stream) {
  return to_host ? device->cuda->copy_dtoh((uint8_t *)to_host + at, from, bytes, stream)
                 : device->cuda->copy_dtod(to + at, from, bytes, stream);
}

int rc_device_pack(const struct rc_device *device, const struct ringcast_tensor *tensor, rc_cu_ptr to, void *to_host,
                   rc_cu_stream stream) {
  struct rows rows;
  uint64_t total;
  if (ringcast_tensor_bytes(tensor, &total) < 0) return rc_fail_as(-EINVAL, "the tensor's dtype or shape is none");
  if (total == 0) return 0;
  if (!tensor->data) return rc_fail_as(-EINVAL, "the tensor has no memory");
  int failed = make_rows(tensor, total, &rows);
  if (failed != 0) return failed;
  int64_t index[RINGCAST_MAX_NDIM] = {0};
  rc_cu_ptr from = (rc_cu_ptr)(uintptr_t)tensor->data;
  for (int64_t row = 0; row < rows.count; row++) {
    rc_cu_result result = copy_row(device, from, to, to_host, (uint64_t)row * rows.bytes, rows.bytes, stream);
    if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "the copy of %llu bytes", (unsigned long long)rows.bytes);
    for (int32_t i = rows.dims; i-- > 0;) {
      from += (rc_cu_ptr)rows.stride[i];
      if (++index[i] < rows.shape[i]) break;
      from -= (rc_cu_ptr)(rows.stride[i] * rows.shape[i]);
      index[i] = 0;
    }
  }
  return 0;
}
