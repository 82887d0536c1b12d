/* SPDX-License-Identifier: Apache-2.0 */
/* torch.dtype, torch.device and torch.Size as tokens. */
#ifndef RC_EXTENSION_TORCH_NAMES_H
#define RC_EXTENSION_TORCH_NAMES_H

#include "python/extension/state.h"

/* A torch.dtype, torch.device or torch.Size as a token: the token's count, and the bytes, which
 * `keep` holds. */
struct rc_py_named {
  uint8_t tag;
  size_t count, bytes;
  const void *data;
  PyObject *keep;
};
/* 1; 0: not one of the three types; -1. */
int rc_py_torch_name(struct rc_py_state *state, PyObject *value, struct rc_py_named *out);
/* From the token's bytes. NULL: raised. */
PyObject *rc_py_torch_dtype(struct rc_py_state *state, const void *name, size_t bytes);
PyObject *rc_py_torch_device(struct rc_py_state *state, const void *name, size_t bytes);
PyObject *rc_py_torch_size(struct rc_py_state *state, PyObject *tuple);

#endif
