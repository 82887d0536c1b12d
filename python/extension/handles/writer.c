/* SPDX-License-Identifier: Apache-2.0 */
/* Writer: makes a ring and sends through it. */
#include "python/extension/handles/writer.h"

#include "channel/liveness.h"
#include "python/extension/errors.h"
#include "python/extension/handles/status.h"

#include "ringcast/estimate.h"

#include "python/docstrings.h"

#include <structmember.h>

/* ---- Making ---------------------------------------------------------------------------------- */

static int open_ring(struct rc_py_writer *self, const struct ringcast_writer_options *options) {
  int rc;
  self->info.size = sizeof self->info;
  Py_BEGIN_ALLOW_THREADS /* the kernel clears all of the memory now */
  rc = ringcast_writer_create_ex(options, &self->writer);
  Py_END_ALLOW_THREADS
  self->device.owner = self->writer;
  if (rc == 0) rc = ringcast_writer_info(self->writer, &self->info);
  if (rc < 0) return rc;
  self->base.ring_name = self->info.name;
  self->base.text = PyUnicode_FromString(ringcast_writer_handle(self->writer));
  return self->base.text ? 0 : RC_PY_RAISED;
}

/* `checked`: the result of rc_py_checked. */
static struct rc_py_writer *new_writer(PyTypeObject *type, PyObject *checked,
                                       struct ringcast_writer_options *options) {
  unsigned long long capacity, spill_bytes, gpu_pool_bytes;
  long long spin_ns, slow_ns;
  PyObject *pickle;
  bool allow_pickle;
  if (!PyArg_ParseTuple(checked, "KIILIIKIILIKIOz", &capacity, &options->readers, &options->memory,
                        &spin_ns, &options->numa, &options->numa_node, &spill_bytes,
                        &options->on_death, &options->on_slow, &slow_ns, &options->wait,
                        &gpu_pool_bytes, &options->ahead, &pickle, &options->name)) {
    return NULL;
  }
  if (!rc_py_allow_pickle(PyType_GetModuleState(type), pickle, &allow_pickle)) return NULL;
  options->capacity = capacity;
  options->spill_bytes = spill_bytes;
  options->spin_ns = spin_ns;
  options->slow_ns = slow_ns;
  struct rc_py_writer *self = rc_py_handle_new(type, allow_pickle);
  if (!self) return NULL;
  self->device.state = PyType_GetModuleState(type);
  self->device.pool_bytes = gpu_pool_bytes;
  self->takes_cuda = true;
  self->sent = -1;
  if (options->on_slow == RINGCAST_FAIL) self->fail_ns = slow_ns;
  return self;
}

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  struct ringcast_writer_options options = {.size = sizeof options};
  PyObject *checked = rc_py_checked("writer", args, keywords);
  if (!checked) return NULL;
  struct rc_py_writer *self = new_writer(type, checked, &options);
  if (self) {
    int rc = open_ring(self, &options);
    if (rc < 0) {
      rc_py_raise(rc_py_state_of(self), rc);
      Py_CLEAR(self);
    }
  }
  Py_DECREF(checked); /* holds the name */
  return (PyObject *)self;
}

static void writer_dealloc(PyObject *object) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject_GC_UnTrack(object);
  rc_py_watch_close(&self->base);
  rc_py_gpu_writer_shut(&self->device);
  ringcast_writer_close(self->writer);
  rc_py_handle_free(object);
}

/* ---- The device ------------------------------------------------------------------------------ */

static PyObject *writer_empty(PyObject *object, PyObject *args, PyObject *keywords) {
  static char *names[] = {"shape", "dtype", "device", NULL};
  struct rc_py_writer *writer = (struct rc_py_writer *)object;
  struct rc_py_state *state = rc_py_state_of(writer);
  PyObject *shape, *dtype, *device = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|O:empty", names, &shape, &dtype, &device)) {
    return NULL;
  }
  PyObject *plan = rc_py_device_call(state, "plan_empty", "(OOO)", shape, dtype, device);
  if (!plan) return NULL;
  int ordinal;
  unsigned long long bytes, stream;
  PyObject *capsule = NULL;
  PyObject *tensor = NULL;
  if (PyArg_ParseTuple(plan, "iKKO", &ordinal, &bytes, &stream, &shape) &&
      rc_py_writer_enter(writer)) {
    if (bytes > 0)
      capsule = rc_py_gpu_allocate(&writer->device, ordinal, bytes, (void *)(uintptr_t)stream);
    else capsule = Py_NewRef(Py_None);
    rc_py_writer_leave(writer);
  }
  if (capsule) {
    tensor = rc_py_device_call(state, "make_empty", "(OOOi)", capsule, shape, dtype, ordinal);
  }
  Py_XDECREF(capsule);
  Py_DECREF(plan); /* which holds the shape */
  return tensor;
}

