/* SPDX-License-Identifier: Apache-2.0 */
/* A pool that this process has exported, with its words. It may outlive the handle that made it. */
#ifndef RC_GPU_EXPORTED_H
#define RC_GPU_EXPORTED_H

#include "channel/channel.h"
#include "gpu/segment.h"
#include "gpu/worker.h"

struct rc_exported {
  struct rc_device device;
  struct rc_gpu_segment segment;
  rc_cu_ptr memory; /* pool_bytes, and the pattern; 0: there is none */
  uint64_t pool_bytes;
  uint64_t token[2];
  uint32_t forks;
  bool is_kept; /* the caller has memory of it: it is never freed */
  bool is_left; /* its writer does without it; what the segment says of that, any peer may have stored */
  struct rc_job job;
  struct rc_exported *next;
};

/* Makes a pool: allocates, exports, and tells the ring's readers. 0, or why not, with its text. It takes over the
 * device's hold on its context. */
int rc_exported_make(struct rc_device *device, ringcast_writer *writer, uint64_t pool_bytes, uint32_t slots,
                     struct rc_exported **out);
/* The writer does without it from here on: the memory is freed once no reader has it open. */
void rc_exported_leave(struct rc_exported *exported);
/* Has the worker free what was left and no reader has open any more, and waits for that for `patience_ns` at most. */
void rc_exported_tidy(int64_t patience_ns);
/* The pool of that token and epoch, if this process has made it; 0: it has not. */
rc_cu_ptr rc_exported_find(const uint64_t token[2], uint32_t epoch, const struct rc_device *device);

#endif
