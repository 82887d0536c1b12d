/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of `ringcast perf gpu`, printed by perf_gpu_print.c. */
#ifndef TOOLS_PERF_GPU_H
#define TOOLS_PERF_GPU_H

#include "ringcast/gpu.h"
#include "tools/perf.h"

/* How the same bytes get from one place to another. */
enum gpu_way { GPU_POOL, GPU_INLINE, GPU_DTOD, GPU_HTOD, GPU_WAYS };
enum { GPU_RINGS = 2 /* the first two ways are ringcast's */ };

enum gpu_figure {
  GPU_SEND,       /* us of the CPU for a tensor; of the plain copies, for the call */
  GPU_RECEIVE,    /* the same, at the slowest reader */
  GPU_COMPLETION, /* us from the call of send until the last reader's device has the bytes */
  GPU_RATE,       /* bytes/s of several in a row, from send until the last reader has them: two copies each by POOL */
  GPU_COPY_IN,    /* bytes/s of the copy into the pool, alone */
  GPU_COPY_OUT,   /* the same out of the pool, at the slowest reader */
  GPU_COPY_RATIO, /* the slower of these two, by GPU_COPY */
  GPU_COPY,       /* bytes/s of a plain copy within the device, alone */
  GPU_FIGURES
};

struct gpu_size_figures {
  uint64_t bytes;
  size_t rounds[GPU_WAYS];          /* 0: the way was not measured */
  double of[GPU_WAYS][GPU_FIGURES]; /* not a number: not measured */
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

void gpu_print(const struct perf_options *options, const struct gpu_figures *figures);

#endif
