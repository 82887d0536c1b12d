/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The boundary to CUDA's driver: each function of the driver that ringcast calls is declared once,
 * here. Nothing is linked, and the build needs no toolkit: the first call of rc_cuda() opens the
 * driver's library. A machine without the library, without a device, or with a driver older than
 * CUDA 12.0 is in CPU mode, which is no error; the status says why. Where cuda.h exists,
 * tests/gpu/driver_check.c compares these declarations with it.
 *
 * Names and meanings are those of CUDA's driver API 12.0, in the variants for the legacy default
 * stream; the prefix rc_cu_ stands for CUDA's CU.
 */
#ifndef RC_GPU_DRIVER_H
#define RC_GPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int rc_cu_result;
typedef int rc_cu_device;
typedef int rc_cu_capture_status, rc_cu_capture_mode; /* enums in CUDA */
typedef unsigned long long rc_cu_ptr;                 /* memory as a device sees it */
typedef struct rc_cu_context *rc_cu_context;
typedef struct rc_cu_stream *rc_cu_stream; /* NULL: the legacy default stream */
typedef struct rc_cu_event *rc_cu_event;
typedef struct {
  char bytes[16];
} rc_cu_uuid;
typedef struct {
  char reserved[64];
} rc_cu_ipc_handle;

/* The results that ringcast distinguishes; each other result is a failure, reported by its name. */
enum {
  RC_CU_SUCCESS = 0,
  RC_CU_OUT_OF_MEMORY = 2,
  RC_CU_NOT_INITIALIZED = 3, /* also in a child of a fork */
  RC_CU_STUB_LIBRARY = 34,
  RC_CU_NO_DEVICE = 100,
  RC_CU_NOT_FOUND = 500,
  RC_CU_NOT_READY = 600,
  RC_CU_NOT_PERMITTED = 800,
  RC_CU_NOT_SUPPORTED = 801,
  /* From here on: a thread of the process captures a graph. */
  RC_CU_STREAM_CAPTURE_UNSUPPORTED = 900,
  RC_CU_STREAM_CAPTURE_INVALIDATED = 901,
  RC_CU_STREAM_CAPTURE_ISOLATION = 905,
  RC_CU_STREAM_CAPTURE_IMPLICIT = 906,
  RC_CU_CAPTURED_EVENT = 907,
  RC_CU_STREAM_CAPTURE_WRONG_THREAD = 908,
};

/* Flags, under CUDA's names. */
enum {
  RC_CU_MEMHOSTREGISTER_PORTABLE = 0x01,
  RC_CU_MEMHOSTREGISTER_DEVICEMAP = 0x02,
  RC_CU_MEMHOSTALLOC_PORTABLE = 0x01,
  RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 0x1,
  RC_CU_STREAM_NON_BLOCKING = 0x1,
  RC_CU_EVENT_DISABLE_TIMING = 0x2,
  RC_CU_STREAM_WAIT_VALUE_GEQ = 0x0, /* cyclic: (int)(*address - value) >= 0 */
  /* All earlier writes of the stream first, for the whole system. */
  RC_CU_STREAM_WRITE_VALUE_DEFAULT = 0x0,
  RC_CU_STREAM_CAPTURE_STATUS_NONE = 0,
  /* Of a thread: captures elsewhere forbid its calls nothing. */
  RC_CU_STREAM_CAPTURE_MODE_RELAXED = 2,
  RC_CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
};

/* The field, CUDA's name, the symbol that has the meaning of 12.0, the arguments. A driver that
 * lacks one of the functions is too old. */
