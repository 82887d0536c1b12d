/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loan: a tensor on a device that readers copy where it lies.
 *
 * The library lends whole allocations, which torch's allocator shares out among tensors of any kind. Only what lies
 * within the lent tensor itself goes that way here, as of that alone its owner has promised to leave it as it is. So
 * several Loans may be of one allocation: it is taken back with the last of them, and the others just end, once all has
 * been read.
 *
 * The Writer keeps the tensor, until it was taken back: a Loan that is dropped, or left by an exception, waits for
 * nobody, and later calls of the Writer try again. Who still has such a Loan is told the truth by it until then. What
 * is not back when the Writer goes is never freed, as readers may still copy it.
 */
#include "python/extension/device.h"

#include "python/docstrings.h"

#include <time.h>
#include <unistd.h>

#define PAUSE_NS 1000000 /* between two looks whether all has been read */

struct loan;

struct rc_py_lending {
  struct rc_py_lending *next; /* of the same Writer's */
  struct loan *loan;          /* NULL: nobody has it any more */
  PyObject *tensor;
  uint64_t address, bytes; /* the tensor's */
  uint64_t base;           /* of its allocation, and ... */
  uint32_t number;         /* ... the library's number of that */
  bool ending;             /* no more is sent of it; and ... */
  bool dropped;            /* ... the Writer is to take it back when it can */
};

struct loan {
  PyObject_HEAD struct rc_py_writer *writer; /* both NULL: ... */
  struct rc_py_lending *lending;             /* ... it was taken back, or ... */
  bool is_lost;                              /* ... the Writer has gone before */
};

/* ---- Sending ---------------------------------------------------------------------------------------------------- */

static void find_one(const struct rc_py_writer *writer, struct rc_py_part *part) {
  const struct ringcast_tensor *tensor = &part->source.tensor;
  uint64_t address = (uint64_t)(uintptr_t)tensor->data;
  if (tensor->strides && !rc_py_is_c_order(tensor->ndim, tensor->shape, tensor->strides)) return;
  for (const struct rc_py_lending *at = writer->lendings; at; at = at->next) {
    if (at->ending || address < at->address || address - at->address > at->bytes) continue;
    if (part->bytes > at->bytes - (address - at->address)) continue;
    part->lent = at->number;
    part->scalar.in_pool = address - at->base;
    return;
  }
}

bool rc_py_loans_find(const struct rc_py_writer *writer, struct rc_py_encoding *encoding) {
  bool any = false;
  for (size_t i = 0; writer->lendings && i < encoding->count; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    if (!rc_py_is_on_device(part)) continue;
    find_one(writer, part);
    any |= part->lent != 0;
  }
  return any;
}

int rc_py_loans_note(const struct rc_py_writer *writer, const struct rc_py_encoding *encoding,
                     struct ringcast_gpu_extent *lease) {
  int rc = 0;
  for (size_t i = 0; i < encoding->count && rc == 0; i++) {
    uint32_t number = encoding->parts[i].lent;
    if (number) rc = ringcast_gpu_lease_lent(writer->gpu, lease, number);
  }
  return rc;
}

/* ---- Taking it back --------------------------------------------------------------------------------------------- */

struct taking {
  struct rc_py_writer *writer;
  struct rc_py_lending *lending;
};

static int try_idle(void *context, int64_t timeout_ns) {
  const struct taking *call = context;
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  int64_t until = rc_py_now_ns() + timeout_ns;
  int idle;
  while ((idle = ringcast_gpu_lent_is_idle(call->writer->gpu, call->lending->number)) == 0) {
    if (rc_py_now_ns() >= until) return timeout_ns == 0 ? -EAGAIN : -ETIMEDOUT;
    nanosleep(&pause, NULL);
  }
  return idle < 0 ? idle : 0;
}

/* Whether another one is of the same allocation. */
static bool is_shared(const struct taking *call) {
  for (const struct rc_py_lending *at = call->writer->lendings; at; at = at->next) {
    if (at != call->lending && at->number == call->lending->number) return true;
  }
  return false;
}

static int try_back(void *context, int64_t timeout_ns) {
  struct taking *call = context;
  if (is_shared(call)) return try_idle(call, timeout_ns);
  return ringcast_gpu_writer_unlend(call->writer->gpu, call->lending->number, timeout_ns);
}

/* By who has a reference to the Writer of its own, or is its end: then no Loan has one. */
static void forget(struct rc_py_writer *writer, struct rc_py_lending *lending) {
  struct rc_py_lending **at = &writer->lendings;
  while (*at != lending) at = &(*at)->next;
  *at = lending->next;
  if (lending->loan) {
    lending->loan->lending = NULL;
    Py_CLEAR(lending->loan->writer);
  }
  Py_XDECREF(lending->tensor);
  PyMem_Free(lending);
}

void rc_py_loans_sweep(struct rc_py_writer *writer) {
  for (struct rc_py_lending *at = writer->lendings, *next; at; at = next) {
    next = at->next;
    struct taking call = {.writer = writer, .lending = at};
    if (at->dropped && try_back(&call, 0) == 0) forget(writer, at);
  }
}

