/* SPDX-License-Identifier: Apache-2.0 */
/* Types of the standard library that travel by their state: which there are, where they are found (kinds.c), how the
 * state is written (kinds_write.c) and what is made of it (kinds_read.c). enum ringcast_standard has the states. */
#ifndef RC_EXTENSION_KINDS_H
#define RC_EXTENSION_KINDS_H

#include "python/extension/codec/encode.h"

#include "ringcast/object.h"

/* array.array is found as they are, but has tokens of its own: array.c. */
#define RC_PY_ARRAY (RINGCAST_STANDARD_DTYPE + 1)

/* ---- kinds.c ----------------------------------------------------------------------------------------------------- */

/* The number of an exact type, as the module that has it in sys.modules has it; 0: it is none of them; -1: raised. */
int rc_py_standard_of(struct rc_py_state *state, PyTypeObject *type);
/* The type of that number, imported if need be; borrowed. NULL: raised. */
PyTypeObject *rc_py_standard_type(struct rc_py_state *state, int number);

/* The builtin type that a defaultdict's factory of this name is; NULL: none of those that travel. */
PyTypeObject *rc_py_factory_of(PyObject *name);
/* Whether ZoneInfo may be asked for the key: letters, digits and "_-+/", in no other folder than that of the zones. */
bool rc_py_is_zone_key(PyObject *key);
/* Whether np.dtype may be asked for the text: a byte order, a letter, a size, a unit. */
bool rc_py_is_dtype_text(PyObject *text);

/* ---- kinds_write.c ----------------------------------------------------------------------------------------------- */

/* How deep tokens nest in the state of a value that is no container. */
#define RC_PY_STATE_DEPTH 4

/* LEAF: the value is more than its state, and nothing was written. */
enum rc_py_token_writer rc_py_token_write_standard(struct rc_py_encoding *encoding, int number, PyObject *value);

/* What a container is made of. */
struct rc_py_contents {
  PyObject *head;  /* the factory's name, maxlen; or None. NULL: the container has no head */
  PyObject *items; /* a dict, of any kind, or a list: what the container holds, in order */
};
/* 1, with new references in `out`; 0: the container is more than that; -1: raised. */
int rc_py_contents(int number, PyObject *container, struct rc_py_contents *out);

/* ---- kinds_read.c ------------------------------------------------------------------------------------------------ */

/* What is made of the state, which any frame may have sent. NULL: raised. */
PyObject *rc_py_standard_make(struct rc_py_state *state, int number, PyObject *plain);

#endif
