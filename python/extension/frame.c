/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Span and Frame: what Python may see of the ring itself.
 *
 * The lease (is it open, who looks at it) is the Writer's or the Reader's; Span and Frame name it by its generation. So
 * a Span that is dropped leaves the reservation open for Writer.commit(), and a Frame that outlives its release is seen
 * to be of the past. While a memoryview exists the lease can't end: BufferError, as mmap does.
 */
#include "extension.h"

#include <structmember.h>

struct span {
  PyObject_HEAD struct rc_py_writer *writer;
  uint64_t generation;
};

struct frame {
  PyObject_HEAD struct rc_py_reader *reader;
  uint64_t generation;
  uint64_t position;
  uint16_t kind;
};

static bool is_current(const struct rc_py_lease *lease, uint64_t generation) {
  return lease->open && lease->generation == generation;
}

/* ---- Span ------------------------------------------------------------------------------------------------------- */

static bool span_check(const struct span *self) {
  if (is_current(&self->writer->lease, self->generation)) return true;
  PyErr_SetString(PyExc_ValueError, self->writer->writer ? "this Span was committed or aborted already"
                                                         : "this Span is of no use any more: the Writer was closed");
  return false;
}

static int span_get_buffer(PyObject *object, Py_buffer *view, int flags) {
  struct span *self = (struct span *)object;
  view->obj = NULL;
  if (!span_check(self)) return -1;
  const struct ringcast_span *span = &self->writer->span;
  int rc = PyBuffer_FillInfo(view, object, span->data, (Py_ssize_t)span->bytes, 0, flags);
  if (rc == 0) self->writer->lease.exports++;
  return rc;
}

static void span_release_buffer(PyObject *object, Py_buffer *Py_UNUSED(view)) {
  struct rc_py_writer *writer = ((struct span *)object)->writer;
  if (--writer->lease.exports > 0 || !writer->lease.doomed) return;
  PyObject *type, *value, *traceback; /* this runs while an exception passes */
  PyErr_Fetch(&type, &value, &traceback);
  Py_XDECREF(rc_py_writer_abort(writer));
  if (PyErr_Occurred()) PyErr_WriteUnraisable(object);
  PyErr_Restore(type, value, traceback);
}

static Py_ssize_t span_length(PyObject *object) {
  struct span *self = (struct span *)object;
  return span_check(self) ? (Py_ssize_t)self->writer->span.bytes : -1;
}

PyDoc_STRVAR(span_commit_doc,
             "commit($self, n=None, *, kind=0)\n--\n\n"
             "Publish the first `n` bytes (None: all) as one frame, as Writer.commit(). The Span is of no use "
             "afterwards.\n\n"
             "ValueError: committed or aborted already, or `n` is more than was reserved (it stays open).\n"
             "BufferError: a memoryview of it is still in use.");
static PyObject *span_commit(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"n", "kind", NULL};
  PyObject *values[2] = {NULL};
  struct span *self = (struct span *)object;
  if (!rc_py_arguments("commit", names, 1, 0, args, count, keywords, values) || !span_check(self)) return NULL;
  return rc_py_writer_commit(self->writer, values[0], values[1]);
}

PyDoc_STRVAR(span_abort_doc, "abort($self)\n--\n\n"
                             "Give the memory back; no reader sees anything. Errors as commit().");
static PyObject *span_abort(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct span *self = (struct span *)object;
  return span_check(self) ? rc_py_writer_abort(self->writer) : NULL;
}

PyDoc_STRVAR(enter_doc, "__enter__($self)\n--\n\nReturn self.");
static PyObject *span_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return span_check((struct span *)object) ? rc_py_ref(object) : NULL;
}

PyDoc_STRVAR(span_exit_doc,
             "__exit__($self, *exception)\n--\n\n"
             "Commit all of it, unless that was done; after an exception, abort (once the last memoryview is gone).");
static PyObject *span_exit(PyObject *object, PyObject *args) {
  struct span *self = (struct span *)object;
  struct rc_py_lease *lease = &self->writer->lease;
  if (!is_current(lease, self->generation)) Py_RETURN_NONE;
  if (PyTuple_GET_SIZE(args) == 0 || PyTuple_GET_ITEM(args, 0) == Py_None) {
    return rc_py_writer_commit(self->writer, NULL, NULL);
  }
  if (lease->exports == 0) return rc_py_writer_abort(self->writer);
  lease->doomed = true;
  Py_RETURN_NONE;
}

