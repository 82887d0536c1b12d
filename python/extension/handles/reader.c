/* SPDX-License-Identifier: Apache-2.0 */
/* Reader: attaches to a ring and receives from it. */
#include "channel/reader.h"
#include "python/extension/handles/frame.h"
#include "python/extension/handles/gpu.h"
#include "python/extension/handles/receive.h"
#include "python/extension/handles/status.h"

#include "python/docstrings.h"
#include "ringcast/inspect.h"

#include <stdlib.h>
#include <unistd.h>

#include <structmember.h>

/* ---- Attaching ------------------------------------------------------------------------------- */

static int attach(struct rc_py_reader *self, const char *handle,
                  const struct ringcast_reader_options *options) {
  int rc;
  self->info.size = sizeof self->info;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_reader_attach_ex(handle, options, &self->reader);
  Py_END_ALLOW_THREADS
  if (rc == 0) rc_reader_warm_by(self->reader, rc_py_warm, self);
  if (rc == 0) rc = ringcast_reader_info(self->reader, &self->info);
  self->holder.ring_frame = self->info.ring_frame;
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
  if (!rc_py_gpu_map_is_known(PyType_GetModuleState(type), &map)) return NULL;
  if (!rc_py_classes_allowed(PyType_GetModuleState(type), pickle, classes, &allow_pickle, &allowed))
    return NULL;
  struct rc_py_reader *self = rc_py_handle_new(type, allow_pickle);
  if (!self) {
    Py_XDECREF(allowed);
    return NULL;
  }
  self->base.text = rc_py_ref(handle);
  if (options->name)
    ringcast_printable(options->name, strlen(options->name), self->base.name,
                       sizeof self->base.name);
  self->classes = allowed;
  self->retains = retains;
  self->starts_latest = options->start == RINGCAST_START_LATEST;
  rc_py_gpu_holder_init(&self->holder, map);
  return self;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  struct ringcast_reader_options options = {.size = sizeof options};
  const char *text;
  PyObject *checked = rc_py_checked("reader", args, keywords);
  struct rc_py_reader *self = checked ? new_reader(type, checked, &options, &text) : NULL;
  int rc = self ? attach(self, text, &options) : 0;
  if (rc != 0) rc_py_raise_of_attach(rc_py_state_of(self), rc, self->base.text, text);
  Py_XDECREF(checked); /* holds the handle and the name */
  if (rc != 0) Py_CLEAR(self);
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
  rc_py_gpu_reader_shut(self);
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
  shut(self, self->retains || (self->gpu && self->gpu->reader));
  if (self->gpu) Py_XDECREF(self->gpu->why);
  PyMem_Free(self->gpu);
  free(self->warming);
  Py_XDECREF(self->classes);
  rc_py_handle_free(object);
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static PyObject *reader_recv(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag;
  if (!rc_py_timeout_argument("recv", args, count, keywords, &timeout_ns)) return NULL;
  return rc_py_receive((struct rc_py_reader *)object, timeout_ns, &tag, false);
}

static PyObject *reader_recv_tagged(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                    PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag;
  if (!rc_py_timeout_argument("recv_tagged", args, count, keywords, &timeout_ns)) return NULL;
  PyObject *received = rc_py_receive((struct rc_py_reader *)object, timeout_ns, &tag, false);
  return received ? Py_BuildValue("(NI)", received, (unsigned)tag) : NULL;
}

static PyObject *reader_iternext(PyObject *object) {
  struct rc_py_state *state = rc_py_state_of(object);
  uint32_t tag;
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  PyObject *received = rc_py_receive(self, RINGCAST_FOREVER, &tag, false);
  /* Decoding may have raised the WriterGone of another Reader, or the device part its own
   * WriterGone. */
  if (received) return received;
  if (self->has_ended && PyErr_ExceptionMatches(state->writer_gone))
    PyErr_Clear(); /* NULL, nothing raised: the end */
  else rc_py_end_by_none();
  return NULL;
}

/* _take(tagged): recv(0) or recv_tagged(0) for a task, but for state->nothing if nothing is
 * there. */
static PyObject *reader_take(PyObject *object, PyObject *tagged) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct rc_py_state *state = rc_py_state_of(self);
  uint32_t tag;
  PyObject *turn = rc_py_pass_turn(&self->base);
  if (turn) return turn;
  PyObject *received = rc_py_receive(self, 0, &tag, true);
  return received && received != state->nothing && tagged == Py_True
             ? Py_BuildValue("(NI)", received, (unsigned)tag)
             : received;
}

/* _more(received, most): appends to the list what is there. */
static PyObject *reader_more(PyObject *object, PyObject *const *args, Py_ssize_t count) {
  uint64_t most;
  if (count != 2 || !PyList_CheckExact(args[0]))
    return PyErr_Format(PyExc_TypeError, "_more() takes a list and an int");
  if (!rc_py_integer("most", args[1], 0, PY_SSIZE_T_MAX, &most)) return NULL;
  return rc_py_receive_more((struct rc_py_reader *)object, args[0], (Py_ssize_t)most);
}

/* The next frame, as a Frame. `is_view`: the caller decodes it. */
static PyObject *lend(struct rc_py_reader *self, int64_t timeout_ns, bool is_view) {
  if (!rc_py_reader_begin(self)) return NULL;
  struct ringcast_frame lent;
  int rc = rc_py_receive_frame(self, timeout_ns, &lent);
  if (rc >= 0) rc_py_spans_phase(self->base.call, RC_PY_SPAN_DECODE);
  PyObject *frame = rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_frame_new(self, &lent);
  rc_py_watch_after(&self->base, rc);
  if (rc >= 0 && !frame) rc_py_reader_give_back(self, &lent);
  if (rc >= 0 && !is_view) rc_py_spans_frame(self->base.call, lent.position, lent.bytes);
  rc_py_reader_end(self, rc == -EAGAIN);
  return frame;
}

