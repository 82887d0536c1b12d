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
  uint8_t looked;              /* of an INSTANCE: how many shapes were looked at */
  struct ringcast_dtype dtype; /* of a SCALAR; of a STANDARD, `code` is its enum ringcast_standard */
  PyObject *names;             /* of the values: a tuple of interned str */
  PyObject *text;              /* bytes, as a frame has it */
  Py_ssize_t slots;            /* how many of the names are slots: in a shape that is to be sent, the first ones */
  Py_ssize_t *offsets;         /* of the slots in an instance; -1: the name is an attribute of the __dict__ */
  struct rc_py_class *shapes;  /* of an INSTANCE, to be sent: the states that most instances have; the next of them */
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

enum { RC_PY_FIELDS_AT_HAND = 32 };

/* The values that an instance is sent as. */
struct rc_py_fields {
  PyObject **values, *at_hand[RC_PY_FIELDS_AT_HAND];
};

/* Takes new references to the values of an instance, and gives the class to send it as: its own, or a shape. A value is
 * NULL for a slot that is not set; the last one of an INSTANCE is its __dict__, or None. NULL: raised, or, without an
 * exception, in a pickle. The memory is to be freed by rc_py_fields_free. */
struct rc_py_class *rc_py_class_take(struct rc_py_state *state, struct rc_py_class *class, PyObject *instance,
                                     struct rc_py_fields *fields);

/* Makes room for so many. False: raised. */
bool rc_py_fields_alloc(struct rc_py_fields *fields, Py_ssize_t count);

static inline void rc_py_fields_free(struct rc_py_fields *fields) {
  if (fields->values != fields->at_hand) PyMem_Free(fields->values);
}

/* An instance with these fields, whose references it takes over, also when it fails. Of an INSTANCE: the slots, NULL
 * for one that is not set, and then its dict, or None. NULL: raised. */
PyObject *rc_py_class_make(struct rc_py_state *state, const struct rc_py_class *class, PyObject **fields);

/* How many values an instance is sent as. */
static inline Py_ssize_t rc_py_class_values(const struct rc_py_class *class) {
  return PyTuple_GET_SIZE(class->names) + (class->kind == RINGCAST_CLASS_INSTANCE);
}

/* The int that stands for a member of a Flag that is made of others; NULL: raised, or, without an exception, that there
 * is none. And the member of the class for it. */
PyObject *rc_py_class_composite(struct rc_py_state *state, PyObject *member);
PyObject *rc_py_class_member(struct rc_py_state *state, const struct rc_py_class *class, PyObject *value);

#endif
