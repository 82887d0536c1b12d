/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is seen of rings.
 *
 *   status.c   info, stats and peers as Python objects; rings() and find()
 *   tap.c      Tap: a look at a ring from outside
 */
#ifndef RC_EXTENSION_STATUS_H
#define RC_EXTENSION_STATUS_H

#include "python/extension/call.h"

/* "pages" and the like: the memory of the ring. */
PyObject *rc_py_memory(const struct ringcast_info *info);
/* An Info; `rc` of the library, if negative, is raised. */
PyObject *rc_py_info(struct rc_py_state *state, const struct ringcast_info *info, int rc);
/* The same, a Stats. */
PyObject *rc_py_stats(struct rc_py_state *state, const struct ringcast_stats *stats, int rc);
/* repr() of a handle; `info` NULL: of a Tap. */
PyObject *rc_py_handle_repr(const struct rc_py_handle *handle, const struct ringcast_info *info);

PyObject *rc_py_peer(struct rc_py_state *state, const struct ringcast_peer *peer);
/* Room for the peers of a ring; NULL: out of memory. */
struct ringcast_peer *rc_py_peers_new(uint32_t count);
/* A list of the peers. Frees `peers`, which may be NULL; `count` of the library, if negative, is
 * raised. */
PyObject *rc_py_peers(struct rc_py_state *state, struct ringcast_peer *peers, int count);

extern PyType_Spec rc_py_tap_spec;

/* The functions rings() and find(). */
PyObject *rc_py_rings(PyObject *module, PyObject *unused);
PyObject *rc_py_find(PyObject *module, PyObject *text);

#endif
