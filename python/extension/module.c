/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module ringcast._ringcast. Initialised in phases, with the state in the module, so that each
 * import has a state of its own; the pool of large arrays (tensors/memory.c) belongs to the
 * process. The module is for the main interpreter, and relies on the GIL: a free-threaded Python
 * turns the GIL on at import.
 */
#include "python/extension/codec/classes.h"
#include "python/extension/codec/references.h"
#include "python/extension/errors.h"
#include "python/extension/handles/packed.h"
#include "python/extension/handles/reader.h"
#include "python/extension/handles/status.h"
#include "python/extension/handles/writer.h"
#include "python/extension/spans.h"
#include "python/extension/tensors.h"

#include "python/docstrings.h"

static int add_types(PyObject *module, struct rc_py_state *state) {
  const struct {
    PyType_Spec *spec;
    PyTypeObject **out;
  } types[] = {
      {&rc_py_writer_spec, &state->writer_type},
      {&rc_py_reader_spec, &state->reader_type},
      {&rc_py_tap_spec, &state->tap_type},
      {&rc_py_span_spec, &state->span_type},
      {&rc_py_frame_spec, &state->frame_type},
      {&rc_py_packed_spec, &state->packed_type},
      {&rc_py_view_spec, &state->view_type},
      {&rc_py_memory_spec, &state->memory_type},
      {&rc_py_device_tensor_spec, &state->device_tensor_type},
  };
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    *types[i].out = (PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL);
    if (!*types[i].out || PyModule_AddType(module, *types[i].out) < 0) return -1;
  }
  return 0;
}

static int add_statuses(struct rc_py_state *state) {
  const struct {
    const char *name;
    PyObject **out;
  } statuses[] = {
      {"ReaderStatus", &state->reader_status},
      {"Ring", &state->ring},
      {"Stats", &state->stats},
      {"Info", &state->info},
      {"TapFrame", &state->tapped},
      {"TapLost", &state->tap_lost},
      {"GpuInfo", &state->gpu_info},
      {"GpuStatus", &state->gpu_state},
  };
  for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
    *statuses[i].out = rc_py_import("ringcast._status", statuses[i].name);
    if (!*statuses[i].out) return -1;
  }
  return 0;
}

