/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frame: Python's view of the ring while reading.
 *
 * A use of a Frame after its release, or after its Reader's end, raises ValueError. While a
 * memoryview of the Frame exists, release raises BufferError, as mmap does. A dropped Frame is
 * released.
 */
#include "python/extension/handles/reader.h"

#include "python/extension/codec/inspect.h"
#include "python/extension/errors.h"

#include "python/docstrings.h"

#include <unistd.h>

#include <structmember.h>

struct frame {
  PyObject_HEAD struct rc_py_reader *reader;
  struct ringcast_frame frame;
  uint32_t tag;
  bool open;
  bool doomed;        /* to be given back as soon as the last memoryview goes */
  Py_ssize_t exports; /* memoryviews and other buffers in use */
};

/* ---- The end of a frame ---------------------------------------------------------------------- */

static bool is_current(const struct frame *self) { return self->open && self->reader->reader; }

static bool frame_check(const struct frame *self) {
  if (is_current(self)) return true;
  const char *text = "this Frame was released already";
  if (!self->reader->reader) text = "this Frame is of no use any more: the Reader was closed";
  PyErr_SetString(PyExc_ValueError, text);
  return false;
}

static PyObject *release(struct frame *self) {
  struct rc_py_reader *reader = self->reader;
  if (self->exports > 0) return rc_py_raise_exported(self->exports, "release", "Frame");
  if (rc_py_reader_defer(reader, &self->frame)) {
    self->open = false;
    int rc = ringcast_reader_check(reader->reader); /* loads only fields that no call changes */
    if (rc < 0) return rc_py_raise(rc_py_state_of(reader), rc);
    Py_RETURN_NONE;
  }
  if (!rc_py_reader_enter(reader)) return NULL;
  self->open = false;
  bool released = rc_py_reader_give_back(reader, &self->frame);
  rc_py_reader_leave(reader);
  return released ? Py_NewRef(Py_None) : NULL;
}

bool rc_py_frame_stash(PyObject *object, bool device_failed) {
  struct frame *self = (struct frame *)object;
  if (!rc_py_reader_stash(self->reader, &self->frame, device_failed)) return false;
  self->open = false;
  return true;
}

void rc_py_frame_give_up(PyObject *object) {
  struct frame *self = (struct frame *)object;
  /* Else the last reference releases the frame. */
  if (!is_current(self) || self->reader->base.busy) return;
  self->open = false;
  self->reader->base.busy = true; /* give_back may wait for a device and let other threads run */
  rc_py_reader_give_back(self->reader, &self->frame);
  rc_py_reader_leave(self->reader);
}

/* Releases the frame where no caller is left to raise to. In a forked child the frame is the
 * parent's. */
static void release_quietly(struct frame *self, PyObject *who) {
  if (!is_current(self) || getpid() != self->reader->base.pid) return;
  PyObject *type, *value, *traceback; /* an exception may be set */
  PyErr_Fetch(&type, &value, &traceback);
  Py_XDECREF(release(self));
  if (PyErr_Occurred()) PyErr_WriteUnraisable(who);
  PyErr_Restore(type, value, traceback);
}

/* ---- Frame ----------------------------------------------------------------------------------- */

static int frame_get_buffer(PyObject *object, Py_buffer *view, int flags) {
  struct frame *self = (struct frame *)object;
  view->obj = NULL;
  if (!frame_check(self)) return -1;
  int rc = PyBuffer_FillInfo(view, object, (void *)self->frame.data, (Py_ssize_t)self->frame.bytes,
                             1, flags);
  if (rc == 0) {
    self->exports++;
    self->reader->exports++;
  }
  return rc;
}

static void frame_release_buffer(PyObject *object, Py_buffer *Py_UNUSED(view)) {
  struct frame *self = (struct frame *)object;
  self->reader->exports--;
  if (--self->exports == 0 && self->doomed) release_quietly(self, object);
}

static Py_ssize_t frame_length(PyObject *object) {
  struct frame *self = (struct frame *)object;
  if (!frame_check(self)) return -1;
  return (Py_ssize_t)self->frame.bytes;
}

static PyObject *frame_release(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct frame *self = (struct frame *)object;
  if (!is_current(self)) Py_RETURN_NONE;
  return release(self);
}

static PyObject *frame_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  if (!frame_check((struct frame *)object)) return NULL;
  return Py_NewRef(object);
}

/* The block ended by an exception while views exist. Overwritten data may have caused the
 * exception, so Evicted takes precedence. */
static PyObject *release_later(struct frame *self, PyObject *raised) {
  struct rc_py_reader *reader = self->reader;
  self->doomed = true;
  /* KeyboardInterrupt and the like go on. */
  if (!PyErr_GivenExceptionMatches(raised, PyExc_Exception)) Py_RETURN_NONE;
  if (ringcast_reader_check(reader->reader) != -ESTALE) Py_RETURN_NONE;
  return rc_py_raise(rc_py_state_of(reader), -ESTALE);
}

