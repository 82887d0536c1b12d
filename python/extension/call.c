/* SPDX-License-Identifier: Apache-2.0 */
/* What every call needs: see call.h. */
#include "python/extension/call.h"
#include "python/extension/errors.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* As long as a reader of the library sleeps at a time (RC_SLICE_NS): a shorter slice is a wake-up
 * more. */
#define SLICE_NS INT64_C(90000000)
/* After so many frames in a row without a wait, the task lets other tasks run: one turn of the
 * event loop costs as much as receiving a few frames. */
enum { MOST_SPENT = 64 };

/* ---- Arguments ------------------------------------------------------------------------------- */

static Py_ssize_t name_index(const char *const *names, PyObject *keyword) {
  for (Py_ssize_t i = 0; names[i]; i++) {
    if (PyUnicode_CompareWithASCIIString(keyword, names[i]) == 0) return i;
  }
  return -1;
}

bool rc_py_arguments(const char *function, const char *const *names, Py_ssize_t positional,
                     Py_ssize_t required, PyObject *const *arguments, Py_ssize_t count,
                     PyObject *keywords, PyObject **out) {
  if (count > positional) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zd positional argument%s, %zd given",
                 function, positional, positional == 1 ? "" : "s", count);
    return false;
  }
  for (Py_ssize_t i = 0; i < count; i++) out[i] = arguments[i];
  for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); i++) {
    PyObject *keyword = PyTuple_GET_ITEM(keywords, i);
    Py_ssize_t index = name_index(names, keyword);
    if (index < 0) {
      PyErr_Format(PyExc_TypeError, "%s() has no argument %R", function, keyword);
      return false;
    }
    if (out[index]) {
      PyErr_Format(PyExc_TypeError, "%s() got %R twice", function, keyword);
      return false;
    }
    out[index] = arguments[count + i];
  }
  for (Py_ssize_t i = 0; i < required; i++) {
    if (out[i]) continue;
    PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", function, names[i]);
    return false;
  }
  return true;
}

static bool seconds(PyObject *object, double *out) {
  double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred()) {
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
      PyErr_Format(PyExc_ValueError, "timeout is out of range: %R", object);
    } else if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError, "timeout must be seconds as a number, or None, not %.100s",
                   Py_TYPE(object)->tp_name);
    }
    return false;
  }
  if (isnan(value) || value < 0) {
    PyErr_Format(PyExc_ValueError, "timeout must be 0 or more seconds, not %R", object);
    return false;
  }
  *out = value;
  return true;
}

bool rc_py_timeout(PyObject *object, int64_t *out) {
  *out = RINGCAST_FOREVER;
  if (!object || object == Py_None) return true;
  double value;
  if (!seconds(object, &value)) return false;
  if (value > 3e9) return true; /* a century is for ever, and any other deadline fits */
  *out = (int64_t)(value * 1e9);
  if (value > 0 && *out == 0) *out = 1; /* less than a nanosecond is still a wait */
  return true;
}

/* Finds the dict of bytes in os.environ, which each change of os.environ goes through. */
static void find_environment(struct rc_py_state *state) {
  PyObject *name = PyBytes_FromString("RINGCAST_ALLOW_PICKLE");
  PyObject *mapping = rc_py_import("os", "environ");
  PyObject *data = mapping ? PyObject_GetAttrString(mapping, "_data") : NULL;
  Py_XDECREF(mapping);
  if (name && data && PyDict_CheckExact(data)) {
    state->environment = data;
    state->allow_pickle_name = name;
    return;
  }
  PyErr_Clear(); /* a program has put another object in the place of os.environ */
  Py_XDECREF(data);
  Py_XDECREF(name);
}

/* The value of RINGCAST_ALLOW_PICKLE, or NULL. A look into the dict takes two or three cache lines;
 * getenv() reads the text of each variable, a cold cache line each. */
static const char *allow_pickle_text(struct rc_py_state *state) {
  if (!state->environment) find_environment(state);
  if (!state->environment) return getenv("RINGCAST_ALLOW_PICKLE");
  PyObject *value = PyDict_GetItem(state->environment, state->allow_pickle_name);
  if (!value || !PyBytes_Check(value)) return NULL;
  return PyBytes_AS_STRING(value);
}

