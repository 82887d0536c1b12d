/* SPDX-License-Identifier: Apache-2.0 */
/* From a stream of tokens to a Python value: what decode.c gives and gets. */
#ifndef RC_EXTENSION_GET_H
#define RC_EXTENSION_GET_H

#include "classes.h"

/* A stream in memory that nobody changes, and what its tokens refer to. */
struct rc_py_getting {
  struct rc_py_state *state;
  struct ringcast_object object;
  PyObject **parts; /* the values of the entries that are this stream's parts */
  uint32_t part_count, next_part;
  uint64_t due; /* values that the open containers still lack, at least: each is a byte of the stream or more */
  PyObject *leaves;  /* a list, or NULL */
  PyObject *classes; /* the cache: a dict */
  bool may_import;
  PyObject **texts; /* those with a number */
  size_t text_count, text_room;
  uint32_t class_count;
  struct rc_py_class *class[RINGCAST_MAX_CLASSES]; /* borrowed from the cache */
};

/* The value, or NULL: raised. */
PyObject *rc_py_get(struct rc_py_getting *getting);

/* A short str of ASCII that is likely to come again: the one that came before, or a new one. NULL, with nothing raised:
 * it is neither short nor ASCII, and is to be made otherwise. */
PyObject *rc_py_key(struct rc_py_state *state, const void *text, size_t bytes);

#endif
