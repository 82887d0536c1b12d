/* SPDX-License-Identifier: Apache-2.0 */
/* Tap: looks at a ring from outside, at no cost to the writer. */
#include "python/extension/handles/status.h"

#include "python/extension/call.h"
#include "python/extension/codec/decode.h"
#include "python/extension/errors.h"

#include "python/docstrings.h"
#include "ringcast/inspect.h"

#include <structmember.h>

struct tap {
  struct rc_py_handle base;
  ringcast_tap *tap; /* NULL: closed */
  PyObject *classes; /* classes received: the cache of classes.c */
  uint32_t slots;    /* of the ring */
  bool has_ended;    /* the writer is gone, and every frame was seen */
};

/* ---- Attaching ------------------------------------------------------------------------------- */

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

/* `checked`: the result of rc_py_checked. */
static struct tap *new_tap(PyTypeObject *type, PyObject *checked) {
  struct rc_py_state *state = PyType_GetModuleState(type);
  PyObject *handle, *pickle, *classes, *allowed;
  const char *text;
  bool allow_pickle;
  if (!PyArg_ParseTuple(checked, "OsOO", &handle, &text, &pickle, &classes)) return NULL;
  if (!rc_py_classes_allowed(state, pickle, classes, &allow_pickle, &allowed)) return NULL;
  struct tap *self = rc_py_handle_new(type, allow_pickle);
  if (!self) {
    Py_XDECREF(allowed);
    return NULL;
  }
  self->base.text = Py_NewRef(handle);
  self->classes = allowed;
  int rc = attach(self, text);
  if (rc < 0) {
    rc_py_raise_of_attach(state, rc, handle, text);
    Py_CLEAR(self);
  }
  return self;
}

static PyObject *tap_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  PyObject *checked = rc_py_checked("tap", args, keywords);
  if (!checked) return NULL;
  struct tap *self = new_tap(type, checked);
  Py_DECREF(checked); /* holds the handle */
  return (PyObject *)self;
}

static void tap_dealloc(PyObject *object) {
  struct tap *self = (struct tap *)object;
  ringcast_tap_close(self->tap);
  Py_XDECREF(self->classes);
  rc_py_handle_free(object);
}

/* ---- Copying --------------------------------------------------------------------------------- */

struct arrival {
  ringcast_tap *tap;
  struct ringcast_frame frame;
};

static int try_next(void *context, int64_t timeout_ns, bool Py_UNUSED(has_gil)) {
  struct arrival *arrival = context;
  return ringcast_tap_next(arrival->tap, timeout_ns, &arrival->frame);
}

static PyObject *make_tapped(struct rc_py_state *state, const struct ringcast_frame *frame) {
  PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)frame->bytes);
  if (!bytes) return NULL;
  rc_py_copy_maybe_without_gil(false, PyBytes_AS_STRING(bytes), frame->data, frame->bytes);
  return PyObject_CallFunction(state->tapped, "KiN", (unsigned long long)frame->position,
                               (int)frame->kind, bytes);
}

/* The next frame's object; `tag` NULL: the frame's bytes, as a TapFrame. The Tap's copy stays until
 * leave. */
static PyObject *receive(struct tap *self, int64_t timeout_ns, uint32_t *tag) {
  if (!rc_py_handle_enter(&self->base)) return NULL;
  struct rc_py_state *state = rc_py_state_of(self);
  struct arrival arrival = {.tap = self->tap};
  int rc = rc_py_wait(try_next, &arrival, timeout_ns);
  self->has_ended = rc == -EPIPE;
  const struct rc_py_decode_options options = {.classes = &self->classes,
                                               .allow_pickle = self->base.allow_pickle};
  PyObject *object = NULL;
  if (rc < 0) rc_py_raise(state, rc);
  else if (tag) object = rc_py_decode(state, &arrival.frame, &options, tag);
  else object = make_tapped(state, &arrival.frame);
  rc_py_handle_leave(&self->base);
  return object;
}

static PyObject *tap_recv(PyObject *object, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag = 0;
  if (!rc_py_timeout_argument("recv", args, count, keywords, &timeout_ns)) return NULL;
  return receive((struct tap *)object, timeout_ns, &tag);
}

static PyObject *tap_recv_tagged(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                 PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag = 0;
  if (!rc_py_timeout_argument("recv_tagged", args, count, keywords, &timeout_ns)) return NULL;
  PyObject *received = receive((struct tap *)object, timeout_ns, &tag);
  return received ? Py_BuildValue("(NI)", received, (unsigned)tag) : NULL;
}

