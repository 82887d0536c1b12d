/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nested values: what the data of a RINGCAST_ITEM_OBJECT entry holds.
 *
 * Promise. A stream of tokens, each a tag byte and the data of the tag, in the order of a walk from
 * the root: a container says how many values it has, and the values follow. Few tokens refer to
 * anything outside themselves:
 *   - AGAIN refers back to a str earlier in the stream, and RECORD to keys.
 *   - BACK refers to a value that a MARK stands before, in this stream or that of an earlier entry.
 *   - PART refers to an entry of the frame (a tensor, long text or bytes); parts are used in order,
 *     each once.
 *   - ITEM refers to an item of the root dict.
 *   - LEAF refers to an element of the list in the frame's PICKLE entry.
 *
 * ringcast_token_read trusts nothing: it stays within the stream. But it reads memory more than
 * once: if a peer may be writing there, the caller copies the stream out first. A count
 * that passes may still be of values that are missing, and each of several nested containers may
 * count the same bytes. Before a caller makes anything of a stream, ringcast_object_check walks the
 * whole stream. After the check a container has as many values as it counts, so the decoded value
 * is no larger than some multiple of the stream's length. A caller that skips the check keeps the
 * sum of all values due, in all open containers: no more than the bytes that are left. Both
 * functions are wait-free and thread-safe, and call nothing.
 *
 * Neither function checks the following; the decoder does. Text is in the encoding of its tag;
 * names exist; keys can be keys, and no two of a SHAPE are equal; a MEMBER's name is a str or an
 * int; ABSENT is a slot's; a RANGE is made of ints; parts, leaves, items and the marked values of
 * earlier streams exist (ringcast_object_needs says how many the stream needs).
 *
 * The tokens. Little-endian, nothing is aligned. "count" is one byte below 252, or 252 and 2 bytes,
 * 253 and 4, 254 and 8. "values" are tokens in their turn.
 *
 *     0x00-0x7f                   the int 0 to 127
 *     0x80-0xbf  text             a str of 0 to 63 ASCII characters, the tag's low bits
 *     NONE, FALSE, TRUE
 *     INT8 .. INT64  1-8 bytes    an int, signed
 *     BIGINT     count, bytes     an int of any size: two's complement, the lowest byte first;
 *                                 no bytes: 0
 *     FLOAT      8 bytes
 *     COMPLEX    16 bytes         the real part, the imaginary one
 *     ASCII, UTF8, WTF8  count, bytes   a str; WTF8 is UTF-8 with lone surrogates as they are
 *     NAMED      count, bytes     a str, UTF-8, to which AGAIN may refer; numbered from 0
 *     AGAIN      count            the NAMED str of the given number once more
 *     BYTES, BYTEARRAY   count, bytes
 *     LIST, TUPLE, SET, FROZENSET  count, so many values
 *     DICT       count, so many keys and values in turn
 *     PACKED_LIST, PACKED_TUPLE    1 byte enum ringcast_packed, count, so many numbers of the kind
 *     RANGE, SLICE  3 values      start, stop, step
 *     CLASS      1 byte enum ringcast_class, count, bytes: module, qualified name and field names,
 *                UTF-8, a 0 byte between each two. Not a value: a value follows. The stream numbers
 *                its classes from 0.
 *     OBJECT     count            an instance of the class of the given number: a value for each
 *                field, in order. Of an INSTANCE class, one value more: a DICT of its attributes,
 *                or NONE for an instance without a __dict__
 *     ABSENT     in the place of a field of an INSTANCE: the slot is not set
 *     MEMBER     count, value     a member of the enum of the given number: its name, a str; or, of
 *                a Flag, its value, an int
 *     SCALAR     4 bytes struct ringcast_dtype, and its bytes      a NumPy scalar
 *     DTYPE      count, bytes     a torch.dtype: its name ("float32")
 *     DEVICE     count, bytes     a torch.device as text ("cuda:1")
 *     SIZE       count, 8 bytes each    a torch.Size
 *     PART       the frame's next part: a TENSOR, STR or BYTES entry
 *     PART_BYTEARRAY   the same, a BYTES entry
 *     LEAF       count            the element of the given number in the frame's list of leaves
 *     MARK                        Not a value: a value follows. The frame numbers the values that
 *                                 are marked, in the order of their MARKs, through the streams of
 *                                 its entries.
 *     BACK       count            a marked value once more, the same object: 0 is the value of the
 *                                 last MARK before this token, 1 that of the MARK before it. The
 *                                 value is complete.
 *     ITEM       count            the item of the root dict that entry holds, once more: a TENSOR,
 *                STR or BYTES entry
 *     SHAPE      count, so many keys    Not a value: a value follows. Each key is a str, in any of
 *                                 its tokens but PART. The stream numbers its shapes from 0.
 *     RECORD     count            a dict with the keys of the shape of the given number: a value
 *                for each key, in order
 *     KIND       1 byte enum ringcast_standard, value    a value of a type of Python's standard
 *                library, made of its state, the value: see the enum
 *     ARRAY      1 byte typecode, count, bytes    an array.array of Python: its elements as the
 *                machine has them
 *     PART_ARRAY 1 byte typecode  the same of the frame's next part, a BYTES entry that has the
 *                                 same typecode
 */
