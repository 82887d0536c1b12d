/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers, text and bytes, to tokens. */
#include "python/extension/codec/scalars.h"

#include "python/extension/codec/parts.h"
#include "python/extension/codec/references.h"

enum { SHARED_LEAST = 6 }; /* bytes of a str, to be worth a number */

/* ---- Numbers --------------------------------------------------------------------------------- */

/* value.to_bytes(length, "little", signed=True) */
static PyObject *bytes_of(PyObject *value, size_t length) {
  PyObject *method = PyObject_GetAttrString(value, "to_bytes"), *bytes = NULL;
  PyObject *arguments = Py_BuildValue("(ns)", (Py_ssize_t)length, "little");
  PyObject *keywords = Py_BuildValue("{sO}", "signed", Py_True);
  if (method && arguments && keywords) bytes = PyObject_Call(method, arguments, keywords);
  Py_XDECREF(method);
  Py_XDECREF(arguments);
  Py_XDECREF(keywords);
  return bytes;
}

static enum rc_py_put put_bigint(struct rc_py_encoding *encoding, PyObject *value) {
  PyObject *bits = PyObject_CallMethod(value, "bit_length", NULL);
  if (!bits) return RC_PY_PUT_RAISED;
  size_t length = PyLong_AsSize_t(bits);
  Py_DECREF(bits);
  if (PyErr_Occurred()) return RC_PY_PUT_RAISED;
  PyObject *bytes = bytes_of(value, length / 8 + 1);
  if (!bytes) return RC_PY_PUT_RAISED;
  enum rc_py_put put = rc_py_put_data(encoding, RINGCAST_TAG_BIGINT, PyBytes_AS_STRING(bytes),
                                      (size_t)PyBytes_GET_SIZE(bytes));
  Py_DECREF(bytes);
  return put;
}

enum rc_py_put rc_py_put_int(struct rc_py_encoding *encoding, PyObject *object) {
  int64_t value;
  if (!rc_py_int_value(object, &value)) return put_bigint(encoding, object);
  uint8_t *at = rc_py_stream_at(encoding, 9);
  if (!at) return RC_PY_PUT_RAISED;
  if (value >= 0 && value < RINGCAST_TAG_TEXT) {
    *at++ = (uint8_t)value;
    return rc_py_stream_end(encoding, at);
  }
  /* 0, 1, 2 or 3, for 1, 2, 4 or 8 bytes. */
  int size = (value != (int8_t)value) + (value != (int16_t)value) + (value != (int32_t)value);
  *at++ = (uint8_t)(RINGCAST_TAG_INT8 + size);
  memcpy(at, &value, (size_t)1 << size);
  return rc_py_stream_end(encoding, at + ((size_t)1 << size));
}

enum rc_py_put rc_py_put_float(struct rc_py_encoding *encoding, PyObject *object) {
  double value = PyFloat_AS_DOUBLE(object);
  uint8_t *at = rc_py_stream_at(encoding, 9);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = RINGCAST_TAG_FLOAT;
  memcpy(at, &value, sizeof value);
  return rc_py_stream_end(encoding, at + sizeof value);
}

enum rc_py_put rc_py_put_complex(struct rc_py_encoding *encoding, PyObject *object) {
  Py_complex value = PyComplex_AsCComplex(object);
  uint8_t *at = rc_py_stream_at(encoding, 17);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = RINGCAST_TAG_COMPLEX;
  memcpy(at, &value.real, 8);
  memcpy(at + 8, &value.imag, 8);
  return rc_py_stream_end(encoding, at + 16);
}

static uint8_t packed_kind(int64_t low, int64_t high) {
  if (low >= 0 && high <= UINT8_MAX) return RINGCAST_PACKED_U8;
  if (low >= 0 && high <= UINT16_MAX) return RINGCAST_PACKED_U16;
  if (low >= 0 && high <= UINT32_MAX) return RINGCAST_PACKED_U32;
  if (low >= INT8_MIN && high <= INT8_MAX) return RINGCAST_PACKED_I8;
  if (low >= INT16_MIN && high <= INT16_MAX) return RINGCAST_PACKED_I16;
  if (low >= INT32_MIN && high <= INT32_MAX) return RINGCAST_PACKED_I32;
  return RINGCAST_PACKED_I64;
}

