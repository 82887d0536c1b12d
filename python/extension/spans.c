/* SPDX-License-Identifier: Apache-2.0 */
/* The buffer of spans, and its subscribers: see spans.h. */
#include "python/extension/spans.h"
#include "python/extension/errors.h"

#include <stdlib.h>

enum { MOST_NAMES = 1024, MOST_PHASES = 8, MOST_CAPACITY = 1 << 20, DELIVER_AT = 4 };
#define OLD_NS INT64_C(1000000000)

struct phase {
  int64_t start, end;
  enum rc_py_trace_kind kind;
};

struct rc_py_trace {
  struct rc_py_trace *next; /* a spare one */
  uint64_t ring, position, bytes;
  int64_t start;
  uint32_t depth, count;
  int32_t thread;
  bool is_open;   /* the last phase goes on */
  bool has_frame; /* position and bytes are known */
  struct phase phases[MOST_PHASES];
};

struct record {
  int64_t start, end, position;
  uint64_t ring, bytes;
  int32_t thread;
  enum rc_py_trace_kind kind;
};

bool rc_py_spans_on;

static struct {
  PyObject *functions, *type; /* a tuple of the subscribers, and ringcast._spans.Span */
  PyObject *kinds[RC_PY_TRACE_KINDS];
  PyObject *names; /* {ring: (name, Reader's name)} */
  struct record *records;
  uint32_t count, capacity;
  uint64_t dropped;
  unsigned deliveries; /* under way, in all threads */
  struct rc_py_trace *spare;
} spans;

/* In this thread: the subscriber's own calls deliver nothing. */
static _Thread_local bool is_delivering;

/* ---- Recording ------------------------------------------------------------------------------- */

uint64_t rc_py_spans_ring(PyObject *handle) {
  Py_ssize_t bytes;
  const char *text = PyUnicode_AsUTF8AndSize(handle, &bytes);
  char digits[17] = {0};
  if (!text) PyErr_Clear();
  if (!text || bytes < 32) return 0;
  memcpy(digits, text + bytes - 32, 16);
  return strtoull(digits, NULL, 16);
}

void rc_py_spans_name(uint64_t ring, const char *name, const char *reader) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (!spans.names) spans.names = PyDict_New();
  PyObject *key = PyLong_FromUnsignedLongLong(ring);
  PyObject *both =
      Py_BuildValue("(NN)", PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "replace"),
                    PyUnicode_DecodeUTF8(reader, (Py_ssize_t)strlen(reader), "replace"));
  if (spans.names && key && both && PyDict_GET_SIZE(spans.names) < MOST_NAMES)
    PyDict_SetItem(spans.names, key, both);
  Py_XDECREF(key);
  Py_XDECREF(both);
  PyErr_Restore(type, value, traceback); /* without memory the ring has no name */
}

static void add(const struct rc_py_trace *trace, const struct phase *phase, int64_t position,
                uint64_t bytes) {
  if (spans.count == spans.capacity) {
    spans.dropped++;
    return;
  }
  spans.records[spans.count++] = (struct record){.start = phase->start,
                                                 .end = phase->end,
                                                 .position = position,
                                                 .ring = trace->ring,
                                                 .bytes = bytes,
                                                 .thread = trace->thread,
                                                 .kind = phase->kind};
}

void rc_py_spans_begin(struct rc_py_trace **out, uint64_t ring) {
  if (*out) {
    (*out)->depth++;
    return;
  }
  struct rc_py_trace *trace = spans.spare;
  if (trace) spans.spare = trace->next;
  else trace = PyMem_RawMalloc(sizeof *trace);
  if (!trace) return; /* the call is not recorded */
  trace->ring = ring;
  trace->position = 0;
  trace->bytes = 0;
  trace->depth = 1;
  trace->count = 0;
  trace->is_open = false;
  trace->has_frame = false;
  trace->thread = (int32_t)PyThread_get_thread_native_id();
  trace->start = rc_py_now_ns();
  *out = trace;
}

static void end_phase(struct rc_py_trace *trace, int64_t now) {
  if (trace->is_open) trace->phases[trace->count - 1].end = now;
  trace->is_open = false;
}

