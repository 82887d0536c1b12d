/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding, for callers that receive, inspect or unpack; and the shared parts of decode.c, which
 * reads a frame's entries, and decode_value.c, which makes the value of an entry. */
#ifndef RC_EXTENSION_DECODE_H
#define RC_EXTENSION_DECODE_H

#include "python/extension/codec/token_read.h"
#include "python/extension/tensors.h"

/* The entries of a frame to read, in order: from `first` up to `end`, for each run. */
struct rc_py_selection {
  struct {
    uint32_t first, end;
  } runs[3];
  uint32_t count;
};

/* Where tensors arrive. */
struct rc_py_map {
  enum { RC_PY_MAP_AS_SENT, RC_PY_MAP_CPU, RC_PY_MAP_CUDA } to;
  int32_t device; /* -1: the current device */
};

/* The holder of the decoded frame, for tensors of a CUDA device: a Reader. For the calls see
 * codec/device.h. */
struct rc_py_holder {
  uint64_t ring_frame; /* a frame with more bytes lies in spill memory */
  struct rc_py_map map;
  const struct rc_py_holder_calls *calls;
};

struct rc_py_decode_options {
  const ringcast_reader
      *reader; /* checked for eviction before code runs; NULL: the frame can't change */
  struct rc_py_holder *holder; /* NULL: tensors of a device arrive on the CPU */
  PyObject **classes;          /* classes received: the cache of classes.c */
  bool allow_pickle;           /* false: a frame with a pickle is refused */
  struct rc_py_hold *hold; /* arrays stay in the frame and keep the hold; NULL: arrays are copied */
  const struct rc_py_selection *selection; /* of a dict, only the selected entries; NULL: all */
  uint64_t *arrays;                        /* set to the bytes of the large arrays; may be NULL */
  bool is_last;                            /* the frame is given back next, without further reads */
  bool *device_failed; /* set to whether the device's part of the work raised; may be NULL */
};
/* The object in a frame of either kind; NULL: raised. `tag` is 0 for bytes. If `reader` is evicted
 * meanwhile, the frame may have been overwritten: nothing more is unpickled, and the caller drops
 * the object or the exception. */
PyObject *rc_py_decode(struct rc_py_state *state, const struct ringcast_frame *frame,
                       const struct rc_py_decode_options *options, uint32_t *tag);

struct rc_py_copy {
  void *to;
  const void *from;
  uint64_t bytes;
};

struct rc_py_decoded_leaf {
  PyObject *key; /* NULL: no key */
  int64_t index;
};

/* A nested value. */
struct rc_py_nested {
  PyObject *key; /* NULL: the root */
  uint8_t *stream;
  size_t bytes;
  uint32_t first_part, parts;
};

/* The kinds of entry that may come next: parts follow the items; at the end, buffers follow the
 * pickle. */
enum rc_py_phase { RC_PY_ITEMS, RC_PY_PARTS, RC_PY_BUFFERS };

struct rc_py_decoding {
  struct rc_py_state *state;
  struct ringcast_frame_reader frame;
  uint32_t items; /* values seen so far */
  enum rc_py_phase phase;
  PyObject *result; /* the dict, or the value */
  struct rc_py_copy *copies;
  size_t copy_count, copy_room;
  uint64_t taken; /* bytes of the frame turned into keys, text and copies */
  uint64_t copy_bytes;
  struct rc_py_decoded_leaf *leaves;
  size_t leaf_count, leaf_room;
  struct rc_py_nested *nested;
  size_t nested_count, nested_room;
  struct rc_py_marked marked;
  PyObject **parts;
  size_t part_count, part_room;
  uint32_t first_part; /* entry of parts[0] */
  PyObject **classes;
  const ringcast_reader *reader; /* NULL: the frame can't change */
  bool allow_pickle;
  struct rc_py_hold *hold; /* `hold` and `holder` as in struct rc_py_decode_options */
  const struct rc_py_selection *selection;
  uint64_t arrays;            /* total bytes of arrays of RC_PY_RETAIN_LEAST or more */
  PyObject *pickle, *buffers; /* bytes and a list; NULL: no pickle */
  struct rc_py_holder *holder;
  const struct ringcast_frame *whole; /* the frame as the Reader holds it */
  struct rc_py_fetching *device;      /* NULL: no tensor from or for a device yet */
  bool device_failed, is_last;
};

/* ---- decode_memory.c ------------------------------------------------------------------------- */

/* Raises ProtocolError. Always false. */
bool rc_py_damaged(struct rc_py_decoding *decoding, const char *what);
/* Counts bytes of the frame that become objects: the total must not exceed the frame's size. */
bool rc_py_take_bytes(struct rc_py_decoding *decoding, uint64_t bytes);
/* To be called before the memory of a copy is allocated, with rc_py_copy_to afterwards. */
bool rc_py_copy_add(struct rc_py_decoding *decoding, const void *from, uint64_t bytes);
static inline void rc_py_copy_to(struct rc_py_decoding *decoding, void *to) {
  decoding->copies[decoding->copy_count - 1].to = to;
}
/* The sender's library; if unknown, NumPy, provided that NumPy has the dtype. */
bool rc_py_goes_to_torch(const struct ringcast_item *item);
/* A tensor or array of the CPU, and the address for the bytes. */
PyObject *rc_py_make_array(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                           uint64_t bytes, void **out);

/* ---- decode_value.c -------------------------------------------------------------------------- */

PyObject *rc_py_make_text(struct rc_py_decoding *decoding, const void *data, uint64_t bytes);
PyObject *rc_py_make_bytes(struct rc_py_decoding *decoding, const struct ringcast_item *item);
/* A pickle's buffer: bytes, memory that an array can own, or a bytearray. */
PyObject *rc_py_make_buffer(struct rc_py_decoding *decoding, const struct ringcast_item *item);
/* The value of an entry, or NULL with an exception; None for a value that can only be made after
 * all copies. */
PyObject *rc_py_make_value(struct rc_py_decoding *decoding, const struct ringcast_item *item);

#endif
