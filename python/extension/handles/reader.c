/* SPDX-License-Identifier: Apache-2.0 */
/* Reader: attaches to a ring and receives from it. */
#include "python/extension/device.h"
#include "python/extension/handles/receive.h"

#include <unistd.h>

#include <structmember.h>

/* ---- Attaching -------------------------------------------------------------------------------------------------- */

static int attach(struct rc_py_reader *self, const char *handle, const struct ringcast_reader_options *options) {
  int rc;
  self->info.size = sizeof self->info;
  Py_BEGIN_ALLOW_THREADS rc = ringcast_reader_attach_ex(handle, options, &self->reader);
  Py_END_ALLOW_THREADS return rc < 0 ? rc : ringcast_reader_info(self->reader, &self->info);
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"handle", "name", "spin", "leases", "allow_pickle", "keep", "map_location", NULL};
  PyObject *handle, *spin = Py_None, *leases = NULL, *pickle = Py_None, *keep = Py_False;
  PyObject *location = Py_None;
  struct rc_py_map map;
  bool allow_pickle, keeps;
  const char *text;
  uint64_t most = 1;
  struct ringcast_reader_options options = {.size = sizeof options};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$zOOOOO:Reader", names, &handle, &options.name, &spin, &leases,
                                   &pickle, &keep, &location)) {
    return NULL;
  }
  if (!rc_py_handle_text(type, handle, &text) || !rc_py_spin(spin, &options.spin_ns)) return NULL;
  if (leases && !rc_py_integer("leases", leases, 1, RC_PY_MOST_LEASES, &most)) return NULL;
  if (!rc_py_allow_pickle(pickle, &allow_pickle)) return NULL;
  if (!PyBool_Check(keep)) {
    return PyErr_Format(PyExc_TypeError, "keep must be True or False, not %.100s", Py_TYPE(keep)->tp_name);
  }
  if (!rc_py_gpu_map(location, &map) || !rc_py_gpu_map_is_known(PyType_GetModuleState(type), &map)) return NULL;
  keeps = keep == Py_True;
  options.leases = (uint32_t)most;
  options.flags = keeps ? RINGCAST_READER_KEEP : 0;
  struct rc_py_reader *self = (struct rc_py_reader *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->pid = getpid();
  self->allow_pickle = allow_pickle;
  self->keeps = keeps;
  self->map = map;
  self->handle = rc_py_ref(handle);
  int rc = attach(self, text, &options);
  if (rc == 0) return (PyObject *)self;
  rc_py_raise_of_attach(rc_py_state_of(self), rc, handle, text); /* of the options nothing is left to be refused */
  Py_DECREF(self);
  return NULL;
}

static void reader_dealloc(PyObject *object) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  rc_py_watch_close(&self->watch, self->pid);
  rc_py_reader_shut(self, self->gpu && self->gpu->reader); /* which may have to wait for a device */
  if (self->gpu) Py_XDECREF(self->gpu->why);
  PyMem_Free(self->gpu);
  Py_XDECREF(self->handle);
  Py_XDECREF(self->classes);
  type->tp_free(object);
  Py_DECREF(type);
}

/* What waits in an event loop may refer to the Reader. */
static int reader_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((struct rc_py_reader *)object)->watch);
  return 0;
}

/* Before the collector clears the watch, and with it what knows of its registration. */
static void reader_finalize(PyObject *object) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  rc_py_watch_close(&self->watch, self->pid);
}

static int reader_clear(PyObject *object) {
  Py_CLEAR(((struct rc_py_reader *)object)->watch);
  return 0;
}

