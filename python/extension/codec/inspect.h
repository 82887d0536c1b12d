/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, items and hashes of a frame. */
#ifndef RC_EXTENSION_INSPECT_H
#define RC_EXTENSION_INSPECT_H

#include "python/extension/codec/decode.h"

struct rc_py_inspector {
  struct rc_py_state *state;
  const struct ringcast_frame *frame;
  const ringcast_reader *reader; /* `reader` and `receiver` as in struct rc_py_decode_options */
  struct rc_py_receiver *receiver;
  PyObject **classes;
  bool allow_pickle;
};

/* Each gives a new reference, or NULL: raised. `key` is any object, of which keys and hashes make
 * no use. */
typedef PyObject *(*rc_py_inspect)(const struct rc_py_inspector *looking, PyObject *key);
PyObject *rc_py_inspect_keys(const struct rc_py_inspector *looking, PyObject *key);
PyObject *rc_py_inspect_item(const struct rc_py_inspector *looking, PyObject *key);
PyObject *rc_py_inspect_contains(const struct rc_py_inspector *looking, PyObject *key); /* a bool */
PyObject *rc_py_inspect_hashes(const struct rc_py_inspector *looking, PyObject *key);

#endif