static PyObject *reader_next(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
  int64_t timeout_ns;
  if (!rc_py_timeout_argument("next", args, count, keywords, &timeout_ns)) return NULL;
  return lend((struct rc_py_reader *)object, timeout_ns, false);
}

static PyObject *next_view(struct rc_py_reader *self, int64_t timeout_ns) {
  for (;;) {
    PyObject *frame = lend(self, timeout_ns, true);
    if (!frame) return NULL;
    PyObject *view = rc_py_view_new(self, frame);
    const struct ringcast_frame *lent = rc_py_frame_of(frame);
    rc_py_spans_frame(self->base.call, lent->position, lent->bytes);
    bool skips = !view && rc_py_gpu_skips(self);
    if (!view) rc_py_frame_give_up(frame);
    Py_DECREF(frame);
    if (!skips || PyErr_Occurred()) return view;
  }
}

static PyObject *reader_view(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  int64_t timeout_ns;
  if (!rc_py_timeout_argument("view", args, count, keywords, &timeout_ns)) return NULL;
  rc_py_handle_begin(&self->base); /* to lend and to decode are two calls of the library's, and one
                                      for the spans */
  PyObject *view = next_view(self, timeout_ns);
  rc_py_spans_end(&self->base.call, RC_PY_SPAN_RECV, !view && timeout_ns == 0);
  return view;
}

/* ---- Closing, looking ------------------------------------------------------------------------ */

static PyObject *reader_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (self->base.closed) Py_RETURN_NONE;
  if (!rc_py_reader_enter(self)) return NULL;
  if (self->exports == 0)
    rc_py_watch_close(&self->base); /* runs code, which may take a memoryview */
  bool may_close = self->exports == 0;
  if (may_close) shut(self, true); /* closing may copy retained frames */
  else rc_py_raise_exported(self->exports, "close the Reader", "Frame");
  rc_py_reader_leave(self);
  return may_close ? rc_py_ref(Py_None) : NULL;
}

static PyObject *reader_cancel(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_handle_check(&self->base)) return NULL;
  ringcast_reader_cancel(
      self->reader); /* close can't free the handle meanwhile: the calling thread has the GIL */
  Py_RETURN_NONE;
}

static PyObject *reader_fileno(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_reader_enter(self)) return NULL;
  int fd = ringcast_reader_fd(self->reader);
  return rc_py_reader_finish(self, fd) ? PyLong_FromLong(fd) : NULL;
}

static PyObject *reader_check(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_reader_enter(self)) return NULL;
  return rc_py_reader_finish(self, ringcast_reader_check(self->reader)) ? rc_py_ref(Py_None) : NULL;
}

static PyObject *reader_status(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct rc_py_status status = RC_PY_STATUS;
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_reader_info(self->reader, &status.info);
  if (rc == 0) rc = ringcast_reader_stats(self->reader, &status.stats);
  if (rc == 0) rc = ringcast_reader_lag(self->reader, &status.counts[0]);
  PyObject *told = rc_py_status(rc_py_state_of(self), &status, rc);
  rc_py_reader_leave(self);
  return told;
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef reader_methods[] = {
    {"recv", FAST(reader_recv), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Reader_recv},
    {"recv_tagged", FAST(reader_recv_tagged), METH_FASTCALL | METH_KEYWORDS,
     RC_DOC_Reader_recv_tagged},
    {"_take", reader_take, METH_O, NULL},
    {"_more", FAST(reader_more), METH_FASTCALL, NULL},
    {"next", FAST(reader_next), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Reader_next},
    {"view", FAST(reader_view), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Reader_view},
    {"check", reader_check, METH_NOARGS, RC_DOC_Reader_check},
    {"prepare_gpu", rc_py_reader_prepare_gpu, METH_NOARGS, RC_DOC_Reader_prepare_gpu},
    {"fileno", reader_fileno, METH_NOARGS, RC_DOC_Reader_fileno},
    {"cancel", reader_cancel, METH_NOARGS, RC_DOC_Reader_cancel},
    {"_status", reader_status, METH_NOARGS, NULL},
    {"close", reader_close, METH_NOARGS, RC_DOC_Reader_close},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef reader_members[] = {
    {"handle", T_OBJECT_EX, offsetof(struct rc_py_reader, base.text), READONLY,
     RC_DOC_Reader_handle},
    {"closed", T_BOOL, offsetof(struct rc_py_reader, base.closed), READONLY, RC_DOC_Reader_closed},
    {"_memory", T_UINT, offsetof(struct rc_py_reader, info.memory), READONLY, NULL},
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
    {"gpu", rc_py_reader_gpu, NULL, RC_DOC_Reader_gpu, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_Reader},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_members, reader_members},
    {Py_tp_getset, reader_properties},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, reader_iternext},
    {Py_am_aiter, PyObject_SelfIter},
    {Py_tp_traverse, rc_py_handle_traverse},
    {Py_tp_clear, rc_py_handle_clear},
    {Py_tp_finalize, rc_py_handle_finalize},
    {0, NULL},
};
PyType_Spec rc_py_reader_spec = {"ringcast.Reader", sizeof(struct rc_py_reader), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, reader_slots};
