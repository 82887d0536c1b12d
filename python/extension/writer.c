/* SPDX-License-Identifier: Apache-2.0 */
/* Writer: makes a ring and sends through it. */
#include "extension.h"

#include <unistd.h>

#include <structmember.h>

/* Raises ValueError if it is closed, RuntimeError if a call is at work on it. */
static bool enter(struct rc_py_writer *self) {
  if (!rc_py_enter(&self->busy, self->pid, "Writer")) return false;
  if (self->writer) return true;
  self->busy = false;
  PyErr_SetString(PyExc_ValueError, "the Writer is closed");
  return false;
}

static void leave(struct rc_py_writer *self) {
  self->busy = false;
}

/* ---- Making ----------------------------------------------------------------------------------------------------- */

static bool memory_number(const char *name, uint32_t *out) {
  for (uint32_t i = 0; ringcast_memory_name(i); i++) {
    if (strcmp(name, ringcast_memory_name(i)) != 0) continue;
    *out = i;
    return true;
  }
  PyErr_Format(PyExc_ValueError, "memory must be 'auto', 'hugetlb', 'shmem-huge' or 'pages', not '%s'", name);
  return false;
}

static bool make_options(PyObject *args, PyObject *keywords, struct ringcast_writer_options *out) {
  static char *names[] = {"capacity", "readers", "memory", "spin", NULL};
  PyObject *capacity = Py_None, *readers = NULL, *spin = Py_None;
  const char *memory = "auto";
  uint64_t value = 64;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO$sO:Writer", names, &capacity, &readers, &memory, &spin)) {
    return false;
  }
  *out = (struct ringcast_writer_options){.size = sizeof *out};
  if (capacity != Py_None && !rc_py_integer("capacity", capacity, 1, UINT64_MAX >> 1, &out->capacity)) return false;
  if (readers && !rc_py_integer("readers", readers, 1, UINT32_MAX, &value)) return false;
  out->readers = (uint32_t)value;
  return memory_number(memory, &out->memory) && rc_py_spin(spin, &out->spin_ns);
}

static int open_ring(struct rc_py_writer *self, const struct ringcast_writer_options *options) {
  int rc;
  Py_BEGIN_ALLOW_THREADS /* the kernel clears all of the memory now */
      rc = ringcast_writer_create_ex(options, &self->writer);
  Py_END_ALLOW_THREADS if (rc == 0) rc = ringcast_writer_info(self->writer, &self->info);
  if (rc < 0) return rc;
  self->handle = PyUnicode_FromString(ringcast_writer_handle(self->writer));
  return self->handle ? 0 : RC_PY_RAISED;
}

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  struct ringcast_writer_options options;
  if (!make_options(args, keywords, &options)) return NULL;
  struct rc_py_writer *self = (struct rc_py_writer *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->pid = getpid();
  int rc = open_ring(self, &options);
  if (rc == 0) return (PyObject *)self;
  rc_py_raise(rc_py_state_of(self), rc);
  Py_DECREF(self);
  return NULL;
}

static void writer_dealloc(PyObject *object) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyTypeObject *type = Py_TYPE(object);
  ringcast_writer_close(self->writer);
  Py_XDECREF(self->handle);
  type->tp_free(object);
  Py_DECREF(type);
}

/* ---- Sending ---------------------------------------------------------------------------------------------------- */

struct reservation {
  ringcast_writer *writer;
  size_t bytes;
  struct ringcast_span span;
};

static int try_reserve(void *context, int64_t timeout_ns) {
  struct reservation *call = context;
  return ringcast_writer_reserve(call->writer, call->bytes, timeout_ns, &call->span);
}

/* What a call that sends returns: `rc` is what came of it, `bytes` the frame it wanted. */
static PyObject *sent(struct rc_py_writer *self, int rc, uint64_t bytes) {
  return rc < 0 ? rc_py_raise_of_frame(rc_py_state_of(self), rc, &self->info, bytes) : rc_py_ref(Py_None);
}

