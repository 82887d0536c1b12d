/* SPDX-License-Identifier: Apache-2.0 */
/* What the encoder's files share: encode.c makes the frame's entries, put.c the streams of nested values. */
#ifndef RC_EXTENSION_ENCODE_H
#define RC_EXTENSION_ENCODE_H

#include "extension.h"

/* An entry of the frame to be. */
struct rc_py_part {
  PyObject *key;   /* a str, or NULL */
  PyObject *value; /* holds what `utf8` and `data` point to */
  const char *utf8;
  Py_ssize_t utf8_bytes;
  enum ringcast_item_kind kind;
  uint32_t flags;
  union {
    int64_t i;
    double f;
  } scalar;
  struct rc_py_source source; /* of a tensor; of a buffer, the view alone */
  const void *data;           /* NULL for an OBJECT until all are written: then scalar.i is where its stream starts */
  uint64_t bytes;
  uint32_t first_part, parts; /* of an OBJECT */
  void *out;                  /* where in the ring the data goes */
};

/* A way down into the value, from the inside: one step for each container that is being walked. */
struct rc_py_step {
  const struct rc_py_step *up; /* NULL: this is the root, and `key` its key in the dict of the frame, or NULL */
  PyObject *container;
  PyObject *key;    /* of a dict; the name of a field */
  Py_ssize_t index; /* of a list or tuple; else one of these */
  int depth;
};
enum { RC_PY_STEP_KEY = -1, RC_PY_STEP_FIELD = -2, RC_PY_STEP_MEMBER = -3, RC_PY_STEP_OF_KEY = -4 };

/* path.c: "value['x'][3].foo"; of a very long way its beginning. NULL: raised. */
PyObject *rc_py_step_path(void *step);

/* Takes over nothing: key and value are referenced anew. The pointer is good until the next call. */
struct rc_py_part *rc_py_part_add(struct rc_py_encoding *encoding, PyObject *key, PyObject *value);
/* Adds a buffer's bytes as a part of that kind; the buffer stays exported. */
bool rc_py_part_add_buffer(struct rc_py_encoding *encoding, PyObject *buffer, enum ringcast_item_kind kind);
/* Describes a tensor or array: 1, 0: it is none, or can't be sent as one, -1. */
int rc_py_part_tensor(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step,
                      struct rc_py_source *out, uint64_t *bytes);
/* Notes a value that only pickle can send: its index. -1: raised, for one PickleRefused. */
Py_ssize_t rc_py_leaf_add(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step);

/* What came of putting a value into the stream. */
enum rc_py_put {
  RC_PY_PUT_RAISED = -1,
  RC_PY_PUT_LEAF = 0, /* all of it is one leaf: nothing was written, and no leaf added */
  RC_PY_PUT_DONE = 1,
  RC_PY_PUT_CYCLE = 2, /* it holds itself: what was written is to be dropped */
};
/* Writes `value` behind what the stream has; long things in it become parts. */
enum rc_py_put rc_py_put(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *root);

#endif
