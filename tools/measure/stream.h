/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream: this process copies a buffer into each frame, and each reader reads every byte of each
 * frame in place.
 *   RING    through a ring
 *   FLOOR   the same copying and reading without a ring: the limit when the bytes move from one
 *           core to another
 *   ALONE   the copying of FLOOR without a reader: the limit when no other core has read the memory
 * A batch of frames ends when every reader has read the last frame. Taps may look on; the writer
 * does not wait for a tap.
 */
#ifndef TOOLS_MEASURE_STREAM_H
#define TOOLS_MEASURE_STREAM_H

#include "tools/measure/perf.h"

enum { STREAM_BATCH = 1024 };
enum stream_kind { STREAM_RING, STREAM_FLOOR, STREAM_ALONE, STREAM_KINDS };

struct stream_options {
  size_t size;       /* of a frame's payload, at least 8 */
  uint64_t capacity; /* 0: the library's default */
  uint32_t memory;   /* enum ringcast_memory */
  int64_t spin_ns;   /* of the writer and the readers; 0: the library's default */
  uint32_t readers, taps;
  uint32_t batch; /* the most messages in one call, at most STREAM_BATCH; 0: frames one by one */
  bool floor;     /* FLOOR and ALONE are measured too */
  /* Of RING, for large frames; NULL: as above. A reader with `copy_out` copies each frame, and
   * reads the copy. */
  void (*copy_in)(void *to, const void *from, size_t bytes);
  void (*copy_out)(void *to, const void *from, size_t bytes);
};

struct stream;

/* Makes the ring and the processes, and sends a few frames. NULL: the machine can't do that, see
 * perf_reason. `machine`: the CPUs to run on. */
struct stream *stream_make(const struct perf_options *machine,
                           const struct stream_options *options);
void stream_destroy(struct stream *stream);

/* Sends frames; stream_finish waits until every reader has read all of them. */
void stream_send(struct stream *stream, enum stream_kind kind, uint64_t frames);
void stream_finish(struct stream *stream, enum stream_kind kind);

/* Both; seconds. */
double stream_run(struct stream *stream, enum stream_kind kind, uint64_t frames);

const struct ringcast_info *stream_info(const struct stream *stream);
uint64_t stream_stride(const struct stream *stream); /* bytes of a frame with its header */

/* The writer's page faults so far; those of the readers' process with most, but for its first
 * frames. */
uint64_t stream_writer_faults(void);
uint64_t stream_reader_faults(const struct stream *stream);

/* What share of the bytes that were sent the first tap has lost; 0 without taps. */
double stream_tap_lost(const struct stream *stream);

#endif
