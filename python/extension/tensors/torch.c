/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch tensors: the extension links nothing of torch's and works with any version. What torch's exchange API says of a
 * tensor is asked there (dlpack.c), the rest through Python attributes; so is all of it where there is no such API, or
 * it says no. Either way the same is found out.
 *
 * torch is never imported to send: nobody has a tensor of a module that was not imported.
 */
#include "python/extension/tensors/device.h"

/* torch has the dtype, with elements of that size: what it keeps in other ways goes inside a pickle. */
static PyObject *torch_dtype(PyObject *module, const struct rc_py_dtype *known) {
  PyObject *dtype = PyObject_GetAttrString(module, known->torch);
  PyObject *size = dtype ? PyObject_GetAttrString(dtype, "itemsize") : NULL; /* an older torch does not say */
  long bytes = size ? PyLong_AsLong(size) : 0;
  Py_XDECREF(size);
  PyErr_Clear();
  if (bytes > 0 && bytes != (known->dtype.bits * known->dtype.lanes + 7) / 8) Py_CLEAR(dtype);
  return dtype;
}

static bool torch_dtypes(struct rc_py_torch *torch, PyObject *module) {
  if (!torch->dtype_to_index) torch->dtype_to_index = PyDict_New();
  if (!torch->dtype_to_index) return false;
  for (int i = 0; i < RC_PY_DTYPES; i++) {
    if (torch->dtypes[i]) continue;
    torch->dtypes[i] = torch_dtype(module, &rc_py_dtypes[i]);
    if (!torch->dtypes[i]) continue; /* an older torch */
    /* torch's DLPack has no codes for these. */
    torch->takes_no_dlpack[i] = rc_py_dtypes[i].flags || rc_py_dtypes[i].dtype.code == 3;
    PyObject *index = PyLong_FromLong(i);
    int rc = index ? PyDict_SetItem(torch->dtype_to_index, torch->dtypes[i], index) : -1;
    Py_XDECREF(index);
    if (rc < 0) return false;
  }
  return true;
}

static bool torch_load(struct rc_py_state *state, PyObject *module) {
  struct rc_py_torch *torch = &state->torch;
  PyObject *nn = PyObject_GetAttrString(module, "nn");
  PyObject *tensor = nn ? PyObject_GetAttrString(module, "Tensor") : NULL;
  if (nn && !torch->parameter) torch->parameter = PyObject_GetAttrString(nn, "Parameter");
  if (!torch->strided) torch->strided = PyObject_GetAttrString(module, "strided");
  if (!torch->empty) torch->empty = PyObject_GetAttrString(module, "empty");
  if (!torch->cpu) torch->cpu = PyUnicode_InternFromString("cpu");
  if (!torch->from_dlpack && !(torch->from_dlpack = PyObject_GetAttrString(module, "from_dlpack"))) PyErr_Clear();
  bool ok = tensor && torch->parameter && torch->strided && torch->empty && torch->cpu && torch_dtypes(torch, module);
  if (ok && !torch->exchange) torch->exchange = rc_py_dlpack_exchange(tensor);
  if (ok && !torch->tensor) torch->tensor = rc_py_ref(tensor);
  Py_XDECREF(nn);
  Py_XDECREF(tensor);
  return ok;
}

bool rc_py_torch_seen(struct rc_py_state *state) {
  if (state->torch.tensor) return true;
  PyObject *module = PyImport_GetModule(state->names.torch);
  bool seen = module && torch_load(state, module);
  if (!seen) PyErr_Clear(); /* absent, or half imported: no tensor exists yet */
  Py_XDECREF(module);
  return seen;
}

/* ---- To send ---------------------------------------------------------------------------------------------------- */

/* An attribute's truth: 1, 0, or -1 (raised). */
static int attribute_is_true(PyObject *object, PyObject *name) { return rc_py_is_yes(PyObject_GetAttr(object, name)); }

static int method_is_true(PyObject *object, PyObject *name) {
  return rc_py_is_yes(PyObject_CallMethodNoArgs(object, name));
}