static int add_names(struct rc_py_names *names) {
#define X(name)                                    \
  names->name = PyUnicode_InternFromString(#name); \
  if (!names->name) return -1;
  RC_PY_NAMES(X)
#undef X
  return 0;
}

/* The methods of ringcast._methods, with the docstrings of the stub by the names of their
 * macros. */
static int add_methods(PyObject *module) {
  static const char *const docstrings[][2] = {RC_DOCS};
  PyObject *add = rc_py_import("ringcast._methods", "add_to");
  PyObject *texts = add ? PyDict_New() : NULL;
  for (size_t i = 0; texts && i < sizeof docstrings / sizeof *docstrings; i++) {
    PyObject *text = PyUnicode_FromString(docstrings[i][1]);
    if (!text || PyDict_SetItemString(texts, docstrings[i][0], text) < 0) Py_CLEAR(texts);
    Py_XDECREF(text);
  }
  PyObject *none = NULL;
  if (texts) none = PyObject_CallFunctionObjArgs(add, module, texts, NULL);
  Py_XDECREF(add);
  Py_XDECREF(texts);
  Py_XDECREF(none);
  return none ? 0 : -1;
}

static bool is_main_interpreter(void) {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return true;
  PyErr_SetString(PyExc_ImportError,
                  "ringcast can't be imported in a sub-interpreter: memory of received arrays may "
                  "go in any thread, of any interpreter. Use a process");
  return false;
}

/* PYTHON_GIL=0 keeps the GIL off, even if a module asks for the GIL. */
static bool has_gil(void) {
  PyObject *ask = PySys_GetObject("_is_gil_enabled");
  if (!ask) return true;
  int is_on = rc_py_is_yes(PyObject_CallNoArgs(ask));
  if (is_on == 0) {
    PyErr_SetString(PyExc_ImportError,
                    "ringcast relies on the GIL, and this Python runs without (PYTHON_GIL=0 or "
                    "-X gil=0): leave that out, and the import turns the GIL on");
  }
  return is_on > 0;
}

static int module_exec(PyObject *module) {
  struct rc_py_state *state = PyModule_GetState(module);
  if (!is_main_interpreter() || !has_gil()) return -1;
  if (rc_py_errors_init(state) < 0 || add_names(&state->names) < 0) return -1;
  if (add_types(module, state) < 0) return -1;
  state->no_arguments = PyTuple_New(0);
  if (!state->no_arguments) return -1;
  if (add_statuses(state) < 0 || !rc_py_recycle_init()) return -1;
  if (rc_py_loop_init(state, module) < 0 || add_methods(module) < 0) return -1;
  if (PyModule_AddFunctions(module, rc_py_spans_functions) < 0) return -1;
  if (PyModule_AddIntConstant(module, "KIND_BYTES", RINGCAST_KIND_BYTES) < 0) return -1;
  if (PyModule_AddIntConstant(module, "KIND_TENSORS", RINGCAST_KIND_TENSORS) < 0) return -1;
  return PyModule_AddStringConstant(module, "__version__", ringcast_version());
}

/* The places of the state's references, for the collector. */
static PyObject **references(PyObject *module, size_t *count) {
  *count = offsetof(struct rc_py_state, torch.exchange) / sizeof(PyObject *);
  return PyModule_GetState(module);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
  size_t count;
  PyObject **objects = references(module, &count);
  for (size_t i = 0; i < count; i++) Py_VISIT(objects[i]);
  return 0;
}

static int module_clear(PyObject *module) {
  struct rc_py_state *state = PyModule_GetState(module);
  size_t count;
  PyObject **objects = references(module, &count);
  for (size_t i = 0; i < count; i++) Py_CLEAR(objects[i]);
  for (int i = 0; i < RC_PY_KEYS; i++) Py_CLEAR(state->keys[i]);
  return 0;
}

static void module_free(void *module) {
  struct rc_py_state *state = PyModule_GetState(module);
  module_clear(module);
  PyMem_Free(state->spare.parts);
  PyMem_Free(state->spare.stream);
  PyMem_Free(state->spare.texts);
  rc_py_repeats_free(state->spare.repeats);
}

/* _printable(text): foreign text, fit to be shown in one line. */
static PyObject *printable(PyObject *Py_UNUSED(module), PyObject *text) {
  if (!PyUnicode_Check(text)) return PyErr_Format(PyExc_TypeError, "text must be a str");
  return rc_py_printable(text, false);
}

/* _intern(name): as sys.intern(), for names that frames bring. */
static PyObject *intern(PyObject *module, PyObject *name) {
  if (!PyUnicode_CheckExact(name)) return PyErr_Format(PyExc_TypeError, "name must be a str");
  return rc_py_intern(PyModule_GetState(module), name);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef module_functions[] = {
    {"add_size", rc_py_add_size, METH_VARARGS, RC_DOC_add_size},
    {"pack", FAST(rc_py_pack), METH_FASTCALL | METH_KEYWORDS, RC_DOC_pack},
    {"_pack_of_cpu", FAST(rc_py_pack_of_cpu), METH_FASTCALL, NULL},
    {"unpack", FAST(rc_py_unpack), METH_FASTCALL | METH_KEYWORDS, RC_DOC_unpack},
    {"rings", rc_py_rings, METH_NOARGS, RC_DOC_rings},
    {"find", rc_py_find, METH_O, RC_DOC_find},
    {"gpu_status", rc_py_gpu_status, METH_NOARGS, RC_DOC_gpu_status},
    {"_recycling", rc_py_recycling, METH_VARARGS, NULL},
    {"_printable", printable, METH_O, NULL},
    {"_intern", intern, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
#ifdef Py_mod_multiple_interpreters
    /* By the true value, Python itself refuses, and gives no reason. */
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ringcast._ringcast",
    .m_doc = "The C part of ringcast; its names are to be had from ringcast itself.",
    .m_size = sizeof(struct rc_py_state),
    .m_methods = module_functions,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__ringcast(void) { return PyModuleDef_Init(&module_def); }
