/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames that Python looks into.
 *
 *   frame.c     Frame: a received frame that still occupies the ring; Reader.next
 *   view.c      View: an object with its arrays in the ring; Reader.view
 *   packed.c    PackedFrame: a frame in private memory; pack() and unpack()
 */
#ifndef RC_EXTENSION_FRAME_H
#define RC_EXTENSION_FRAME_H

#include "python/extension/handles/reader.h"

/* ---- frame.c --------------------------------------------------------------------------------- */

extern PyType_Spec rc_py_frame_spec;

PyObject *rc_py_reader_next(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords);
/* The next frame, as a Frame. `is_view`: the caller decodes it. */
PyObject *rc_py_lend(struct rc_py_reader *reader, int64_t timeout_ns, bool is_view);
/* Gives the frame back while an exception is set, as rc_py_reader_give_back, unless already
 * done. */
void rc_py_frame_give_up(PyObject *frame);

const struct ringcast_frame *rc_py_frame_of(PyObject *frame);
/* As rc_py_reader_stash; for Python the Frame is released then. */
bool rc_py_frame_stash(PyObject *frame, bool device_failed);
PyObject *rc_py_frame_exit(PyObject *frame, PyObject *exception);
PyObject *rc_py_frame_hashes(PyObject *frame, void *closure);
/* Copies out the frame's object, or the object of `part`, a frame inside the frame's memory.
 * `classes`: as in rc_py_classes_allowed; NULL: pickles if the Reader allows pickles. If the Reader
 * allows none, the Reader's own classes count, unless `are_given`. */
PyObject *rc_py_frame_unpack(PyObject *frame, const struct ringcast_frame *part, PyObject *classes,
                             bool are_given);

/* ---- view.c ---------------------------------------------------------------------------------- */

extern PyType_Spec rc_py_view_spec;

PyObject *rc_py_reader_view(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords);

/* ---- packed.c -------------------------------------------------------------------------------- */

struct rc_py_packed {
  PyObject_HEAD void *data;
  size_t bytes;
  struct rc_py_block *block; /* holds `data`; NULL: `memory` does */
  void *memory;
  bool pickled; /* the frame contains a pickle */
};
/* Raises PickleRefused for a `pickled` frame. Always NULL. */
PyObject *rc_py_packed_refuse(struct rc_py_state *state, const struct rc_py_packed *packed);
PyObject *rc_py_pack(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
/* _pack_of_cpu(obj, hash): as pack(), but a torch tensor on a CUDA device is refused as on any
 * other device. */
PyObject *rc_py_pack_of_cpu(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *rc_py_unpack(PyObject *module, PyObject *const *args, Py_ssize_t count,
                       PyObject *keywords);

extern PyType_Spec rc_py_packed_spec;

#endif
