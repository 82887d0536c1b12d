/* SPDX-License-Identifier: Apache-2.0 */
/* torch's names and sizes: torch.dtype, torch.device, torch.Size. */
#include "python/extension/codec/torch_names.h"
#include "python/extension/tensors.h"

#include "ringcast/object.h"

static bool names_load(struct rc_py_state *state) {
  struct rc_py_torch *torch = &state->torch;
  PyObject *module = PyImport_GetModule(state->names.torch);
  if (!torch->dtype_type)
    torch->dtype_type = module ? PyObject_GetAttrString(module, "dtype") : NULL;
  if (torch->dtype_type && !torch->device_type)
    torch->device_type = PyObject_GetAttrString(module, "device");
  if (torch->device_type && !torch->size_type)
    torch->size_type = PyObject_GetAttrString(module, "Size");
  Py_XDECREF(module);
  return torch->size_type;
}

/* If torch is absent or half imported, no such value exists yet. */
static bool names_seen(struct rc_py_state *state) {
  if (state->torch.size_type) return true;
  bool seen = rc_py_torch_seen(state) && names_load(state);
  if (!seen) PyErr_Clear();
  return seen;
}

/* ---- To send --------------------------------------------------------------------------------- */

/* str(value), from `skipped` on. */
static int name_text(PyObject *value, uint8_t tag, Py_ssize_t skipped, struct rc_py_named *out) {
  Py_ssize_t bytes;
  out->keep = PyObject_Str(value);
  const char *text = out->keep ? PyUnicode_AsUTF8AndSize(out->keep, &bytes) : NULL;
  if (!text) {
    Py_CLEAR(out->keep);
    return -1;
  }
  if (bytes < skipped) skipped = bytes;
  out->tag = tag;
  out->data = text + skipped;
  out->count = out->bytes = (size_t)(bytes - skipped);
  return 1;
}

static int name_size(PyObject *size, struct rc_py_named *out) {
  Py_ssize_t count = PyTuple_GET_SIZE(size);
  out->keep = PyBytes_FromStringAndSize(NULL, count * 8);
  if (!out->keep) return -1;
  for (Py_ssize_t i = 0; i < count; i++) {
    int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(size, i));
    if (PyErr_Occurred()) {
      PyErr_Clear(); /* symbolic */
      Py_CLEAR(out->keep);
      return 0;
    }
    memcpy(PyBytes_AS_STRING(out->keep) + 8 * i, &value, sizeof value);
  }
  out->tag = RINGCAST_TAG_SIZE;
  out->data = PyBytes_AS_STRING(out->keep);
  out->count = (size_t)count;
  out->bytes = (size_t)count * 8;
  return 1;
}

int rc_py_torch_name(struct rc_py_state *state, PyObject *value, struct rc_py_named *out) {
  PyObject *type = (PyObject *)Py_TYPE(value);
  out->keep = NULL;
  if (!names_seen(state)) return 0;
  if (type == state->torch.dtype_type)
    return name_text(value, RINGCAST_TAG_DTYPE, sizeof "torch." - 1, out);
  if (type == state->torch.device_type) return name_text(value, RINGCAST_TAG_DEVICE, 0, out);
  return type == state->torch.size_type ? name_size(value, out) : 0;
}

/* ---- Received -------------------------------------------------------------------------------- */

static bool names_needed(struct rc_py_state *state) {
  return rc_py_torch_needed(state) && (state->torch.size_type || names_load(state));
}

PyObject *rc_py_torch_dtype(struct rc_py_state *state, const void *name, size_t bytes) {
  if (!names_needed(state)) return NULL;
  PyObject *text = PyUnicode_DecodeASCII(name, (Py_ssize_t)bytes, NULL);
  PyObject *module = text ? PyImport_GetModule(state->names.torch) : NULL;
  PyObject *dtypes =
      module ? PyModule_GetDict(module) : NULL; /* torch's own look-up of names could run code */
  PyObject *dtype = dtypes ? rc_py_ref(PyDict_GetItemWithError(dtypes, text)) : NULL;
  if (dtypes && (!dtype || (PyObject *)Py_TYPE(dtype) != state->torch.dtype_type) &&
      !PyErr_Occurred()) {
    Py_CLEAR(dtype);
    rc_py_raise_text(state, EPROTO,
                     "the frame holds the torch.dtype %.100R, which this torch lacks", text);
  }
  if (!text) rc_py_protocol_from_current(state, "the name of a torch.dtype");
  if (text && !module && !PyErr_Occurred()) {
    PyErr_SetString(PyExc_ImportError,
                    "the frame holds a torch.dtype, and torch was taken out of sys.modules here: "
                    "leave it there");
  }
  Py_XDECREF(text);
  Py_XDECREF(module);
  return dtype;
}

PyObject *rc_py_torch_device(struct rc_py_state *state, const void *name, size_t bytes) {
  if (!names_needed(state)) return NULL;
  PyObject *text = PyUnicode_DecodeASCII(name, (Py_ssize_t)bytes, NULL);
  PyObject *device = text ? PyObject_CallOneArg(state->torch.device_type, text) : NULL;
  Py_XDECREF(text);
  if (!device) rc_py_protocol_from_current(state, "a torch.device");
  return device;
}

PyObject *rc_py_torch_size(struct rc_py_state *state, PyObject *tuple) {
  return names_needed(state) ? PyObject_CallOneArg(state->torch.size_type, tuple) : NULL;
}
