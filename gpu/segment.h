/* SPDX-License-Identifier: Apache-2.0 */
/* The device segment of a ring: made by the writer, found by its readers, registered with the driver by each. */
#ifndef RC_GPU_SEGMENT_H
#define RC_GPU_SEGMENT_H

#include <errno.h>

#include "gpu/device.h"
#include "gpu/layout.h"
#include "shm/memory.h"
#include "shm/process.h"

struct rc_gpu_segment {
  struct rc_memory memory;
  rc_cu_ptr address; /* of the start, for the device; 0: not registered */
  uint32_t slots, importers, epoch;
};

static inline struct rc_gpu_control *rc_gpu_control(const struct rc_gpu_segment *segment) {
  return (struct rc_gpu_control *)segment->memory.base;
}
static inline struct rc_semaphore *rc_gpu_semaphore(const struct rc_gpu_segment *segment, uint64_t at) {
  return (struct rc_semaphore *)(segment->memory.base + at);
}
static inline struct rc_semaphore *rc_gpu_ready(const struct rc_gpu_segment *segment, uint32_t slot) {
  return rc_gpu_semaphore(segment, rc_gpu_ready_at(segment->importers, slot));
}
static inline struct rc_semaphore *rc_gpu_ack(const struct rc_gpu_segment *segment, uint32_t slot, uint32_t importer) {
  return rc_gpu_semaphore(segment, rc_gpu_ack_at(segment->importers, slot, importer));
}

/* How long a writer that opens waits for a device that is busy: ten seconds, but in tests. */
extern int64_t rc_gpu_busy_ns;

/* Whether a failure to make a pool, or to open one, may not last: what the process or the device lacks just now, and
 * what a capture forbids. */
static inline bool rc_gpu_is_for_now(int failed) {
  return failed == -EAGAIN || failed == -ENOENT || failed == -EBUSY || failed == -EMFILE || failed == -ENFILE ||
         failed == -ENOMEM;
}

/* Makes and registers a segment, whose slots, importers and epoch are set, and tries its words; the caller fills in the
 * identity, and destroys the segment after a failure too. The context is current. -ENOTSUP: the driver can't register
 * memory, or wait for words of it. -EAGAIN: the device is busy. -ETIMEDOUT: a stream hangs in such a wait: the memory
 * must stay, and so must the context. */
int rc_gpu_segment_create(struct rc_gpu_segment *segment, const struct rc_cuda *cuda, int64_t patience_ns);

/* Where a ring's control page says that the segment is. -ENOENT: there is none now. */
struct rc_gpu_place {
  uint32_t epoch;
  int32_t fd;
  uint64_t inode, bytes;
  uint64_t position; /* of the ring, when the readers were told */
};
int rc_gpu_place_read(struct rc_device_place *shared, struct rc_gpu_place *out);
void rc_gpu_place_write(struct rc_device_place *shared, const struct rc_gpu_place *place);

/* Opens the segment at that place, and checks the ring's token, and how many readers the ring can have. *id is a copy
 * of what was checked. The segment is not registered yet. -EPROTO, and as rc_segment_attach_more. */
int rc_gpu_segment_attach(const struct rc_process *writer, const struct rc_gpu_place *place, const uint64_t token[2],
                          uint32_t importers, struct rc_gpu_segment *out, struct rc_gpu_identity *id);

/* The context is current in each. _try: whether streams and the host can wait for each other by the words at the end
 * that are the importer's for that; results as rc_semaphores_try. */
int rc_gpu_segment_try(const struct rc_gpu_segment *segment, const struct rc_cuda *cuda, uint32_t importer,
                       int64_t patience_ns);
int rc_gpu_segment_register(struct rc_gpu_segment *segment, const struct rc_cuda *cuda);
void rc_gpu_segment_destroy(struct rc_gpu_segment *segment, const struct rc_cuda *cuda);

#endif
