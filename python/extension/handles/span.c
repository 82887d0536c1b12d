/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames that are filled in place: Writer.reserve and compose, commit and abort; and Span, Python's
 * view of the ring while writing.
 *
 * The Writer owns the open span (open or not, and the count of exports); a Span names it by its
 * generation. So a dropped Span leaves the reservation open for Writer.commit(). While a memoryview
 * exists the open span can't end: BufferError, as mmap does.
 */
#include "python/extension/handles/writer.h"

#include "python/extension/codec/device.h"
#include "python/extension/errors.h"

#include "ringcast/estimate.h"

#include "python/docstrings.h"

struct span {
  PyObject_HEAD struct rc_py_writer *writer;
  uint64_t generation;
};

/* ---- Reserving ------------------------------------------------------------------------------- */

/* Opens a reservation that was just made to Python. NULL: raised, and the reservation is
 * aborted. */
static PyObject *span_new(struct rc_py_writer *writer, const struct ringcast_span *reserved) {
  PyTypeObject *type = rc_py_state_of(writer)->span_type;
  struct span *self = (struct span *)type->tp_alloc(type, 0);
  if (!self) {
    ringcast_writer_abort(writer->writer);
    return NULL;
  }
  writer->span = *reserved;
  writer->open_span =
      (struct rc_py_open_span){.is_open = true, .generation = writer->open_span.generation + 1};
  self->writer = (struct rc_py_writer *)Py_NewRef((PyObject *)writer);
  self->generation = writer->open_span.generation;
  return (PyObject *)self;
}

/* The argument `n`; without one, RINGCAST_ESTIMATE_OF(tag). */
static bool size_argument(PyObject *n, PyObject *tag, uint64_t *out) {
  uint64_t number = 0;
  if (tag && !rc_py_integer("tag", tag, 0, UINT32_MAX, &number)) return false;
  if (!n || n == Py_None) {
    *out = RINGCAST_ESTIMATE_OF(number);
    return true;
  }
  if (!tag) return rc_py_integer("n", n, 0, PY_SSIZE_T_MAX, out);
  PyErr_SetString(PyExc_ValueError,
                  "reserve() takes n or tag, not both: the tag is for an estimate in the place of "
                  "n");
  return false;
}

