/* SPDX-License-Identifier: Apache-2.0 */
/* Classes with instances that travel by name and state: the description that encoding and decoding
 * need. */
#ifndef RC_EXTENSION_CLASSES_H
#define RC_EXTENSION_CLASSES_H

#include "python/extension/errors.h"

#include "ringcast/object.h"

struct rc_py_class {
  PyTypeObject *type;
  uint8_t kind;   /* enum ringcast_class; RC_PY_CLASS_SCALAR */
  bool runs_code; /* of the user, perhaps, when an instance is made, found or dropped */
  bool has_post_init;
  uint8_t looked;              /* of an INSTANCE: how many shapes were looked at */
  struct ringcast_dtype dtype; /* of a SCALAR; of a STANDARD, `code`: enum ringcast_standard */
  PyObject *names;             /* of the values: a tuple of str, interned by rc_py_intern */
  PyObject *text;              /* bytes, as in a frame */
  Py_ssize_t slots; /* how many of the names are slots: in a shape for sending, the first names */
  Py_ssize_t *offsets;        /* of the slots in an instance; -1: the name is one of the __dict__ */
  struct rc_py_class *shapes; /* of an INSTANCE, to be sent: a list of the most frequent states */
  /* Of the current stream. */
  uint64_t serial;
  uint32_t number;
};

/* A NumPy scalar's type. */
#define RC_PY_CLASS_SCALAR 0
/* A type of kinds.c. */
#define RC_PY_CLASS_STANDARD 0xff

/* The cache at `cache` (a dict, made if missing), for one frame: the new reference keeps the
 * cache's entries alive. NULL: raised. */
PyObject *rc_py_class_cache(PyObject **cache);

/* How instances of the type travel; borrowed from the cache. NULL without an exception: in a
 * pickle. */
struct rc_py_class *rc_py_class_of(struct rc_py_state *state, PyObject *cache, PyTypeObject *type);

/* The class in a frame's token, from `cache` (a dict) or found anew; borrowed from the cache. NULL:
 * raised. */
struct rc_py_class *rc_py_class_find(struct rc_py_state *state, PyObject *cache, uint8_t kind,
                                     const void *text, size_t bytes, bool may_import);

/* Finds all classes of a stream, without imports. Damage is the decoder's. False: raised. */
bool rc_py_classes_check(struct rc_py_state *state, PyObject *cache, const void *stream,
                         size_t bytes);

enum { RC_PY_FIELDS_AT_HAND = 32 };

/* The values to send for an instance. */
struct rc_py_fields {
  PyObject **values, *at_hand[RC_PY_FIELDS_AT_HAND];
};

/* Takes new references to the values of an instance, and gives the class to send: the instance's
 * own, or a shape. A value is NULL for an unset slot; the last value of an INSTANCE is the
 * __dict__, or None. NULL: raised, or, without an exception, the instance is left to pickle.
 * rc_py_fields_free frees the memory. */
struct rc_py_class *rc_py_class_take(struct rc_py_state *state, struct rc_py_class *class,
                                     PyObject *instance, struct rc_py_fields *fields);

/* Makes room for so many. False: raised. */
bool rc_py_fields_alloc(struct rc_py_fields *fields, Py_ssize_t count);

static inline void rc_py_fields_free(struct rc_py_fields *fields) {
  if (fields->values != fields->at_hand) PyMem_Free(fields->values);
}

/* An instance with the fields; consumes their references, even on failure. The fields of an
 * INSTANCE: the slots, NULL for an unset slot, and then the dict, or None. NULL: raised. */
PyObject *rc_py_class_make(struct rc_py_state *state, const struct rc_py_class *class,
                           PyObject **fields);

/* How many values an instance is sent as. */
static inline Py_ssize_t rc_py_class_values(const struct rc_py_class *class) {
  return PyTuple_GET_SIZE(class->names) + (class->kind == RINGCAST_CLASS_INSTANCE);
}

/* The interned str that equals the exact str `name`, which a frame may have brought: a new
 * reference. Python 3.12 keeps interned strs for ever, so there `name` itself once frames have
 * added RC_PY_INTERNED_MOST bytes. */
enum { RC_PY_INTERNED_MOST = 1 << 20 };
PyObject *rc_py_intern(struct rc_py_state *state, PyObject *name);

/* The int for a composite member of a Flag; NULL: raised, or, without an exception, no composite
 * member. And the class's member for the int. */
PyObject *rc_py_class_composite(struct rc_py_state *state, PyObject *member);
PyObject *rc_py_class_member(struct rc_py_state *state, const struct rc_py_class *class,
                             PyObject *value);

#endif
