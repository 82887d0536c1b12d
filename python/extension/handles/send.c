/* SPDX-License-Identifier: Apache-2.0 */
/* Writer.send(), send_bytes() and send_error(): three ways to fill a frame. */
#include "python/extension/codec/copy.h"
#include "python/extension/codec/hash.h"
#include "python/extension/handles/gpu.h"
#include "python/extension/handles/packed.h"

/* ---- Sending --------------------------------------------------------------------------------- */

/* The result of a sending call: `rc` is the outcome, `bytes` the size of the frame. */
static PyObject *sent(struct rc_py_writer *self, int rc, uint64_t bytes) {
  if (rc == -EAGAIN && self->offering) {
    self->base.spent = 0; /* the task is going to wait */
    return rc_py_ref(rc_py_state_of(self)->nothing);
  }
  if (rc >= 0 && self->offering) self->base.spent += 1 + (unsigned)(bytes >> 18);
  if (rc < 0) rc_py_raise_of_frame(rc_py_state_of(self), rc, &self->info, bytes);
  rc_py_watch_after(&self->base, rc);
  return rc < 0 ? NULL : rc_py_ref(Py_None);
}

/* Puts a measured encoding into the ring. After an error, nothing is left open. */
static int send_encoding(struct rc_py_writer *self, struct rc_py_encoding *encoding,
                         int64_t timeout_ns, uint32_t tag) {
  struct rc_py_reservation call = {.writer = self, .bytes = ringcast_plan_bytes(&encoding->plan)};
  int rc = rc_py_reserve(&call, timeout_ns, RC_PY_SPAN_ENCODE);
  if (rc < 0) return rc;
  size_t bytes;
  rc = rc_py_encoding_write(encoding, call.span.bytes > self->info.ring_frame, &call.span, tag,
                            &bytes);
  if (rc == 0) return rc_py_writer_publish(self, bytes, RINGCAST_KIND_TENSORS);
  self->base.value_failed = true;
  ringcast_writer_abort(self->writer);
  if (rc == RC_PY_RAISED) return rc;
  rc_py_raise_text(encoding->state, -rc,
                   "the value does not fit the frame that was planned for it (%s)", strerror(-rc));
  return RC_PY_RAISED;
}

/* Fills the span with `data`, but for the first bytes, which are there already. */
static void fill(const struct rc_py_writer *self, const struct ringcast_span *span,
                 const void *data, size_t there) {
  bool is_spilled = span->bytes > self->info.ring_frame;
  rc_py_copy(is_spilled, (uint8_t *)span->data + there, (const uint8_t *)data + there,
             span->bytes - there);
}

/* The tag belongs to the sending. */
static int send_packed(struct rc_py_writer *self, const struct rc_py_packed *packed,
                       int64_t timeout_ns, uint32_t tag) {
  struct rc_py_reservation call = {.writer = self, .bytes = packed->bytes};
  int rc = rc_py_reserve(&call, timeout_ns, RC_PY_SPAN_COPY);
  if (rc < 0) return rc;
  struct ringcast_frame_header header;
  memcpy(&header, packed->data, sizeof header);
  header.tag = tag;
  memcpy(call.span.data, &header, sizeof header);
  fill(self, &call.span, packed->data, sizeof header);
  return rc_py_writer_publish(self, packed->bytes, RINGCAST_KIND_TENSORS);
}

PyObject *rc_py_writer_send_encoding(struct rc_py_writer *self, struct rc_py_encoding *encoding,
                                     int64_t timeout_ns, uint32_t tag) {
  int rc = encoding->on_device ? rc_py_gpu_send(self, encoding, timeout_ns, tag)
                               : send_encoding(self, encoding, timeout_ns, tag);
  return sent(self, rc, ringcast_plan_bytes(&encoding->plan));
}

PyObject *rc_py_writer_send_value(struct rc_py_writer *self, PyObject *object, int64_t timeout_ns,
                                  uint32_t tag, uint32_t hash) {
  struct rc_py_encoding encoding;
  if (Py_TYPE(object) == rc_py_state_of(self)->packed_type) {
    const struct rc_py_packed *packed = (struct rc_py_packed *)object;
    bool is_refused = packed->pickled && !self->base.allow_pickle;
    self->base.value_failed = hash || is_refused;
    if (hash) return rc_py_hash_of_packed();
    if (is_refused) return rc_py_packed_refuse(rc_py_state_of(self), packed);
    return sent(self, send_packed(self, packed, timeout_ns, tag), packed->bytes);
  }
  int32_t device = rc_py_writer_sends_from(self);
  bool allow_pickle = self->base.allow_pickle;
  rc_py_spans_phase(self->base.call, RC_PY_SPAN_ENCODE);
  if (!rc_py_encoding_measure(&encoding, rc_py_state_of(self), object, allow_pickle, device,
                              false)) {
    self->base.value_failed = true;
    return NULL;
  }
  encoding.hash = hash;
  encoding.call = self->base.call;
  PyObject *result = rc_py_writer_send_encoding(self, &encoding, timeout_ns, tag);
  rc_py_encoding_clear(&encoding);
  return result;
}

