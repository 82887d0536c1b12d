/* SPDX-License-Identifier: Apache-2.0 */
/* Named points of the device pool, beside the points of ring/point.h. tests/process/gpu_kill kills and stops a process
 * at each point: the writer of device tensors (GPU_WRITES), a reader (GPU_READS), or a reader that finds the writer
 * dead (GPU_MOURNS). */
#ifndef RC_GPU_POINT_H
#define RC_GPU_POINT_H

#include "ring/point.h"

/* clang-format off */
#define RC_GPU_POINTS(X)                                                                                            \
  X(POOL_MADE, GPU_WRITES) X(POOL_TOLD, GPU_WRITES) X(POOL_LEFT, GPU_WRITES) X(EXPECTED, GPU_WRITES)                 \
  X(LEASED, GPU_WRITES) X(COPIED_IN, GPU_WRITES) X(READY_ENQUEUED, GPU_WRITES) X(COMMITTED, GPU_WRITES)             \
  X(PLACE_TAKEN, GPU_READS) X(POOL_OPENED, GPU_READS) X(POOL_TRIED, GPU_READS) X(OPENED_TOLD, GPU_READS)            \
  X(TAKE_NOTED, GPU_READS) X(WAIT_ENQUEUED, GPU_READS) X(COPIED_OUT, GPU_READS) X(ACK_ENQUEUED, GPU_READS)          \
  X(IMPORT_CLOSED, GPU_READS) X(PLACE_LEFT, GPU_READS) X(DEATH_SEEN, GPU_MOURNS) X(WAITS_RELEASED, GPU_MOURNS)
/* clang-format on */

enum {
  RC_POINT_BEFORE_GPU = RC_POINT_COUNT, /* the numbers continue those of ring/point.h */
#define RC_POINT_OF(name, passer) RC_POINT_##name,
  RC_GPU_POINTS(RC_POINT_OF)
#undef RC_POINT_OF
};

#endif
