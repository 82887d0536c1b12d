/* SPDX-License-Identifier: Apache-2.0 */
/* Where in the value something is, in words: "value['x'][3].foo". */
#include "python/extension/codec/encode.h"

enum {
  KEY_SHOWN = 60,   /* characters of a key */
  STEPS_SHOWN = 32, /* of the way, from the root */
};

/* repr(key), shortened; if repr() fails, the key's type. */
static PyObject *key_text(PyObject *key) {
  PyObject *text = PyObject_Repr(key);
  if (!text) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    PyErr_Clear();
    return PyUnicode_FromFormat("<%s>", Py_TYPE(key)->tp_name);
  }
  if (PyUnicode_GET_LENGTH(text) <= KEY_SHOWN) return text;
  PyObject *start = PyUnicode_Substring(text, 0, KEY_SHOWN);
  PyObject *shortened = start ? PyUnicode_FromFormat("%U...", start) : NULL;
  Py_DECREF(text);
  Py_XDECREF(start);
  return shortened;
}

/* Consumes `way`. */
static PyObject *path_add(PyObject *way, const struct rc_py_step *step) {
  bool has_key = step->index == RC_PY_STEP_KEY || !step->up;
  PyObject *key = has_key ? key_text(step->key) : NULL;
  PyObject *path = has_key ? (key ? PyUnicode_FromFormat("%U[%U]", way, key) : NULL)
                   : step->index == RC_PY_STEP_FIELD ? PyUnicode_FromFormat("%U.%U", way, step->key)
                   : step->index == RC_PY_STEP_MEMBER ? PyUnicode_FromFormat("%U{...}", way)
                   : step->index == RC_PY_STEP_OF_KEY
                       ? PyUnicode_FromFormat("a key of %U", way)
                       : PyUnicode_FromFormat("%U[%zd]", way, step->index);
  Py_XDECREF(key);
  Py_DECREF(way);
  return path;
}

/* From the root down; a very long path is cut after its first steps. */
PyObject *rc_py_step_path(void *context) {
  const struct rc_py_step *shown[STEPS_SHOWN];
  int steps = 0;
  for (const struct rc_py_step *step = context; step; step = step->up)
    shown[steps++ % STEPS_SHOWN] = step;
  PyObject *path = PyUnicode_FromString("value");
  for (int i = 1; path && i <= steps && i <= STEPS_SHOWN; i++) {
    const struct rc_py_step *step = shown[(steps - i) % STEPS_SHOWN];
    if (step->up || step->key) path = path_add(path, step);
  }
  if (path && steps > STEPS_SHOWN) {
    PyObject *whole = PyUnicode_FromFormat("%U... (%d levels down)", path, steps - 1);
    Py_DECREF(path);
    path = whole;
  }
  return path;
}
