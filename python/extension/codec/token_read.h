/* SPDX-License-Identifier: Apache-2.0 */
/* From a stream of tokens to a Python value: the interface for decode.c, and the shared parts of
 * token_read.c (text, containers, instances) and scalars_read.c (numbers). */
#ifndef RC_EXTENSION_TOKEN_READ_H
#define RC_EXTENSION_TOKEN_READ_H

#include "python/extension/codec/classes.h"

/* A marked value. Its weight: the bytes of the value's tokens, and the weights that BACKs among the
 * tokens name. Its height: the containers within each other below, through BACKs, or up to
 * RC_PY_DEPTH_UNSEEN fewer. */
struct rc_py_mark {
  PyObject *value; /* NULL: incomplete */
  uint64_t weight, height;
};

/* What was read since the start of a marked value, a key, or a kind's state. */
struct rc_py_span {
  uint64_t named;   /* the sum of the weights that BACKs named, or UINT64_MAX */
  uint64_t deepest; /* the depth that containers and BACKs reached */
};

/* Shared by the streams of a frame. */
struct rc_py_marked {
  struct rc_py_mark *marks;
  size_t count, room;
  struct rc_py_span span; /* the innermost */
  uint64_t hashed;        /* the weights that keys and members of sets named */
  const PyObject *last;   /* that BACK, ITEM or LEAF gave; only compared */
  const struct ringcast_frame_reader *frame;
  PyObject *dict;   /* the root, for ITEM; NULL: the root is no dict, or only some items are read */
  PyObject *items;  /* the list of the dict's values; NULL until needed */
  PyObject *dtypes; /* of arrays, by text (ringcast._arrays.make); NULL until needed */
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
  uint64_t
      values_left; /* upper bound on further values: each takes at least a byte of the stream */
  uintptr_t stack_floor;
  struct rc_py_marked *marked;
  uint32_t class_count, shape_count;
  struct rc_py_shape shapes[RINGCAST_MAX_SHAPES];
  struct rc_py_class *class[RINGCAST_MAX_CLASSES]; /* borrowed from the cache */
};

/* The value, or NULL: raised. */
PyObject *rc_py_token_read(struct rc_py_token_reader *getting);

/* A short ASCII str that is likely to repeat: the cached object, or a new one. NULL, with nothing
 * raised: too long or not ASCII; make the str by other means. */
PyObject *rc_py_key(struct rc_py_state *state, const void *text, size_t bytes);

/* keys.c: a str of UTF-8, or, with errors "surrogatepass", of WTF-8; and one that AGAIN may refer
 * to. NULL: raised. */
PyObject *rc_py_text(struct rc_py_token_reader *getting, const uint8_t *data, size_t bytes,
                     const char *errors);
PyObject *rc_py_text_named(struct rc_py_token_reader *getting, const uint8_t *data, size_t bytes);

/* Before item `i` of what may take long: a dict with equal hashes takes quadratic time. False:
 * raised. */
static inline bool rc_py_heed_signals(uint64_t i) {
  return i % 128 != 127 || PyErr_CheckSignals() == 0;
}