PyObject *rc_py_writer_reserve(PyObject *object, PyObject *const *args, Py_ssize_t count,
                               PyObject *keywords) {
  static const char *const names[] = {"n", "timeout", "tag", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[3] = {NULL};
  int64_t timeout_ns;
  uint64_t bytes;
  if (!rc_py_arguments("reserve", names, 2, 0, args, count, keywords, values)) return NULL;
  if (!size_argument(values[0], values[2], &bytes) || !rc_py_timeout(values[1], &timeout_ns))
    return NULL;
  if (!rc_py_writer_begin(self)) return NULL;
  struct rc_py_reservation room = {.writer = self, .bytes = bytes};
  int rc = rc_py_reserve(&room, timeout_ns, RC_PY_PHASE_WAIT_ROOM);
  if (rc < 0) rc_py_raise_of_frame(rc_py_state_of(self), rc, &self->info, bytes);
  else rc_py_spans_frame(self->base.trace, rc_py_writer_position(self), room.span.bytes);
  rc_py_watch_after(&self->base, rc);
  rc_py_writer_leave(self);
  PyObject *span = NULL;
  if (rc == 0) span = span_new(self, &room.span);
  if (span) self->open_span.estimated = bytes > PY_SSIZE_T_MAX;
  rc_py_spans_end(&self->base.trace, RC_PY_CALL_NONE, rc == -EAGAIN);
  return span;
}

/* ---- Composing ------------------------------------------------------------------------------- */

/* The value is encoded as by send, but for the placeholders of ringcast.empty(): of a placeholder
 * the frame gets the entry, and no bytes. The Span keeps the frame open until all arrays over the
 * Span's memory are gone. ringcast/_compose.py makes the arrays, and names one that is still in
 * use. */

/* [(placeholder, offset in the Span, bytes), ...] */
static PyObject *places_of(const struct rc_py_encoding *encoding, const void *data) {
  PyObject *places = PyList_New(0);
  for (size_t i = 0; places && i < encoding->count; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    if (part->kind != RINGCAST_ITEM_TENSOR || !part->source.is_empty) continue;
    Py_ssize_t offset = 0;
    if (part->bytes > 0) offset = (uint8_t *)part->out - (const uint8_t *)data;
    PyObject *place = Py_BuildValue("(Onn)", part->value, offset, (Py_ssize_t)part->bytes);
    if (!place || PyList_Append(places, place) < 0) Py_CLEAR(places);
    Py_XDECREF(place);
  }
  return places;
}

/* Fills the reservation. 0, -errno, RC_PY_RAISED. */
static int fill(struct rc_py_writer *self, struct rc_py_encoding *encoding,
                const struct ringcast_span *span, uint32_t tag) {
  bool is_spilled = span->bytes > self->info.ring_frame;
  size_t bytes;
  int rc;
  if (encoding->on_device) {
    rc = rc_py_encoding_write_device(encoding, NULL, span, tag, NULL, &bytes);
  } else {
    rc = rc_py_encoding_write(encoding, is_spilled, span, tag, &bytes);
  }
  if (rc < 0) return rc;
  return bytes == span->bytes ? 0 : -EPROTO;
}

/* (Span, places); nothing is left open after an error. `is_full`: a try found no room. */
static PyObject *compose(struct rc_py_writer *self, struct rc_py_encoding *encoding,
                         int64_t timeout_ns, uint32_t tag, bool *is_full) {
  struct rc_py_state *state = rc_py_state_of(self);
  struct rc_py_reservation room = {.writer = self, .bytes = ringcast_plan_bytes(&encoding->plan)};
  int rc = rc_py_reserve(&room, timeout_ns, RC_PY_PHASE_ENCODE);
  rc_py_watch_after(&self->base, rc);
  *is_full = rc == -EAGAIN;
  if (rc < 0) return rc_py_raise_of_frame(state, rc, &self->info, room.bytes);
  PyObject *places = NULL;
  rc = fill(self, encoding, &room.span, tag);
  if (rc == 0) {
    rc_py_spans_frame(self->base.trace, rc_py_writer_position(self), room.bytes);
    places = places_of(encoding, room.span.data);
  } else {
    rc_py_raise(state, rc);
  }
  if (!places) {
    ringcast_writer_abort(self->writer);
    return NULL;
  }
  PyObject *span = span_new(self, &room.span);
  if (span) return Py_BuildValue("(NN)", span, places);
  Py_DECREF(places);
  return NULL;
}

static bool knows_empty(struct rc_py_state *state) {
  if (!state->empty_type) state->empty_type = rc_py_import("ringcast._compose", "Empty");
  return state->empty_type;
}

PyObject *rc_py_writer_compose(PyObject *object, PyObject *const *args, Py_ssize_t count) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct rc_py_state *state = rc_py_state_of(self);
  struct rc_py_encoding encoding;
  int64_t timeout_ns;
  uint64_t tag;
  if (count != 3) {
    return PyErr_Format(PyExc_TypeError, "_compose() takes a value, a timeout and a tag");
  }
  if (!rc_py_timeout(args[1], &timeout_ns)) return NULL;
  if (!rc_py_integer("tag", args[2], 0, UINT32_MAX, &tag)) return NULL;
  if (!knows_empty(state) || !rc_py_writer_begin(self)) return NULL;
  PyObject *composed = NULL;
  bool is_full = false;
  rc_py_spans_phase(self->base.trace, RC_PY_PHASE_ENCODE);
  int32_t device = self->takes_cuda ? RC_PY_FROM_EACH : RC_PY_FROM_NONE;
  if (rc_py_encoding_measure(&encoding, state, args[0], self->base.allow_pickle, device, true)) {
    encoding.trace = self->base.trace;
    composed = compose(self, &encoding, timeout_ns, (uint32_t)tag, &is_full);
    rc_py_encoding_clear(&encoding);
  }
  rc_py_writer_end(self, RC_PY_CALL_NONE, is_full);
  return composed;
}

