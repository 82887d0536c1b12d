/* SPDX-License-Identifier: Apache-2.0 */
/* ringcast_gpu_status and ringcast_gpu_device: the driver, and the names of the devices. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/driver.h"
#include "ringcast/gpu.h"
#include "shm/error.h"
#include "shm/options.h"

int ringcast_gpu_status(struct ringcast_gpu_driver *out) {
  int failed = rc_sized_check("ringcast_gpu_driver", out ? out->size : 0);
  if (!out || failed != 0) return failed;
  const struct rc_cuda_status *status = rc_cuda_status();
  struct ringcast_gpu_driver driver = {
      .ready = status->mode == RC_CUDA_READY,
      .version = status->version,
      .devices = status->devices,
      .result = status->result,
  };
  snprintf(driver.why, sizeof driver.why, "%s", status->why);
  rc_sized_write(out, out->size, &driver, sizeof driver);
  return 0;
}

static int describe(const struct rc_cuda *cuda, int32_t ordinal, struct ringcast_gpu_device_info *out) {
  rc_cu_device device;
  rc_cu_uuid uuid;
  rc_cu_result result = cuda->device_get(&device, ordinal);
  if (result == RC_CU_SUCCESS) result = cuda->device_get_name(out->name, sizeof out->name, device);
  if (result == RC_CU_SUCCESS) result = cuda->device_get_uuid(&uuid, device);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "device %d", ordinal);
  memcpy(out->uuid, &uuid, sizeof out->uuid);
  return 0;
}

int ringcast_gpu_device(int32_t ordinal, struct ringcast_gpu_device_info *out) {
  int failed = rc_sized_check("ringcast_gpu_device_info", out ? out->size : 0);
  if (!out || failed != 0) return failed;
  const struct rc_cuda *cuda = rc_cuda();
  if (!cuda) return rc_fail(-ENODEV, "there is no GPU to use: %s", rc_cuda_status()->why);
  if (ordinal < 0 || ordinal >= rc_cuda_status()->devices)
    return rc_fail(-EINVAL, "there is no device %d: this process sees %d", ordinal, rc_cuda_status()->devices);
  struct ringcast_gpu_device_info found = {.size = 0}; /* rc_sized_write sets the caller's size */
  failed = describe(cuda, ordinal, &found);
  if (failed == 0) rc_sized_write(out, out->size, &found, sizeof found);
  return failed;
}
