/* SPDX-License-Identifier: Apache-2.0 */
/* From an object to a frame, for callers that send or pack: measure, find a place for so many
 * bytes, write. */
#ifndef RC_EXTENSION_ENCODE_H
#define RC_EXTENSION_ENCODE_H

#include "python/extension/codec/parts.h"

/* Measures the frame; all Python code runs here. False: raised. */
bool rc_py_encoding_measure(struct rc_py_encoding *encoding, struct rc_py_state *state,
                            PyObject *object, bool allow_pickle, int32_t sends_from,
                            bool takes_empty);
/* Writes the frame; runs no Python code except hashlib's for SHA-256. `is_spilled`: the span lies
 * in spill memory, where large data is copied past the cache. 0, -errno, or RC_PY_RAISED. */
int rc_py_encoding_write(struct rc_py_encoding *encoding, bool is_spilled,
                         const struct ringcast_span *span, uint32_t tag, size_t *out_bytes);
/* rc_py_encoding_write with tensors on a device: in the pool at `extent`, or in the frame if
 * `extent` is NULL. `gpu` NULL: no pool. */
int rc_py_encoding_write_device(struct rc_py_encoding *encoding, ringcast_gpu_writer *gpu,
                                const struct ringcast_span *span, uint32_t tag,
                                const struct ringcast_gpu_extent *extent, size_t *out_bytes);
/* Takes the memory of the last frame, for parts that the caller adds and plans in place of
 * rc_py_encoding_measure; an encoding within another encoding gets fresh memory. */
void rc_py_parts_begin(struct rc_py_encoding *encoding);
void rc_py_encoding_clear(struct rc_py_encoding *encoding);

#endif
