/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Span: Python's view of the ring while writing; and how a reservation ends.
 *
 * The Writer owns the lease (open or not, and the count of exports); a Span names the lease by its
 * generation. So a dropped Span leaves the reservation open for Writer.commit(). While a memoryview
 * exists the lease can't end: BufferError, as mmap does.
 */
#include <unistd.h>

#include "python/extension/handles/writer.h"

#include "python/docstrings.h"

struct span {
  PyObject_HEAD struct rc_py_writer *writer;
  uint64_t generation;
};

/* ---- Reserving, and ending a reservation ----------------------------------------------------- */

int rc_py_told_apart(const struct rc_py_writer *self, int rc) {
  struct ringcast_peer peer = {.size = sizeof peer};
  if (rc != -ETIMEDOUT || self->fail_ns == 0) return rc;
  bool held = ringcast_writer_slowest(self->writer, &peer) > 0 &&
              peer.blocked_ns >= (uint64_t)self->fail_ns;
  return held ? RC_PY_TOO_SLOW : rc;
}

static int try_reserve(void *context, int64_t timeout_ns, bool Py_UNUSED(has_gil)) {
  struct rc_py_reservation *call = context;
  if (timeout_ns != 0) call->writer->waited = true;
  return rc_py_told_apart(call->writer, ringcast_writer_reserve(call->writer->writer, call->bytes,
                                                                timeout_ns, &call->span));
}

int rc_py_reserve(struct rc_py_reservation *call, int64_t timeout_ns, enum rc_py_span_kind then) {
  struct rc_py_call *recorded = call->writer->base.call;
  rc_py_spans_phase(recorded, RC_PY_SPAN_WAIT_ROOM);
  int rc = rc_py_wait(try_reserve, call, timeout_ns);
  if (rc == 0) rc_py_spans_phase(recorded, then);
  return rc;
}

uint64_t rc_py_writer_position(const struct rc_py_writer *self) {
  struct ringcast_info info = {.size = offsetof(struct ringcast_info, memory)};
  return ringcast_writer_info(self->writer, &info) == 0 ? info.tail : 0;
}

int rc_py_writer_publish(struct rc_py_writer *self, size_t bytes, uint16_t kind) {
  struct rc_py_call *call = self->base.call;
  if (!call) return ringcast_writer_commit(self->writer, bytes, kind);
  uint64_t position = rc_py_writer_position(self);
  rc_py_spans_phase(call, RC_PY_SPAN_PUBLISH);
  int rc = ringcast_writer_commit(self->writer, bytes, kind);
  if (rc == 0) rc_py_spans_frame(call, position, bytes);
  return rc;
}

/* The result of commit or abort. A forked child gets ECHILD, whether or not a reservation is
 * open. */
static PyObject *ended(struct rc_py_writer *self, int rc) {
  if (rc == -EINVAL && !self->lease.open)
    return PyErr_Format(PyExc_ValueError, "no reservation is open");
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  self->lease.open = false;
  return rc_py_ref(Py_None);
}

bool rc_py_writer_may_end(const struct rc_py_writer *self, const char *verb) {
  if (!self->lease.open || self->lease.exports == 0) return true;
  rc_py_raise_exported(self->lease.exports, verb, "Span");
  return false;
}

/* A frame may refer to memory outside the frame: the reference is valid in its own ring only, and
 * readers of another ring would look in the wrong place. */
static bool is_whole(const struct rc_py_writer *self, uint64_t bytes, uint64_t kind) {
  struct ringcast_frame_reader opened;
  if (kind != RINGCAST_KIND_TENSORS || !self->lease.open || bytes > self->span.bytes) return true;
  if (ringcast_frame_open(&opened, self->span.data, bytes) < 0 || opened.device_epoch == 0)
    return true;
  rc_py_raise_text(rc_py_state_of((void *)self), ENOTSUP,
                   "tensors of this frame lie in device memory of the Writer that it came from, "
                   "and can't be passed on "
                   "with it: receive it, and send what came");
  return false;
}

