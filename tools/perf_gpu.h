/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of `ringcast perf gpu`, printed by perf_gpu_print.c. */
#ifndef TOOLS_PERF_GPU_H
#define TOOLS_PERF_GPU_H

#include "ringcast/gpu.h"
#include "tools/perf.h"

/* How the same bytes get from one place to another. */
enum gpu_way { GPU_POOL, GPU_INLINE, GPU_DTOD, GPU_HTOD, GPU_WAYS };
enum { GPU_RINGS = 2 /* the first two ways are ringcast's */ };

struct gpu_way_figures {
  bool measured;
  size_t rounds;
  double send_us, receive_us; /* the CPU's time for a tensor; of the plain copies, send_us: of the call */
  double completion_us;       /* from the call of send until the last reader's device has the bytes */
  double bytes_per_s;         /* several in a row, from send until the last reader has them: two copies each by POOL */
  double copy_bytes_per_s[2]; /* each of the copies alone: into the pool, and out of it at the slowest reader; of
                               * device_to_device, the first. Not a number: not measured */
};

struct gpu_size_figures {
  uint64_t bytes;
  struct gpu_way_figures ways[GPU_WAYS];
};

struct gpu_figures {
  struct ringcast_gpu_driver status;
  struct ringcast_gpu_device_info device;
  struct ringcast_gpu_info writers[GPU_RINGS];
  struct ringcast_gpu_info readers[GPU_RINGS]; /* of the first; but opens and syncs are of all */
  uint64_t free_before, free_open, free_after; /* bytes of the device: before anything is open but one context; with
                                                * all open, the readers' contexts too; and at the end */
  bool pool;                                   /* it was used; else writers[GPU_POOL].why says why not */
  int size_count;
  struct gpu_size_figures sizes[PERF_MAX_SIZES];
};

/* What share of a plain copy's bandwidth the slower of POOL's two copies has. Not a number: not measured. */
double gpu_copy_ratio(const struct gpu_size_figures *size);

/* From which size on POOL takes less time than INLINE does, there and at all larger ones; 0: it never does. */
uint64_t gpu_crossover(const struct gpu_figures *figures);

void gpu_print(const struct perf_options *options, const struct gpu_figures *figures);

#endif