/* Puts what was measured into the ring. On an error nothing is left open. */
static int send_encoding(struct rc_py_writer *self, struct rc_py_encoding *encoding, int64_t timeout_ns, uint32_t tag) {
  struct reservation call = {.writer = self->writer, .bytes = ringcast_plan_bytes(&encoding->plan)};
  int rc = rc_py_wait(try_reserve, &call, timeout_ns);
  if (rc < 0) return rc;
  size_t bytes;
  rc = rc_py_encoding_write(encoding, &call.span, tag, &bytes);
  if (rc == 0) return ringcast_writer_commit(self->writer, bytes, RINGCAST_KIND_TENSORS);
  ringcast_writer_abort(self->writer);
  rc_py_raise_text(encoding->state, -rc, "the value does not fit the frame that was planned for it (%s)",
                   strerror(-rc));
  return RC_PY_RAISED;
}

PyDoc_STRVAR(
    send_doc,
    "send($self, obj, timeout=None, *, tag=0)\n--\n\n"
    "Send any Python object to every reader that is attached.\n\n"
    "The items of a dict with str keys go as they are: None, bool, int, float, str, bytes, CPU tensors of torch "
    "(any\nstrides, copied once, straight into the ring) and NumPy arrays. What else there is goes by pickle, "
    "protocol 5,\nthe tensors, arrays and buffers in it beside the pickle. Nothing that is sent may change "
    "until send returns;\nafterwards it may: the readers have copies.\n\n"
    "timeout: seconds to wait for room, None for ever, 0 to try once. tag: 32 bits of the caller's own, for "
    "recv_tagged.\n\n"
    "TimeoutError: no room in time; the message names the reader that holds the ring back.\n"
    "FrameTooLarge: it can never fit; its .capacity is what would do. ReaderDied: a reader died and holds the ring "
    "back.\nTypeError: a tensor that is not on the CPU. Whatever pickle raises for what can't be pickled, with its "
    "place in "
    "front:\n\"value['a'][2]: ...\". After an error nothing was sent.");