#ifndef RINGCAST_OBJECT_H
#define RINGCAST_OBJECT_H

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "ringcast/frame.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How deep containers may nest. Every token that values follow is a container, empty or not: also
 * an instance, a member of an enum, a range and a slice. A packed list is not a container. */
#define RINGCAST_MAX_DEPTH 1024
/* How many classes a stream may define. */
#define RINGCAST_MAX_CLASSES 256
/* How many shapes a stream may define. */
#define RINGCAST_MAX_SHAPES 256

#define RINGCAST_TAG_TEXT      0x80u
#define RINGCAST_TAG_TEXT_MOST 63u

enum ringcast_tag {
  RINGCAST_TAG_NONE = 0xc0,
  RINGCAST_TAG_FALSE = 0xc1,
  RINGCAST_TAG_TRUE = 0xc2,
  RINGCAST_TAG_INT8 = 0xc3,
  RINGCAST_TAG_INT16 = 0xc4,
  RINGCAST_TAG_INT32 = 0xc5,
  RINGCAST_TAG_INT64 = 0xc6,
  RINGCAST_TAG_BIGINT = 0xc7,
  RINGCAST_TAG_FLOAT = 0xc8,
  RINGCAST_TAG_COMPLEX = 0xc9,
  RINGCAST_TAG_ASCII = 0xca,
  RINGCAST_TAG_UTF8 = 0xcb,
  RINGCAST_TAG_WTF8 = 0xcc,
  RINGCAST_TAG_BYTES = 0xcd,
  RINGCAST_TAG_BYTEARRAY = 0xce,
  RINGCAST_TAG_LIST = 0xcf,
  RINGCAST_TAG_TUPLE = 0xd0,
  RINGCAST_TAG_SET = 0xd1,
  RINGCAST_TAG_FROZENSET = 0xd2,
  RINGCAST_TAG_DICT = 0xd3,
  RINGCAST_TAG_PACKED_LIST = 0xd4,
  RINGCAST_TAG_PACKED_TUPLE = 0xd5,
  RINGCAST_TAG_RANGE = 0xd6,
  RINGCAST_TAG_SLICE = 0xd7,
  RINGCAST_TAG_CLASS = 0xd8,
  RINGCAST_TAG_OBJECT = 0xd9,
  RINGCAST_TAG_MEMBER = 0xda,
  RINGCAST_TAG_SCALAR = 0xdb,
  RINGCAST_TAG_DTYPE = 0xdc,
  RINGCAST_TAG_DEVICE = 0xdd,
  RINGCAST_TAG_SIZE = 0xde,
  RINGCAST_TAG_PART = 0xdf,
  RINGCAST_TAG_PART_BYTEARRAY = 0xe0,
  RINGCAST_TAG_LEAF = 0xe1,
  RINGCAST_TAG_NAMED = 0xe2,
  RINGCAST_TAG_AGAIN = 0xe3,
  RINGCAST_TAG_MARK = 0xe4,
  RINGCAST_TAG_BACK = 0xe5,
  RINGCAST_TAG_ITEM = 0xe6,
  RINGCAST_TAG_SHAPE = 0xe7,
  RINGCAST_TAG_RECORD = 0xe8,
  RINGCAST_TAG_ABSENT = 0xe9,
  RINGCAST_TAG_KIND = 0xea,
  RINGCAST_TAG_ARRAY = 0xeb,
  RINGCAST_TAG_PART_ARRAY = 0xec,
};

/* The numbers of a packed list: the low four bits are the bytes of a number. */
enum ringcast_packed {
  RINGCAST_PACKED_U8 = 0x01,
  RINGCAST_PACKED_U16 = 0x02,
  RINGCAST_PACKED_U32 = 0x04,
  RINGCAST_PACKED_I8 = 0x11,
  RINGCAST_PACKED_I16 = 0x12,
  RINGCAST_PACKED_I32 = 0x14,
  RINGCAST_PACKED_I64 = 0x18,
  RINGCAST_PACKED_F64 = 0x28,
};

