/* SPDX-License-Identifier: Apache-2.0 */
/* One device as this process uses the device: the primary context, streams, and words that host and
 * device share. */
#ifndef RC_GPU_DEVICE_H
#define RC_GPU_DEVICE_H

#include "gpu/driver.h"
#include "ring/atomics.h"
#include "ring/layout.h"
#include "ringcast/frame.h"

struct rc_device {
  const struct rc_cuda *cuda;
  rc_cu_device device;
  rc_cu_context context; /* retained: programs share the primary one */
  int32_t ordinal;
  uint8_t uuid[16];
};

/* Opens device `ordinal`; for -1 the device of this thread's current context, or device 0 if no
 * context is current. -ENODEV, -EINVAL, -EIO, -ENOMEM. Sets the error text. */
int rc_device_open(int32_t ordinal, struct rc_device *out);
void rc_device_close(struct rc_device *device);

/* Makes the context current, as rc_cuda_enter, or, unless `relaxes`, as rc_cuda_enter_context. Sets
 * the error text. */
int rc_device_enter(const struct rc_device *device, bool relaxes, struct rc_cuda_entry *entry);

/* 0; -EBUSY: the stream captures a graph, and a replay would write the same generation again;
 * -EINVAL: the per-thread default stream; -EIO. */
int rc_device_check_stream(const struct rc_device *device, rc_cu_stream stream);

/* Whether the driver says that the context has failed. The context need not be current. */
bool rc_device_is_lost(const struct rc_device *device);

/* 0, or -ENOTSUP: the tensor of the device is not in C order. */
int rc_device_check_order(const struct ringcast_tensor *tensor);
/* Enqueues the copy of a tensor of the device, which is in C order, to device memory `to`, or to
 * host memory `to_host` unless that is NULL. -EINVAL, -ENOTSUP (not in C order), -EIO. */
int rc_device_copy(const struct rc_device *device, const struct ringcast_tensor *tensor,
                   rc_cu_ptr to, void *to_host, rc_cu_stream stream);

/* ---- Semaphores ------------------------------------------------------------------------------ */

/*
 * Timeline semaphores that host and device share: 64 bits of host memory, registered with the
 * driver, on a line of their own. A stream waits until a semaphore reaches a generation, or writes
 * a generation behind all of the stream's earlier work; the host loads and stores semaphores too.
 * Generations only grow.
 *
 * Orders. A stream's write of a semaphore comes after all earlier writes of the stream, for the
 * whole system (the default flag of cuStreamWriteValue); a stream's wait comes before all later
 * work of the stream. So a host's acquire load sees the writes before the value, and a waiting
 * stream sees the host's writes before the release store.
 */

struct rc_semaphore {
  _Alignas(RC_LINE) _Atomic uint64_t value;
};
_Static_assert(sizeof(struct rc_semaphore) == RC_LINE, "one semaphore to a line");

static inline bool rc_semaphore_has_reached(struct rc_semaphore *semaphore, uint64_t generation) {
  return (int64_t)(rc_load_acquire(&semaphore->value) - generation) >= 0;
}

/* By the host, in place of a device that will not write the value. */
static inline void rc_semaphore_store(struct rc_semaphore *semaphore, uint64_t generation) {
  rc_store_release(&semaphore->value, generation);
}

/* The value that the host stores to release streams that wait for a generation that no device will
 * write: a later generation, which no device ever reaches. Each process that loads the value sees
 * that the host released the wait. */
static inline uint64_t rc_semaphore_released(uint64_t generation) {
  return generation + ((uint64_t)1 << 62);
}
static inline bool rc_semaphore_was_released(struct rc_semaphore *semaphore, uint64_t generation) {
  return rc_load_acquire(&semaphore->value) == rc_semaphore_released(generation);
}

/* By a stream; `address` is the semaphore's address on the device. */
static inline rc_cu_result rc_semaphore_write(const struct rc_cuda *cuda, rc_cu_stream stream,
                                              rc_cu_ptr address, uint64_t generation) {
  return cuda->write_value64(stream, address, generation, RC_CU_STREAM_WRITE_VALUE_DEFAULT);
}

static inline rc_cu_result rc_semaphore_wait(const struct rc_cuda *cuda, rc_cu_stream stream,
                                             rc_cu_ptr address, uint64_t generation) {
  return cuda->wait_value64(stream, address, generation, RC_CU_STREAM_WAIT_VALUE_GEQ);
}

/* The time limit of a wait that takes a working driver some microseconds: two seconds; tests set
 * less. */
extern int64_t rc_semaphore_patience_ns;

/* Waits until the stream is idle or has failed, which the result says. NOT_READY: the time was not
 * enough. */
rc_cu_result rc_stream_await(const struct rc_cuda *cuda, rc_cu_stream stream, int64_t patience_ns);

/* Makes a non-blocking stream, and waits until the device has come to the stream. Streams share
 * queues of the device (CUDA_DEVICE_MAX_CONNECTIONS): a long kernel of another stream, or a pending
 * wait, may hold up the new stream. Then a trial on the new stream would prove nothing, and a copy
 * to unregistered memory would wait without a time limit. -EAGAIN: the device did not come to the
 * stream in time, and the stream is destroyed; -EIO, -ENOMEM. Sets the error text. */
int rc_stream_make(const struct rc_cuda *cuda, int64_t patience_ns, rc_cu_stream *out);

/* Tries whether streams and the host can wait for each other by semaphores, in the current context:
 * a new stream waits for `semaphores[0]`, which the host then stores, and writes `semaphores[1]`.
 * Both are 0 at first, and unused by other threads; `address` is the device's address of
 * `semaphores`. 0; -ENOTSUP, -EIO, -ENOMEM, and -EAGAIN as above: sets the error text. -ETIMEDOUT:
 * two seconds were not enough. The device may still wait, so the semaphores must stay registered,
 * and the context must stay. */
int rc_semaphores_try(const struct rc_cuda *cuda, struct rc_semaphore semaphores[2],
                      rc_cu_ptr address, int64_t patience_ns);

#endif
