/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of Writer, Reader and Tap: the first member of each. */
#ifndef RC_EXTENSION_HANDLE_H
#define RC_EXTENSION_HANDLE_H

#include "python/extension/state.h"

struct rc_py_handle {
  PyObject_HEAD PyObject *text; /* by which other processes attach */
  pid_t pid;                    /* of the creating process */
  bool busy;                    /* a call is at work */
  bool closed, allow_pickle;
};

/* A new instance of `type`, all zero but for the fields here. NULL: raised. */
void *rc_py_handle_new(PyTypeObject *type, bool allow_pickle);
/* Raises RuntimeError if another call is at work on the handle, ValueError if the handle is closed. A child that was
 * forked during the call is let through: the library refuses the child. */
bool rc_py_handle_enter(struct rc_py_handle *self);
static inline void rc_py_handle_leave(struct rc_py_handle *self) { self->busy = false; }
/* For a call that needs no turn: raises ValueError if the handle is closed, ForkedError in a forked child. */
bool rc_py_handle_check(struct rc_py_handle *self);

#endif
