/* SPDX-License-Identifier: Apache-2.0 */
/* The gpu part of a Writer: frames with tensors on a device. */
#include "python/extension/handles/gpu.h"

void rc_py_gpu_writer_shut(struct rc_py_writer *self) {
  if (!self->gpu) return;
  Py_BEGIN_ALLOW_THREADS
  rc_py_places_shut(self);
  ringcast_gpu_writer_close(self->gpu);
  Py_END_ALLOW_THREADS
  self->gpu = NULL;
}

/* Each call of the driver is made without the GIL: the driver may wait for the device, or for
 * another thread's call. */
static void drop(ringcast_gpu_writer *gpu, struct ringcast_gpu_extent *lease) {
  Py_BEGIN_ALLOW_THREADS
  ringcast_gpu_drop(gpu, lease);
  Py_END_ALLOW_THREADS
}

/* Gets a place for the frame's tensors. 0; -EAGAIN, -EMSGSIZE: send the frame INLINE; -EBUSY: ask
 * again, as some of the tensors must be copied after all; or another failure. */
static int lease_by(struct rc_py_writer *self, struct rc_py_encoding *encoding, uint64_t *sizes,
                    bool is_there, struct ringcast_gpu_extent *out) {
  uint64_t *offsets = sizes + encoding->on_device;
  uint32_t count = rc_py_device_sizes(encoding, sizes);
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_lease(self->gpu, sizes, count, offsets, out);
  Py_END_ALLOW_THREADS
  if (rc != 0) return rc;
  if (is_there) rc = rc_py_places_attach(self, encoding, out);
  if (rc == 0 && !rc_py_device_plan(encoding, offsets)) rc = RC_PY_RAISED;
  if (rc < 0) drop(self->gpu, out);
  return rc;
}

static int lease(struct rc_py_writer *self, struct rc_py_encoding *encoding,
                 struct ringcast_gpu_extent *out) {
  if (encoding->hash || encoding->has_streams) return -EAGAIN;
  uint64_t *sizes = PyMem_New(uint64_t, 2 * (size_t)encoding->on_device);
  if (!sizes) {
    PyErr_NoMemory();
    return RC_PY_RAISED;
  }
  bool is_there = rc_py_places_find(self, encoding);
  int rc;
  while ((rc = lease_by(self, encoding, sizes, is_there, out)) == -EBUSY) continue;
  PyMem_Free(sizes);
  return rc;
}

static int commit(struct rc_py_writer *self, const struct rc_py_encoding *encoding,
                  struct ringcast_gpu_extent *lease, size_t bytes) {
  if (!lease) return rc_py_writer_publish(self, bytes, RINGCAST_KIND_TENSORS);
  struct rc_py_puts puts = {.puts =
                                PyMem_New(struct ringcast_gpu_put, (size_t)encoding->on_device)};
  if (!puts.puts) {
    PyErr_NoMemory();
    return RC_PY_RAISED;
  }
  int rc = rc_py_device_puts(encoding, &puts);
  uint64_t position = encoding->call ? rc_py_writer_position(self) : 0;
  rc_py_spans_phase(encoding->call, RC_PY_SPAN_PUBLISH);
  if (rc == 0) {
    Py_BEGIN_ALLOW_THREADS /* the driver may wait, where the stream is far behind */
    rc = ringcast_gpu_commit(self->gpu, lease, puts.puts, puts.count, encoding->device_stream,
                             bytes);
    Py_END_ALLOW_THREADS
  }
  if (rc == 0) rc_py_spans_frame(encoding->call, position, bytes);
  PyMem_Free(puts.puts);
  Py_XDECREF(puts.packed); /* torch uses the memory again in the order of the stream */
  if (rc < 0 || !encoding->is_loose) return rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_stream_wait(encoding->device, encoding->device_stream);
  Py_END_ALLOW_THREADS
  self->gpu_late = rc; /* the frame is sent: the next call reports the failure */
  return 0;
}

static int raise_late(struct rc_py_writer *self) {
  int rc = self->gpu_late;
  self->gpu_late = 0;
  rc_py_raise_text(rc_py_state_of(self), -rc,
                   "the device failed after the last frame was sent: its tensors may never "
                   "have come");
  return RC_PY_RAISED;
}

/* Reserves, writes and commits the frame: INLINE if `lease` is NULL; else the lease is consumed. */
static int send_by(struct rc_py_writer *self, struct rc_py_encoding *encoding, int64_t timeout_ns,
                   uint32_t tag, struct ringcast_gpu_extent *lease) {
  struct rc_py_reservation call = {.writer = self, .bytes = ringcast_plan_bytes(&encoding->plan)};
  size_t bytes;
  self->base.value_failed = false;
  int rc = rc_py_reserve(&call, timeout_ns, RC_PY_SPAN_ENCODE);
  if (rc == 0) {
    self->base.value_failed = true;
    rc = rc_py_encoding_write_device(encoding, self->gpu, &call.span, tag, lease, &bytes);
    if (rc == 0) rc = commit(self, encoding, lease, bytes);
    if (rc == 0) return 0;
    ringcast_writer_abort(self->writer);
  }
  if (lease) drop(self->gpu, lease);
  return rc;
}

int rc_py_gpu_send(struct rc_py_writer *self, struct rc_py_encoding *encoding, int64_t timeout_ns,
                   uint32_t tag) {
  struct ringcast_gpu_extent place;
  self->base.value_failed = true; /* but for a failure in the wait, and for one by its errno */
  if (self->gpu_late < 0) return raise_late(self);
  if (!self->gpu && !rc_py_device_may_start(rc_py_state_of(self))) return RC_PY_RAISED;
  int rc = rc_py_gpu_writer_open(self, encoding->device);
  if (rc < 0) return rc;
  if (self->places) {
    Py_BEGIN_ALLOW_THREADS
    rc_py_places_sweep(self);
    Py_END_ALLOW_THREADS
  }
  rc = lease(self, encoding, &place);
  if (rc == 0) return send_by(self, encoding, timeout_ns, tag, &place);
  return rc == -EAGAIN || rc == -EMSGSIZE ? send_by(self, encoding, timeout_ns, tag, NULL) : rc;
}