void rc_py_spans_begin_phase(struct rc_py_trace *trace, enum rc_py_trace_kind kind) {
  int64_t now = rc_py_now_ns();
  bool goes_on = trace->is_open && trace->phases[trace->count - 1].kind == kind;
  if (goes_on || trace->count == MOST_PHASES) return;
  end_phase(trace, now);
  trace->phases[trace->count++] = (struct phase){.start = now, .kind = kind};
  trace->is_open = true;
}

void rc_py_spans_end_frame(struct rc_py_trace *trace, uint64_t position, uint64_t bytes) {
  end_phase(trace, rc_py_now_ns());
  for (uint32_t i = 0; i < trace->count; i++)
    add(trace, &trace->phases[i], (int64_t)position, bytes);
  trace->count = 0;
  if (!trace->has_frame) trace->position = position;
  trace->has_frame = true;
  trace->bytes += bytes;
}

/* ---- Delivering ------------------------------------------------------------------------------ */

static PyObject *span_of(const struct record *record) {
  PyObject *values =
      Py_BuildValue("(OLLiKLK)", spans.kinds[record->kind], (long long)record->start,
                    (long long)record->end, (int)record->thread, (unsigned long long)record->ring,
                    (long long)record->position, (unsigned long long)record->bytes);
  PyObject *args = values ? PyTuple_Pack(1, values) : NULL;
  PyObject *span = args ? PyTuple_Type.tp_new((PyTypeObject *)spans.type, args, NULL) : NULL;
  Py_XDECREF(args);
  Py_XDECREF(values);
  return span;
}

/* The spans in the buffer as a list; the buffer is then empty. NULL: raised. The list is made from
 * a copy: the collector may run, and with the collector any code, also code that records spans. */
static PyObject *take(void) {
  uint32_t count = spans.count;
  struct record *records = PyMem_RawMalloc(count * sizeof *records + 1);
  if (!records) return PyErr_NoMemory();
  if (count > 0) memcpy(records, spans.records, count * sizeof *records);
  spans.count = 0;
  PyObject *list = PyList_New(count);
  for (uint32_t i = 0; list && i < count; i++) {
    PyObject *span = span_of(&records[i]);
    if (span) PyList_SET_ITEM(list, i, span);
    else Py_CLEAR(list);
  }
  if (!list) spans.dropped += count;
  PyMem_RawFree(records);
  return list;
}

/* A subscriber failed. SystemExit and the like, perhaps of a signal's handler, are the program's:
 * the first becomes *late. */
static void report(PyObject *function, PyObject **late) {
  PyObject *type, *traceback;
  if (*late || PyErr_ExceptionMatches(PyExc_Exception)) {
    PyErr_WriteUnraisable(function);
    return;
  }
  PyErr_Fetch(&type, late, &traceback);
  PyErr_NormalizeException(&type, late, &traceback);
  if (traceback) PyException_SetTraceback(*late, traceback);
  Py_XDECREF(traceback);
  Py_DECREF(type);
}

static int raise_late(void *late) {
  PyErr_SetObject((PyObject *)Py_TYPE(late), late);
  Py_DECREF(late);
  return -1;
}

/* Preserves the current exception. */
static void deliver(void) {
  PyObject *type, *value, *traceback, *late = NULL;
  if (is_delivering || spans.count == 0 || !spans.functions) return;
  is_delivering = true;
  spans.deliveries++;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject *functions = Py_NewRef(spans.functions);
  PyObject *list = take();
  if (!list) report(functions, &late);
  for (Py_ssize_t i = 0; list && i < PyTuple_GET_SIZE(functions); i++) {
    PyObject *none = PyObject_CallOneArg(PyTuple_GET_ITEM(functions, i), list);
    if (!none) report(PyTuple_GET_ITEM(functions, i), &late);
    Py_XDECREF(none);
  }
  Py_XDECREF(list);
  Py_DECREF(functions);
  if (late && Py_AddPendingCall(raise_late, late) != 0) { /* too many calls are pending */
    raise_late(late);
    PyErr_WriteUnraisable(NULL);
  }
  PyErr_Restore(type, value, traceback);
  if (spans.deliveries > 0) spans.deliveries--;
  is_delivering = false;
}

static void deliver_due(int64_t now) {
  if (spans.deliveries > 0 || spans.count == 0) return;
  if (spans.count >= spans.capacity / DELIVER_AT || now - spans.records[0].end >= OLD_NS) deliver();
}

