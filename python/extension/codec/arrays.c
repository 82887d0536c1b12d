/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors and arrays in a nested value: each is a part. An array of strings, times or structs is a
 * KIND, whose part has the bytes of the elements.
 *
 * array.array has no C API. It is sent as a buffer. On receipt, an array of less than 1 MiB is
 * appended to an empty one: one copy, with the GIL. A longer one is made at full length by
 * repeating a single zero, and the bytes follow with all other copies, without the GIL.
 */
#include "python/extension/codec/arrays.h"

#include "python/extension/codec/kinds.h"
#include "python/extension/codec/parts.h"
#include "python/extension/codec/references.h"
#include "python/extension/codec/scalars.h"

/* ---- Tensors and NumPy arrays ---------------------------------------------------------------- */

static enum rc_py_put put_part(struct rc_py_encoding *encoding, PyObject *value,
                               struct rc_py_source *source, uint64_t bytes) {
  struct rc_py_part *part = rc_py_part_add(encoding, NULL, value);
  if (!part) {
    rc_py_source_clear(source);
    return RC_PY_PUT_RAISED;
  }
  part->kind = RINGCAST_ITEM_TENSOR;
  part->source = *source;
  part->bytes = bytes;
  return rc_py_put_tag(encoding, RINGCAST_TAG_PART);
}

/* An array of strings, times, structs: its dtype, and its elements as bytes. */
static enum rc_py_put put_ndarray(struct rc_py_encoding *encoding, PyObject *array,
                                  struct rc_py_step *step) {
  struct rc_py_source source = {.keep = NULL};
  uint64_t bytes;
  if (step->depth > RINGCAST_MAX_DEPTH - RC_PY_STATE_DEPTH) return RC_PY_PUT_LEAF;
  PyObject *text = rc_py_numpy_describe_bytes(encoding->state, array, &source);
  if (!text) {
    rc_py_source_clear(&source);
    if (PyErr_Occurred()) return RC_PY_PUT_RAISED;
    return RC_PY_PUT_LEAF;
  }
  int number = RINGCAST_STANDARD_RECARRAY;
  bool is_plain = (PyObject *)Py_TYPE(array) == encoding->state->numpy.ndarray;
  if (is_plain) number = RINGCAST_STANDARD_NDARRAY;
  enum rc_py_put put = rc_py_put_tag_of(encoding, RINGCAST_TAG_KIND, number);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_head(encoding, RINGCAST_TAG_TUPLE, 2);
  if (put == RC_PY_PUT_DONE) put = rc_py_put_text(encoding, text);
  Py_DECREF(text);
  if (put != RC_PY_PUT_DONE || !rc_py_source_finish(encoding, &source, step, &bytes)) {
    rc_py_source_clear(&source);
    return RC_PY_PUT_RAISED;
  }
  return put_part(encoding, array, &source, bytes);
}

enum rc_py_put rc_py_put_tensor(struct rc_py_encoding *encoding, PyObject *value,
                                struct rc_py_step *step) {
  struct rc_py_source source = {.keep = NULL};
  uint64_t bytes;
  enum rc_py_put put = rc_py_mark(encoding, value, step);
  if (put != RC_PY_PUT_DONE) return put;
  int described = rc_py_part_tensor(encoding, value, step, &source, &bytes);
  if (described < 0) return RC_PY_PUT_RAISED;
  if (described > 0) return put_part(encoding, value, &source, bytes);
  put = put_ndarray(encoding, value, step);
  if (put == RC_PY_PUT_LEAF) return rc_py_unmark(encoding, value);
  return put;
}

/* ---- array.array, written -------------------------------------------------------------------- */

/* The typecode of an array, or -1: raised. */
static int typecode_of(struct rc_py_state *state, PyObject *array) {
  PyObject *text = PyObject_GetAttr(array, state->names.typecode);
  if (!text) return -1;
  int typecode = -1;
  if (PyUnicode_Check(text) && PyUnicode_GET_LENGTH(text) == 1) {
    typecode = (int)PyUnicode_READ_CHAR(text, 0);
  } else {
    PyErr_SetString(PyExc_TypeError, "an array's typecode is no character");
  }
  Py_DECREF(text);
  return typecode;
}

static enum rc_py_put put_inline(struct rc_py_encoding *encoding, uint8_t typecode,
                                 const Py_buffer *view) {
  uint8_t *at = rc_py_stream_at(encoding, HEAD + 1 + (size_t)view->len);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = RINGCAST_TAG_ARRAY;
  *at++ = typecode;
  at = rc_py_write_count(at, (uint64_t)view->len);
  if (view->len > 0) memcpy(at, view->buf, (size_t)view->len);
  return rc_py_stream_end(encoding, at + view->len);
}

