/* SPDX-License-Identifier: Apache-2.0 */
/* Reader: attaches to a ring and receives from it. */
#include "extension.h"

#include <unistd.h>

#include <structmember.h>

/* Raises ValueError if it is closed, RuntimeError if a call is at work on it. */
static bool enter(struct rc_py_reader *self) {
  if (!rc_py_enter(&self->busy, self->pid, "Reader")) return false;
  if (self->reader) return true;
  self->busy = false;
  PyErr_SetString(PyExc_ValueError, "the Reader is closed");
  return false;
}

static void leave(struct rc_py_reader *self) {
  self->busy = false;
}

/* ---- Attaching -------------------------------------------------------------------------------------------------- */

static int attach(struct rc_py_reader *self, const char *handle, const struct ringcast_reader_options *options) {
  int rc;
  Py_BEGIN_ALLOW_THREADS rc = ringcast_reader_attach_ex(handle, options, &self->reader);
  Py_END_ALLOW_THREADS return rc < 0 ? rc : ringcast_reader_info(self->reader, &self->info);
}

/* Raises TypeError if it is no str, and says which str was meant. */
static bool check_handle_type(PyTypeObject *type, PyObject *handle) {
  if (PyUnicode_Check(handle)) return true;
  struct rc_py_state *state = PyType_GetModuleState(type);
  const char *hint = Py_TYPE(handle) == state->writer_type   ? ": pass writer.handle"
                     : Py_TYPE(handle) == state->reader_type ? ": pass reader.handle"
                                                             : "";
  PyErr_Format(PyExc_TypeError, "handle must be a str, not %.100s%s", Py_TYPE(handle)->tp_name, hint);
  return false;
}

/* Of what the library refuses as a handle; `text` is its UTF-8. */
static PyObject *raise_no_handle(PyObject *handle, const char *text) {
  size_t length = strlen(text);
  const char *start = strstr(text, "rc1:");
  bool surrounded = start && (start != text || !Py_ISALNUM(text[length - 1]));
  return PyErr_Format(PyExc_ValueError, "not a ringcast handle%s: %.150R%s; take the writer's handle whole",
                      surrounded ? ", there is something before or after it" : "", handle,
                      surrounded ? "" : " (it should look like rc1:<pid>:...)");
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"handle", "name", "spin", NULL};
  PyObject *handle, *spin = Py_None;
  const char *text;
  struct ringcast_reader_options options = {.size = sizeof options};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$zO:Reader", names, &handle, &options.name, &spin)) return NULL;
  if (!check_handle_type(type, handle)) return NULL;
  if (!rc_py_spin(spin, &options.spin_ns)) return NULL;
  /* "s" refuses a NUL inside: what follows it would go unseen. */
  if (!PyArg_Parse(handle, "s;the handle is not one of ringcast's", &text)) return NULL;
  struct rc_py_reader *self = (struct rc_py_reader *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->pid = getpid();
  self->handle = rc_py_ref(handle);
  int rc = attach(self, text, &options);
  if (rc == 0) return (PyObject *)self;
  if (rc == -EINVAL) { /* of the options nothing is left to be refused */
    raise_no_handle(handle, text);
  } else {
    rc_py_raise(rc_py_state_of(self), rc);
  }
  Py_DECREF(self);
  return NULL;
}

static void reader_dealloc(PyObject *object) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  PyTypeObject *type = Py_TYPE(object);
  ringcast_reader_close(self->reader);
  Py_XDECREF(self->handle);
  type->tp_free(object);
  Py_DECREF(type);
}

/* ---- Receiving -------------------------------------------------------------------------------------------------- */

struct arrival {
  ringcast_reader *reader;
  struct ringcast_frame frame;
};

static int try_next(void *context, int64_t timeout_ns) {
  struct arrival *call = context;
  return ringcast_reader_next(call->reader, timeout_ns, &call->frame);
}

/* Gives the frame back, whatever became of its contents; an exception that is set already stays. */
static bool give_back(struct rc_py_reader *self, const struct ringcast_frame *frame) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  int rc = ringcast_reader_release(self->reader, frame);
  if (type) {
    PyErr_Restore(type, value, traceback);
  } else if (rc < 0) {
    rc_py_raise(rc_py_state_of(self), rc);
  }
  return rc == 0;
}

static PyObject *receive(struct rc_py_reader *self, int64_t timeout_ns, uint32_t *tag) {
  if (!enter(self)) return NULL;
  struct arrival call = {.reader = self->reader};
  int rc = rc_py_wait(try_next, &call, timeout_ns);
  PyObject *object = NULL;
  if (rc < 0) {
    rc_py_raise(rc_py_state_of(self), rc);
  } else {
    object = rc_py_decode(rc_py_state_of(self), &call.frame, tag);
    if (!give_back(self, &call.frame)) Py_CLEAR(object);
  }
  leave(self);
  return object;
}