/* ---- Receiving -------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(recv_doc,
             "recv($self, timeout=None)\n--\n\n"
             "Receive the next object, equal to what was sent and this process's own: writable, and no part of the "
             "ring.\nA torch tensor can't be made larger in place (resize_). Of send_bytes(), bytes.\n\n"
             "timeout: seconds to wait, None for ever, 0 to try once. Ctrl-C ends the wait at once.\n\n"
             "TimeoutError: nothing came. WriterGone: the writer is gone, and all it sent was received. SendError: "
             "the writer\nsays that it could not send. ProtocolError: the frame is damaged, or a class has other "
             "fields here. ImportError: torch,\nor an instance's class or module, is missing. PickleRefused: it holds "
             "a pickle, and this Reader loads none.\nRecursionError: nested too deep for this thread's stack. Whatever "
             "unpickling raises, or a Struct's __post_init__. After\nany of the last six the Reader goes on with the "
             "next frame.\nError (EBUSY): as many Frames of next() as may be are held. Evicted: the writer goes on "
             "without this Reader.");
static PyObject *reader_recv(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag;
  if (!rc_py_timeout_argument("recv", args, count, keywords, &timeout_ns)) return NULL;
  return rc_py_receive((struct rc_py_reader *)object, timeout_ns, &tag, false);
}

PyDoc_STRVAR(recv_tagged_doc, "recv_tagged($self, timeout=None)\n--\n\n"
                              "As recv(), with the sender's tag: (object, tag). The tag of bytes is 0.");
static PyObject *reader_recv_tagged(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag;
  if (!rc_py_timeout_argument("recv_tagged", args, count, keywords, &timeout_ns)) return NULL;
  PyObject *received = rc_py_receive((struct rc_py_reader *)object, timeout_ns, &tag, false);
  return received ? Py_BuildValue("(NI)", received, (unsigned)tag) : NULL;
}

static PyObject *reader_iternext(PyObject *object) {
  struct rc_py_state *state = rc_py_state_of(object);
  uint32_t tag;
  PyObject *received = rc_py_receive((struct rc_py_reader *)object, RINGCAST_FOREVER, &tag, false);
  if (received || !PyErr_ExceptionMatches(state->writer_gone)) return received;
  PyErr_Clear(); /* NULL without an exception: the end */
  return NULL;
}

/* _take(tagged): recv(0) or recv_tagged(0) for a task, but for state->nothing if nothing is there. */
static PyObject *reader_take(PyObject *object, PyObject *tagged) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct rc_py_state *state = rc_py_state_of(self);
  uint32_t tag;
  PyObject *turn = rc_py_pass_turn(state, &self->spent);
  if (turn) return turn;
  PyObject *received = rc_py_receive(self, 0, &tag, true);
  return received && received != state->nothing && tagged == Py_True ? Py_BuildValue("(NI)", received, (unsigned)tag)
                                                                     : received;
}

/* The next frame, as a Frame. */
static PyObject *lend(struct rc_py_reader *self, int64_t timeout_ns) {
  if (!rc_py_reader_enter(self)) return NULL;
  struct ringcast_frame lent;
  int rc = rc_py_receive_frame(self, timeout_ns, &lent);
  rc_py_watch_after(self->watch, self->pid, rc);
  PyObject *frame = rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_frame_new(self, &lent);
  if (rc >= 0 && !frame) rc_py_reader_give_back(self, &lent);
  rc_py_reader_leave(self);
  return frame;
}

PyDoc_STRVAR(next_doc,
             "next($self, timeout=None)\n--\n\n"
             "Lend the next frame, of any kind, to be read in place: a Frame. As many at a time as the Reader's "
             "`leases`;\nthey may be released in any order.\n\n"
             "    with reader.next() as frame, memoryview(frame) as view:\n"
             "        total = sum(view)                   # released at the end of the block\n\n"
             "Timeout as recv(). TimeoutError, WriterGone, ProtocolError as there; Error (EBUSY): as many "
             "as may be are held. Evicted: the writer goes on without this Reader.");
static PyObject *reader_next(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  int64_t timeout_ns;
  if (!rc_py_timeout_argument("next", args, count, keywords, &timeout_ns)) return NULL;
  return lend((struct rc_py_reader *)object, timeout_ns);
}

PyDoc_STRVAR(view_doc,
             "view($self, timeout=None)\n--\n\n"
             "Receive the next object for a `with` block, its arrays and tensors where they lie, in the ring: a View. "
             "All else is a copy\nof this process's own.\n\n"
             "    with reader.view() as obj:\n"
             "        total = obj[\"x\"].sum()\n\n"
             "NumPy arrays in it are read-only. torch has no read-only tensors: TO WRITE TO A TENSOR OF A VIEW KILLS "
             "THE PROCESS\n(SIGSEGV). After the block, arrays that are still held show whatever the writer puts there: "
             "copy what is to be\nkept.\n\n"
             "A view is one of the Reader's `leases`: several may be nested where those allow. Timeout and errors as "
             "recv(); at the\nend of the block, Evicted: the writer went on without this Reader, and what was looked "
             "at may have been\noverwritten.");
