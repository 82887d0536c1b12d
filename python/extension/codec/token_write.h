/* SPDX-License-Identifier: Apache-2.0 */
/* Writing tokens: the shared parts of token_write.c (containers, instances) and scalars_write.c
 * (numbers, text, bytes). */
#ifndef RC_EXTENSION_TOKEN_WRITE_H
#define RC_EXTENSION_TOKEN_WRITE_H

#include "python/extension/codec/encode.h"

#include "ringcast/object.h"

enum { HEAD = 10 }; /* the bytes of a tag and a count, at most */

/* Makes room for so many bytes more (stream.c). False: raised. */
bool rc_py_stream_grow(struct rc_py_encoding *encoding, size_t bytes);

/* Where to write up to so many bytes; to be ended by stream_end. NULL: raised. */
static inline uint8_t *stream_at(struct rc_py_encoding *encoding, size_t bytes) {
  if (encoding->stream_room - encoding->stream_bytes < bytes && !rc_py_stream_grow(encoding, bytes))
    return NULL;
  return encoding->stream + encoding->stream_bytes;
}

static inline enum rc_py_token_writer stream_end(struct rc_py_encoding *encoding,
                                                 const uint8_t *at) {
  encoding->stream_bytes = (size_t)(at - encoding->stream);
  return RC_PY_PUT_DONE;
}

static inline uint8_t *write_count(uint8_t *at, uint64_t count) {
  if (count < 252) {
    *at++ = (uint8_t)count;
    return at;
  }
  int size = count <= UINT16_MAX ? 0 : count <= UINT32_MAX ? 1 : 2;
  *at++ = (uint8_t)(252 + size);
  memcpy(at, &count, (size_t)2 << size);
  return at + ((size_t)2 << size);
}

static inline enum rc_py_token_writer put_tag(struct rc_py_encoding *encoding, uint8_t tag) {
  uint8_t *at = stream_at(encoding, 1);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = tag;
  return stream_end(encoding, at);
}

/* A tag and a byte: the number of a KIND, the typecode of an array. */
static inline enum rc_py_token_writer put_tag_of(struct rc_py_encoding *encoding, uint8_t tag,
                                                 int byte) {
  uint8_t *at = stream_at(encoding, 2);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = tag;
  *at++ = (uint8_t)byte;
  return stream_end(encoding, at);
}

static inline enum rc_py_token_writer put_head(struct rc_py_encoding *encoding, uint8_t tag,
                                               uint64_t count) {
  uint8_t *at = stream_at(encoding, HEAD);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = tag;
  return stream_end(encoding, write_count(at, count));
}

/* BACK counts as DONE for the caller. */
static inline enum rc_py_token_writer put_done(enum rc_py_token_writer put) {
  return put == RC_PY_PUT_BACK ? RC_PY_PUT_DONE : put;
}

static inline enum rc_py_token_writer put_bytes(struct rc_py_encoding *encoding, uint8_t tag,
                                                const void *data, size_t bytes) {
  uint8_t *at = stream_at(encoding, HEAD + bytes);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = tag;
  at = write_count(at, bytes);
  memcpy(at, data, bytes);
  return stream_end(encoding, at + bytes);
}

/* The value of an exact int. False: more than 64 bits. */
static inline bool int_value(PyObject *value, int64_t *out) {
#if PY_VERSION_HEX >= 0x030c0000
  if (PyUnstable_Long_IsCompact((PyLongObject *)value)) {
    *out = PyUnstable_Long_CompactValue((PyLongObject *)value);
    return true;
  }
#elif PY_VERSION_HEX >= 0x030b0000
  Py_ssize_t digits = Py_SIZE(value); /* negative: so is the int */
  if (digits >= -1 && digits <= 1) {
    *out = digits * (int64_t)((PyLongObject *)value)->ob_digit[0];
    return true;
  }
#endif
  int overflow;
  *out = PyLong_AsLongLongAndOverflow(value, &overflow);
  return !overflow;
}

/* ---- repeats.c ------------------------------------------------------------------------------- */

/* For a value with more references than RC_PY_OWN_REFERENCES. BACK: the value is known, and a BACK
 * or ITEM was written. CYCLE: the value is a container around its own occurrence. DONE: a MARK was
 * written, and the value's token must follow; if no token follows, rc_py_unmark removes the MARK.
 * `up` NULL: not a container. */
enum rc_py_token_writer rc_py_mark(struct rc_py_encoding *encoding, PyObject *value,
                                   const struct rc_py_step *up);
/* Removes the MARK that rc_py_mark wrote for the value, if any. Nothing may have been written
 * since. Always LEAF. */
enum rc_py_token_writer rc_py_unmark(struct rc_py_encoding *encoding, PyObject *value);

/* The references of the container and of put_inner. */
enum { RC_PY_OWN_REFERENCES = 2 };
static inline enum rc_py_token_writer mark(struct rc_py_encoding *encoding, PyObject *value,
                                           const struct rc_py_step *up) {
  return Py_REFCNT(value) > RC_PY_OWN_REFERENCES ? rc_py_mark(encoding, value, up) : RC_PY_PUT_DONE;
}

/* Finds the shape of a dict, and writes nothing. LEAF: no shape, for example because the keys are
 * new. */
struct rc_py_shape_known {
  PyObject *keys; /* a borrowed tuple */
  uint32_t number;
  bool is_new; /* not yet defined in the stream */
};
enum rc_py_token_writer rc_py_shape_of(struct rc_py_encoding *encoding, PyObject *dict,
                                       struct rc_py_shape_known *out);
/* For a new stream. False: raised. */
bool rc_py_repeats_begin(struct rc_py_encoding *encoding);

/* ---- scalars_write.c ------------------------------------------------------------------------- */

enum rc_py_token_writer rc_py_token_write_int(struct rc_py_encoding *encoding, PyObject *value);
enum rc_py_token_writer rc_py_token_write_float(struct rc_py_encoding *encoding, PyObject *value);
enum rc_py_token_writer rc_py_token_write_complex(struct rc_py_encoding *encoding, PyObject *value);
/* Long text becomes a part. */
enum rc_py_token_writer rc_py_token_write_text(struct rc_py_encoding *encoding, PyObject *text);
enum rc_py_token_writer rc_py_token_write_bytes(struct rc_py_encoding *encoding, PyObject *value);
enum rc_py_token_writer rc_py_token_write_bytearray(struct rc_py_encoding *encoding,
                                                    PyObject *value);
/* Three or more items of a list or tuple. LEAF: the items are not numbers of one kind, and nothing
 * was written. */
enum rc_py_token_writer rc_py_token_write_packed(struct rc_py_encoding *encoding, uint8_t tag,
                                                 PyObject *const *items, size_t count);

/* tensors_write.c. LEAF: no tensor, and nothing was written. */
enum rc_py_token_writer rc_py_token_write_tensor(struct rc_py_encoding *encoding, PyObject *value,
                                                 struct rc_py_step *step);

#endif