enum ringcast_class {
  /* a dataclass, or any class: the fields are the names of all that an instance has */
  RINGCAST_CLASS_DATACLASS = 1,
  RINGCAST_CLASS_STRUCT = 2, /* msgspec.Struct */
  RINGCAST_CLASS_NAMEDTUPLE = 3,
  RINGCAST_CLASS_ENUM = 4,     /* has no fields */
  RINGCAST_CLASS_INSTANCE = 5, /* the fields are its slots; one value more follows, its __dict__ */
};

/* The types of Python's standard library, and np.dtype, that a KIND makes, each with its state. In
 * binary states numbers have the lowest byte first, but years and fractions of a second the
 * highest. */
enum ringcast_standard {
  RINGCAST_STANDARD_DEFAULTDICT = 1, /* a tuple: the factory's name or None, a dict */
  RINGCAST_STANDARD_ORDEREDDICT = 2, /* a dict */
  RINGCAST_STANDARD_DEQUE = 3,       /* a tuple: maxlen or None, a list */
  RINGCAST_STANDARD_COUNTER = 4,     /* a dict */
  /* bytes: 16, the highest first; 1 more where is_safe is known: 0 safe, 1 not */
  RINGCAST_STANDARD_UUID = 5,
  RINGCAST_STANDARD_PUREPOSIXPATH = 6,   /* a str */
  RINGCAST_STANDARD_POSIXPATH = 7,       /* a str */
  RINGCAST_STANDARD_PUREWINDOWSPATH = 8, /* a tuple of str: its parts */
  /* bytes: year (2), month (its highest bit is the fold), day, hour, minute, second, microsecond
   * (3); or a tuple of these and a TIMEZONE or a ZONEINFO */
  RINGCAST_STANDARD_DATETIME = 9,
  /* bytes: year (2), month, day */
  RINGCAST_STANDARD_DATE = 10,
  /* bytes: hour (its highest bit is the fold), minute, second, microsecond (3); or a tuple: these,
   * and a TIMEZONE or ZONEINFO */
  RINGCAST_STANDARD_TIME = 11,
  RINGCAST_STANDARD_TIMEDELTA = 12, /* bytes: days, seconds, microseconds, each an i32 */
  RINGCAST_STANDARD_TIMEZONE = 13, /* an int, microseconds; or a tuple: that, and a str, the name */
  RINGCAST_STANDARD_ZONEINFO = 14, /* a str, the key */
  RINGCAST_STANDARD_DECIMAL = 15,  /* a str */
  RINGCAST_STANDARD_DTYPE = 16,    /* a str, as np.dtype.str */
  /* a tuple: the dtype, and a PART of uint8 whose last axis is an element. The dtype is as
   * np.dtype.str, or, of fields, JSON (python/ringcast/_arrays.py) */
  RINGCAST_STANDARD_NDARRAY = 64,
  RINGCAST_STANDARD_RECARRAY = 65, /* the same, as a np.recarray */
};

/* A stream, or what is left of it. */
struct ringcast_object {
  const uint8_t *at, *end;
};

/* A token. `count` is what the tag counts: values, pairs, numbers, bytes; or the number that the
 * tag refers to. `data` are the token's bytes: text, numbers, names. For INT8 to INT64, and an int
 * in the tag, `i` is the value. Fields that a tag does not use are not set. */
struct ringcast_token {
  /* INT8 to INT64, and an int in the tag itself, show as INT64; a text with its length in the tag
   * shows as ASCII. */
  uint8_t tag;
  uint8_t kind; /* enum ringcast_packed, _class, _standard, or the typecode of an array */
  struct ringcast_dtype dtype;
  uint64_t count;
  int64_t i;
  const uint8_t *data;
};

/* ---- Reading one token ----------------------------------------------------------------------- */

static inline bool ringcast_object_take(struct ringcast_object *object, uint64_t bytes,
                                        const uint8_t **out) {
  if (bytes > (uint64_t)(object->end - object->at)) return false;
  *out = object->at;
  object->at += bytes;
  return true;
}

static inline bool ringcast_object_count(struct ringcast_object *object, uint64_t *out) {
  const uint8_t *first, *more;
  if (!ringcast_object_take(object, 1, &first)) return false;
  *out = *first;
  if (*first < 252) return true;
  uint64_t bytes = UINT64_C(2) << (*first - 252);
  if (bytes > 8 || !ringcast_object_take(object, bytes, &more)) return false;
  *out = 0;
  memcpy(out, more, bytes);
  return true;
}

