/* SPDX-License-Identifier: Apache-2.0 */
/*
 * View: an object with its arrays and tensors in the ring, lent for a block.
 *
 * At the end of the block the frame goes back to the ring, even if the user still holds an array:
 * obj is bound to a name that outlives the block, so waiting for the array's end would be waiting
 * for ever. Only the mapping must stay: a hold keeps it (tensors.h).
 *
 * A hostile writer can change lent values at any time, but nothing else: positions and shapes were
 * copied and checked before (decode.c), and the memory is mapped read-only.
 */
#include "python/extension/handles/reader.h"
#include "python/extension/handles/gpu.h"

#include "python/docstrings.h"

#include <structmember.h>

struct view {
  PyObject_HEAD PyObject *frame;
  PyObject *object; /* NULL: the block has ended */
  uint32_t tag;
};

/* Reads the frame. The result is checked to be whole. */
static PyObject *read_frame(struct rc_py_reader *reader, PyObject *frame, uint32_t *tag) {
  if (!rc_py_reader_enter(reader)) return NULL;
  PyObject *object = NULL;
  bool device_failed = false;
  if (reader->device.gpu) rc_py_gpu_skips_none(reader->device.gpu);
  if (!reader->hold) reader->hold = rc_py_hold_new(reader->reader);
  if (!reader->hold) {
    PyErr_NoMemory();
  } else {
    const struct rc_py_decode_options options = {.reader = reader->reader,
                                                 .receiver = &reader->device.receiver,
                                                 .classes = &reader->classes,
                                                 .allow_pickle = reader->base.allow_pickle,
                                                 .hold = reader->hold,
                                                 .device_failed = &device_failed};
    object = rc_py_decode(rc_py_state_of(reader), rc_py_frame_of(frame), &options, tag);
    object = rc_py_reader_made_sure(reader, object);
    if (!object) rc_py_frame_stash(frame, device_failed);
  }
  rc_py_reader_leave(reader);
  return object;
}

/* The object in `frame`, with arrays left in the ring: a View, with a reference to the Frame. NULL:
 * raised. */
static PyObject *view_new(struct rc_py_reader *reader, PyObject *frame) {
  PyTypeObject *type = rc_py_state_of(reader)->view_type;
  struct view *self = (struct view *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->frame = Py_NewRef(frame);
  self->object = read_frame(reader, frame, &self->tag);
  if (self->object) return (PyObject *)self;
  Py_DECREF(self);
  return NULL;
}

static PyObject *next_view(struct rc_py_reader *self, int64_t timeout_ns) {
  for (;;) {
    PyObject *frame = rc_py_lend(self, timeout_ns, true);
    if (!frame) return NULL;
    PyObject *view = view_new(self, frame);
    const struct ringcast_frame *lent = rc_py_frame_of(frame);
    rc_py_spans_frame(self->base.trace, lent->position, lent->bytes);
    bool skips = !view && self->device.gpu && rc_py_gpu_skips(&self->device);
    if (!view) rc_py_frame_give_up(frame);
    Py_DECREF(frame);
    if (!skips || PyErr_Occurred()) return view;
  }
}

PyObject *rc_py_reader_view(PyObject *object, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  int64_t timeout_ns;
  if (!rc_py_timeout_argument("view", args, count, keywords, &timeout_ns)) return NULL;
  /* To lend and to decode are two calls of the library's, and one for the spans. */
  rc_py_handle_begin(&self->base);
  PyObject *view = next_view(self, timeout_ns);
  bool is_try = timeout_ns == 0;
  bool is_nothing = !view && is_try && PyErr_ExceptionMatches(PyExc_TimeoutError);
  rc_py_spans_end(&self->base.trace, RC_PY_CALL_RECV, is_nothing);
  return view;
}

static bool view_check(const struct view *self) {
  if (self->object) return true;
  PyErr_SetString(PyExc_ValueError, "this View has ended: reader.view() gives the next");
  return false;
}

static PyObject *view_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct view *self = (struct view *)object;
  if (!view_check(self)) return NULL;
  return Py_NewRef(self->object);
}

static PyObject *view_exit(PyObject *object, PyObject *args) {
  struct view *self = (struct view *)object;
  Py_CLEAR(self->object);
  return rc_py_frame_exit(self->frame, args);
}

static PyObject *get_hashes(PyObject *object, void *Py_UNUSED(closure)) {
  struct view *self = (struct view *)object;
  if (!view_check(self)) return NULL;
  return PyObject_GetAttrString(self->frame, "hashes");
}

static PyObject *view_repr(PyObject *object) {
  struct view *self = (struct view *)object;
  if (!self->object) return PyUnicode_FromString("<ringcast.View, ended>");
  return PyUnicode_FromFormat("<ringcast.View of %R>", self->frame);
}

static int view_traverse(PyObject *object, visitproc visit, void *arg) {
  struct view *self = (struct view *)object;
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->frame);
  Py_VISIT(self->object);
  return 0;
}

/* The frame stays: dropping the frame would give it back, and only the block's end does. */
static int view_clear(PyObject *object) {
  Py_CLEAR(((struct view *)object)->object);
  return 0;
}

static void view_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  struct view *self = (struct view *)object;
  PyObject_GC_UnTrack(object);
  Py_XDECREF(self->object);
  Py_XDECREF(self->frame);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyMethodDef view_methods[] = {
    {"__enter__", view_enter, METH_NOARGS, RC_DOC_View___enter__},
    {"__exit__", view_exit, METH_VARARGS, RC_DOC_View___exit__},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef view_members[] = {
    {"tag", T_UINT, offsetof(struct view, tag), READONLY, RC_DOC_View_tag},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef view_properties[] = {
    {"hashes", get_hashes, NULL, RC_DOC_View_hashes, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot view_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_View},
    {Py_tp_methods, view_methods},
    {Py_tp_members, view_members},
    {Py_tp_getset, view_properties},
    {Py_tp_repr, view_repr},
    {Py_tp_traverse, view_traverse},
    {Py_tp_clear, view_clear},
    {Py_tp_dealloc, view_dealloc},
    {0, NULL},
};
PyType_Spec rc_py_view_spec = {
    "ringcast.View", sizeof(struct view), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC, view_slots};
