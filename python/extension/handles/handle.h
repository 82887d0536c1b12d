/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of Writer, Reader and Tap: the first member of each. */
#ifndef RC_EXTENSION_HANDLE_H
#define RC_EXTENSION_HANDLE_H

#include "python/extension/spans.h"
#include "python/extension/state.h"

struct rc_py_handle {
  PyObject_HEAD PyObject *text; /* by which other processes attach */
  pid_t pid;                    /* of the creating process */
  bool busy;                    /* a call is at work */
  bool closed, allow_pickle;
  bool value_failed; /* the last send() or recv() raised what came up in the value: not in a wait,
                        or of the ring */
  PyObject *watch; /* the descriptor in an event loop (ringcast._asyncio); NULL or None: never in a
                      loop */
  unsigned spent;  /* frames in a row for tasks, without a wait; large frames count for more */
  struct rc_py_call *call; /* the call at work, if its spans are recorded; else NULL */
  uint64_t ring;           /* rc_py_spans_ring; 0: not known yet */
  const char *ring_name;   /* for spans, as ... */
  char name[32];           /* ... the name of a Reader; or empty */
};

/* A new instance of `type`, all zero but for the fields here. NULL: raised. */
void *rc_py_handle_new(PyTypeObject *type, bool allow_pickle);
int rc_py_handle_traverse(PyObject *self, visitproc visit,
                          void *arg); /* a waiting task may refer to the handle */
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
/* For a call that needs no turn: raises ValueError if the handle is closed, ForkedError in a forked
 * child. */
bool rc_py_handle_check(struct rc_py_handle *self);

/* ---- asyncio: the coroutines are in ringcast/_asyncio.py ------------------------------------- */

/* The special results of _take() and _offer(), which try once: the call would have to wait; the
 * turn is another's. */
int rc_py_loop_init(struct rc_py_state *state, PyObject *module);
/* In place of a result of _take() and _offer(): state->turn if the turn is another's, NULL if not;
 * no exception. */
PyObject *rc_py_pass_turn(struct rc_py_handle *self);
/* Call before the descriptor is closed: takes the descriptor out of its loop. Preserves the current
 * exception. */
void rc_py_watch_close(struct rc_py_handle *self);
/* Call after each call that may have made the descriptor wait: -ENOBUFS means that the descriptor
 * is gone, and waiting tasks must ask anew. */
void rc_py_watch_after(struct rc_py_handle *self, int rc);

#endif
