/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: the base of a NumPy array over memory of ours, which a function gives back when the last
 * array has died. */
#include "python/extension/tensors.h"

struct memory {
  PyObject_HEAD struct rc_py_buffer buffer;
};

PyObject *rc_py_memory_new(struct rc_py_state *state, struct rc_py_buffer buffer) {
  struct memory *self = (struct memory *)state->memory_type->tp_alloc(state->memory_type, 0);
  if (self) self->buffer = buffer;
  else buffer.give(buffer.owner);
  return (PyObject *)self;
}

static void memory_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  const struct rc_py_buffer *buffer = &((struct memory *)object)->buffer;
  buffer->give(buffer->owner);
  type->tp_free(object);
  Py_DECREF(type);
}

static int memory_get_buffer(PyObject *object, Py_buffer *view, int flags) {
  const struct rc_py_buffer *buffer = &((struct memory *)object)->buffer;
  return PyBuffer_FillInfo(view, object, buffer->data, (Py_ssize_t)buffer->bytes,
                           buffer->is_read_only, flags);
}

static Py_ssize_t memory_length(PyObject *object) {
  return (Py_ssize_t)((struct memory *)object)->buffer.bytes;
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, (void *)"The memory of a received array, as long as the array lives."},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_get_buffer},
    {Py_sq_length, memory_length},
    {0, NULL},
};
PyType_Spec rc_py_memory_spec = {"ringcast._ringcast._Memory", sizeof(struct memory), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 memory_slots};
