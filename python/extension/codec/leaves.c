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

#include "python/extension/codec/parts.h"

/* The members of _pickling.make_pickler()'s tuple. */
enum { PICKLER, WRITTEN, BUFFERS, TABLE, COPYREG, TORCH };

/* After a larger pickle, the pickler is dropped, as its memo would stay as large. With more
 * containers, the memo is searched in Python. */
enum { KEPT_BYTES = 1 << 14, SEARCHED_CONTAINERS = 16 };

/* ---- Noted ----------------------------------------------------------------------------------- */

void rc_py_refuse(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step) {
  struct rc_py_state *state = encoding->state;
  if (!rc_py_import_once(&state->refuse_value, "ringcast._pickling", "refuse_value")) return;
  PyObject *place = rc_py_step_path(step);
  if (!place) return;
  PyObject *none = PyObject_CallFunctionObjArgs(state->refuse_value, place, value, NULL);
  Py_XDECREF(none);
  Py_DECREF(place);
}

/* Whether the container has references besides its own container's and the walk's. */
static bool is_known_elsewhere(const struct rc_py_step *step) {
  Py_ssize_t own = 1;
  if (step->up) own = 2;
  if (Py_REFCNT(step->container) > own) return true;
  return PyType_SUPPORTS_WEAKREFS(Py_TYPE(step->container)) &&
         *PyObject_GET_WEAKREFS_LISTPTR(step->container);
}

/* Notes the containers of a leaf: if the leaf's pickle meets one of the containers, the container
 * contains itself by way of the leaf. If no container was entered since the last leaf, all are
 * noted already. */
static bool note_holders(struct rc_py_encoding *encoding, const struct rc_py_step *step) {
  if (encoding->noted == encoding->entered + 1) return true;
  encoding->noted = encoding->entered + 1;
  if (!encoding->leaf_containers) encoding->leaf_containers = PyList_New(0);
  if (!encoding->leaf_containers) return false;
  for (; step; step = step->up) {
    if (!step->container || !is_known_elsewhere(step)) continue;
    if (PyList_Append(encoding->leaf_containers, step->container) < 0) return false;
  }
  return true;
}

Py_ssize_t rc_py_leaf_add(struct rc_py_encoding *encoding, PyObject *value,
                          struct rc_py_step *step) {
  if (!encoding->allow_pickle) {
    rc_py_refuse(encoding, value, step);
    return -1;
  }
  if (!encoding->leaves) encoding->leaves = PyList_New(0);
  if (!encoding->leaves) return -1;
  if (!note_holders(encoding, step)) return -1;
  if (PyList_Append(encoding->leaves, value) < 0) return -1;
  return PyList_GET_SIZE(encoding->leaves) - 1;
}

/* ---- Pickled --------------------------------------------------------------------------------- */

/* 1, 0, -1. */
static int is_current(const struct rc_py_state *state, PyObject *tools) {
  PyObject *torch = PyDict_GetItemWithError(PyImport_GetModuleDict(), state->names.torch);
  if (!torch && PyErr_Occurred()) return -1;
  if (!torch) torch = Py_None;
  if (torch != PyTuple_GET_ITEM(tools, TORCH)) return 0;
  return PyObject_RichCompareBool(PyTuple_GET_ITEM(tools, TABLE), PyTuple_GET_ITEM(tools, COPYREG),
                                  Py_EQ);
}

static PyObject *take_pickler(struct rc_py_state *state) {
  PyObject *tools = state->pickler;
  state->pickler = NULL;
  if (tools) {
    int current = is_current(state, tools);
    if (current > 0) return tools;
    Py_DECREF(tools);
    if (current < 0) return NULL;
  }
  if (!rc_py_import_once(&state->make_pickler, "ringcast._pickling", "make_pickler")) return NULL;
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
      state->pickler = Py_NewRef(tools); /* dropping the pickled values may have run code */
  }
  Py_DECREF(tools);
  return ok;
}

static PyObject *join(PyObject *pieces) {
  if (PyList_GET_SIZE(pieces) == 1) {
    PyObject *only = PyList_GET_ITEM(pieces, 0);
    if (PyBytes_CheckExact(only)) return Py_NewRef(only);
  }
  PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0);
  if (!nothing) return NULL;
  PyObject *joined = PyObject_CallMethod(nothing, "join", "O", pieces);
  Py_DECREF(nothing);
  return joined;
}

/* The search through the objects that the collector sees in a pickler, including the memo of
 * pickled objects. */
struct search {
  PyObject *leaf_containers, *pickled;
  bool sees_memo, has_met;
};

