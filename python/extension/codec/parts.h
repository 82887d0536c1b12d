/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a frame to be: added one by one, each a value, a buffer or a tensor; the frame's
 * size; and where in the value a part stands, for error messages. */
#ifndef RC_EXTENSION_PARTS_H
#define RC_EXTENSION_PARTS_H

#include "python/extension/codec/encoding.h"

/* Key and value are referenced anew. The pointer is good until the next call. */
struct rc_py_part *rc_py_part_add(struct rc_py_encoding *encoding, PyObject *key, PyObject *value);
/* Adds a buffer's bytes as a part of the kind; the buffer stays exported. */
bool rc_py_part_add_buffer(struct rc_py_encoding *encoding, PyObject *buffer,
                           enum ringcast_item_kind kind);

/* Describes a tensor or array: 1; 0: no tensor, or unfit to be sent as a tensor; -1. */
int rc_py_part_tensor(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step,
                      struct rc_py_source *out, uint64_t *bytes);
/* Finishes what describes an array: the bytes to be sent, in which order. False: raised, and `out`
 * is cleared. */
bool rc_py_source_finish(struct rc_py_encoding *encoding, struct rc_py_source *out,
                         struct rc_py_step *step, uint64_t *bytes);

/* Sums up the frame's size. False: raised. */
bool rc_py_encoding_plan(struct rc_py_encoding *encoding);
/* The same, with the tensors of a device at `offsets` in the pool; NULL: not in the pool. */
bool rc_py_device_plan(struct rc_py_encoding *encoding, const uint64_t *offsets);

/* A struct rc_py_step in words: "value['x'][3].foo"; a very long path is cut. NULL: raised. */
PyObject *rc_py_step_path(void *step);

#endif
