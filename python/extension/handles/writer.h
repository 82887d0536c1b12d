/* SPDX-License-Identifier: Apache-2.0 */
/* Writer, for the files that implement it. */
#ifndef RC_EXTENSION_WRITER_H
#define RC_EXTENSION_WRITER_H

#include "python/extension/call.h"
#include "python/extension/codec/encode.h"
#include "python/extension/handles/handle.h"

/* A reservation open to Python. A Span holds the generation at its creation: if the generation
 * differs, or `open` is false, the Span is stale. */
struct rc_py_lease {
  bool open;
  bool estimated; /* the size is an estimate: commit() must tell how many bytes are the frame's */
  bool doomed;    /* to be given back as soon as the last memoryview goes */
  bool moving;    /* a grow is in progress */
  uint64_t generation;
  Py_ssize_t exports; /* memoryviews and other buffers in use */
};

struct rc_py_place;

struct rc_py_writer {
  struct rc_py_handle base;
  ringcast_writer *writer; /* NULL: closed */
  struct ringcast_info info;
  int64_t fail_ns; /* how long a reader may block the writer before calls fail; 0: for ever, or the
                      reader is evicted */
  struct rc_py_lease lease;
  struct ringcast_span span;
  bool offering;   /* the call at work is _offer() */
  bool takes_cuda; /* False: _group/config.py asks for no tensors of a device */
  bool waited;     /* a call has waited for room, and may have evicted a reader; Python clears it */
  int64_t sent;    /* the tag of the last frame of send() or _send_error(); -1: none */
  ringcast_gpu_writer *gpu; /* NULL until a tensor of a device was sent; of ... */
  int32_t gpu_device;       /* ... this one */
  int gpu_late;             /* a failure of the last frame, discovered after the send; 0: none */
  uint64_t gpu_pool_bytes; /* as ringcast_gpu_writer_options.pool_bytes; 0: the environment, else no
                              pool */
  struct rc_py_place *places; /* empty.c: memory in the pool, of living tensors */
};

extern PyType_Spec rc_py_writer_spec;

/* add_size(history, n), for the legs between machines: see ringcast_sizes_add. */
PyObject *rc_py_add_size(PyObject *module, PyObject *args);

/* Aborts a doomed reservation without buffers, unless the Writer is in use. */
void rc_py_writer_end_doomed(struct rc_py_writer *self);

static inline bool rc_py_writer_enter(struct rc_py_writer *self) {
  return rc_py_handle_enter(&self->base);
}
static inline void rc_py_writer_leave(struct rc_py_writer *self) {
  rc_py_handle_leave(&self->base);
  if (self->lease.doomed)
    rc_py_writer_end_doomed(self); /* the last array may have gone during the call */
}

/* As struct rc_py_encoding.sends_from. */
static inline int32_t rc_py_writer_sends_from(const struct rc_py_writer *self) {
  if (!self->takes_cuda) return RC_PY_FROM_NONE;
  return self->gpu ? self->gpu_device : RC_PY_FROM_FIRST;
}

/* The same, with spans: of a whole send, or RC_PY_SPAN_NONE. */
static inline bool rc_py_writer_begin(struct rc_py_writer *self) {
  bool is_in = rc_py_writer_enter(self);
  if (is_in) rc_py_handle_begin(&self->base);
  return is_in;
}
static inline void rc_py_writer_end(struct rc_py_writer *self, enum rc_py_span_kind kind,
                                    bool is_nothing) {
  rc_py_writer_leave(self);
  rc_py_spans_end(&self->base.call, kind, is_nothing);
}

/* ---- send.c ---------------------------------------------------------------------------------- */

PyObject *rc_py_writer_send(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords);
PyObject *rc_py_writer_send_bytes(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                  PyObject *keywords);
PyObject *rc_py_writer_send_error(PyObject *self, PyObject *const *args, Py_ssize_t count);
/* _offer(obj, tag, hash): send(obj, 0, tag=tag, hash=hash), but for state->nothing if there is no
 * room. */
PyObject *rc_py_writer_offer(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* Sends a value, or a measured encoding. `hash`: see rc_py_hash_argument. None; NULL: raised. */
PyObject *rc_py_writer_send_value(struct rc_py_writer *self, PyObject *object, int64_t timeout_ns,
                                  uint32_t tag, uint32_t hash);
PyObject *rc_py_writer_send_encoding(struct rc_py_writer *self, struct rc_py_encoding *encoding,
                                     int64_t timeout_ns, uint32_t tag);

/* ---- send_many.c ----------------------------------------------------------------------------- */

PyObject *rc_py_writer_send_many(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                 PyObject *keywords);

/* ---- span.c ---------------------------------------------------------------------------------- */

extern PyType_Spec rc_py_span_spec;

/* Of reserve or grow. */
struct rc_py_reservation {
  struct rc_py_writer *writer;
  size_t bytes;
  struct ringcast_span span;
};
/* Waits for room, with the phase wait_room, and begins the phase `then`. As rc_py_wait. */
int rc_py_reserve(struct rc_py_reservation *call, int64_t timeout_ns, enum rc_py_span_kind then);
/* Where the next frame starts, as readers will see it. */
uint64_t rc_py_writer_position(const struct rc_py_writer *self);
/* ringcast_writer_commit as the phase publish, of the frame at the present position. */
int rc_py_writer_publish(struct rc_py_writer *self, size_t bytes, uint16_t kind);
/* Splits the library's -ETIMEDOUT: RC_PY_TOO_SLOW, or -ETIMEDOUT if the attempt's own time is
 * up. */
int rc_py_told_apart(const struct rc_py_writer *self, int rc);
/* True if the open reservation, if any, may end now. */
bool rc_py_writer_may_end(const struct rc_py_writer *self, const char *verb);
PyObject *rc_py_writer_commit(PyObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords);
PyObject *rc_py_writer_abort(PyObject *self, PyObject *unused);
/* Opens the lease of a reservation that was just made. NULL: raised, and the reservation is
 * aborted. */
PyObject *rc_py_span_new(struct rc_py_writer *writer, const struct ringcast_span *reserved);

/* ---- compose.c ------------------------------------------------------------------------------- */

PyObject *rc_py_writer_compose(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
