/* SPDX-License-Identifier: Apache-2.0 */
/* Reader: attaches to a ring and receives from it. */
#include "python/extension/handles/reader.h"

#include "channel/reader.h"
#include "python/extension/errors.h"
#include "python/extension/handles/status.h"

#include "python/docstrings.h"
#include "ringcast/inspect.h"

#include <stdlib.h>

#include <structmember.h>

/* ---- Attaching ------------------------------------------------------------------------------- */

static int attach(struct rc_py_reader *self, const char *handle,
                  const struct ringcast_reader_options *options) {
  int rc;
  self->info.size = sizeof self->info;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_reader_attach_ex(handle, options, &self->reader);
  Py_END_ALLOW_THREADS
  self->device.reader = self->reader;
  if (rc == 0) rc_reader_warm_by(self->reader, rc_py_warm, self);
  if (rc == 0) rc = ringcast_reader_info(self->reader, &self->info);
  self->device.receiver.ring_frame = self->info.ring_frame;
  self->base.ring_name = self->info.name;
  return rc;
}

/* `checked`: the result of rc_py_checked. */
static struct rc_py_reader *new_reader(PyTypeObject *type, PyObject *checked,
                                       struct ringcast_reader_options *options, const char **text) {
  PyObject *handle, *pickle, *classes, *allowed;
  struct rc_py_map map;
  int retains, map_to;
  bool allow_pickle;
  long long spin_ns;
  if (!PyArg_ParseTuple(checked, "OszLIpiiIIIOO", &handle, text, &options->name, &spin_ns,
                        &options->leases, &retains, &map_to, &map.device, &options->wait,
                        &options->start, &options->tag, &pickle, &classes)) {
    return NULL;
  }
  map.to = map_to;
  options->spin_ns = spin_ns;
  options->flags = retains ? RINGCAST_READER_RETAIN : 0;
  struct rc_py_state *state = PyType_GetModuleState(type);
  if (!rc_py_gpu_map_is_known(state, &map)) return NULL;
  if (!rc_py_classes_allowed(state, pickle, classes, &allow_pickle, &allowed)) return NULL;
  struct rc_py_reader *self = rc_py_handle_new(type, allow_pickle);
  if (!self) {
    Py_XDECREF(allowed);
    return NULL;
  }
  self->base.text = Py_NewRef(handle);
  if (options->name) {
    size_t bytes = strlen(options->name);
    ringcast_printable(options->name, bytes, self->base.name, sizeof self->base.name);
  }
  self->classes = allowed;
  self->retains = retains;
  self->device.starts_latest = options->start == RINGCAST_START_LATEST;
  rc_py_gpu_side_init(&self->device, state, map);
  return self;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  struct ringcast_reader_options options = {.size = sizeof options};
  const char *text;
  PyObject *checked = rc_py_checked("reader", args, keywords);
  if (!checked) return NULL;
  struct rc_py_reader *self = new_reader(type, checked, &options, &text);
  if (self) {
    int rc = attach(self, text, &options);
    if (rc != 0) rc_py_raise_of_attach(rc_py_state_of(self), rc, self->base.text, text);
    if (rc != 0) Py_CLEAR(self);
  }
  Py_DECREF(checked); /* holds the handle and the name */
  return (PyObject *)self;
}

/* Closes the Reader: the Reader leaves the ring, and the memory is unmapped when the last array in
 * it has died. The handle is closed first, as other threads may look at the Reader meanwhile. */
static void shut(struct rc_py_reader *self, bool lets_others_run) {
  ringcast_reader *reader = self->reader;
  struct rc_py_hold *hold = self->hold;
  self->hold = NULL;
  self->reader = NULL;
  self->base.closed = true;
  PyThreadState *thread = lets_others_run ? PyEval_SaveThread() : NULL;
  rc_py_gpu_reader_shut(&self->device);
  if (hold) {
    ringcast_reader_leave(reader);
    rc_py_hold_drop(hold);
  } else {
    ringcast_reader_close(reader);
  }
  if (thread) PyEval_RestoreThread(thread);
}

static void reader_dealloc(PyObject *object) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  PyObject_GC_UnTrack(object);
  rc_py_watch_close(&self->base);
  /* closing may wait for a device, or copy retained frames */
  shut(self, self->retains || (self->device.gpu && self->device.gpu->reader));
  rc_py_gpu_side_clear(&self->device);
  free(self->warming);
  Py_XDECREF(self->classes);
  rc_py_handle_free(object);
}

/* ---- The device ------------------------------------------------------------------------------ */

static PyObject *reader_gpu(PyObject *object, void *Py_UNUSED(closure)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct ringcast_gpu_info info = {.size = sizeof info};
  if (!self->reader || !self->device.gpu || !self->device.gpu->reader) Py_RETURN_NONE;
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_gpu_reader_info(self->device.gpu->reader, &info);
  rc_py_reader_leave(self);
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  return rc_py_gpu_info(rc_py_state_of(self), &info);
}

static PyObject *reader_prepare_gpu(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = rc_py_gpu_prepare(&self->device);
  rc_py_reader_leave(self);
  if (rc == -EAGAIN) Py_RETURN_FALSE;
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  Py_RETURN_TRUE;
}

/* ---- Closing, looking ------------------------------------------------------------------------ */

static PyObject *reader_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (self->base.closed) Py_RETURN_NONE;
  if (!rc_py_reader_enter(self)) return NULL;
  /* Closing the watch runs code, which may take a memoryview. */
  if (self->exports == 0) rc_py_watch_close(&self->base);
  bool may_close = self->exports == 0;
  if (may_close) shut(self, true); /* closing may copy retained frames */
  else rc_py_raise_exported(self->exports, "close the Reader", "Frame");
  rc_py_reader_leave(self);
  return may_close ? Py_NewRef(Py_None) : NULL;
}

