/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding, for callers that send or pack; and the shared parts of encode.c, which measures the
 * frame, write.c, which makes the entries, and token_write.c, which makes the streams of nested
 * values. */
#ifndef RC_EXTENSION_ENCODE_H
#define RC_EXTENSION_ENCODE_H

#include "python/extension/tensors.h"

struct rc_py_call;
struct rc_py_place;

/* An entry of the frame to be. */
struct rc_py_part {
  PyObject *key;   /* a str, or NULL */
  PyObject *value; /* keeps `utf8` and `data` alive */
  const char *utf8;
  Py_ssize_t utf8_bytes;
  enum ringcast_item_kind kind;
  uint32_t flags;
  union {
    int64_t i;
    double f;
    uint64_t in_pool; /* of a tensor on a device, where */
  } scalar;
  struct rc_py_source source; /* of a tensor; of a buffer, the view alone */
  const void *data; /* NULL for an OBJECT until all streams are written: scalar.i is then the offset
                       of the stream */
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
  struct rc_py_call *call; /* if its spans are recorded; else NULL */
  struct rc_py_part *parts;
  size_t count, room;
  struct ringcast_frame_plan plan;
  enum ringcast_root root;
  uint64_t copy_bytes;
  bool allow_pickle, pickled;
  bool takes_empty; /* of Writer.compose: placeholders of ringcast.empty() are described, and not
                       copied */
  /* Tensors on a CUDA device: */
  int32_t sends_from; /* the tensors' device, or one of enum rc_py_sends_from */
  uint32_t on_device; /* how many there are with any bytes; ... */
  bool in_pool;       /* ... the tensors go to the pool, */
  bool has_streams;   /* ... by several streams, and so can't, */
  bool is_loose;      /* ... and must be copied before the frame is sent */
  int32_t device;
  void *device_stream; /* of the first tensor */
  uint32_t hash;       /* RINGCAST_ITEM_SHA256 or _XXH3: for each tensor; 0: no hashes */
  PyObject *leaves;    /* a list; NULL: none yet */
  PyObject *holders;   /* a list: containers of leaves, to which a leaf could refer back */
  uint64_t entered;    /* containers */
  uint64_t noted;      /* value of `entered` at the last addition to `holders`, plus 1 */
  /* Of token_write.c. */
  uint8_t *stream; /* all nested values, consecutively */
  size_t stream_bytes, stream_room;
  PyObject *class_cache;
  uint64_t serial; /* of the current stream */
  uint32_t classes;
  uint32_t first_text;           /* the current stream's first number */
  struct rc_py_texts *texts;     /* NULL: no memory yet */
  struct rc_py_repeats *repeats; /* NULL: no memory yet */
  PyObject *object;              /* the root */
  uintptr_t stack_floor;
};

/* Measures the frame; all Python code runs here. False: raised. */
bool rc_py_encoding_measure(struct rc_py_encoding *encoding, struct rc_py_state *state,
                            PyObject *object, bool allow_pickle, int32_t sends_from,
                            bool takes_empty);
/* Writes the frame; runs no Python code except hashlib's for SHA-256. `is_spilled`: the span lies
 * in spill memory, where large frames are published while being written. 0, -errno, or
 * RC_PY_RAISED. */
int rc_py_encoding_write(struct rc_py_encoding *encoding, bool is_spilled,
                         const struct ringcast_span *span, uint32_t tag, size_t *out_bytes);
/* rc_py_encoding_write with tensors on a device: in the pool at `lease`, or in the frame if `lease`
 * is NULL. `gpu` NULL: no pool. */
int rc_py_encoding_write_device(struct rc_py_encoding *encoding, ringcast_gpu_writer *gpu,
                                const struct ringcast_span *span, uint32_t tag,
                                const struct ringcast_gpu_extent *lease, size_t *out_bytes);

