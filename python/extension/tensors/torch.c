/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch tensors: the extension links nothing of torch. DLPack's exchange API (dlpack.c) describes a tensor's memory,
 * and makes a tensor over our memory. Python attributes of torch add what the API lacks: requires_grad, the negative
 * and conjugate bits, and the exact sub-byte dtype. A tensor that the API refuses is sent in a form that the API knows,
 * or by torch's own pickle.
 *
 * A received tensor of less than 64 KiB lies in torch's own memory, so that the tensor can be resized as usual. A
 * larger tensor lies in a block of buffer_pool.c, or in the ring.
 *
 * Sending never imports torch: without an imported module, no tensor exists.
 */
#include "python/extension/tensors/device.h"

enum { OPAQUE = 3 }; /* DLPack's code of torch's bits8 and the like */

/* Whether torch has the dtype with elements of the expected size; a dtype stored in another way goes inside a
 * pickle. */
static PyObject *torch_dtype(PyObject *module, const struct rc_py_dtype *known) {
  PyObject *dtype = PyObject_GetAttrString(module, known->torch);
  PyObject *size = dtype ? PyObject_GetAttrString(dtype, "itemsize") : NULL;
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
    if (!torch->dtypes[i]) continue;
    PyObject *index = PyLong_FromLong(i);
    int rc = index ? PyDict_SetItem(torch->dtype_to_index, torch->dtypes[i], index) : -1;
    Py_XDECREF(index);
    if (rc < 0) return false;
  }
  return true;
}

/* False, with nothing raised: absent. */
static bool take_attribute(PyObject *module, const char *name, PyObject **out) {
  if (!*out) *out = PyObject_GetAttrString(module, name);
  return *out;
}