bool rc_py_loans_may_close(const struct rc_py_writer *writer) {
  for (const struct rc_py_lending *at = writer->lendings; at; at = at->next) {
    if (at->dropped || writer->pid != getpid()) continue;
    PyErr_SetString(PyExc_BufferError, "can't close the Writer: a Loan of it is open, whose memory readers may copy; "
                                       "close() that first");
    return false;
  }
  return true;
}

void rc_py_loans_shut(struct rc_py_writer *writer) {
  if (writer->gpu && writer->pid == getpid()) rc_py_loans_sweep(writer);
  while (writer->lendings) {
    if (writer->lendings->loan) writer->lendings->loan->is_lost = true;
    writer->lendings->tensor = NULL; /* kept for good */
    forget(writer, writer->lendings);
  }
}

/* ---- Lending ---------------------------------------------------------------------------------------------------- */

static int lend(struct rc_py_writer *writer, int32_t device, struct rc_py_lending *out) {
  if (!writer->gpu) {
    writer->gpu_options.lends = true;
    int rc = rc_py_gpu_writer_open(writer, device);
    if (rc < 0) return rc;
  }
  if (!writer->gpu_options.lends) {
    PyErr_SetString(PyExc_ValueError, "this Writer has sent a tensor of a device already, and was not made to lend: "
                                      "Writer(..., gpu_lend=True), or lend before that");
    return RC_PY_RAISED;
  }
  rc_py_loans_sweep(writer);
  uint64_t bytes;
  int rc;
  Py_BEGIN_ALLOW_THREADS rc = ringcast_gpu_writer_lend(writer->gpu, out->address, &out->number);
  if (rc == 0) rc = ringcast_gpu_lent_range(writer->gpu, out->number, &out->base, &bytes);
  Py_END_ALLOW_THREADS if (rc < 0 || out->bytes <= bytes - (out->address - out->base)) return rc;
  const struct taking call = {.writer = writer, .lending = out};
  if (!is_shared(&call)) ringcast_gpu_writer_unlend(writer->gpu, out->number, 0); /* nobody has been sent of it */
  PyErr_SetString(PyExc_ValueError, "the tensor does not lie in one allocation");
  return RC_PY_RAISED;
}

PyObject *rc_py_writer_lend(PyObject *object, PyObject *tensor) {
  struct rc_py_writer *writer = (struct rc_py_writer *)object;
  struct rc_py_state *state = rc_py_state_of(writer);
  unsigned long long address, bytes;
  int device;
  PyObject *place = rc_py_device_call(state, "whereabouts", "(O)", tensor);
  bool ok = place && PyArg_ParseTuple(place, "iKK", &device, &address, &bytes);
  Py_XDECREF(place);
  struct loan *self = ok ? (struct loan *)state->loan_type->tp_alloc(state->loan_type, 0) : NULL;
  struct rc_py_lending *lending = self ? PyMem_Calloc(1, sizeof *lending) : NULL;
  if (self && !lending) PyErr_NoMemory();
  if (!lending || !rc_py_writer_enter(writer)) {
    PyMem_Free(lending);
    Py_XDECREF(self);
    return NULL;
  }
  lending->address = address;
  lending->bytes = bytes;
  int rc = lend(writer, device, lending);
  if (rc == 0) {
    lending->loan = self;
    lending->tensor = rc_py_ref(tensor);
    lending->next = writer->lendings;
    self->lending = writer->lendings = lending;
    self->writer = (struct rc_py_writer *)rc_py_ref(object);
  }
  rc_py_writer_leave(writer);
  if (rc == 0) return (PyObject *)self;
  PyMem_Free(lending);
  Py_DECREF(self);
  return rc_py_raise(state, rc);
}

/* ---- Loan ------------------------------------------------------------------------------------------------------- */

/* Who that is, as far as is known: one that is behind, or the only one. */
static bool name_reader(const struct rc_py_writer *writer, struct ringcast_peer *out) {
  struct ringcast_peer *peers = rc_py_new_peers(writer->info.readers);
  int count = peers ? ringcast_writer_peers(writer->writer, peers, writer->info.readers) : 0, found = 0;
  for (int i = 1; i < count; i++) {
    if (peers[i].lag > peers[found].lag) found = i;
  }
  bool is_known = count == 1 || (count > 1 && peers[found].lag > 0);
  if (is_known) *out = peers[found];
  PyMem_Free(peers);
  return is_known;
}

static PyObject *raise_timeout(const struct rc_py_writer *writer, bool ends) {
  const char *what = ends ? "has not read all that was sent of the lent tensor, or still has its memory open"
                          : "has not read all that was sent of the lent tensor";
  struct ringcast_peer peer = {.size = sizeof peer};
  if (name_reader(writer, &peer)) {
    return PyErr_Format(PyExc_TimeoutError, "reader %u (pid %d) %s", (unsigned)peer.slot, (int)peer.pid, what);
  }
  return PyErr_Format(PyExc_TimeoutError, "a reader %s", what);
}

