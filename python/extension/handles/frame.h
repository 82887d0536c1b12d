/* SPDX-License-Identifier: Apache-2.0 */
/* Frame: a received frame that still occupies the ring. */
#ifndef RC_EXTENSION_FRAME_H
#define RC_EXTENSION_FRAME_H

#include "python/extension/handles/reader.h"

extern PyType_Spec rc_py_frame_spec;

PyObject *rc_py_frame_new(struct rc_py_reader *reader, const struct ringcast_frame *frame);
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

#endif
