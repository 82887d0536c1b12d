/* SPDX-License-Identifier: Apache-2.0 */
/* A frame to be: its parts, and what is known of the value while it is measured (encode.c). */
#ifndef RC_EXTENSION_ENCODING_H
#define RC_EXTENSION_ENCODING_H

#include "python/extension/tensors.h"

struct rc_py_trace;
struct rc_py_place;

/* An entry of the frame to be. */
struct rc_py_part {
  PyObject *key;   /* a str, or NULL */
  PyObject *value; /* keeps `utf8` and `data` alive */
  const char *utf8;
  Py_ssize_t utf8_bytes;
  enum ringcast_item_kind kind; /* OBJECT also while it is not yet known whether it is a LEAF */
  uint32_t flags;
  union {
    int64_t i; /* of an OBJECT, until place_streams: the offset of the stream */
    double f;
    uint64_t in_pool; /* of a tensor on a device, where */
  } scalar;
  struct rc_py_source source; /* of a tensor; of a buffer, the view alone */
  /* NULL for an OBJECT until all streams are written and none moves any more. */
  const void *data;
  uint64_t bytes;
  uint32_t first_part, parts;      /* of an OBJECT */
  const struct rc_py_place *place; /* the place of Writer.empty with the tensor; NULL: none */
  void *out;                       /* where in the ring the data goes */
};

/* Instead of a device number: there are none, and a torch tensor of a device is refused; each
 * tensor stays on its own device; all tensors go to the first tensor's. */
enum rc_py_sends_from { RC_PY_FROM_NONE = -3, RC_PY_FROM_EACH = -2, RC_PY_FROM_FIRST = -1 };

struct rc_py_encoding {
  struct rc_py_state *state;
  struct rc_py_trace *trace; /* if its spans are recorded; else NULL */
  struct rc_py_part *parts;
  size_t count, room;
  struct ringcast_frame_plan plan;
  enum ringcast_root root;
  uint64_t copy_bytes;
  bool allow_pickle, pickled;
  /* Of Writer.compose: placeholders of ringcast.empty() are described, and not copied. */
  bool takes_empty;
  /* Tensors on a CUDA device: */
  int32_t sends_from; /* the tensors' device, or one of enum rc_py_sends_from */
  uint32_t on_device; /* how many there are with any bytes; ... */
  bool in_pool;       /* ... the tensors go to the pool, */
  bool has_streams;   /* ... by several streams, and so can't, */
  bool is_loose;      /* ... and must be copied before the frame is sent */
  int32_t device;
  void *device_stream;       /* of the first tensor */
  uint32_t hash;             /* RINGCAST_ITEM_SHA256 or _XXH3: for each tensor; 0: no hashes */
  PyObject *leaves;          /* a list; NULL: none yet */
  PyObject *leaf_containers; /* a list: containers of leaves, to which a leaf could refer back */
  uint64_t entered;          /* containers */
  uint64_t noted; /* value of `entered` at the last addition to `leaf_containers`, plus 1 */
  /* Nested values, see tokens.h: */
  uint8_t *stream; /* of all of them, consecutively */
  size_t stream_bytes, stream_room;
  PyObject *class_cache; /* NULL until the first stream */
  uint64_t serial;       /* of the current stream */
  uint32_t classes;
  uint32_t first_text;           /* the current stream's first number */
  struct rc_py_texts *texts;     /* NULL: no memory yet */
  struct rc_py_repeats *repeats; /* NULL: no memory yet */
  PyObject *object;              /* the root */
  uintptr_t stack_floor;
};

/* The path to a nested value, from the inside out: one step for each open container. */
struct rc_py_step {
  /* NULL: the root; `key` is then the root's key in the frame's dict, or NULL. */
  const struct rc_py_step *up;
  PyObject *container;
  PyObject *key;    /* of a dict; the name of a field */
  Py_ssize_t index; /* of a list or tuple; else RC_PY_STEP_* */
  int depth;
};
enum { RC_PY_STEP_KEY = -1, RC_PY_STEP_FIELD = -2, RC_PY_STEP_MEMBER = -3, RC_PY_STEP_OF_KEY = -4 };

#endif
