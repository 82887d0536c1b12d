/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handle's turn: one call at a time; and the frames that a Reader's call gives back at the end.
 *
 * Any thread may release or drop a Frame at any time. While a call is at work on the Reader, the
 * frame goes to the list of dropped frames: a waiting call gives the dropped frames back in its
 * next slice, for the writer may be waiting for exactly these; any other call gives them back when
 * it leaves.
 */
#include "python/extension/handles/gpu.h"

#include <unistd.h>

bool rc_py_reader_finish(struct rc_py_reader *self, int rc) {
  if (rc < 0)
    rc_py_raise(rc_py_state_of(self),
                rc); /* first: giving frames back may change the library's error text */
  rc_py_reader_leave(self);
  return rc >= 0;
}

bool rc_py_reader_defer(struct rc_py_reader *self, const struct ringcast_frame *frame) {
  if (!self->base.busy || getpid() != self->base.pid) return false;
  self->dropped[self->dropped_count++] =
      *frame; /* a Reader holds no more frames than there is room for */
  return true;
}

void rc_py_reader_give_back_dropped(struct rc_py_reader *self) {
  while (self->dropped_count > 0) {
    struct ringcast_frame frame =
        self->dropped[--self->dropped_count]; /* more frames may be dropped meanwhile */
    /* No caller is left to be told of an eviction: the next call tells. */
    if (self->reader) rc_py_reader_release(self, &frame);
  }
}

/* Raises `rc` in place of the current exception, if any; the old exception is dropped last, as any
 * code may run then. */
static void raise_instead(struct rc_py_reader *self, int rc) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  rc_py_raise(rc_py_state_of(self), rc);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

/* Whether the current exception says that a stream captures a graph: the frame was not decoded. */
static bool is_captured(struct rc_py_state *state) {
  PyObject *type, *error, *traceback;
  if (!PyErr_ExceptionMatches(state->error)) return false;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  PyObject *number = error ? PyObject_GetAttrString(error, "errno") : NULL;
  bool is_busy = number && PyLong_Check(number) && PyLong_AsLong(number) == EBUSY;
  Py_XDECREF(number);
  PyErr_Restore(type, error, traceback);
  return is_busy;
}

bool rc_py_reader_stash(struct rc_py_reader *self, const struct ringcast_frame *frame,
                        bool device_failed) {
  if (self->has_stash) return false;
  bool is_captured_now = device_failed && is_captured(rc_py_state_of(self));
  self->has_stash = self->gpu && (self->gpu->is_interrupted || is_captured_now);
  if (self->has_stash) self->stash = *frame;
  return self->has_stash;
}

bool rc_py_reader_give_back(struct rc_py_reader *self, const struct ringcast_frame *frame) {
  int rc = rc_py_reader_release(self, frame);
  bool has_raised = PyErr_Occurred(),
       may_replace = !has_raised || PyErr_ExceptionMatches(PyExc_Exception);
  if (rc < 0 && may_replace && (!has_raised || rc == -ESTALE)) raise_instead(self, rc);
  return rc == 0;
}

PyObject *rc_py_reader_made_sure(struct rc_py_reader *self, PyObject *object) {
  int rc = ringcast_reader_check(self->reader);
  if (rc == 0 || (!object && !PyErr_ExceptionMatches(PyExc_Exception))) return object;
  if (object || rc == -ESTALE) raise_instead(self, rc);
  Py_XDECREF(object);
  return NULL;
}