static bool torch_load(struct rc_py_state *state, PyObject *module) {
  struct rc_py_torch *torch = &state->torch;
  PyObject *nn = PyObject_GetAttrString(module, "nn");
  PyObject *tensor = nn ? PyObject_GetAttrString(module, "Tensor") : NULL;
  bool ok = tensor && take_attribute(nn, "Parameter", &torch->parameter) &&
            take_attribute(module, "strided", &torch->strided) && take_attribute(module, "empty", &torch->empty) &&
            take_attribute(module, "empty_strided", &torch->empty_strided) &&
            take_attribute(module, "from_dlpack", &torch->from_dlpack) && torch_dtypes(torch, module);
  if (ok && !torch->cpu) torch->cpu = PyObject_CallMethod(module, "device", "s", "cpu");
  if (ok && !torch->keywords) torch->keywords = PyTuple_Pack(2, state->names.dtype, state->names.device);
  ok = ok && torch->cpu && torch->keywords;
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

/* The index in the table; -1: none; -2: raised. */
static int dtype_index(struct rc_py_state *state, PyObject *tensor) {
  PyObject *dtype = PyObject_GetAttr(tensor, state->names.dtype);
  if (!dtype) return -2;
  PyObject *index = PyDict_GetItemWithError(state->torch.dtype_to_index, dtype);
  Py_DECREF(dtype);
  if (!index) return PyErr_Occurred() ? -2 : -1;
  return (int)PyLong_AsLong(index);
}

/* As dtype_index; -1 also for a tensor that is not sent as a tensor: sparse, nested, quantized, packed bits. */
static int dense_dtype(struct rc_py_state *state, PyObject *tensor) {
  PyObject *layout = PyObject_GetAttr(tensor, state->names.layout);
  if (!layout) return -2;
  Py_DECREF(layout);
  if (layout != state->torch.strided) return -1;
  int nested = attribute_is_true(tensor, state->names.is_nested);
  if (nested) return nested < 0 ? -2 : -1;
  return dtype_index(state, tensor);
}

/* Whether the memory holds the negative or the conjugate of the values. 1, 0, -1 (raised). */
static int is_lazy(struct rc_py_state *state, PyObject *tensor, bool is_complex) {
  int negated = method_is_true(tensor, state->names.is_neg);
  return negated == 0 && is_complex ? method_is_true(tensor, state->names.is_conj) : negated;
}

/* Raises torch's complaint about making a tensor plain. Always NULL. */
static PyObject *raise_not_plain(rc_py_where where, void *context) {
  PyObject *type, *error, *traceback;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
  PyErr_Fetch(&type, &error, &traceback);
  PyObject *place = where(context);
  if (place) {
    PyErr_Format(PyExc_RuntimeError,
                 "%U has to be resolved or viewed as bytes to be sent, and torch can't do that here: %S. If a mode of "
                 "torch is in force (FakeTensorMode), send outside of the mode",
                 place, error ? error : type);
  }
  Py_XDECREF(place);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
  return NULL;
}

/* A tensor that the exchange API can describe, with the values in memory: carries out a lazy negation or conjugation,
 * and views bits8 and the like as ints. Returns the tensor itself if plain already. */
static PyObject *make_plain(struct rc_py_state *state, PyObject *tensor, int index, bool is_on_device,
                            rc_py_where where, void *context) {
  const struct ringcast_dtype dtype = rc_py_dtypes[index].dtype;
  PyObject *plain;
  if (dtype.code == OPAQUE) {
    const struct ringcast_dtype as = {.bits = (uint8_t)(dtype.bits * dtype.lanes), .lanes = 1};
    plain = PyObject_CallMethod(tensor, "view", "O", state->torch.dtypes[rc_py_dtype_find(as)]);
  } else {
    int lazy = is_lazy(state, tensor, dtype.code == 5);
    if (lazy <= 0) return lazy < 0 ? NULL : rc_py_ref(tensor);
    if (is_on_device && !rc_py_cuda_before_copy(state, tensor)) return NULL;
    PyObject *half = PyObject_CallMethodNoArgs(tensor, state->names.resolve_conj);
    plain = half ? PyObject_CallMethodNoArgs(half, state->names.resolve_neg) : NULL;
    Py_XDECREF(half);
  }
  if (plain && (PyObject *)Py_TYPE(plain) == state->torch.tensor) return plain;
  if (plain) PyErr_Format(PyExc_TypeError, "it gives a %.100s", Py_TYPE(plain)->tp_name);
  Py_XDECREF(plain);
  return raise_not_plain(where, context);
}

bool rc_py_torch_data_ptr(struct rc_py_state *state, PyObject *tensor, void **out) {
  PyObject *address = PyObject_CallMethodNoArgs(tensor, state->names.data_ptr);
  if (!address) return false;
  *out = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return *out || !PyErr_Occurred();
}

/* Whether the tensor has memory, unless it needs none or its bytes can't be counted. */
static bool has_memory(const struct ringcast_tensor *tensor) {
  uint64_t bytes;
  return tensor->data || ringcast_tensor_bytes(tensor, &bytes) < 0 || bytes == 0;
}

static int describe_flags(struct rc_py_state *state, PyObject *object, int index, struct rc_py_source *out) {
  int requires_grad = attribute_is_true(object, state->names.requires_grad);
  if (requires_grad < 0) return -1;
  out->tensor.dtype = rc_py_dtypes[index].dtype;
  out->tensor.flags = RINGCAST_ITEM_TORCH | rc_py_dtypes[index].flags |
                      (requires_grad ? RINGCAST_ITEM_REQUIRES_GRAD : 0) |
                      ((PyObject *)Py_TYPE(object) == state->torch.parameter ? RINGCAST_ITEM_PARAMETER : 0);
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
                 "%U got other memory while it was measured (tensor.data = ..., set_, resize_): a tensor that is sent "
                 "may not change before the call returns, nor may its memory be freed (untyped_storage().resize_(0))",
                 place);
  }
  Py_XDECREF(place);
  return -1;
}

