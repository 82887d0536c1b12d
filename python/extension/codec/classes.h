/* SPDX-License-Identifier: Apache-2.0 */
/* Classes whose instances travel by name and fields: what encode.c's and decode.c's tokens need to know of one. */
#ifndef RC_EXTENSION_CLASSES_H
#define RC_EXTENSION_CLASSES_H

#include "python/extension/errors.h"

#include "ringcast/object.h"

struct rc_py_class {
  PyTypeObject *type;
  uint8_t kind;                /* enum ringcast_class; RC_PY_CLASS_SCALAR */
  bool runs_code;              /* of the user, perhaps, when an instance is made, found or dropped */
  struct ringcast_dtype dtype; /* of a SCALAR; of a STANDARD, `code` is its enum ringcast_standard */
  PyObject *names;             /* of the fields: a tuple of interned str */
  PyObject *text;              /* bytes, as a frame has it */
  Py_ssize_t *offsets;         /* of the fields in an instance; NULL: they are in its __dict__ */
  /* Of the stream that is being written. */
  uint64_t serial;
  uint32_t number;
};

/* A NumPy scalar's type. */
#define RC_PY_CLASS_SCALAR 0
/* A type of kinds.c. */
#define RC_PY_CLASS_STANDARD 0xff

/* The cache at `cache` (a dict, made if there is none), for one frame: what is found in it stays as long as the new
 * reference that this gives. NULL: raised. */
PyObject *rc_py_class_cache(PyObject **cache);

/* How instances of the type travel; borrowed from the cache. NULL without an exception: in a pickle. */
struct rc_py_class *rc_py_class_of(struct rc_py_state *state, PyObject *cache, PyTypeObject *type);

/* The class that a frame tells of, from `cache` (a dict) or found anew; borrowed from the cache. NULL: raised. */
struct rc_py_class *rc_py_class_find(struct rc_py_state *state, PyObject *cache, uint8_t kind, const void *text,
                                     size_t bytes, bool may_import);

/* Finds all classes of a stream, without importing any. What is damaged is left to the decoder. False: raised. */
bool rc_py_classes_check(struct rc_py_state *state, PyObject *cache, const void *stream, size_t bytes);

/* An instance with these fields, whose references it takes over, also when it fails. NULL: raised. */
PyObject *rc_py_class_make(struct rc_py_state *state, const struct rc_py_class *class, PyObject **fields);

#endif
