/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module ringcast._ringcast. Initialised in phases, with all its state in the module, so each interpreter has its
 * own. It relies on the GIL and does not declare otherwise: a free-threaded Python turns its GIL on to import it.
 */
#include "extension.h"

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **out) {
  PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
  if (!type) return -1;
  *out = (PyTypeObject *)type;
  Py_INCREF(type);
  if (PyModule_AddObject(module, name, type) == 0) return 0;
  Py_DECREF(type);
  return -1;
}

/* Span and Frame are made by reserve() and next() alone. */
static int add_types(PyObject *module, struct rc_py_state *state) {
  if (add_type(module, &rc_py_writer_spec, "Writer", &state->writer_type) < 0) return -1;
  if (add_type(module, &rc_py_reader_spec, "Reader", &state->reader_type) < 0) return -1;
  if (add_type(module, &rc_py_span_spec, "Span", &state->span_type) < 0) return -1;
  if (add_type(module, &rc_py_frame_spec, "Frame", &state->frame_type) < 0) return -1;
  state->span_type->tp_new = NULL;
  state->frame_type->tp_new = NULL;
  PyType_Modified(state->span_type);
  PyType_Modified(state->frame_type);
  return 0;
}

static int add_names(struct rc_py_names *names) {
#define X(name) \
  if (!(names->name = PyUnicode_InternFromString(#name))) return -1;
  RC_PY_NAMES(X)
#undef X
  return 0;
}

static int module_exec(PyObject *module) {
  struct rc_py_state *state = PyModule_GetState(module);
  if (rc_py_errors_init(state) < 0 || add_names(&state->names) < 0 || add_types(module, state) < 0) return -1;
  if (!(state->reader_status = rc_py_import("ringcast._status", "ReaderStatus"))) return -1;
  if (PyModule_AddIntConstant(module, "KIND_BYTES", RINGCAST_KIND_BYTES) < 0) return -1;
  if (PyModule_AddIntConstant(module, "KIND_TENSORS", RINGCAST_KIND_TENSORS) < 0) return -1;
  return PyModule_AddStringConstant(module, "__version__", ringcast_version());
}

/* Every object of the state, for the collector. */
#define STATE_OBJECTS(X)                                                                                               \
  X(writer_type)                                                                                                       \
  X(reader_type) X(span_type) X(frame_type) X(error) X(error_by_errno) X(writer_gone) X(reader_status) X(dumps)        \
      X(loads) X(torch.tensor) X(torch.parameter) X(torch.strided) X(torch.empty) X(torch.cpu) X(torch.dtype_to_index) \
          X(numpy.ndarray) X(numpy.empty)

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
  struct rc_py_state *state = PyModule_GetState(module);
#define X(object) Py_VISIT(state->object);
  STATE_OBJECTS(X)
#undef X
  for (int i = 0; i < RC_PY_DTYPES; i++) {
    Py_VISIT(state->torch.dtypes[i]);
    Py_VISIT(state->numpy.dtypes[i]);
  }
  return 0;
}

static int module_clear(PyObject *module) {
  struct rc_py_state *state = PyModule_GetState(module);
#define X(object) Py_CLEAR(state->object);
  STATE_OBJECTS(X)
#undef X
#define X(name) Py_CLEAR(state->names.name);
  RC_PY_NAMES(X)
#undef X
  for (int i = 0; i < RC_PY_DTYPES; i++) {
    Py_CLEAR(state->torch.dtypes[i]);
    Py_CLEAR(state->numpy.dtypes[i]);
  }
  return 0;
}

static void module_free(void *module) {
  module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ringcast._ringcast",
    .m_doc = "The C part of ringcast; its names are to be had from ringcast itself.",
    .m_size = sizeof(struct rc_py_state),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__ringcast(void) {
  return PyModuleDef_Init(&module_def);
}
