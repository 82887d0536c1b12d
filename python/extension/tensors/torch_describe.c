/* SPDX-License-Identifier: Apache-2.0 */
/* torch tensors, to send: the description of a tensor's memory, by DLPack's exchange API
 * (torch.c). */
#include "python/extension/tensors/device.h"

/* An attribute's truth: 1, 0, or -1 (raised). */
static int attribute_is_true(PyObject *object, PyObject *name) {
  return rc_py_is_yes(PyObject_GetAttr(object, name));
}

static int method_is_true(PyObject *object, PyObject *name) {
  return rc_py_is_yes(PyObject_CallMethodNoArgs(object, name));
}

static int raise_device(struct rc_py_state *state, PyObject *tensor, rc_py_where where,
                        void *context) {
  PyObject *device = NULL, *place = NULL, *error = NULL;
  PyObject *elsewhere = rc_py_import("ringcast._pickling", "elsewhere");
  if (elsewhere) device = PyObject_GetAttr(tensor, state->names.device);
  if (device) place = where(context);
  if (place) error = PyObject_CallFunctionObjArgs(elsewhere, place, device, NULL);
  if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_XDECREF(elsewhere);
  Py_XDECREF(device);
  Py_XDECREF(place);
  Py_XDECREF(error);
  return -1;
}

/* The index in the table; -1: none; -2: raised. */
static int dtype_index(struct rc_py_state *state, PyObject *tensor) {
  PyObject *dtype = PyObject_GetAttr(tensor, state->names.dtype);
  if (!dtype) return -2;
  PyObject *index = PyDict_GetItemWithError(state->torch.dtype_to_index, dtype);
  Py_DECREF(dtype);
  if (!index) return PyErr_Occurred() ? -2 : -1;
  return (int)PyLong_AsLong(index);
}

/* As dtype_index; -1 also for a tensor that is not sent as a tensor: sparse, nested, quantized,
 * packed bits. */
static int dense_dtype(struct rc_py_state *state, PyObject *tensor) {
  PyObject *layout = PyObject_GetAttr(tensor, state->names.layout);
  if (!layout) return -2;
  Py_DECREF(layout);
  if (layout != state->torch.strided) return -1;
  int nested = attribute_is_true(tensor, state->names.is_nested);
  if (nested < 0) return -2;
  if (nested > 0) return -1;
  return dtype_index(state, tensor);
}

/* Whether the memory holds the negative or the conjugate of the values. 1, 0, -1 (raised). */
static int is_lazy(struct rc_py_state *state, PyObject *tensor, bool is_complex) {
  int negated = method_is_true(tensor, state->names.is_neg);
  if (negated != 0 || !is_complex) return negated;
  return method_is_true(tensor, state->names.is_conj);
}

/* Raises torch's complaint about making a tensor plain. Always NULL. */
static PyObject *raise_not_plain(rc_py_where where, void *context) {
  PyObject *type, *error, *traceback;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
  PyErr_Fetch(&type, &error, &traceback);
  PyObject *place = where(context);
  if (place) {
    PyErr_Format(PyExc_RuntimeError,
                 "%U has to be resolved or viewed as bytes to be sent, and torch can't do that "
                 "here: %S",
                 place, error ? error : type);
  }
  Py_XDECREF(place);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
  return NULL;
}

/* A tensor that the exchange API can describe, with the values in memory: carries out a lazy
 * negation or conjugation, and views bits8 and the like as ints. Returns the tensor itself if plain
 * already. */
static PyObject *make_plain(struct rc_py_state *state, PyObject *tensor, int index,
                            bool is_on_device, rc_py_where where, void *context) {
  const struct ringcast_dtype dtype = rc_py_dtypes[index].dtype;
  PyObject *plain;
  if (dtype.code == RC_PY_OPAQUE_CODE) {
    const struct ringcast_dtype as = {.bits = (uint8_t)(dtype.bits * dtype.lanes), .lanes = 1};
    plain = PyObject_CallMethodOneArg(tensor, state->names.view,
                                      state->torch.dtypes[rc_py_dtype_find(as)]);
  } else {
    int lazy = is_lazy(state, tensor, dtype.code == 5);
    if (lazy < 0) return NULL;
    if (lazy == 0) return Py_NewRef(tensor);
    if (is_on_device && !rc_py_cuda_before_copy(state, tensor)) return NULL;
    PyObject *half = PyObject_CallMethodNoArgs(tensor, state->names.resolve_conj);
    if (!half) return raise_not_plain(where, context);
    plain = PyObject_CallMethodNoArgs(half, state->names.resolve_neg);
    Py_DECREF(half);
  }
  if (plain && (PyObject *)Py_TYPE(plain) == state->torch.tensor) return plain;
  if (plain) PyErr_Format(PyExc_TypeError, "it gives a %.100s", Py_TYPE(plain)->tp_name);
  Py_XDECREF(plain);
  return raise_not_plain(where, context);
}

