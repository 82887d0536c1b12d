/* SPDX-License-Identifier: Apache-2.0 */
/* A frame that is being decoded, for decode.c and device_get.c: what was read of it, and the copies
 * that are left to do. */
#ifndef RC_EXTENSION_DECODING_H
#define RC_EXTENSION_DECODING_H

#include "python/extension/codec/tokens.h"
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

/* The receiver of the decoded frame, for tensors of a CUDA device: a Reader. For the calls see
 * codec/device.h. */
struct rc_py_receiver {
  uint64_t ring_frame; /* a frame with more bytes lies in spill memory */
  struct rc_py_map map;
  const struct rc_py_receiver_calls *calls;
};

/* A copy out of the frame, to be done once all memory is allocated. */
struct rc_py_pending_copy {
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
  struct rc_py_pending_copy *copies;
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
  struct rc_py_hold *hold; /* `hold` and `receiver` as in struct rc_py_decode_options */
  const struct rc_py_selection *selection;
  uint64_t arrays;            /* total bytes of arrays of RC_PY_RETAIN_LEAST or more */
  PyObject *pickle, *buffers; /* bytes and a list; NULL: no pickle */
  struct rc_py_receiver *receiver;
  const struct ringcast_frame *whole; /* the frame as the Reader holds it */
  struct rc_py_fetching *device;      /* NULL: no tensor from or for a device yet */
  bool device_failed, is_last;
};

/* Raises ProtocolError. Always false. */
static inline bool rc_py_damaged(struct rc_py_decoding *decoding, const char *what) {
  rc_py_raise_damaged(decoding->state, what);
  return false;
}

/* Counts bytes of the frame that become objects: the total must not exceed the frame's size. */
static inline bool rc_py_take_bytes(struct rc_py_decoding *decoding, uint64_t bytes) {
  if (bytes > decoding->frame.bytes - decoding->taken)
    return rc_py_damaged(decoding, "its entries share their bytes");
  decoding->taken += bytes;
  return true;
}

/* Whether the item is to arrive on a device, or came from a device's pool. */
static inline bool rc_py_device_wants(const struct rc_py_decoding *decoding,
                                      const struct ringcast_item *item) {
  if (item->flags & RINGCAST_ITEM_CUDA) return true;
  return item->flags & RINGCAST_ITEM_TORCH && decoding->receiver &&
         decoding->receiver->map.to == RC_PY_MAP_CUDA;
}

/* The sender's library; if unknown, NumPy, provided that NumPy has the dtype. */
static inline bool rc_py_goes_to_torch(const struct ringcast_item *item) {
  if (item->flags & RINGCAST_ITEM_TORCH) return true;
  if (item->flags & RINGCAST_ITEM_NUMPY) return false;
  int index = rc_py_dtype_of(item);
  return index >= 0 && !rc_py_dtypes[index].numpy;
}

/* A tensor or array of the CPU, and the address for the bytes. */
static inline PyObject *rc_py_make_array(struct rc_py_state *state,
                                         const struct ringcast_item *item, uint64_t bytes,
                                         void **out) {
  if (rc_py_goes_to_torch(item)) return rc_py_torch_make(state, item, bytes, out);
  return rc_py_numpy_make(state, item, bytes, out);
}

#endif
