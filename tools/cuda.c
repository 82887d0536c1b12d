/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/measure/perf.h"

bool cuda_did(struct cuda *cuda, int result, const char *what) {
  const char *name = NULL;
  if (result == 0) return true;
  if (cuda->error_name(result, &name) != 0 || !name) name = "error";
  snprintf(cuda->failed, sizeof cuda->failed, "%s: %s (%d)", what, name, result);
  return false;
}

/* A function's address goes through the bytes of the field: C knows no cast from one kind of
 * pointer to the other. */
static bool find(struct cuda *cuda, void *library, const char *symbol, void *field, size_t bytes) {
  void *address = dlsym(library, symbol);
  if (!address) snprintf(cuda->failed, sizeof cuda->failed, "the driver has no %s", symbol);
  memcpy(field, &address, bytes);
  return address != NULL;
}

static bool load(struct cuda *cuda) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(cuda->failed, sizeof cuda->failed, "%s", dlerror());
    return false;
  }
#define CUDA_FIND(field, symbol, arguments) \
  if (!find(cuda, library, #symbol, &cuda->field, sizeof cuda->field)) return false;
  CUDA_CALLS(CUDA_FIND)
#undef CUDA_FIND
  find(cuda, library, "cuStreamWaitValue64_v2", &cuda->wait_value, sizeof cuda->wait_value);
  return true;
}

bool cuda_open(struct cuda *cuda, int ordinal) {
  void *context;
  int device;
  return load(cuda) && cuda_did(cuda, cuda->init(0), "cuInit") &&
         cuda_did(cuda, cuda->device_get(&device, ordinal), "cuDeviceGet") &&
         cuda_did(cuda, cuda->retain(&context, device), "cuDevicePrimaryCtxRetain") &&
         cuda_did(cuda, cuda->push(context), "cuCtxPushCurrent");
}

/* ---- A tensor -------------------------------------------------------------------------------- */

static const int64_t LIMIT_NS = (int64_t)CUDA_LIMIT_S * 1000000000;

int cuda_send(ringcast_gpu_writer *writer, ringcast_device_ptr memory, size_t bytes, uint32_t flags,
              ringcast_stream stream) {
  const int64_t shape[1] = {(int64_t)bytes};
  const struct ringcast_gpu_item item = {.key = "x",
                                         .key_bytes = 1,
                                         .on_device = 1,
                                         .tensor = {.data = (const void *)(uintptr_t)memory,
                                                    .dtype = {1, 8, 1},
                                                    .ndim = 1,
                                                    .shape = shape,
                                                    .flags = RINGCAST_ITEM_CUDA}};
  return ringcast_gpu_send(writer, &item, 1, 0, flags, stream, LIMIT_NS);
}

int cuda_receive(ringcast_gpu_reader *reader, ringcast_device_ptr memory, size_t room,
                 ringcast_stream stream, int64_t *ns) {
  struct ringcast_frame frame;
  struct ringcast_frame_reader tensors;
  struct ringcast_gpu_take take;
  struct ringcast_item item;
  int result = ringcast_gpu_next(reader, LIMIT_NS, &frame);
  int64_t begun = perf_now_ns();
  if (result >= 0) result = ringcast_gpu_begin(reader, &frame, stream, &take);
  if (result >= 0) result = ringcast_frame_open(&tensors, frame.data, frame.bytes);
  if (result >= 0) result = ringcast_frame_item(&tensors, 0, &item);
  if (result >= 0 && item.bytes > room) result = -EMSGSIZE;
  if (result >= 0) result = ringcast_gpu_copy_out(reader, &take, &item, memory);
  if (result >= 0) result = ringcast_gpu_end(reader, &take);
  *ns = perf_now_ns() - begun;
  return result;
}
