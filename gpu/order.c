/* SPDX-License-Identifier: Apache-2.0 */
/* The order of what two streams do. */
#include <errno.h>

#include "gpu/device.h"
#include "ringcast/gpu.h"
#include "shm/error.h"

/* By an event, which the driver gives up when both streams have come by. */
static rc_cu_result follow(const struct rc_cuda *cuda, rc_cu_stream stream, rc_cu_stream before) {
  bool has = cuda->event_create && cuda->event_record && cuda->stream_wait_event && cuda->event_destroy;
  if (!has) return RC_CU_NOT_SUPPORTED;
  rc_cu_event event;
  rc_cu_result result = cuda->event_create(&event, RC_CU_EVENT_DISABLE_TIMING);
  if (result != RC_CU_SUCCESS) return result;
  result = cuda->event_record(event, before);
  if (result == RC_CU_SUCCESS) result = cuda->stream_wait_event(stream, event, 0);
  cuda->event_destroy(event);
  return result;
}

static int follow_on(const struct rc_device *device, rc_cu_stream stream, rc_cu_stream before) {
  int failed = rc_device_check_stream(device, stream);
  if (failed == 0) failed = rc_device_check_stream(device, before);
  if (failed != 0) return failed;
  rc_cu_result result = follow(device->cuda, stream, before);
  if (result != RC_CU_SUCCESS) result = device->cuda->stream_synchronize(before); /* there is no event */
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "a stream that is to wait for another");
}

int ringcast_gpu_stream_follow(int32_t ordinal, ringcast_stream stream, ringcast_stream before) {
  struct rc_device device;
  struct rc_cuda_entry entry;
  if (stream == before) return 0;
  int failed = rc_device_open(ordinal, &device);
  if (failed != 0) return failed;
  rc_cu_result result = rc_cuda_enter(device.context, &entry);
  if (result == RC_CU_SUCCESS) {
    failed = follow_on(&device, stream, before);
    rc_cuda_leave(&entry);
  } else {
    failed = rc_cuda_fail(result, "cuCtxPushCurrent");
  }
  rc_device_close(&device);
  return failed;
}
