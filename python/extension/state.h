/* SPDX-License-Identifier: Apache-2.0 */
/* The module's state. */
#ifndef RC_EXTENSION_STATE_H
#define RC_EXTENSION_STATE_H

#include "python/extension/extension.h"

#define RC_PY_DTYPES     41
#define RC_PY_MODE_CALLS 6

struct rc_py_torch {
  PyObject *tensor, *parameter; /* the types; NULL until torch is seen */
  PyObject *strided, *empty, *empty_strided, *from_dlpack, *dtype_to_index;
  PyObject *cpu, *keywords; /* torch.device("cpu"), and ("dtype", "device") */
  PyObject *stream;         /* torch's Stream object that was recorded last; NULL: none yet */
  PyObject *dtype_type, *device_type, *size_type; /* torch_names.c; NULL until needed */
  PyObject *dtypes[RC_PY_DTYPES];                 /* NULL: torch has no such dtype */
  /* Length, pop and push, of functions and of dispatch; NULL: none. */
  PyObject *mode_calls[RC_PY_MODE_CALLS];
  const struct rc_py_exchange *exchange; /* NULL: torch below 2.13 */
  void *stream_is;                       /* the driver's handle of `stream`, ... */
  int32_t stream_device;                 /* ... and its device */
  bool is_built_with_cuda;               /* as torch reports */
};

struct rc_py_numpy {
  PyObject *ndarray, *empty, *frombuffer;
  PyObject *text_of, *make;       /* of ringcast._arrays; NULL until needed */
  PyObject *dtypes[RC_PY_DTYPES]; /* NULL: NumPy has no such dtype */
};

/* Names for attribute look-ups in calls, interned once. */
/* clang-format off */
#define RC_PY_NAMES(X) \
  X(torch) X(numpy) X(is_cpu) X(is_nested) X(layout) X(dtype) X(device) X(shape) X(stride) \
  X(data_ptr) X(is_neg) X(is_conj) X(resolve_neg) X(resolve_conj) X(view) X(requires_grad) \
  X(requires_grad_) X(_name_) X(_member_map_) X(update) X(digest) X(release) X(is_cuda) \
  X(get_device) X(contiguous) X(set_) X(untyped_storage) X(record_stream) X(like) \
  X(__dlpack_device__) X(typecode) X(is_safe) X(dump) X(clear_memo) X(buffers) X(metadata)
/* clang-format on */

struct rc_py_names {
#define X(name) PyObject *name;
  RC_PY_NAMES(X)
#undef X
};

/* Short strings that are likely to repeat (dict keys, request ids), by hash: see rc_py_key. */
#define RC_PY_KEYS_BITS 11
#define RC_PY_KEYS      (1 << RC_PY_KEYS_BITS)
#define RC_PY_KEY_MOST  64

/* A str with a number in the stream. Numbers continue from stream to stream, so an old entry is
 * recognised. */
struct rc_py_text {
  PyObject *text; /* borrowed; may be stale: the str's bytes in the stream decide */
  uint32_t number;
  uint32_t at; /* in the stream, behind the tag */
};
#define RC_PY_TEXTS 1024
struct rc_py_texts {
  uint32_t next; /* number */
  struct rc_py_text table[RC_PY_TEXTS];
};

/* The number of standard-library kinds, plus 1: 0 means "no kind". */
#define RC_PY_STANDARD 18

/* The encoder's memory, reused from frame to frame. */
struct rc_py_part;
struct rc_py_repeats;
struct rc_py_spare {
  struct rc_py_texts *texts;
  struct rc_py_repeats *repeats;
  struct rc_py_part *parts;
  size_t part_room;
  uint8_t *stream;
  size_t stream_room;
};

struct rc_py_state {
  /* Up to torch.exchange, all members are references, which module.c walks, and NULL until
   * needed. */
  PyTypeObject *writer_type, *reader_type, *tap_type, *span_type, *frame_type, *packed_type,
      *memory_type, *view_type, *device_tensor_type;
  PyObject *error, *error_by_errno, *writer_gone;
  PyObject *reader_status, *stats, *info, *tapped, *tap_lost, *ring; /* of ringcast._status */
  PyObject *gpu_info, *gpu_state;                                    /* of ringcast._status */
  PyObject *make_pickler, *has_met, *refuse_value, *refuse_frame;    /* of ringcast._pickling */
  PyObject *pickler, *loads; /* leaves.c: NULL while in use; pickle's own */
  PyObject *describe_class, *find_class, *class_shape; /* of ringcast._classes */
  PyObject *class_composite, *class_member;            /* of ringcast._classes */
  PyObject *allowed_classes;                           /* of ringcast._allowed */
  PyObject *environment, *allow_pickle_name;           /* call.c */
  PyObject *classes;                  /* classes sent so far: the cache of classes.c */
  PyObject *unpack_classes;           /* classes that unpack() has met */
  PyObject *no_arguments;             /* () */
  PyObject *sha256;                   /* of hashlib */
  PyObject *cached_property;          /* of functools */
  PyObject *standard[RC_PY_STANDARD]; /* kinds.c's types */
  PyObject *uuid_unknown;             /* uuid.SafeUUID.unknown */
  PyObject *nothing, *turn;           /* call.c */
  PyObject *device_helpers;           /* the module ringcast._device */
  PyObject *empty_type;               /* of ringcast._compose */
  struct rc_py_names names;
  struct rc_py_numpy numpy;
  struct rc_py_torch torch;

  PyObject *keys[RC_PY_KEYS];
  size_t interned;   /* bytes that rc_py_intern has added */
  uint64_t serial;   /* of the last stream written */
  uint64_t ran_code; /* how often decoding ran code that may be the user's */
  struct rc_py_spare spare;
  bool device_is_ready; /* the driver reported a device */
};

#endif