/* Whether the tensor has memory, unless it needs none or its bytes can't be counted. */
static bool has_memory(const struct ringcast_tensor *tensor) {
  uint64_t bytes;
  return tensor->data || ringcast_tensor_bytes(tensor, &bytes) < 0 || bytes == 0;
}

static int describe_flags(struct rc_py_state *state, PyObject *object, int index,
                          struct rc_py_source *out) {
  int requires_grad = attribute_is_true(object, state->names.requires_grad);
  if (requires_grad < 0) return -1;
  bool is_parameter = (PyObject *)Py_TYPE(object) == state->torch.parameter;
  out->tensor.dtype = rc_py_dtypes[index].dtype;
  out->tensor.flags = RINGCAST_ITEM_TORCH | rc_py_dtypes[index].flags;
  if (requires_grad) out->tensor.flags |= RINGCAST_ITEM_REQUIRES_GRAD;
  if (is_parameter) out->tensor.flags |= RINGCAST_ITEM_PARAMETER;
  return 1;
}

/* Takes a reference to the storage of `tensor`. 1; 0: torch gives out no storage; -1: raised. */
static int hold_storage(struct rc_py_state *state, PyObject *tensor, struct rc_py_source *out) {
  Py_XSETREF(out->storage, PyObject_CallMethodNoArgs(tensor, state->names.untyped_storage));
  if (out->storage) return 1;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}

/* Raises the error for a tensor with its memory replaced during measuring. Always -1. */
static int raise_replaced(rc_py_where where, void *context) {
  PyObject *place = where(context);
  if (place) {
    PyErr_Format(PyExc_RuntimeError,
                 "%U got other memory while it was measured (tensor.data = ..., set_, resize_): a "
                 "tensor that is sent may not change before the call returns, nor may its memory "
                 "be freed (untyped_storage().resize_(0))",
                 place);
  }
  Py_XDECREF(place);
  return -1;
}

static const uint8_t *data_of(const struct rc_py_dltensor *tensor) {
  return (const uint8_t *)tensor->data + tensor->byte_offset;
}

/* The exchange API's description of a tensor, with the storage held. 1; 0: refused; -1: raised. */
static int describe_held(struct rc_py_state *state, PyObject *object, rc_py_where where,
                         void *context, struct rc_py_source *out, struct rc_py_dltensor *tensor) {
  int described = rc_py_dlpack_describe(state->torch.exchange, object, tensor);
  if (described <= 0) return described;
  const uint8_t *before = data_of(tensor);
  described = hold_storage(state, object, out);
  if (described <= 0) return described;
  /* Again: if torch ran Python code for the storage (a mode), the tensor may have a new storage. */
  described = rc_py_dlpack_describe(state->torch.exchange, object, tensor);
  if (described <= 0) return described;
  return before == data_of(tensor) ? 1 : raise_replaced(where, context);
}

/* As describe_held; the memory is plain: the API refuses all else. The dtype is DLPack's. */
static int describe_memory(struct rc_py_state *state, PyObject *object, rc_py_where where,
                           void *context, struct rc_py_source *out) {
  struct rc_py_dltensor tensor;
  int described = describe_held(state, object, where, context, out, &tensor);
  if (described <= 0) return described;
  out->is_on_device = tensor.device.type == RC_PY_DLPACK_CUDA;
  out->device = tensor.device.id;
  if (tensor.device.type != RC_PY_DLPACK_CPU && !out->is_on_device) return 0;
  if (tensor.ndim > RINGCAST_MAX_NDIM) return 0;
  size_t bytes = (size_t)tensor.ndim * sizeof(int64_t);
  int64_t *dims = PyMem_Malloc(2 * bytes + 1);
  if (!dims) {
    PyErr_NoMemory();
    return -1;
  }
  /* Before any Python code can change the tensor. */
  if (bytes) {
    memcpy(dims, tensor.shape, bytes);
    memcpy(dims + tensor.ndim, tensor.strides, bytes);
  }
  out->dims = dims;
  out->keep = Py_NewRef(object);
  out->tensor = (struct ringcast_tensor){.data = data_of(&tensor),
                                         .dtype = tensor.dtype,
                                         .ndim = tensor.ndim,
                                         .shape = dims,
                                         .strides = dims + tensor.ndim};
  return has_memory(&out->tensor);
}