static inline bool rc_py_is_ascii(const uint8_t *data, size_t bytes) {
  uint64_t all = 0, word;
  const uint8_t *end = data + bytes;
  if (bytes >= 8) { /* the last word may overlap the one before */
    for (; end - data > 8; data += 8) {
      memcpy(&word, data, 8);
      all |= word;
    }
    memcpy(&word, end - 8, 8);
    return !((all | word) & UINT64_C(0x8080808080808080));
  }
  for (; data < end; data++) all |= *data;
  return !(all & 0x80);
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

/* ---- references_read.c ----------------------------------------------------------------------- */

/* Starts a span at the depth, and returns the outer one, for the end. */
static inline struct rc_py_span rc_py_span_begin(struct rc_py_marked *marked, int depth) {
  struct rc_py_span outer = marked->span;
  marked->span = (struct rc_py_span){.deepest = (uint64_t)depth};
  return outer;
}

static inline uint64_t rc_py_sum(uint64_t a, uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static inline void rc_py_span_end(struct rc_py_marked *marked, const struct rc_py_span *outer) {
  marked->span.named = rc_py_sum(marked->span.named, outer->named);
  if (marked->span.deepest < outer->deepest) marked->span.deepest = outer->deepest;
}

/* The marked value, or the item, once more. */
PyObject *rc_py_token_read_back(struct rc_py_token_reader *getting, uint64_t back, int depth);
PyObject *rc_py_token_read_item(struct rc_py_token_reader *getting, uint64_t index);
/* The next part, and a leaf. */
PyObject *rc_py_token_read_part(struct rc_py_token_reader *getting,
                                const struct ringcast_token *token);
PyObject *rc_py_token_read_part_array(struct rc_py_token_reader *getting, uint8_t typecode);
PyObject *rc_py_token_read_leaf(struct rc_py_token_reader *getting, uint64_t index);
/* Numbers a str, and returns a reference to the str. Consumes the str if there is no memory. */
PyObject *rc_py_text_note(struct rc_py_token_reader *getting, PyObject *text);
/* Reserves the place for the marked value, and starts a span: the mark's number, or -1: raised. */
Py_ssize_t rc_py_mark_begin(struct rc_py_token_reader *getting, int depth,
                            struct rc_py_span *outer);
void rc_py_mark_end(struct rc_py_token_reader *getting, Py_ssize_t number, PyObject *value,
                    int depth, const struct rc_py_span *outer);
/* Whether a container or a kind's state, of the tokens from `from`, is complete in the tokens: a
 * copy of what stands elsewhere would let a frame of n bytes make n * n. False: raised. */
bool rc_py_is_in_place(struct rc_py_token_reader *getting, PyObject *container);
bool rc_py_state_is_in_place(struct rc_py_token_reader *getting, uint8_t kind, PyObject *plain,
                             const uint8_t *from);
/* Whether there may be a container at the depth, which is RC_PY_DEPTH_UNSEEN or more. False:
 * raised. */
bool rc_py_may_go_deep(struct rc_py_token_reader *getting, int depth);
/* Whether what the span has read since the depth is no deeper than a value without BACKs can be.
 * False: raised. */
bool rc_py_is_shallow(struct rc_py_token_reader *getting, int depth);
/* Whether the span's value, a key, is hashed in bounded time and stack. False: raised. */
bool rc_py_key_is_light(struct rc_py_token_reader *getting, int depth);

/* Whether the span's value may be hashed. A type outside C may have a hash in Python, a tuple
 * hashes its members, and only str and bytes keep their hash. False: raised. */
static inline bool rc_py_may_hash(struct rc_py_token_reader *getting, PyObject *key, int depth) {
  if (PyUnicode_CheckExact(key) || PyBytes_CheckExact(key)) return true;
  bool is_plain = !PyType_HasFeature(Py_TYPE(key), Py_TPFLAGS_HEAPTYPE) &&
                  !PyTuple_CheckExact(key) && !PyFrozenSet_CheckExact(key) && !PySlice_Check(key);
  if (!is_plain) getting->state->ran_code++;
  return getting->marked->span.named == 0 || rc_py_key_is_light(getting, depth);
}

/* ---- scalars_read.c -------------------------------------------------------------------------- */

PyObject *rc_py_token_read_bigint(struct rc_py_token_reader *getting,
                                  const struct ringcast_token *token);
PyObject *rc_py_token_read_complex(const struct ringcast_token *token);
PyObject *rc_py_token_read_scalar(struct rc_py_token_reader *getting,
                                  const struct ringcast_token *token);
PyObject *rc_py_token_read_packed(const struct ringcast_token *token);
PyObject *rc_py_token_read_size(struct rc_py_token_reader *getting,
                                const struct ringcast_token *token);

/* The first part of an OBJECT entry, and how many there are. */
static inline uint32_t rc_py_first_part(const struct ringcast_item *object, uint32_t *parts) {
  *parts = (uint32_t)((uint64_t)object->scalar.i >> 32);
  return (uint32_t)object->scalar.i;
}

#endif
