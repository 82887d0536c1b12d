/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only tests use of CUDA's driver, beside gpu/driver.h: functions, found by their symbols in
 * the library that gpu/driver.c has opened; results, flags and attributes under CUDA's names.
 */
#ifndef RC_TESTS_CUDA_MORE_H
#define RC_TESTS_CUDA_MORE_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/driver.h"

typedef int rc_cu_device_attribute; /* an enum in CUDA */
typedef struct rc_cu_module *rc_cu_module;
typedef struct rc_cu_function *rc_cu_function;

enum {
  RC_CU_INVALID_VALUE = 1,
  RC_CU_DEINITIALIZED = 4,
  RC_CU_INVALID_DEVICE = 101,
  RC_CU_INVALID_CONTEXT = 201, /* of opening a handle: the handle is of this very process */
  RC_CU_MAP_FAILED = 205,
  RC_CU_ALREADY_MAPPED = 208,
  RC_CU_PEER_ACCESS_UNSUPPORTED = 217,
  RC_CU_INVALID_HANDLE = 400,
  RC_CU_ILLEGAL_ADDRESS = 700,
  RC_CU_TOO_MANY_PEERS = 711,
  RC_CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
  RC_CU_HOST_MEMORY_NOT_REGISTERED = 713,
  RC_CU_MEMHOSTREGISTER_READ_ONLY = 0x08,
  RC_CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113,
};

/* As RC_CUDA_FUNCTIONS. */
/* clang-format off */
#define CUDA_MORE_FUNCTIONS(X) \
  X(device_get_attribute, cuDeviceGetAttribute, cuDeviceGetAttribute, \
    (int *out, rc_cu_device_attribute attribute, rc_cu_device device)) \
  X(module_load_data, cuModuleLoadData, cuModuleLoadData, (rc_cu_module *out, const void *image)) \
  X(module_get_function, cuModuleGetFunction, cuModuleGetFunction, \
    (rc_cu_function *out, rc_cu_module module, const char *name)) \
  X(launch_kernel, cuLaunchKernel, cuLaunchKernel, \
    (rc_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
     unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, rc_cu_stream stream, void **arguments, void **extra))
/* clang-format on */

struct cuda_more {
#define CUDA_MORE_FIELD(field, name, symbol, arguments) rc_cu_result(*field) arguments;
  CUDA_MORE_FUNCTIONS(CUDA_MORE_FIELD)
#undef CUDA_MORE_FIELD
};

static inline const struct cuda_more *cuda_more(void) {
  static struct cuda_more found;
  if (found.launch_kernel) return &found;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *function;
#define CUDA_MORE_FIND(field, name, symbol, arguments) \
  function = library ? dlsym(library, #symbol) : NULL; \
  if (!function) abort();                              \
  memcpy((void *)&found.field, &function, sizeof function);
  CUDA_MORE_FUNCTIONS(CUDA_MORE_FIND)
#undef CUDA_MORE_FIND
  return &found;
}

#endif
