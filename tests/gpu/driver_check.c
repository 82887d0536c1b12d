/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares gpu/driver.h and tests/support/cuda_more.h with CUDA's own header, where that exists:
 * sizes, numbers, and the type of each function. The file is compiled with the tests, linked into
 * nothing, and has nothing to run.
 */
#include "tests/support/cuda_more.h"

#include <cuda.h>

#if CUDA_VERSION >= 12000 /* of older headers much differs that is not used */

#define SAME(ours, theirs) \
  _Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
#define SAME_SIZE(ours, theirs)                                                        \
  _Static_assert(sizeof(ours) == sizeof(theirs) && _Alignof(ours) == _Alignof(theirs), \
                 #ours " is not like " #theirs)

SAME_SIZE(rc_cu_result, CUresult);
SAME_SIZE(rc_cu_device, CUdevice);
SAME_SIZE(rc_cu_ptr, CUdeviceptr);
SAME_SIZE(rc_cu_context, CUcontext);
SAME_SIZE(rc_cu_stream, CUstream);
SAME_SIZE(rc_cu_event, CUevent);
SAME_SIZE(rc_cu_module, CUmodule);
SAME_SIZE(rc_cu_function, CUfunction);
SAME_SIZE(rc_cu_uuid, CUuuid);
SAME_SIZE(rc_cu_ipc_handle, CUipcMemHandle);

SAME(RC_CU_SUCCESS, CUDA_SUCCESS);
SAME(RC_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(RC_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(RC_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(RC_CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(RC_CU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
SAME(RC_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(RC_CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(RC_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(RC_CU_MAP_FAILED, CUDA_ERROR_MAP_FAILED);
SAME(RC_CU_ALREADY_MAPPED, CUDA_ERROR_ALREADY_MAPPED);
SAME(RC_CU_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(RC_CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(RC_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(RC_CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(RC_CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(RC_CU_TOO_MANY_PEERS, CUDA_ERROR_TOO_MANY_PEERS);
SAME(RC_CU_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(RC_CU_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(RC_CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME(RC_CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(RC_CU_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(RC_CU_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(RC_CU_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME(RC_CU_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(RC_CU_CAPTURED_EVENT, CUDA_ERROR_CAPTURED_EVENT);
SAME(RC_CU_STREAM_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);

SAME(RC_CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(RC_CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(RC_CU_MEMHOSTREGISTER_READ_ONLY, CU_MEMHOSTREGISTER_READ_ONLY);
SAME(RC_CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(RC_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(RC_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(RC_CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_WAIT_VALUE_GEQ);
SAME(RC_CU_STREAM_WRITE_VALUE_DEFAULT, CU_STREAM_WRITE_VALUE_DEFAULT);
SAME(RC_CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(RC_CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(RC_CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
     CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
SAME(RC_CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_LEGACY_STREAM);

SAME_SIZE(rc_cu_device_attribute, CUdevice_attribute);
SAME_SIZE(rc_cu_capture_status, CUstreamCaptureStatus);
SAME_SIZE(rc_cu_capture_mode, CUstreamCaptureMode);

/* From here on the arguments are of CUDA's own types. */
#define rc_cu_result           CUresult
#define rc_cu_device           CUdevice
#define rc_cu_device_attribute CUdevice_attribute
#define rc_cu_capture_status   CUstreamCaptureStatus
#define rc_cu_capture_mode     CUstreamCaptureMode
#define rc_cu_ptr              CUdeviceptr
#define rc_cu_context          CUcontext
#define rc_cu_stream           CUstream
#define rc_cu_event            CUevent
#define rc_cu_module           CUmodule
#define rc_cu_function         CUfunction
#define rc_cu_uuid             CUuuid
#define rc_cu_ipc_handle       CUipcMemHandle

/* The symbols are declared by that very name, as the header's plain names are macros for them. */
#define SAME_FUNCTION(field, name, symbol, arguments)                                      \
  _Static_assert(__builtin_types_compatible_p(CUresult(*) arguments, __typeof__(&symbol)), \
                 "rc_cuda." #field " is not like " #symbol);
RC_CUDA_FUNCTIONS(SAME_FUNCTION)
CUDA_MORE_FUNCTIONS(SAME_FUNCTION)

typedef CUresult (*proc_address)(const char *name, void **out, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *why);
_Static_assert(__builtin_types_compatible_p(proc_address, __typeof__(&cuGetProcAddress_v2)),
               "driver.c takes cuGetProcAddress_v2 for something else");

#endif