static PyObject *writer_gpu(PyObject *object, void *Py_UNUSED(closure)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct ringcast_gpu_info info = {.size = sizeof info};
  if (!self->device.gpu) Py_RETURN_NONE;
  if (!rc_py_writer_enter(self)) return NULL;
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_writer_info(self->device.gpu, &info);
  Py_END_ALLOW_THREADS
  rc_py_writer_leave(self);
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  return rc_py_gpu_info(rc_py_state_of(self), &info);
}

/* ---- Readers --------------------------------------------------------------------------------- */

struct attendance {
  ringcast_writer *writer;
  uint32_t count;
};

static int try_wait_readers(void *context, int64_t timeout_ns, bool Py_UNUSED(has_gil)) {
  struct attendance *attendance = context;
  return ringcast_writer_wait_readers(attendance->writer, attendance->count, timeout_ns);
}

static PyObject *writer_wait_readers(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                     PyObject *keywords) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  int64_t timeout_ns;
  uint64_t wanted;
  if (!rc_py_amount_arguments("wait_readers", args, count, keywords, UINT32_MAX, &wanted,
                              &timeout_ns)) {
    return NULL;
  }
  if (!rc_py_writer_enter(self)) return NULL;
  struct attendance attendance = {.writer = self->writer, .count = (uint32_t)wanted};
  int rc = rc_py_wait(try_wait_readers, &attendance, timeout_ns);
  rc_py_writer_leave(self);
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  return PyLong_FromLong(rc);
}

static PyObject *writer_peers(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!rc_py_writer_enter(self)) return NULL;
  struct ringcast_peer *peers = rc_py_peers_new(self->info.readers);
  int count = 0;
  if (peers) count = ringcast_writer_peers(self->writer, peers, self->info.readers);
  rc_py_writer_leave(self);
  return rc_py_peers(rc_py_state_of(self), peers, count);
}

static PyObject *writer_check(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct ringcast_peer peer = {.size = sizeof peer};
  if (!rc_py_writer_enter(self)) return NULL;
  int rc = ringcast_writer_check(self->writer, &peer);
  rc_py_writer_leave(self);
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  if (rc == 0) Py_RETURN_NONE;
  return rc_py_peer(rc_py_state_of(self), &peer);
}

static PyObject *descriptor_of(PyObject *object, int (*get)(ringcast_writer *writer)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!rc_py_writer_enter(self)) return NULL;
  int fd = get(self->writer);
  rc_py_writer_leave(self);
  if (fd < 0) return rc_py_raise(rc_py_state_of(self), fd);
  return PyLong_FromLong(fd);
}

static PyObject *writer_fileno(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return descriptor_of(object, ringcast_writer_fd);
}

static PyObject *writer_room_fileno(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return descriptor_of(object, ringcast_writer_room_fd);
}

/* ---- Estimates ------------------------------------------------------------------------------- */

PyObject *rc_py_add_size(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer history;
  unsigned long long bytes;
  if (!PyArg_ParseTuple(args, "w*K:add_size", &history, &bytes)) return NULL;
  PyObject *result = NULL;
  if (history.len == sizeof(struct ringcast_sizes)) {
    result = PyLong_FromUnsignedLongLong(ringcast_sizes_add(history.buf, bytes));
  } else {
    PyErr_Format(PyExc_ValueError, "a history has %zu bytes, not %zd",
                 sizeof(struct ringcast_sizes), history.len);
  }
  PyBuffer_Release(&history);
  return result;
}

/* ---- Closing, looking ------------------------------------------------------------------------ */

static PyObject *writer_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (self->base.closed) Py_RETURN_NONE;
  if (!rc_py_writer_enter(self)) return NULL;
  bool may_close = rc_py_writer_may_end(self, "close the Writer");
  if (may_close) rc_py_watch_close(&self->base); /* runs code, which may take a memoryview */
  may_close = may_close && rc_py_writer_may_end(self, "close the Writer");
  if (may_close) {
    ringcast_writer *writer = self->writer;
    self->writer = NULL;
    self->base.closed = true;
    self->open_span.is_open = false;
    rc_py_gpu_writer_shut(&self->device);
    ringcast_writer_close(writer);
  }
  rc_py_writer_leave(self);
  return may_close ? Py_NewRef(Py_None) : NULL;
}

static PyObject *writer_cancel(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!rc_py_handle_check(&self->base)) return NULL;
  /* close can't run meanwhile: the calling thread has the GIL. */
  ringcast_writer_cancel(self->writer);
  Py_RETURN_NONE;
}

static PyObject *writer_info(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct ringcast_info info = {.size = sizeof info};
  if (!rc_py_writer_enter(self)) return NULL;
  int rc = ringcast_writer_info(self->writer, &info);
  rc_py_writer_leave(self);
  return rc_py_info(rc_py_state_of(self), &info, rc);
}

static PyObject *writer_stats(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct ringcast_stats stats = {.size = sizeof stats};
  if (!rc_py_writer_enter(self)) return NULL;
  int rc = ringcast_writer_stats(self->writer, &stats);
  rc_py_writer_leave(self);
  return rc_py_stats(rc_py_state_of(self), &stats, rc);
}

static PyObject *writer_memory(PyObject *object, void *Py_UNUSED(closure)) {
  return rc_py_memory(&((struct rc_py_writer *)object)->info);
}