/* The exchange API's description of a tensor, with the storage held. 1; 0: refused; -1: raised. */
static int describe_held(struct rc_py_state *state, PyObject *object, rc_py_where where, void *context,
                         struct rc_py_source *out, struct rc_py_dltensor *tensor) {
  int described = rc_py_dlpack_describe(state->torch.exchange, object, tensor);
  const uint8_t *before = described > 0 ? (const uint8_t *)tensor->data + tensor->byte_offset : NULL;
  if (described > 0) described = hold_storage(state, object, out);
  /* Again: if torch ran Python code for the storage (a mode), the tensor may have a new storage. */
  if (described > 0) described = rc_py_dlpack_describe(state->torch.exchange, object, tensor);
  if (described <= 0 || before == (const uint8_t *)tensor->data + tensor->byte_offset) return described;
  return raise_replaced(where, context);
}

/* As describe_held; the memory is plain: the API refuses all else. The dtype is DLPack's. */
static int describe_memory(struct rc_py_state *state, PyObject *object, rc_py_where where, void *context,
                           struct rc_py_source *out) {
  struct rc_py_dltensor tensor;
  int described = describe_held(state, object, where, context, out, &tensor);
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
  return has_memory(&out->tensor);
}

/* The index of the dtype; -1: none; -2: raised. DLPack reports int4 as int8. */
static int exchanged_dtype(struct rc_py_state *state, PyObject *tensor, struct ringcast_dtype dtype) {
  if (dtype.bits != 8 || dtype.code > 1) return rc_py_dtype_find(dtype);
  return dtype_index(state, tensor);
}

/* 1; 0: the tensor must be made plain first, or can't be sent as a tensor; -1: raised. */
static int describe_as_it_is(struct rc_py_state *state, PyObject *object, rc_py_where where, void *context,
                             struct rc_py_source *out) {
  int described = describe_memory(state, object, where, context, out);
  if (described <= 0) return described;
  int index = exchanged_dtype(state, object, out->tensor.dtype);
  if (index < 0) return index + 1;
  int lazy = is_lazy(state, object, out->tensor.dtype.code == 5);
  if (lazy) return lazy < 0 ? -1 : 0;
  return describe_flags(state, object, index, out);
}

static int describe_made_plain(struct rc_py_state *state, PyObject *object, rc_py_where where, void *context,
                               struct rc_py_source *out) {
  int is_cpu = attribute_is_true(object, state->names.is_cpu);
  int is_cuda = is_cpu == 0 ? attribute_is_true(object, state->names.is_cuda) : 0;
  if (is_cpu < 0 || is_cuda < 0) return -1;
  if (!is_cpu && !is_cuda) return raise_device(state, object, where, context);
  int index = dense_dtype(state, object);
  if (index < 0) return index + 1;
  PyObject *plain = make_plain(state, object, index, is_cuda, where, context);
  if (!plain) return -1;
  int described = plain == object ? 0 : describe_memory(state, plain, where, context, out);
  Py_DECREF(plain);
  return described > 0 ? describe_flags(state, object, index, out) : described;
}

/* Makes a described device tensor ready for sending from the device. */
static int completed(struct rc_py_state *state, PyObject *object, int described, struct rc_py_source *out) {
  if (described <= 0 || !out->is_on_device) return described;
  bool is_copied = !rc_py_is_c_order(out->tensor.ndim, out->tensor.shape, out->tensor.strides);
  bool may = !is_copied || rc_py_device_may_start(state); /* a captured copy has no data until the graph is replayed */
  if (may && rc_py_cuda_complete(state, object, out) > 0) return described;
  rc_py_source_clear(out);
  return -1;
}

static int raise_unsupported(void) {
  PyErr_SetString(PyExc_RuntimeError, "this torch has no DLPack exchange API that ringcast knows (torch 2.13 has): "
                                      "install torch 2.13 or newer to send tensors");
  return -1;
}