static PyObject *reader_cancel(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_handle_check(&self->base)) return NULL;
  /* close can't free the handle meanwhile: the calling thread has the GIL. */
  ringcast_reader_cancel(self->reader);
  Py_RETURN_NONE;
}

/* Raises the exception for `rc` if negative, and leaves. False: raised. */
static bool finish(struct rc_py_reader *self, int rc) {
  /* First: giving frames back may change the library's error text. */
  if (rc < 0) rc_py_raise(rc_py_state_of(self), rc);
  rc_py_reader_leave(self);
  return rc >= 0;
}

static PyObject *reader_fileno(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_reader_enter(self)) return NULL;
  int fd = ringcast_reader_fd(self->reader);
  return finish(self, fd) ? PyLong_FromLong(fd) : NULL;
}

static PyObject *reader_check(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_reader_enter(self)) return NULL;
  return finish(self, ringcast_reader_check(self->reader)) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *reader_info(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct ringcast_info info = {.size = sizeof info};
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_reader_info(self->reader, &info);
  return finish(self, rc) ? rc_py_info(rc_py_state_of(self), &info, 0) : NULL;
}

static PyObject *reader_stats(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct ringcast_stats stats = {.size = sizeof stats};
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_reader_stats(self->reader, &stats);
  return finish(self, rc) ? rc_py_stats(rc_py_state_of(self), &stats, 0) : NULL;
}

static PyObject *reader_lag(PyObject *object, void *Py_UNUSED(closure)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  uint64_t lag;
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_reader_lag(self->reader, &lag);
  return finish(self, rc) ? PyLong_FromUnsignedLongLong(lag) : NULL;
}

static PyObject *reader_memory(PyObject *object, void *Py_UNUSED(closure)) {
  return rc_py_memory(&((struct rc_py_reader *)object)->info);
}

static PyObject *reader_repr(PyObject *object) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  return rc_py_handle_repr(&self->base, &self->info);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef reader_methods[] = {
    {"recv", FAST(rc_py_reader_recv), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Reader_recv},
    {"recv_tagged", FAST(rc_py_reader_recv_tagged), METH_FASTCALL | METH_KEYWORDS,
     RC_DOC_Reader_recv_tagged},
    {"_take", rc_py_reader_take, METH_O, NULL},
    {"_more", FAST(rc_py_reader_more), METH_FASTCALL, NULL},
    {"next", FAST(rc_py_reader_next), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Reader_next},
    {"view", FAST(rc_py_reader_view), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Reader_view},
    {"check", reader_check, METH_NOARGS, RC_DOC_Reader_check},
    {"prepare_gpu", reader_prepare_gpu, METH_NOARGS, RC_DOC_Reader_prepare_gpu},
    {"fileno", reader_fileno, METH_NOARGS, RC_DOC_Reader_fileno},
    {"cancel", reader_cancel, METH_NOARGS, RC_DOC_Reader_cancel},
    {"__enter__", rc_py_handle_block, METH_NOARGS, RC_DOC_Reader___enter__},
    {"__exit__", rc_py_handle_exit, METH_VARARGS, RC_DOC_Reader___exit__},
    {"__reduce__", rc_py_handle_reduce, METH_NOARGS, RC_DOC_Reader___reduce__},
    {"info", reader_info, METH_NOARGS, RC_DOC_Reader_info},
    {"stats", reader_stats, METH_NOARGS, RC_DOC_Reader_stats},
    {"close", reader_close, METH_NOARGS, RC_DOC_Reader_close},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef reader_members[] = {
    {"handle", T_OBJECT_EX, offsetof(struct rc_py_reader, base.text), READONLY,
     RC_DOC_Reader_handle},
    {"closed", T_BOOL, offsetof(struct rc_py_reader, base.closed), READONLY, RC_DOC_Reader_closed},
    {"capacity", T_ULONGLONG, offsetof(struct rc_py_reader, info.capacity), READONLY,
     RC_DOC_Reader_capacity},
    {"writer_pid", T_INT, offsetof(struct rc_py_reader, info.writer_pid), READONLY,
     RC_DOC_Reader_writer_pid},
    {"_has_ended", T_BOOL, offsetof(struct rc_py_reader, has_ended), READONLY, NULL},
    {"_value_failed", T_BOOL, offsetof(struct rc_py_reader, base.value_failed), READONLY, NULL},
    {"_watch", T_OBJECT, offsetof(struct rc_py_reader, base.watch), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef reader_properties[] = {
    {"gpu", reader_gpu, NULL, RC_DOC_Reader_gpu, NULL},
    {"lag", reader_lag, NULL, RC_DOC_Reader_lag, NULL},
    {"memory", reader_memory, NULL, RC_DOC_Reader_memory, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_Reader},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_members, reader_members},
    {Py_tp_getset, reader_properties},
    {Py_tp_repr, reader_repr},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, rc_py_reader_iternext},
    {Py_am_aiter, PyObject_SelfIter},
    {Py_tp_traverse, rc_py_handle_traverse},
    {Py_tp_clear, rc_py_handle_clear},
    {Py_tp_finalize, rc_py_handle_finalize},
    {0, NULL},
};
PyType_Spec rc_py_reader_spec = {"ringcast.Reader", sizeof(struct rc_py_reader), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, reader_slots};
