/* SPDX-License-Identifier: Apache-2.0 */
/* What Writer, Reader and Tap have in common: one call at a time, none after close. */
#include "python/extension/errors.h"
#include "python/extension/handles/handle.h"

#include <unistd.h>

void *rc_py_handle_new(PyTypeObject *type, bool allow_pickle) {
  struct rc_py_handle *self = (struct rc_py_handle *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->pid = getpid();
  self->allow_pickle = allow_pickle;
  return self;
}

/* "Writer", of "ringcast.Writer". */
static const char *name_of(struct rc_py_handle *self) { return strchr(Py_TYPE(self)->tp_name, '.') + 1; }

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
  rc_py_raise_text(rc_py_state_of(self), ECHILD,
                   "this handle belongs to the parent process: after fork, make or attach one in the child");
  return false;
}