int rc_py_torch_describe(struct rc_py_state *state, PyObject *object, rc_py_where where, void *context,
                         struct rc_py_source *out) {
  if (!rc_py_torch_seen(state)) return 0;
  PyObject *type = (PyObject *)Py_TYPE(object);
  if (type != state->torch.tensor && type != state->torch.parameter) return 0;
  if (!state->torch.exchange) return raise_unsupported();
  int described = describe_as_it_is(state, object, where, context, out);
  if (described == 0) {
    rc_py_source_clear(out);
    described = describe_made_plain(state, object, where, context, out);
  }
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

static void give_block(void *block) { rc_py_block_give(block); }

/* Whether DLPack has a code for the dtype, with the same meaning in torch. */
static bool takes_dlpack(const struct rc_py_torch *torch, int index) {
  return torch->exchange && !rc_py_dtypes[index].flags && rc_py_dtypes[index].dtype.code != OPAQUE;
}

PyObject *rc_py_torch_empty(struct rc_py_state *state, int dtype, const struct ringcast_item *item, PyObject *device) {
  struct rc_py_torch *torch = &state->torch;
  bool is_c_order = rc_py_is_c_order(item->ndim, item->shape, item->strides);
  PyObject *shape = rc_py_dims(item->shape, item->ndim, 1), *tensor = NULL;
  PyObject *strides = shape && !is_c_order ? rc_py_dims(item->strides, item->ndim, 1) : NULL;
  if (shape && is_c_order) {
    PyObject *arguments[] = {shape, torch->dtypes[dtype], device};
    tensor = PyObject_Vectorcall(torch->empty, arguments, 1, torch->keywords);
  } else if (strides) {
    PyObject *arguments[] = {shape, strides, torch->dtypes[dtype], device};
    tensor = PyObject_Vectorcall(torch->empty_strided, arguments, 2, torch->keywords);
  }
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  return tensor;
}

/* A tensor in torch's own memory. NULL: raised, or, with nothing raised, an active torch mode (such as FakeTensorMode)
 * replaced the tensor. */
static PyObject *allocated(struct rc_py_state *state, int index, const struct ringcast_item *item, void **out) {
  PyObject *tensor = rc_py_torch_empty(state, index, item, state->torch.cpu);
  if (!tensor) return NULL;
  bool is_real = (PyObject *)Py_TYPE(tensor) == state->torch.tensor && rc_py_torch_data_ptr(state, tensor, out);
  if (is_real && (*out || !item->bytes)) return tensor;
  Py_DECREF(tensor);
  if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
  return NULL;
}

/* A tensor in a block, or in memory allocated with the tensor. NULL: raised. */
static PyObject *over_ours(struct rc_py_state *state, const struct ringcast_item *item, struct rc_py_block *block,
                           uint64_t bytes, void **out) {
  enum { ALIGNMENT = 64 }; /* as torch's own allocator */
  void *memory = block ? NULL : PyMem_RawMalloc(bytes + ALIGNMENT);
  if (!block && !memory) return PyErr_NoMemory();
  *out = block ? rc_py_block_data(block) : (void *)(((uintptr_t)memory + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1));
  return block ? rc_py_dlpack_make(state->torch.exchange, item, *out, give_block, block)
               : rc_py_dlpack_make(state->torch.exchange, item, *out, PyMem_RawFree, memory);
}

/* True, with the exception cleared: make the tensor in another way. False: made, or an exception beyond torch (Ctrl-C)
 * is set. */
static bool may_try_on(const PyObject *tensor) {
  if (tensor || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))) return false;
  PyErr_Clear();
  return true;
}

static PyObject *raise_in_mode(struct rc_py_state *state) {
  state->torch.met_mode = true;
  PyErr_SetString(PyExc_RuntimeError, "torch gives no real tensors here, as a mode of torch is in force "
                                      "(FakeTensorMode): receive outside of the mode");
  return NULL;
}