/* Makes the 64-bit numbers at `from` as narrow as the kind says, at `to`, which lies before. */
static void narrow(uint8_t *to, const uint8_t *from, size_t count, uint8_t kind) {
  size_t each = kind & 15;
  int64_t value;
  if (each == 8) {
    memmove(to, from, count * 8);
    return;
  }
#define NARROW(type)                                     \
  for (size_t i = 0; i < count; i++) {                   \
    memcpy(&value, from + 8 * i, sizeof value);          \
    type small = (type)value;                            \
    memcpy(to + sizeof small * i, &small, sizeof small); \
  }
  switch (each) {
  case 1: NARROW(uint8_t) break;
  case 2: NARROW(uint16_t) break;
  default: NARROW(uint32_t) break;
  }
#undef NARROW
}

static enum rc_py_put put_ints(struct rc_py_encoding *encoding, uint8_t tag, PyObject *const *items,
                               size_t count) {
  int64_t low = INT64_MAX, high = INT64_MIN, value;
  uint8_t *at = rc_py_stream_at(encoding, HEAD + 8 + 8 * count);
  if (!at) return RC_PY_PUT_RAISED;
  uint8_t *wide = at + HEAD + 8;
  for (size_t i = 0; i < count; i++) {
    if (!PyLong_CheckExact(items[i]) || !rc_py_int_value(items[i], &value)) return RC_PY_PUT_LEAF;
    memcpy(wide + 8 * i, &value, sizeof value);
    if (value < low) low = value;
    if (value > high) high = value;
  }
  uint8_t kind = packed_kind(low, high);
  *at++ = tag;
  *at++ = kind;
  at = rc_py_write_count(at, count);
  narrow(at, wide, count, kind);
  return rc_py_stream_end(encoding, at + count * (kind & 15));
}

static enum rc_py_put put_floats(struct rc_py_encoding *encoding, uint8_t tag,
                                 PyObject *const *items, size_t count) {
  uint8_t *at = rc_py_stream_at(encoding, HEAD + 1 + 8 * count);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = tag;
  *at++ = RINGCAST_PACKED_F64;
  at = rc_py_write_count(at, count);
  for (size_t i = 0; i < count; i++) {
    if (!PyFloat_CheckExact(items[i])) return RC_PY_PUT_LEAF;
    double value = PyFloat_AS_DOUBLE(items[i]);
    memcpy(at, &value, sizeof value);
    at += sizeof value;
  }
  return rc_py_stream_end(encoding, at);
}

/* LEAF: the items are not numbers of one kind, and nothing was written. */
enum rc_py_put rc_py_put_packed(struct rc_py_encoding *encoding, uint8_t tag,
                                PyObject *const *items, size_t count) {
  if (PyLong_CheckExact(items[0]) && PyLong_CheckExact(items[count - 1]))
    return put_ints(encoding, tag, items, count);
  if (PyFloat_CheckExact(items[0])) return put_floats(encoding, tag, items, count);
  return RC_PY_PUT_LEAF;
}

/* ---- Text and bytes -------------------------------------------------------------------------- */

static enum rc_py_put put_part(struct rc_py_encoding *encoding, PyObject *value,
                               enum ringcast_item_kind kind, const void *data, size_t bytes) {
  enum rc_py_put put = rc_py_mark(encoding, value, NULL);
  if (put != RC_PY_PUT_DONE) return rc_py_put_done(put);
  struct rc_py_part *part = rc_py_part_add(encoding, NULL, value);
  if (!part) return RC_PY_PUT_RAISED;
  part->kind = kind;
  part->data = data;
  part->bytes = bytes;
  return rc_py_put_tag(encoding, RINGCAST_TAG_PART);
}

/* For text with lone surrogates. */
static enum rc_py_put put_wide_text(struct rc_py_encoding *encoding, PyObject *text) {
  PyObject *bytes = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
  if (!bytes) return RC_PY_PUT_RAISED;
  enum rc_py_put put = rc_py_put_data(encoding, RINGCAST_TAG_WTF8, PyBytes_AS_STRING(bytes),
                                      (size_t)PyBytes_GET_SIZE(bytes));
  Py_DECREF(bytes);
  return put;
}

