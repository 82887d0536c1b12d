/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the reader's side. */
#ifndef RC_GPU_READER_H
#define RC_GPU_READER_H

#include <errno.h>

#include "gpu/import.h"
#include "ringcast/gpu.h"

struct ringcast_gpu_reader {
  ringcast_reader *reader; /* unused once `forks` is RC_LEFT: the reader has left the ring */
  struct rc_device device;
  struct rc_import *import; /* NULL: no pool is open */
  struct rc_import *before; /* the list of earlier imports, for which streams may still wait */
  uint32_t failed;          /* the epoch of the pool that failed to open last; 0: no failure yet */
  uint32_t refused;         /* the epoch of a pool that can't be opened here at all; 0: none yet */
  int64_t not_before; /* after a failed open that took long, frames do not open the pool until this
                         time */
  uint32_t forks;
  char why[200];            /* the error text of `failed` */
  struct rc_bounce *bounce; /* NULL: not made yet, or ... */
  bool has_no_bounce;       /* ... there is no pinned memory here */
  bool missing;             /* as rc_import_is_missing, of the imports that have ended */
  /* 1 + the position of each frame with an open take; 0: a free entry. */
  uint64_t begun[RC_MAX_LEASES];
  uint64_t pool_frames, pool_bytes, inline_frames, opens, syncs;
};

#endif