static int raise_device(struct rc_py_state *state, PyObject *tensor, rc_py_where where, void *context) {
  PyObject *elsewhere = rc_py_import("ringcast._pickling", "elsewhere");
  PyObject *device = elsewhere ? PyObject_GetAttr(tensor, state->names.device) : NULL;
  PyObject *place = device ? where(context) : NULL;
  PyObject *error = place ? PyObject_CallFunctionObjArgs(elsewhere, place, device, NULL) : NULL;
  if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_XDECREF(elsewhere);
  Py_XDECREF(device);
  Py_XDECREF(place);
  Py_XDECREF(error);
  return -1;
}

/* The index of its dtype; -1: not one that goes as a tensor (sparse, nested, quantized, of packed bits); -2: raised. */
static int dense_dtype(struct rc_py_state *state, PyObject *tensor) {
  PyObject *layout = PyObject_GetAttr(tensor, state->names.layout);
  if (!layout) return -2;
  Py_DECREF(layout);
  if (layout != state->torch.strided) return -1;
  int nested = attribute_is_true(tensor, state->names.is_nested);
  if (nested) return nested < 0 ? -2 : -1;
  PyObject *dtype = PyObject_GetAttr(tensor, state->names.dtype);
  if (!dtype) return -2;
  PyObject *index = PyDict_GetItemWithError(state->torch.dtype_to_index, dtype);
  Py_DECREF(dtype);
  if (!index) return PyErr_Occurred() ? -2 : -1;
  return (int)PyLong_AsLong(index);
}

/* Whether its memory stands for its negative, or its conjugate. 1, 0, -1 (raised). */
static int is_lazy(struct rc_py_state *state, PyObject *tensor, bool is_complex) {
  int negated = method_is_true(tensor, state->names.is_neg);
  return negated == 0 && is_complex ? method_is_true(tensor, state->names.is_conj) : negated;
}

/* A tensor whose memory says what it means: a lazy negation or conjugation is carried out. */
static PyObject *resolve(struct rc_py_state *state, PyObject *tensor, bool is_complex, bool is_on_device) {
  int lazy = is_lazy(state, tensor, is_complex);
  if (lazy < 0) return NULL;
  if (!lazy) return rc_py_ref(tensor);
  if (is_on_device && !rc_py_cuda_before_copy(state, tensor)) return NULL;
  PyObject *half = PyObject_CallMethodNoArgs(tensor, state->names.resolve_conj);
  PyObject *whole = half ? PyObject_CallMethodNoArgs(half, state->names.resolve_neg) : NULL;
  Py_XDECREF(half);
  return whole;
}

/* Copies a tuple of ints; consumes it. */
static bool fill(PyObject *tuple, int32_t ndim, int64_t *out) {
  bool ok = tuple && PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) == ndim;
  if (tuple && !ok) PyErr_SetString(PyExc_TypeError, "torch gives shape and strides of different lengths");
  for (int32_t i = 0; ok && i < ndim; i++) {
    out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    ok = out[i] != -1 || !PyErr_Occurred();
  }
  Py_XDECREF(tuple);
  return ok;
}

/* 1, 0 (too many dimensions for a frame's entry), -1. */
static int fill_dims(struct rc_py_state *state, struct rc_py_source *source) {
  PyObject *shape = PyObject_GetAttr(source->keep, state->names.shape);
  if (!shape) return -1;
  Py_ssize_t ndim = PyTuple_Check(shape) ? PyTuple_GET_SIZE(shape) : -1;
  if (ndim > RINGCAST_MAX_NDIM) {
    Py_DECREF(shape);
    return 0;
  }
  source->dims = PyMem_New(int64_t, 2 * (size_t)(ndim < 0 ? 0 : ndim) + 1);
  if (!source->dims) {
    Py_DECREF(shape);
    PyErr_NoMemory();
    return -1;
  }
  if (!fill(shape, (int32_t)ndim, source->dims)) return -1;
  PyObject *stride = PyObject_CallMethodNoArgs(source->keep, state->names.stride);
  if (!fill(stride, (int32_t)ndim, source->dims + ndim)) return -1;
  source->tensor.ndim = (int32_t)ndim;
  source->tensor.shape = source->dims;
  source->tensor.strides = source->dims + ndim;
  return 1;
}