PyObject *rc_py_writer_commit(PyObject *object, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords) {
  static const char *const names[] = {"n", "kind", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[2] = {NULL};
  uint64_t bytes = self->lease.open ? self->span.bytes : 0, kind = RINGCAST_KIND_BYTES;
  if (!rc_py_arguments("commit", names, 1, 0, args, count, keywords, values)) return NULL;
  if (values[0] && values[0] != Py_None &&
      !rc_py_integer("n", values[0], 0, PY_SSIZE_T_MAX, &bytes))
    return NULL;
  if (values[1] && !rc_py_integer("kind", values[1], 0, UINT16_MAX, &kind)) return NULL;
  if (!rc_py_writer_begin(self)) return NULL;
  PyObject *result = NULL;
  if (self->lease.open && self->lease.estimated && (!values[0] || values[0] == Py_None)) {
    PyErr_SetString(PyExc_ValueError,
                    "the size of this reservation is an estimate: tell how many bytes are the "
                    "frame's, by commit(n)");
  } else if (rc_py_writer_may_end(self, "commit") && is_whole(self, bytes, kind))
    result = ended(self, rc_py_writer_publish(self, bytes, (uint16_t)kind));
  rc_py_writer_end(self, RC_PY_SPAN_SEND, !result);
  return result;
}

PyObject *rc_py_writer_abort(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!rc_py_writer_enter(self)) return NULL;
  PyObject *result = NULL;
  if (rc_py_writer_may_end(self, "abort"))
    result = ended(self, ringcast_writer_abort(self->writer));
  rc_py_writer_leave(self);
  return result;
}

/* ---- Span ------------------------------------------------------------------------------------ */

static bool is_current(const struct rc_py_lease *lease, uint64_t generation) {
  return lease->open && lease->generation == generation;
}

static bool span_check(const struct span *self) {
  if (is_current(&self->writer->lease, self->generation)) return true;
  PyErr_SetString(PyExc_ValueError, self->writer->writer
                                        ? "this Span was committed or aborted already"
                                        : "this Span is of no use any more: the Writer was closed");
  return false;
}

static int span_get_buffer(PyObject *object, Py_buffer *view, int flags) {
  struct span *self = (struct span *)object;
  view->obj = NULL;
  if (!span_check(self)) return -1;
  if (self->writer->lease.moving) {
    PyErr_SetString(PyExc_RuntimeError, "this Span is being grown, by another thread");
    return -1;
  }
  const struct ringcast_span *span = &self->writer->span;
  int rc = PyBuffer_FillInfo(view, object, span->data, (Py_ssize_t)span->bytes, 0, flags);
  if (rc == 0) self->writer->lease.exports++;
  return rc;
}

void rc_py_writer_end_doomed(struct rc_py_writer *writer) {
  struct rc_py_lease *lease = &writer->lease;
  if (!lease->open || lease->exports > 0 || writer->base.busy || getpid() != writer->base.pid)
    return;
  lease->doomed = false;
  PyObject *type, *value, *traceback; /* an exception may be set */
  PyErr_Fetch(&type, &value, &traceback);
  Py_XDECREF(rc_py_writer_abort((PyObject *)writer, NULL));
  if (PyErr_Occurred()) PyErr_WriteUnraisable((PyObject *)writer);
  PyErr_Restore(type, value, traceback);
}

static void span_release_buffer(PyObject *object, Py_buffer *Py_UNUSED(view)) {
  struct rc_py_writer *writer = ((struct span *)object)->writer;
  if (--writer->lease.exports == 0 && writer->lease.doomed) rc_py_writer_end_doomed(writer);
}

static Py_ssize_t span_length(PyObject *object) {
  struct span *self = (struct span *)object;
  return span_check(self) ? (Py_ssize_t)self->writer->span.bytes : -1;
}

static int try_grow(void *context, int64_t timeout_ns, bool Py_UNUSED(has_gil)) {
  struct rc_py_reservation *call = context;
  return rc_py_told_apart(call->writer, ringcast_writer_grow(call->writer->writer, call->bytes,
                                                             timeout_ns, &call->span));
}

static int grow(struct rc_py_writer *writer, size_t bytes, int64_t timeout_ns) {
  struct rc_py_reservation call = {.writer = writer, .bytes = bytes};
  writer->lease.moving = true;
  int rc = rc_py_wait(try_grow, &call, timeout_ns);
  writer->lease.moving = false;
  if (rc == 0) writer->span = call.span;
  return rc;
}

