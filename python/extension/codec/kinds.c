/* SPDX-License-Identifier: Apache-2.0 */
/* Which types of the standard library travel by their state, and where they are found. */
#include "python/extension/codec/kinds.h"

#include "python/extension/errors.h"

static const struct {
  const char *module, *name;
} standard[RC_PY_STANDARD] = {
    [RC_PY_ARRAY] = {"array", "array"},
};

/* The last part of a type's name: a static type's has its module before it. */
static const char *bare_name(const PyTypeObject *type) {
  const char *dot = strrchr(type->tp_name, '.');
  return dot ? dot + 1 : type->tp_name;
}

/* New. NULL, also with nothing raised: the module is not imported, or lacks the name. */
static PyObject *find_imported(const char *module_name, const char *name) {
  PyObject *text = PyUnicode_FromString(module_name);
  PyObject *module = text ? PyImport_GetModule(text) : NULL;
  PyObject *found = module ? PyObject_GetAttrString(module, name) : NULL;
  if (module && !found && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
  Py_XDECREF(text);
  Py_XDECREF(module);
  return found;
}

int rc_py_standard_of(struct rc_py_state *state, PyTypeObject *type) {
  const char *name = bare_name(type);
  for (int i = 1; i < RC_PY_STANDARD; i++) {
    if (strcmp(standard[i].name, name) != 0) continue;
    PyObject *found = find_imported(standard[i].module, name);
    bool is_it = found == (PyObject *)type;
    if (is_it && !state->standard[i]) state->standard[i] = rc_py_ref(found);
    Py_XDECREF(found);
    if (PyErr_Occurred()) return -1;
    if (is_it && state->standard[i] == (PyObject *)type) return i;
  }
  return 0;
}

PyTypeObject *rc_py_standard_type(struct rc_py_state *state, enum rc_py_standard number) {
  PyObject **known = &state->standard[number];
  if (!*known) {
    PyObject *found = rc_py_import(standard[number].module, standard[number].name);
    if (found && !PyType_Check(found)) {
      PyErr_Format(PyExc_TypeError, "%s.%s is no type", standard[number].module, standard[number].name);
      Py_CLEAR(found);
    }
    if (!*known) *known = found; /* the import may have run code that came here too */
  }
  return (PyTypeObject *)*known;
}
