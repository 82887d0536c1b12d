/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast record`: a ring's frames into a file. record.c has the options and texts, record_run.c
 * the work. */
#ifndef TOOLS_RECORD_H
#define TOOLS_RECORD_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "ringcast/ringcast.h"
#include "tools/recording.h"

#define RECORD_BUFFER (UINT64_C(64) << 20)

struct record_options {
  const char *ring, *file; /* as given */
  uint64_t buffer;
  double seconds;         /* 0, also of the next two: no limit */
  uint64_t frames, bytes; /* bytes of payload: the last frame reaches the limit */
  bool lossless, json;
  const volatile sig_atomic_t *stop; /* not 0: the recorder ends */
};

enum record_end {
  RECORD_STOPPED,
  RECORD_ENOUGH,
  RECORD_WRITER_GONE,
  RECORD_RING_FAILED,
  RECORD_DISK_FAILED
};

/* The result. */
struct record_result {
  enum record_end end;
  int error;                /* -errno of the ring or the disk */
  char why[256];            /* the error in words */
  struct recording_sum sum; /* unless the disk failed */
  uint64_t gap_bytes;       /* of the ring, as far as known */
  double seconds;
};

/* Records until a limit, a signal or an error; then the file is whole. 0, or -errno: nothing was
 * recorded, as `out->why` says, and `out->end` whether the ring failed or the disk. `started` may
 * be NULL; called once the recorder is attached. */
int record_run(const struct record_options *options, const char *handle,
               void (*started)(void *context), void *context, struct record_result *out);

#endif
