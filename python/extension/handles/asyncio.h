/* SPDX-License-Identifier: Apache-2.0 */
/* asyncio's side of Reader and Writer. */
#ifndef RC_EXTENSION_ASYNCIO_H
#define RC_EXTENSION_ASYNCIO_H

#include "python/extension/state.h"

/* After RC_PY_MOST_SPENT frames in a row without a wait, the task lets other tasks run: one turn of the event loop
 * costs as much as receiving a few frames. Large frames count for more, because time is the limit. */
#define RC_PY_MOST_SPENT 64
/* In place of a result of _take() and _offer(): state->turn if the turn is another's, NULL if not; no exception. */
PyObject *rc_py_pass_turn(struct rc_py_state *state, unsigned *spent);
int rc_py_loop_init(struct rc_py_state *state, PyObject *module);
/* Call before the descriptor is closed: takes the descriptor out of its loop. Preserves the current exception. */
void rc_py_watch_close(PyObject **watch, pid_t pid);
/* Call after each call that may have made the descriptor wait: -ENOBUFS means that the descriptor is gone, and waiting
 * tasks must ask anew. */
void rc_py_watch_after(PyObject *watch, pid_t pid, int rc);

PyObject *rc_py_writer_room_fileno(PyObject *self, PyObject *unused);
/* _offer(obj, tag, hash): send(obj, 0, tag=tag, hash=hash), but for state->nothing if there is no room. */
PyObject *rc_py_writer_offer(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