enum rc_py_put rc_py_put_array(struct rc_py_encoding *encoding, PyObject *array) {
  int typecode = typecode_of(encoding->state, array);
  if (typecode < 0) return RC_PY_PUT_RAISED;
  if (typecode > UINT8_MAX || !ringcast_typecode_bytes((uint8_t)typecode)) return RC_PY_PUT_LEAF;
  enum rc_py_put marked = rc_py_mark(encoding, array, NULL);
  if (marked != RC_PY_PUT_DONE) return marked;
  Py_buffer view;
  if (PyObject_GetBuffer(array, &view, PyBUF_SIMPLE) < 0) return RC_PY_PUT_RAISED;
  if (view.len <= INLINE_MOST) {
    enum rc_py_put put = put_inline(encoding, (uint8_t)typecode, &view);
    PyBuffer_Release(&view);
    return put;
  }
  PyBuffer_Release(&view);
  if (!rc_py_part_add_buffer(encoding, array, RINGCAST_ITEM_BYTES)) return RC_PY_PUT_RAISED;
  encoding->parts[encoding->count - 1].flags = RINGCAST_ITEM_WITH_TYPECODE(typecode);
  return rc_py_put_tag_of(encoding, RINGCAST_TAG_PART_ARRAY, typecode);
}

/* ---- array.array, read ----------------------------------------------------------------------- */

PyObject *rc_py_array_of(struct rc_py_state *state, uint8_t typecode, const void *data,
                         size_t bytes) {
  PyTypeObject *type = rc_py_standard_type(state, RC_PY_ARRAY);
  const char text[] = {(char)typecode, 0};
  if (!type) return NULL;
  if (bytes == 0) data = ""; /* y# would take NULL for None */
  PyObject *array =
      PyObject_CallFunction((PyObject *)type, "sy#", text, (const char *)data, (Py_ssize_t)bytes);
  if (!array) rc_py_protocol_from_current(state, "an array of a typecode that this Python lacks");
  return array;
}

PyObject *rc_py_array_copy(struct rc_py_state *state, uint8_t typecode, const void *data,
                           size_t bytes) {
  PyObject *view = PyMemoryView_FromMemory((char *)data, (Py_ssize_t)bytes, PyBUF_READ);
  if (!view) return NULL;
  PyObject *array = rc_py_array_of(state, typecode, NULL, 0), *none = NULL;
  if (array) none = PyObject_CallMethod(array, "frombytes", "O", view);
  if (!none) Py_CLEAR(array);
  Py_XDECREF(none);
  Py_DECREF(view);
  return array;
}

PyObject *rc_py_array_new(struct rc_py_state *state, uint8_t typecode, size_t bytes, void **out) {
  static const uint8_t zeros[16];
  uint32_t each = ringcast_typecode_bytes(typecode);
  if (each == 0) return rc_py_raise_damaged(state, "an array of a typecode that is none");
  PyObject *zero = rc_py_array_of(state, typecode, zeros, each);
  if (!zero) return NULL;
  PyObject *array = PySequence_Repeat(zero, (Py_ssize_t)(bytes / each));
  Py_DECREF(zero);
  if (!array) return NULL;
  Py_buffer view;
  if (PyObject_GetBuffer(array, &view, PyBUF_WRITABLE) < 0) {
    Py_DECREF(array);
    return NULL;
  }
  *out = view.buf; /* stays valid: only the decoder has the array */
  PyBuffer_Release(&view);
  return array;
}

/* Whether the value is an array with the typecode: 1, 0, -1. */
static int has_typecode(struct rc_py_state *state, PyObject *value, uint8_t typecode) {
  PyTypeObject *type = rc_py_standard_type(state, RC_PY_ARRAY);
  if (!type) return -1;
  if (Py_TYPE(value) != type) return 0;
  int found = typecode_of(state, value);
  if (found < 0) return -1;
  return found == typecode;
}

/* The part is an array already, as its entry says. */
PyObject *rc_py_get_part_array(struct rc_py_token_reader *reader, uint8_t typecode) {
  PyObject *part = rc_py_next_part(reader);
  if (!part) return NULL;
  int fits = has_typecode(reader->state, part, typecode);
  if (fits < 0) return NULL;
  if (!fits) return rc_py_stream_damaged(reader, "a part of another kind");
  return Py_NewRef(part);
}
