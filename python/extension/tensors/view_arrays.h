/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays over the ring's own memory. */
#ifndef RC_EXTENSION_VIEW_ARRAYS_H
#define RC_EXTENSION_VIEW_ARRAYS_H

#include "python/extension/tensors.h"

struct rc_py_hold;

/* An array or tensor over the item's own packed `bytes`. NULL: raised, or, with nothing raised, the
 * caller must copy. */
PyObject *rc_py_array_over(struct rc_py_state *state, const struct ringcast_item *item,
                           uint64_t bytes, struct rc_py_hold *hold, bool to_torch);
/* The same as a buffer, of bytes. */
PyObject *rc_py_buffer_over(struct rc_py_state *state, const void *data, uint64_t bytes,
                            struct rc_py_hold *hold);
/* A hold of all of the reader's memory: the last rc_py_hold_drop closes the reader. NULL: out of
 * memory. */
struct rc_py_hold *rc_py_hold_new(ringcast_reader *reader);

/* Smaller arrays are copied out of a retained frame, so that no small array keeps a large frame. */
#define RC_PY_RETAIN_LEAST (UINT64_C(1) << 20)

/* Retains the frame, moved to writable memory. NULL, with nothing raised: not possible. */
struct rc_py_hold *rc_py_hold_retained(ringcast_reader *reader, struct ringcast_frame *frame);
/* Whether the hold has other users than the caller. */
bool rc_py_hold_is_shared(struct rc_py_hold *hold);
void rc_py_hold_drop(void *hold);

#endif
