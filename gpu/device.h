/* SPDX-License-Identifier: Apache-2.0 */
/* One device as this process uses the device: the primary context, and checks of streams. */
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

/* Opens device `ordinal`; for -1 the device of this thread's current context, or device 0 if no context is current.
 * -ENODEV, -EINVAL, -EIO, -ENOMEM. Sets the error text. */
int rc_device_open(int32_t ordinal, struct rc_device *out);
void rc_device_close(struct rc_device *device);

/* Makes the context current, as rc_cuda_enter, or, unless `relaxes`, as rc_cuda_enter_context. Sets the error text. */
int rc_device_enter(const struct rc_device *device, bool relaxes, struct rc_cuda_entry *entry);

/* 0; -EBUSY: the stream captures a graph, and a replay would write the same generation again; -EINVAL: the per-thread
 * default stream; -EIO. */
int rc_device_check_stream(const struct rc_device *device, rc_cu_stream stream);

/* Whether the driver says that the context has failed. The context need not be current. */
bool rc_device_is_lost(const struct rc_device *device);

/* 0, or -ENOTSUP: the tensor of the device is not in C order. */
int rc_device_check_order(const struct ringcast_tensor *tensor);
/* Enqueues the copy of a tensor of the device, which is in C order, to device memory `to`, or to host memory `to_host`
 * unless that is NULL. -EINVAL, -ENOTSUP (not in C order), -EIO. */
int rc_device_copy(const struct rc_device *device, const struct ringcast_tensor *tensor, rc_cu_ptr to, void *to_host,
                   rc_cu_stream stream);

#endif