static bool timeout_argument(const char *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                             int64_t *out) {
  static const char *const names[] = {"timeout", NULL};
  PyObject *values[1] = {NULL};
  return rc_py_arguments(function, names, 1, 0, args, count, keywords, values) && rc_py_timeout(values[0], out);
}

PyDoc_STRVAR(recv_doc,
             "recv($self, timeout=None)\n--\n\n"
             "Receive the next object, equal to what was sent and this process's own: writable, and no part of the "
             "ring.\nOf send_bytes(), bytes.\n\n"
             "timeout: seconds to wait, None for ever, 0 to try once. Ctrl-C ends the wait at once.\n\n"
             "TimeoutError: nothing came. WriterGone: the writer is gone, and all it sent was received. SendError: "
             "the writer\nsays that it could not send. ProtocolError: the frame is damaged. ImportError: torch tensors "
             "came and torch\nis missing. Whatever unpickling raises. After any of the last four the Reader goes on "
             "with the next frame.\nError (EBUSY): the Frame of next() is not released.");
static PyObject *reader_recv(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag;
  if (!timeout_argument("recv", args, count, keywords, &timeout_ns)) return NULL;
  return receive((struct rc_py_reader *)object, timeout_ns, &tag);
}

PyDoc_STRVAR(recv_tagged_doc, "recv_tagged($self, timeout=None)\n--\n\n"
                              "As recv(), with the sender's tag: (object, tag). The tag of bytes is 0.");
static PyObject *reader_recv_tagged(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag;
  if (!timeout_argument("recv_tagged", args, count, keywords, &timeout_ns)) return NULL;
  PyObject *received = receive((struct rc_py_reader *)object, timeout_ns, &tag);
  return received ? Py_BuildValue("(NI)", received, (unsigned)tag) : NULL;
}

static PyObject *reader_iternext(PyObject *object) {
  struct rc_py_state *state = rc_py_state_of(object);
  uint32_t tag;
  PyObject *received = receive((struct rc_py_reader *)object, RINGCAST_FOREVER, &tag);
  if (received || !PyErr_ExceptionMatches(state->writer_gone)) return received;
  PyErr_Clear(); /* NULL without an exception: the end */
  return NULL;
}

PyDoc_STRVAR(next_doc,
             "next($self, timeout=None)\n--\n\n"
             "Lend the next frame, of any kind, to be read in place: a Frame. One at a time.\n\n"
             "    with reader.next() as frame, memoryview(frame) as view:\n"
             "        total = sum(view)                   # released at the end of the block\n\n"
             "Timeout as recv(). TimeoutError, WriterGone, ProtocolError as there; Error (EBUSY): the last one is not "
             "released.");
static PyObject *reader_next(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  int64_t timeout_ns;
  if (!timeout_argument("next", args, count, keywords, &timeout_ns) || !enter(self)) return NULL;
  struct arrival call = {.reader = self->reader};
  int rc = rc_py_wait(try_next, &call, timeout_ns);
  leave(self);
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  self->frame = call.frame;
  self->lease = (struct rc_py_lease){.open = true, .generation = self->lease.generation + 1};
  PyObject *frame = rc_py_frame_new(self);
  if (!frame) {
    self->lease.open = false;
    give_back(self, &call.frame);
  }
  return frame;
}

/* True if the held frame, if any, may be given back now. */
static bool may_end(const struct rc_py_reader *self, const char *verb) {
  if (!self->lease.open || self->lease.exports == 0) return true;
  rc_py_raise_exported(self->lease.exports, verb, "Frame");
  return false;
}

PyObject *rc_py_reader_release(struct rc_py_reader *self) {
  if (!enter(self)) return NULL;
  PyObject *result = NULL;
  if (may_end(self, "release")) {
    self->lease.open = false;
    if (give_back(self, &self->frame)) result = rc_py_ref(Py_None);
  }
  leave(self);
  return result;
}