bool rc_py_torch_data_ptr(struct rc_py_state *state, PyObject *tensor, void **out) {
  PyObject *address = PyObject_CallMethodNoArgs(tensor, state->names.data_ptr);
  if (!address) return false;
  *out = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return *out || !PyErr_Occurred();
}

/* As much of its own as it needs; so far as its bytes can be counted. */
static bool has_memory(const struct ringcast_tensor *tensor) {
  uint64_t bytes;
  return tensor->data || ringcast_tensor_bytes(tensor, &bytes) < 0 || bytes == 0;
}

static int describe_flags(struct rc_py_state *state, PyObject *object, int index, struct rc_py_source *out) {
  int requires_grad = attribute_is_true(object, state->names.requires_grad);
  if (requires_grad < 0) return -1;
  out->tensor.flags = RINGCAST_ITEM_TORCH | rc_py_dtypes[index].flags |
                      (requires_grad ? RINGCAST_ITEM_REQUIRES_GRAD : 0) |
                      ((PyObject *)Py_TYPE(object) == state->torch.parameter ? RINGCAST_ITEM_PARAMETER : 0);
  return 1;
}

/* Takes a reference to the storage of `tensor`. 1; 0: it has none that torch gives out; -1: raised. */
static int hold_storage(struct rc_py_state *state, PyObject *tensor, struct rc_py_source *out) {
  Py_XSETREF(out->storage, PyObject_CallMethodNoArgs(tensor, state->names.untyped_storage));
  if (out->storage) return 1;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}

/* Raises what to say of a tensor whose memory was replaced while it was measured. Always -1. */
static int raise_replaced(rc_py_where where, void *context) {
  PyObject *place = where(context);
  if (place) {
    PyErr_Format(PyExc_RuntimeError,
                 "%U got other memory while it was measured (tensor.data = ..., set_, resize_): a tensor that is sent "
                 "may not change before the call returns, nor may its memory be freed (untyped_storage().resize_(0))",
                 place);
  }
  Py_XDECREF(place);
  return -1;
}

/* Any of these calls may run Python code, so another thread may replace the tensor's memory between them. Where the
 * address is the same at the end as before, it is that of the storage that is held. */
static int describe_by_attributes(struct rc_py_state *state, PyObject *object, int index, rc_py_where where,
                                  void *context, struct rc_py_source *out) {
  void *before = NULL, *data = NULL;
  out->tensor.dtype = rc_py_dtypes[index].dtype;
  out->keep = resolve(state, object, out->tensor.dtype.code == 5, out->is_on_device);
  if (!out->keep || !rc_py_torch_data_ptr(state, out->keep, &before)) return -1;
  int described = hold_storage(state, out->keep, out);
  if (described > 0) described = fill_dims(state, out);
  if (described <= 0) return described;
  if (!rc_py_torch_data_ptr(state, out->keep, &data)) return -1;
  if (data != before) return raise_replaced(where, context);
  out->tensor.data = data;
  if (out->is_on_device && !rc_py_torch_ordinal(state, out->keep, &out->device)) return -1;
  return describe_flags(state, object, index, out) < 0 ? -1 : has_memory(&out->tensor);
}

/* The index of the dtype that DLPack means; -1: not sure, or none; -2: raised. To it int4 is an int8. */
static int exchanged_dtype(struct rc_py_state *state, PyObject *tensor, struct ringcast_dtype dtype) {
  int index = rc_py_dtype_find(dtype);
  if (index < 0 || dtype.bits != 8 || dtype.code > 1) return index;
  PyObject *real = PyObject_GetAttr(tensor, state->names.dtype);
  if (!real) return -2;
  Py_DECREF(real);
  return real == state->torch.dtypes[index] ? index : -1;
}

/* Describes the tensor and holds its storage. 1; 0: the attributes will tell; -1: raised. */
static int describe_held(struct rc_py_state *state, PyObject *object, struct rc_py_source *out,
                         struct rc_py_dltensor *tensor) {
  int described = rc_py_dlpack_describe(state->torch.exchange, object, tensor);
  if (described == 0) state->torch.is_asked_first = true;
  const uint8_t *before = described > 0 ? (const uint8_t *)tensor->data + tensor->byte_offset : NULL;
  if (described > 0) described = hold_storage(state, object, out);
  /* Once more: where torch ran Python code for the storage (a mode), the tensor may have got another one. */
  if (described > 0) described = rc_py_dlpack_describe(state->torch.exchange, object, tensor);
  return described <= 0 ? described : before == (const uint8_t *)tensor->data + tensor->byte_offset;
}

