/* SPDX-License-Identifier: Apache-2.0 */
/* The device pool: the segment that the writer shares with the readers, the slots in the writer's
 * private memory, and the pools that this process has made. */
#ifndef RC_GPU_POOL_H
#define RC_GPU_POOL_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "channel/channel.h"
#include "channel/liveness.h"
#include "gpu/device.h"
#include "gpu/layout.h"
#include "gpu/worker.h"
#include "ring/point.h"
#include "shm/memory.h"
#include "shm/process.h"

/* ---- Named points ---------------------------------------------------------------------------- */

/* Named points of the device pool, beside the points of ring/point.h. tests/process/gpu_kill kills
 * and stops a process at each point: the writer of device tensors (GPU_WRITES), a reader
 * (GPU_READS), or a reader that finds the writer dead (GPU_MOURNS). */

/* clang-format off */
#define RC_GPU_POINTS(X)                                                                          \
  X(POOL_MADE, GPU_WRITES) X(POOL_TOLD, GPU_WRITES) X(POOL_LEFT, GPU_WRITES)                      \
  X(EXPECTED, GPU_WRITES)                                                                         \
  X(LEASED, GPU_WRITES) X(COPIED_IN, GPU_WRITES) X(READY_ENQUEUED, GPU_WRITES)                    \
  X(COMMITTED, GPU_WRITES)                                                                        \
  X(PLACE_TAKEN, GPU_READS) X(POOL_OPENED, GPU_READS) X(POOL_TRIED, GPU_READS)                    \
  X(OPENED_TOLD, GPU_READS)                                                                       \
  X(TAKE_NOTED, GPU_READS) X(WAIT_ENQUEUED, GPU_READS) X(COPIED_OUT, GPU_READS)                   \
  X(ACK_ENQUEUED, GPU_READS)                                                                      \
  X(IMPORT_CLOSED, GPU_READS) X(PLACE_LEFT, GPU_READS)                                            \
  X(DEATH_SEEN, GPU_MOURNS) X(WAITS_RELEASED, GPU_MOURNS)
/* clang-format on */

enum {
  RC_POINT_BEFORE_GPU = RC_POINT_COUNT, /* the numbers continue those of ring/point.h */
#define RC_POINT_OF(name, passer) RC_POINT_##name,
  RC_GPU_POINTS(RC_POINT_OF)
#undef RC_POINT_OF
};

/* ---- The segment ----------------------------------------------------------------------------- */

/* The device segment of a ring: made by the writer, found by its readers, registered with the
 * driver by each. */

struct rc_gpu_segment {
  struct rc_memory memory;
  rc_cu_ptr address; /* of the start, for the device; 0: not registered */
  uint32_t slots, importers, epoch;
};

static inline struct rc_gpu_control *rc_gpu_control(const struct rc_gpu_segment *segment) {
  return (struct rc_gpu_control *)segment->memory.base;
}
static inline struct rc_semaphore *rc_gpu_semaphore(const struct rc_gpu_segment *segment,
                                                    uint64_t at) {
  return (struct rc_semaphore *)(segment->memory.base + at);
}
static inline struct rc_semaphore *rc_gpu_ready(const struct rc_gpu_segment *segment,
                                                uint32_t slot) {
  return rc_gpu_semaphore(segment, rc_gpu_ready_at(segment->importers, slot));
}
static inline struct rc_semaphore *rc_gpu_ack(const struct rc_gpu_segment *segment, uint32_t slot,
                                              uint32_t importer) {
  return rc_gpu_semaphore(segment, rc_gpu_ack_at(segment->importers, slot, importer));
}

/* How long a writer that opens waits for a device that is busy: ten seconds, but in tests. */
extern int64_t rc_gpu_busy_ns;

/* Whether a failure to make a pool, or to open one, may not last: what the process or the device
 * lacks just now, and what a capture forbids. */
static inline bool rc_gpu_is_for_now(int failed) {
  return failed == -EAGAIN || failed == -ENOENT || failed == -EBUSY || failed == -EMFILE ||
         failed == -ENFILE || failed == -ENOMEM;
}

/* Where a ring's control page says that the segment is. -ENOENT: there is none now. */
struct rc_gpu_place {
  uint32_t epoch;
  int32_t fd;
  uint64_t inode, bytes;
  uint64_t position; /* of the ring, when the readers were told */
};
int rc_gpu_place_read(struct rc_device_place *shared, struct rc_gpu_place *out);
void rc_gpu_place_write(struct rc_device_place *shared, const struct rc_gpu_place *place);

/* Opens the segment at that place, and checks the ring's token, and how many readers the ring can
 * have. *id is a copy of what was checked. The segment is not registered yet. -EPROTO, and as
 * rc_segment_attach_more. */
int rc_gpu_segment_attach(const struct rc_process *writer, const struct rc_gpu_place *place,
                          const uint64_t token[2], uint32_t importers, struct rc_gpu_segment *out,
                          struct rc_gpu_identity *id);

/* The context is current in each. _try: whether streams and the host can wait for each other by the
 * words at the end that are the importer's for that; results as rc_semaphores_try. */