/* Whether the stream has the text, preceded by its length, at `at`. */
static bool is_there(const struct rc_py_encoding *encoding, size_t at, const void *data,
                     size_t bytes) {
  uint8_t count[HEAD];
  size_t head = (size_t)(rc_py_write_count(count, bytes) - count);
  const uint8_t *there = encoding->stream + at;
  return at + head + bytes <= encoding->stream_bytes && memcmp(there, count, head) == 0 &&
         memcmp(there + head, data, bytes) == 0;
}

/* Writes a str with further references, which may therefore occur again: with a new number, or as
 * the number of its first occurrence. */
static enum rc_py_put put_shared(struct rc_py_encoding *encoding, PyObject *text, const void *data,
                                 size_t bytes) {
  struct rc_py_texts *texts = encoding->texts;
  struct rc_py_text *known =
      &texts->table[((uintptr_t)text >> 4 ^ (uintptr_t)text >> 14) & (RC_PY_TEXTS - 1)];
  if (known->text == text && known->number >= encoding->first_text && known->number < texts->next &&
      is_there(encoding, known->at, data, bytes)) {
    return rc_py_put_head(encoding, RINGCAST_TAG_AGAIN, known->number - encoding->first_text);
  }
  size_t at = encoding->stream_bytes + 1;
  enum rc_py_put put = rc_py_put_data(encoding, RINGCAST_TAG_NAMED, data, bytes);
  if (put != RC_PY_PUT_DONE || at > UINT32_MAX || texts->next == UINT32_MAX) return put;
  *known = (struct rc_py_text){.text = text, .number = texts->next, .at = (uint32_t)at};
  texts->next++;
  return put;
}

enum rc_py_put rc_py_put_text(struct rc_py_encoding *encoding, PyObject *text) {
  Py_ssize_t bytes;
  const char *data;
  int has_text = rc_py_utf8(text, &data, &bytes);
  if (has_text < 0) return RC_PY_PUT_RAISED;
  if (has_text == 0) return put_wide_text(encoding, text);
  size_t length = (size_t)bytes;
  if (length > INLINE_MOST) return put_part(encoding, text, RINGCAST_ITEM_STR, data, length);
  if (length >= SHARED_LEAST && Py_REFCNT(text) > 2)
    return put_shared(encoding, text, data, length);
  if (!PyUnicode_IS_COMPACT_ASCII(text))
    return rc_py_put_data(encoding, RINGCAST_TAG_UTF8, data, length);
  if (length > RINGCAST_TAG_TEXT_MOST)
    return rc_py_put_data(encoding, RINGCAST_TAG_ASCII, data, length);
  uint8_t *at = rc_py_stream_at(encoding, 1 + length);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = (uint8_t)(RINGCAST_TAG_TEXT + length);
  memcpy(at, data, length);
  return rc_py_stream_end(encoding, at + length);
}

enum rc_py_put rc_py_put_bytes(struct rc_py_encoding *encoding, PyObject *value) {
  size_t bytes = (size_t)PyBytes_GET_SIZE(value);
  const void *data = PyBytes_AS_STRING(value);
  if (bytes > INLINE_MOST) return put_part(encoding, value, RINGCAST_ITEM_BYTES, data, bytes);
  return rc_py_put_data(encoding, RINGCAST_TAG_BYTES, data, bytes);
}

enum rc_py_put rc_py_put_bytearray(struct rc_py_encoding *encoding, PyObject *value) {
  size_t bytes = (size_t)PyByteArray_GET_SIZE(value);
  enum rc_py_put put = rc_py_mark(encoding, value, NULL);
  if (put != RC_PY_PUT_DONE) return put;
  if (bytes <= INLINE_MOST) {
    return rc_py_put_data(encoding, RINGCAST_TAG_BYTEARRAY, PyByteArray_AS_STRING(value), bytes);
  }
  if (!rc_py_part_add_buffer(encoding, value, RINGCAST_ITEM_BYTES)) return RC_PY_PUT_RAISED;
  return rc_py_put_tag(encoding, RINGCAST_TAG_PART_BYTEARRAY);
}
