/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writer.send, send_bytes and send_error.
 *
 * A value takes these steps to the ring:
 *
 *   arguments   rc_py_writer_send
 *   measure     rc_py_encoding_measure: the entries of the frame, and its size (codec/encode.h);
 *               called by rc_py_send_value, which does all that follows, too
 *   reserve     rc_py_reserve: waits for room, without the GIL
 *   fill        rc_py_encoding_write: the entries, then all data
 *   commit      rc_py_commit: readers see the frame
 *
 * The last three are in send_frame. If a tensor lies on a device, send_from_device does the same,
 * and asks gpu_writer.c for a place in the pool before, and for the copies at the commit.
 */
#include "python/extension/handles/writer.h"

#include "python/extension/errors.h"
#include "python/extension/codec/hash.h"
#include "python/extension/handles/packed.h"

#include <unistd.h>

/* ---- The Writer's turn ----------------------------------------------------------------------- */

void rc_py_writer_end_doomed(struct rc_py_writer *self) {
  struct rc_py_open_span *open_span = &self->open_span;
  if (!open_span->is_open || open_span->exports > 0 || self->base.busy) return;
  if (getpid() != self->base.pid) return;
  open_span->doomed = false;
  open_span->is_open = false;
  PyObject *type, *value, *traceback; /* an exception may be set */
  PyErr_Fetch(&type, &value, &traceback);
  int rc = ringcast_writer_abort(self->writer);
  if (rc < 0) {
    rc_py_raise(rc_py_state_of(self), rc);
    PyErr_WriteUnraisable((PyObject *)self);
  }
  PyErr_Restore(type, value, traceback);
}

bool rc_py_writer_enter(struct rc_py_writer *self) { return rc_py_handle_enter(&self->base); }

void rc_py_writer_leave(struct rc_py_writer *self) {
  rc_py_handle_leave(&self->base);
  /* The last array may have gone during the call. */
  if (self->open_span.doomed) rc_py_writer_end_doomed(self);
}

bool rc_py_writer_begin(struct rc_py_writer *self) {
  if (!rc_py_writer_enter(self)) return false;
  rc_py_handle_begin(&self->base);
  return true;
}

void rc_py_writer_end(struct rc_py_writer *self, enum rc_py_trace_kind kind, bool is_nothing) {
  rc_py_writer_leave(self);
  rc_py_spans_end(&self->base.trace, kind, is_nothing);
}

int32_t rc_py_writer_sends_from(const struct rc_py_writer *self) {
  if (!self->takes_cuda) return RC_PY_FROM_NONE;
  return self->device.gpu ? self->device.device : RC_PY_FROM_FIRST;
}

/* ---- Reserve, and commit --------------------------------------------------------------------- */

bool rc_py_is_reader_too_slow(const struct rc_py_writer *self) {
  if (self->fail_ns == 0) return false;
  struct ringcast_peer peer = {.size = sizeof peer};
  bool is_blocked = ringcast_writer_slowest(self->writer, &peer) > 0;
  return is_blocked && peer.blocked_ns >= (uint64_t)self->fail_ns;
}

static int try_reserve(void *context, int64_t timeout_ns, bool Py_UNUSED(has_gil)) {
  struct rc_py_reservation *room = context;
  struct rc_py_writer *self = room->writer;
  int rc = ringcast_writer_reserve(self->writer, room->bytes, timeout_ns, &room->span);
  if (rc == -ETIMEDOUT && rc_py_is_reader_too_slow(self)) return RC_PY_TOO_SLOW;
  return rc;
}

int rc_py_reserve(struct rc_py_reservation *room, int64_t timeout_ns,
                  enum rc_py_trace_kind next_phase) {
  struct rc_py_trace *trace = room->writer->base.trace;
  rc_py_spans_phase(trace, RC_PY_PHASE_WAIT_ROOM);
  int rc = rc_py_wait(try_reserve, room, timeout_ns);
  if (rc == 0) rc_py_spans_phase(trace, next_phase);
  return rc;
}

uint64_t rc_py_writer_position(const struct rc_py_writer *self) {
  struct ringcast_info info = {.size = offsetof(struct ringcast_info, memory)};
  return ringcast_writer_info(self->writer, &info) == 0 ? info.tail : 0;
}

int rc_py_commit(struct rc_py_writer *self, size_t bytes, uint16_t kind) {
  struct rc_py_trace *trace = self->base.trace;
  if (!trace) return ringcast_writer_commit(self->writer, bytes, kind);
  uint64_t position = rc_py_writer_position(self);
  rc_py_spans_phase(trace, RC_PY_PHASE_PUBLISH);
  int rc = ringcast_writer_commit(self->writer, bytes, kind);
  if (rc == 0) rc_py_spans_frame(trace, position, bytes);
  return rc;
}

