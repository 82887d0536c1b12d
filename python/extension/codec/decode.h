/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding, for callers that receive, look or unpack; and what the decoder's files share: decode.c reads a frame's
 * entries, decode_value.c makes what one entry holds. */
#ifndef RC_EXTENSION_DECODE_H
#define RC_EXTENSION_DECODE_H

#include "python/extension/codec/token_read.h"
#include "python/extension/tensors/view_arrays.h"

/* The entries of a frame that are read, in their order: from `first` up to `end`, and so on. */
struct rc_py_selection {
  struct {
    uint32_t first, end;
  } runs[3];
  uint32_t count;
};

/* Where tensors arrive. */
struct rc_py_map {
  enum { RC_PY_MAP_AS_SENT, RC_PY_MAP_CPU, RC_PY_MAP_CUDA } to;
  int32_t device; /* -1: the current one */
};

/* What holds the frame that is decoded, for tensors of a CUDA device: a Reader. codec/device.h has the calls. */
struct rc_py_holder {
  uint64_t ring_frame; /* a frame with more bytes lies in spill memory */
  struct rc_py_map map;
  const struct rc_py_holder_calls *calls;
};

struct rc_py_decode_options {
  const ringcast_reader *reader;           /* its eviction is looked for before code is run; NULL: none can change it */
  struct rc_py_holder *holder;             /* NULL: tensors of a device arrive on the CPU */
  PyObject **classes;                      /* that came: the cache of classes.c */
  bool allow_pickle;                       /* false: a frame with a pickle is refused */
  struct rc_py_hold *hold;                 /* arrays lie in the frame, and hold this; NULL: arrays are copied */
  const struct rc_py_selection *selection; /* of a dict, these entries alone; NULL: all */
  uint64_t *arrays;                        /* set to the bytes of the large arrays; may be NULL */
  bool is_last;                            /* the frame is given back next, and nothing else is read of it */
  bool *device_failed;                     /* set to whether the device's part of the work raised; may be NULL */
};
/* The object that a frame of either kind holds; NULL: raised. `tag` is 0 for bytes. If `reader` is evicted meanwhile,
 * the frame may have been overwritten: nothing of it is unpickled, and the caller drops what this gives or raises. */
PyObject *rc_py_decode(struct rc_py_state *state, const struct ringcast_frame *frame,
                       const struct rc_py_decode_options *options, uint32_t *tag);

struct rc_py_copy {
  void *to;
  const void *from;
  uint64_t bytes;
};

struct rc_py_decoded_leaf {
  PyObject *key; /* NULL: none */
  int64_t index;
};

/* A nested value. */
struct rc_py_nested {
  PyObject *key; /* NULL: it is the value itself */
  uint8_t *stream;
  size_t bytes;
  uint32_t first_part, parts;
};

/* What the next entry may be: parts follow the items, and buffers the pickle, at the end. */
enum rc_py_phase { RC_PY_ITEMS, RC_PY_PARTS, RC_PY_BUFFERS };

struct rc_py_decoding {
  struct rc_py_state *state;
  struct ringcast_frame_reader frame;
  uint32_t items; /* values seen so far */
  enum rc_py_phase phase;
  PyObject *result; /* the dict, or the value */
  struct rc_py_copy *copies;
  size_t copy_count, copy_room;
  uint64_t taken; /* bytes of the frame that keys, text and copies were made of */
  uint64_t copy_bytes;
  struct rc_py_decoded_leaf *leaves;
  size_t leaf_count, leaf_room;
  struct rc_py_nested *nested;
  size_t nested_count, nested_room;
  struct rc_py_marked marked;
  PyObject **parts;
  size_t part_count, part_room;
  uint32_t first_part; /* its entry */
  PyObject **classes;
  const ringcast_reader *reader; /* NULL: nobody can write to the frame */
  bool allow_pickle;
  struct rc_py_hold *hold; /* this and `holder` as in struct rc_py_decode_options */
  const struct rc_py_selection *selection;
  uint64_t arrays;            /* bytes of those of RC_PY_RETAIN_LEAST or more */
  PyObject *pickle, *buffers; /* bytes and a list; NULL: no pickle */
  struct rc_py_holder *holder;
  const struct ringcast_frame *whole; /* the frame, as its Reader holds it */
  struct rc_py_fetching *device;      /* NULL: nothing of it was, or is to go, on a device as yet */
  bool device_failed, is_last;
};

/* Raises ProtocolError. Always false. */
bool rc_py_damaged(struct rc_py_decoding *decoding, const char *what);
/* Room for one more of `size` bytes each. */
bool rc_py_grow(void **array, size_t count, size_t *room, size_t size);
/* Counts bytes of the frame that something is made of: all together they are no more than it has. */
bool rc_py_take_bytes(struct rc_py_decoding *decoding, uint64_t bytes);
/* To be called before the memory of a copy is allocated, with rc_py_copy_to afterwards. */
bool rc_py_copy_add(struct rc_py_decoding *decoding, const void *from, uint64_t bytes);
static inline void rc_py_copy_to(struct rc_py_decoding *decoding, void *to) {
  decoding->copies[decoding->copy_count - 1].to = to;
}

PyObject *rc_py_make_text(struct rc_py_decoding *decoding, const void *data, uint64_t bytes);
PyObject *rc_py_make_bytes(struct rc_py_decoding *decoding, const struct ringcast_item *item);
/* What a pickle's buffer was: bytes, memory that an array can take over, or a bytearray. */
PyObject *rc_py_make_buffer(struct rc_py_decoding *decoding, const struct ringcast_item *item);
/* A tensor or array of the CPU, and the place for its bytes. */
PyObject *rc_py_make_array(struct rc_py_decoding *decoding, const struct ringcast_item *item, uint64_t bytes,
                           void **out);
/* The value of an entry, or NULL with an exception; None for what is only made when all is copied. */
PyObject *rc_py_make_value(struct rc_py_decoding *decoding, const struct ringcast_item *item);

#endif
