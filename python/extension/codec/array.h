/* SPDX-License-Identifier: Apache-2.0 */
/* array.array: typecode and bytes. */
#ifndef RC_EXTENSION_ARRAY_H
#define RC_EXTENSION_ARRAY_H

#include "python/extension/codec/encode.h"

/* LEAF: an unknown typecode, and nothing was written. */
enum rc_py_token_writer rc_py_token_write_array(struct rc_py_encoding *encoding, PyObject *array);

/* An array with the bytes, which are whole elements. NULL: raised. */
PyObject *rc_py_array_of(struct rc_py_state *state, uint8_t typecode, const void *data,
                         size_t bytes);
/* The same of many bytes, which are copied once. */
PyObject *rc_py_array_copy(struct rc_py_state *state, uint8_t typecode, const void *data,
                           size_t bytes);
/* An array of `bytes`, at least 1, and the address for the bytes. NULL: raised. */
PyObject *rc_py_array_new(struct rc_py_state *state, uint8_t typecode, size_t bytes, void **out);
/* Whether the value is an array with the typecode: 1, 0, -1. */
int rc_py_array_has_typecode(struct rc_py_state *state, PyObject *value, uint8_t typecode);

#endif
