/* SPDX-License-Identifier: Apache-2.0 */
/* The types of the standard library that travel by their state: list and look-up (kinds.c), writing
 * a state (kinds_write.c), and making a value from a state (kinds_read.c). For the states see enum
 * ringcast_standard. */
#ifndef RC_EXTENSION_KINDS_H
#define RC_EXTENSION_KINDS_H

#include "python/extension/codec/tokens.h"

/* array.array is looked up like the kinds, but has tokens of its own: arrays.c. */
#define RC_PY_ARRAY (RINGCAST_STANDARD_DTYPE + 1)

/* ---- kinds.c --------------------------------------------------------------------------------- */

/* The number of an exact type, if sys.modules has the type under the expected name; 0: not a known
 * type; -1: raised. */
int rc_py_standard_of(struct rc_py_state *state, PyTypeObject *type);
/* The type with the number, imported if need be; borrowed. NULL: raised. */
PyTypeObject *rc_py_standard_type(struct rc_py_state *state, int number);

/* The builtin type with the name, as a defaultdict's factory; NULL: none that travels. */
PyTypeObject *rc_py_factory_of(PyObject *name);
/* Whether ZoneInfo may be called with the key: letters, digits and "_-+/", in no folder outside the
 * zones. */
bool rc_py_is_zone_key(PyObject *key);
/* Whether np.dtype may be asked for the text: a byte order, a letter, a size, a unit. */
bool rc_py_is_dtype_text(PyObject *text);

/* ---- kinds_write.c --------------------------------------------------------------------------- */

/* How deep tokens nest in the state of a value other than a container. */
#define RC_PY_STATE_DEPTH 4

/* LEAF: the value has more than its state, and nothing was written. */
enum rc_py_put rc_py_put_standard(struct rc_py_encoding *encoding, int number, PyObject *value);

/* The parts of a container. */
struct rc_py_contents {
  PyObject *head;  /* the factory's name, maxlen; or None. NULL: the container has no head */
  PyObject *items; /* a dict of any kind, or a list: the container's items, in order */
};
/* 1, with new references in `out`; 0: the container has more than its parts; -1: raised. */
int rc_py_contents(int number, PyObject *container, struct rc_py_contents *out);

/* ---- kinds_read.c ---------------------------------------------------------------------------- */

/* Makes the value from its state, which comes from an untrusted frame. NULL: raised. */
PyObject *rc_py_standard_make(struct rc_py_state *state, int number, PyObject *plain,
                              PyObject **dtypes);

#endif
