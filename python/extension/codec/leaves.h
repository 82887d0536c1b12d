/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves: the values of a frame that only pickle can send; noted, pickled and unpickled. */
#ifndef RC_EXTENSION_LEAVES_H
#define RC_EXTENSION_LEAVES_H

#include "python/extension/codec/encoding.h"

/* Notes a value that only pickle can send: the index. -1: raised, for one PickleRefused. */
Py_ssize_t rc_py_leaf_add(struct rc_py_encoding *encoding, PyObject *value,
                          struct rc_py_step *step);
/* Raises PickleRefused for a value without a native form. */
void rc_py_refuse(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step);

/* Pickles `value` to bytes, and a list of out-of-band buffers (NULL: none). With `root`, `value` is
 * the list of the leaves of `root`, and `leaf_containers` lists the leaves' containers. 1; 0: a
 * leaf leads back to one of the containers; -1: raised. */
int rc_py_leaves_dump(struct rc_py_state *state, PyObject *value, PyObject *root,
                      PyObject *leaf_containers, PyObject **data, PyObject **buffers);
/* The value of a pickle, with the list `buffers` as parts. NULL: raised. */
PyObject *rc_py_leaves_load(struct rc_py_state *state, PyObject *data, PyObject *buffers);

#endif
