/* SPDX-License-Identifier: Apache-2.0 */
/* Frame: a frame that is held. */
#ifndef RC_EXTENSION_FRAME_H
#define RC_EXTENSION_FRAME_H

#include "python/extension/handles/reader.h"

extern PyType_Spec rc_py_frame_spec;

PyObject *rc_py_frame_new(struct rc_py_reader *reader, const struct ringcast_frame *frame);
/* Gives it back where an exception is set, as above, unless that was done. */
void rc_py_frame_give_up(PyObject *frame);

const struct ringcast_frame *rc_py_frame_of(PyObject *frame);
/* As rc_py_reader_stash; then it is released, to Python. */
bool rc_py_frame_stash(PyObject *frame, bool device_failed);
PyObject *rc_py_frame_exit(PyObject *frame, PyObject *exception);
PyObject *rc_py_frame_hashes(PyObject *frame, void *closure);
/* All that it holds, or the `part` of its memory that is a frame of its own, copied out. `classes`: as of
 * rc_py_classes_allowed; NULL: pickles where its Reader allows them. If the Reader allows none, its own classes count,
 * unless others `are_given`. */
PyObject *rc_py_frame_unpack(PyObject *frame, const struct ringcast_frame *part, PyObject *classes, bool are_given);

#endif
