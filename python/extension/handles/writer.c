/* SPDX-License-Identifier: Apache-2.0 */
/* Writer: makes a ring and sends through it. */
#include "python/extension/device.h"

#include <unistd.h>

#include <structmember.h>

/* ---- Making ----------------------------------------------------------------------------------------------------- */

static int open_ring(struct rc_py_writer *self, const struct ringcast_writer_options *options) {
  int rc;
  self->info.size = sizeof self->info;
  Py_BEGIN_ALLOW_THREADS /* the kernel clears all of the memory now */
      rc = ringcast_writer_create_ex(options, &self->writer);
  Py_END_ALLOW_THREADS if (rc == 0) rc = ringcast_writer_info(self->writer, &self->info);
  if (rc < 0) return rc;
  self->handle = PyUnicode_FromString(ringcast_writer_handle(self->writer));
  return self->handle ? 0 : RC_PY_RAISED;
}

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  struct ringcast_writer_options options;
  struct rc_py_gpu_options gpu;
  bool allow_pickle;
  if (!rc_py_writer_options(args, keywords, &options, &allow_pickle, &gpu)) return NULL;
  struct rc_py_writer *self = (struct rc_py_writer *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->pid = getpid();
  self->allow_pickle = allow_pickle;
  self->gpu_options = gpu;
  self->fail_ns = options.on_slow == RINGCAST_FAIL ? options.slow_ns : 0;
  int rc = open_ring(self, &options);
  if (rc == 0) return (PyObject *)self;
  rc_py_raise(rc_py_state_of(self), rc);
  Py_DECREF(self);
  return NULL;
}

static void writer_dealloc(PyObject *object) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  rc_py_watch_close(&self->watch, self->pid);
  rc_py_gpu_writer_shut(self, self->gpu != NULL); /* which may have to wait for a device */
  ringcast_writer_close(self->writer);
  Py_XDECREF(self->handle);
  type->tp_free(object);
  Py_DECREF(type);
}

/* What waits in an event loop may refer to the Writer. */
static int writer_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((struct rc_py_writer *)object)->watch);
  return 0;
}

/* Before the collector clears the watch, and with it what knows of its registration. */
static void writer_finalize(PyObject *object) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  rc_py_watch_close(&self->watch, self->pid);
}

static int writer_clear(PyObject *object) {
  Py_CLEAR(((struct rc_py_writer *)object)->watch);
  return 0;
}

