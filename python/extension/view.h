/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a frame in other ways than as a whole that is copied out: by views of it (view.c), or by parts (inspect.c).
 */
#ifndef RC_EXTENSION_VIEW_H
#define RC_EXTENSION_VIEW_H

#include "python/extension/tensors.h"

/* ---- decode.c --------------------------------------------------------------------------------------------------- */

/* The entries of a frame that are read, in their order: from `first` up to `end`, and so on. */
struct rc_py_selection {
  struct {
    uint32_t first, end;
  } runs[3];
  uint32_t count;
};

/* How a frame is read: as by rc_py_decode, and ... */
struct rc_py_decoder {
  const ringcast_reader *reader;
  struct rc_py_reader *owner; /* whose it is; NULL: tensors of a device arrive on the CPU */
  PyObject **classes;
  bool allow_pickle;
  struct rc_py_hold *hold;                 /* ... arrays lie in the frame, and hold this; NULL: are copied */
  uint64_t *arrays;                        /* ... and this is set to how many bytes those have that are large */
  const struct rc_py_selection *selection; /* ... of a dict, these entries alone; NULL: all */
};
PyObject *rc_py_decode_by(struct rc_py_state *state, const struct ringcast_frame *frame,
                          const struct rc_py_decoder *decoder, uint32_t *tag);

/* ---- view_arrays.c
 * ----------------------------------------------------------------------------------------------------- */

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

/* From a capsule of DLPack's. As rc_py_array_over. */
/* `is_on_device`: a failure may be the device's. */
PyObject *rc_py_torch_over(struct rc_py_state *state, const struct ringcast_item *item, PyObject *capsule,
                           bool is_on_device);
/* From an object with a buffer. NULL: raised. */
PyObject *rc_py_numpy_over(struct rc_py_state *state, const struct ringcast_item *item, PyObject *memory);

/* ---- inspect.c -----------------------------------------------------------------------------------------------------
 */

struct rc_py_inspector {
  struct rc_py_state *state;
  const struct ringcast_frame *frame;
  const ringcast_reader *reader; /* as for rc_py_decode */
  struct rc_py_reader *owner;    /* as of rc_py_decoder */
  PyObject **classes;
  bool allow_pickle;
};

/* Each gives a new reference, or NULL: raised. `key` is any object, of which keys and hashes make no use. */
typedef PyObject *(*rc_py_inspect)(const struct rc_py_inspector *looking, PyObject *key);
PyObject *rc_py_inspect_keys(const struct rc_py_inspector *looking, PyObject *key);
PyObject *rc_py_inspect_item(const struct rc_py_inspector *looking, PyObject *key);
PyObject *rc_py_inspect_contains(const struct rc_py_inspector *looking, PyObject *key); /* a bool */
PyObject *rc_py_inspect_hashes(const struct rc_py_inspector *looking, PyObject *key);
/* What keys() and hashes are, for the two types that have them. */

/* ---- frame.c ---------------------------------------------------------------------------------------------------- */

const struct ringcast_frame *rc_py_frame_of(PyObject *frame);
PyObject *rc_py_frame_exit(PyObject *frame, PyObject *exception);
PyObject *rc_py_frame_hashes(PyObject *frame, void *closure);
/* All that it holds, copied out; pickles where both this and its Reader allow them. */
PyObject *rc_py_frame_unpack(PyObject *frame, bool allow_pickle);
/* `object` if all that was read so far of held frames was whole; else it is dropped, and Evicted raised. It may be
 * NULL: then Evicted takes the place of what was raised, as rc_py_reader_give_back says. */
PyObject *rc_py_reader_made_sure(struct rc_py_reader *self, PyObject *object);

#endif