/* clang-format off */
#define RC_CUDA_FUNCTIONS(X)                                                                      \
  X(init, cuInit, cuInit, (unsigned flags))                                                       \
  X(driver_get_version, cuDriverGetVersion, cuDriverGetVersion, (int *out))                       \
  X(get_error_name, cuGetErrorName, cuGetErrorName, (rc_cu_result result, const char **out))      \
  X(device_get_count, cuDeviceGetCount, cuDeviceGetCount, (int *out))                             \
  X(device_get, cuDeviceGet, cuDeviceGet, (rc_cu_device *out, int ordinal))                       \
  X(device_get_name, cuDeviceGetName, cuDeviceGetName,                                            \
    (char *out, int bytes, rc_cu_device device))                                                  \
  X(device_get_uuid, cuDeviceGetUuid, cuDeviceGetUuid_v2, (rc_cu_uuid *out, rc_cu_device device)) \
  X(primary_retain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain,                           \
    (rc_cu_context *out, rc_cu_device device))                                                    \
  X(primary_release, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2,                     \
    (rc_cu_device device))                                                                        \
  X(ctx_push, cuCtxPushCurrent, cuCtxPushCurrent_v2, (rc_cu_context context))                     \
  X(ctx_pop, cuCtxPopCurrent, cuCtxPopCurrent_v2, (rc_cu_context *out))                           \
  X(ctx_get_current, cuCtxGetCurrent, cuCtxGetCurrent, (rc_cu_context *out))                      \
  X(ctx_get_device, cuCtxGetDevice, cuCtxGetDevice, (rc_cu_device *out))                          \
  X(ctx_synchronize, cuCtxSynchronize, cuCtxSynchronize, (void))                                  \
  X(mem_alloc, cuMemAlloc, cuMemAlloc_v2, (rc_cu_ptr *out, size_t bytes))                         \
  X(mem_free, cuMemFree, cuMemFree_v2, (rc_cu_ptr memory))                                        \
  X(mem_get_info, cuMemGetInfo, cuMemGetInfo_v2, (size_t *out_free, size_t *out_total))           \
  X(mem_get_address_range, cuMemGetAddressRange, cuMemGetAddressRange_v2,                         \
    (rc_cu_ptr *out_base, size_t *out_bytes, rc_cu_ptr inside))                                   \
  X(mem_alloc_async, cuMemAllocAsync, cuMemAllocAsync,                                            \
    (rc_cu_ptr *out, size_t bytes, rc_cu_stream stream))                                          \
  X(mem_free_async, cuMemFreeAsync, cuMemFreeAsync, (rc_cu_ptr memory, rc_cu_stream stream))      \
  X(host_register, cuMemHostRegister, cuMemHostRegister_v2,                                       \
    (void *memory, size_t bytes, unsigned flags))                                                 \
  X(host_unregister, cuMemHostUnregister, cuMemHostUnregister, (void *memory))                    \
  X(host_alloc, cuMemHostAlloc, cuMemHostAlloc, (void **out, size_t bytes, unsigned flags))       \
  X(host_free, cuMemFreeHost, cuMemFreeHost, (void *memory))                                      \
  X(host_get_device_pointer, cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,             \
    (rc_cu_ptr *out, void *memory, unsigned flags))                                               \
  X(ipc_get_handle, cuIpcGetMemHandle, cuIpcGetMemHandle,                                         \
    (rc_cu_ipc_handle *out, rc_cu_ptr memory))                                                    \
  X(ipc_open_handle, cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2,                                   \
    (rc_cu_ptr *out, rc_cu_ipc_handle handle, unsigned flags))                                    \
  X(ipc_close_handle, cuIpcCloseMemHandle, cuIpcCloseMemHandle, (rc_cu_ptr memory))               \
  X(copy_dtod, cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2,                                           \
    (rc_cu_ptr to, rc_cu_ptr from, size_t bytes, rc_cu_stream stream))                            \
  X(copy_htod, cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                           \
    (rc_cu_ptr to, const void *from, size_t bytes, rc_cu_stream stream))                          \
  X(copy_dtoh, cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2,                                           \
    (void *to, rc_cu_ptr from, size_t bytes, rc_cu_stream stream))                                \
  X(write_value64, cuStreamWriteValue64, cuStreamWriteValue64_v2,                                 \
    (rc_cu_stream stream, rc_cu_ptr address, uint64_t value, unsigned flags))                     \
  X(wait_value64, cuStreamWaitValue64, cuStreamWaitValue64_v2,                                    \
    (rc_cu_stream stream, rc_cu_ptr address, uint64_t value, unsigned flags))                     \
  X(stream_create, cuStreamCreate, cuStreamCreate, (rc_cu_stream *out, unsigned flags))           \
  X(stream_destroy, cuStreamDestroy, cuStreamDestroy_v2, (rc_cu_stream stream))                   \
  X(stream_synchronize, cuStreamSynchronize, cuStreamSynchronize, (rc_cu_stream stream))          \
  X(stream_query, cuStreamQuery, cuStreamQuery, (rc_cu_stream stream))                            \
  X(stream_is_capturing, cuStreamIsCapturing, cuStreamIsCapturing,                                \
    (rc_cu_stream stream, rc_cu_capture_status *out))                                             \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode,  \
    (rc_cu_capture_mode *mode))                                                                   \
  X(event_create, cuEventCreate, cuEventCreate, (rc_cu_event *out, unsigned flags))               \
  X(event_record, cuEventRecord, cuEventRecord, (rc_cu_event event, rc_cu_stream stream))         \
  X(event_query, cuEventQuery, cuEventQuery, (rc_cu_event event))                                 \
  X(event_destroy, cuEventDestroy, cuEventDestroy_v2, (rc_cu_event event))                        \
  X(stream_wait_event, cuStreamWaitEvent, cuStreamWaitEvent,                                      \
    (rc_cu_stream stream, rc_cu_event event, unsigned flags))