/* ---- Ending a reservation -------------------------------------------------------------------- */

/* The result of commit or abort. A forked child gets ECHILD, whether or not a reservation is
 * open. */
static PyObject *ended(struct rc_py_writer *self, int rc) {
  if (rc == -EINVAL && !self->open_span.is_open) {
    return PyErr_Format(PyExc_ValueError, "no reservation is open");
  }
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  self->open_span.is_open = false;
  return Py_NewRef(Py_None);
}

bool rc_py_writer_may_end(const struct rc_py_writer *self, const char *verb) {
  if (!self->open_span.is_open || self->open_span.exports == 0) return true;
  rc_py_raise_exported(self->open_span.exports, verb, "Span");
  return false;
}

/* A frame may refer to memory outside the frame: the reference is valid in its own ring only, and
 * readers of another ring would look in the wrong place. */
static bool is_whole(const struct rc_py_writer *self, uint64_t bytes, uint64_t kind) {
  struct ringcast_frame_reader opened;
  if (kind != RINGCAST_KIND_TENSORS || !self->open_span.is_open || bytes > self->span.bytes)
    return true;
  if (ringcast_frame_open(&opened, self->span.data, bytes) < 0) return true;
  if (opened.device_epoch == 0) return true;
  rc_py_raise_text(rc_py_state_of((void *)self), ENOTSUP,
                   "tensors of this frame lie in device memory of the Writer that it came from, "
                   "and can't be passed on with it: receive it, and send what came");
  return false;
}

