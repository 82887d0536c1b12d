/* SPDX-License-Identifier: Apache-2.0 */
/* The value of a frame's entry: scalars and text are made at once; for all else memory is
 * allocated, and the copy noted. */
#include "python/extension/codec/array.h"
#include "python/extension/codec/decode.h"
#include "python/extension/codec/device.h"

/* Decodes a copy: Python's decoder reads the input more than once, and the ring could change in
 * between. */
PyObject *rc_py_make_text(struct rc_py_decoding *decoding, const void *data, uint64_t bytes) {
  char small[256];
  if (!rc_py_take_bytes(decoding, bytes)) return NULL;
  char *copy = bytes <= sizeof small ? small : PyMem_Malloc(bytes);
  if (!copy) return PyErr_NoMemory();
  memcpy(copy, data, bytes);
  PyObject *text = PyUnicode_DecodeUTF8(copy, (Py_ssize_t)bytes, NULL);
  if (copy != small) PyMem_Free(copy);
  if (!text) rc_py_protocol_from_current(decoding->state, "its text is no UTF-8");
  return text;
}

PyObject *rc_py_make_bytes(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (!rc_py_copy_add(decoding, item->data, item->bytes)) return NULL;
  PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)item->bytes);
  if (bytes) rc_py_copy_to(decoding, PyBytes_AS_STRING(bytes));
  return bytes;
}

/* For the buffer of a pickled array: the pickle builds an array over the memory. NULL, with nothing
 * raised: too small, or no such memory. */
static PyObject *make_memory(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  void *out;
  if (!(item->flags & RINGCAST_ITEM_NUMPY)) return NULL;
  PyObject *memory = rc_py_memory_take(decoding->state, item->bytes, &out);
  if (!memory) return NULL;
  if (!rc_py_copy_add(decoding, item->data, item->bytes)) {
    Py_DECREF(memory);
    return NULL;
  }
  rc_py_copy_to(decoding, out);
  return memory;
}

static PyObject *make_bytearray(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (!rc_py_copy_add(decoding, item->data, item->bytes)) return NULL;
  PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)item->bytes);
  if (bytes) rc_py_copy_to(decoding, PyByteArray_AS_STRING(bytes));
  return bytes;
}

/* An array's buffer in place. NULL, with nothing raised: the caller must copy. */
static PyObject *view_buffer(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (!decoding->hold || !(item->flags & RINGCAST_ITEM_NUMPY) ||
      !rc_py_take_bytes(decoding, item->bytes))
    return NULL;
  PyObject *buffer = rc_py_buffer_over(decoding->state, item->data, item->bytes, decoding->hold);
  if (!buffer) decoding->taken -= item->bytes;
  return buffer;
}

PyObject *rc_py_make_buffer(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  bool is_large = item->flags & RINGCAST_ITEM_NUMPY && item->bytes >= RC_PY_RETAIN_LEAST;
  if (is_large) decoding->arrays += item->bytes;
  PyObject *viewed = view_buffer(decoding, item);
  if (viewed || PyErr_Occurred()) return viewed;
  if (item->flags & RINGCAST_ITEM_READONLY) return rc_py_make_bytes(decoding, item);
  PyObject *memory = make_memory(decoding, item);
  return memory || PyErr_Occurred() ? memory : make_bytearray(decoding, item);
}

/* array.array, or bytes. */
static PyObject *make_array_or_bytes(struct rc_py_decoding *decoding,
                                     const struct ringcast_item *item) {
  enum { AT_ONCE_MOST = 1 << 20 };
  uint8_t typecode = RINGCAST_ITEM_TYPECODE(item->flags);
  void *out;
  if (typecode == 0 || item->bytes == 0) return rc_py_make_bytes(decoding, item);
  if (item->bytes < AT_ONCE_MOST) {
    if (!rc_py_take_bytes(decoding, item->bytes)) return NULL;
    return rc_py_array_copy(decoding->state, typecode, item->data, item->bytes);
  }
  if (!rc_py_copy_add(decoding, item->data, item->bytes)) return NULL;
  PyObject *array = rc_py_array_new(decoding->state, typecode, item->bytes, &out);
  if (array) rc_py_copy_to(decoding, out);
  return array;
}

