/* SPDX-License-Identifier: Apache-2.0 */
/* The device segment of a ring: made by the writer, found by its readers, registered with the driver by each. */
#ifndef RC_GPU_SEGMENT_H
#define RC_GPU_SEGMENT_H

#include "gpu/device.h"
#include "gpu/layout.h"
#include "shm/memory.h"
#include "shm/process.h"

struct rc_gpu_segment {
  struct rc_memory memory;
  rc_cu_ptr address; /* of its start, for the device; 0: it is not registered */
  uint32_t slots, consumers, epoch;
};

static inline struct rc_gpu_control *rc_gpu_control(const struct rc_gpu_segment *segment) {
  return (struct rc_gpu_control *)segment->memory.base;
}
static inline struct rc_word *rc_gpu_word(const struct rc_gpu_segment *segment, uint64_t at) {
  return (struct rc_word *)(segment->memory.base + at);
}
static inline struct rc_word *rc_gpu_ready(const struct rc_gpu_segment *segment, uint32_t slot) {
  return rc_gpu_word(segment, rc_gpu_ready_at(segment->consumers, slot));
}
static inline struct rc_word *rc_gpu_ack(const struct rc_gpu_segment *segment, uint32_t slot, uint32_t consumer) {
  return rc_gpu_word(segment, rc_gpu_ack_at(segment->consumers, slot, consumer));
}

/* How long a writer waits for a device that is busy before it does without a pool, for good: ten seconds, but in
 * tests. */
extern int64_t rc_gpu_busy_ns;

/* Makes it, registers it, and tries its words. The identity is the caller's to fill in.
 * `device`'s context is current. -ENOTSUP: the driver can't register memory, or wait for words of it. -EAGAIN: the
 * device is busy. -ETIMEDOUT: a stream has been lost in such a wait: the memory stays, and so must the context. */
int rc_gpu_segment_create(const struct rc_device *device, uint32_t slots, uint32_t consumers,
                          struct rc_gpu_segment *out);

/* What a ring's control page says of it, as one. -ENOENT: there is none now. */
struct rc_gpu_place {
  uint32_t epoch;
  int32_t fd;
  uint64_t inode, bytes;
  uint64_t position; /* of the ring, when it was made */
};
int rc_gpu_place_read(struct rc_device_place *shared, struct rc_gpu_place *out);
void rc_gpu_place_write(struct rc_device_place *shared, const struct rc_gpu_place *place);

/* Opens the one of that place, and checks it against the ring: its token, and how many readers it can have. *id is a
 * copy of what was checked. It is not registered yet. -EPROTO, and as rc_segment_attach_more. */
int rc_gpu_segment_attach(const struct rc_process *writer, const struct rc_gpu_place *place, const uint64_t token[2],
                          uint32_t consumers, struct rc_gpu_segment *out, struct rc_gpu_identity *id);

/* The context is current in each. */
int rc_gpu_segment_register(struct rc_gpu_segment *segment, const struct rc_cuda *cuda);
void rc_gpu_segment_destroy(struct rc_gpu_segment *segment, const struct rc_cuda *cuda);

#endif