/* The path to a nested value, from the inside out: one step for each open container. */
struct rc_py_step {
  const struct rc_py_step
      *up; /* NULL: the root; `key` is the root's key in the frame's dict, or NULL */
  PyObject *container;
  PyObject *key;    /* of a dict; the name of a field */
  Py_ssize_t index; /* of a list or tuple; else RC_PY_STEP_* */
  int depth;
};
enum { RC_PY_STEP_KEY = -1, RC_PY_STEP_FIELD = -2, RC_PY_STEP_MEMBER = -3, RC_PY_STEP_OF_KEY = -4 };

/* path.c: "value['x'][3].foo"; a very long path is cut. NULL: raised. */
PyObject *rc_py_step_path(void *step);

/* ---- parts.c --------------------------------------------------------------------------------- */

/* Takes the memory of the last frame; an encoding within another encoding gets fresh memory. */
void rc_py_parts_begin(struct rc_py_encoding *encoding);
/* Drops all parts, leaves and notes, and keeps the memory. */
void rc_py_parts_drop(struct rc_py_encoding *encoding);
/* Takes over nothing: key and value are referenced anew. The pointer is good until the next
 * call. */
struct rc_py_part *rc_py_part_add(struct rc_py_encoding *encoding, PyObject *key, PyObject *value);
/* Adds a buffer's bytes as a part of the kind; the buffer stays exported. */
bool rc_py_part_add_buffer(struct rc_py_encoding *encoding, PyObject *buffer,
                           enum ringcast_item_kind kind);
/* Raises PickleRefused for a value without a native form. */
void rc_py_refuse(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step);
/* Notes a value that only pickle can send: the index. -1: raised, for one PickleRefused. */
Py_ssize_t rc_py_leaf_add(struct rc_py_encoding *encoding, PyObject *value,
                          struct rc_py_step *step);

/* Sums up the frame's size. False: raised. */
bool rc_py_encoding_plan(struct rc_py_encoding *encoding);
void rc_py_encoding_clear(struct rc_py_encoding *encoding);

/* part_tensor.c. Describes a tensor or array: 1; 0: no tensor, or unfit to be sent as a tensor;
 * -1. */
int rc_py_part_tensor(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step,
                      struct rc_py_source *out, uint64_t *bytes);
/* Finishes what describes an array: the bytes to be sent, in which order. False: raised, and `out`
 * is cleared. */
bool rc_py_source_finish(struct rc_py_encoding *encoding, struct rc_py_source *out,
                         struct rc_py_step *step, uint64_t *bytes);

/* ---- token_write.c, repeats.c ---------------------------------------------------------------- */

/* The result of writing a value to the stream. */
enum rc_py_token_writer {
  RC_PY_PUT_RAISED = -1,
  RC_PY_PUT_LEAF = 0, /* the whole value is a leaf: nothing was written, and no leaf was added */
  RC_PY_PUT_DONE = 1,
  RC_PY_PUT_CYCLE = 2, /* the value contains itself: discard the written tokens */
  RC_PY_PUT_BACK = 3,  /* within token_write.c: DONE, for the value was there before, and a BACK or
                          an ITEM is written */
};
enum { INLINE_MOST = 2048 }; /* longer text and bytes are parts */

/* repeats.c: notes a value outside the streams: the root's item `index`. False: raised. */
bool rc_py_repeats_item(struct rc_py_encoding *encoding, PyObject *value, size_t index);
bool rc_py_is_repeated(const struct rc_py_encoding *encoding, PyObject *value);
/* Drops all notes of the frame, and keeps the memory. */
void rc_py_repeats_clear(struct rc_py_repeats *repeats);
void rc_py_repeats_free(struct rc_py_repeats *repeats);

/* Appends `value` to the stream; long text, bytes and arrays become parts. */
enum rc_py_token_writer rc_py_token_writer(struct rc_py_encoding *encoding, PyObject *value,
                                           struct rc_py_step *root);

#endif
