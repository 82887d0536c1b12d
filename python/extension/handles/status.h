/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is seen of rings.
 *
 *   status.c   info, stats and peers as Python objects; rings() and find()
 *   tap.c      Tap: a look at a ring from outside
 */
#ifndef RC_EXTENSION_STATUS_H
#define RC_EXTENSION_STATUS_H

#include "python/extension/state.h"

/* What _status() of a Writer, Reader or Tap tells. */
struct rc_py_status {
  struct ringcast_info info;
  struct ringcast_stats stats;
  uint64_t counts[2]; /* of a Reader: lag; of a Tap: lost bytes and gaps */
};
#define RC_PY_STATUS \
  { .info.size = sizeof(struct ringcast_info), .stats.size = sizeof(struct ringcast_stats) }
/* "pages" and the like, of the ring. */
const char *rc_py_memory_name(const struct ringcast_info *info);
/* (Info, Stats, count, count); `rc` of the library, if negative, is raised. */
PyObject *rc_py_status(struct rc_py_state *state, const struct rc_py_status *status, int rc);

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
