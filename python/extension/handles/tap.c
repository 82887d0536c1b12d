/* SPDX-License-Identifier: Apache-2.0 */
/* Tap: observes a ring without blocking the writer. */
#include "python/extension/codec/decode.h"
#include "python/extension/handles/status.h"
#include "python/extension/handles/tap.h"

#include "python/docstrings.h"

#include <unistd.h>

#include <structmember.h>

struct tap {
  PyObject_HEAD ringcast_tap *tap; /* NULL: closed */
  PyObject *handle;
  PyObject *classes; /* classes received: the cache of classes.c */
  uint32_t slots;    /* of the ring */
  pid_t pid;
  bool busy, allow_pickle;
  bool has_ended; /* the writer is gone, and every frame was seen */
};

static bool enter(struct tap *self) {
  if (!rc_py_enter(&self->busy, self->pid, "Tap")) return false;
  if (self->tap) return true;
  self->busy = false;
  PyErr_SetString(PyExc_ValueError, "the Tap is closed");
  return false;
}

static void leave(struct tap *self) { self->busy = false; }

/* ---- Attaching -------------------------------------------------------------------------------------------------- */

static int attach(struct tap *self, const char *handle) {
  struct ringcast_info info = {.size = sizeof info};
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_tap_attach(handle, &self->tap);
  Py_END_ALLOW_THREADS
  if (rc == 0) rc = ringcast_tap_info(self->tap, &info);
  if (rc == 0) self->slots = info.readers;
  return rc;
}

static PyObject *tap_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"handle", "allow_pickle", "classes", NULL};
  PyObject *handle, *pickle = Py_None, *classes = Py_None, *allowed;
  const char *text;
  bool allow_pickle;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OO:Tap", names, &handle, &pickle, &classes)) return NULL;
  if (!rc_py_handle_text(type, handle, &text)) return NULL;
  if (!rc_py_classes_allowed(PyType_GetModuleState(type), pickle, classes, &allow_pickle, &allowed)) return NULL;
  struct tap *self = (struct tap *)type->tp_alloc(type, 0);
  if (!self) {
    Py_XDECREF(allowed);
    return NULL;
  }
  self->classes = allowed;
  self->pid = getpid();
  self->allow_pickle = allow_pickle;
  self->handle = rc_py_ref(handle);
  int rc = attach(self, text);
  if (rc == 0) return (PyObject *)self;
  rc_py_raise_of_attach(rc_py_state_of(self), rc, handle, text);
  Py_DECREF(self);
  return NULL;
}

static void tap_dealloc(PyObject *object) {
  struct tap *self = (struct tap *)object;
  PyTypeObject *type = Py_TYPE(object);
  ringcast_tap_close(self->tap);
  Py_XDECREF(self->handle);
  Py_XDECREF(self->classes);
  type->tp_free(object);
  Py_DECREF(type);
}

/* ---- Copying ---------------------------------------------------------------------------------------------------- */

struct arrival {
  ringcast_tap *tap;
  struct ringcast_frame frame;
};

static int try_next(void *context, int64_t timeout_ns, bool Py_UNUSED(has_gil)) {
  struct arrival *call = context;
  return ringcast_tap_next(call->tap, timeout_ns, &call->frame);
}

static PyObject *make_tapped(struct rc_py_state *state, const struct ringcast_frame *frame) {
  PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)frame->bytes);
  if (!bytes) return NULL;
  rc_py_copy(PyBytes_AS_STRING(bytes), frame->data, frame->bytes);
  return PyObject_CallFunction(state->tapped, "KiN", (unsigned long long)frame->position, (int)frame->kind, bytes);
}

/* The next frame's object; `tag` NULL: the frame's bytes, as a TapFrame. The Tap's copy stays until leave. */
static PyObject *receive(struct tap *self, int64_t timeout_ns, uint32_t *tag) {
  if (!enter(self)) return NULL;
  struct rc_py_state *state = rc_py_state_of(self);
  struct arrival call = {.tap = self->tap};
  int rc = rc_py_wait(try_next, &call, timeout_ns);
  self->has_ended = rc == -EPIPE;
  const struct rc_py_decode_options options = {.classes = &self->classes, .allow_pickle = self->allow_pickle};
  PyObject *object = rc < 0 ? rc_py_raise(state, rc)
                     : tag  ? rc_py_decode(state, &call.frame, &options, tag)
                            : make_tapped(state, &call.frame);
  leave(self);
  return object;
}

static PyObject *tap_recv(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag;
  if (!rc_py_timeout_argument("recv", args, count, keywords, &timeout_ns)) return NULL;
  return receive((struct tap *)object, timeout_ns, &tag);
}

static PyObject *tap_recv_tagged(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag;
  if (!rc_py_timeout_argument("recv_tagged", args, count, keywords, &timeout_ns)) return NULL;
  PyObject *received = receive((struct tap *)object, timeout_ns, &tag);
  return received ? Py_BuildValue("(NI)", received, (unsigned)tag) : NULL;
}

static PyObject *tap_next(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  int64_t timeout_ns;
  if (!rc_py_timeout_argument("next", args, count, keywords, &timeout_ns)) return NULL;
  return receive((struct tap *)object, timeout_ns, NULL);
}