static PyObject *writer_send(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"obj", "timeout", "tag", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[3] = {NULL};
  int64_t timeout_ns;
  uint64_t tag = 0;
  if (!rc_py_arguments("send", names, 2, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_timeout(values[1], &timeout_ns)) return NULL;
  if (values[2] && !rc_py_integer("tag", values[2], 0, UINT32_MAX, &tag)) return NULL;
  if (!enter(self)) return NULL;
  struct rc_py_encoding encoding;
  PyObject *result = NULL;
  if (rc_py_encoding_measure(&encoding, rc_py_state_of(self), values[0])) {
    int rc = send_encoding(self, &encoding, timeout_ns, (uint32_t)tag);
    result = sent(self, rc, ringcast_plan_bytes(&encoding.plan));
    rc_py_encoding_clear(&encoding);
  }
  leave(self);
  return result;
}

static int copy_view(void *to, const Py_buffer *view) {
  if (!PyBuffer_IsContiguous(view, 'C')) return PyBuffer_ToContiguous(to, (Py_buffer *)view, view->len, 'C');
  rc_py_copy(to, view->buf, (size_t)view->len);
  return 0;
}

static int send_view(struct rc_py_writer *self, const Py_buffer *view, int64_t timeout_ns) {
  struct reservation call = {.writer = self->writer, .bytes = (size_t)view->len};
  int rc = rc_py_wait(try_reserve, &call, timeout_ns);
  if (rc < 0) return rc;
  if (copy_view(call.span.data, view) == 0) {
    return ringcast_writer_commit(self->writer, call.bytes, RINGCAST_KIND_BYTES);
  }
  ringcast_writer_abort(self->writer);
  return RC_PY_RAISED;
}

PyDoc_STRVAR(send_bytes_doc,
             "send_bytes($self, data, timeout=None)\n--\n\n"
             "Send the bytes of any buffer, in C order; recv() gives them as bytes. Timeout and errors as send().");
static PyObject *writer_send_bytes(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"data", "timeout", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[2] = {NULL};
  int64_t timeout_ns;
  Py_buffer view;
  if (!rc_py_arguments("send_bytes", names, 2, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_timeout(values[1], &timeout_ns) || !enter(self)) return NULL;
  PyObject *result = NULL;
  if (PyObject_GetBuffer(values[0], &view, PyBUF_FULL_RO) == 0) {
    int rc = send_view(self, &view, timeout_ns);
    result = sent(self, rc, (uint64_t)view.len);
    PyBuffer_Release(&view);
  }
  leave(self);
  return result;
}

static int build_error(const struct ringcast_span *span, const struct ringcast_frame_plan *plan, uint32_t tag,
                       const char *text, size_t bytes, size_t *out_bytes) {
  struct ringcast_frame_builder builder;
  int rc = ringcast_build_begin(&builder, span->data, span->bytes, plan, RINGCAST_ROOT_VALUE, tag);
  if (rc == 0) rc = ringcast_build_data(&builder, RINGCAST_ITEM_ERROR, NULL, 0, text, bytes, 0, NULL);
  return rc < 0 ? rc : ringcast_build_end(&builder, out_bytes);
}

static int send_error(struct rc_py_writer *self, const struct ringcast_frame_plan *plan, const char *text,
                      size_t text_bytes, int64_t timeout_ns, uint32_t tag) {
  struct reservation call = {.writer = self->writer, .bytes = ringcast_plan_bytes(plan)};
  int rc = rc_py_wait(try_reserve, &call, timeout_ns);
  if (rc < 0) return rc;
  size_t bytes;
  rc = build_error(&call.span, plan, tag, text, text_bytes, &bytes);
  if (rc == 0) return ringcast_writer_commit(self->writer, bytes, RINGCAST_KIND_TENSORS);
  ringcast_writer_abort(self->writer);
  rc_py_raise_text(rc_py_state_of(self), -rc, "can't write the error into its frame");
  return RC_PY_RAISED;
}

PyDoc_STRVAR(send_error_doc,
             "send_error($self, text, timeout=None, *, tag=0)\n--\n\n"
             "Send a frame that makes recv() raise SendError(text) at every reader: for a sender that can't send what "
             "they\nwait for. Timeout, tag and errors as send().");
static PyObject *writer_send_error(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"text", "timeout", "tag", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[3] = {NULL};
  int64_t timeout_ns;
  uint64_t tag = 0;
  if (!rc_py_arguments("send_error", names, 2, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_timeout(values[1], &timeout_ns)) return NULL;
  if (values[2] && !rc_py_integer("tag", values[2], 0, UINT32_MAX, &tag)) return NULL;
  if (!PyUnicode_Check(values[0])) {
    return PyErr_Format(PyExc_TypeError, "text must be a str, not %.100s", Py_TYPE(values[0])->tp_name);
  }
  PyObject *utf8 = PyUnicode_AsEncodedString(values[0], "utf-8", "backslashreplace");
  if (!utf8 || !enter(self)) {
    Py_XDECREF(utf8);
    return NULL;
  }
  size_t bytes = (size_t)PyBytes_GET_SIZE(utf8);
  struct ringcast_frame_plan plan = {0};
  ringcast_plan_item(&plan, 0, bytes);
  int rc = send_error(self, &plan, PyBytes_AS_STRING(utf8), bytes, timeout_ns, (uint32_t)tag);
  PyObject *result = sent(self, rc, ringcast_plan_bytes(&plan));
  leave(self);
  Py_DECREF(utf8);
  return result;
}

/* ---- In place --------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(reserve_doc,
             "reserve($self, n, timeout=None)\n--\n\n"
             "Lend `n` bytes of the ring, to be written in place: a Span. No reader sees anything before commit(). One "
             "at a\ntime.\n\n"
             "    with writer.reserve(16) as span, memoryview(span) as view:\n"
             "        view[:] = bytes(16)                 # committed at the end of the block\n\n"
             "Timeout and errors as send(); Error (EBUSY): one is open already.");
static PyObject *writer_reserve(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"n", "timeout", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[2] = {NULL};
  int64_t timeout_ns;
  uint64_t bytes;
  if (!rc_py_arguments("reserve", names, 2, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_integer("n", values[0], 0, PY_SSIZE_T_MAX, &bytes) || !rc_py_timeout(values[1], &timeout_ns)) return NULL;
  if (!enter(self)) return NULL;
  struct reservation call = {.writer = self->writer, .bytes = bytes};
  int rc = rc_py_wait(try_reserve, &call, timeout_ns);
  leave(self);
  if (rc < 0) return rc_py_raise_of_frame(rc_py_state_of(self), rc, &self->info, bytes);
  self->span = call.span;
  self->lease = (struct rc_py_lease){.open = true, .generation = self->lease.generation + 1};
  PyObject *span = rc_py_span_new(self);
  if (!span) {
    ringcast_writer_abort(self->writer);
    self->lease.open = false;
  }
  return span;
}

/* What commit or abort gave. A forked child gets ECHILD, whether or not one is open. */
static PyObject *ended(struct rc_py_writer *self, int rc) {
  if (rc == -EINVAL && !self->lease.open) return PyErr_Format(PyExc_ValueError, "no reservation is open");
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  self->lease.open = false;
  return rc_py_ref(Py_None);
}

/* True if the open reservation, if any, may end now. */
static bool may_end(const struct rc_py_writer *self, const char *verb) {
  if (!self->lease.open || self->lease.exports == 0) return true;
  rc_py_raise_exported(self->lease.exports, verb, "Span");
  return false;
}

PyObject *rc_py_writer_commit(struct rc_py_writer *self, PyObject *n, PyObject *kind_object) {
  uint64_t bytes = self->lease.open ? self->span.bytes : 0, kind = RINGCAST_KIND_BYTES;
  if (n && n != Py_None && !rc_py_integer("n", n, 0, PY_SSIZE_T_MAX, &bytes)) return NULL;
  if (kind_object && !rc_py_integer("kind", kind_object, 0, UINT16_MAX, &kind)) return NULL;
  if (!enter(self)) return NULL;
  PyObject *result = NULL;
  if (may_end(self, "commit")) result = ended(self, ringcast_writer_commit(self->writer, bytes, (uint16_t)kind));
  leave(self);
  return result;
}

PyObject *rc_py_writer_abort(struct rc_py_writer *self) {
  if (!enter(self)) return NULL;
  PyObject *result = NULL;
  if (may_end(self, "abort")) result = ended(self, ringcast_writer_abort(self->writer));
  leave(self);
  return result;
}

PyDoc_STRVAR(commit_doc,
             "commit($self, n=None, *, kind=0)\n--\n\n"
             "Publish the first `n` bytes (None: all) of the open reservation as one frame. kind: KIND_BYTES, or "
             "KIND_TENSORS\nif they are a whole frame as Reader.next() lends it, to be passed on.\n\n"
             "ValueError: none is open, or `n` is more than was reserved (it stays open).\n"
             "BufferError: a memoryview of the Span is still in use.");
static PyObject *writer_commit(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"n", "kind", NULL};
  PyObject *values[2] = {NULL};
  if (!rc_py_arguments("commit", names, 1, 0, args, count, keywords, values)) return NULL;
  return rc_py_writer_commit((struct rc_py_writer *)object, values[0], values[1]);
}

PyDoc_STRVAR(abort_doc, "abort($self)\n--\n\nGive the open reservation back unseen. Errors as commit().");
static PyObject *writer_abort(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return rc_py_writer_abort((struct rc_py_writer *)object);
}

/* ---- Readers ---------------------------------------------------------------------------------------------------- */

struct attendance {
  ringcast_writer *writer;
  uint32_t count;
};

static int try_wait_readers(void *context, int64_t timeout_ns) {
  struct attendance *call = context;
  return ringcast_writer_wait_readers(call->writer, call->count, timeout_ns);
}

PyDoc_STRVAR(wait_readers_doc, "wait_readers($self, n, timeout=None)\n--\n\n"
                               "Wait until at least `n` readers are attached, and return how many are.\n\n"
                               "TimeoutError: not in time; ValueError: `n` is more than the ring has slots.");
static PyObject *writer_wait_readers(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"n", "timeout", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[2] = {NULL};
  int64_t timeout_ns;
  uint64_t wanted;
  if (!rc_py_arguments("wait_readers", names, 2, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_integer("n", values[0], 0, UINT32_MAX, &wanted) || !rc_py_timeout(values[1], &timeout_ns)) return NULL;
  if (!enter(self)) return NULL;
  struct attendance call = {.writer = self->writer, .count = (uint32_t)wanted};
  int rc = rc_py_wait(try_wait_readers, &call, timeout_ns);
  leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : PyLong_FromLong(rc);
}

static PyObject *make_status(struct rc_py_state *state, const struct ringcast_peer *peer) {
  static const char *const states[] = {"unknown", "joining", "active", "dead"};
  const char *text = states[peer->state < 4 ? peer->state : 0];
  PyObject *name = PyUnicode_DecodeUTF8(peer->name, (Py_ssize_t)strnlen(peer->name, sizeof peer->name), "ignore");
  if (!name) return NULL;
  return PyObject_CallFunction(state->reader_status, "IisNKK", (unsigned)peer->slot, (int)peer->pid, text, name,
                               (unsigned long long)peer->position, (unsigned long long)peer->lag);
}

PyDoc_STRVAR(
    readers_doc,
    "readers($self)\n--\n\n"
    "The readers that hold a slot now, as a list of ReaderStatus(slot, pid, state, name, position, lag): state "
    "is\n\"joining\", \"active\" or \"dead\"; position and lag are in bytes. Each is true of some moment.");
static PyObject *writer_readers(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!enter(self)) return NULL;
  struct ringcast_peer *peers = PyMem_New(struct ringcast_peer, self->info.readers);
  int count = peers ? ringcast_writer_peers(self->writer, peers, self->info.readers) : 0;
  leave(self);
  if (!peers) return PyErr_NoMemory();
  PyObject *list = count < 0 ? rc_py_raise(rc_py_state_of(self), count) : PyList_New(0);
  for (int i = 0; list && i < count; i++) {
    PyObject *status = make_status(rc_py_state_of(self), &peers[i]);
    if (!status || PyList_Append(list, status) < 0) Py_CLEAR(list);
    Py_XDECREF(status);
  }
  PyMem_Free(peers);
  return list;
}

/* ---- Closing, looking ------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(close_doc,
             "close($self)\n--\n\n"
             "Say that no more comes and let go of the ring: readers read what was sent, then get WriterGone. An open\n"
             "reservation is aborted. Closing twice is fine. BufferError: a memoryview of the Span is still in use.");
static PyObject *writer_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!self->writer) Py_RETURN_NONE;
  if (!rc_py_enter(&self->busy, self->pid, "Writer")) return NULL;
  bool may_close = may_end(self, "close the Writer");
  if (may_close) {
    ringcast_writer_close(self->writer);
    self->writer = NULL;
    self->lease.open = false;
  }
  leave(self);
  return may_close ? rc_py_ref(Py_None) : NULL;
}

PyDoc_STRVAR(reduce_doc, "__reduce__($self)\n--\n\nTypeError: hand over the handle instead.");
static PyObject *writer_reduce(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(unused)) {
  PyErr_SetString(PyExc_TypeError, "a Writer can't go to another process, nor be copied: pass writer.handle, and make "
                                   "a Reader(handle) there");
  return NULL;
}

PyDoc_STRVAR(enter_doc, "__enter__($self)\n--\n\nReturn self.");
static PyObject *writer_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (self->writer) return rc_py_ref(object);
  PyErr_SetString(PyExc_ValueError, "the Writer is closed");
  return NULL;
}

PyDoc_STRVAR(exit_doc, "__exit__($self, *exception)\n--\n\nclose().");
static PyObject *writer_exit(PyObject *object, PyObject *Py_UNUSED(args)) {
  return writer_close(object, NULL);
}

static PyObject *writer_repr(PyObject *object) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  return PyUnicode_FromFormat("<ringcast.Writer %R, %llu bytes of %s, %s>", self->handle,
                              (unsigned long long)self->info.capacity, ringcast_memory_name(self->info.memory),
                              self->writer ? "open" : "closed");
}

static PyObject *get_memory(PyObject *object, void *Py_UNUSED(closure)) {
  return PyUnicode_FromString(ringcast_memory_name(((struct rc_py_writer *)object)->info.memory));
}

static PyObject *get_closed(PyObject *object, void *Py_UNUSED(closure)) {
  return PyBool_FromLong(!((struct rc_py_writer *)object)->writer);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef writer_methods[] = {
    {"send", FAST(writer_send), METH_FASTCALL | METH_KEYWORDS, send_doc},
    {"send_bytes", FAST(writer_send_bytes), METH_FASTCALL | METH_KEYWORDS, send_bytes_doc},
    {"send_error", FAST(writer_send_error), METH_FASTCALL | METH_KEYWORDS, send_error_doc},
    {"reserve", FAST(writer_reserve), METH_FASTCALL | METH_KEYWORDS, reserve_doc},
    {"commit", FAST(writer_commit), METH_FASTCALL | METH_KEYWORDS, commit_doc},
    {"abort", writer_abort, METH_NOARGS, abort_doc},
    {"wait_readers", FAST(writer_wait_readers), METH_FASTCALL | METH_KEYWORDS, wait_readers_doc},
    {"readers", writer_readers, METH_NOARGS, readers_doc},
    {"close", writer_close, METH_NOARGS, close_doc},
    {"__reduce__", writer_reduce, METH_NOARGS, reduce_doc},
    {"__enter__", writer_enter, METH_NOARGS, enter_doc},
    {"__exit__", writer_exit, METH_VARARGS, exit_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef writer_members[] = {
    {"handle", T_OBJECT_EX, offsetof(struct rc_py_writer, handle), READONLY,
     "The ring's name, a short printable str: hand it to the readers by any means."},
    {"capacity", T_ULONGLONG, offsetof(struct rc_py_writer, info.capacity), READONLY, "Bytes of the ring."},
    {"max_frame", T_ULONGLONG, offsetof(struct rc_py_writer, info.max_frame), READONLY, "The largest frame's bytes."},
    {"page_size", T_ULONGLONG, offsetof(struct rc_py_writer, info.page_size), READONLY,
     "Bytes of a page of the ring's memory."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef writer_properties[] = {
    {"memory", get_memory, NULL, "Which memory was got: \"hugetlb\", \"shmem-huge\" or \"pages\".", NULL},
    {"closed", get_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(writer_doc,
             "Writer(capacity=None, readers=64, *, memory='auto', spin=None)\n--\n\n"
             "Makes a ring and sends through it to every process that attaches a Reader to its handle.\n\n"
             "capacity: bytes of the ring, rounded up to a power of two; default: by the L3 cache, 4 to 32 MiB. readers: the most at once.\n"
             "memory: \"hugetlb\", \"shmem-huge\", \"pages\", or \"auto\": what the environment's RINGCAST_MEMORY "
             "names, else the\nfirst of them that can be had. One that is named and can't be had is an error.\n"
             "spin: seconds that a wait spins before it sleeps; None is 20 µs, 0 never spins.\n\n"
             "One thread at a time: a second gets RuntimeError. After fork the child gets ForkedError.\n"
             "ValueError: an argument out of range. Error: the kernel's errno, if the memory can't be had.");
static PyType_Slot writer_slots[] = {
    {Py_tp_doc, (void *)writer_doc}, {Py_tp_new, writer_new},
    {Py_tp_dealloc, writer_dealloc}, {Py_tp_methods, writer_methods},
    {Py_tp_members, writer_members}, {Py_tp_getset, writer_properties},
    {Py_tp_repr, writer_repr},       {0, NULL},
};
PyType_Spec rc_py_writer_spec = {"ringcast.Writer", sizeof(struct rc_py_writer), 0, Py_TPFLAGS_DEFAULT, writer_slots};