PyObject *rc_py_writer_send(PyObject *object, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords) {
  static const char *const names[] = {"obj", "timeout", "tag", "hash", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[4] = {NULL};
  int64_t timeout_ns;
  uint64_t tag = 0;
  uint32_t hash;
  if (!rc_py_arguments("send", names, 2, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_hash_argument(rc_py_state_of(self), values[3], &hash)) return NULL;
  if (!rc_py_timeout(values[1], &timeout_ns)) return NULL;
  if (values[2] && !rc_py_integer("tag", values[2], 0, UINT32_MAX, &tag)) return NULL;
  if (!rc_py_writer_begin(self)) return NULL;
  self->base.value_failed = false;
  PyObject *result = rc_py_writer_send_value(self, values[0], timeout_ns, (uint32_t)tag, hash);
  if (result) self->sent = (int64_t)tag;
  rc_py_writer_end(self, RC_PY_SPAN_SEND, !result && timeout_ns == 0);
  return result;
}

PyObject *rc_py_writer_offer(PyObject *object, PyObject *const *args, Py_ssize_t count) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct rc_py_state *state = rc_py_state_of(self);
  uint64_t tag;
  PyObject *turn = rc_py_pass_turn(&self->base);
  if (turn) return turn;
  uint32_t hash;
  if (count != 3) return PyErr_Format(PyExc_TypeError, "_offer() takes a value, a tag and a hash");
  if (!rc_py_hash_argument(state, args[2], &hash)) return NULL;
  if (!rc_py_integer("tag", args[1], 0, UINT32_MAX, &tag) || !rc_py_writer_begin(self)) return NULL;
  self->offering = true;
  PyObject *result = rc_py_writer_send_value(self, args[0], 0, (uint32_t)tag, hash);
  self->offering = false;
  rc_py_writer_end(self, RC_PY_SPAN_SEND, result != Py_None);
  return result;
}

static int copy_view(struct rc_py_writer *self, const struct ringcast_span *span,
                     const Py_buffer *view) {
  if (!PyBuffer_IsContiguous(view, 'C'))
    return PyBuffer_ToContiguous(span->data, (Py_buffer *)view, view->len, 'C');
  fill(self, span, view->buf, 0);
  return 0;
}

static int send_view(struct rc_py_writer *self, const Py_buffer *view, int64_t timeout_ns) {
  struct rc_py_reservation call = {.writer = self, .bytes = (size_t)view->len};
  int rc = rc_py_reserve(&call, timeout_ns, RC_PY_SPAN_COPY);
  if (rc < 0) return rc;
  if (copy_view(self, &call.span, view) == 0) {
    return rc_py_writer_publish(self, call.bytes, RINGCAST_KIND_BYTES);
  }
  ringcast_writer_abort(self->writer);
  return RC_PY_RAISED;
}

static __attribute__((noinline)) PyObject *
send_any(struct rc_py_writer *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"data", "timeout", NULL};
  PyObject *values[2] = {NULL};
  int64_t timeout_ns;
  Py_buffer view;
  if (!rc_py_arguments("send_bytes", names, 2, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_timeout(values[1], &timeout_ns) || !rc_py_writer_begin(self)) return NULL;
  PyObject *result = NULL;
  if (PyObject_GetBuffer(values[0], &view, PyBUF_FULL_RO) == 0) {
    int rc = send_view(self, &view, timeout_ns);
    result = sent(self, rc, (uint64_t)view.len);
    PyBuffer_Release(&view);
  }
  rc_py_writer_end(self, RC_PY_SPAN_SEND, !result && timeout_ns == 0);
  return result;
}

/* The usual call: a short bytes object, and room in the ring. Its code lies in a few cache lines,
 * which matters to a caller that sends once in milliseconds. False: nothing was sent, and the long
 * way finds out why. */
static inline bool send_at_once(struct rc_py_writer *self, PyObject *data) {
  if (self->base.busy || self->base.closed || rc_py_spans_on || !PyBytes_CheckExact(data))
    return false;
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

/* _send_error(utf8, timeout, tag) */
PyObject *rc_py_writer_send_error(PyObject *object, PyObject *const *args, Py_ssize_t count) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct rc_py_encoding encoding = {.state = rc_py_state_of(self), .root = RINGCAST_ROOT_VALUE};
  int64_t timeout_ns;
  uint64_t tag;
  if (count != 3)
    return PyErr_Format(PyExc_TypeError, "_send_error() takes bytes, a timeout and a tag");
  if (!rc_py_timeout(args[1], &timeout_ns) || !rc_py_integer("tag", args[2], 0, UINT32_MAX, &tag))
    return NULL;
  if (!rc_py_writer_begin(self)) return NULL;
  PyObject *result = NULL;
  encoding.call = self->base.call;
  rc_py_spans_phase(encoding.call, RC_PY_SPAN_ENCODE);
  rc_py_parts_begin(&encoding);
  if (rc_py_part_add_buffer(&encoding, args[0], RINGCAST_ITEM_ERROR) &&
      rc_py_encoding_plan(&encoding)) {
    int rc = send_encoding(self, &encoding, timeout_ns, (uint32_t)tag);
    result = sent(self, rc, ringcast_plan_bytes(&encoding.plan));
  }
  rc_py_encoding_clear(&encoding);
  if (result) self->sent = (int64_t)tag;
  rc_py_writer_end(self, RC_PY_SPAN_SEND, !result && timeout_ns == 0);
  return result;
}