/* ---- In place --------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(reserve_doc,
             "reserve($self, n, timeout=None)\n--\n\n"
             "Lend `n` bytes of the ring, or of spill memory, to be written in place: a Span. No reader sees anything "
             "before commit(). One at a\ntime.\n\n"
             "    with writer.reserve(16) as span, memoryview(span) as view:\n"
             "        view[:] = bytes(16)                 # committed at the end of the block\n\n"
             "Timeout and errors as send(); Error (EBUSY): one is open already.");
static PyObject *writer_reserve(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  int64_t timeout_ns;
  uint64_t bytes;
  if (!rc_py_amount_arguments("reserve", args, count, keywords, PY_SSIZE_T_MAX, &bytes, &timeout_ns)) return NULL;
  if (!rc_py_writer_enter(self)) return NULL;
  struct rc_py_reservation call = {.writer = self, .bytes = bytes};
  int rc = rc_py_wait_for_room(self, rc_py_try_reserve, &call, timeout_ns);
  rc_py_watch_after(self->watch, self->pid, rc);
  rc_py_writer_leave(self);
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

PyDoc_STRVAR(commit_doc,
             "commit($self, n=None, *, kind=0)\n--\n\n"
             "Publish the first `n` bytes (None: all) of the open reservation as one frame. kind: KIND_BYTES, or "
             "KIND_TENSORS\nif they are a whole frame as Reader.next() lends it, to be passed on.\n\n"
             "Error (ENOTSUP): its tensors lie in device memory of the Writer that it came from; the reservation stays "
             "open.\n"
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
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  int64_t timeout_ns;
  uint64_t wanted;
  if (!rc_py_amount_arguments("wait_readers", args, count, keywords, UINT32_MAX, &wanted, &timeout_ns)) return NULL;
  if (!rc_py_writer_enter(self)) return NULL;
  struct attendance call = {.writer = self->writer, .count = (uint32_t)wanted};
  int rc = rc_py_wait(try_wait_readers, &call, timeout_ns);
  rc_py_writer_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : PyLong_FromLong(rc);
}

PyDoc_STRVAR(
    peers_doc,
    "peers($self)\n--\n\n"
    "The readers that hold a slot now: a list of ReaderStatus(slot, pid, state, name, position, lag, stalls, stats, "
    "wait, held). "
    "state is\n\"joining\", \"active\", \"stopped\" (by a signal or a debugger: slow, not dead), \"dead\", or "
    "\"evicted\" while it "
    "lives;\nposition and lag are in bytes; held is for how many seconds the writer has been waiting for it. Each is "
    "true of "
    "some moment.");
static PyObject *writer_peers(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!rc_py_writer_enter(self)) return NULL;
  struct ringcast_peer *peers = rc_py_new_peers(self->info.readers);
  int count = peers ? ringcast_writer_peers(self->writer, peers, self->info.readers) : 0;
  rc_py_writer_leave(self);
  if (!peers) return PyErr_NoMemory();
  PyObject *list =
      count < 0 ? rc_py_raise(rc_py_state_of(self), count) : rc_py_peers(rc_py_state_of(self), peers, count);
  PyMem_Free(peers);
  return list;
}
PyDoc_STRVAR(readers_doc, "readers($self)\n--\n\nThe same as peers().");

PyDoc_STRVAR(check_doc,
             "check($self)\n--\n\n"
             "Look whether all readers live: a ReaderStatus of one that does not, or that was evicted since the last "
             "call, or "
             "None: all is\nwell. With on_death=\"evict\" each is told once, so call again until None; with \"fail\" a "
             "dead "
             "one is told at each call.\nNobody waits. One system call, where the kernel has pidfds.\n\n"
             "Error: EMFILE, ENFILE, ENOMEM of the kernel.");
static PyObject *writer_check(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct ringcast_peer peer = {.size = sizeof peer};
  if (!rc_py_writer_enter(self)) return NULL;
  int rc = ringcast_writer_check(self->writer, &peer);
  rc_py_writer_leave(self);
  if (rc < 0) return rc_py_raise(rc_py_state_of(self), rc);
  return rc > 0 ? rc_py_peer(rc_py_state_of(self), &peer) : rc_py_ref(Py_None);
}

PyDoc_STRVAR(fileno_doc,
             "fileno($self)\n--\n\n"
             "A descriptor for select, poll, epoll and asyncio's add_reader: readable when a reader has died. Then "
             "call "
             "check(). Readers\nthat attach later are watched from the next check(), wait_readers() or fileno() on. It "
             "is "
             "the same at each call, and goes\nwith the Writer: never read or close it. Errors as check().");
static PyObject *writer_fileno(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!rc_py_writer_enter(self)) return NULL;
  int fd = ringcast_writer_fd(self->writer);
  rc_py_writer_leave(self);
  return fd < 0 ? rc_py_raise(rc_py_state_of(self), fd) : PyLong_FromLong(fd);
}

/* ---- Estimates -------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(estimate_doc,
             "estimate($self, tag)\n--\n\n"
             "Bytes to reserve() for the next frame of `tag`, 32 bits of the caller's own, so that it seldom has to "
             "grow: a little\nmore than the third largest of the last 32 to 64 that learn() was told; 4096 for a new "
             "tag; never more than max_frame.\nsend() has no need of it: it knows the size.\n\n"
             "ValueError: the tag is out of range.");
static PyObject *writer_estimate(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"tag", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[1] = {NULL};
  uint64_t tag;
  if (!rc_py_arguments("estimate", names, 1, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_integer("tag", values[0], 0, UINT32_MAX, &tag)) return NULL;
  if (!rc_py_check_process(rc_py_state_of(self), self->pid) || !rc_py_writer_enter(self)) return NULL;
  size_t bytes = ringcast_writer_estimate(self->writer, (uint32_t)tag);
  rc_py_writer_leave(self);
  return PyLong_FromSize_t(bytes);
}

PyDoc_STRVAR(learn_doc, "learn($self, tag, n)\n--\n\n"
                        "Tell estimate() that a frame of `tag` took `n` bytes. About 64 tags are remembered, those "
                        "told of last.\n\nValueError: out of range.");
static PyObject *writer_learn(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"tag", "n", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[2] = {NULL};
  uint64_t tag, bytes;
  if (!rc_py_arguments("learn", names, 2, 2, args, count, keywords, values)) return NULL;
  if (!rc_py_integer("tag", values[0], 0, UINT32_MAX, &tag)) return NULL;
  if (!rc_py_integer("n", values[1], 0, PY_SSIZE_T_MAX, &bytes)) return NULL;
  if (!rc_py_check_process(rc_py_state_of(self), self->pid) || !rc_py_writer_enter(self)) return NULL;
  ringcast_writer_learn(self->writer, (uint32_t)tag, bytes);
  rc_py_writer_leave(self);
  Py_RETURN_NONE;
}

/* ---- Closing, looking ------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(close_doc,
             "close($self)\n--\n\n"
             "Say that no more comes and let go of the ring: readers read what was sent, then get WriterGone. An open\n"
             "reservation is aborted. Closing twice is fine. BufferError: a memoryview of the Span is still in use, or "
             "a\nLoan is open.");
static PyObject *writer_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!self->writer) Py_RETURN_NONE;
  if (!rc_py_enter(&self->busy, self->pid, "Writer")) return NULL;
  bool may_close = rc_py_writer_may_end(self, "close the Writer") && rc_py_loans_may_close(self);
  if (may_close) {
    rc_py_watch_close(&self->watch, self->pid);
    ringcast_writer *writer = self->writer;
    self->writer = NULL;
    self->lease.open = false;
    rc_py_gpu_writer_shut(self, true);
    ringcast_writer_close(writer);
  }
  rc_py_writer_leave(self);
  return may_close ? rc_py_ref(Py_None) : NULL;
}

PyDoc_STRVAR(cancel_doc,
             "cancel($self)\n--\n\n"
             "Make the wait that another thread is in on this Writer, and every later call that would have to wait, "
             "raise\nCancelled. Any thread; it can't be taken back.");
static PyObject *writer_cancel(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!self->writer) return PyErr_Format(PyExc_ValueError, "the Writer is closed");
  if (!rc_py_check_process(rc_py_state_of(self), self->pid)) return NULL;
  ringcast_writer_cancel(self->writer); /* close can't run meanwhile: this thread has the GIL */
  Py_RETURN_NONE;
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

