/* SPDX-License-Identifier: Apache-2.0 */
/* rings() and find(): rings by name. */
#include "python/extension/errors.h"
#include "python/extension/handles/status.h"

#include "ringcast/inspect.h"

#define MORE 16 /* rings that may appear between two calls */

/* Sets *out to memory of the rings, for PyMem_RawFree. Returns their number, or the library's
 * error. */
static int list_rings(struct ringcast_ring **out) {
  for (uint32_t capacity = MORE;;) {
    struct ringcast_ring *rings = PyMem_RawCalloc(capacity, sizeof *rings);
    if (!rings) return -ENOMEM;
    rings->size = sizeof *rings;
    int count = ringcast_rings(rings, capacity);
    if (count <= (int)capacity) {
      *out = rings;
      return count;
    }
    PyMem_RawFree(rings);
    capacity = (uint32_t)count + MORE;
  }
}

PyObject *rc_py_rings(PyObject *module, PyObject *Py_UNUSED(unused)) {
  struct rc_py_state *state = PyModule_GetState(module);
  struct ringcast_ring *rings = NULL;
  int count;
  Py_BEGIN_ALLOW_THREADS
  count = list_rings(&rings);
  Py_END_ALLOW_THREADS
  PyObject *list = count == -ENOMEM ? PyErr_NoMemory()
                   : count < 0      ? rc_py_raise(state, count)
                                    : PyList_New(0);
  for (int i = 0; list && i < count; i++) {
    PyObject *ring = PyObject_CallFunction(state->ring, "sis", rings[i].name, (int)rings[i].pid,
                                           rings[i].handle);
    if (!ring || PyList_Append(list, ring) < 0) Py_CLEAR(list);
    Py_XDECREF(ring);
  }
  PyMem_RawFree(rings);
  return list;
}

PyObject *rc_py_find(PyObject *module, PyObject *text) {
  char handle[RINGCAST_HANDLE_BYTES];
  const char *ring = PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : NULL;
  if (!ring)
    return PyErr_Occurred() ? NULL
                            : PyErr_Format(PyExc_TypeError, "ring must be a str, not %s",
                                           Py_TYPE(text)->tp_name);
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_find(ring, handle);
  Py_END_ALLOW_THREADS
  return rc < 0 ? rc_py_raise(PyModule_GetState(module), rc) : PyUnicode_FromString(handle);
}
