/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of a frame, and reading some of them. */
#ifndef RC_EXTENSION_INSPECT_H
#define RC_EXTENSION_INSPECT_H

#include "python/extension/codec/decode.h"

struct rc_py_inspector {
  struct rc_py_state *state;
  const struct ringcast_frame *frame;
  const ringcast_reader *reader; /* `reader` and `holder` as in struct rc_py_decode_options */
  struct rc_py_holder *holder;
  PyObject **classes;
  bool allow_pickle;
};

/* What ringcast._looking needs of a frame. Each gives a new reference, or NULL: raised. */
typedef PyObject *(*rc_py_inspect)(const struct rc_py_inspector *looking, PyObject *argument);
/* (whether the root is a dict, a list of the entries); None for a frame of bytes; False for one that can't be opened.
 * An entry is (key or None, kind, hash or None, first part, number of parts). Makes no use of the argument. */
PyObject *rc_py_inspect_entries(const struct rc_py_inspector *looking, PyObject *argument);
/* Of the nested value in the entry of the given number: (struct ringcast_object_needs' before + items, leaves, parts,
 * values, a list of the tokens that find hashes). A token is (tag, count); a value's after a MARK has the tag 0. */
PyObject *rc_py_inspect_tokens(const struct rc_py_inspector *looking, PyObject *number);
/* The object, of which only the entries of the runs are read, at most 3; () is all. A run is (first, end). */
PyObject *rc_py_inspect_read(const struct rc_py_inspector *looking, PyObject *runs);

#endif
