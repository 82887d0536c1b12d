/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes of sent tensors. */
#ifndef RC_EXTENSION_HASH_H
#define RC_EXTENSION_HASH_H

#include "python/extension/state.h"

/* None or NULL -> 0; "sha256", "xxh3" -> the flag of an entry. False: raised. */
bool rc_py_hash_argument(struct rc_py_state *state, PyObject *object, uint32_t *out);
/* Packs the tensor to `to` and gives the hash of the packed bytes. 0, -errno, or RC_PY_RAISED. */
int rc_py_hash_pack(struct rc_py_state *state, const struct ringcast_tensor *tensor, uint64_t bytes,
                    void *to, uint32_t which, uint64_t *out);
/* Raises ValueError: a PackedFrame has the hashes from pack(). Always NULL. */
PyObject *rc_py_hash_of_packed(void);

#endif
