/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

bool cuda_did(struct cuda *cuda, int result, const char *what) {
  const char *name = NULL;
  if (result == 0) return true;
  if (cuda->error_name(result, &name) != 0 || !name) name = "error";
  snprintf(cuda->failed, sizeof cuda->failed, "%s: %s (%d)", what, name, result);
  return false;
}

/* A function's address goes through the bytes of the field: C knows no cast from one kind of pointer to the other. */
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
  return load(cuda) && cuda_did(cuda, cuda->init(0), "cuInit") &&
         cuda_did(cuda, cuda->device_get(&cuda->device, ordinal), "cuDeviceGet") &&
         cuda_did(cuda, cuda->retain(&context, cuda->device), "cuDevicePrimaryCtxRetain") &&
         cuda_did(cuda, cuda->push(context), "cuCtxPushCurrent");
}
