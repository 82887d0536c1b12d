/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays over the ring's own memory. */
#ifndef RC_EXTENSION_VIEW_ARRAYS_H
#define RC_EXTENSION_VIEW_ARRAYS_H

#include "python/extension/tensors.h"

struct rc_py_hold;

/* An array or tensor over the item's own `bytes`, which are packed. NULL: raised, or, with nothing raised, it is to be
 * copied. */
PyObject *rc_py_array_over(struct rc_py_state *state, const struct ringcast_item *item, uint64_t bytes,
                           struct rc_py_hold *hold, bool to_torch);
/* A hold of all of the reader's memory: the last rc_py_hold_drop closes the reader. NULL: out of memory. */
struct rc_py_hold *rc_py_hold_new(ringcast_reader *reader);

/* Arrays that are smaller are copied out of a frame that is kept, so that they keep no large one. */
#define RC_PY_RETAIN_LEAST (UINT64_C(1) << 20)

/* Keeps the frame, and moves it to where it can be written to. NULL, with nothing raised: it can't be kept. */
struct rc_py_hold *rc_py_hold_retained(ringcast_reader *reader, struct ringcast_frame *frame);
/* Whether anything but the caller holds it. */
bool rc_py_hold_is_shared(struct rc_py_hold *hold);
void rc_py_hold_drop(struct rc_py_hold *hold);

extern PyType_Spec rc_py_lent_spec;

#endif