/* ---- A measured value ------------------------------------------------------------------------ */

/* Gives up the room, for the exception that is set. */
static int abort_of_value(const struct rc_py_sending *sending) {
  ringcast_writer_abort(sending->writer->writer);
  return RC_PY_OF_VALUE;
}

static int send_frame(struct rc_py_sending *sending, struct rc_py_encoding *encoding) {
  struct rc_py_writer *self = sending->writer;
  struct rc_py_reservation room = {.writer = self, .bytes = sending->bytes};
  int rc = rc_py_reserve(&room, sending->timeout_ns, RC_PY_PHASE_ENCODE);
  if (rc < 0) return rc;
  bool is_spilled = room.span.bytes > self->info.ring_frame;
  size_t bytes;
  rc = rc_py_encoding_write(encoding, is_spilled, &room.span, sending->tag, &bytes);
  /* This commit can't refuse: the room was reserved in the same call, for no fewer bytes. */
  if (rc == 0) return rc_py_commit(self, bytes, RINGCAST_KIND_TENSORS);
  if (rc != RC_PY_RAISED) {
    rc_py_raise_text(encoding->state, -rc,
                     "the value does not fit the frame that was planned for it (%s)",
                     strerror(-rc));
  }
  return abort_of_value(sending);
}

static int commit_with_copies(struct rc_py_writer *self, const struct rc_py_encoding *encoding,
                              struct ringcast_gpu_extent *extent, size_t bytes) {
  uint64_t position = encoding->trace ? rc_py_writer_position(self) : 0;
  int rc = rc_py_gpu_commit(&self->device, encoding, extent, bytes);
  if (rc == 0) rc_py_spans_frame(encoding->trace, position, bytes);
  return rc;
}

/* With the tensors in the pool, at `extent`; NULL: in the frame. */
static int send_device_frame(struct rc_py_sending *sending, struct rc_py_encoding *encoding,
                             struct ringcast_gpu_extent *extent) {
  struct rc_py_writer *self = sending->writer;
  sending->bytes = ringcast_plan_bytes(&encoding->plan);
  struct rc_py_reservation room = {.writer = self, .bytes = sending->bytes};
  int rc = rc_py_reserve(&room, sending->timeout_ns, RC_PY_PHASE_ENCODE);
  if (rc < 0) return rc;
  size_t bytes;
  rc = rc_py_encoding_write_device(encoding, self->device.gpu, &room.span, sending->tag, extent,
                                   &bytes);
  if (rc == 0 && !extent) return rc_py_commit(self, bytes, RINGCAST_KIND_TENSORS);
  if (rc == 0) rc = commit_with_copies(self, encoding, extent, bytes); /* the device may refuse */
  if (rc == 0) return 0;
  rc_py_raise_of_frame(encoding->state, rc, &self->info, sending->bytes);
  return abort_of_value(sending);
}

static int send_from_device(struct rc_py_sending *sending, struct rc_py_encoding *encoding) {
  struct rc_py_writer *self = sending->writer;
  struct ringcast_gpu_extent extent;
  int rc = rc_py_gpu_lease(&self->device, encoding, &extent);
  if (rc == -EAGAIN || rc == -EMSGSIZE) return send_device_frame(sending, encoding, NULL);
  if (rc < 0) {
    rc_py_raise_of_frame(encoding->state, rc, &self->info, sending->bytes);
    return RC_PY_OF_VALUE;
  }
  rc = send_device_frame(sending, encoding, &extent);
  if (rc < 0) rc_py_gpu_drop(&self->device, &extent);
  return rc;
}

int rc_py_send_encoding(struct rc_py_sending *sending, struct rc_py_encoding *encoding) {
  sending->bytes = ringcast_plan_bytes(&encoding->plan);
  encoding->trace = sending->writer->base.trace;
  if (encoding->on_device) return send_from_device(sending, encoding);
  return send_frame(sending, encoding);
}

/* ---- A value --------------------------------------------------------------------------------- */

/* Fills the span with `data`, but for the first bytes, which are there already. */
static void copy_rest(const struct rc_py_writer *self, const struct ringcast_span *span,
                      const void *data, size_t there) {
  bool is_spilled = span->bytes > self->info.ring_frame;
  rc_py_copy_maybe_without_gil(is_spilled, (uint8_t *)span->data + there,
                               (const uint8_t *)data + there, span->bytes - there);
}

/* A frame that pack() has made: no packed frame of ring/packed.h. The tag belongs to the sending.
 */
