/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every call needs: arguments, a handle's turn, a wait that Ctrl-C can interrupt, and copies.
 *
 * A handle is the common part of Writer, Reader and Tap: the first member of each.
 */
#ifndef RC_EXTENSION_CALL_H
#define RC_EXTENSION_CALL_H

#include "python/extension/spans.h"
#include "python/extension/state.h"

/* The types can't be subclassed, so an instance's type is always the module's own. */
static inline struct rc_py_state *rc_py_state_of(void *self) {
  return PyType_GetModuleState(Py_TYPE((PyObject *)self));
}

/* ---- Arguments ------------------------------------------------------------------------------- */

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
/* The arguments `n`, from 0 to `most`, and `timeout`. */
bool rc_py_amount_arguments(const char *function, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords, uint64_t most, uint64_t *n, int64_t *timeout_ns);
/* The only argument, `timeout`. */
bool rc_py_timeout_argument(const char *function, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords, int64_t *out);

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Tries once with the GIL, then waits without the GIL in slices, so that Ctrl-C is seen whichever
 * thread got the signal.
 *   -EAGAIN        `timeout_ns` is 0, and the one attempt had to wait
 *   -ETIMEDOUT     the time is up, or the attempt gave RC_PY_TOO_SLOW: the wait ends early
 *   RC_PY_RAISED   a signal's handler raised, or the attempt did
 *   else           the result of the attempt
 * Within the time an attempt's own -EAGAIN, -ETIMEDOUT or -EINTR means: make it again. */
typedef int (*rc_py_attempt)(void *context, int64_t timeout_ns, bool has_gil);
int rc_py_wait(rc_py_attempt attempt, void *context, int64_t timeout_ns);
/* rc_py_wait for one of several waits with a common timeout: `deadline` is 0 until the first of the
 * waits has to sleep. `between`, if not NULL, is called with the GIL before each slice, and raises
 * nothing. */
typedef void (*rc_py_between)(void *context);
int rc_py_wait_until(rc_py_attempt attempt, rc_py_between between, void *context,
                     int64_t timeout_ns, int64_t *deadline);

/* ---- A handle's turn ------------------------------------------------------------------------- */

struct rc_py_handle {
  PyObject_HEAD PyObject *text; /* by which other processes attach */
  pid_t pid;                    /* of the creating process */
  bool busy;                    /* a call is at work */
  bool closed, allow_pickle;
  /* Whether the last send() or recv() raised what came up in the value, and not in a wait. For
   * recv() that is all that is raised once a frame has arrived, also Evicted. */
  bool value_failed;
  /* The descriptor in an event loop (ringcast._asyncio). NULL or None: never in a loop. */
  PyObject *watch;
  unsigned spent;            /* frames in a row for tasks, without a wait: see rc_py_spend */
  struct rc_py_trace *trace; /* the call at work, if its spans are recorded; else NULL */
  uint64_t ring;             /* rc_py_spans_ring; 0: not known yet */
  const char *ring_name;     /* for spans, as is ... */
  char name[32];             /* ... the name of a Reader; or empty */
};

/* A new instance of `type`, all zero but for the fields here. NULL: raised. */
void *rc_py_handle_new(PyTypeObject *type, bool allow_pickle);
/* A waiting task may refer to the handle. */
int rc_py_handle_traverse(PyObject *self, visitproc visit, void *arg);
int rc_py_handle_clear(PyObject *self);
void rc_py_handle_finalize(PyObject *self);
/* Drops all that the handle refers to, and frees it. */
void rc_py_handle_free(PyObject *self);
/* Raises RuntimeError if another call is at work on the handle, ValueError if the handle is closed.
 * A child that was forked during the call is let through: the library refuses the child. */
bool rc_py_handle_enter(struct rc_py_handle *self);
static inline void rc_py_handle_leave(struct rc_py_handle *self) { self->busy = false; }
/* Call after rc_py_handle_enter: begins the spans of the call, if spans are on. rc_py_spans_end
 * must follow, after rc_py_handle_leave. */
void rc_py_handle_record(struct rc_py_handle *self);
static inline void rc_py_handle_begin(struct rc_py_handle *self) {
  if (__builtin_expect(rc_py_spans_on, 0)) rc_py_handle_record(self);
}
/* The phases of the call at work, if its spans are recorded: see spans.h. */
static inline void rc_py_spans_phase(struct rc_py_trace *trace, enum rc_py_trace_kind kind) {
  if (__builtin_expect(trace != NULL, 0)) rc_py_spans_begin_phase(trace, kind);
}
static inline void rc_py_spans_frame(struct rc_py_trace *trace, uint64_t position, uint64_t bytes) {
  if (__builtin_expect(trace != NULL, 0)) rc_py_spans_end_frame(trace, position, bytes);
}
static inline void rc_py_spans_end(struct rc_py_trace **trace, enum rc_py_trace_kind kind,
                                   bool is_nothing) {
  if (__builtin_expect(*trace != NULL, 0)) rc_py_spans_end_call(trace, kind, is_nothing);
}
/* Methods of every handle: __enter__, __exit__ and __reduce__. */
PyObject *rc_py_handle_block(PyObject *self, PyObject *unused);
PyObject *rc_py_handle_exit(PyObject *self, PyObject *exception);
PyObject *rc_py_handle_reduce(PyObject *self, PyObject *unused);
/* For a call that needs no turn: raises ValueError if the handle is closed, ForkedError in a forked
 * child. */
bool rc_py_handle_check(struct rc_py_handle *self);

/* asyncio: the coroutines are in ringcast/_asyncio.py. */

/* The special results of _take() and _offer(), which try once: the call would have to wait; the
 * turn is another's. */
int rc_py_loop_init(struct rc_py_state *state, PyObject *module);
/* In place of a result of _take() and _offer(): state->turn if the turn is another's, NULL if not;
 * no exception. */
PyObject *rc_py_pass_turn(struct rc_py_handle *self);
/* Counts a frame that a task has sent or received: as many bytes as `unit` take as long as a small
 * frame. */
#define RC_PY_SENT_UNIT     (UINT64_C(1) << 18)
#define RC_PY_RECEIVED_UNIT (UINT64_C(1) << 14)
static inline void rc_py_spend(struct rc_py_handle *self, uint64_t bytes, uint64_t unit) {
  self->spent += 1 + (unsigned)(bytes / unit);
}
/* Call before the descriptor is closed: takes the descriptor out of its loop. Preserves the current
 * exception. */
void rc_py_watch_close(struct rc_py_handle *self);
/* Call after each call that may have made the descriptor wait: -ENOBUFS means that the descriptor
 * is gone, and waiting tasks must ask anew. */
void rc_py_watch_after(struct rc_py_handle *self, int rc);

/* ---- Copying --------------------------------------------------------------------------------- */

/* What a receiver copies is used next, and then a copy past the cache pays from a quarter of the
 * usual cache on. */
enum { RC_PY_RECEIVED_PAST_CACHE = 8 << 20 };

/* With the GIL or without. `is_spilled`: source or destination is in spill memory. */
void rc_py_copy_bytes(bool is_spilled, void *to, const void *from, size_t bytes);
/* Called with the GIL, which it hands over meanwhile if there is much to copy. */
void rc_py_copy_maybe_without_gil(bool is_spilled, void *to, const void *from, size_t bytes);

/* ---- Small ----------------------------------------------------------------------------------- */

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
