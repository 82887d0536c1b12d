/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch tensors: the extension links nothing of torch. DLPack's exchange API (dlpack.c) describes a
 * tensor's memory, and makes a tensor over our memory. Python attributes of torch add what the API
 * lacks: requires_grad, the negative and conjugate bits, and the exact sub-byte dtype. A tensor
 * that the API refuses is sent in a form that the API knows, or by torch's own pickle
 * (torch_describe.c).
 *
 * A received tensor of less than 64 KiB lies in torch's own memory, so that the tensor can be
 * resized as usual. A larger tensor lies in a block of memory.c, or in the ring.
 *
 * Sending never imports torch: without an imported module, no tensor exists.
 */
#include "python/extension/tensors/device.h"

/* Whether torch has the dtype with elements of the expected size; a dtype stored in another way
 * goes inside a pickle. */
static PyObject *torch_dtype(PyObject *module, const struct rc_py_dtype *known) {
  long bytes = 0;
  PyObject *size = NULL;
  PyObject *dtype = PyObject_GetAttrString(module, known->torch);
  if (dtype) size = PyObject_GetAttrString(dtype, "itemsize");
  if (size) bytes = PyLong_AsLong(size);
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

/* The calls of torch's stacks of modes. An older torch without them has no such modes. */
static void take_mode_calls(struct rc_py_torch *torch, PyObject *module) {
  static const char *const names[] = {
      "_len_torch_function_stack", "_pop_torch_function_stack", "_push_on_torch_function_stack",
      "_len_torch_dispatch_stack", "_pop_torch_dispatch_stack", "_push_on_torch_dispatch_stack"};
  PyObject *c = PyObject_GetAttrString(module, "_C");
  bool ok = c;
  for (int i = 0; ok && i < RC_PY_MODE_CALLS; i++) {
    ok = take_attribute(c, names[i], &torch->mode_calls[i]);
  }
  Py_XDECREF(c);
  PyErr_Clear();
}

static bool torch_load(struct rc_py_state *state, PyObject *module) {
  struct rc_py_torch *torch = &state->torch;
  PyObject *nn = PyObject_GetAttrString(module, "nn");
  PyObject *tensor = nn ? PyObject_GetAttrString(module, "Tensor") : NULL;
  bool ok = tensor && take_attribute(nn, "Parameter", &torch->parameter) &&
            take_attribute(module, "strided", &torch->strided) &&
            take_attribute(module, "empty", &torch->empty) &&
            take_attribute(module, "empty_strided", &torch->empty_strided) &&
            take_attribute(module, "from_dlpack", &torch->from_dlpack) &&
            torch_dtypes(torch, module);
  if (ok && !torch->cpu) torch->cpu = PyObject_CallMethod(module, "device", "s", "cpu");
  if (ok && !torch->keywords)
    torch->keywords = PyTuple_Pack(2, state->names.dtype, state->names.device);
  ok = ok && torch->cpu && torch->keywords;
  if (ok) take_mode_calls(torch, module);
  if (ok && !torch->exchange) torch->exchange = rc_py_dlpack_exchange(tensor);
  if (ok && !torch->tensor) torch->tensor = Py_NewRef(tensor);
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

/* ---- Modes ----------------------------------------------------------------------------------- */

/* Pops a stack; `key` is what the pop takes, or NULL. No bytecode runs, so that no signal handler
 * comes between. False: raised. */
static bool pop_stack(PyObject *const calls[3], PyObject *key, PyObject *popped) {
  PyObject *length = PyObject_CallNoArgs(calls[0]);
  Py_ssize_t count = length ? PyLong_AsSsize_t(length) : -1;
  Py_XDECREF(length);
  bool ok = count >= 0;
  for (Py_ssize_t i = 0; ok && i < count; i++) {
    PyObject *mode = PyObject_CallFunctionObjArgs(calls[1], key, NULL);
    ok = mode && PyList_Append(popped, mode) == 0;
    if (mode && !ok) { /* for want of memory: it stays in force */
      PyObject *none = PyObject_CallOneArg(calls[2], mode);
      Py_XDECREF(none);
    }
    Py_XDECREF(mode);
  }
  return ok;
}

static void push_stack(PyObject *push, PyObject *popped) {
  for (Py_ssize_t i = PyList_GET_SIZE(popped); i-- > 0;) {
    PyObject *none = PyObject_CallOneArg(push, PyList_GET_ITEM(popped, i));
    if (!none) PyErr_WriteUnraisable(push);
    Py_XDECREF(none);
  }
}

static bool has_modes(PyObject *const calls[RC_PY_MODE_CALLS]) {
  bool found = false;
  for (int i = 0; !found && calls[RC_PY_MODE_CALLS - 1] && i < RC_PY_MODE_CALLS; i += 3) {
    PyObject *length = PyObject_CallNoArgs(calls[i]);
    found = length && PyObject_IsTrue(length) > 0;
    Py_XDECREF(length);
  }
  PyErr_Clear();
  return found;
}

PyObject *rc_py_torch_leave_modes(struct rc_py_state *state) {
  PyObject *type, *error, *traceback;
  PyObject *const *calls = state->torch.mode_calls;
  PyErr_Fetch(&type, &error, &traceback);
  PyObject *modes = NULL;
  if (rc_py_torch_seen(state) && has_modes(calls)) modes = Py_BuildValue("([][])");
  bool ok = modes && pop_stack(calls, NULL, PyTuple_GET_ITEM(modes, 0)) &&
            pop_stack(calls + 3, Py_None, PyTuple_GET_ITEM(modes, 1));
  if (modes && !ok) {
    PyErr_Clear();
    rc_py_torch_enter_modes(state, modes);
    modes = NULL;
  }
  PyErr_Restore(type, error, traceback);
  return modes;
}

PyObject *rc_py_torch_leave_modes_after(struct rc_py_state *state) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
  PyObject *modes = rc_py_torch_leave_modes(state);
  if (modes) PyErr_Clear();
  return modes;
}

void rc_py_torch_enter_modes(struct rc_py_state *state, PyObject *modes) {
  PyObject *type, *error, *traceback;
  if (!modes) return;
  PyErr_Fetch(&type, &error, &traceback);
  push_stack(state->torch.mode_calls[2], PyTuple_GET_ITEM(modes, 0));
  push_stack(state->torch.mode_calls[5], PyTuple_GET_ITEM(modes, 1));
  Py_DECREF(modes);
  PyErr_Restore(type, error, traceback);
}

/* ---- Received -------------------------------------------------------------------------------- */

bool rc_py_torch_needed(struct rc_py_state *state) {
  if (rc_py_torch_seen(state)) return true;
  PyObject *module = PyImport_ImportModule("torch");
  bool loaded = module && torch_load(state, module);
  Py_XDECREF(module);
  if (loaded || !PyErr_ExceptionMatches(PyExc_ImportError)) return loaded;
  PyErr_SetString(PyExc_ImportError,
                  "the frame holds torch tensors, and torch can't be imported here: install torch "
                  "in this process's environment, or send NumPy arrays");
  return false;
}

/* Whether DLPack has a code for the dtype, with the same meaning in torch. */
static bool takes_dlpack(const struct rc_py_torch *torch, int index) {
  return torch->exchange && !rc_py_dtypes[index].flags &&
         rc_py_dtypes[index].dtype.code != RC_PY_OPAQUE_CODE;
}

static PyObject *empty(struct rc_py_state *state, int dtype, const struct ringcast_item *item,
                       PyObject *device) {
  struct rc_py_torch *torch = &state->torch;
  PyObject *shape = rc_py_dims(item->shape, item->ndim, 1);
  if (!shape) return NULL;
  PyObject *tensor = NULL;
  if (rc_py_is_c_order(item->ndim, item->shape, item->strides)) {
    PyObject *arguments[] = {shape, torch->dtypes[dtype], device};
    tensor = PyObject_Vectorcall(torch->empty, arguments, 1, torch->keywords);
    Py_DECREF(shape);
    return tensor;
  }
  PyObject *strides = rc_py_dims(item->strides, item->ndim, 1);
  if (strides) {
    PyObject *arguments[] = {shape, strides, torch->dtypes[dtype], device};
    tensor = PyObject_Vectorcall(torch->empty_strided, arguments, 2, torch->keywords);
  }
  Py_DECREF(shape);
  Py_XDECREF(strides);
  return tensor;
}

static bool has_elements(const struct ringcast_item *item) {
  for (int32_t i = 0; i < item->ndim; i++) {
    if (item->shape[i] == 0) return false;
  }
  return true;
}

PyObject *rc_py_torch_empty(struct rc_py_state *state, int dtype, const struct ringcast_item *item,
                            PyObject *device, void **out) {
  PyObject *tensor = empty(state, dtype, item, device);
  if (!tensor) return NULL;
  bool is_real = (PyObject *)Py_TYPE(tensor) == state->torch.tensor &&
                 rc_py_torch_data_ptr(state, tensor, out);
  if (is_real && (*out || !has_elements(item))) return tensor;
  Py_DECREF(tensor);
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "torch gives no real tensors here");
  return NULL;
}

