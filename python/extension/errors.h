/* SPDX-License-Identifier: Apache-2.0 */
/* From a failed call to an exception. */
#ifndef RC_EXTENSION_ERRORS_H
#define RC_EXTENSION_ERRORS_H

#include "python/extension/state.h"

/* A new reference to module.name, or NULL. */
PyObject *rc_py_import(const char *module_name, const char *name);
/* The same, once: kept at `kept`. False: raised. */
bool rc_py_import_once(PyObject **kept, const char *module_name, const char *name);
/* After the inspection of a value, which is then left to pickle: clears the exception, but keeps
 * MemoryError, Ctrl-C and the like. Whether it was cleared. */
bool rc_py_clear_passing(void);
int rc_py_errors_init(struct rc_py_state *state);
/* Raises the exception for `rc`, the result of the failed call, with the text of
 * ringcast_last_error(). Always NULL. */
PyObject *rc_py_raise(struct rc_py_state *state, int rc);
/* rc_py_raise for a call that needed a frame of `bytes`: FrameTooLarge then names the spill memory
 * that is enough. */
PyObject *rc_py_raise_of_frame(struct rc_py_state *state, int rc, const struct ringcast_info *info,
                               uint64_t bytes);
/* rc_py_raise for attaching to `handle`; `text` is the handle's UTF-8. */
PyObject *rc_py_raise_of_attach(struct rc_py_state *state, int rc, PyObject *handle,
                                const char *text);
/* A str of foreign text, fit to be shown (ringcast_printable); the ends of lines stay if
 * `has_lines`. NULL: raised. */
PyObject *rc_py_printable(PyObject *text, bool has_lines);
/* Raises the ringcast.Error for `errnum`, with a printable text. Always NULL. */
PyObject *rc_py_raise_text(struct rc_py_state *state, int errnum, const char *format, ...);
/* The same, of a text that may have several lines. Always NULL. */
PyObject *rc_py_raise_lines(struct rc_py_state *state, int errnum, PyObject *text);
/* Raises ProtocolError for a damaged frame. Always NULL. */
PyObject *rc_py_raise_damaged(struct rc_py_state *state, const char *what);
/* Whether the current exception is a library's: raised in C, or by Python code that is all the
 * standard library's, NumPy's, torch's or this package's. False: code of the user's has raised, or
 * a signal's handler. */
bool rc_py_is_of_libraries(void);
/* If a damaged frame led to a library's ValueError, TypeError, OverflowError or plain
 * RuntimeError, replaces the exception by a ProtocolError with the original as its __cause__. What
 * the user's code raises stays as it is. */
void rc_py_protocol_from_current(struct rc_py_state *state, const char *what);
/* For an iteration that raised: only the end of the ring ends it, with no exception set. A
 * StopIteration of a value's own code becomes the __cause__ of a RuntimeError, as in a generator.
 */
void rc_py_end_iteration(struct rc_py_state *state, bool has_ended);
PyObject *rc_py_raise_exported(Py_ssize_t exports, const char *verb, const char *what);

#endif