static int send_packed(struct rc_py_sending *sending, const struct rc_py_packed *packed) {
  struct rc_py_writer *self = sending->writer;
  sending->bytes = packed->bytes;
  if (sending->hash) {
    rc_py_hash_of_packed();
    return RC_PY_OF_VALUE;
  }
  if (packed->pickled && !self->base.allow_pickle) {
    rc_py_packed_refuse(rc_py_state_of(self), packed);
    return RC_PY_OF_VALUE;
  }
  struct rc_py_reservation room = {.writer = self, .bytes = packed->bytes};
  int rc = rc_py_reserve(&room, sending->timeout_ns, RC_PY_PHASE_COPY);
  if (rc < 0) return rc;
  struct ringcast_frame_header header;
  memcpy(&header, packed->data, sizeof header);
  header.tag = sending->tag;
  memcpy(room.span.data, &header, sizeof header);
  copy_rest(self, &room.span, packed->data, sizeof header);
  return rc_py_commit(self, packed->bytes, RINGCAST_KIND_TENSORS);
}

int rc_py_send_value(struct rc_py_sending *sending, PyObject *object) {
  struct rc_py_writer *self = sending->writer;
  struct rc_py_state *state = rc_py_state_of(self);
  struct rc_py_encoding encoding;
  if (Py_TYPE(object) == state->packed_type) return send_packed(sending, (void *)object);
  int32_t device = rc_py_writer_sends_from(self);
  rc_py_spans_phase(self->base.trace, RC_PY_PHASE_ENCODE);
  if (!rc_py_encoding_measure(&encoding, state, object, self->base.allow_pickle, device, false)) {
    return RC_PY_OF_VALUE;
  }
  encoding.hash = sending->hash;
  int rc = rc_py_send_encoding(sending, &encoding);
  rc_py_encoding_clear(&encoding);
  return rc;
}

PyObject *rc_py_sent(const struct rc_py_sending *sending, int rc) {
  struct rc_py_writer *self = sending->writer;
  if (rc >= 0) return Py_NewRef(Py_None);
  rc_py_raise_of_frame(rc_py_state_of(self), rc, &self->info, sending->bytes);
  rc_py_watch_after(&self->base, rc);
  return NULL;
}

/* ---- Writer.send ----------------------------------------------------------------------------- */

static bool is_given(const PyObject *option) { return option && option != Py_None; }

PyObject *rc_py_writer_send(PyObject *object, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords) {
  static const char *const names[] = {"obj", "timeout", "tag", "hash", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct rc_py_sending sending = {.writer = self};
  PyObject *values[4] = {NULL};
  uint64_t tag = 0;
  if (!rc_py_arguments("send", names, 2, 1, args, count, keywords, values)) return NULL;
  if (is_given(values[3]) && !rc_py_hash_argument(rc_py_state_of(self), values[3], &sending.hash)) {
    return NULL;
  }
  if (!rc_py_timeout(values[1], &sending.timeout_ns)) return NULL;
  if (values[2] && !rc_py_integer("tag", values[2], 0, UINT32_MAX, &tag)) return NULL;
  if (!rc_py_writer_begin(self)) return NULL;
  sending.tag = (uint32_t)tag;
  int rc = rc_py_send_value(&sending, values[0]);
  self->base.value_failed = rc == RC_PY_OF_VALUE;
  if (rc == 0) self->sent = (int64_t)tag;
  PyObject *result = rc_py_sent(&sending, rc);
  rc_py_writer_end(self, RC_PY_CALL_SEND, rc == -EAGAIN);
  return result;
}

PyObject *rc_py_writer_offer(PyObject *object, PyObject *const *args, Py_ssize_t count) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct rc_py_state *state = rc_py_state_of(self);
  struct rc_py_sending sending = {.writer = self};
  uint64_t tag;
  PyObject *turn = rc_py_pass_turn(&self->base);
  if (turn) return turn;
  if (count != 3) return PyErr_Format(PyExc_TypeError, "_offer() takes a value, a tag and a hash");
  if (is_given(args[2]) && !rc_py_hash_argument(state, args[2], &sending.hash)) return NULL;
  if (!rc_py_integer("tag", args[1], 0, UINT32_MAX, &tag) || !rc_py_writer_begin(self)) return NULL;
  sending.tag = (uint32_t)tag;
  int rc = rc_py_send_value(&sending, args[0]);
  PyObject *result;
  if (rc == -EAGAIN) {
    self->base.spent = 0; /* the task is going to wait */
    result = Py_NewRef(state->nothing);
  } else {
    if (rc == 0) rc_py_spend(&self->base, sending.bytes, RC_PY_SENT_UNIT);
    result = rc_py_sent(&sending, rc);
  }
  rc_py_writer_end(self, RC_PY_CALL_SEND, rc == -EAGAIN);
  return result;
}