PyObject *rc_py_frame_exit(PyObject *object, PyObject *args) {
  struct frame *self = (struct frame *)object;
  if (!is_current(self)) Py_RETURN_NONE;
  PyObject *raised = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : Py_None;
  if (raised != Py_None && self->exports > 0) return release_later(self, raised);
  PyObject *none = release(self);
  if (none || raised == Py_None) return none;
  if (PyErr_GivenExceptionMatches(raised, PyExc_Exception)) return NULL;
  PyErr_Clear(); /* KeyboardInterrupt and the like go on */
  Py_RETURN_NONE;
}

/* ---- Looking into a frame -------------------------------------------------------------------- */

const struct ringcast_frame *rc_py_frame_of(PyObject *frame) {
  return &((struct frame *)frame)->frame;
}

/* The result is checked to be whole. `part`: the frame to look into; NULL: the Frame's own. */
static PyObject *look_at(PyObject *object, const struct ringcast_frame *part, rc_py_inspect how,
                         PyObject *key) {
  struct frame *self = (struct frame *)object;
  struct rc_py_reader *reader = self->reader;
  if (!frame_check(self) || !rc_py_reader_enter(reader)) return NULL;
  struct rc_py_inspector looking = {.state = rc_py_state_of(reader),
                                    .frame = &self->frame,
                                    .reader = reader->reader,
                                    .receiver = &reader->device.receiver,
                                    .classes = &reader->classes,
                                    .allow_pickle = reader->base.allow_pickle};
  if (part) {
    looking.frame = part;
    looking.receiver = NULL; /* places of device tensors belong to the Frame itself */
  }
  PyObject *found = rc_py_reader_made_sure(reader, how(&looking, key));
  /* The caller gets the exception, and decides how to go on. */
  if (reader->device.gpu) rc_py_gpu_skips_none(reader->device.gpu);
  rc_py_reader_leave(reader);
  return found;
}

static PyObject *look(PyObject *object, rc_py_inspect how, PyObject *key) {
  return look_at(object, NULL, how, key);
}

/* `classes`: None, or as in rc_py_classes_allowed. */
static PyObject *look_whole(const struct rc_py_inspector *looking, PyObject *classes) {
  struct rc_py_decode_options options = {.reader = looking->reader,
                                         .receiver = looking->receiver,
                                         .classes = looking->classes,
                                         .allow_pickle = looking->allow_pickle};
  PyObject *cache = NULL;
  if (classes != Py_None) {
    cache = Py_NewRef(classes);
    options.classes = &cache;
    options.allow_pickle = false;
  }
  uint32_t tag;
  PyObject *object = rc_py_decode(looking->state, looking->frame, &options, &tag);
  Py_XDECREF(cache);
  return object;
}

/* Arrays and tensors stay in the ring, except those of a device. `reader`: the Frame's. */
static PyObject *look_in_place(const struct rc_py_inspector *looking, PyObject *reader) {
  struct rc_py_reader *owner = (struct rc_py_reader *)reader;
  bool is_copied =
      owner->device.receiver.map.to == RC_PY_MAP_CUDA || rc_py_has_device(looking->frame);
  if (!owner->hold) owner->hold = rc_py_hold_new(owner->reader);
  if (!owner->hold) return PyErr_NoMemory();
  const struct rc_py_decode_options options = {.reader = looking->reader,
                                               .receiver = looking->receiver,
                                               .classes = looking->classes,
                                               .allow_pickle = looking->allow_pickle,
                                               .hold = is_copied ? NULL : owner->hold};
  uint32_t tag;
  return rc_py_decode(looking->state, looking->frame, &options, &tag);
}

static PyObject *frame_view(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return look(object, look_in_place, (PyObject *)((struct frame *)object)->reader);
}

PyObject *rc_py_frame_unpack(PyObject *frame, const struct ringcast_frame *part, PyObject *classes,
                             bool are_given) {
  const struct rc_py_reader *reader = ((struct frame *)frame)->reader;
  bool are_readers = !classes || (!are_given && !reader->base.allow_pickle);
  return look_at(frame, part, look_whole, are_readers ? Py_None : classes);
}

static PyObject *frame_keys(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return look(object, rc_py_inspect_keys, NULL);
}

static PyObject *frame_item(PyObject *object, PyObject *key) {
  return look(object, rc_py_inspect_item, key);
}

static int frame_contains(PyObject *object, PyObject *key) {
  return rc_py_is_yes(look(object, rc_py_inspect_contains, key));
}

static PyObject *get_hashes(PyObject *object, void *Py_UNUSED(closure)) {
  return look(object, rc_py_inspect_hashes, NULL);
}