PyDoc_STRVAR(
    info_doc,
    "info($self)\n--\n\n"
    "The ring's facts: Info(capacity, max_frame, tail, readers, memory, page_size, writer_pid, spin_ns, numa, "
    "numa_node,\nnuma_error, spill_error, ring_frame, spill_bytes, spill_used, wait). Sizes are in bytes; tail is how "
    "many were sent so\nfar, headers and rounding included; spill_used is what the ring has of spill memory now.");
static PyObject *writer_info(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct ringcast_info info = {.size = sizeof info};
  if (!rc_py_writer_enter(self)) return NULL;
  int rc = ringcast_writer_info(self->writer, &info);
  rc_py_writer_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_info(rc_py_state_of(self), &info);
}

PyDoc_STRVAR(stats_doc,
             "stats($self)\n--\n\n"
             "What this Writer has done so far: Stats(frames, bytes, waits, sleeps, wakes, waited_ns, histogram).");
static PyObject *writer_stats(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct ringcast_stats stats = {.size = sizeof stats};
  if (!rc_py_writer_enter(self)) return NULL;
  int rc = ringcast_writer_stats(self->writer, &stats);
  rc_py_writer_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_stats(rc_py_state_of(self), &stats);
}

static PyObject *get_memory(PyObject *object, void *Py_UNUSED(closure)) {
  return PyUnicode_FromString(ringcast_memory_name(((struct rc_py_writer *)object)->info.memory));
}

