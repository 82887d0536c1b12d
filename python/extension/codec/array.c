/* SPDX-License-Identifier: Apache-2.0 */
/*
 * array.array, which has no C API. An array is sent as a buffer. On receipt, an array of less than
 * 1 MiB is appended to an empty one: one copy, with the GIL. A longer one is made at full length by
 * repeating a single zero, and the bytes follow with all other copies, without the GIL.
 */
#include "python/extension/codec/array.h"

#include "python/extension/codec/kinds.h"
#include "python/extension/codec/token_write.h"

/* The typecode of an array, or -1: raised. */
static int typecode_of(struct rc_py_state *state, PyObject *array) {
  PyObject *text = PyObject_GetAttr(array, state->names.typecode);
  int typecode = -1;
  if (text && PyUnicode_Check(text) && PyUnicode_GET_LENGTH(text) == 1)
    typecode = (int)PyUnicode_READ_CHAR(text, 0);
  if (text && typecode < 0) PyErr_SetString(PyExc_TypeError, "an array's typecode is no character");
  Py_XDECREF(text);
  return typecode;
}

static enum rc_py_token_writer put_inline(struct rc_py_encoding *encoding, uint8_t typecode,
                                          const Py_buffer *view) {
  uint8_t *at = stream_at(encoding, HEAD + 1 + (size_t)view->len);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = RINGCAST_TAG_ARRAY;
  *at++ = typecode;
  at = write_count(at, (uint64_t)view->len);
  if (view->len > 0) memcpy(at, view->buf, (size_t)view->len);
  return stream_end(encoding, at + view->len);
}

enum rc_py_token_writer rc_py_token_write_array(struct rc_py_encoding *encoding, PyObject *array) {
  int typecode = typecode_of(encoding->state, array);
  if (typecode < 0) return RC_PY_PUT_RAISED;
  if (typecode > UINT8_MAX || !ringcast_typecode_bytes((uint8_t)typecode)) return RC_PY_PUT_LEAF;
  enum rc_py_token_writer marked = mark(encoding, array, NULL);
  if (marked != RC_PY_PUT_DONE) return marked;
  Py_buffer view;
  if (PyObject_GetBuffer(array, &view, PyBUF_SIMPLE) < 0) return RC_PY_PUT_RAISED;
  if (view.len <= INLINE_MOST) {
    enum rc_py_token_writer put = put_inline(encoding, (uint8_t)typecode, &view);
    PyBuffer_Release(&view);
    return put;
  }
  PyBuffer_Release(&view);
  if (!rc_py_part_add_buffer(encoding, array, RINGCAST_ITEM_BYTES)) return RC_PY_PUT_RAISED;
  encoding->parts[encoding->count - 1].flags = RINGCAST_ITEM_WITH_TYPECODE(typecode);
  return put_tag_of(encoding, RINGCAST_TAG_PART_ARRAY, typecode);
}

/* ---- Received -------------------------------------------------------------------------------- */

PyObject *rc_py_array_of(struct rc_py_state *state, uint8_t typecode, const void *data,
                         size_t bytes) {
  PyTypeObject *type = rc_py_standard_type(state, RC_PY_ARRAY);
  const char text[] = {(char)typecode, 0};
  if (!type) return NULL;
  PyObject *array = PyObject_CallFunction((PyObject *)type, "sy#", text,
                                          bytes ? (const char *)data : "", (Py_ssize_t)bytes);
  if (!array) rc_py_protocol_from_current(state, "an array of a typecode that this Python lacks");
  return array;
}

PyObject *rc_py_array_copy(struct rc_py_state *state, uint8_t typecode, const void *data,
                           size_t bytes) {
  PyObject *array = rc_py_array_of(state, typecode, NULL, 0);
  PyObject *view =
      array ? PyMemoryView_FromMemory((char *)data, (Py_ssize_t)bytes, PyBUF_READ) : NULL;
  PyObject *none = view ? PyObject_CallMethod(array, "frombytes", "O", view) : NULL;
  if (!none) Py_CLEAR(array);
  Py_XDECREF(view);
  Py_XDECREF(none);
  return array;
}

PyObject *rc_py_array_new(struct rc_py_state *state, uint8_t typecode, size_t bytes, void **out) {
  static const uint8_t zeros[16];
  uint32_t each = ringcast_typecode_bytes(typecode); /* not 0: the frame was checked */
  PyObject *zero = each > 0 ? rc_py_array_of(state, typecode, zeros, each) : NULL, *array = NULL;
  if (zero) array = PySequence_Repeat(zero, (Py_ssize_t)(bytes / each));
  Py_XDECREF(zero);
  Py_buffer view;
  if (array && PyObject_GetBuffer(array, &view, PyBUF_WRITABLE) < 0) Py_CLEAR(array);
  if (!array) return NULL;
  *out = view.buf; /* stays valid: only the decoder has the array */
  PyBuffer_Release(&view);
  return array;
}

int rc_py_array_has_typecode(struct rc_py_state *state, PyObject *value, uint8_t typecode) {
  PyTypeObject *type = rc_py_standard_type(state, RC_PY_ARRAY);
  if (!type) return -1;
  if (Py_TYPE(value) != type) return 0;
  int found = typecode_of(state, value);
  return found < 0 ? -1 : found == typecode;
}
