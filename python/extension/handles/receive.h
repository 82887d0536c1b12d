/* SPDX-License-Identifier: Apache-2.0 */
/* How a Reader receives, for the calls that Python has. */
#ifndef RC_EXTENSION_RECEIVE_H
#define RC_EXTENSION_RECEIVE_H

#include "python/extension/handles/reader.h"

/* The next object; enters the Reader and leaves it. NULL: raised. `taking`: by _take(), to which it is no error that
 * nothing is there. */
PyObject *rc_py_receive(struct rc_py_reader *self, int64_t timeout_ns, uint32_t *tag, bool taking);
/* The next frame, whole, for who has entered the Reader. 0, -errno, or RC_PY_RAISED. */
int rc_py_receive_frame(struct rc_py_reader *self, int64_t timeout_ns, struct ringcast_frame *out);
/* Decodes the frame that was kept: `warm` of struct ringcast_reader_options, whose context is the Reader. */
void rc_py_warm(void *context);
/* Keeps a copy of the frame for that, if a window asked and the frame allows it. `ran_code`: its decoding ran code of
 * the user. */
void rc_py_warming_keep(struct rc_py_reader *self, const struct ringcast_frame *frame, bool ran_code);

#endif