static PyObject *span_grow(PyObject *object, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords) {
  struct span *self = (struct span *)object;
  struct rc_py_writer *writer = self->writer;
  int64_t timeout_ns;
  uint64_t bytes;
  if (!rc_py_amount_arguments("grow", args, count, keywords, PY_SSIZE_T_MAX, &bytes, &timeout_ns))
    return NULL;
  if (!span_check(self) || !rc_py_writer_enter(writer)) return NULL;
  int rc = rc_py_writer_may_end(writer, "grow") ? grow(writer, bytes, timeout_ns) : RC_PY_RAISED;
  if (rc < 0) rc_py_raise_of_frame(rc_py_state_of(writer), rc, &writer->info, bytes);
  rc_py_watch_after(&writer->base, rc);
  rc_py_writer_leave(writer);
  return rc < 0 ? NULL : rc_py_ref(Py_None);
}

static PyObject *span_commit(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
  struct span *self = (struct span *)object;
  return span_check(self) ? rc_py_writer_commit((PyObject *)self->writer, args, count, keywords)
                          : NULL;
}

static PyObject *span_abort(PyObject *object, PyObject *unused) {
  struct span *self = (struct span *)object;
  return span_check(self) ? rc_py_writer_abort((PyObject *)self->writer, unused) : NULL;
}

static PyObject *span_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return span_check((struct span *)object) ? rc_py_ref(object) : NULL;
}

static PyObject *span_exit(PyObject *object, PyObject *args) {
  struct span *self = (struct span *)object;
  struct rc_py_lease *lease = &self->writer->lease;
  if (!is_current(lease, self->generation)) Py_RETURN_NONE;
  PyObject *writer = (PyObject *)self->writer;
  bool has_raised = PyTuple_GET_SIZE(args) > 0 && PyTuple_GET_ITEM(args, 0) != Py_None;
  if (!has_raised) return rc_py_writer_commit(writer, NULL, 0, NULL);
  if (lease->exports == 0) return rc_py_writer_abort(writer, NULL);
  lease->doomed = true;
  Py_RETURN_NONE;
}

static PyObject *span_repr(PyObject *object) {
  struct span *self = (struct span *)object;
  if (!is_current(&self->writer->lease, self->generation))
    return PyUnicode_FromString("<ringcast.Span, done>");
  return PyUnicode_FromFormat("<ringcast.Span of %zu bytes>", self->writer->span.bytes);
}

static int span_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((struct span *)object)->writer);
  return 0;
}

static void span_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  Py_XDECREF(((struct span *)object)->writer);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject *rc_py_span_new(struct rc_py_writer *writer, const struct ringcast_span *reserved) {
  PyTypeObject *type = rc_py_state_of(writer)->span_type;
  struct span *self = (struct span *)type->tp_alloc(type, 0);
  if (!self) {
    ringcast_writer_abort(writer->writer);
    return NULL;
  }
  writer->span = *reserved;
  writer->lease = (struct rc_py_lease){.open = true, .generation = writer->lease.generation + 1};
  self->writer = (struct rc_py_writer *)rc_py_ref((PyObject *)writer);
  self->generation = writer->lease.generation;
  return (PyObject *)self;
}

static PyMethodDef span_methods[] = {
    {"commit", (PyCFunction)(void (*)(void))span_commit, METH_FASTCALL | METH_KEYWORDS,
     RC_DOC_Span_commit},
    {"grow", (PyCFunction)(void (*)(void))span_grow, METH_FASTCALL | METH_KEYWORDS,
     RC_DOC_Span_grow},
    {"abort", span_abort, METH_NOARGS, RC_DOC_Span_abort},
    {"__enter__", span_enter, METH_NOARGS, RC_DOC_Span___enter__},
    {"__exit__", span_exit, METH_VARARGS, RC_DOC_Span___exit__},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot span_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_Span},
    {Py_tp_methods, span_methods},
    {Py_tp_repr, span_repr},
    {Py_tp_traverse, span_traverse},
    {Py_tp_dealloc, span_dealloc},
    {Py_bf_getbuffer, span_get_buffer},
    {Py_sq_length, span_length},
    {Py_bf_releasebuffer, span_release_buffer},
    {0, NULL},
};
PyType_Spec rc_py_span_spec = {
    "ringcast.Span", sizeof(struct span), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC, span_slots};
