/* SPDX-License-Identifier: Apache-2.0 */
/* From a stream of tokens to a Python value: what decode.c gives and gets, and what token_read.c (text, containers,
 * instances) and scalars_read.c (numbers) share. */
#ifndef RC_EXTENSION_TOKEN_READ_H
#define RC_EXTENSION_TOKEN_READ_H

#include "python/extension/codec/classes.h"

/* What the streams of a frame share. */
struct rc_py_marked {
  PyObject **values; /* those that were marked; NULL: not complete */
  size_t count, room;
  const struct ringcast_frame_reader *frame;
  PyObject *dict;  /* the root, for ITEM; NULL: there is none, or not all of it is read */
  PyObject *items; /* a list of its values; NULL until one is asked for */
};
void rc_py_marked_clear(struct rc_py_marked *marked);

/* The keys of a dict, and a dict of them. */
struct rc_py_shape {
  PyObject *keys; /* a tuple */
  PyObject *dict; /* each is None; NULL until it is asked for */
};

/* A stream in memory that nobody changes, and what its tokens refer to. */
struct rc_py_token_reader {
  struct rc_py_state *state;
  struct ringcast_object object;
  PyObject **parts; /* the values of the entries that are this stream's parts */
  uint32_t part_count, next_part;
  PyObject *leaves;  /* a list, or NULL */
  PyObject *classes; /* the cache: a dict */
  bool may_import;
  PyObject **texts; /* those with a number */
  size_t text_count, text_room;
  uint64_t values_left; /* how many more the stream can have: it has a byte or more of each */
  uintptr_t stack_floor;
  struct rc_py_marked *marked;
  uint32_t class_count, shape_count;
  struct rc_py_shape shapes[RINGCAST_MAX_SHAPES];
  struct rc_py_class *class[RINGCAST_MAX_CLASSES]; /* borrowed from the cache */
};

/* The value, or NULL: raised. */
PyObject *rc_py_token_read(struct rc_py_token_reader *getting);

/* A short str of ASCII that is likely to come again: the one that came before, or a new one. NULL, with nothing raised:
 * it is neither short nor ASCII, and is to be made otherwise. */
PyObject *rc_py_key(struct rc_py_state *state, const void *text, size_t bytes);

static inline bool rc_py_is_ascii(const uint8_t *data, size_t bytes) {
  uint64_t all = 0, word;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    memcpy(&word, data, 8);
    all |= word;
  }
  for (; bytes > 0; bytes--) all |= *data++;
  return !(all & UINT64_C(0x8080808080808080));
}

/* Raises ProtocolError. Always NULL. */
static inline PyObject *stream_damaged(struct rc_py_token_reader *getting, const char *what) {
  return rc_py_raise_damaged(getting->state, what);
}

/* What Python itself says against a damaged stream. Always NULL. */
static inline PyObject *stream_refused(struct rc_py_token_reader *getting, const char *what) {
  rc_py_protocol_from_current(getting->state, what);
  return NULL;
}

static inline PyObject *get_float(const uint8_t *data) {
  double value;
  memcpy(&value, data, sizeof value);
  return PyFloat_FromDouble(value);
}

/* ---- references_read.c ------------------------------------------------------------------------------------------- */

/* The marked value, or the item, once more. */
PyObject *rc_py_token_read_back(struct rc_py_token_reader *getting, uint64_t back);
PyObject *rc_py_token_read_item(struct rc_py_token_reader *getting, uint64_t index);
/* The next part, and a leaf. */
PyObject *rc_py_token_read_part(struct rc_py_token_reader *getting, const struct ringcast_token *token);
PyObject *rc_py_token_read_part_array(struct rc_py_token_reader *getting, uint8_t typecode);
PyObject *rc_py_token_read_leaf(struct rc_py_token_reader *getting, uint64_t index);
/* A place for the value that a MARK stands before: its number, or -1: raised. */
Py_ssize_t rc_py_mark_begin(struct rc_py_token_reader *getting);
static inline void rc_py_mark_end(struct rc_py_token_reader *getting, Py_ssize_t number, PyObject *value) {
  getting->marked->values[number] = rc_py_ref(value);
}

/* ---- scalars_read.c ---------------------------------------------------------------------------------------------- */

PyObject *rc_py_token_read_bigint(struct rc_py_token_reader *getting, const struct ringcast_token *token);
PyObject *rc_py_token_read_complex(const struct ringcast_token *token);
PyObject *rc_py_token_read_scalar(struct rc_py_token_reader *getting, const struct ringcast_token *token);
PyObject *rc_py_token_read_packed(const struct ringcast_token *token);
PyObject *rc_py_token_read_size(struct rc_py_token_reader *getting, const struct ringcast_token *token);

/* The first part of an OBJECT entry, and how many there are. */
static inline uint32_t rc_py_first_part(const struct ringcast_item *object, uint32_t *parts) {
  *parts = (uint32_t)((uint64_t)object->scalar.i >> 32);
  return (uint32_t)object->scalar.i;
}

#endif