static PyObject *tap_next(PyObject *object, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords) {
  int64_t timeout_ns;
  if (!rc_py_timeout_argument("next", args, count, keywords, &timeout_ns)) return NULL;
  return receive((struct tap *)object, timeout_ns, NULL);
}

static PyObject *tap_iternext(PyObject *object) {
  struct rc_py_state *state = rc_py_state_of(object);
  uint32_t tag;
  struct tap *self = (struct tap *)object;
  PyObject *received = receive(self, RINGCAST_FOREVER, &tag);
  if (received) return received;
  rc_py_end_iteration(state, self->has_ended);
  return NULL;
}

/* ---- Looking --------------------------------------------------------------------------------- */

static PyObject *tap_info(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct tap *self = (struct tap *)object;
  struct ringcast_info info = {.size = sizeof info};
  if (!rc_py_handle_enter(&self->base)) return NULL;
  int rc = ringcast_tap_info(self->tap, &info);
  rc_py_handle_leave(&self->base);
  return rc_py_info(rc_py_state_of(self), &info, rc);
}

static PyObject *tap_stats(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct tap *self = (struct tap *)object;
  struct ringcast_stats stats = {.size = sizeof stats};
  if (!rc_py_handle_enter(&self->base)) return NULL;
  int rc = ringcast_tap_stats(self->tap, &stats);
  rc_py_handle_leave(&self->base);
  return rc_py_stats(rc_py_state_of(self), &stats, rc);
}

static PyObject *tap_lost(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct tap *self = (struct tap *)object;
  struct rc_py_state *state = rc_py_state_of(self);
  uint64_t bytes, gaps;
  if (!rc_py_handle_enter(&self->base)) return NULL;
  int rc = ringcast_tap_lost(self->tap, &bytes, &gaps);
  rc_py_handle_leave(&self->base);
  if (rc < 0) return rc_py_raise(state, rc);
  return PyObject_CallFunction(state->tap_lost, "KK", (unsigned long long)bytes,
                               (unsigned long long)gaps);
}

static PyObject *tap_repr(PyObject *object) {
  return rc_py_handle_repr(&((struct tap *)object)->base, NULL);
}

static PyObject *tap_peers(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct tap *self = (struct tap *)object;
  if (!rc_py_handle_enter(&self->base)) return NULL;
  struct ringcast_peer *peers = rc_py_peers_new(self->slots);
  int count = peers ? ringcast_tap_peers(self->tap, peers, self->slots) : 0;
  rc_py_handle_leave(&self->base);
  return rc_py_peers(rc_py_state_of(self), peers, count);
}

/* ---- Closing --------------------------------------------------------------------------------- */

static PyObject *tap_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct tap *self = (struct tap *)object;
  if (self->base.closed) Py_RETURN_NONE;
  if (!rc_py_handle_enter(&self->base)) return NULL;
  ringcast_tap_close(self->tap);
  self->tap = NULL;
  self->base.closed = true;
  rc_py_handle_leave(&self->base);
  Py_RETURN_NONE;
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef tap_methods[] = {
    {"recv", FAST(tap_recv), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Tap_recv},
    {"recv_tagged", FAST(tap_recv_tagged), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Tap_recv_tagged},
    {"next", FAST(tap_next), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Tap_next},
    {"__enter__", rc_py_handle_block, METH_NOARGS, RC_DOC_Tap___enter__},
    {"__exit__", rc_py_handle_exit, METH_VARARGS, RC_DOC_Tap___exit__},
    {"__reduce__", rc_py_handle_reduce, METH_NOARGS, RC_DOC_Tap___reduce__},
    {"info", tap_info, METH_NOARGS, RC_DOC_Tap_info},
    {"stats", tap_stats, METH_NOARGS, RC_DOC_Tap_stats},
    {"lost", tap_lost, METH_NOARGS, RC_DOC_Tap_lost},
    {"peers", tap_peers, METH_NOARGS, RC_DOC_Tap_peers},
    {"close", tap_close, METH_NOARGS, RC_DOC_Tap_close},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef tap_members[] = {
    {"handle", T_OBJECT_EX, offsetof(struct tap, base.text), READONLY, RC_DOC_Tap_handle},
    {"closed", T_BOOL, offsetof(struct tap, base.closed), READONLY, RC_DOC_Tap_closed},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot tap_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_Tap}, {Py_tp_new, tap_new},           {Py_tp_dealloc, tap_dealloc},
    {Py_tp_methods, tap_methods},    {Py_tp_members, tap_members},   {Py_tp_repr, tap_repr},
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, tap_iternext}, {0, NULL},
};
PyType_Spec rc_py_tap_spec = {"ringcast.Tap", sizeof(struct tap), 0, Py_TPFLAGS_DEFAULT, tap_slots};