bool rc_py_allow_pickle(struct rc_py_state *state, PyObject *object, bool *out) {
  if (object && object != Py_None) {
    *out = object == Py_True;
    if (PyBool_Check(object)) return true;
    PyErr_Format(PyExc_TypeError, "allow_pickle must be True, False or None, not %.100s",
                 Py_TYPE(object)->tp_name);
    return false;
  }
  const char *text = allow_pickle_text(state);
  *out = !text || strcmp(text, "0") != 0;
  if (!*out || !text || !*text || strcmp(text, "1") == 0) return true;
  PyErr_Format(PyExc_ValueError, "RINGCAST_ALLOW_PICKLE is '%.40s': it must be 0 (no pickles) or 1",
               text);
  return false;
}

bool rc_py_classes_allowed(struct rc_py_state *state, PyObject *pickle, PyObject *classes,
                           bool *allow_pickle, PyObject **out) {
  *out = NULL;
  if (!rc_py_allow_pickle(state, pickle, allow_pickle)) return false;
  bool is_given = classes && classes != Py_None;
  if (is_given && pickle == Py_True) {
    PyErr_SetString(PyExc_ValueError,
                    "classes says what a frame may name where pickles are turned off, and "
                    "allow_pickle=True allows them: give one of both");
    return false;
  }
  if (is_given) *allow_pickle = false;
  if (*allow_pickle) return true;
  if (!state->allowed_classes) {
    state->allowed_classes = rc_py_import("ringcast._allowed", "allowed_classes");
  }
  if (!state->allowed_classes) return false;
  *out = PyObject_CallOneArg(state->allowed_classes, is_given ? classes : Py_None);
  return *out;
}

PyObject *rc_py_checked(const char *name, PyObject *args, PyObject *keywords) {
  PyObject *function = rc_py_import("ringcast._options", name);
  if (!function) return NULL;
  PyObject *checked = PyObject_Call(function, args, keywords);
  Py_DECREF(function);
  return checked;
}

bool rc_py_integer(const char *name, PyObject *object, uint64_t low, uint64_t high, uint64_t *out) {
  PyObject *number = PyNumber_Index(object);
  if (!number) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError, "%s must be an int, not %.100s", name,
                   Py_TYPE(object)->tp_name);
    }
    return false;
  }
  unsigned long long value = PyLong_AsUnsignedLongLong(number);
  Py_DECREF(number);
  bool raised = value == (unsigned long long)-1 && PyErr_Occurred();
  if (raised && !PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
  if (raised || value < low || value > high) {
    PyErr_Format(PyExc_ValueError, "%s must be from %llu to %llu, not %R", name,
                 (unsigned long long)low, (unsigned long long)high, object);
    return false;
  }
  *out = value;
  return true;
}

bool rc_py_amount_arguments(const char *function, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords, uint64_t most, uint64_t *n, int64_t *timeout_ns) {
  static const char *const names[] = {"n", "timeout", NULL};
  PyObject *values[2] = {NULL};
  return rc_py_arguments(function, names, 2, 1, args, count, keywords, values) &&
         rc_py_integer("n", values[0], 0, most, n) && rc_py_timeout(values[1], timeout_ns);
}

