/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments, seconds and waiting, for all calls. */
#ifndef RC_EXTENSION_CALL_H
#define RC_EXTENSION_CALL_H

#include "python/extension/state.h"

/* Sorts a vectorcall's arguments by `names` (NULL at the end) into `out`, which starts as NULLs.
 * The first `positional` may come without a name, the first `required` must be there. */
bool rc_py_arguments(const char *function, const char *const *names, Py_ssize_t positional,
                     Py_ssize_t required, PyObject *const *arguments, Py_ssize_t count,
                     PyObject *keywords, PyObject **out);
/* None -> RINGCAST_FOREVER; seconds -> nanoseconds. */
bool rc_py_timeout(PyObject *object, int64_t *out);
/* The arguments of Writer(), Reader() or Tap(), checked: the result of ringcast._options. NULL:
 * raised. */
PyObject *rc_py_checked(const char *name, PyObject *args, PyObject *keywords);
/* A bool; NULL or None: the present value of RINGCAST_ALLOW_PICKLE in os.environ, else true. */
bool rc_py_allow_pickle(struct rc_py_state *state, PyObject *object, bool *out);
/* Reads the arguments allow_pickle and classes. `out`: without pickles, a new reference to a cache
 * for codec/classes.c with only the classes that a frame may name; else NULL. False: raised. */
bool rc_py_classes_allowed(struct rc_py_state *state, PyObject *pickle, PyObject *classes,
                           bool *allow_pickle, PyObject **out);
/* An int from `low` to `high`. */
bool rc_py_integer(const char *name, PyObject *object, uint64_t low, uint64_t high, uint64_t *out);

/* Tries once with the GIL, then waits without the GIL in slices, so that Ctrl-C is seen whichever
 * thread got the signal. Returns the result of `attempt`, -EAGAIN or -ETIMEDOUT when the time is up
 * or the attempt gave RC_PY_TOO_SLOW, or RC_PY_RAISED. */
typedef int (*rc_py_attempt)(void *call, int64_t timeout_ns, bool has_gil);
int rc_py_wait(rc_py_attempt attempt, void *call, int64_t timeout_ns);
/* rc_py_wait for one of several waits with a common timeout: `deadline` is 0 until the first of the
 * waits has to sleep. `between`, if not NULL, is called with the GIL before each slice, and raises
 * nothing. */
typedef void (*rc_py_between)(void *call);
int rc_py_wait_until(rc_py_attempt attempt, rc_py_between between, void *call, int64_t timeout_ns,
                     int64_t *deadline);
/* Of CLOCK_MONOTONIC. */
int64_t rc_py_now_ns(void);

/* The arguments `n`, from 0 to `most`, and `timeout`. */
bool rc_py_amount_arguments(const char *function, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords, uint64_t most, uint64_t *n, int64_t *timeout_ns);
/* The only argument, `timeout`. */
bool rc_py_timeout_argument(const char *function, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords, int64_t *out);

/* 1: the UTF-8 of `text`, which the str holds; 0: the str has lone surrogates, so no UTF-8; -1:
 * raised. */
static inline int rc_py_utf8(PyObject *text, const char **out, Py_ssize_t *bytes) {
  if (PyUnicode_IS_COMPACT_ASCII(text)) {
    *out = PyUnicode_DATA(text);
    *bytes = PyUnicode_GET_LENGTH(text);
    return 1;
  }
  *out = PyUnicode_AsUTF8AndSize(text, bytes);
  if (*out) return 1;
  if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) return -1;
  PyErr_Clear();
  return 0;
}

/* Whether the answer to a question is yes: 1, 0, or -1, also for NULL (raised). Consumes
 * `answer`. */
static inline int rc_py_is_yes(PyObject *answer) {
  int yes = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  return yes;
}

/* Makes room for a further element of `size` bytes in an array of PyMem's that has `count`. False:
 * raised. */
bool rc_py_grow(void **array, size_t count, size_t *room, size_t size);

#endif
