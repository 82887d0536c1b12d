/* SPDX-License-Identifier: Apache-2.0 */
/*
 * asyncio's side of Reader and Writer. The coroutines are in ringcast/_asyncio.py. They use _take() and _offer(), which
 * try once and return a special value if the call would have to wait, and the two descriptors.
 */
#include "python/extension/codec/hash.h"
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

/* asyncio is imported on first use. */
static PyObject *coroutine(PyObject **function, const char *name) {
  if (!*function) *function = rc_py_import("ringcast._asyncio", name);
  return *function;
}

/* A parsed timeout: None, or seconds. */
static PyObject *seconds_of(int64_t timeout_ns) {
  return timeout_ns < 0 ? rc_py_ref(Py_None) : PyFloat_FromDouble((double)timeout_ns / 1e9);
}

static PyObject *arecv(PyObject *self, const char *name, PyObject *tagged, PyObject *const *args, Py_ssize_t count,
                       PyObject *keywords) {
  int64_t timeout_ns;
  if (!rc_py_timeout_argument(name, args, count, keywords, &timeout_ns)) return NULL;
  PyObject *function = coroutine(&rc_py_state_of(self)->arecv, "arecv"), *seconds = seconds_of(timeout_ns);
  PyObject *result = function && seconds ? PyObject_CallFunctionObjArgs(function, self, tagged, seconds, NULL) : NULL;
  Py_XDECREF(seconds);
  return result;
}

PyObject *rc_py_reader_arecv(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  return arecv(self, "arecv", Py_False, args, count, keywords);
}

PyObject *rc_py_reader_arecv_tagged(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  return arecv(self, "arecv_tagged", Py_True, args, count, keywords);
}

PyObject *rc_py_reader_anext(PyObject *self) {
  PyObject *function = coroutine(&rc_py_state_of(self)->anext, "anext_");
  return function ? PyObject_CallFunctionObjArgs(function, self, NULL) : NULL;
}

PyObject *rc_py_writer_asend(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"obj", "timeout", "tag", "hash", NULL};
  PyObject *values[4] = {NULL};
  int64_t timeout_ns;
  uint64_t tag = 0;
  uint32_t hash;
  if (!rc_py_arguments("asend", names, 2, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_hash_argument(rc_py_state_of(self), values[3], &hash)) return NULL;
  if (!rc_py_timeout(values[1], &timeout_ns)) return NULL;
  if (values[2] && !rc_py_integer("tag", values[2], 0, UINT32_MAX, &tag)) return NULL;
  PyObject *function = coroutine(&rc_py_state_of(self)->asend, "asend"), *seconds = seconds_of(timeout_ns);
  PyObject *number = PyLong_FromUnsignedLongLong(tag), *result = NULL;
  if (function && seconds && number)
    result =
        PyObject_CallFunctionObjArgs(function, self, values[0], seconds, number, values[3] ? values[3] : Py_None, NULL);
  Py_XDECREF(seconds);
  Py_XDECREF(number);
  return result;
}

PyObject *rc_py_writer_room_fileno(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  if (!rc_py_writer_enter(self)) return NULL;
  int fd = ringcast_writer_room_fd(self->writer);
  rc_py_writer_leave(self);
  return fd < 0 ? rc_py_raise(rc_py_state_of(self), fd) : PyLong_FromLong(fd);
}
