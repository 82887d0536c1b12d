/* SPDX-License-Identifier: Apache-2.0 */
/* info, stats and peers as Python objects. */
#ifndef RC_EXTENSION_STATUS_H
#define RC_EXTENSION_STATUS_H

#include "python/extension/state.h"

/* "unknown" for a number of a later release. */
const char *rc_py_memory_name(uint32_t memory);

PyObject *rc_py_stats(struct rc_py_state *state, const struct ringcast_stats *stats);
PyObject *rc_py_info(struct rc_py_state *state, const struct ringcast_info *info);
PyObject *rc_py_peer(struct rc_py_state *state, const struct ringcast_peer *peer);
/* Room for the peers of a ring, to be freed by PyMem_Free; NULL: out of memory. */
struct ringcast_peer *rc_py_new_peers(uint32_t count);
PyObject *rc_py_peers(struct rc_py_state *state, const struct ringcast_peer *peers, int count);

#endif