/* The index of the dtype; -1: none; -2: raised. DLPack reports int4 as int8. */
static int exchanged_dtype(struct rc_py_state *state, PyObject *tensor,
                           struct ringcast_dtype dtype) {
  if (dtype.bits != 8 || dtype.code > 1) return rc_py_dtype_find(dtype);
  return dtype_index(state, tensor);
}

/* 1; 0: the tensor must be made plain first, or can't be sent as a tensor; -1: raised. */
static int describe_as_it_is(struct rc_py_state *state, PyObject *object, rc_py_where where,
                             void *context, struct rc_py_source *out) {
  int described = describe_memory(state, object, where, context, out);
  if (described <= 0) return described;
  int index = exchanged_dtype(state, object, out->tensor.dtype);
  if (index < 0) return index + 1;
  int lazy = is_lazy(state, object, out->tensor.dtype.code == 5);
  if (lazy < 0) return -1;
  if (lazy > 0) return 0;
  return describe_flags(state, object, index, out);
}

static int describe_made_plain(struct rc_py_state *state, PyObject *object, bool takes_cuda,
                               rc_py_where where, void *context, struct rc_py_source *out) {
  int is_cuda = 0;
  int is_cpu = attribute_is_true(object, state->names.is_cpu);
  if (is_cpu == 0 && takes_cuda) is_cuda = attribute_is_true(object, state->names.is_cuda);
  if (is_cpu < 0 || is_cuda < 0) return -1;
  if (!is_cpu && !is_cuda) return raise_device(state, object, where, context);
  int index = dense_dtype(state, object);
  if (index < 0) return index + 1;
  PyObject *modes = rc_py_torch_leave_modes(state);
  PyObject *plain = make_plain(state, object, index, is_cuda, where, context);
  rc_py_torch_enter_modes(state, modes);
  if (!plain) return -1;
  int described = 0;
  if (plain != object) described = describe_memory(state, plain, where, context, out);
  Py_DECREF(plain);
  if (described <= 0) return described;
  return describe_flags(state, object, index, out);
}

/* Makes a described device tensor ready for sending from the device. */
static int completed(struct rc_py_state *state, PyObject *object, int described,
                     struct rc_py_source *out) {
  if (described <= 0 || !out->is_on_device) return described;
  bool is_copied = !rc_py_is_c_order(out->tensor.ndim, out->tensor.shape, out->tensor.strides);
  /* A captured copy has no data until the graph is replayed. */
  bool may = !is_copied || rc_py_device_may_start(state);
  if (may && rc_py_cuda_complete(state, object, out) > 0) return described;
  rc_py_source_clear(out);
  return -1;
}

static int raise_unsupported(void) {
  PyErr_SetString(PyExc_RuntimeError,
                  "this torch has no DLPack exchange API that ringcast knows (torch 2.13 has): "
                  "install torch 2.13 or newer to send tensors");
  return -1;
}

int rc_py_torch_describe(struct rc_py_state *state, PyObject *object, bool takes_cuda,
                         rc_py_where where, void *context, struct rc_py_source *out) {
  if (!rc_py_torch_seen(state)) return 0;
  PyObject *type = (PyObject *)Py_TYPE(object);
  if (type != state->torch.tensor && type != state->torch.parameter) return 0;
  if (!state->torch.exchange) return raise_unsupported();
  int described = describe_as_it_is(state, object, where, context, out);
  if (described == 0 || (described > 0 && out->is_on_device && !takes_cuda)) {
    rc_py_source_clear(out);
    described = describe_made_plain(state, object, takes_cuda, where, context, out);
  }
  if (described <= 0) rc_py_source_clear(out);
  return completed(state, object, described, out);
}