/* A count of values of at least `each` bytes: no more than the rest of the stream has room for. */
static inline bool ringcast_object_values(struct ringcast_object *object, uint64_t each,
                                          uint64_t *out) {
  return ringcast_object_count(object, out) && *out <= (uint64_t)(object->end - object->at) / each;
}

static inline bool ringcast_object_bytes(struct ringcast_object *object,
                                         struct ringcast_token *out) {
  return ringcast_object_count(object, &out->count) &&
         ringcast_object_take(object, out->count, &out->data);
}

/* An int of 1, 2, 4 or 8 bytes: a shift to the top and back extends the sign. */
static inline bool ringcast_object_int(struct ringcast_object *object, uint64_t bytes,
                                       struct ringcast_token *out) {
  if (!ringcast_object_take(object, bytes, &out->data)) return false;
  int64_t value = 0;
  memcpy(&value, out->data, bytes);
  unsigned shift = 64 - 8 * (unsigned)bytes;
  out->i = (int64_t)((uint64_t)value << shift) >> shift;
  out->tag = RINGCAST_TAG_INT64;
  return true;
}

static inline bool ringcast_packed_is_known(uint8_t kind) {
  return kind == RINGCAST_PACKED_U8 || kind == RINGCAST_PACKED_U16 || kind == RINGCAST_PACKED_U32 ||
         kind == RINGCAST_PACKED_I8 || kind == RINGCAST_PACKED_I16 || kind == RINGCAST_PACKED_I32 ||
         kind == RINGCAST_PACKED_I64 || kind == RINGCAST_PACKED_F64;
}

static inline bool ringcast_object_packed(struct ringcast_object *object,
                                          struct ringcast_token *out) {
  const uint8_t *kind;
  if (!ringcast_object_take(object, 1, &kind) || !ringcast_packed_is_known(*kind)) return false;
  out->kind = *kind;
  uint64_t each = *kind & 15;
  return ringcast_object_values(object, each, &out->count) &&
         ringcast_object_take(object, out->count * each, &out->data);
}

static inline bool ringcast_object_array(struct ringcast_object *object,
                                         struct ringcast_token *out) {
  const uint8_t *typecode;
  if (!ringcast_object_take(object, 1, &typecode)) return false;
  out->kind = *typecode;
  uint64_t each = ringcast_typecode_bytes(*typecode);
  if (each == 0 || out->tag == RINGCAST_TAG_PART_ARRAY) return each > 0;
  return ringcast_object_bytes(object, out) && out->count % each == 0;
}

static inline bool ringcast_object_scalar(struct ringcast_object *object,
                                          struct ringcast_token *out) {
  const uint8_t *dtype;
  if (!ringcast_object_take(object, sizeof out->dtype, &dtype)) return false;
  memcpy(&out->dtype, dtype, sizeof out->dtype);
  if (out->dtype.bits == 0 || out->dtype.bits % 8 != 0 || out->dtype.lanes != 1) return false;
  out->count = out->dtype.bits / 8;
  return ringcast_object_take(object, out->count, &out->data);
}

/* Reads the next token. -ENOENT: the stream has ended; -EPROTO: an unknown tag, or a token that is
 * cut off. */