static PyObject *tap_iternext(PyObject *object) {
  struct rc_py_state *state = rc_py_state_of(object);
  uint32_t tag;
  struct tap *self = (struct tap *)object;
  PyObject *received = receive(self, RINGCAST_FOREVER, &tag);
  if (received || !self->has_ended || !PyErr_ExceptionMatches(state->writer_gone)) return received;
  PyErr_Clear(); /* NULL without an exception: the end */
  return NULL;
}

/* ---- Looking ---------------------------------------------------------------------------------------------------- */

static PyObject *tap_lost(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct tap *self = (struct tap *)object;
  uint64_t bytes, gaps;
  if (!enter(self)) return NULL;
  int rc = ringcast_tap_lost(self->tap, &bytes, &gaps);
  leave(self);
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  return PyObject_CallFunction(rc_py_state_of(self)->lost, "KK", (unsigned long long)bytes, (unsigned long long)gaps);
}

static PyObject *tap_info(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct tap *self = (struct tap *)object;
  struct ringcast_info info = {.size = sizeof info};
  if (!enter(self)) return NULL;
  int rc = ringcast_tap_info(self->tap, &info);
  leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_info(rc_py_state_of(self), &info);
}

static PyObject *tap_stats(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct tap *self = (struct tap *)object;
  struct ringcast_stats stats = {.size = sizeof stats};
  if (!enter(self)) return NULL;
  int rc = ringcast_tap_stats(self->tap, &stats);
  leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_stats(rc_py_state_of(self), &stats);
}

static PyObject *tap_peers(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct tap *self = (struct tap *)object;
  if (!enter(self)) return NULL;
  struct ringcast_peer *peers = rc_py_new_peers(self->slots);
  int count = peers ? ringcast_tap_peers(self->tap, peers, self->slots) : 0;
  leave(self);
  if (!peers) return PyErr_NoMemory();
  PyObject *list =
      count < 0 ? rc_py_raise(rc_py_state_of(self), count) : rc_py_peers(rc_py_state_of(self), peers, count);
  PyMem_Free(peers);
  return list;
}

/* ---- Closing ---------------------------------------------------------------------------------------------------- */

static PyObject *tap_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct tap *self = (struct tap *)object;
  if (!self->tap) Py_RETURN_NONE;
  if (!rc_py_enter(&self->busy, self->pid, "Tap")) return NULL;
  ringcast_tap_close(self->tap);
  self->tap = NULL;
  leave(self);
  Py_RETURN_NONE;
}

static PyObject *tap_reduce(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(unused)) {
  PyErr_SetString(PyExc_TypeError, "a Tap can't go to another process, nor be copied: pass tap.handle, and make a "
                                   "Tap(handle) there");
  return NULL;
}

static PyObject *tap_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  if (((struct tap *)object)->tap) return rc_py_ref(object);
  PyErr_SetString(PyExc_ValueError, "the Tap is closed");
  return NULL;
}

static PyObject *tap_exit(PyObject *object, PyObject *Py_UNUSED(args)) { return tap_close(object, NULL); }

static PyObject *tap_repr(PyObject *object) {
  struct tap *self = (struct tap *)object;
  return PyUnicode_FromFormat("<ringcast.Tap %R, %s>", self->handle, self->tap ? "open" : "closed");
}

static PyObject *get_closed(PyObject *object, void *Py_UNUSED(closure)) {
  return PyBool_FromLong(!((struct tap *)object)->tap);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef tap_methods[] = {
    {"recv", FAST(tap_recv), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Tap_recv},
    {"recv_tagged", FAST(tap_recv_tagged), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Tap_recv_tagged},
    {"next", FAST(tap_next), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Tap_next},
    {"lost", tap_lost, METH_NOARGS, RC_DOC_Tap_lost},
    {"info", tap_info, METH_NOARGS, RC_DOC_Tap_info},
    {"stats", tap_stats, METH_NOARGS, RC_DOC_Tap_stats},
    {"peers", tap_peers, METH_NOARGS, RC_DOC_Tap_peers},
    {"close", tap_close, METH_NOARGS, RC_DOC_Tap_close},
    {"__reduce__", tap_reduce, METH_NOARGS, RC_DOC_Tap___reduce__},
    {"__enter__", tap_enter, METH_NOARGS, RC_DOC_Tap___enter__},
    {"__exit__", tap_exit, METH_VARARGS, RC_DOC_Tap___exit__},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef tap_members[] = {
    {"handle", T_OBJECT_EX, offsetof(struct tap, handle), READONLY, RC_DOC_Tap_handle},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef tap_properties[] = {
    {"closed", get_closed, NULL, RC_DOC_Tap_closed, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot tap_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_Tap}, {Py_tp_new, tap_new},
    {Py_tp_dealloc, tap_dealloc},    {Py_tp_methods, tap_methods},
    {Py_tp_members, tap_members},    {Py_tp_getset, tap_properties},
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, tap_iternext},
    {Py_tp_repr, tap_repr},          {0, NULL},
};
PyType_Spec rc_py_tap_spec = {"ringcast.Tap", sizeof(struct tap), 0, Py_TPFLAGS_DEFAULT, tap_slots};
