/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writer.
 *
 *   writer.c      makes the ring, and closes it; the type
 *   send.c        from Writer.send to the commit; reserving, for all who fill a frame
 *   send_many.c   Writer.send_many
 *   span.c        frames that are filled in place: Writer.reserve, compose, commit, abort; Span
 */
#ifndef RC_EXTENSION_WRITER_H
#define RC_EXTENSION_WRITER_H

#include "python/extension/call.h"
#include "python/extension/handles/gpu.h"

/* A reservation open to Python. A Span holds the generation at its creation: if the generation
 * differs, or `is_open` is false, the Span is stale. */
struct rc_py_open_span {
  bool is_open;
  bool estimated; /* the size is an estimate: commit() must tell how many bytes are the frame's */
  bool doomed;    /* to be given back as soon as the last memoryview goes */
  bool moving;    /* a grow is in progress */
  uint64_t generation;
  Py_ssize_t exports; /* memoryviews and other buffers in use */
};

struct rc_py_writer {
  struct rc_py_handle base;
  ringcast_writer *writer; /* NULL: closed */
  struct ringcast_info info;
  /* How long a reader may block the writer before calls fail; 0: for ever, or the reader is
   * evicted. */
  int64_t fail_ns;
  struct rc_py_open_span open_span;
  struct ringcast_span span;
  bool takes_cuda; /* false: _group/config.py asks for no tensors of a device */
  int64_t sent;    /* the tag of the last frame of send() or _send_error(); -1: none */
  bool is_full;    /* the last send_many(), a try, found no room, and no reader too slow */
  struct rc_py_gpu_writer device;
};

extern PyType_Spec rc_py_writer_spec;

/* add_size(history, n), for the legs between machines: see ringcast_sizes_add. */
PyObject *rc_py_add_size(PyObject *module, PyObject *args);

/* ---- send.c ---------------------------------------------------------------------------------- */

/* Aborts a doomed reservation without buffers, unless the Writer is in use. */
void rc_py_writer_end_doomed(struct rc_py_writer *self);
bool rc_py_writer_enter(struct rc_py_writer *self);
void rc_py_writer_leave(struct rc_py_writer *self);
/* The same, with spans; `kind` is the whole call's, or RC_PY_CALL_NONE. */
bool rc_py_writer_begin(struct rc_py_writer *self);
void rc_py_writer_end(struct rc_py_writer *self, enum rc_py_trace_kind kind, bool is_nothing);
/* As struct rc_py_encoding.sends_from. */
int32_t rc_py_writer_sends_from(const struct rc_py_writer *self);

/* Room in the ring, of reserve or grow. */
struct rc_py_reservation {
  struct rc_py_writer *writer;
  size_t bytes;
  struct ringcast_span span;
};
/* Waits for room, with the phase wait_room, and begins the phase `next_phase`. As rc_py_wait. */
int rc_py_reserve(struct rc_py_reservation *room, int64_t timeout_ns,
                  enum rc_py_trace_kind next_phase);
/* Where the next frame starts, as readers will see it. */
uint64_t rc_py_writer_position(const struct rc_py_writer *self);
/* ringcast_writer_commit as the phase publish, of the frame at the present position. */
int rc_py_commit(struct rc_py_writer *self, size_t bytes, uint16_t kind);
/* After the library's -ETIMEDOUT, which has two reasons: true if a reader has blocked the writer
 * for as long as it may, false if only the attempt's own time is up. */
bool rc_py_is_reader_too_slow(const struct rc_py_writer *self);

/* A value on its way. */
struct rc_py_sending {
  struct rc_py_writer *writer;
  int64_t timeout_ns;
  uint32_t tag;
  uint32_t hash;  /* of each tensor: see rc_py_hash_argument */
  uint64_t bytes; /* set to the frame's size, as soon as it is known */
};
/* Sends a value, or a measured encoding. 0, -errno, RC_PY_RAISED, or RC_PY_OF_VALUE; after an
 * error, nothing is left open. */
int rc_py_send_value(struct rc_py_sending *sending, PyObject *object);
int rc_py_send_encoding(struct rc_py_sending *sending, struct rc_py_encoding *encoding);
/* The call's result: None, or NULL: raised, also what `rc` means. */
PyObject *rc_py_sent(const struct rc_py_sending *sending, int rc);

PyObject *rc_py_writer_send(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords);
PyObject *rc_py_writer_send_bytes(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                  PyObject *keywords);
PyObject *rc_py_writer_send_error(PyObject *self, PyObject *const *args, Py_ssize_t count);
/* _offer(obj, tag, hash): send(obj, 0, tag=tag, hash=hash), but for state->nothing if there is no
 * room. */
PyObject *rc_py_writer_offer(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* ---- send_many.c ----------------------------------------------------------------------------- */

PyObject *rc_py_writer_send_many(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                 PyObject *keywords);

/* ---- span.c ---------------------------------------------------------------------------------- */

extern PyType_Spec rc_py_span_spec;

/* True if the open reservation, if any, may end now. */
bool rc_py_writer_may_end(const struct rc_py_writer *self, const char *verb);
PyObject *rc_py_writer_reserve(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *keywords);
PyObject *rc_py_writer_commit(PyObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords);
PyObject *rc_py_writer_abort(PyObject *self, PyObject *unused);
/* _compose(value, timeout, tag): (Span, [(placeholder, offset in the Span, bytes), ...]). */
PyObject *rc_py_writer_compose(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