/* 1; 0: the attributes will tell; -1: raised. Its memory is plain, else the API refuses it. */
static int describe_by_exchange(struct rc_py_state *state, PyObject *object, struct rc_py_source *out) {
  struct rc_py_dltensor tensor;
  int described = describe_held(state, object, out, &tensor);
  if (described <= 0) return described;
  out->is_on_device = tensor.device.type == RC_PY_DLPACK_CUDA;
  out->device = tensor.device.id;
  if ((tensor.device.type != RC_PY_DLPACK_CPU && !out->is_on_device) || tensor.ndim > RINGCAST_MAX_NDIM) return 0;
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
  out->keep = rc_py_ref(object);
  out->tensor = (struct ringcast_tensor){.data = (const uint8_t *)tensor.data + tensor.byte_offset,
                                         .dtype = tensor.dtype,
                                         .ndim = tensor.ndim,
                                         .shape = dims,
                                         .strides = dims + tensor.ndim};
  if (!has_memory(&out->tensor)) return 0;
  int index = exchanged_dtype(state, object, tensor.dtype);
  if (index < 0) return index + 1;
  int lazy = is_lazy(state, object, tensor.dtype.code == 5);
  if (lazy) return lazy < 0 ? -1 : 0;
  return describe_flags(state, object, index, out);
}

static int exchanged(struct rc_py_state *state, PyObject *object, struct rc_py_source *out) {
  int described = describe_by_exchange(state, object, out);
  if (described <= 0) rc_py_source_clear(out);
  return described;
}

/* What was described, if it is on a device, made ready to be sent from there. */
static int completed(struct rc_py_state *state, PyObject *object, int described, struct rc_py_source *out) {
  if (described <= 0 || !out->is_on_device) return described;
  bool is_copied = !rc_py_is_c_order(out->tensor.ndim, out->tensor.shape, out->tensor.strides);
  bool may = !is_copied || rc_py_device_may_start(state); /* what a capture copies isn't there before it is replayed */
  if (may && rc_py_cuda_complete(state, object, out) > 0) return described;
  rc_py_source_clear(out);
  return -1;
}

int rc_py_torch_describe(struct rc_py_state *state, PyObject *object, rc_py_where where, void *context,
                         struct rc_py_source *out) {
  if (!rc_py_torch_seen(state)) return 0;
  PyObject *type = (PyObject *)Py_TYPE(object);
  if (type != state->torch.tensor && type != state->torch.parameter) return 0;
  bool is_asked_first = state->torch.is_asked_first;
  int described = state->torch.exchange && !is_asked_first ? exchanged(state, object, out) : 0;
  if (described) return completed(state, object, described, out);
  int is_cpu = attribute_is_true(object, state->names.is_cpu);
  int is_cuda = is_cpu == 0 ? attribute_is_true(object, state->names.is_cuda) : 0;
  if (is_cpu < 0 || is_cuda < 0) return -1;
  if (!is_cpu && !is_cuda) return raise_device(state, object, where, context);
  int index = dense_dtype(state, object);
  if (index < 0) return index + 1;
  if (state->torch.exchange && is_asked_first && !state->torch.takes_no_dlpack[index]) {
    described = exchanged(state, object, out);
  }
  if (described) return completed(state, object, described, out);
  out->is_on_device = is_cuda;
  described = describe_by_attributes(state, object, index, where, context, out);
  if (described <= 0) rc_py_source_clear(out);
  return completed(state, object, described, out);
}

/* ---- Received --------------------------------------------------------------------------------------------------- */