/* clang-format on */

struct rc_cuda {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): the arguments are parts of a declaration */
#define RC_CUDA_FIELD(field, name, symbol, arguments) rc_cu_result(*field) arguments;
  RC_CUDA_FUNCTIONS(RC_CUDA_FIELD)
#undef RC_CUDA_FIELD
};

enum rc_cuda_mode {
  RC_CUDA_READY = 0,
  RC_CUDA_SWITCHED_OFF, /* RINGCAST_DISABLE=cuda */
  RC_CUDA_NO_LIBRARY,
  RC_CUDA_STUB, /* the library is a toolkit's stub, made to link against */
  RC_CUDA_NO_DEVICE,
  RC_CUDA_TOO_OLD, /* the driver lacks a function */
  RC_CUDA_BROKEN,  /* cuInit fails */
  RC_CUDA_FORKED,  /* CUDA was in use before the fork that made this process */
};

struct rc_cuda_status {
  enum rc_cuda_mode mode;
  rc_cu_result result; /* of the call that failed */
  int version;         /* of the driver: 1000 * major + 10 * minor; 0: unknown */
  int devices;
  char why[256]; /* in words; empty when READY */
};

/* The driver, or NULL: CPU mode. The first call opens the library, and blocks while the driver
 * starts (0.1 s and more). The result stays the same for the life of the process; a forked child
 * may lose the driver. Any thread. */
const struct rc_cuda *rc_cuda(void);

/* The status, with the reason for CPU mode. Never NULL. */
const struct rc_cuda_status *rc_cuda_status(void);

/* Whether the driver has been opened in this process; opens nothing. */
bool rc_cuda_is_open(void);

/* 0: the result is SUCCESS. Else sets the error text: `what`, then the result's name and number.
 * Returns -ENOMEM (OUT_OF_MEMORY), -ENOTSUP (NOT_SUPPORTED, NOT_PERMITTED), -EBUSY (a graph is
 * captured), -ECHILD (NOT_INITIALIZED after a fork), else -EIO. */
__attribute__((format(printf, 2, 3))) int rc_cuda_code(rc_cu_result result, const char *what, ...);

/* The result of this thread's last failure in rc_cuda_code. A caller sets the variable to 0 to
 * detect the next failure. */
extern _Thread_local rc_cu_result rc_cuda_last_failure;

/* The name of a result: "CUDA_ERROR_OUT_OF_MEMORY". Never NULL. */
const char *rc_cuda_name(rc_cu_result result);

/* enter makes `context` current for this thread, and keeps the thread's calls from invalidating a
 * capture of any thread (see driver.c); leave undoes both. After a failed enter there is nothing to
 * undo. relax does only the second, for calls without a context. The pairs nest. */
struct rc_cuda_entry {
  bool pushed, relaxed;
  rc_cu_capture_mode mode; /* the thread's mode before */
};
rc_cu_result rc_cuda_enter(rc_cu_context context, struct rc_cuda_entry *entry);
/* Only makes the context current: copies and semaphores on a stream that does not capture
 * invalidate no graph. */
rc_cu_result rc_cuda_enter_context(rc_cu_context context, struct rc_cuda_entry *entry);
void rc_cuda_relax(struct rc_cuda_entry *entry);
void rc_cuda_leave(struct rc_cuda_entry *entry);

#endif
