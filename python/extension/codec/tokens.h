/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streams of nested values (ringcast/object.h): what all files share that write tokens to a
 * stream, or read them from one.
 *
 * Each kind of value has its room: numbers and text are in scalars.h, arrays in arrays.h, types of
 * the standard library in kinds.h, values that occur again in references.h. The walks over any
 * value are in containers.h.
 */
#ifndef RC_EXTENSION_TOKENS_H
#define RC_EXTENSION_TOKENS_H

#include "python/extension/codec/encoding.h"
#include "python/extension/errors.h"

#include "ringcast/object.h"

/* So deep a nested value is walked without a look at the stack. */
#define RC_PY_DEPTH_UNSEEN 64
/* Whether the thread's stack has room for one more level, and for `more` bytes. `floor`: a cache
 * for the walk, 0 at first. */
bool rc_py_stack_has_room(uintptr_t *floor, size_t more);

/* ---- Written --------------------------------------------------------------------------------- */

/* The result of writing a value to the stream. */
enum rc_py_put {
  RC_PY_PUT_RAISED = -1,
  RC_PY_PUT_LEAF = 0, /* the whole value is a leaf: nothing was written, and no leaf was added */
  RC_PY_PUT_DONE = 1,
  RC_PY_PUT_CYCLE = 2, /* the value contains itself: discard the written tokens */
  RC_PY_PUT_BACK = 3,  /* DONE, for the value was there before, and a BACK or an ITEM is written */
};

enum {
  INLINE_MOST = 2048, /* longer text and bytes are parts */
  HEAD = 10,          /* the bytes of a tag and a count, at most */
};

/* Makes room for so many bytes more. False: raised. */
bool rc_py_stream_grow(struct rc_py_encoding *encoding, size_t bytes);

/* Where to write up to so many bytes; to be ended by rc_py_stream_end. NULL: raised. */
static inline uint8_t *rc_py_stream_at(struct rc_py_encoding *encoding, size_t bytes) {
  if (encoding->stream_room - encoding->stream_bytes < bytes && !rc_py_stream_grow(encoding, bytes))
    return NULL;
  return encoding->stream + encoding->stream_bytes;
}

static inline enum rc_py_put rc_py_stream_end(struct rc_py_encoding *encoding, const uint8_t *at) {
  encoding->stream_bytes = (size_t)(at - encoding->stream);
  return RC_PY_PUT_DONE;
}

static inline uint8_t *rc_py_write_count(uint8_t *at, uint64_t count) {
  if (count < 252) {
    *at++ = (uint8_t)count;
    return at;
  }
  int size = (count > UINT16_MAX) + (count > UINT32_MAX); /* for 2, 4 or 8 bytes */
  *at++ = (uint8_t)(252 + size);
  memcpy(at, &count, (size_t)2 << size);
  return at + ((size_t)2 << size);
}

static inline enum rc_py_put rc_py_put_tag(struct rc_py_encoding *encoding, uint8_t tag) {
  uint8_t *at = rc_py_stream_at(encoding, 1);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = tag;
  return rc_py_stream_end(encoding, at);
}

/* A tag and a byte: the number of a KIND, the typecode of an array. */
static inline enum rc_py_put rc_py_put_tag_of(struct rc_py_encoding *encoding, uint8_t tag,
                                              int byte) {
  uint8_t *at = rc_py_stream_at(encoding, 2);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = tag;
  *at++ = (uint8_t)byte;
  return rc_py_stream_end(encoding, at);
}

static inline enum rc_py_put rc_py_put_head(struct rc_py_encoding *encoding, uint8_t tag,
                                            uint64_t count) {
  uint8_t *at = rc_py_stream_at(encoding, HEAD);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = tag;
  return rc_py_stream_end(encoding, rc_py_write_count(at, count));
}

static inline enum rc_py_put rc_py_put_data(struct rc_py_encoding *encoding, uint8_t tag,
                                            const void *data, size_t bytes) {
  uint8_t *at = rc_py_stream_at(encoding, HEAD + bytes);
  if (!at) return RC_PY_PUT_RAISED;
  *at++ = tag;
  at = rc_py_write_count(at, bytes);
  memcpy(at, data, bytes);
  return rc_py_stream_end(encoding, at + bytes);
}

/* BACK counts as DONE for the caller. */
static inline enum rc_py_put rc_py_put_done(enum rc_py_put put) {
  if (put == RC_PY_PUT_BACK) return RC_PY_PUT_DONE;
  return put;
}

/* ---- Read ------------------------------------------------------------------------------------ */

struct rc_py_class;

/* A marked value. Its weight: the bytes of the value's tokens, and the weights that BACKs among the
 * tokens name. Its height: the containers within each other below, through BACKs, or up to
 * RC_PY_DEPTH_UNSEEN fewer. */
struct rc_py_mark {
  PyObject *value; /* NULL: incomplete */
  uint64_t weight, height;
};

/* What was read since the start of a marked value, a key, or a kind's state. */
struct rc_py_scope {
  uint64_t named;   /* the sum of the weights that BACKs named, or UINT64_MAX */
  uint64_t deepest; /* the depth that containers and BACKs reached */
};

/* Shared by the streams of a frame. */
struct rc_py_marked {
  struct rc_py_mark *marks;
  size_t count, room;
  struct rc_py_scope scope; /* the innermost */
  uint64_t hashed;          /* the weights that keys and members of sets named */
  const PyObject *last;     /* that BACK, ITEM or LEAF gave; only compared */
  const struct ringcast_frame_reader *frame;
  PyObject *dict;   /* the root, for ITEM; NULL: the root is no dict, or only some items are read */
  PyObject *items;  /* the list of the dict's values; NULL until needed */
  PyObject *dtypes; /* of arrays, by text (ringcast._arrays.make); NULL until needed */
};

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
  uint64_t values_left; /* at most so many follow: each takes at least a byte of the stream */
  uintptr_t stack_floor;
  struct rc_py_marked *marked;
  uint32_t class_count, shape_count;
  struct rc_py_shape shapes[RINGCAST_MAX_SHAPES];
  struct rc_py_class *class[RINGCAST_MAX_CLASSES]; /* borrowed from the cache */
};

/* Raises ProtocolError. Always NULL. */
static inline PyObject *rc_py_stream_damaged(struct rc_py_token_reader *reader, const char *what) {
  return rc_py_raise_damaged(reader->state, what);
}

/* Turns Python's own complaint about a damaged stream into ProtocolError. Always NULL. */
static inline PyObject *rc_py_stream_refused(struct rc_py_token_reader *reader, const char *what) {
  rc_py_protocol_from_current(reader->state, what);
  return NULL;
}

/* Before item `i` of what may take long: a dict with equal hashes takes quadratic time. False:
 * raised. */
static inline bool rc_py_heed_signals(uint64_t i) {
  return i % 128 != 127 || PyErr_CheckSignals() == 0;
}

/* The first part of an OBJECT entry, and how many there are. */
static inline uint32_t rc_py_first_part(const struct ringcast_item *object, uint32_t *parts) {
  *parts = (uint32_t)((uint64_t)object->scalar.i >> 32);
  return (uint32_t)object->scalar.i;
}

#endif
