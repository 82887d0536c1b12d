/* SPDX-License-Identifier: Apache-2.0 */
/* From a stream of tokens to a Python value: the interface for decode.c, and the shared parts of token_read.c (text,
 * containers, instances) and scalars_read.c (numbers). */
#ifndef RC_EXTENSION_TOKEN_READ_H
#define RC_EXTENSION_TOKEN_READ_H

#include "python/extension/codec/classes.h"

/* A marked value. Its weight: the bytes of the value's tokens, and the weights that BACKs among the tokens name. */
struct rc_py_mark {
  PyObject *value; /* NULL: incomplete */
  uint64_t weight;
};

/* Shared by the streams of a frame. */
struct rc_py_marked {
  struct rc_py_mark *marks;
  size_t count, room;
  uint64_t named;  /* the sum of the weights that BACKs named */
  uint64_t hashed; /* the share of keys and members of sets */
  const struct ringcast_frame_reader *frame;
  PyObject *dict;  /* the root, for ITEM; NULL: the root is no dict, or only some items are read */
  PyObject *items; /* the list of the dict's values; NULL until needed */
};
void rc_py_marked_clear(struct rc_py_marked *marked);

/* The keys of a dict, and a dict as template. */
struct rc_py_shape {
  PyObject *keys; /* a tuple */
  PyObject *dict; /* with None for each key */
};

/* A stream in private memory, and the objects that its tokens refer to. */
struct rc_py_token_reader {
  struct rc_py_state *state;
  struct ringcast_object object;
  PyObject **parts; /* values of the entries that are the stream's parts */
  uint32_t part_count, next_part;
  PyObject *leaves;  /* a list, or NULL */
  PyObject *classes; /* the cache: a dict */
  bool may_import;
  PyObject **texts; /* numbered texts */
  size_t text_count, text_room;
  uint64_t values_left; /* upper bound on further values: each takes at least a byte of the stream */
  uintptr_t stack_floor;
  struct rc_py_marked *marked;
  uint32_t class_count, shape_count;
  struct rc_py_shape shapes[RINGCAST_MAX_SHAPES];
  struct rc_py_class *class[RINGCAST_MAX_CLASSES]; /* borrowed from the cache */
};

/* The value, or NULL: raised. */
PyObject *rc_py_token_read(struct rc_py_token_reader *getting);

/* A short ASCII str that is likely to repeat: the cached object, or a new one. NULL, with nothing raised: too long or
 * not ASCII; make the str by other means. */
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

/* Turns Python's own complaint about a damaged stream into ProtocolError. Always NULL. */
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
/* Numbers a str, and returns a reference to the str. Consumes the str if there is no memory. */
PyObject *rc_py_text_note(struct rc_py_token_reader *getting, PyObject *text);
/* Reserves the place for the marked value: the mark's number, or -1: raised. */
Py_ssize_t rc_py_mark_begin(struct rc_py_token_reader *getting);
void rc_py_mark_end(struct rc_py_token_reader *getting, Py_ssize_t number, PyObject *value);
/* Whether a key, read since BACKs had named `named`, is hashed in bounded time. False: raised. */
bool rc_py_key_is_light(struct rc_py_token_reader *getting, uint64_t named);

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
