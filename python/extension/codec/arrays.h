/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors, NumPy arrays and array.array, as tokens. */
#ifndef RC_EXTENSION_ARRAYS_H
#define RC_EXTENSION_ARRAYS_H

#include "python/extension/codec/tokens.h"

/* LEAF: no tensor or array that travels, and nothing was written. */
enum rc_py_put rc_py_put_tensor(struct rc_py_encoding *encoding, PyObject *value,
                                struct rc_py_step *step);
/* An array.array. LEAF: an unknown typecode, and nothing was written. */
enum rc_py_put rc_py_put_array(struct rc_py_encoding *encoding, PyObject *array);

/* An array.array with the bytes, which are whole elements. NULL: raised. */
PyObject *rc_py_array_of(struct rc_py_state *state, uint8_t typecode, const void *data,
                         size_t bytes);
/* The same of many bytes, which are copied once. */
PyObject *rc_py_array_copy(struct rc_py_state *state, uint8_t typecode, const void *data,
                           size_t bytes);
/* An array of `bytes`, at least 1, and the address for the bytes. NULL: raised. */
PyObject *rc_py_array_new(struct rc_py_state *state, uint8_t typecode, size_t bytes, void **out);
/* The next part, which is an array with the typecode. NULL: raised. */
PyObject *rc_py_get_part_array(struct rc_py_token_reader *reader, uint8_t typecode);

#endif
