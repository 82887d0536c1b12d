/* SPDX-License-Identifier: Apache-2.0 */
/* From a failed call to an exception. */
#ifndef RC_EXTENSION_ERRORS_H
#define RC_EXTENSION_ERRORS_H

#include "python/extension/state.h"

/* A new reference to module.name, or NULL. */
PyObject *rc_py_import(const char *module_name, const char *name);
int rc_py_errors_init(struct rc_py_state *state);
/* Raises what the failed call's `rc` stands for, with ringcast_last_error() as its text. Always NULL. */
PyObject *rc_py_raise(struct rc_py_state *state, int rc);
/* The same, of a call that wanted a frame of `bytes`: FrameTooLarge then says how much spill memory would do. */
PyObject *rc_py_raise_of_frame(struct rc_py_state *state, int rc, const struct ringcast_info *info, uint64_t bytes);
/* The same, of attaching to `handle`, whose UTF-8 is `text`. */
PyObject *rc_py_raise_of_attach(struct rc_py_state *state, int rc, PyObject *handle, const char *text);
/* Raises the ringcast.Error of that errno. Always NULL. */
PyObject *rc_py_raise_text(struct rc_py_state *state, int errnum, const char *format, ...);
/* Raises the ProtocolError of a frame that makes no sense. Always NULL. */
PyObject *rc_py_raise_damaged(struct rc_py_state *state, const char *what);
/* Turns a ValueError, TypeError, OverflowError or plain RuntimeError that a damaged frame led to into a ProtocolError,
 * with the original as its __cause__. */
void rc_py_protocol_from_current(struct rc_py_state *state, const char *what);
PyObject *rc_py_raise_exported(Py_ssize_t exports, const char *verb, const char *what);

#endif