/* Of a Loan that is not back. */
static PyObject *wait_for(struct loan *self, rc_py_attempt attempt, int64_t timeout_ns, bool ends) {
  struct taking call = {.writer = self->writer, .lending = self->lending};
  if (!rc_py_writer_enter(call.writer)) return NULL;
  Py_INCREF(call.writer); /* another thread may drop the Loan meanwhile */
  call.lending->ending |= ends;
  int rc = rc_py_wait(attempt, &call, timeout_ns);
  if (rc == 0 && ends) forget(call.writer, call.lending);
  PyObject *result = rc == 0                             ? rc_py_ref(Py_None)
                     : rc == -EAGAIN || rc == -ETIMEDOUT ? raise_timeout(call.writer, ends)
                                                         : rc_py_raise(rc_py_state_of(self), rc);
  rc_py_writer_leave(call.writer);
  Py_DECREF(call.writer);
  return result;
}

static PyObject *loan_wait(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  struct loan *self = (struct loan *)object;
  int64_t timeout_ns;
  if (!rc_py_timeout_argument("wait", args, count, keywords, &timeout_ns)) return NULL;
  if (self->lending) return wait_for(self, try_idle, timeout_ns, false);
  if (!self->is_lost) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, "the Writer of this Loan was closed before all was read of it: its memory stays as "
                                    "it is");
  return NULL;
}

static PyObject *loan_close(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  struct loan *self = (struct loan *)object;
  int64_t timeout_ns;
  if (!rc_py_timeout_argument("close", args, count, keywords, &timeout_ns)) return NULL;
  if (!self->lending) Py_RETURN_NONE;
  return wait_for(self, try_back, timeout_ns, true);
}

/* The Writer sees to it from here on. */
static void drop(struct loan *self) {
  if (self->lending) self->lending->ending = self->lending->dropped = true;
}

static bool is_closed(const struct loan *self) { return !self->lending || self->lending->dropped; }

static PyObject *loan_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  if (!is_closed((struct loan *)object)) return rc_py_ref(object);
  PyErr_SetString(PyExc_ValueError, "this Loan is closed");
  return NULL;
}

static PyObject *loan_exit(PyObject *object, PyObject *args) {
  struct loan *self = (struct loan *)object;
  bool failed = PyTuple_GET_SIZE(args) > 0 && PyTuple_GET_ITEM(args, 0) != Py_None;
  if (!failed) return loan_close(object, NULL, 0, NULL);
  drop(self);
  Py_RETURN_NONE;
}

static PyObject *get_idle(PyObject *object, void *Py_UNUSED(closure)) {
  struct loan *self = (struct loan *)object;
  struct rc_py_writer *writer = self->writer;
  if (!self->lending) return PyBool_FromLong(!self->is_lost);
  if (!rc_py_writer_enter(writer)) return NULL;
  int idle = ringcast_gpu_lent_is_idle(writer->gpu, self->lending->number);
  rc_py_writer_leave(writer);
  return idle < 0 ? rc_py_raise(rc_py_state_of(self), idle) : PyBool_FromLong(idle);
}

static PyObject *get_closed(PyObject *object, void *Py_UNUSED(closure)) {
  return PyBool_FromLong(is_closed((struct loan *)object));
}

static PyObject *loan_repr(PyObject *object) {
  struct loan *self = (struct loan *)object;
  if (is_closed(self)) return PyUnicode_FromString("<ringcast.Loan, closed>");
  return PyUnicode_FromFormat("<ringcast.Loan, %llu bytes, open>", (unsigned long long)self->lending->bytes);
}

static void loan_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  struct loan *self = (struct loan *)object;
  drop(self);
  if (self->lending) self->lending->loan = NULL;
  Py_XDECREF(self->writer);
  type->tp_free(object);
  Py_DECREF(type);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef loan_methods[] = {
    {"wait", FAST(loan_wait), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Loan_wait},
    {"close", FAST(loan_close), METH_FASTCALL | METH_KEYWORDS, RC_DOC_Loan_close},
    {"__enter__", loan_enter, METH_NOARGS, RC_DOC_Loan___enter__},
    {"__exit__", loan_exit, METH_VARARGS, RC_DOC_Loan___exit__},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef loan_properties[] = {
    {"idle", get_idle, NULL, RC_DOC_Loan_idle, NULL},
    {"closed", get_closed, NULL, RC_DOC_Loan_closed, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot loan_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_Loan}, {Py_tp_methods, loan_methods}, {Py_tp_getset, loan_properties},
    {Py_tp_dealloc, loan_dealloc},    {Py_tp_repr, loan_repr},       {0, NULL},
};
PyType_Spec rc_py_loan_spec = {"ringcast.Loan", sizeof(struct loan), 0, Py_TPFLAGS_DEFAULT, loan_slots};
