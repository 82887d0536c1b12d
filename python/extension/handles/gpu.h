/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gpu part of a Writer and of a Reader. Nothing here runs before a tensor of a device is met.
 *
 *   gpu_writer.c   the places of tensors in the writer's pool; memory in the pool for Writer.empty
 *   gpu_reader.c   taking tensors out of the pool; the status
 *
 * The owner, a Writer or Reader, holds a part, and lets one call at a time use it.
 */
#ifndef RC_EXTENSION_GPU_H
#define RC_EXTENSION_GPU_H

#include "python/extension/codec/decode.h"
#include "python/extension/codec/device.h"
#include "python/extension/codec/encode.h"

/* ---- gpu_writer.c ---------------------------------------------------------------------------- */

struct rc_py_place;

struct rc_py_gpu_writer {
  struct rc_py_state *state;
  ringcast_writer *owner;
  ringcast_gpu_writer *gpu;   /* NULL until a tensor of a device was sent; of ... */
  int32_t device;             /* ... this one */
  int late;                   /* a failure of the last frame, discovered after the send; 0: none */
  uint64_t pool_bytes;        /* 0: the environment's, or else no pool */
  struct rc_py_place *places; /* memory in the pool, of living tensors of Writer.empty */
};

/* Gets a place in the pool for the tensors of a measured encoding, and plans the frame anew with
 * it. 0; -EAGAIN, -EMSGSIZE: send the tensors in the frame; another -errno, or RC_PY_RAISED. */
int rc_py_gpu_lease(struct rc_py_gpu_writer *self, struct rc_py_encoding *encoding,
                    struct ringcast_gpu_extent *out);
/* Enqueues the copies to the pool, and commits the frame, as the phase publish. 0, -errno, or
 * RC_PY_RAISED. */
int rc_py_gpu_commit(struct rc_py_gpu_writer *self, const struct rc_py_encoding *encoding,
                     struct ringcast_gpu_extent *extent, size_t bytes);
/* Gives the place back, of a frame that is not sent. */
void rc_py_gpu_drop(struct rc_py_gpu_writer *self, struct ringcast_gpu_extent *extent);
void rc_py_gpu_writer_shut(struct rc_py_gpu_writer *self);
/* Memory in the pool, for a kernel on `stream` to write: a capsule for from_dlpack(). NULL:
 * raised. */
PyObject *rc_py_gpu_allocate(struct rc_py_gpu_writer *self, int32_t device, uint64_t bytes,
                             void *stream);

/* ---- gpu_reader.c ---------------------------------------------------------------------------- */

/* A Reader holds no more frames at a time. */
#define RC_PY_MOST_LEASES 64

struct rc_py_take {
  struct ringcast_gpu_take take;
  struct rc_py_stream stream;
  bool is_owed; /* given back while the stream captured a graph: to be ended after the capture */
};

struct rc_py_gpu_reader {
  ringcast_gpu_reader *reader; /* NULL: no usable device in the process: */
  int rc;                      /* why, and ... */
  PyObject *why;               /* ... in words */
  int32_t device;
  uint64_t pool_bytes; /* of the writer's pool, as far as is known */
  bool skips;          /* the frame begun last is not for the Reader */
  bool has_told;       /* -EPIPE was reported for tensors that never came */
  bool is_interrupted; /* a signal ended the copy of the frame begun last */
  uint32_t take_count, owed_count;
  struct rc_py_take takes[RC_PY_MOST_LEASES + 1];
};

/* What decoding needs to know of a Reader, to receive tensors of a device. */
struct rc_py_gpu_side {
  struct rc_py_receiver receiver; /* with calls that open the gpu part */
  struct rc_py_state *state;
  ringcast_reader *reader;
  bool starts_latest;           /* as Reader(start="latest") */
  struct rc_py_gpu_reader *gpu; /* the gpu part; NULL until a tensor of a device came */
};
void rc_py_gpu_side_init(struct rc_py_gpu_side *side, struct rc_py_state *state,
                         struct rc_py_map map);
void rc_py_gpu_side_clear(struct rc_py_gpu_side *side);
/* If the current exception means that the frame is not for the Reader: clears the exception,
 * returns true. */
bool rc_py_gpu_skips(struct rc_py_gpu_side *self);
/* Before the next frame is read. */
static inline void rc_py_gpu_skips_none(struct rc_py_gpu_reader *gpu) {
  gpu->skips = false;
  gpu->is_interrupted = false;
}
/* ringcast_reader_release, for a frame that may have begun. -EPIPE: the awaited data never came.
 * While the stream captures a graph, the frame is owed. */
int rc_py_gpu_release(struct rc_py_gpu_side *self, const struct ringcast_frame *frame);
/* Gives back owed takes, if possible now. A caller's GIL is released meanwhile: the driver may
 * block on another thread's call. */
void rc_py_gpu_end_owed(struct rc_py_gpu_reader *gpu, bool has_gil);
/* Call before receiving the next frame. -EPIPE, once: the writer died, and tensors of earlier
 * frames never came. */
int rc_py_gpu_check(struct rc_py_gpu_side *self);
void rc_py_gpu_reader_shut(struct rc_py_gpu_side *self);
/* Whether the device exists, as far as the driver has said. False: raised a ValueError. */
bool rc_py_gpu_map_is_known(struct rc_py_state *state, const struct rc_py_map *map);

/* Opens the writer's pool. 0; -EAGAIN: the writer has no pool yet; -errno, or RC_PY_RAISED. */
int rc_py_gpu_prepare(struct rc_py_gpu_side *self);

/* "pool" and the like, as a named tuple of _status.py. */
PyObject *rc_py_gpu_info(struct rc_py_state *state, const struct ringcast_gpu_info *info);
PyObject *rc_py_gpu_status(PyObject *module, PyObject *unused);

#endif
