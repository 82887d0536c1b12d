/* SPDX-License-Identifier: Apache-2.0 */
/* What Writer, Reader and Tap have in common: one call at a time, none after close; and the place
 * in an event loop. */
#include "python/extension/errors.h"
#include "python/extension/handles/handle.h"

#include <unistd.h>

/* After so many frames in a row without a wait, the task lets other tasks run: one turn of the
 * event loop costs as much as receiving a few frames. */
enum { MOST_SPENT = 64 };

void *rc_py_handle_new(PyTypeObject *type, bool allow_pickle) {
  struct rc_py_handle *self = (struct rc_py_handle *)type->tp_alloc(type, 0);
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

void rc_py_handle_record(struct rc_py_handle *self) {
  if (self->ring == 0) {
    self->ring = rc_py_spans_ring(self->text);
    rc_py_spans_name(self->ring, self->ring_name ? self->ring_name : "", self->name);
  }
  rc_py_spans_begin(&self->call, self->ring);
}

/* ---- asyncio --------------------------------------------------------------------------------- */

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
  return rc_py_ref(rc_py_state_of(self)->turn);
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
  PyObject *watch = rc == -ENOBUFS ? rc_py_ref(self->watch) : NULL;
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