/* True, with the exception cleared: make the tensor in another way. False: made, or an exception
 * beyond torch (Ctrl-C) is set. */
static bool may_try_on(const PyObject *tensor) {
  if (tensor || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))) return false;
  PyErr_Clear();
  return true;
}

/* A tensor in a block of memory.c. NULL: no block, or raised. */
static PyObject *over_block(struct rc_py_state *state, const struct ringcast_item *item,
                            uint64_t bytes, void **out) {
  struct rc_py_block *block = rc_py_block_take(bytes);
  if (!block) return NULL;
  *out = rc_py_block_data(block);
  return rc_py_dlpack_make(state->torch.exchange, item, *out, rc_py_block_give, block);
}

/* A tensor in memory allocated with the tensor. NULL: raised. */
static PyObject *over_ours(struct rc_py_state *state, const struct ringcast_item *item,
                           uint64_t bytes, void **out) {
  enum { ALIGNMENT = 64 }; /* as torch's own allocator */
  void *memory = PyMem_RawMalloc(bytes + ALIGNMENT);
  if (!memory) return PyErr_NoMemory();
  *out = (void *)(((uintptr_t)memory + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1));
  return rc_py_dlpack_make(state->torch.exchange, item, *out, PyMem_RawFree, memory);
}

static PyObject *make(struct rc_py_state *state, int index, const struct ringcast_item *item,
                      uint64_t bytes, void **out) {
  bool may_be_ours = takes_dlpack(&state->torch, index);
  bool takes_block = may_be_ours && bytes >= RC_PY_RECYCLE_LEAST;
  PyObject *tensor = takes_block ? over_block(state, item, bytes, out) : NULL;
  if (may_try_on(tensor)) tensor = rc_py_torch_empty(state, index, item, state->torch.cpu, out);
  if (may_be_ours && may_try_on(tensor)) tensor = over_ours(state, item, bytes, out);
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
  rc_py_raise_text(state, EPROTO,
                   "the frame holds a tensor of dtype code %d, %d bits, which this torch lacks",
                   item->dtype.code, item->dtype.bits);
  return -1;
}

