/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch tensors, through their Python attributes: the extension links nothing of torch's and works with any version.
 * torch is never imported to send: nobody has a tensor of a module that was not imported.
 */
#include "view.h"

static bool torch_dtypes(struct rc_py_torch *torch, PyObject *module) {
  if (!torch->dtype_to_index) torch->dtype_to_index = PyDict_New();
  if (!torch->dtype_to_index) return false;
  for (int i = 0; i < RC_PY_DTYPES; i++) {
    if (torch->dtypes[i]) continue;
    torch->dtypes[i] = PyObject_GetAttrString(module, rc_py_dtypes[i].torch);
    if (!torch->dtypes[i]) {
      PyErr_Clear(); /* an older torch */
      continue;
    }
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
static int attribute_is_true(PyObject *object, PyObject *name) {
  PyObject *value = PyObject_GetAttr(object, name);
  int truth = value ? PyObject_IsTrue(value) : -1;
  Py_XDECREF(value);
  return truth;
}

static int method_is_true(PyObject *object, PyObject *name) {
  PyObject *value = PyObject_CallMethodNoArgs(object, name);
  int truth = value ? PyObject_IsTrue(value) : -1;
  Py_XDECREF(value);
  return truth;
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

/* A tensor whose memory says what it means: a lazy negation or conjugation is carried out. */
static PyObject *resolve(struct rc_py_state *state, PyObject *tensor, bool is_complex) {
  int negated = method_is_true(tensor, state->names.is_neg);
  int conjugated = negated >= 0 && is_complex ? method_is_true(tensor, state->names.is_conj) : 0;
  if (negated < 0 || conjugated < 0) return NULL;
  if (!negated && !conjugated) return rc_py_ref(tensor);
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

static bool data_ptr(struct rc_py_state *state, PyObject *tensor, void **out) {
  PyObject *address = PyObject_CallMethodNoArgs(tensor, state->names.data_ptr);
  if (!address) return false;
  *out = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return *out || !PyErr_Occurred();
}

static int describe(struct rc_py_state *state, PyObject *object, int index, struct rc_py_source *out) {
  out->tensor.dtype = rc_py_dtypes[index].dtype;
  out->keep = resolve(state, object, out->tensor.dtype.code == 5);
  if (!out->keep) return -1;
  int described = fill_dims(state, out);
  if (described <= 0) return described;
  void *data = NULL;
  if (!data_ptr(state, out->keep, &data)) return -1;
  uint64_t bytes;
  out->tensor.data = data;
  if (!data && ringcast_tensor_bytes(&out->tensor, &bytes) == 0 && bytes > 0) return 0; /* no memory of its own */
  int requires_grad = attribute_is_true(object, state->names.requires_grad);
  if (requires_grad < 0) return -1;
  out->tensor.flags = RINGCAST_ITEM_TORCH | (requires_grad ? RINGCAST_ITEM_REQUIRES_GRAD : 0) |
                      ((PyObject *)Py_TYPE(object) == state->torch.parameter ? RINGCAST_ITEM_PARAMETER : 0);
  return 1;
}

int rc_py_torch_describe(struct rc_py_state *state, PyObject *object, rc_py_where where, void *context,
                         struct rc_py_source *out) {
  if (!rc_py_torch_seen(state)) return 0;
  PyObject *type = (PyObject *)Py_TYPE(object);
  if (type != state->torch.tensor && type != state->torch.parameter) return 0;
  int is_cpu = attribute_is_true(object, state->names.is_cpu);
  if (is_cpu <= 0) return is_cpu < 0 ? -1 : raise_device(state, object, where, context);
  int index = dense_dtype(state, object);
  if (index < 0) return index + 1;
  int described = describe(state, object, index, out);
  if (described <= 0) rc_py_source_clear(out);
  return described;
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

/* DLPack's DLManagedTensor (dlpack.h of dmlc/dlpack, the unversioned one), and what belongs to one of ours. */
struct dlpack {
  void *data;
  struct {
    int32_t type, id;
  } device;
  int32_t ndim;
  struct ringcast_dtype dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
  void *context;
  void (*deleter)(struct dlpack *self);
  struct rc_py_block *block;
  int64_t dims[];
};
enum { DLPACK_CPU = 1 };

/* torch calls it when the last tensor over this memory dies, in any thread. */
static void dlpack_delete(struct dlpack *self) {
  rc_py_block_give(self->block);
  PyMem_RawFree(self);
}

/* If nobody took it over. */
static void dlpack_drop(PyObject *capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor")) dlpack_delete(PyCapsule_GetPointer(capsule, "dltensor"));
}

/* Takes over `block`, at once. */
static PyObject *dlpack_new(const struct ringcast_item *item, struct rc_py_block *block) {
  size_t ndim = (size_t)item->ndim;
  struct dlpack *self = PyMem_RawCalloc(1, sizeof *self + 2 * ndim * sizeof *self->dims);
  if (!self) {
    rc_py_block_give(block);
    return PyErr_NoMemory();
  }
  self->data = rc_py_block_data(block);
  self->device.type = DLPACK_CPU;
  self->ndim = item->ndim;
  self->dtype = item->dtype;
  self->shape = self->dims;
  self->strides = self->dims + ndim;
  self->deleter = dlpack_delete;
  self->block = block;
  int64_t stride = 1;
  for (size_t i = ndim; i-- > 0; stride *= item->shape[i]) {
    self->shape[i] = item->shape[i];
    self->strides[i] = stride;
  }
  PyObject *capsule = PyCapsule_New(self, "dltensor", dlpack_drop);
  if (!capsule) dlpack_delete(self);
  return capsule;
}

/* A tensor over memory that is used again. NULL: there is none for it, or this torch can't; nothing is raised, but for
 * what is no matter of torch's (Ctrl-C). */
static PyObject *recycled(struct rc_py_state *state, int index, const struct ringcast_item *item, uint64_t bytes) {
  struct rc_py_torch *torch = &state->torch;
  if (!torch->from_dlpack || torch->takes_no_dlpack[index]) return NULL;
  struct rc_py_block *block = rc_py_block_take(bytes);
  if (!block) return NULL;
  PyObject *capsule = dlpack_new(item, block);
  PyObject *tensor = capsule ? PyObject_CallOneArg(torch->from_dlpack, capsule) : NULL;
  Py_XDECREF(capsule);
  if (tensor || !PyErr_ExceptionMatches(PyExc_Exception)) return tensor;
  PyErr_Clear();
  torch->takes_no_dlpack[index] = true;
  return NULL;
}

/* Consumes `tensor`. */
static PyObject *finish(struct rc_py_state *state, PyObject *tensor, uint32_t flags) {
  PyObject *requires_grad = flags & RINGCAST_ITEM_REQUIRES_GRAD ? Py_True : Py_False;
  PyObject *result;
  if (flags & RINGCAST_ITEM_PARAMETER) {
    result = PyObject_CallFunctionObjArgs(state->torch.parameter, tensor, requires_grad, NULL);
  } else if (requires_grad == Py_True) {
    result = PyObject_CallMethodNoArgs(tensor, state->names.requires_grad_);
  } else {
    return tensor;
  }
  Py_DECREF(tensor);
  return result;
}

PyObject *rc_py_torch_make(struct rc_py_state *state, const struct ringcast_item *item, uint64_t bytes, void **out) {
  if (!rc_py_torch_needed(state)) return NULL;
  int index = rc_py_dtype_find(item->dtype);
  if (index < 0 || !state->torch.dtypes[index]) {
    return rc_py_raise_text(state, EPROTO, "the frame holds a tensor of dtype code %d, %d bits, which this torch lacks",
                            item->dtype.code, item->dtype.bits);
  }
  PyObject *tensor = rc_py_is_worth_recycling(bytes) ? recycled(state, index, item, bytes) : NULL;
  if (!tensor && PyErr_Occurred()) return NULL;
  if (!tensor) tensor = empty(state, state->torch.dtypes[index], item);
  if (tensor && !data_ptr(state, tensor, out)) Py_CLEAR(tensor);
  if (tensor && !*out && item->bytes) {
    PyErr_SetString(PyExc_RuntimeError, "torch.empty gave a tensor without memory");
    Py_CLEAR(tensor);
  }
  if (tensor) tensor = finish(state, tensor, item->flags);
  if (!tensor) rc_py_protocol_from_current(state, "torch can't make its tensor");
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

PyObject *rc_py_torch_over(struct rc_py_state *state, const struct ringcast_item *item, PyObject *capsule) {
  if (!rc_py_torch_needed(state)) return NULL;
  struct rc_py_torch *torch = &state->torch;
  int index = rc_py_dtype_find(item->dtype);
  if (index < 0 || !torch->dtypes[index] || !torch->from_dlpack || torch->takes_no_dlpack[index]) return NULL;
  PyObject *tensor = taken_over(state, capsule, torch->dtypes[index]);
  if (tensor) {
    tensor = finish(state, tensor, item->flags);
    if (!tensor) rc_py_protocol_from_current(state, "torch can't make its tensor");
    return tensor;
  }
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
  PyErr_Clear();
  torch->takes_no_dlpack[index] = true;
  return NULL;
}
