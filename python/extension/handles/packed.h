/* SPDX-License-Identifier: Apache-2.0 */
/* PackedFrame: a frame in private memory, made once and sent on several rings; pack(), unpack(). */
#ifndef RC_EXTENSION_PACKED_H
#define RC_EXTENSION_PACKED_H

#include "python/extension/extension.h"

struct rc_py_packed {
  PyObject_HEAD void *data;
  size_t bytes;
  struct rc_py_block *block; /* holds `data`; NULL: `memory` does */
  void *memory;
  bool pickled; /* the frame contains a pickle */
};
/* Raises PickleRefused for a `pickled` frame. Always NULL. */
PyObject *rc_py_packed_refuse(struct rc_py_state *state, const struct rc_py_packed *packed);
PyObject *rc_py_pack(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
/* _pack_of_cpu(obj, hash): as pack(), but a torch tensor on a CUDA device is refused as on any
 * other device. */
PyObject *rc_py_pack_of_cpu(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *rc_py_unpack(PyObject *module, PyObject *const *args, Py_ssize_t count,
                       PyObject *keywords);

extern PyType_Spec rc_py_packed_spec;

#endif
