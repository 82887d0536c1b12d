/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few calls of CUDA's driver that the command line itself makes: memory to send from and to
 * receive into, and plain copies to compare with. The library's use of the driver is separate.
 * Nothing is linked. And one tensor of a device from process to process, which `doctor` tries and
 * `perf gpu` measures.
 */
#ifndef TOOLS_CUDA_H
#define TOOLS_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ringcast/gpu.h"

/* Field, symbol, arguments. All are in every driver since CUDA 12.0. */
/* clang-format off */
#define CUDA_CALLS(X) \
  X(init, cuInit, (unsigned flags)) \
  X(error_name, cuGetErrorName, (int result, const char **out)) \
  X(device_get, cuDeviceGet, (int *out, int ordinal)) \
  X(retain, cuDevicePrimaryCtxRetain, (void **out, int device)) \
  X(push, cuCtxPushCurrent_v2, (void *context)) \
  X(alloc, cuMemAlloc_v2, (ringcast_device_ptr * out, size_t bytes)) \
  X(free, cuMemFree_v2, (ringcast_device_ptr memory)) \
  X(get_info, cuMemGetInfo_v2, (size_t *out_free, size_t *out_total)) \
  X(host_register, cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags)) \
  X(host_unregister, cuMemHostUnregister, (void *memory)) \
  X(host_pointer, cuMemHostGetDevicePointer_v2, \
    (ringcast_device_ptr * out, void *memory, unsigned flags)) \
  X(dtod, cuMemcpyDtoDAsync_v2, \
    (ringcast_device_ptr to, ringcast_device_ptr from, size_t bytes, ringcast_stream on)) \
  X(htod, cuMemcpyHtoDAsync_v2, \
    (ringcast_device_ptr to, const void *from, size_t bytes, ringcast_stream on)) \
  X(dtoh, cuMemcpyDtoHAsync_v2, \
    (void *to, ringcast_device_ptr from, size_t bytes, ringcast_stream on)) \
  X(stream_create, cuStreamCreate, (ringcast_stream * out, unsigned flags)) \
  X(stream_synchronize, cuStreamSynchronize, (ringcast_stream stream))
/* clang-format on */

struct cuda {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): the arguments are parts of a declaration */
#define CUDA_FIELD(field, symbol, arguments) int(*field) arguments;
  CUDA_CALLS(CUDA_FIELD)
#undef CUDA_FIELD
  /* The stream goes on once the word is `value` or more; NULL in drivers before CUDA 12. */
  int (*wait_value)(ringcast_stream stream, ringcast_device_ptr word, uint64_t value,
                    unsigned flags);
  char failed[160]; /* what cuda_did says of the last call that failed */
};

#define CUDA_STREAM_NON_BLOCKING 1u
#define CUDA_REGISTER_MAPPED     2u /* for streams to wait for words of it */

/* Opens the driver, and makes the device's context current in this thread, for good: a process that
 * forks afterwards has no use of CUDA in the child. False: cuda->failed says why. */
bool cuda_open(struct cuda *cuda, int ordinal);

/* Whether the call succeeded; if not, cuda->failed is `what` and the name of the result. */
bool cuda_did(struct cuda *cuda, int result, const char *what);

enum { CUDA_LIMIT_S = 60 }; /* a longer wait for a tensor is an error */

/* Sends the bytes at `memory`, as one tensor. `flags` and the result: see ringcast_gpu_send. */
int cuda_send(ringcast_gpu_writer *writer, ringcast_device_ptr memory, size_t bytes, uint32_t flags,
              ringcast_stream stream);

/* Enqueues the copy of the next tensor, of at most `room` bytes, to `memory`. `ns`: the CPU's time,
 * from the arrival of the frame. A negative errno has its words in ringcast_last_error. */
int cuda_receive(ringcast_gpu_reader *reader, ringcast_device_ptr memory, size_t room,
                 ringcast_stream stream, int64_t *ns);

#endif