static PyObject *reader_view(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  int64_t timeout_ns;
  if (!rc_py_timeout_argument("view", args, count, keywords, &timeout_ns)) return NULL;
  for (;;) {
    PyObject *frame = lend(self, timeout_ns);
    if (!frame) return NULL;
    rc_py_gpu_skips_none(self);
    PyObject *view = rc_py_view_new(self, frame);
    bool skips = !view && rc_py_gpu_skips(self);
    if (!view) rc_py_frame_give_up(frame);
    Py_DECREF(frame);
    if (!skips || PyErr_Occurred()) return view;
  }
}

/* ---- Closing, looking ------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(close_doc, "close($self)\n--\n\n"
                        "Leave the ring; Frames that are held are released. Arrays of a view() may outlive it: their "
                        "memory goes\nwith the last of them. Closing twice is fine.\n\n"
                        "BufferError: a memoryview of a Frame is still in use.");
static PyObject *reader_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!self->reader) Py_RETURN_NONE;
  if (!rc_py_enter(&self->busy, self->pid, "Reader")) return NULL;
  bool may_close = self->exports == 0;
  if (may_close) {
    rc_py_watch_close(&self->watch, self->pid);
    rc_py_reader_shut(self, true); /* what is kept may have to be copied */
  } else {
    rc_py_raise_exported(self->exports, "close the Reader", "Frame");
  }
  rc_py_reader_leave(self);
  return may_close ? rc_py_ref(Py_None) : NULL;
}

PyDoc_STRVAR(cancel_doc,
             "cancel($self)\n--\n\n"
             "Make the wait that another thread is in on this Reader, and every later call that would have to wait, "
             "raise\nCancelled. Frames that are there can still be had. Any thread; it can't be taken back.");
static PyObject *reader_cancel(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!self->reader) return PyErr_Format(PyExc_ValueError, "the Reader is closed");
  if (!rc_py_check_process(rc_py_state_of(self), self->pid)) return NULL;
  ringcast_reader_cancel(self->reader); /* close can't free it meanwhile: this thread has the GIL */
  Py_RETURN_NONE;
}

PyDoc_STRVAR(fileno_doc,
             "fileno($self)\n--\n\n"
             "A descriptor for select, poll, epoll and asyncio's add_reader: readable when recv() may have something "
             "to give (an\nobject, or WriterGone). Then call recv(0) until TimeoutError, which makes it wait again. It "
             "starts readable, is\nthe same at each call, and goes with the Reader: never read or close it.\n\n"
             "Error: EMFILE, ENFILE, ENOMEM of the kernel. Error (ENOBUFS) of recv(0): it can't wait any more; ask "
             "anew.");
static PyObject *reader_fileno(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_reader_enter(self)) return NULL;
  int fd = ringcast_reader_fd(self->reader);
  rc_py_reader_leave(self);
  return fd < 0 ? rc_py_raise(rc_py_state_of(self), fd) : PyLong_FromLong(fd);
}

PyDoc_STRVAR(check_doc,
             "check($self)\n--\n\n"
             "Make sure that all that was read of held Frames before this call was whole, without releasing them "
             "yet.\n\n"
             "Evicted: it was perhaps not; the writer goes on without this Reader.");
static PyObject *reader_check(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_reader_check(self->reader);
  rc_py_reader_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_ref(Py_None);
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
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_reader_lag(self->reader, &lag);
  rc_py_reader_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : PyLong_FromUnsignedLongLong(lag);
}

PyDoc_STRVAR(info_doc, "info($self)\n--\n\nThe ring's facts: an Info, as Writer.info(); spin_ns is this Reader's own.");
static PyObject *reader_info(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct ringcast_info info = {.size = sizeof info};
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_reader_info(self->reader, &info);
  rc_py_reader_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_info(rc_py_state_of(self), &info);
}