bool rc_py_torch_needed(struct rc_py_state *state) {
  if (rc_py_torch_seen(state)) return true;
  PyObject *module = PyImport_ImportModule("torch");
  bool loaded = module && torch_load(state, module);
  Py_XDECREF(module);
  if (loaded || !PyErr_ExceptionMatches(PyExc_ImportError)) return loaded;
  PyErr_SetString(PyExc_ImportError, "the frame holds torch tensors, and torch can't be imported here: install torch "
                                     "in this process's environment, or send NumPy arrays");
  return false;
}

/* torch.empty(shape, dtype=..., device="cpu"): the device is said, for a `with torch.device(...)` may be in force. */
static PyObject *empty(struct rc_py_state *state, PyObject *dtype, const struct ringcast_item *item) {
  PyObject *shape = rc_py_shape(item);
  PyObject *names = shape ? PyTuple_Pack(2, state->names.dtype, state->names.device) : NULL;
  PyObject *tensor = NULL;
  if (names) {
    PyObject *arguments[] = {shape, dtype, state->torch.cpu};
    tensor = PyObject_Vectorcall(state->torch.empty, arguments, 1, names);
  }
  Py_XDECREF(shape);
  Py_XDECREF(names);
  return tensor;
}

enum { MOST_FAILURES = 8 };

/* After from_dlpack() or the like has raised: whether it is to be asked again. Of what says that there is no such dtype
 * it is not; nor where it has never done anything else in a row, as old versions raise a RuntimeError for such. */
static void note_failure(struct rc_py_torch *torch, int index) {
  bool is_for_good = PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_BufferError) ||
                     PyErr_ExceptionMatches(PyExc_NotImplementedError);
  PyErr_Clear();
  if (is_for_good || ++torch->dlpack_failures[index] == MOST_FAILURES) torch->takes_no_dlpack[index] = true;
}

static void give_block(void *block) { rc_py_block_give(block); }

static PyObject *over_block(struct rc_py_state *state, const struct ringcast_item *item, struct rc_py_block *block,
                            void **out) {
  void *data = *out = rc_py_block_data(block), *kept;
  PyObject *capsule = rc_py_dlpack_capsule(item, data, give_block, block);
  PyObject *tensor = capsule ? PyObject_CallOneArg(state->torch.from_dlpack, capsule) : NULL;
  Py_XDECREF(capsule);
  if (!tensor || !rc_py_torch_data_ptr(state, tensor, &kept) || kept != data) {
    /* a copy, then, and the block may be another's */
    if (tensor && !PyErr_Occurred()) PyErr_SetString(PyExc_BufferError, "the new tensor did not keep its memory");
    Py_CLEAR(tensor);
  }
  return tensor;
}

/* A tensor over memory of ours: a large one's is used again, a small one's came with it. NULL: there is no such memory,
 * or this torch can't; nothing is raised, but for what is no matter of torch's (Ctrl-C). */
static PyObject *over_ours(struct rc_py_state *state, int index, const struct ringcast_item *item, uint64_t bytes,
                           void **out) {
  struct rc_py_torch *torch = &state->torch;
  bool is_large = rc_py_is_worth_recycling(bytes);
  if (torch->takes_no_dlpack[index] || !(torch->exchange || (is_large && torch->from_dlpack))) return NULL;
  struct rc_py_block *block = is_large ? rc_py_block_take(bytes) : NULL;
  if (is_large && !block) return NULL;
  PyObject *tensor = torch->exchange ? rc_py_dlpack_make(torch->exchange, item, bytes, block, out)
                                     : over_block(state, item, block, out);
  if (tensor) torch->dlpack_failures[index] = 0;
  if (tensor || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))) return tensor;
  note_failure(torch, index);
  return NULL;
}

/* A tensor of torch's own memory. */
static PyObject *allocated(struct rc_py_state *state, int index, const struct ringcast_item *item, void **out) {
  PyObject *tensor = empty(state, state->torch.dtypes[index], item);
  if (tensor && !rc_py_torch_data_ptr(state, tensor, out)) Py_CLEAR(tensor);
  if (tensor && !*out && item->bytes) {
    PyErr_SetString(PyExc_RuntimeError, "torch.empty gave a tensor without memory");
    Py_CLEAR(tensor);
  }
  return tensor;
}