static PyObject *span_repr(PyObject *object) {
  struct span *self = (struct span *)object;
  if (!is_current(&self->writer->lease, self->generation)) return PyUnicode_FromString("<ringcast.Span, done>");
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

PyObject *rc_py_span_new(struct rc_py_writer *writer) {
  PyTypeObject *type = rc_py_state_of(writer)->span_type;
  struct span *self = (struct span *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->writer = (struct rc_py_writer *)rc_py_ref((PyObject *)writer);
  self->generation = writer->lease.generation;
  return (PyObject *)self;
}

static PyMethodDef span_methods[] = {
    {"commit", (PyCFunction)(void (*)(void))span_commit, METH_FASTCALL | METH_KEYWORDS, span_commit_doc},
    {"abort", span_abort, METH_NOARGS, span_abort_doc},
    {"__enter__", span_enter, METH_NOARGS, enter_doc},
    {"__exit__", span_exit, METH_VARARGS, span_exit_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(span_doc,
             "Memory of the ring, lent by Writer.reserve(), to be written in place:\n\n"
             "    with writer.reserve(16) as span, memoryview(span) as view:\n"
             "        view[:] = bytes(16)\n\n"
             "At the end of the block the view goes, and then all of the span is committed; after an exception it is "
             "aborted.\nnumpy.asarray(span) and torch.frombuffer(span, ...) write too; every array must be gone "
             "(del array) at the end.\nBufferError: a view or an array is still in use. Then nothing was committed: "
             "the span is open as before; drop\nthem, and call commit() or abort().\n\n"
             "len(span) is its bytes. It starts 16 bytes into a 64-byte line.");
static PyType_Slot span_slots[] = {
    {Py_tp_doc, (void *)span_doc},
    {Py_tp_methods, span_methods},
    {Py_tp_repr, span_repr},
    {Py_tp_traverse, span_traverse},
    {Py_tp_dealloc, span_dealloc},
    {Py_bf_getbuffer, span_get_buffer},
    {Py_sq_length, span_length},
    {Py_bf_releasebuffer, span_release_buffer},
    {0, NULL},
};
PyType_Spec rc_py_span_spec = {"ringcast.Span", sizeof(struct span), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                               span_slots};

/* ---- Frame ------------------------------------------------------------------------------------------------------ */

static bool frame_check(const struct frame *self) {
  if (is_current(&self->reader->lease, self->generation)) return true;
  PyErr_SetString(PyExc_ValueError, self->reader->reader ? "this Frame was released already"
                                                         : "this Frame is of no use any more: the Reader was closed");
  return false;
}

static int frame_get_buffer(PyObject *object, Py_buffer *view, int flags) {
  struct frame *self = (struct frame *)object;
  view->obj = NULL;
  if (!frame_check(self)) return -1;
  const struct ringcast_frame *frame = &self->reader->frame;
  int rc = PyBuffer_FillInfo(view, object, (void *)frame->data, (Py_ssize_t)frame->bytes, 1, flags);
  if (rc == 0) self->reader->lease.exports++;
  return rc;
}

/* Releases a frame where there is nobody to raise to. */
static void release_quietly(struct rc_py_reader *reader, PyObject *object) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Py_XDECREF(rc_py_reader_release(reader));
  if (PyErr_Occurred()) PyErr_WriteUnraisable(object);
  PyErr_Restore(type, value, traceback);
}

static void frame_release_buffer(PyObject *object, Py_buffer *Py_UNUSED(view)) {
  struct rc_py_reader *reader = ((struct frame *)object)->reader;
  if (--reader->lease.exports == 0 && reader->lease.doomed) release_quietly(reader, object);
}

static Py_ssize_t frame_length(PyObject *object) {
  struct frame *self = (struct frame *)object;
  return frame_check(self) ? (Py_ssize_t)self->reader->frame.bytes : -1;
}

PyDoc_STRVAR(frame_release_doc,
             "release($self)\n--\n\n"
             "Give the frame back to the ring, where the writer may overwrite it. A second time does nothing.\n\n"
             "BufferError: a memoryview of it is still in use.");
static PyObject *frame_release(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct frame *self = (struct frame *)object;
  if (!is_current(&self->reader->lease, self->generation)) Py_RETURN_NONE;
  return rc_py_reader_release(self->reader);
}

static PyObject *frame_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return frame_check((struct frame *)object) ? rc_py_ref(object) : NULL;
}

PyDoc_STRVAR(frame_exit_doc, "__exit__($self, *exception)\n--\n\n"
                             "Release it; after an exception, as soon as the last memoryview is gone.");
static PyObject *frame_exit(PyObject *object, PyObject *args) {
  struct frame *self = (struct frame *)object;
  struct rc_py_lease *lease = &self->reader->lease;
  if (!is_current(lease, self->generation)) Py_RETURN_NONE;
  bool raised = PyTuple_GET_SIZE(args) > 0 && PyTuple_GET_ITEM(args, 0) != Py_None;
  if (!raised || lease->exports == 0) return rc_py_reader_release(self->reader);
  lease->doomed = true;
  Py_RETURN_NONE;
}

static PyObject *frame_repr(PyObject *object) {
  struct frame *self = (struct frame *)object;
  if (!is_current(&self->reader->lease, self->generation)) {
    return PyUnicode_FromFormat("<ringcast.Frame at %llu, released>", (unsigned long long)self->position);
  }
  return PyUnicode_FromFormat("<ringcast.Frame at %llu, kind %d, %zu bytes>", (unsigned long long)self->position,
                              self->kind, self->reader->frame.bytes);
}

static int frame_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((struct frame *)object)->reader);
  return 0;
}