static PyObject *get_closed(PyObject *object, void *Py_UNUSED(closure)) {
  return PyBool_FromLong(!((struct rc_py_writer *)object)->writer);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef writer_methods[] = {
    {"send", FAST(rc_py_writer_send), METH_FASTCALL | METH_KEYWORDS, rc_py_send_doc},
    {"send_bytes", FAST(rc_py_writer_send_bytes), METH_FASTCALL | METH_KEYWORDS, rc_py_send_bytes_doc},
    {"send_error", FAST(rc_py_writer_send_error), METH_FASTCALL | METH_KEYWORDS, rc_py_send_error_doc},
    {"asend", FAST(rc_py_writer_asend), METH_FASTCALL | METH_KEYWORDS, rc_py_asend_doc},
    {"_offer", FAST(rc_py_writer_offer), METH_FASTCALL, NULL},
    {"room_fileno", rc_py_writer_room_fileno, METH_NOARGS, rc_py_room_fileno_doc},
    {"reserve", FAST(writer_reserve), METH_FASTCALL | METH_KEYWORDS, reserve_doc},
    {"commit", FAST(writer_commit), METH_FASTCALL | METH_KEYWORDS, commit_doc},
    {"abort", writer_abort, METH_NOARGS, abort_doc},
    {"wait_readers", FAST(writer_wait_readers), METH_FASTCALL | METH_KEYWORDS, wait_readers_doc},
    {"peers", writer_peers, METH_NOARGS, peers_doc},
    {"readers", writer_peers, METH_NOARGS, readers_doc},
    {"check", writer_check, METH_NOARGS, check_doc},
    {"fileno", writer_fileno, METH_NOARGS, fileno_doc},
    {"lend", rc_py_writer_lend, METH_O, rc_py_writer_lend_doc},
    {"estimate", FAST(writer_estimate), METH_FASTCALL | METH_KEYWORDS, estimate_doc},
    {"learn", FAST(writer_learn), METH_FASTCALL | METH_KEYWORDS, learn_doc},
    {"cancel", writer_cancel, METH_NOARGS, cancel_doc},
    {"info", writer_info, METH_NOARGS, info_doc},
    {"stats", writer_stats, METH_NOARGS, stats_doc},
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
    {"max_frame", T_ULONGLONG, offsetof(struct rc_py_writer, info.max_frame), READONLY,
     "The largest frame's bytes, spill memory included."},
    {"ring_frame", T_ULONGLONG, offsetof(struct rc_py_writer, info.ring_frame), READONLY,
     "Bytes of the largest frame that stays in the ring; a larger one goes through spill memory."},
    {"spill_bytes", T_ULONGLONG, offsetof(struct rc_py_writer, info.spill_bytes), READONLY,
     "The most spill memory there can be; 0: there is none."},
    {"page_size", T_ULONGLONG, offsetof(struct rc_py_writer, info.page_size), READONLY,
     "Bytes of a page of the ring's memory."},
    {"_allow_pickle", T_BOOL, offsetof(struct rc_py_writer, allow_pickle), READONLY, NULL},
    {"_watch", T_OBJECT, offsetof(struct rc_py_writer, watch), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef writer_properties[] = {
    {"memory", get_memory, NULL, "Which memory was got: \"hugetlb\", \"shmem-huge\" or \"pages\".", NULL},
    {"closed", get_closed, NULL, "Whether close() was called.", NULL},
    {"gpu", rc_py_writer_gpu, NULL, rc_py_gpu_doc, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(writer_doc,
             "Writer(capacity=None, readers=64, *, memory='auto', spin=None, numa='local', spill_bytes=None,\n"
             "       allow_pickle=None, on_death='fail', on_slow='fail', slow=None, gpu_pool_bytes=None,\n"
             "       gpu_inline_most=None, gpu_full='inline', gpu_lend=False)\n--\n\n"
             "Makes a ring and sends through it to every process that attaches a Reader to its handle.\n\n"
             "capacity: bytes of the ring, rounded up to a power of two; default: by the L3 cache, 4 to 32 MiB. "
             "readers: the most at once.\n"
             "memory: \"hugetlb\", \"shmem-huge\", \"pages\", or \"auto\": what the environment's RINGCAST_MEMORY "
             "names, else the\nfirst of them that can be had. One that is named and can't be had is an error.\n"
             "spin: seconds that a wait spins before it sleeps; None is 20 µs (with fewer CPUs than parties it "
             "yields\nfor 50 µs at most), 0 never spins.\n"
             "numa: where the memory lies on a machine of several nodes: \"local\" to this CPU, \"none\" (as the "
             "kernel will), \"interleaved\",\nor a node's number; what can't be had is no error, info() tells.\n"
             "spill_bytes: the most memory beside the ring for what is too large for it, rounded up to 2 MiB, and "
             "taken only as it is\nused. None: what the environment's RINGCAST_SPILL_BYTES says, else 4 GiB, or half "
             "of what is free if that is less; 0: none.\n"
             "allow_pickle: False refuses to send what would need a pickle; None: as the environment's "
             "RINGCAST_ALLOW_PICKLE says,\n0 or 1 (the default).\n"
             "on_death: what the call does that finds a dead reader in its way: \"fail\" raises ReaderDied, \"evict\" "
             "goes on "
             "without it. slow:\nseconds that a live reader may be in the way, over all calls until one succeeds; "
             "None: for "
             "ever. on_slow: the same for one\nthat was: \"fail\" raises TimeoutError, \"evict\" goes on, and that "
             "reader gets "
             "Evicted.\n"
             "gpu_pool_bytes: memory of the device that tensors on it go through, taken by the first one; None: what "
             "the environment's\nRINGCAST_GPU_POOL_BYTES says, else 256 MiB; 0: none, they go through the ring. "
             "gpu_inline_most: those of a frame that have\nno more bytes together go through the ring anyway. "
             "gpu_full: when the pool has no room, a frame goes through the ring\n(\"inline\"), or send() raises "
             "TimeoutError (\"raise\"). gpu_lend: needed only if other tensors on a device are sent "
             "before the first\nlend().\n\n"
             "One thread at a time: a second gets RuntimeError. After fork the child gets ForkedError.\n"
             "ValueError: an argument out of range. Error: the kernel's errno, if the memory can't be had.");
static PyType_Slot writer_slots[] = {
    {Py_tp_doc, (void *)writer_doc}, {Py_tp_new, writer_new},
    {Py_tp_dealloc, writer_dealloc}, {Py_tp_methods, writer_methods},
    {Py_tp_members, writer_members}, {Py_tp_getset, writer_properties},
    {Py_tp_traverse, writer_traverse}, {Py_tp_clear, writer_clear},
    {Py_tp_finalize, writer_finalize},
    {Py_tp_repr, writer_repr},       {0, NULL},
};
PyType_Spec rc_py_writer_spec = {"ringcast.Writer", sizeof(struct rc_py_writer), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, writer_slots};
