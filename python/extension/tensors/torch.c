/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch tensors: the extension links nothing of torch. DLPack's exchange API (dlpack.c) describes a tensor's memory,
 * and makes a tensor over our memory. Python attributes of torch add what the API lacks: requires_grad, the negative
 * and conjugate bits, and the exact sub-byte dtype. A tensor that the API refuses is sent in a form that the API knows,
 * or by torch's own pickle (torch_describe.c).
 *
 * A received tensor of less than 64 KiB lies in torch's own memory, so that the tensor can be resized as usual. A
 * larger tensor lies in a block of buffer_pool.c, or in the ring.
 *
 * Sending never imports torch: without an imported module, no tensor exists.
 */
#include "python/extension/tensors/device.h"

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

bool rc_py_torch_data_ptr(struct rc_py_state *state, PyObject *tensor, void **out) {
  PyObject *address = PyObject_CallMethodNoArgs(tensor, state->names.data_ptr);
  if (!address) return false;
  *out = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return *out || !PyErr_Occurred();
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

/* Whether DLPack has a code for the dtype, with the same meaning in torch. */
static bool takes_dlpack(const struct rc_py_torch *torch, int index) {
  return torch->exchange && !rc_py_dtypes[index].flags && rc_py_dtypes[index].dtype.code != RC_PY_OPAQUE_CODE;
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
  return block ? rc_py_dlpack_make(state->torch.exchange, item, *out, rc_py_block_give, block)
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