void rc_py_spans_deliver_old(void) {
  if (rc_py_spans_on) deliver_due(rc_py_now_ns());
}

void rc_py_spans_end_call(struct rc_py_trace **out, enum rc_py_trace_kind kind, bool is_nothing) {
  struct rc_py_trace *trace = *out;
  if (--trace->depth > 0) return;
  int64_t now = rc_py_now_ns();
  bool is_left_out = !rc_py_spans_on || (is_nothing && !trace->has_frame);
  end_phase(trace, now);
  if (!is_left_out && !is_nothing) { /* phases of no frame */
    for (uint32_t i = 0; i < trace->count; i++) add(trace, &trace->phases[i], -1, 0);
  }
  if (!is_left_out && kind != RC_PY_CALL_NONE) {
    const struct phase whole = {.start = trace->start, .end = now, .kind = kind};
    int64_t position = trace->has_frame ? (int64_t)trace->position : -1;
    add(trace, &whole, position, trace->bytes);
  }
  *out = NULL;
  trace->next = spans.spare;
  spans.spare = trace;
  if (rc_py_spans_on) deliver_due(now);
}

/* ---- For ringcast/_spans.py ------------------------------------------------------------------ */

static bool make_names(void) {
  static const char *const names[RC_PY_TRACE_KINDS] = {"send",    "encode", "wait_room",  "copy",
                                                       "publish", "recv",   "wait_frame", "decode"};
  for (int i = 0; i < RC_PY_TRACE_KINDS; i++) {
    if (!spans.kinds[i]) spans.kinds[i] = PyUnicode_InternFromString(names[i]);
    if (!spans.kinds[i]) return false;
  }
  if (!spans.type) spans.type = rc_py_import("ringcast._spans", "Span");
  return spans.type;
}

/* _spans_start(functions, capacity): turns spans on, with an empty buffer. Also for a forked
 * child. */
static PyObject *start(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *functions;
  unsigned capacity;
  if (!PyArg_ParseTuple(args, "O!I:_spans_start", &PyTuple_Type, &functions, &capacity)) {
    return NULL;
  }
  if (!make_names()) return NULL;
  if (capacity < DELIVER_AT || capacity > MOST_CAPACITY)
    return PyErr_Format(PyExc_ValueError, "capacity must be from %d to %d, not %u", DELIVER_AT,
                        MOST_CAPACITY, capacity);
  struct record *records = PyMem_RawMalloc(capacity * sizeof *records);
  if (!records) return PyErr_NoMemory();
  PyMem_RawFree(spans.records);
  spans.records = records;
  spans.count = 0;
  spans.dropped = 0;
  spans.capacity = capacity;
  spans.deliveries = is_delivering;
  Py_XSETREF(spans.functions, Py_NewRef(functions));
  rc_py_spans_on = true;
  Py_RETURN_NONE;
}

/* _spans_stop(): turns spans off, and drops those in the buffer. */
static PyObject *stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  rc_py_spans_on = false;
  PyMem_RawFree(spans.records);
  spans.records = NULL;
  spans.count = 0;
  spans.capacity = 0;
  Py_CLEAR(spans.functions);
  Py_RETURN_NONE;
}

static PyObject *set_functions(PyObject *Py_UNUSED(module), PyObject *functions) {
  if (!PyTuple_Check(functions))
    return PyErr_Format(PyExc_TypeError, "_spans_functions() takes a tuple");
  Py_XSETREF(spans.functions, Py_NewRef(functions));
  Py_RETURN_NONE;
}

static PyObject *flush(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  deliver();
  Py_RETURN_NONE;
}

static PyObject *names(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return spans.names ? PyDict_Copy(spans.names) : PyDict_New();
}

static PyObject *dropped(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyLong_FromUnsignedLongLong(spans.dropped);
}

PyMethodDef rc_py_spans_functions[] = {
    {"_spans_start", start, METH_VARARGS, NULL},
    {"_spans_stop", stop, METH_NOARGS, NULL},
    {"_spans_functions", set_functions, METH_O, NULL},
    {"_spans_flush", flush, METH_NOARGS, NULL},
    {"_spans_dropped", dropped, METH_NOARGS, NULL},
    {"_spans_names", names, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
