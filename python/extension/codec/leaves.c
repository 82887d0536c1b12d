/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle of a frame's leaves.
 *
 * Making a pickler takes more time than pickling a small value. So one pickler is kept, with the
 * lists that the pickler writes to (made by ringcast/_pickling.py). The pickler's dispatch table is
 * a copy of copyreg's, with torch's tensors added: after a change of copyreg's table, or an import
 * of torch, a new pickler is made. If pickling a value starts another encoding, the inner encoding
 * has a pickler of its own.
 *
 * Pickles are made and loaded outside of torch's modes, which would change the tensors in them.
 */
#include "python/extension/codec/leaves.h"

#include "python/extension/call.h"
#include "python/extension/errors.h"
#include "python/extension/tensors.h"

/* The members of _pickling.make_pickler()'s tuple. */
enum { PICKLER, WRITTEN, BUFFERS, TABLE, COPYREG, TORCH };

/* After a larger pickle, the pickler is dropped, as its memo would stay as large. With more
 * holders, the memo is searched in Python. */
enum { KEPT_BYTES = 1 << 14, SEARCHED_HOLDERS = 16 };

/* 1, 0, -1. */
static int is_current(const struct rc_py_state *state, PyObject *tools) {
  PyObject *torch = PyDict_GetItemWithError(PyImport_GetModuleDict(), state->names.torch);
  if (!torch && PyErr_Occurred()) return -1;
  if ((torch ? torch : Py_None) != PyTuple_GET_ITEM(tools, TORCH)) return 0;
  return PyObject_RichCompareBool(PyTuple_GET_ITEM(tools, TABLE), PyTuple_GET_ITEM(tools, COPYREG),
                                  Py_EQ);
}

static PyObject *take_pickler(struct rc_py_state *state) {
  PyObject *tools = state->pickler;
  state->pickler = NULL;
  int current = tools ? is_current(state, tools) : 0;
  if (current > 0) return tools;
  Py_XDECREF(tools);
  if (current < 0) return NULL;
  if (!state->make_pickler &&
      !(state->make_pickler = rc_py_import("ringcast._pickling", "make_pickler")))
    return NULL;
  return PyObject_CallNoArgs(state->make_pickler);
}

/* Consumes `tools`. False: raised. */
static bool give_pickler(struct rc_py_state *state, PyObject *tools, bool keeps) {
  bool ok = true;
  if (keeps && !state->pickler) {
    PyObject *none =
        PyObject_CallMethodNoArgs(PyTuple_GET_ITEM(tools, PICKLER), state->names.clear_memo);
    for (int i = WRITTEN; i <= BUFFERS; i++) {
      PyObject *list = PyTuple_GET_ITEM(tools, i);
      ok = ok && none && PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL) == 0;
    }
    Py_XDECREF(none);
    if (ok && !state->pickler)
      state->pickler = rc_py_ref(tools); /* dropping the pickled values may have run code */
  }
  Py_DECREF(tools);
  return ok;
}

static PyObject *join(PyObject *pieces) {
  PyObject *only = PyList_GET_SIZE(pieces) == 1 ? PyList_GET_ITEM(pieces, 0) : NULL;
  if (only && PyBytes_CheckExact(only)) return rc_py_ref(only);
  PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0);
  PyObject *joined = nothing ? PyObject_CallMethod(nothing, "join", "O", pieces) : NULL;
  Py_XDECREF(nothing);
  return joined;
}

/* The search through the objects that the collector sees in a pickler, including the memo of
 * pickled objects. */
struct search {
  PyObject *holders, *pickled;
  bool sees_memo, has_met;
};

static int visit(PyObject *object, void *context) {
  struct search *search = context;
  if (object == search->pickled) search->sees_memo = true;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(search->holders); i++) {
    if (object == PyList_GET_ITEM(search->holders, i)) search->has_met = true;
  }
  return 0;
}

