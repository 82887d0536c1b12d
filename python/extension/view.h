/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a frame otherwise than as a whole that is copied out: by views (view.c), or by parts (inspect.c). */
#ifndef RC_EXTENSION_VIEW_H
#define RC_EXTENSION_VIEW_H

#include "python/extension/tensors.h"

/* ---- view_arrays.c ---------------------------------------------------------------------------------------------- */

/* An array or tensor over the item's own `bytes`, which are packed. NULL: raised, or, with nothing raised, it is to be
 * copied. */
PyObject *rc_py_array_over(struct rc_py_state *state, const struct ringcast_item *item, uint64_t bytes,
                           struct rc_py_hold *hold, bool to_torch);
/* The Reader has a hold from here on. False: raised. */
bool rc_py_reader_hold(struct rc_py_reader *self);

/* Arrays that are smaller are copied out of a frame that is kept, so that they keep no large one. */
#define RC_PY_RETAIN_LEAST (UINT64_C(1) << 20)

/* Keeps the frame, and moves it to where it can be written to. NULL, with nothing raised: it can't be kept. */
struct rc_py_hold *rc_py_hold_retained(ringcast_reader *reader, struct ringcast_frame *frame);
/* Whether anything but the caller holds it. */
bool rc_py_hold_is_shared(struct rc_py_hold *hold);
void rc_py_hold_drop(struct rc_py_hold *hold);

/* ---- torch.c, numpy.c: arrays over memory of ours --------------------------------------------------------------- */

/* From a capsule of DLPack's. As rc_py_array_over. `is_on_device`: a failure may be the device's. */
PyObject *rc_py_torch_over(struct rc_py_state *state, const struct ringcast_item *item, PyObject *capsule,
                           bool is_on_device);
/* From an object with a buffer. NULL: raised. */
PyObject *rc_py_numpy_over(struct rc_py_state *state, const struct ringcast_item *item, PyObject *memory);

/* ---- inspect.c -------------------------------------------------------------------------------------------------- */

struct rc_py_inspector {
  struct rc_py_state *state;
  const struct ringcast_frame *frame;
  const ringcast_reader *reader; /* this and `owner` as in struct rc_py_decode_options */
  struct rc_py_reader *owner;
  PyObject **classes;
  bool allow_pickle;
};

/* Each gives a new reference, or NULL: raised. `key` is any object, of which keys and hashes make no use. */
typedef PyObject *(*rc_py_inspect)(const struct rc_py_inspector *looking, PyObject *key);
PyObject *rc_py_inspect_keys(const struct rc_py_inspector *looking, PyObject *key);
PyObject *rc_py_inspect_item(const struct rc_py_inspector *looking, PyObject *key);
PyObject *rc_py_inspect_contains(const struct rc_py_inspector *looking, PyObject *key); /* a bool */
PyObject *rc_py_inspect_hashes(const struct rc_py_inspector *looking, PyObject *key);

/* ---- frame.c ---------------------------------------------------------------------------------------------------- */

const struct ringcast_frame *rc_py_frame_of(PyObject *frame);
/* As rc_py_reader_stash; then it is released, to Python. */
bool rc_py_frame_stash(PyObject *frame, bool device_failed);
PyObject *rc_py_frame_exit(PyObject *frame, PyObject *exception);
PyObject *rc_py_frame_hashes(PyObject *frame, void *closure);
/* All that it holds, or the `part` of its memory that is a frame of its own, copied out; pickles where both this and
 * its Reader allow them. */
PyObject *rc_py_frame_unpack(PyObject *frame, const struct ringcast_frame *part, bool allow_pickle);
/* `object` if all that was read so far of held frames was whole; else it is dropped, and Evicted raised. It may be
 * NULL: then Evicted takes the place of what was raised, as rc_py_reader_give_back says. */
PyObject *rc_py_reader_made_sure(struct rc_py_reader *self, PyObject *object);

#endif