/* ---- Closing, looking ------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(close_doc, "close($self)\n--\n\n"
                        "Leave the ring; a Frame that is held is released. Closing twice is fine.\n\n"
                        "BufferError: a memoryview of the Frame is still in use.");
static PyObject *reader_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!self->reader) Py_RETURN_NONE;
  if (!rc_py_enter(&self->busy, self->pid, "Reader")) return NULL;
  bool may_close = may_end(self, "close the Reader");
  if (may_close) {
    ringcast_reader_close(self->reader);
    self->reader = NULL;
    self->lease.open = false;
  }
  leave(self);
  return may_close ? rc_py_ref(Py_None) : NULL;
}

PyDoc_STRVAR(reduce_doc, "__reduce__($self)\n--\n\nTypeError: hand over the handle instead.");
static PyObject *reader_reduce(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(unused)) {
  PyErr_SetString(PyExc_TypeError, "a Reader can't go to another process, nor be copied: pass reader.handle, and make "
                                   "a Reader(handle) there");
  return NULL;
}

PyDoc_STRVAR(enter_doc, "__enter__($self)\n--\n\nReturn self.");
static PyObject *reader_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  if (((struct rc_py_reader *)object)->reader) return rc_py_ref(object);
  PyErr_SetString(PyExc_ValueError, "the Reader is closed");
  return NULL;
}

PyDoc_STRVAR(exit_doc, "__exit__($self, *exception)\n--\n\nclose().");
static PyObject *reader_exit(PyObject *object, PyObject *Py_UNUSED(args)) {
  return reader_close(object, NULL);
}

static PyObject *reader_repr(PyObject *object) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  return PyUnicode_FromFormat("<ringcast.Reader %R, %llu bytes of %s, %s>", self->handle,
                              (unsigned long long)self->info.capacity, ringcast_memory_name(self->info.memory),
                              self->reader ? "open" : "closed");
}

static PyObject *get_lag(PyObject *object, void *Py_UNUSED(closure)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  uint64_t lag;
  if (!enter(self)) return NULL;
  int rc = ringcast_reader_lag(self->reader, &lag);
  leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : PyLong_FromUnsignedLongLong(lag);
}

static PyObject *get_memory(PyObject *object, void *Py_UNUSED(closure)) {
  return PyUnicode_FromString(ringcast_memory_name(((struct rc_py_reader *)object)->info.memory));
}

static PyObject *get_closed(PyObject *object, void *Py_UNUSED(closure)) {
  return PyBool_FromLong(!((struct rc_py_reader *)object)->reader);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef reader_methods[] = {
    {"recv", FAST(reader_recv), METH_FASTCALL | METH_KEYWORDS, recv_doc},
    {"recv_tagged", FAST(reader_recv_tagged), METH_FASTCALL | METH_KEYWORDS, recv_tagged_doc},
    {"next", FAST(reader_next), METH_FASTCALL | METH_KEYWORDS, next_doc},
    {"close", reader_close, METH_NOARGS, close_doc},
    {"__reduce__", reader_reduce, METH_NOARGS, reduce_doc},
    {"__enter__", reader_enter, METH_NOARGS, enter_doc},
    {"__exit__", reader_exit, METH_VARARGS, exit_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef reader_members[] = {
    {"handle", T_OBJECT_EX, offsetof(struct rc_py_reader, handle), READONLY, "The handle that it was attached by."},
    {"capacity", T_ULONGLONG, offsetof(struct rc_py_reader, info.capacity), READONLY, "Bytes of the ring."},
    {"writer_pid", T_INT, offsetof(struct rc_py_reader, info.writer_pid), READONLY, "The writer's process."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef reader_properties[] = {
    {"lag", get_lag, NULL, "Bytes that were sent and not received yet.", NULL},
    {"memory", get_memory, NULL, "Which memory the ring has: \"hugetlb\", \"shmem-huge\" or \"pages\".", NULL},
    {"closed", get_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(reader_doc,
             "Reader(handle, *, name=None, spin=None)\n--\n\n"
             "Attaches to the ring that a Writer's handle names; its first frame is the next one to be sent.\n\n"
             "handle: the Writer's, whole, with nothing around it. name: shown where the reader is spoken of (\"rank "
             "3\"); 31\nbytes of it. spin: as for Writer. Iterating receives until the writer is gone.\n\n"
             "One thread at a time: a second gets RuntimeError. After fork the child gets ForkedError.\n"
             "ValueError: not a handle. RingNotFound: its ring is gone. AccessDenied: another user's. ProtocolError: "
             "another\nbuild of ringcast made it. NoFreeSlot: it has as many readers as it can have.");
static PyType_Slot reader_slots[] = {
    {Py_tp_doc, (void *)reader_doc}, {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc}, {Py_tp_methods, reader_methods},
    {Py_tp_members, reader_members}, {Py_tp_getset, reader_properties},
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, reader_iternext},
    {Py_tp_repr, reader_repr},       {0, NULL},
};
PyType_Spec rc_py_reader_spec = {"ringcast.Reader", sizeof(struct rc_py_reader), 0, Py_TPFLAGS_DEFAULT, reader_slots};