/* Whether the pickler, after pickling the list `pickled`, has met one of the holders: 1, 0, -1. */
static int has_met(struct rc_py_state *state, PyObject *pickler, PyObject *pickled,
                   PyObject *holders) {
  struct search search = {.holders = holders, .pickled = pickled};
  if (PyList_GET_SIZE(holders) == 0) return 0;
  if (PyList_GET_SIZE(holders) <= SEARCHED_HOLDERS)
    Py_TYPE(pickler)->tp_traverse(pickler, visit, &search);
  if (search.sees_memo) return search.has_met;
  if (!state->has_met && !(state->has_met = rc_py_import("ringcast._pickling", "has_met")))
    return -1;
  return rc_py_is_yes(PyObject_CallFunctionObjArgs(state->has_met, pickler, holders, NULL));
}

/* Raises the current exception anew, with the place of the value that can't be pickled. */
static void explain(PyObject *value, PyObject *root) {
  PyObject *type, *error, *traceback;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback) PyException_SetTraceback(error, traceback);
  PyObject *explained = rc_py_import("ringcast._pickling", "explain");
  PyObject *none = NULL;
  if (explained) {
    none = PyObject_CallFunctionObjArgs(explained, root ? root : value, error,
                                        root ? Py_True : Py_False, NULL);
  }
  Py_XDECREF(none);
  Py_XDECREF(explained);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
}

static int dump(struct rc_py_state *state, PyObject *value, PyObject *root, PyObject *holders,
                PyObject **data, PyObject **buffers) {
  *data = *buffers = NULL;
  PyObject *tools = take_pickler(state);
  if (!tools) return -1;
  PyObject *pickler = PyTuple_GET_ITEM(tools, PICKLER), *found = PyTuple_GET_ITEM(tools, BUFFERS);
  PyObject *none = PyObject_CallMethodOneArg(pickler, state->names.dump, value);
  if (!none) {
    Py_DECREF(tools);
    explain(value, root);
    return -1;
  }
  Py_DECREF(none);
  bool ok = (*data = join(PyTuple_GET_ITEM(tools, WRITTEN))) != NULL;
  if (ok && PyList_GET_SIZE(found) > 0)
    ok = (*buffers = PyList_GetSlice(found, 0, PyList_GET_SIZE(found))) != NULL;
  int met = ok && root && holders ? has_met(state, pickler, value, holders) : 0;
  ok = give_pickler(state, tools, ok && PyBytes_GET_SIZE(*data) <= KEPT_BYTES) && ok && met == 0;
  if (ok) return 1;
  Py_CLEAR(*data);
  Py_CLEAR(*buffers);
  return met > 0 ? 0 : -1;
}

int rc_py_leaves_dump(struct rc_py_state *state, PyObject *value, PyObject *root, PyObject *holders,
                      PyObject **data, PyObject **buffers) {
  PyObject *modes = rc_py_torch_leave_modes(state);
  int dumped = dump(state, value, root, holders, data, buffers);
  rc_py_torch_enter_modes(state, modes);
  return dumped;
}

static PyObject *load(struct rc_py_state *state, PyObject *data, PyObject *buffers) {
  PyObject *arguments[] = {data, buffers};
  if (!state->loads && !(state->loads = rc_py_import("pickle", "loads"))) return NULL;
  if (PyList_GET_SIZE(buffers) == 0) return PyObject_CallOneArg(state->loads, data);
  PyObject *names = PyTuple_Pack(1, state->names.buffers);
  PyObject *value = names ? PyObject_Vectorcall(state->loads, arguments, 1, names) : NULL;
  Py_XDECREF(names);
  return value;
}

PyObject *rc_py_leaves_load(struct rc_py_state *state, PyObject *data, PyObject *buffers) {
  PyObject *modes = rc_py_torch_leave_modes(state);
  PyObject *value = load(state, data, buffers);
  rc_py_torch_enter_modes(state, modes);
  return value;
}
