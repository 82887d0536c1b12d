/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving, for the methods of Reader. */
#ifndef RC_EXTENSION_RECEIVE_H
#define RC_EXTENSION_RECEIVE_H

#include "python/extension/handles/reader.h"

/* The next object; enters the Reader and leaves it. NULL: raised. `taking`: called by _take(), for
 * which an empty ring is no error. */
PyObject *rc_py_receive(struct rc_py_reader *self, int64_t timeout_ns, uint32_t *tag, bool taking);
/* Appends the objects of the available frames, until the list has `most`. Enters the Reader and
 * leaves it. If a frame can't be decoded, the call ends, and the next call raises the reason. None;
 * NULL: raised. */
PyObject *rc_py_receive_more(struct rc_py_reader *self, PyObject *received, Py_ssize_t most);
/* The next frame, whole. The caller has entered the Reader. 0, -errno, or RC_PY_RAISED. */
int rc_py_receive_frame(struct rc_py_reader *self, int64_t timeout_ns, struct ringcast_frame *out);
/* Decodes the kept frame: for rc_reader_warm_by, with the Reader as the context. */
void rc_py_warm(void *context);
/* Keeps a copy of the frame for rc_py_warm, if a window asked and the frame allows it. `ran_code`:
 * decoding ran user code. */
void rc_py_warming_keep(struct rc_py_reader *self, const struct ringcast_frame *frame,
                        bool ran_code);

#endif