PyDoc_STRVAR(stats_doc,
             "stats($self)\n--\n\nWhat this Reader has done so far: Stats. Its frames and bytes are those received.");
static PyObject *reader_stats(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct ringcast_stats stats = {.size = sizeof stats};
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_reader_stats(self->reader, &stats);
  rc_py_reader_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_stats(rc_py_state_of(self), &stats);
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
    {"arecv", FAST(rc_py_reader_arecv), METH_FASTCALL | METH_KEYWORDS, rc_py_arecv_doc},
    {"arecv_tagged", FAST(rc_py_reader_arecv_tagged), METH_FASTCALL | METH_KEYWORDS, rc_py_arecv_tagged_doc},
    {"_take", reader_take, METH_O, NULL},
    {"next", FAST(reader_next), METH_FASTCALL | METH_KEYWORDS, next_doc},
    {"view", FAST(reader_view), METH_FASTCALL | METH_KEYWORDS, view_doc},
    {"check", reader_check, METH_NOARGS, check_doc},
    {"prepare_gpu", rc_py_reader_prepare_gpu, METH_NOARGS, rc_py_prepare_gpu_doc},
    {"fileno", reader_fileno, METH_NOARGS, fileno_doc},
    {"cancel", reader_cancel, METH_NOARGS, cancel_doc},
    {"info", reader_info, METH_NOARGS, info_doc},
    {"stats", reader_stats, METH_NOARGS, stats_doc},
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
    {"_watch", T_OBJECT, offsetof(struct rc_py_reader, watch), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef reader_properties[] = {
    {"lag", get_lag, NULL, "Bytes that were sent and not received yet.", NULL},
    {"memory", get_memory, NULL, "Which memory the ring has: \"hugetlb\", \"shmem-huge\" or \"pages\".", NULL},
    {"closed", get_closed, NULL, "Whether close() was called.", NULL},
    {"gpu", rc_py_reader_gpu, NULL, rc_py_gpu_doc, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(reader_doc,
             "Reader(handle, *, name=None, spin=None, leases=1, allow_pickle=None, keep=False,\n"
             "       map_location=None)\n--\n\n"
             "Attaches to the ring that a Writer's handle names; its first frame is the next one to be sent.\n\n"
             "handle: the Writer's, whole, with nothing around it. name: shown where the reader is spoken of (\"rank "
             "3\"); 31\nbytes of it. spin: as for Writer. leases: how many Frames of next() may be held at once, at "
             "most "
             "64.\n"
             "allow_pickle: False refuses frames that hold a pickle, which can run code; None: as the environment's "
             "RINGCAST_ALLOW_PICKLE\nsays, 0 or 1 (the default). keep: large arrays and tensors that recv() gives "
             "are not "
             "copied where that can be avoided: they\nstay in the ring's spill memory, and are this process's own, "
             "copy-on-write.\nmap_location: where torch tensors and other arrays arrive that were on a "
             "CUDA device: None, on this process's current one;\n\"cuda\", \"cuda:1\" or a torch.device, there, and "
             "torch tensors of the CPU too; \"cpu\", in host memory.\nIterating, also by `async for`, receives until "
             "the writer is gone.\n\n"
             "One thread at a time: a second gets RuntimeError. After fork the child gets ForkedError.\n"
             "ValueError: not a handle. RingNotFound: its ring is gone. AccessDenied: another user's. ProtocolError: "
             "another\nbuild of ringcast made it. NoFreeSlot: it has as many readers as it can have.");
static PyType_Slot reader_slots[] = {
    {Py_tp_doc, (void *)reader_doc}, {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc}, {Py_tp_methods, reader_methods},
    {Py_tp_members, reader_members}, {Py_tp_getset, reader_properties},
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, reader_iternext},
    {Py_am_aiter, PyObject_SelfIter},   {Py_am_anext, rc_py_reader_anext},
    {Py_tp_traverse, reader_traverse}, {Py_tp_clear, reader_clear},
    {Py_tp_finalize, reader_finalize},
    {Py_tp_repr, reader_repr},       {0, NULL},
};
PyType_Spec rc_py_reader_spec = {"ringcast.Reader", sizeof(struct rc_py_reader), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, reader_slots};
