/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and text, from tokens; and a cache of short strs. */
#include "python/extension/codec/scalars.h"

#include "python/extension/codec/references.h"

/* ---- Numbers --------------------------------------------------------------------------------- */

PyObject *rc_py_get_bigint(struct rc_py_token_reader *reader, const struct ringcast_token *token) {
  const char *data = (const char *)token->data;
  PyObject *method = PyObject_GetAttrString((PyObject *)&PyLong_Type, "from_bytes"), *value = NULL;
  PyObject *arguments = Py_BuildValue("(y#s)", data, (Py_ssize_t)token->count, "little");
  PyObject *keywords = Py_BuildValue("{sO}", "signed", Py_True);
  if (method && arguments && keywords) value = PyObject_Call(method, arguments, keywords);
  Py_XDECREF(method);
  Py_XDECREF(arguments);
  Py_XDECREF(keywords);
  if (!value) return rc_py_stream_refused(reader, "an int");
  return value;
}

PyObject *rc_py_get_complex(const struct ringcast_token *token) {
  Py_complex value;
  memcpy(&value.real, token->data, 8);
  memcpy(&value.imag, token->data + 8, 8);
  return PyComplex_FromCComplex(value);
}

/* numpy.frombuffer(data, dtype)[0] */
PyObject *rc_py_get_scalar(struct rc_py_token_reader *reader, const struct ringcast_token *token) {
  PyObject *dtype = rc_py_numpy_dtype(reader->state, token->dtype);
  if (!dtype && PyErr_Occurred()) return NULL;
  if (!dtype) return rc_py_stream_damaged(reader, "a scalar of a dtype that NumPy lacks");
  if (token->dtype.code == RC_PY_BOOL_CODE && token->data[0] > 1)
    return rc_py_stream_damaged(reader, "a truth value");
  PyObject *data = PyBytes_FromStringAndSize((const char *)token->data, (Py_ssize_t)token->count);
  if (!data) return NULL;
  PyObject *array = rc_py_numpy_over_bytes(reader->state, data, dtype);
  Py_DECREF(data);
  if (!array) return NULL;
  PyObject *scalar = PySequence_GetItem(array, 0);
  Py_DECREF(array);
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
  default: return rc_py_get_float(at);
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

PyObject *rc_py_get_packed(const struct ringcast_token *token) {
  Py_ssize_t count = (Py_ssize_t)token->count;
  PyObject *items, **out;
  if (token->tag == RINGCAST_TAG_PACKED_LIST) {
    items = PyList_New(count);
    if (!items || count == 0) return items;
    out = ((PyListObject *)items)->ob_item;
  } else {
    items = PyTuple_New(count);
    if (!items || count == 0) return items;
    out = ((PyTupleObject *)items)->ob_item;
  }
  if (!fill_packed_kind(out, token)) Py_CLEAR(items);
  return items;
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* The beginning, middle and end of a text: all of it, if it has no more than 24 bytes. */
struct words {
  uint64_t first, middle, last;
};

static inline struct words words_of(const uint8_t *text, size_t bytes) {
  struct words out = {0};
  uint32_t halves[2];
  if (bytes >= 8) {
    memcpy(&out.first, text, 8);
    memcpy(&out.middle, text + (bytes - 8) / 2, 8);
    memcpy(&out.last, text + bytes - 8, 8);
  } else if (bytes >= 4) {
    memcpy(&halves[0], text, 4);
    memcpy(&halves[1], text + bytes - 4, 4);
    memcpy(&out.first, halves, 8);
  } else {
    out.first =
        (uint64_t)text[0] | (uint64_t)text[bytes / 2] << 8 | (uint64_t)text[bytes - 1] << 16;
  }
  return out;
}

static inline bool is_text(PyObject *known, const uint8_t *text, size_t bytes,
                           const struct words *words) {
  if (!known || (size_t)PyUnicode_GET_LENGTH(known) != bytes) return false;
  const uint8_t *data = PyUnicode_1BYTE_DATA(known);
  struct words has = words_of(data, bytes);
  return has.first == words->first && has.middle == words->middle && has.last == words->last &&
         (bytes <= sizeof has || memcmp(data, text, bytes) == 0);
}

/* Request ids and dict keys repeat from frame to frame: a cached str needs no allocation, and has
 * its hash already. NULL, with nothing raised: the caller makes the str. */
PyObject *rc_py_key(struct rc_py_state *state, const void *text, size_t bytes) {
  if (bytes == 0 || bytes > RC_PY_KEY_MOST) return NULL;
  struct words words = words_of(text, bytes);
  uint64_t hash = ((words.first ^ bytes) * UINT64_C(0x9e3779b97f4a7c15) ^ words.middle) *
                      UINT64_C(0xff51afd7ed558ccd) ^
                  words.last;
  PyObject **place = &state->keys[hash * UINT64_C(0x9e3779b97f4a7c15) >> (64 - RC_PY_KEYS_BITS)];
  PyObject *known = *place;
  if (is_text(known, text, bytes, &words)) return Py_NewRef(known);
  if (!rc_py_is_ascii(text, bytes)) return NULL;
  PyObject *key = PyUnicode_New((Py_ssize_t)bytes, 127);
  if (!key) {
    PyErr_Clear();
    return NULL;
  }
  memcpy(PyUnicode_1BYTE_DATA(key), text, bytes);
  *place = Py_NewRef(key);
  Py_XDECREF(known);
  return key;
}

PyObject *rc_py_text(struct rc_py_token_reader *reader, const uint8_t *data, size_t bytes,
                     const char *errors) {
  PyObject *text = PyUnicode_DecodeUTF8((const char *)data, (Py_ssize_t)bytes, errors);
  if (!text) return rc_py_stream_refused(reader, "its text is no UTF-8");
  return text;
}

PyObject *rc_py_text_named(struct rc_py_token_reader *reader, const uint8_t *data, size_t bytes) {
  PyObject *text = rc_py_key(reader->state, data, bytes);
  if (!text) text = rc_py_text(reader, data, bytes, NULL);
  if (!text) return NULL;
  return rc_py_text_note(reader, text);
}