static inline int ringcast_token_read(struct ringcast_object *object, struct ringcast_token *out) {
  const uint8_t *data;
  bool ok = true;
  if (object->at == object->end) return -ENOENT;
  uint8_t tag = *object->at++;
  out->tag = tag;
  if (tag < RINGCAST_TAG_TEXT) {
    out->tag = RINGCAST_TAG_INT64;
    out->i = tag;
    return 0;
  }
  if (tag < RINGCAST_TAG_NONE) {
    out->tag = RINGCAST_TAG_ASCII;
    out->count = tag - RINGCAST_TAG_TEXT;
    return ringcast_object_take(object, out->count, &out->data) ? 0 : -EPROTO;
  }
  switch (tag) {
  case RINGCAST_TAG_NONE:
  case RINGCAST_TAG_FALSE:
  case RINGCAST_TAG_TRUE:
  case RINGCAST_TAG_RANGE:
  case RINGCAST_TAG_SLICE:
  case RINGCAST_TAG_PART:
  case RINGCAST_TAG_PART_BYTEARRAY:
  case RINGCAST_TAG_MARK:
  case RINGCAST_TAG_ABSENT: break;
  case RINGCAST_TAG_INT8:
  case RINGCAST_TAG_INT16:
  case RINGCAST_TAG_INT32:
  case RINGCAST_TAG_INT64:
    ok = ringcast_object_int(object, UINT64_C(1) << (tag - RINGCAST_TAG_INT8), out);
    break;
  case RINGCAST_TAG_FLOAT: ok = ringcast_object_take(object, 8, &out->data); break;
  case RINGCAST_TAG_COMPLEX: ok = ringcast_object_take(object, 16, &out->data); break;
  case RINGCAST_TAG_BIGINT:
  case RINGCAST_TAG_ASCII:
  case RINGCAST_TAG_UTF8:
  case RINGCAST_TAG_WTF8:
  case RINGCAST_TAG_NAMED:
  case RINGCAST_TAG_BYTES:
  case RINGCAST_TAG_BYTEARRAY:
  case RINGCAST_TAG_DTYPE:
  case RINGCAST_TAG_DEVICE: ok = ringcast_object_bytes(object, out); break;
  case RINGCAST_TAG_LIST:
  case RINGCAST_TAG_TUPLE:
  case RINGCAST_TAG_SET:
  case RINGCAST_TAG_FROZENSET:
  case RINGCAST_TAG_SHAPE: ok = ringcast_object_values(object, 1, &out->count); break;
  case RINGCAST_TAG_DICT: ok = ringcast_object_values(object, 2, &out->count); break;
  case RINGCAST_TAG_PACKED_LIST:
  case RINGCAST_TAG_PACKED_TUPLE: ok = ringcast_object_packed(object, out); break;
  case RINGCAST_TAG_CLASS:
    ok = ringcast_object_take(object, 1, &data) && ringcast_object_bytes(object, out);
    if (ok) out->kind = *data;
    break;
  case RINGCAST_TAG_OBJECT:
  case RINGCAST_TAG_MEMBER:
  case RINGCAST_TAG_LEAF:
  case RINGCAST_TAG_AGAIN:
  case RINGCAST_TAG_BACK:
  case RINGCAST_TAG_ITEM:
  case RINGCAST_TAG_RECORD: ok = ringcast_object_count(object, &out->count); break;
  case RINGCAST_TAG_SCALAR: ok = ringcast_object_scalar(object, out); break;
  case RINGCAST_TAG_KIND:
    ok = ringcast_object_take(object, 1, &data);
    if (ok) out->kind = *data;
    break;
  case RINGCAST_TAG_ARRAY:
  case RINGCAST_TAG_PART_ARRAY: ok = ringcast_object_array(object, out); break;
  case RINGCAST_TAG_SIZE:
    ok = ringcast_object_values(object, 8, &out->count) &&
         ringcast_object_take(object, out->count * 8, &out->data);
    break;
  default: ok = false;
  }
  return ok ? 0 : -EPROTO;
}

/* Whether a token is a whole str in the stream: each key of a SHAPE is. */
static inline bool ringcast_token_is_text(const struct ringcast_token *token) {
  return token->tag == RINGCAST_TAG_ASCII || token->tag == RINGCAST_TAG_UTF8 ||
         token->tag == RINGCAST_TAG_WTF8 || token->tag == RINGCAST_TAG_NAMED ||
         token->tag == RINGCAST_TAG_AGAIN;
}

/* ---- A whole stream -------------------------------------------------------------------------- */

/* What is in a stream, and what the stream refers to outside. */
struct ringcast_object_needs {
  uint64_t values;  /* in total, containers included, the keys of shapes not */
  uint64_t texts;   /* NAMED tokens */
  uint32_t parts;   /* parts that the stream uses */
  uint32_t classes; /* classes that the stream defines */
  uint64_t leaves;  /* the highest leaf in use, plus 1 */
  uint32_t marks;   /* values that the stream marks */
  uint32_t shapes;  /* shapes that the stream defines */
  uint64_t before;  /* how many of the last marks of earlier streams BACK goes back to at most */
  uint64_t items;   /* the highest item in use, plus 1 */
};

/* Checks that `data` is one whole value and nothing more. Every token is known and whole, and every
 * counted value is present. Containers nest no deeper than RINGCAST_MAX_DEPTH. Each class is
 * defined, with at least a module and a name, before an OBJECT or MEMBER uses it; there are at most
 * RINGCAST_MAX_CLASSES. The same holds of shapes and RECORD. AGAIN refers only to an earlier NAMED
 * str, BACK to no container that is still open. A value has one MARK at most, a BACK none. On
 * success `*out` says what the stream needs: compare `parts` with the parts of the entry, and
 * `leaves` with the frame's list. A stream can be decoded without the others of its frame if
 * `before` and `items` are 0. -EPROTO: a check fails, and `*out` is unchanged. The check takes some
 * 17 KiB of the caller's stack, and time in proportion to `bytes`. */
RINGCAST_API int ringcast_object_check(const void *data, size_t bytes,
                                       struct ringcast_object_needs *out);

#ifdef __cplusplus
}
#endif
#endif
