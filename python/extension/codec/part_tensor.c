/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor or array, described as a part of a frame. */
#include "python/extension/codec/device.h"
#include "python/extension/codec/encode.h"

/* A BufferError of an array's own __dlpack__ names the reason; this adds the array's place in the
 * value. */
static int place_buffer_error(struct rc_py_step *step) {
  PyObject *type, *error, *traceback;
  if (!PyErr_ExceptionMatches(PyExc_BufferError)) return -1;
  PyErr_Fetch(&type, &error, &traceback);
  PyObject *place = rc_py_step_path(step);
  if (place) PyErr_Format(PyExc_BufferError, "%U: %S", place, error ? error : type);
  Py_XDECREF(place);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
  return -1;
}

/* A tensor without gaps keeps its order of memory. */
static void keep_order(struct rc_py_source *source) {
  struct ringcast_tensor *tensor = &source->tensor;
  if (source->is_on_device || rc_py_is_c_order(tensor->ndim, tensor->shape, tensor->strides))
    return;
  if (rc_py_is_dense(tensor)) tensor->flags |= RINGCAST_TENSOR_DENSE;
}

bool rc_py_source_finish(struct rc_py_encoding *encoding, struct rc_py_source *out,
                         struct rc_py_step *step, uint64_t *bytes) {
  if (ringcast_tensor_bytes(&out->tensor, bytes) == 0) {
    keep_order(out);
    return true;
  }
  rc_py_source_clear(out);
  PyObject *place = rc_py_step_path(step);
  if (place)
    rc_py_raise_text(encoding->state, EMSGSIZE, "%U has more bytes than can be counted", place);
  Py_XDECREF(place);
  return false;
}

/* A placeholder is described by an array or tensor of its shape, which has a single element in
 * memory. */
static int describe_empty(struct rc_py_state *state, PyObject *placeholder, struct rc_py_step *step,
                          struct rc_py_source *out) {
  PyObject *like = PyObject_GetAttr(placeholder, state->names.like);
  int described = like ? rc_py_torch_describe(state, like, true, rc_py_step_path, step, out) : -1;
  if (described == 0) described = rc_py_numpy_describe(state, like, out);
  Py_XDECREF(like);
  out->is_empty = described > 0;
  return described;
}

int rc_py_part_tensor(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step,
                      struct rc_py_source *out, uint64_t *bytes) {
  struct rc_py_state *state = encoding->state;
  if (encoding->takes_empty && (PyObject *)Py_TYPE(value) == state->empty_type) {
    int is_described = describe_empty(state, value, step, out);
    return is_described <= 0                                 ? is_described
           : rc_py_source_finish(encoding, out, step, bytes) ? 1
                                                             : -1;
  }
  bool takes_cuda = encoding->sends_from != RC_PY_FROM_NONE;
  int described = rc_py_torch_describe(state, value, takes_cuda, rc_py_step_path, step, out);
  if (described == 0) described = rc_py_numpy_describe(state, value, out);
  if (described == 0 && takes_cuda) {
    described = rc_py_cuda_describe(state, value, out);
    if (described < 0) return place_buffer_error(step);
  }
  if (described > 0 && out->is_on_device) described = rc_py_device_note(encoding, value, step, out);
  if (described <= 0) return described;
  return rc_py_source_finish(encoding, out, step, bytes) ? 1 : -1;
}