/* An array in place. As rc_py_array_over. */
static PyObject *view_array(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                            uint64_t bytes) {
  if (!rc_py_take_bytes(decoding, bytes)) return NULL;
  PyObject *array =
      rc_py_array_over(decoding->state, item, bytes, decoding->hold, rc_py_goes_to_torch(item));
  if (!array) decoding->taken -= bytes;
  return array;
}

/* A tensor with gaps, which no writer of ringcast's makes: packed in C order at once. */
static PyObject *make_packed(struct rc_py_decoding *decoding, const struct ringcast_tensor *tensor,
                             struct ringcast_item *item, uint64_t bytes) {
  int64_t stride = 1;
  void *out = NULL;
  if (!rc_py_take_bytes(decoding, bytes)) return NULL;
  for (int32_t i = item->ndim; i-- > 0; stride *= item->shape[i]) item->strides[i] = stride;
  PyObject *array = rc_py_make_array(decoding, item, bytes, &out);
  if (!array || ringcast_tensor_pack(tensor, out) == 0) return array;
  Py_DECREF(array);
  rc_py_damaged(decoding, "a tensor's strides make no sense");
  return NULL;
}

static PyObject *make_tensor(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  const struct ringcast_tensor tensor = rc_py_tensor_of(item);
  uint64_t bytes;
  bool is_dense = rc_py_is_dense(&tensor);
  /* With gaps, a tensor may need more bytes than its entry has; take_bytes limits the total. */
  if (ringcast_tensor_bytes(&tensor, &bytes) < 0 || (is_dense && bytes != item->bytes)) {
    rc_py_damaged(decoding, "a tensor's shape and size disagree");
    return NULL;
  }
  if (rc_py_device_wants(decoding, item)) {
    PyObject *made = rc_py_device_make(decoding, item, bytes);
    decoding->device_failed = !made && PyErr_Occurred();
    if (made || decoding->device_failed) return made;
  }
  if (!is_dense) {
    struct ringcast_item packed = *item;
    return make_packed(decoding, &tensor, &packed, bytes);
  }
  if (bytes >= RC_PY_RETAIN_LEAST) decoding->arrays += bytes;
  if (decoding->hold) {
    PyObject *viewed = view_array(decoding, item, bytes);
    if (viewed || PyErr_Occurred()) return viewed;
  }
  if (!rc_py_copy_add(decoding, item->data, bytes)) return NULL;
  void *out = NULL;
  PyObject *array = rc_py_make_array(decoding, item, bytes, &out);
  if (array) rc_py_copy_to(decoding, out);
  return array;
}

PyObject *rc_py_make_value(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  switch (item->kind) {
  case RINGCAST_ITEM_NONE:
  case RINGCAST_ITEM_LEAF:
  case RINGCAST_ITEM_OBJECT: return rc_py_ref(Py_None);
  case RINGCAST_ITEM_BOOL: return PyBool_FromLong(item->scalar.i != 0);
  case RINGCAST_ITEM_INT: return PyLong_FromLongLong(item->scalar.i);
  case RINGCAST_ITEM_FLOAT: return PyFloat_FromDouble(item->scalar.f);
  case RINGCAST_ITEM_STR: return rc_py_make_text(decoding, item->data, item->bytes);
  case RINGCAST_ITEM_BYTES: return make_array_or_bytes(decoding, item);
  case RINGCAST_ITEM_TENSOR: return make_tensor(decoding, item);
  default:
    rc_py_raise_text(decoding->state, EPROTO,
                     "the frame is of another build: it holds an item of kind %d", item->kind);
    return NULL;
  }
}
