/* SPDX-License-Identifier: Apache-2.0 */
/* The gpu's part of a Writer and of a Reader. */
#ifndef RC_EXTENSION_GPU_H
#define RC_EXTENSION_GPU_H

#include "python/extension/codec/device.h"
#include "python/extension/handles/reader.h"
#include "python/extension/handles/writer.h"

/* ---- gpu_send.c ------------------------------------------------------------------------------ */

/* Sends a measured encoding. 0, -errno, or RC_PY_RAISED. After an error, nothing is left open. */
int rc_py_gpu_send(struct rc_py_writer *self, struct rc_py_encoding *encoding, int64_t timeout_ns,
                   uint32_t tag);
void rc_py_gpu_writer_shut(struct rc_py_writer *self);

/* ---- gpu.c ----------------------------------------------------------------------------------- */

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
/* A holder with calls that open the Reader's gpu part. */
void rc_py_gpu_holder_init(struct rc_py_holder *holder, struct rc_py_map map);
/* If the current exception means that the frame is not for the Reader: clears the exception,
 * returns true. */
bool rc_py_gpu_skips(struct rc_py_reader *self);
/* Before the next frame is read. */
static inline void rc_py_gpu_skips_none(struct rc_py_reader *self) {
  if (self->gpu) self->gpu->skips = self->gpu->is_interrupted = false;
}
/* ringcast_reader_release, for a frame that may have begun. -EPIPE: the awaited data never came.
 * While the stream captures a graph, the frame is owed. */
int rc_py_reader_release(struct rc_py_reader *self, const struct ringcast_frame *frame);
/* Gives back owed takes, if possible now. Call without the GIL: the driver may block on another
 * thread's call. */
void rc_py_gpu_end_owed(struct rc_py_gpu_reader *gpu);
/* The same for a caller with the GIL, which is released meanwhile. */
void rc_py_gpu_end_owed_now(struct rc_py_gpu_reader *gpu);
/* Call before receiving the next frame. -EPIPE, once: the writer died, and tensors of earlier
 * frames never came. */
int rc_py_gpu_check(struct rc_py_reader *self);
void rc_py_gpu_reader_shut(struct rc_py_reader *self);
/* Whether the device exists, as far as the driver has said. False: raised a ValueError. */
bool rc_py_gpu_map_is_known(struct rc_py_state *state, const struct rc_py_map *map);
/* Whether the frame, complete in memory, holds device tensors. */
bool rc_py_has_device(const struct ringcast_frame *frame);

/* Opens the writer's pool. 0; -EAGAIN: the writer has no pool yet; -errno, or RC_PY_RAISED. */
int rc_py_gpu_prepare(struct rc_py_reader *self);

/* ---- gpu_info.c ------------------------------------------------------------------------------ */

PyObject *rc_py_reader_prepare_gpu(PyObject *self, PyObject *unused);
PyObject *rc_py_writer_gpu(PyObject *self, void *closure);
PyObject *rc_py_reader_gpu(PyObject *self, void *closure);
PyObject *rc_py_gpu_status(PyObject *module, PyObject *unused);

/* ---- empty.c --------------------------------------------------------------------------------- */

/* Opens the gpu part for `device`, unless open. 0, -errno. */
int rc_py_gpu_writer_open(struct rc_py_writer *self, int32_t device);
PyObject *rc_py_writer_empty(PyObject *writer, PyObject *args, PyObject *keywords);
/* Notes for each device tensor whether the tensor lies in memory of Writer.empty, and where. False:
 * none does. */
bool rc_py_places_find(const struct rc_py_writer *writer, struct rc_py_encoding *encoding);
/* Makes the frame refer to the places found. -EBUSY: another frame still refers to some places,
 * which are dropped from the result. */
int rc_py_places_attach(const struct rc_py_writer *writer, struct rc_py_encoding *encoding,
                        const struct ringcast_gpu_extent *lease);
/* Gives back the memory of tensors that have died. Call without the GIL: the driver may wait. */
void rc_py_places_sweep(struct rc_py_writer *writer);
/* Before the gpu's part is closed. */
void rc_py_places_shut(struct rc_py_writer *writer);

#endif