bool rc_py_timeout_argument(const char *function, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords, int64_t *out) {
  static const char *const names[] = {"timeout", NULL};
  PyObject *values[1] = {NULL};
  return rc_py_arguments(function, names, 1, 0, args, count, keywords, values) &&
         rc_py_timeout(values[0], out);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static int wait_in_slices(rc_py_attempt attempt, rc_py_between between, void *context,
                          int64_t timeout_ns, int64_t *deadline) {
  int rc = attempt(context, 0, true);
  if (rc != -EAGAIN && rc != -EINTR) return rc;
  if (timeout_ns == 0) return -EAGAIN;
  if (*deadline == 0 && timeout_ns < 0) *deadline = INT64_MAX;
  if (*deadline == 0) *deadline = rc_py_now_ns() + timeout_ns;
  for (;;) {
    /* Signals, and what spans.c has put off, are checked only after an attempt without a result, so
     * no result is lost. */
    if (Py_MakePendingCalls() < 0) return RC_PY_RAISED;
    if (between) between(context);
    int64_t left = *deadline - rc_py_now_ns();
    if (left <= 1) { /* once more, for the error text */
      rc = attempt(context, 1, true);
      return rc == -EINTR ? -ETIMEDOUT : rc;
    }
    if (left > SLICE_NS) left = SLICE_NS;
    Py_BEGIN_ALLOW_THREADS
    rc = attempt(context, left, false);
    Py_END_ALLOW_THREADS
    if (rc != -ETIMEDOUT && rc != -EINTR && rc != -EAGAIN) return rc;
  }
}

int rc_py_wait_until(rc_py_attempt attempt, rc_py_between between, void *context,
                     int64_t timeout_ns, int64_t *deadline) {
  int rc = wait_in_slices(attempt, between, context, timeout_ns, deadline);
  return rc == RC_PY_TOO_SLOW ? -ETIMEDOUT : rc;
}

int rc_py_wait(rc_py_attempt attempt, void *context, int64_t timeout_ns) {
  int64_t deadline = 0;
  return rc_py_wait_until(attempt, NULL, context, timeout_ns, &deadline);
}

/* ---- Copying --------------------------------------------------------------------------------- */

/*
 * To and from spill memory. Up to some MiB the C library's memcpy uses the CPU's string
 * instruction (rep movsb), which on AMD's Zen 4 takes more than twice as long as a plain loop for
 * bytes that another process has just written. Data too large for the cache is best written past
 * the cache: that spares the fetch of the lines to be overwritten. SSE2, which every x86-64 CPU
 * has, reaches the speed of the memory. On other CPUs the copy is memcpy.
 */

#ifdef __SSE2__
/* On return, the stores are ordered like ordinary stores. */
static void copy_past_cache(uint8_t *to, const uint8_t *from, size_t bytes) {
  enum { LINE = 64 };
  size_t done = (size_t)(-(uintptr_t)to % LINE);
  if (done > bytes) done = bytes;
  memcpy(to, from, done);
  for (; bytes - done >= LINE; done += LINE) {
    const __m128i *in = (const __m128i *)(from + done);
    __m128i *out = (__m128i *)(to + done);
    __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
            d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  memcpy(to + done, from + done, bytes - done);
  _mm_sfence();
}
#else
static void copy_past_cache(uint8_t *to, const uint8_t *from, size_t bytes) {
  memcpy(to, from, bytes);
}
#endif

void rc_py_copy_bytes(bool is_spilled, void *to, const void *from, size_t bytes) {
  enum { PAST_CACHE = 1 << 20 };
  if (is_spilled && bytes >= PAST_CACHE) copy_past_cache(to, from, bytes);
  else if (bytes) memcpy(to, from, bytes);
}

void rc_py_copy_maybe_without_gil(bool is_spilled, void *to, const void *from, size_t bytes) {
  PyThreadState *thread = bytes > RC_PY_COPY_WITH_GIL ? PyEval_SaveThread() : NULL;
  rc_py_copy_bytes(is_spilled, to, from, bytes);
  if (thread) PyEval_RestoreThread(thread);
}

/* ---- A handle's turn ------------------------------------------------------------------------- */

void *rc_py_handle_new(PyTypeObject *type, bool allow_pickle) {
  struct rc_py_handle *self = (void *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->pid = getpid();
  self->allow_pickle = allow_pickle;
  return self;
}

/* "Writer", of "ringcast.Writer". */
static const char *name_of(struct rc_py_handle *self) {
  return strchr(Py_TYPE(self)->tp_name, '.') + 1;
}

static bool is_open(struct rc_py_handle *self) {
  if (!self->closed) return true;
  PyErr_Format(PyExc_ValueError, "the %s is closed", name_of(self));
  return false;
}

bool rc_py_handle_enter(struct rc_py_handle *self) {
  if (self->busy && getpid() == self->pid) {
    PyErr_Format(PyExc_RuntimeError,
                 "this %s is in use, by another thread or by a call further up; give each thread "
                 "its own, or guard it with a lock",
                 name_of(self));
    return false;
  }
  self->busy = !self->closed;
  return self->busy || is_open(self);
}

bool rc_py_handle_check(struct rc_py_handle *self) {
  if (!is_open(self)) return false;
  if (getpid() == self->pid) return true;
  rc_py_raise_text(
      rc_py_state_of(self), ECHILD,
      "this handle belongs to the parent process: after fork, make or attach one in the child");
  return false;
}

PyObject *rc_py_handle_block(PyObject *self, PyObject *Py_UNUSED(unused)) {
  if (!is_open((struct rc_py_handle *)self)) return NULL;
  return Py_NewRef(self);
}

PyObject *rc_py_handle_exit(PyObject *self, PyObject *Py_UNUSED(exception)) {
  return PyObject_CallMethod(self, "close", NULL);
}

PyObject *rc_py_handle_reduce(PyObject *self, PyObject *Py_UNUSED(unused)) {
  const char *name = name_of((struct rc_py_handle *)self);
  const char *maker = strcmp(name, "Tap") == 0 ? "Tap" : "Reader";
  return PyErr_Format(PyExc_TypeError,
                      "a %s can't go to another process, nor be copied: pass %c%s.handle, and make "
                      "a %s(handle) there",
                      name, tolower(name[0]), name + 1, maker);
}

void rc_py_handle_record(struct rc_py_handle *self) {
  if (self->ring == 0) {
    self->ring = rc_py_spans_ring(self->text);
    rc_py_spans_name(self->ring, self->ring_name, self->name);
  }
  rc_py_spans_begin(&self->trace, self->ring);
}

/* ---- A handle in an event loop --------------------------------------------------------------- */

/* No frame can hold these two objects. */
int rc_py_loop_init(struct rc_py_state *state, PyObject *module) {
  state->nothing = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
  state->turn = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
  if (!state->nothing || !state->turn) return -1;
  if (PyObject_SetAttrString(module, "_nothing", state->nothing) < 0) return -1;
  return PyObject_SetAttrString(module, "_turn", state->turn);
}

PyObject *rc_py_pass_turn(struct rc_py_handle *self) {
  if (self->spent < MOST_SPENT) return NULL;
  self->spent = 0;
  return Py_NewRef(rc_py_state_of(self)->turn);
}

/* A forked child has no event loop to notify. */
static void tell_closed(PyObject *watch, pid_t pid) {
  PyObject *type, *value, *traceback;
  if (!watch || watch == Py_None || getpid() != pid) return;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject *result = PyObject_CallMethod(watch, "close", NULL);
  if (!result) PyErr_WriteUnraisable(watch);
  Py_XDECREF(result);
  PyErr_Restore(type, value, traceback);
}

void rc_py_watch_close(struct rc_py_handle *self) {
  PyObject *watch = self->watch;
  self->watch = NULL;
  tell_closed(watch, self->pid);
  Py_XDECREF(watch);
}

/* The watch stays the single queue of all waiting tasks: with a second queue for the same
 * descriptor, the loop would serve only one of the two. */
void rc_py_watch_after(struct rc_py_handle *self, int rc) {
  if (rc != -ENOBUFS) return;
  PyObject *watch = Py_XNewRef(self->watch);
  tell_closed(watch, self->pid);
  Py_XDECREF(watch);
}

/* ---- The collector --------------------------------------------------------------------------- */

int rc_py_handle_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(((struct rc_py_handle *)self)->watch);
  return 0;
}

int rc_py_handle_clear(PyObject *self) {
  Py_CLEAR(((struct rc_py_handle *)self)->watch);
  return 0;
}

/* Runs before the collector clears the watch, which knows the registration in the loop. */
void rc_py_handle_finalize(PyObject *self) { rc_py_watch_close((struct rc_py_handle *)self); }

void rc_py_handle_free(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  Py_XDECREF(((struct rc_py_handle *)self)->text);
  type->tp_free(self);
  Py_DECREF(type);
}

/* ---- Small ----------------------------------------------------------------------------------- */

bool rc_py_grow(void **array, size_t count, size_t *room, size_t size) {
  if (count < *room) return true;
  size_t larger = *room > 0 ? *room * 2 : 16;
  void *grown = PyMem_Realloc(*array, larger * size);
  if (!grown) {
    PyErr_NoMemory();
    return false;
  }
  *array = grown;
  *room = larger;
  return true;
}
