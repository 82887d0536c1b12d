/* SPDX-License-Identifier: Apache-2.0 */
/* torch's names and sizes: torch.dtype, torch.device, torch.Size. */
#include "python/extension/codec/scalars.h"

static bool name_load(PyObject *module, const char *name, PyObject **out) {
  if (!*out) *out = PyObject_GetAttrString(module, name);
  return *out;
}

static bool names_load(struct rc_py_state *state) {
  struct rc_py_torch *torch = &state->torch;
  PyObject *module = PyImport_GetModule(state->names.torch);
  bool loaded = module && name_load(module, "dtype", &torch->dtype_type) &&
                name_load(module, "device", &torch->device_type) &&
                name_load(module, "Size", &torch->size_type);
  Py_XDECREF(module);
  return loaded;
}

/* If torch is absent or half imported, no such value exists yet. */
static bool names_seen(struct rc_py_state *state) {
  if (state->torch.size_type) return true;
  bool seen = rc_py_torch_seen(state) && names_load(state);
  if (!seen) PyErr_Clear();
  return seen;
}

/* ---- To send --------------------------------------------------------------------------------- */

static enum rc_py_put put_name(struct rc_py_encoding *encoding, uint8_t tag, PyObject *value,
                               const char *prefix) {
  Py_ssize_t bytes;
  PyObject *text = PyObject_Str(value);
  if (!text) return RC_PY_PUT_RAISED;
  const char *name = PyUnicode_AsUTF8AndSize(text, &bytes);
  size_t skipped = strlen(prefix);
  enum rc_py_put put = RC_PY_PUT_RAISED;
  if (name) {
    if ((size_t)bytes < skipped) skipped = (size_t)bytes;
    put = rc_py_put_data(encoding, tag, name + skipped, (size_t)bytes - skipped);
  }
  Py_DECREF(text);
  return put;
}

static uint8_t *write_size(uint8_t *at, int64_t value) {
  memcpy(at, &value, sizeof value);
  return at + sizeof value;
}

/* LEAF: a number is symbolic. */
static enum rc_py_put put_size(struct rc_py_encoding *encoding, PyObject *size) {
  size_t count = (size_t)PyTuple_GET_SIZE(size);
  uint8_t *at = rc_py_stream_at(encoding, HEAD + 8 * count);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = RINGCAST_TAG_SIZE;
  at = rc_py_write_count(at, count);
  for (size_t i = 0; i < count; i++) {
    const long long value = PyLong_AsLongLong(PyTuple_GET_ITEM(size, (Py_ssize_t)i));
    if (value == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      return RC_PY_PUT_LEAF;
    }
    at = write_size(at, value);
  }
  return rc_py_stream_end(encoding, at);
}

enum rc_py_put rc_py_put_torch_name(struct rc_py_encoding *encoding, PyObject *value) {
  struct rc_py_state *state = encoding->state;
  const PyObject *type = (PyObject *)Py_TYPE(value);
  if (!names_seen(state)) return RC_PY_PUT_LEAF;
  if (type == state->torch.dtype_type)
    return put_name(encoding, RINGCAST_TAG_DTYPE, value, "torch.");
  if (type == state->torch.device_type) return put_name(encoding, RINGCAST_TAG_DEVICE, value, "");
  if (type == state->torch.size_type) return put_size(encoding, value);
  return RC_PY_PUT_LEAF;
}

/* ---- Received -------------------------------------------------------------------------------- */

static bool names_needed(struct rc_py_state *state) {
  return rc_py_torch_needed(state) && (state->torch.size_type || names_load(state));
}

/* torch's member with the name. torch's own look-up of names could run code. */
static PyObject *find_dtype(struct rc_py_state *state, PyObject *name) {
  PyObject *module = PyImport_GetModule(state->names.torch);
  if (!module) {
    if (!PyErr_Occurred()) {
      PyErr_SetString(PyExc_ImportError,
                      "the frame holds a torch.dtype, and torch was taken out of sys.modules here: "
                      "leave it there");
    }
    return NULL;
  }
  PyObject *found = Py_XNewRef(PyDict_GetItemWithError(PyModule_GetDict(module), name));
  Py_DECREF(module);
  if (found && (PyObject *)Py_TYPE(found) == state->torch.dtype_type) return found;
  Py_XDECREF(found);
  if (PyErr_Occurred()) return NULL;
  return rc_py_raise_text(state, EPROTO,
                          "the frame holds the torch.dtype %.100R, which this torch lacks", name);
}

PyObject *rc_py_get_torch_dtype(struct rc_py_token_reader *reader,
                                const struct ringcast_token *token) {
  if (!names_needed(reader->state)) return NULL;
  PyObject *name = PyUnicode_DecodeASCII((const char *)token->data, (Py_ssize_t)token->count, NULL);
  if (!name) return rc_py_stream_refused(reader, "the name of a torch.dtype");
  PyObject *dtype = find_dtype(reader->state, name);
  Py_DECREF(name);
  return dtype;
}

PyObject *rc_py_get_torch_device(struct rc_py_token_reader *reader,
                                 const struct ringcast_token *token) {
  if (!names_needed(reader->state)) return NULL;
  PyObject *device = NULL;
  PyObject *name = PyUnicode_DecodeASCII((const char *)token->data, (Py_ssize_t)token->count, NULL);
  if (name) device = PyObject_CallOneArg(reader->state->torch.device_type, name);
  Py_XDECREF(name);
  if (!device) return rc_py_stream_refused(reader, "a torch.device");
  return device;
}

/* torch.Size(tuple of ints) */
PyObject *rc_py_get_torch_size(struct rc_py_token_reader *reader,
                               const struct ringcast_token *token) {
  struct ringcast_token numbers = *token;
  numbers.tag = RINGCAST_TAG_PACKED_TUPLE;
  numbers.kind = RINGCAST_PACKED_I64;
  PyObject *tuple = rc_py_get_packed(&numbers);
  if (!tuple) return NULL;
  PyObject *size = NULL;
  if (names_needed(reader->state)) {
    size = PyObject_CallOneArg(reader->state->torch.size_type, tuple);
  }
  Py_DECREF(tuple);
  return size;
}
