/* SPDX-License-Identifier: Apache-2.0 */
/*
 * asyncio's side of Reader and Writer. The coroutines are in ringcast/_asyncio.py. They use _take() and _offer(), which
 * try once and return a special value if the call would have to wait, and the two descriptors.
 */
#include "python/extension/handles/asyncio.h"
#include "python/extension/handles/reader.h"
#include "python/extension/handles/receive.h"
#include "python/extension/handles/writer.h"

#include <unistd.h>

/* The special values of _take() and _offer(): no frame can hold these two objects. */
int rc_py_loop_init(struct rc_py_state *state, PyObject *module) {
  state->nothing = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
  state->turn = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
  if (!state->nothing || !state->turn) return -1;
  if (PyObject_SetAttrString(module, "_nothing", state->nothing) < 0) return -1;
  return PyObject_SetAttrString(module, "_turn", state->turn);
}

PyObject *rc_py_pass_turn(struct rc_py_state *state, unsigned *spent) {
  if (*spent < RC_PY_MOST_SPENT) return NULL;
  *spent = 0;
  return rc_py_ref(state->turn);
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

void rc_py_watch_close(PyObject **watch, pid_t pid) {
  PyObject *closed = *watch;
  *watch = NULL;
  tell_closed(closed, pid);
  Py_XDECREF(closed);
}

/* The watch stays the single queue of all waiting tasks: with a second queue for the same descriptor, the loop would
 * serve only one of the two. */
void rc_py_watch_after(PyObject *watch, pid_t pid, int rc) {
  if (rc != -ENOBUFS || !watch) return;
  Py_INCREF(watch);
  tell_closed(watch, pid);
  Py_DECREF(watch);
}

PyObject *rc_py_writer_room_fileno(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!rc_py_writer_enter(self)) return NULL;
  int fd = ringcast_writer_room_fd(self->writer);
  rc_py_writer_leave(self);
  return fd < 0 ? rc_py_raise(rc_py_state_of(self), fd) : PyLong_FromLong(fd);
}