static PyObject *make(struct rc_py_state *state, int index, const struct ringcast_item *item, uint64_t bytes,
                      void **out) {
  bool may_be_ours = takes_dlpack(&state->torch, index);
  struct rc_py_block *block = may_be_ours && rc_py_is_worth_recycling(bytes) ? rc_py_block_take(bytes) : NULL;
  PyObject *tensor = block ? over_ours(state, item, block, bytes, out) : NULL;
  if (may_try_on(tensor)) tensor = allocated(state, index, item, out);
  if (may_be_ours && may_try_on(tensor)) tensor = over_ours(state, item, NULL, bytes, out);
  return tensor || PyErr_Occurred() ? tensor : raise_in_mode(state);
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

/* A torch mode may replace the new tensor. False: raised. */
static bool is_at(struct rc_py_state *state, PyObject *tensor, const void *data) {
  void *kept;
  if (!rc_py_torch_data_ptr(state, tensor, &kept)) return false;
  if (kept == data) return true;
  state->torch.met_mode = true;
  PyErr_SetString(PyExc_RuntimeError, "torch has put a Parameter, or a tensor that requires_grad, in other memory than "
                                      "its data: receive outside of the mode (torch.utils._python_dispatch) in force");
  return false;
}

PyObject *rc_py_torch_make(struct rc_py_state *state, const struct ringcast_item *item, uint64_t bytes, void **out) {
  int index = rc_py_torch_index(state, item);
  if (index < 0) return NULL;
  PyObject *tensor = make(state, index, item, bytes, out);
  if (!tensor && (bytes > 0 || state->torch.met_mode)) return NULL; /* the frame has as many: no damage */
  if (tensor) tensor = rc_py_torch_finish(state, tensor, item->flags);
  if (!tensor) rc_py_protocol_from_current(state, "torch can't make its tensor");
  bool is_finished = item->flags & (RINGCAST_ITEM_PARAMETER | RINGCAST_ITEM_REQUIRES_GRAD);
  if (tensor && is_finished && bytes > 0 && !is_at(state, tensor, *out)) Py_CLEAR(tensor);
  return tensor;
}

PyObject *rc_py_torch_over(struct rc_py_state *state, const struct ringcast_item *item, void (*give)(void *owner),
                           void *owner) {
  int index = rc_py_torch_needed(state) ? rc_py_dtype_of(item) : -1;
  if (index < 0 || !state->torch.dtypes[index] || !takes_dlpack(&state->torch, index)) {
    give(owner);
    return NULL;
  }
  PyObject *tensor = rc_py_dlpack_make(state->torch.exchange, item, (void *)item->data, give, owner);
  if (may_try_on(tensor) || !tensor) return NULL;
  tensor = rc_py_torch_finish(state, tensor, item->flags);
  if (!tensor) rc_py_protocol_from_current(state, "torch can't make its tensor");
  return tensor;
}

/* The capsule's tensor, if of the item's dtype: DLPack's codes differ in some versions of torch. */
static PyObject *taken_over(struct rc_py_state *state, PyObject *capsule, PyObject *wanted) {
  PyObject *tensor = PyObject_CallOneArg(state->torch.from_dlpack, capsule);
  PyObject *dtype = tensor ? PyObject_GetAttr(tensor, state->names.dtype) : NULL;
  if (dtype && dtype != wanted) PyErr_SetString(PyExc_TypeError, "another dtype");
  if (!dtype || dtype != wanted) Py_CLEAR(tensor);
  Py_XDECREF(dtype);
  return tensor;
}

PyObject *rc_py_torch_from(struct rc_py_state *state, const struct ringcast_item *item, PyObject *capsule) {
  int index = rc_py_torch_needed(state) ? rc_py_dtype_of(item) : -1;
  if (index < 0 || !state->torch.dtypes[index] || !takes_dlpack(&state->torch, index)) return NULL;
  PyObject *tensor = taken_over(state, capsule, state->torch.dtypes[index]);
  if (may_try_on(tensor) || !tensor) return NULL;
  tensor = rc_py_torch_finish(state, tensor, item->flags);
  if (!tensor) rc_py_protocol_from_current(state, "torch can't make its tensor");
  return tensor;
}
