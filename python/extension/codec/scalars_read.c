/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the rarer numbers, and numbers packed into one token. */
#include "python/extension/codec/token_read.h"
#include "python/extension/codec/torch_names.h"
#include "python/extension/tensors.h"

PyObject *rc_py_token_read_bigint(struct rc_py_token_reader *getting,
                                  const struct ringcast_token *token) {
  PyObject *method = PyObject_GetAttrString((PyObject *)&PyLong_Type, "from_bytes");
  PyObject *arguments = NULL, *keywords = NULL, *value = NULL;
  if (method)
    arguments =
        Py_BuildValue("(y#s)", (const char *)token->data, (Py_ssize_t)token->count, "little");
  if (arguments) keywords = Py_BuildValue("{sO}", "signed", Py_True);
  if (keywords) value = PyObject_Call(method, arguments, keywords);
  Py_XDECREF(method);
  Py_XDECREF(arguments);
  Py_XDECREF(keywords);
  return value ? value : stream_refused(getting, "an int");
}

PyObject *rc_py_token_read_complex(const struct ringcast_token *token) {
  Py_complex value;
  memcpy(&value.real, token->data, 8);
  memcpy(&value.imag, token->data + 8, 8);
  return PyComplex_FromCComplex(value);
}

/* numpy.frombuffer(data, dtype)[0] */
PyObject *rc_py_token_read_scalar(struct rc_py_token_reader *getting,
                                  const struct ringcast_token *token) {
  PyObject *dtype = rc_py_numpy_dtype(getting->state, token->dtype);
  if (!dtype)
    return PyErr_Occurred() ? NULL
                            : stream_damaged(getting, "a scalar of a dtype that NumPy lacks");
  if (token->dtype.code == RC_PY_BOOL_CODE && token->data[0] > 1)
    return stream_damaged(getting, "a truth value");
  PyObject *data = PyBytes_FromStringAndSize((const char *)token->data, (Py_ssize_t)token->count);
  PyObject *array = data ? rc_py_numpy_over_bytes(getting->state, data, dtype) : NULL;
  PyObject *scalar = array ? PySequence_GetItem(array, 0) : NULL;
  Py_XDECREF(data);
  Py_XDECREF(array);
  return scalar;
}

/* ---- Packed numbers -------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) PyObject *packed_number(uint8_t kind,
                                                                     const uint8_t *at) {
  int64_t value = 0;
  switch (kind) {
  case RINGCAST_PACKED_U8: return PyLong_FromLong(*at);
  case RINGCAST_PACKED_U16: memcpy(&value, at, 2); return PyLong_FromLong((long)value);
  case RINGCAST_PACKED_U32: memcpy(&value, at, 4); return PyLong_FromLongLong(value);
  case RINGCAST_PACKED_I8: return PyLong_FromLong((int8_t)*at);
  case RINGCAST_PACKED_I16: memcpy(&value, at, 2); return PyLong_FromLong((int16_t)value);
  case RINGCAST_PACKED_I32: memcpy(&value, at, 4); return PyLong_FromLong((int32_t)value);
  case RINGCAST_PACKED_I64: memcpy(&value, at, 8); return PyLong_FromLongLong(value);
  default: return get_float(at);
  }
}

static inline __attribute__((always_inline)) bool
fill_packed(PyObject **out, const struct ringcast_token *token, uint8_t kind) {
  size_t each = kind & 15;
  const uint8_t *at = token->data;
  for (uint64_t i = 0; i < token->count; i++, at += each) {
    out[i] = packed_number(kind, at);
    if (!out[i]) return false;
  }
  return true;
}

/* A loop for each kind, without a branch inside. */
static bool fill_packed_kind(PyObject **out, const struct ringcast_token *token) {
  switch (token->kind) {
#define KIND(name) \
  case name: return fill_packed(out, token, name);
    KIND(RINGCAST_PACKED_U8)
    KIND(RINGCAST_PACKED_U16)
    KIND(RINGCAST_PACKED_U32)
    KIND(RINGCAST_PACKED_I8)
    KIND(RINGCAST_PACKED_I16)
    KIND(RINGCAST_PACKED_I32)
    KIND(RINGCAST_PACKED_I64)
#undef KIND
  default: return fill_packed(out, token, RINGCAST_PACKED_F64);
  }
}

PyObject *rc_py_token_read_packed(const struct ringcast_token *token) {
  Py_ssize_t count = (Py_ssize_t)token->count;
  bool is_list = token->tag == RINGCAST_TAG_PACKED_LIST;
  PyObject *items = is_list ? PyList_New(count) : PyTuple_New(count);
  if (!items || count == 0) return items;
  PyObject **out = is_list ? ((PyListObject *)items)->ob_item : ((PyTupleObject *)items)->ob_item;
  if (!fill_packed_kind(out, token)) Py_CLEAR(items);
  return items;
}

/* torch.Size(tuple of ints) */
PyObject *rc_py_token_read_size(struct rc_py_token_reader *getting,
                                const struct ringcast_token *token) {
  struct ringcast_token numbers = *token;
  numbers.tag = RINGCAST_TAG_PACKED_TUPLE;
  numbers.kind = RINGCAST_PACKED_I64;
  PyObject *tuple = rc_py_token_read_packed(&numbers);
  PyObject *size = tuple ? rc_py_torch_size(getting->state, tuple) : NULL;
  Py_XDECREF(tuple);
  return size;
}