PyObject *rc_py_writer_commit(PyObject *object, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords) {
  static const char *const names[] = {"n", "kind", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[2] = {NULL};
  uint64_t bytes = self->open_span.is_open ? self->span.bytes : 0;
  uint64_t kind = RINGCAST_KIND_BYTES;
  if (!rc_py_arguments("commit", names, 1, 0, args, count, keywords, values)) return NULL;
  bool has_size = values[0] && values[0] != Py_None;
  if (has_size && !rc_py_integer("n", values[0], 0, PY_SSIZE_T_MAX, &bytes)) return NULL;
  if (values[1] && !rc_py_integer("kind", values[1], 0, UINT16_MAX, &kind)) return NULL;
  if (!rc_py_writer_begin(self)) return NULL;
  PyObject *result = NULL;
  if (self->open_span.is_open && self->open_span.estimated && !has_size) {
    PyErr_SetString(PyExc_ValueError,
                    "the size of this reservation is an estimate: tell how many bytes are the "
                    "frame's, by commit(n)");
  } else if (rc_py_writer_may_end(self, "commit") && is_whole(self, bytes, kind)) {
    result = ended(self, rc_py_commit(self, bytes, (uint16_t)kind));
  }
  rc_py_writer_end(self, RC_PY_CALL_SEND, !result);
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

static bool is_current(const struct rc_py_open_span *open_span, uint64_t generation) {
  return open_span->is_open && open_span->generation == generation;
}

static bool span_check(const struct span *self) {
  if (is_current(&self->writer->open_span, self->generation)) return true;
  const char *text = "this Span was committed or aborted already";
  if (!self->writer->writer) text = "this Span is of no use any more: the Writer was closed";
  PyErr_SetString(PyExc_ValueError, text);
  return false;
}

static int span_get_buffer(PyObject *object, Py_buffer *view, int flags) {
  struct span *self = (struct span *)object;
  view->obj = NULL;
  if (!span_check(self)) return -1;
  if (self->writer->open_span.moving) {
    PyErr_SetString(PyExc_RuntimeError, "this Span is being grown, by another thread");
    return -1;
  }
  const struct ringcast_span *span = &self->writer->span;
  int rc = PyBuffer_FillInfo(view, object, span->data, (Py_ssize_t)span->bytes, 0, flags);
  if (rc == 0) self->writer->open_span.exports++;
  return rc;
}

static void span_release_buffer(PyObject *object, Py_buffer *Py_UNUSED(view)) {
  struct rc_py_writer *writer = ((struct span *)object)->writer;
  if (--writer->open_span.exports == 0 && writer->open_span.doomed) rc_py_writer_end_doomed(writer);
}

static Py_ssize_t span_length(PyObject *object) {
  struct span *self = (struct span *)object;
  if (!span_check(self)) return -1;
  return (Py_ssize_t)self->writer->span.bytes;
}

static int try_grow(void *context, int64_t timeout_ns, bool Py_UNUSED(has_gil)) {
  struct rc_py_reservation *room = context;
  struct rc_py_writer *self = room->writer;
  int rc = ringcast_writer_grow(self->writer, room->bytes, timeout_ns, &room->span);
  if (rc == -ETIMEDOUT && rc_py_is_reader_too_slow(self)) return RC_PY_TOO_SLOW;
  return rc;
}

static int grow(struct rc_py_writer *writer, size_t bytes, int64_t timeout_ns) {
  struct rc_py_reservation room = {.writer = writer, .bytes = bytes};
  writer->open_span.moving = true;
  int rc = rc_py_wait(try_grow, &room, timeout_ns);
  writer->open_span.moving = false;
  if (rc == 0) writer->span = room.span;
  return rc;
}

static PyObject *span_grow(PyObject *object, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords) {
  struct span *self = (struct span *)object;
  struct rc_py_writer *writer = self->writer;
  int64_t timeout_ns;
  uint64_t bytes;
  if (!rc_py_amount_arguments("grow", args, count, keywords, PY_SSIZE_T_MAX, &bytes, &timeout_ns)) {
    return NULL;
  }
  if (!span_check(self) || !rc_py_writer_enter(writer)) return NULL;
  int rc = RC_PY_RAISED;
  if (rc_py_writer_may_end(writer, "grow")) rc = grow(writer, bytes, timeout_ns);
  if (rc < 0) rc_py_raise_of_frame(rc_py_state_of(writer), rc, &writer->info, bytes);
  rc_py_watch_after(&writer->base, rc);
  rc_py_writer_leave(writer);
  return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *span_commit(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
  struct span *self = (struct span *)object;
  if (!span_check(self)) return NULL;
  return rc_py_writer_commit((PyObject *)self->writer, args, count, keywords);
}

static PyObject *span_abort(PyObject *object, PyObject *unused) {
  struct span *self = (struct span *)object;
  if (!span_check(self)) return NULL;
  return rc_py_writer_abort((PyObject *)self->writer, unused);
}

static PyObject *span_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  if (!span_check((struct span *)object)) return NULL;
  return Py_NewRef(object);
}

static PyObject *span_exit(PyObject *object, PyObject *args) {
  struct span *self = (struct span *)object;
  struct rc_py_open_span *open_span = &self->writer->open_span;
  if (!is_current(open_span, self->generation)) Py_RETURN_NONE;
  PyObject *writer = (PyObject *)self->writer;
  bool has_raised = PyTuple_GET_SIZE(args) > 0 && PyTuple_GET_ITEM(args, 0) != Py_None;
  if (!has_raised) return rc_py_writer_commit(writer, NULL, 0, NULL);
  if (open_span->exports == 0) return rc_py_writer_abort(writer, NULL);
  open_span->doomed = true;
  Py_RETURN_NONE;
}

static PyObject *span_repr(PyObject *object) {
  struct span *self = (struct span *)object;
  if (!is_current(&self->writer->open_span, self->generation)) {
    return PyUnicode_FromString("<ringcast.Span, done>");
  }
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
