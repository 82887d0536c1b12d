/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of ringcast/_device.py, which handles rare requests to torch, CuPy and JAX. */
#include "python/extension/tensors/device.h"

#include <stdarg.h>

PyObject *rc_py_device_call(struct rc_py_state *state, const char *name, const char *format, ...) {
  if (!state->device_helpers &&
      !(state->device_helpers = PyImport_ImportModule("ringcast._device")))
    return NULL;
  PyObject *function = PyObject_GetAttrString(state->device_helpers, name);
  va_list arguments;
  va_start(arguments, format);
  PyObject *tuple = function ? Py_VaBuildValue(format, arguments) : NULL;
  va_end(arguments);
  PyObject *result = tuple ? PyObject_CallObject(function, tuple) : NULL;
  Py_XDECREF(function);
  Py_XDECREF(tuple);
  return result;
}

bool rc_py_device_may_start(struct rc_py_state *state) {
  PyObject *captures = rc_py_device_call(state, "captures", "()");
  bool may = captures && captures != Py_True;
  Py_XDECREF(captures);
  if (may || PyErr_Occurred()) return may;
  rc_py_raise_text(state, EBUSY,
                   "the stream captures a CUDA graph, which can't hold a message: send and receive "
                   "outside of the capture");
  return false;
}