static PyObject *writer_repr(PyObject *object) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  return rc_py_handle_repr(&self->base, &self->info);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef writer_methods[] = {
    {"send", FAST(rc_py_writer_send), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Writer_send},
    {"send_bytes", FAST(rc_py_writer_send_bytes), METH_FASTCALL | METH_KEYWORDS,
     RC_DOC_Writer_send_bytes},
    {"send_many", FAST(rc_py_writer_send_many), METH_FASTCALL | METH_KEYWORDS,
     RC_DOC_Writer_send_many},
    {"_send_error", FAST(rc_py_writer_send_error), METH_FASTCALL, NULL},
    {"_compose", FAST(rc_py_writer_compose), METH_FASTCALL, NULL},
    {"_offer", FAST(rc_py_writer_offer), METH_FASTCALL, NULL},
    {"room_fileno", writer_room_fileno, METH_NOARGS, RC_DOC_Writer_room_fileno},
    {"reserve", FAST(rc_py_writer_reserve), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Writer_reserve},
    {"commit", FAST(rc_py_writer_commit), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Writer_commit},
    {"abort", rc_py_writer_abort, METH_NOARGS, RC_DOC_Writer_abort},
    {"wait_readers", FAST(writer_wait_readers), METH_FASTCALL | METH_KEYWORDS,
     RC_DOC_Writer_wait_readers},
    {"peers", writer_peers, METH_NOARGS, RC_DOC_Writer_peers},
    {"check", writer_check, METH_NOARGS, RC_DOC_Writer_check},
    {"fileno", writer_fileno, METH_NOARGS, RC_DOC_Writer_fileno},
    {"empty", FAST(writer_empty), METH_VARARGS | METH_KEYWORDS, RC_DOC_Writer_empty},
    {"cancel", writer_cancel, METH_NOARGS, RC_DOC_Writer_cancel},
    {"__enter__", rc_py_handle_block, METH_NOARGS, RC_DOC_Writer___enter__},
    {"__exit__", rc_py_handle_exit, METH_VARARGS, RC_DOC_Writer___exit__},
    {"__reduce__", rc_py_handle_reduce, METH_NOARGS, RC_DOC_Writer___reduce__},
    {"info", writer_info, METH_NOARGS, RC_DOC_Writer_info},
    {"stats", writer_stats, METH_NOARGS, RC_DOC_Writer_stats},
    {"close", writer_close, METH_NOARGS, RC_DOC_Writer_close},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef writer_members[] = {
    {"handle", T_OBJECT_EX, offsetof(struct rc_py_writer, base.text), READONLY,
     RC_DOC_Writer_handle},
    {"name", T_STRING_INPLACE, offsetof(struct rc_py_writer, info.name), READONLY,
     RC_DOC_Writer_name},
    {"closed", T_BOOL, offsetof(struct rc_py_writer, base.closed), READONLY, RC_DOC_Writer_closed},
    {"capacity", T_ULONGLONG, offsetof(struct rc_py_writer, info.capacity), READONLY,
     RC_DOC_Writer_capacity},
    {"_allow_pickle", T_BOOL, offsetof(struct rc_py_writer, base.allow_pickle), READONLY, NULL},
    {"_takes_cuda", T_BOOL, offsetof(struct rc_py_writer, takes_cuda), 0, NULL},
    {"_value_failed", T_BOOL, offsetof(struct rc_py_writer, base.value_failed), READONLY, NULL},
    {"_is_full", T_BOOL, offsetof(struct rc_py_writer, is_full), READONLY, NULL},
    {"_sent", T_LONGLONG, offsetof(struct rc_py_writer, sent), READONLY, NULL},
    {"_watch", T_OBJECT, offsetof(struct rc_py_writer, base.watch), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* How many readers the writer has found gone, or has evicted; of a closed one: 0. */
static PyObject *writer_departures(PyObject *object, void *Py_UNUSED(closure)) {
  const struct rc_py_writer *self = (struct rc_py_writer *)object;
  uint64_t departures = 0;
  if (self->writer) departures = rc_writer_departures(self->writer);
  return PyLong_FromUnsignedLongLong(departures);
}

static PyGetSetDef writer_properties[] = {
    {"_departures", writer_departures, NULL, NULL, NULL},
    {"gpu", writer_gpu, NULL, RC_DOC_Writer_gpu, NULL},
    {"memory", writer_memory, NULL, RC_DOC_Writer_memory, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_Writer},
    {Py_tp_new, writer_new},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, writer_methods},
    {Py_tp_members, writer_members},
    {Py_tp_getset, writer_properties},
    {Py_tp_repr, writer_repr},
    {Py_tp_traverse, rc_py_handle_traverse},
    {Py_tp_clear, rc_py_handle_clear},
    {Py_tp_finalize, rc_py_handle_finalize},
    {0, NULL},
};
PyType_Spec rc_py_writer_spec = {"ringcast.Writer", sizeof(struct rc_py_writer), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, writer_slots};