PyObject *rc_py_torch_finish(struct rc_py_state *state, PyObject *tensor, uint32_t flags) {
  PyObject *requires_grad = flags & RINGCAST_ITEM_REQUIRES_GRAD ? Py_True : Py_False;
  PyObject *result;
  if (flags & RINGCAST_ITEM_PARAMETER) {
    state->ran_code++;
    result = PyObject_CallFunctionObjArgs(state->torch.parameter, tensor, requires_grad, NULL);
  } else if (requires_grad == Py_True) {
    result = PyObject_CallMethodNoArgs(tensor, state->names.requires_grad_);
  } else {
    return tensor;
  }
  Py_DECREF(tensor);
  return result;
}

int rc_py_torch_index(struct rc_py_state *state, const struct ringcast_item *item) {
  if (!rc_py_torch_needed(state)) return -1;
  int index = rc_py_dtype_of(item);
  if (index >= 0 && state->torch.dtypes[index]) return index;
  rc_py_raise_text(state, EPROTO, "the frame holds a tensor of dtype code %d, %d bits, which this torch lacks",
                   item->dtype.code, item->dtype.bits);
  return -1;
}

/* A mode of torch's that is in force may put another tensor in the place of the one that was made. False: raised. */
static bool is_at(struct rc_py_state *state, PyObject *tensor, const void *data) {
  void *kept;
  if (!rc_py_torch_data_ptr(state, tensor, &kept)) return false;
  if (kept == data) return true;
  PyErr_SetString(PyExc_RuntimeError, "torch has put a Parameter, or a tensor that requires_grad, in other memory than "
                                      "its data: receive outside of the mode (torch.utils._python_dispatch) in force");
  return false;
}

PyObject *rc_py_torch_make(struct rc_py_state *state, const struct ringcast_item *item, uint64_t bytes, void **out) {
  int index = rc_py_torch_index(state, item);
  if (index < 0) return NULL;
  PyObject *tensor = over_ours(state, index, item, bytes, out);
  if (!tensor && PyErr_Occurred()) return NULL;
  if (!tensor) tensor = allocated(state, index, item, out);
  if (!tensor && bytes > 0) return NULL; /* the frame has as many: torch lacks memory, or has a reason of its own */
  if (tensor) tensor = rc_py_torch_finish(state, tensor, item->flags);
  if (!tensor) rc_py_protocol_from_current(state, "torch can't make its tensor");
  bool is_finished = item->flags & (RINGCAST_ITEM_PARAMETER | RINGCAST_ITEM_REQUIRES_GRAD);
  if (tensor && is_finished && bytes > 0 && !is_at(state, tensor, *out)) Py_CLEAR(tensor);
  return tensor;
}

/* The capsule's, if it is of the item's dtype: DLPack's codes mean something else to some versions of torch. */
static PyObject *taken_over(struct rc_py_state *state, PyObject *capsule, PyObject *wanted) {
  PyObject *tensor = PyObject_CallOneArg(state->torch.from_dlpack, capsule);
  PyObject *dtype = tensor ? PyObject_GetAttr(tensor, state->names.dtype) : NULL;
  if (dtype && dtype != wanted) PyErr_SetString(PyExc_TypeError, "another dtype");
  if (!dtype || dtype != wanted) Py_CLEAR(tensor);
  Py_XDECREF(dtype);
  return tensor;
}

PyObject *rc_py_torch_over(struct rc_py_state *state, const struct ringcast_item *item, PyObject *capsule,
                           bool is_on_device) {
  if (!rc_py_torch_needed(state)) return NULL;
  struct rc_py_torch *torch = &state->torch;
  int index = rc_py_dtype_of(item);
  if (index < 0 || !torch->dtypes[index] || !torch->from_dlpack || torch->takes_no_dlpack[index]) return NULL;
  PyObject *tensor = taken_over(state, capsule, torch->dtypes[index]);
  if (tensor) {
    torch->dlpack_failures[index] = 0;
    tensor = rc_py_torch_finish(state, tensor, item->flags);
    if (!tensor) rc_py_protocol_from_current(state, "torch can't make its tensor");
    return tensor;
  }
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
  if (is_on_device) PyErr_Clear(); /* a device may fail for reasons of its own */
  else note_failure(torch, index);
  return NULL;
}