static PyObject *frame_repr(PyObject *object) {
  struct frame *self = (struct frame *)object;
  unsigned long long position = self->frame.position;
  if (!is_current(self)) {
    return PyUnicode_FromFormat("<ringcast.Frame at %llu, released>", position);
  }
  return PyUnicode_FromFormat("<ringcast.Frame at %llu, kind %d, %zu bytes>", position,
                              self->frame.kind, self->frame.bytes);
}

static int frame_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((struct frame *)object)->reader);
  return 0;
}

/* A dropped Frame gives its memory back: no other code could. */
static void frame_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  struct frame *self = (struct frame *)object;
  PyObject_GC_UnTrack(object);
  if (self->reader) release_quietly(self, (PyObject *)type);
  Py_XDECREF(self->reader);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyObject *frame_new(struct rc_py_reader *reader, const struct ringcast_frame *frame) {
  PyTypeObject *type = rc_py_state_of(reader)->frame_type;
  struct frame *self = (struct frame *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->reader = (struct rc_py_reader *)Py_NewRef((PyObject *)reader);
  self->frame = *frame;
  self->open = true;
  struct ringcast_frame_reader header; /* a damaged frame has no tag */
  bool has_tag = frame->kind == RINGCAST_KIND_TENSORS &&
                 ringcast_frame_open(&header, frame->data, frame->bytes) == 0;
  self->tag = has_tag ? header.tag : 0;
  return (PyObject *)self;
}

/* ---- Reader.next ----------------------------------------------------------------------------- */

PyObject *rc_py_lend(struct rc_py_reader *self, int64_t timeout_ns, bool is_view) {
  if (!rc_py_reader_begin(self)) return NULL;
  struct ringcast_frame lent;
  int rc = rc_py_receive_frame(self, timeout_ns, &lent);
  if (rc >= 0) rc_py_spans_phase(self->base.trace, RC_PY_PHASE_DECODE);
  PyObject *frame = NULL;
  if (rc >= 0) frame = frame_new(self, &lent);
  else rc_py_raise(rc_py_state_of(self), rc);
  rc_py_watch_after(&self->base, rc);
  if (rc >= 0 && !frame) rc_py_reader_give_back(self, &lent);
  if (rc >= 0 && !is_view) rc_py_spans_frame(self->base.trace, lent.position, lent.bytes);
  rc_py_reader_end(self, rc == -EAGAIN);
  return frame;
}

PyObject *rc_py_reader_next(PyObject *object, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords) {
  int64_t timeout_ns;
  if (!rc_py_timeout_argument("next", args, count, keywords, &timeout_ns)) return NULL;
  return rc_py_lend((struct rc_py_reader *)object, timeout_ns, false);
}

/* ---- The type -------------------------------------------------------------------------------- */

static PyObject *frame_reduce(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(unused)) {
  PyErr_SetString(PyExc_TypeError,
                  "a Frame can't be pickled, nor be sent: it is a place in a ring. Send what it "
                  "holds, by send(unpack(frame)), or its bytes, by send_bytes(frame)");
  return NULL;
}

static PyMethodDef frame_methods[] = {
    {"__reduce__", frame_reduce, METH_NOARGS, RC_DOC_Frame___reduce__},
    {"release", frame_release, METH_NOARGS, RC_DOC_Frame_release},
    {"view", frame_view, METH_NOARGS, RC_DOC_Frame_view},
    {"keys", frame_keys, METH_NOARGS, RC_DOC_Frame_keys},
    {"__enter__", frame_enter, METH_NOARGS, RC_DOC_Frame___enter__},
    {"__exit__", rc_py_frame_exit, METH_VARARGS, RC_DOC_Frame___exit__},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef frame_members[] = {
    {"position", T_ULONGLONG, offsetof(struct frame, frame.position), READONLY,
     RC_DOC_Frame_position},
    {"kind", T_USHORT, offsetof(struct frame, frame.kind), READONLY, RC_DOC_Frame_kind},
    {"tag", T_UINT, offsetof(struct frame, tag), READONLY, RC_DOC_Frame_tag},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef frame_properties[] = {
    {"hashes", get_hashes, NULL, RC_DOC_Frame_hashes, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot frame_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_Frame},
    {Py_tp_methods, frame_methods},
    {Py_tp_members, frame_members},
    {Py_tp_repr, frame_repr},
    {Py_tp_traverse, frame_traverse},
    {Py_tp_dealloc, frame_dealloc},
    {Py_bf_getbuffer, frame_get_buffer},
    {Py_bf_releasebuffer, frame_release_buffer},
    {Py_sq_length, frame_length},
    {Py_sq_contains, frame_contains},
    {Py_mp_subscript, frame_item},
    {Py_tp_getset, frame_properties},
    {0, NULL},
};
PyType_Spec rc_py_frame_spec = {
    "ringcast.Frame", sizeof(struct frame), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC, frame_slots};