int rc_gpu_segment_try(const struct rc_gpu_segment *segment, const struct rc_cuda *cuda,
                       uint32_t importer, int64_t patience_ns);
int rc_gpu_segment_register(struct rc_gpu_segment *segment, const struct rc_cuda *cuda);
void rc_gpu_segment_destroy(struct rc_gpu_segment *segment, const struct rc_cuda *cuda);

/* ---- Slots ----------------------------------------------------------------------------------- */

/* The slots of the pool and the slots' extents, in the writer's private memory. Makes no call of
 * the driver. */

enum rc_pool_state {
  RC_POOL_FREE = 0,
  RC_POOL_LEASED,  /* a lease, or kept memory, is open */
  RC_POOL_SENT,    /* a frame names the slot */
  RC_POOL_DROPPED, /* filled, and no frame names the slot */
  RC_POOL_OWED,    /* as DROPPED, but the stream captured a graph: `ready` must still be enqueued */
  RC_POOL_LOST,    /* the device may write to the extent at any time */
};

struct rc_pool_slot {
  uint32_t state;      /* enum rc_pool_state */
  uint64_t generation; /* of the last lease */
  uint64_t base, bytes;
  uint64_t position; /* of the frame */
  void *stream;      /* if `copied`: the stream of the copies, or of the caller's kernels */
  bool copied;
  bool is_kept;   /* the caller has the address until the drop: ringcast_gpu_allocate */
  uint32_t frame; /* kept memory: 1 + the slot of the frame under way that refers to the extent; 0:
                     no frame */
  uint32_t attached; /* the number of slots with this slot as `frame` */
};

struct rc_pool {
  uint64_t bytes;
  uint32_t slot_count, used;
  uint64_t used_bytes;
  struct rc_pool_slot *slots;
  uint32_t *order; /* the used slots, by extent; in the memory behind `slots` */
};

/* -ENOMEM. */
int rc_pool_init(struct rc_pool *pool, uint64_t bytes, uint32_t slots);
void rc_pool_free(struct rc_pool *pool);

/* Takes a free slot, with an extent of `bytes` at a multiple of RC_GPU_ALIGN, and the next
 * generation. Returns the slot's number. -EAGAIN: no slot is free, or no gap is large enough. */
int rc_pool_take(struct rc_pool *pool, uint64_t bytes);
void rc_pool_give(struct rc_pool *pool, uint32_t slot);
/* The leased slot with the extent of the bytes. -ENOENT: no such slot. */
int rc_pool_find(const struct rc_pool *pool, uint64_t at, uint64_t bytes);
/* The frame of slot `frame` refers to the extent of `slot`, until the frame's slot is given back.
 * False: a different frame refers to the extent. */
bool rc_pool_attach(struct rc_pool *pool, uint32_t slot, uint32_t frame);

bool rc_pool_is_valid(const struct rc_pool *pool);

/* ---- Pools of this process ------------------------------------------------------------------- */

/* A pool that this process exports, with its semaphores. A pool may outlive the handle that asked
 * for it. */

struct rc_exported {
  struct rc_device device;
  struct rc_gpu_segment segment;
  struct rc_gpu_place place; /* for the ring's control page */
  rc_cu_ptr memory;          /* pool_bytes, and the pattern; 0: none */
  uint64_t pool_bytes;
  uint64_t token[2];
  int failed; /* why there is no memory: a negative errno, and ... */
  char why[200];
  _Atomic uint32_t is_making; /* 1: the worker makes the pool */
  bool is_left; /* under the mutex: the writer has left the pool. Any peer may have stored `closed`
                   in the segment */
  bool is_kept; /* the memory is never freed: the caller has addresses in it, or a stream hangs in
                   it */
  struct rc_job job;
  struct rc_exported *next;
};

/* A pool for a ring, of device `ordinal`, still without memory. -ENOMEM, -EIO, with the error
 * text. */
int rc_exported_new(int32_t ordinal, const ringcast_writer *writer, uint64_t pool_bytes,
                    uint32_t slots, struct rc_exported **out);
/* Allocates and exports the memory, and makes the semaphores, or sets `failed`: blocks while the
 * driver works. A device that is busy is waited for as long as `patience_ns`. */
void rc_exported_make(struct rc_exported *exported, int64_t patience_ns);
/* The worker makes the pool. `is_making` is 1 until `failed` is known. */
void rc_exported_make_soon(struct rc_exported *exported);

/* The writer has no more use for the pool: the memory is freed once no reader has it open, and the
 * call waits for that for `patience_ns` at most. `is_kept`: the memory is never freed. */
void rc_exported_leave(struct rc_exported *exported, bool is_kept, int64_t patience_ns);
/* The same for all pools that were left earlier. */
void rc_exported_tidy(int64_t patience_ns);
/* The memory of the pool with that token and epoch on that device; 0: this process has not made
 * it. */
rc_cu_ptr rc_exported_find(const uint64_t token[2], uint32_t epoch, const struct rc_device *device);

#endif