/* Nobody else could release it: a Frame that is dropped gives its memory back. */
static void frame_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  struct frame *self = (struct frame *)object;
  PyObject_GC_UnTrack(object);
  if (self->reader && is_current(&self->reader->lease, self->generation))
    release_quietly(self->reader, (PyObject *)type);
  Py_XDECREF(self->reader);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject *rc_py_frame_new(struct rc_py_reader *reader) {
  PyTypeObject *type = rc_py_state_of(reader)->frame_type;
  struct frame *self = (struct frame *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->reader = (struct rc_py_reader *)rc_py_ref((PyObject *)reader);
  self->generation = reader->lease.generation;
  self->position = reader->frame.position;
  self->kind = reader->frame.kind;
  return (PyObject *)self;
}

static PyMethodDef frame_methods[] = {
    {"release", frame_release, METH_NOARGS, frame_release_doc},
    {"__enter__", frame_enter, METH_NOARGS, enter_doc},
    {"__exit__", frame_exit, METH_VARARGS, frame_exit_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef frame_members[] = {
    {"position", T_ULONGLONG, offsetof(struct frame, position), READONLY,
     "Where the frame starts, in bytes since the ring was made."},
    {"kind", T_USHORT, offsetof(struct frame, kind), READONLY, "KIND_BYTES or KIND_TENSORS."},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(frame_doc,
             "A frame in the ring, lent by Reader.next(), to be read in place. One at a time.\n\n"
             "    with reader.next() as frame, memoryview(frame) as view:\n"
             "        total = sum(view)\n\n"
             "At the end of the block the view goes, and then the frame is released, for the writer to reuse its "
             "memory; so it\nis when its last reference is dropped. numpy.asarray(frame) reads too; every array must "
             "be gone (del array) at the\nend. BufferError: a view or an array is still in use. Then the frame is "
             "held as before; drop them, and call\nrelease().\n\n"
             "len(frame) is its bytes, bytes(frame) a copy. Read-only.");
static PyType_Slot frame_slots[] = {
    {Py_tp_doc, (void *)frame_doc},      {Py_tp_methods, frame_methods},
    {Py_tp_members, frame_members},      {Py_tp_repr, frame_repr},
    {Py_tp_traverse, frame_traverse},    {Py_tp_dealloc, frame_dealloc},
    {Py_bf_getbuffer, frame_get_buffer}, {Py_bf_releasebuffer, frame_release_buffer},
    {Py_sq_length, frame_length},        {0, NULL},
};
PyType_Spec rc_py_frame_spec = {"ringcast.Frame", sizeof(struct frame), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                frame_slots};
