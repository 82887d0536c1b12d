/* SPDX-License-Identifier: Apache-2.0 */
/* asyncio's side of Reader and Writer. */
#ifndef RC_EXTENSION_ASYNCIO_H
#define RC_EXTENSION_ASYNCIO_H

#include "python/extension/state.h"

/* After so many frames in a row that a task had not to wait for, others get their turn: a turn of a loop costs as much
 * as receiving a few. Large frames count for more, as it is time that matters. */
#define RC_PY_MOST_SPENT 64
/* In place of a result of _take() and _offer(): state->turn if the turn is another's, NULL if not; no exception. */
PyObject *rc_py_pass_turn(struct rc_py_state *state, unsigned *spent);
int rc_py_loop_init(struct rc_py_state *state, PyObject *module);
/* The descriptor is about to be closed: takes it out of its loop. Keeps an exception that is set. */
void rc_py_watch_close(PyObject **watch, pid_t pid);
/* After each call that may have made the descriptor wait: -ENOBUFS says that it is gone, and who waits asks anew. */
void rc_py_watch_after(PyObject *watch, pid_t pid, int rc);

PyObject *rc_py_reader_arecv(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
PyObject *rc_py_reader_arecv_tagged(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
PyObject *rc_py_reader_anext(PyObject *self);
PyObject *rc_py_writer_asend(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
PyObject *rc_py_writer_room_fileno(PyObject *self, PyObject *unused);
/* _offer(obj, tag, hash): send(obj, 0, tag=tag, hash=hash), but for state->nothing if there is no room. */
PyObject *rc_py_writer_offer(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