static int visit(PyObject *object, void *context) {
  struct search *search = context;
  if (object == search->pickled) search->sees_memo = true;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(search->leaf_containers); i++) {
    if (object == PyList_GET_ITEM(search->leaf_containers, i)) search->has_met = true;
  }
  return 0;
}

/* Whether the pickler, after pickling the list `pickled`, has met one of the containers: 1, 0, -1.
 */
static int has_met(struct rc_py_state *state, PyObject *pickler, PyObject *pickled,
                   PyObject *leaf_containers) {
  struct search search = {.leaf_containers = leaf_containers, .pickled = pickled};
  if (PyList_GET_SIZE(leaf_containers) == 0) return 0;
  if (PyList_GET_SIZE(leaf_containers) <= SEARCHED_CONTAINERS)
    Py_TYPE(pickler)->tp_traverse(pickler, visit, &search);
  if (search.sees_memo) return search.has_met;
  if (!rc_py_import_once(&state->has_met, "ringcast._pickling", "has_met")) return -1;
  return rc_py_is_yes(PyObject_CallFunctionObjArgs(state->has_met, pickler, leaf_containers, NULL));
}

/* Raises the current exception anew, with the place of the value that can't be pickled. */
static void explain(PyObject *value, PyObject *root) {
  PyObject *are_leaves = Py_False;
  PyObject *type, *error, *traceback;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback) PyException_SetTraceback(error, traceback);
  PyObject *explained = rc_py_import("ringcast._pickling", "explain");
  PyObject *none = NULL;
  if (root) {
    value = root;
    are_leaves = Py_True;
  }
  if (explained) none = PyObject_CallFunctionObjArgs(explained, value, error, are_leaves, NULL);
  Py_XDECREF(none);
  Py_XDECREF(explained);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
}

/* What the pickler has written. False: raised. */
static bool take_pickle(PyObject *tools, PyObject **data, PyObject **buffers) {
  PyObject *found = PyTuple_GET_ITEM(tools, BUFFERS);
  *data = join(PyTuple_GET_ITEM(tools, WRITTEN));
  if (!*data) return false;
  if (PyList_GET_SIZE(found) == 0) return true;
  *buffers = PyList_GetSlice(found, 0, PyList_GET_SIZE(found));
  return *buffers;
}

static int dump(struct rc_py_state *state, PyObject *value, PyObject *root,
                PyObject *leaf_containers, PyObject **data, PyObject **buffers) {
  *data = *buffers = NULL;
  PyObject *tools = take_pickler(state);
  if (!tools) return -1;
  PyObject *pickler = PyTuple_GET_ITEM(tools, PICKLER);
  PyObject *none = PyObject_CallMethodOneArg(pickler, state->names.dump, value);
  if (!none) {
    Py_DECREF(tools);
    explain(value, root);
    return -1;
  }
  Py_DECREF(none);
  int met = 0;
  bool ok = take_pickle(tools, data, buffers);
  if (ok && root && leaf_containers) met = has_met(state, pickler, value, leaf_containers);
  bool keeps = ok && PyBytes_GET_SIZE(*data) <= KEPT_BYTES;
  if (!give_pickler(state, tools, keeps)) ok = false;
  if (ok && met == 0) return 1;
  Py_CLEAR(*data);
  Py_CLEAR(*buffers);
  if (met > 0) return 0;
  return -1;
}

int rc_py_leaves_dump(struct rc_py_state *state, PyObject *value, PyObject *root,
                      PyObject *leaf_containers, PyObject **data, PyObject **buffers) {
  PyObject *modes = rc_py_torch_leave_modes(state);
  int dumped = dump(state, value, root, leaf_containers, data, buffers);
  rc_py_torch_enter_modes(state, modes);
  return dumped;
}

/* ---- Unpickled ------------------------------------------------------------------------------- */

static PyObject *load(struct rc_py_state *state, PyObject *data, PyObject *buffers) {
  PyObject *arguments[] = {data, buffers};
  if (!rc_py_import_once(&state->loads, "pickle", "loads")) return NULL;
  if (PyList_GET_SIZE(buffers) == 0) return PyObject_CallOneArg(state->loads, data);
  PyObject *names = PyTuple_Pack(1, state->names.buffers);
  if (!names) return NULL;
  PyObject *value = PyObject_Vectorcall(state->loads, arguments, 1, names);
  Py_DECREF(names);
  return value;
}

PyObject *rc_py_leaves_load(struct rc_py_state *state, PyObject *data, PyObject *buffers) {
  PyObject *modes = rc_py_torch_leave_modes(state);
  PyObject *value = load(state, data, buffers);
  rc_py_torch_enter_modes(state, modes);
  return value;
}
