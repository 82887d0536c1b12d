/* SPDX-License-Identifier: Apache-2.0 */
/* The walks over a nested value, to a stream of tokens and from one: containers, instances, and
 * what is in them. */
#ifndef RC_EXTENSION_CONTAINERS_H
#define RC_EXTENSION_CONTAINERS_H

#include "python/extension/codec/tokens.h"

/* Appends `value` to the stream; long text, bytes and arrays become parts. */
enum rc_py_put rc_py_write_tokens(struct rc_py_encoding *encoding, PyObject *value,
                                  struct rc_py_step *root);

/* The value of a stream, or NULL: raised. */
PyObject *rc_py_read_tokens(struct rc_py_token_reader *reader);

#endif
