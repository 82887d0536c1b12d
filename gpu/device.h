/* SPDX-License-Identifier: Apache-2.0 */
/* One device as this process uses it: its primary context, and its streams' ways. */
#ifndef RC_GPU_DEVICE_H
#define RC_GPU_DEVICE_H

#include "gpu/driver.h"
#include "ringcast/frame.h"

struct rc_device {
  const struct rc_cuda *cuda;
  rc_cu_device device;
  rc_cu_context context; /* retained: programs share the primary one */
  int32_t ordinal;
  uint8_t uuid[16];
};

/* Device `ordinal`, or for -1 that of the context that is current in this thread, else 0. -ENODEV, -EINVAL, -EIO,
 * -ENOMEM. Sets the error text. */
int rc_device_open(int32_t ordinal, struct rc_device *out);
void rc_device_close(struct rc_device *device);

/* 0; -EBUSY: the stream captures a graph, which could replay no word; -EINVAL: it is the per-thread default stream;
 * -EIO. */
int rc_device_check_stream(const struct rc_device *device, rc_cu_stream stream);

/* Whether the driver says that nothing works any more in the context, current or not. */
bool rc_device_is_lost(const struct rc_device *device);

/* 0, or -ENOTSUP: the tensor of the device is not in C order. */
int rc_device_check_order(const struct ringcast_tensor *tensor);
/* Enqueues the copy of a tensor of the device, which is in C order, to device memory `to`, or to host memory `to_host`
 * unless that is NULL. -EINVAL, -ENOTSUP (not in C order), -EIO. */
int rc_device_copy(const struct rc_device *device, const struct ringcast_tensor *tensor, rc_cu_ptr to, void *to_host,
                   rc_cu_stream stream);

#endif
