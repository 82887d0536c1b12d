/* SPDX-License-Identifier: Apache-2.0 */
/* Types of the standard library that travel by their state. */
#ifndef RC_EXTENSION_KINDS_H
#define RC_EXTENSION_KINDS_H

#include "python/extension/state.h"

enum rc_py_standard {
  RC_PY_ARRAY = 1, /* array.array: array.c */
};

/* The number of an exact type, as the module that has it in sys.modules has it; 0: it is none of them; -1: raised. */
int rc_py_standard_of(struct rc_py_state *state, PyTypeObject *type);
/* The type of that number, imported if need be; borrowed. NULL: raised. */
PyTypeObject *rc_py_standard_type(struct rc_py_state *state, enum rc_py_standard number);

#endif