/* False: raised. */
static bool is_at(struct rc_py_state *state, PyObject *tensor, const void *data) {
  void *kept;
  if (!rc_py_torch_data_ptr(state, tensor, &kept)) return false;
  if (kept == data) return true;
  PyErr_SetString(PyExc_RuntimeError,
                  "torch has put a Parameter, or a tensor that requires_grad, in other memory than "
                  "its data");
  return false;
}

static PyObject *make_finished(struct rc_py_state *state, int index,
                               const struct ringcast_item *item, uint64_t bytes, void **out) {
  PyObject *tensor = make(state, index, item, bytes, out);
  if (!tensor && bytes > 0) return NULL; /* the frame has as many: no damage */
  if (tensor) tensor = rc_py_torch_finish(state, tensor, item->flags);
  if (!tensor) rc_py_protocol_from_current(state, "torch can't make its tensor");
  bool is_finished = item->flags & (RINGCAST_ITEM_PARAMETER | RINGCAST_ITEM_REQUIRES_GRAD);
  if (tensor && is_finished && bytes > 0 && !is_at(state, tensor, *out)) Py_CLEAR(tensor);
  return tensor;
}

/* The modes are not looked for before something fails: most threads have none. */
PyObject *rc_py_torch_make(struct rc_py_state *state, const struct ringcast_item *item,
                           uint64_t bytes, void **out) {
  int index = rc_py_torch_index(state, item);
  if (index < 0) return NULL;
  PyObject *modes = NULL;
  PyObject *tensor = make_finished(state, index, item, bytes, out);
  if (!tensor) modes = rc_py_torch_leave_modes_after(state);
  if (modes) tensor = make_finished(state, index, item, bytes, out);
  rc_py_torch_enter_modes(state, modes);
  return tensor;
}

/* Whether torch can take the item's dtype by DLPack. False also if raised. */
static bool is_exchanged(struct rc_py_state *state, const struct ringcast_item *item) {
  if (!rc_py_torch_needed(state)) return false;
  int index = rc_py_dtype_of(item);
  return index >= 0 && state->torch.dtypes[index] && takes_dlpack(&state->torch, index);
}

PyObject *rc_py_torch_over(struct rc_py_state *state, const struct ringcast_item *item,
                           void (*give)(void *owner), void *owner) {
  if (!is_exchanged(state, item)) {
    give(owner);
    return NULL;
  }
  PyObject *tensor =
      rc_py_dlpack_make(state->torch.exchange, item, (void *)item->data, give, owner);
  if (may_try_on(tensor) || !tensor) return NULL;
  tensor = rc_py_torch_finish(state, tensor, item->flags);
  if (!tensor) rc_py_protocol_from_current(state, "torch can't make its tensor");
  return tensor;
}

/* The capsule's tensor, if of the item's dtype: DLPack's codes differ in some versions of torch. */
static PyObject *taken_over(struct rc_py_state *state, PyObject *capsule, PyObject *wanted) {
  PyObject *tensor = PyObject_CallOneArg(state->torch.from_dlpack, capsule);
  if (!tensor) return NULL;
  PyObject *dtype = PyObject_GetAttr(tensor, state->names.dtype);
  if (dtype && dtype != wanted) PyErr_SetString(PyExc_TypeError, "another dtype");
  if (!dtype || dtype != wanted) Py_CLEAR(tensor);
  Py_XDECREF(dtype);
  return tensor;
}

PyObject *rc_py_torch_from(struct rc_py_state *state, const struct ringcast_item *item,
                           PyObject *capsule) {
  if (!is_exchanged(state, item)) return NULL;
  PyObject *tensor = taken_over(state, capsule, state->torch.dtypes[rc_py_dtype_of(item)]);
  if (may_try_on(tensor) || !tensor) return NULL;
  tensor = rc_py_torch_finish(state, tensor, item->flags);
  if (!tensor) rc_py_protocol_from_current(state, "torch can't make its tensor");
  return tensor;
}