/* ---- Writer.send_bytes ----------------------------------------------------------------------- */

static int copy_view(struct rc_py_writer *self, const struct ringcast_span *span,
                     const Py_buffer *view) {
  if (!PyBuffer_IsContiguous(view, 'C')) {
    return PyBuffer_ToContiguous(span->data, (Py_buffer *)view, view->len, 'C');
  }
  copy_rest(self, span, view->buf, 0);
  return 0;
}

static int send_view(struct rc_py_sending *sending, const Py_buffer *view) {
  struct rc_py_writer *self = sending->writer;
  sending->bytes = (uint64_t)view->len;
  struct rc_py_reservation room = {.writer = self, .bytes = sending->bytes};
  int rc = rc_py_reserve(&room, sending->timeout_ns, RC_PY_PHASE_COPY);
  if (rc < 0) return rc;
  if (copy_view(self, &room.span, view) == 0) {
    return rc_py_commit(self, room.bytes, RINGCAST_KIND_BYTES);
  }
  ringcast_writer_abort(self->writer);
  return RC_PY_RAISED;
}

static __attribute__((noinline)) PyObject *
send_any(struct rc_py_writer *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"data", "timeout", NULL};
  struct rc_py_sending sending = {.writer = self};
  PyObject *values[2] = {NULL};
  Py_buffer view;
  if (!rc_py_arguments("send_bytes", names, 2, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_timeout(values[1], &sending.timeout_ns) || !rc_py_writer_begin(self)) return NULL;
  int rc = RC_PY_RAISED;
  if (PyObject_GetBuffer(values[0], &view, PyBUF_FULL_RO) == 0) {
    rc = send_view(&sending, &view);
    PyBuffer_Release(&view);
  }
  PyObject *result = rc_py_sent(&sending, rc);
  rc_py_writer_end(self, RC_PY_CALL_SEND, rc == -EAGAIN);
  return result;
}

/* The usual call: a short bytes object, and room in the ring. Its code lies in a few cache lines,
 * which matters to a caller that sends once in milliseconds. False: nothing was sent, and the long
 * way finds out why. */
static inline bool send_at_once(struct rc_py_writer *self, PyObject *data) {
  if (self->base.busy || self->base.closed || rc_py_spans_on) return false;
  if (!PyBytes_CheckExact(data)) return false;
  size_t bytes = (size_t)PyBytes_GET_SIZE(data);
  if (bytes > RC_PY_COPY_WITH_GIL) return false;
  return ringcast_writer_send(self->writer, PyBytes_AS_STRING(data), bytes, RINGCAST_KIND_BYTES,
                              0) == 0;
}

PyObject *rc_py_writer_send_bytes(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                  PyObject *keywords) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (count == 1 && !keywords && send_at_once(self, args[0])) Py_RETURN_NONE;
  return send_any(self, args, count, keywords);
}

/* ---- Writer.send_error ----------------------------------------------------------------------- */

/* A frame that is an error instead of a value. */
static int send_text(struct rc_py_sending *sending, PyObject *utf8) {
  struct rc_py_encoding encoding = {.state = rc_py_state_of(sending->writer),
                                    .root = RINGCAST_ROOT_VALUE};
  rc_py_spans_phase(sending->writer->base.trace, RC_PY_PHASE_ENCODE);
  rc_py_parts_begin(&encoding);
  int rc = RC_PY_RAISED;
  if (rc_py_part_add_buffer(&encoding, utf8, RINGCAST_ITEM_ERROR) &&
      rc_py_encoding_plan(&encoding)) {
    rc = rc_py_send_encoding(sending, &encoding);
  }
  rc_py_encoding_clear(&encoding);
  return rc;
}

/* _send_error(utf8, timeout, tag) */
PyObject *rc_py_writer_send_error(PyObject *object, PyObject *const *args, Py_ssize_t count) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct rc_py_sending sending = {.writer = self};
  uint64_t tag;
  if (count != 3) {
    return PyErr_Format(PyExc_TypeError, "_send_error() takes bytes, a timeout and a tag");
  }
  if (!rc_py_timeout(args[1], &sending.timeout_ns)) return NULL;
  if (!rc_py_integer("tag", args[2], 0, UINT32_MAX, &tag)) return NULL;
  if (!rc_py_writer_begin(self)) return NULL;
  sending.tag = (uint32_t)tag;
  int rc = send_text(&sending, args[0]);
  if (rc == 0) self->sent = (int64_t)tag;
  PyObject *result = rc_py_sent(&sending, rc);
  rc_py_writer_end(self, RC_PY_CALL_SEND, rc == -EAGAIN);
  return result;
}
