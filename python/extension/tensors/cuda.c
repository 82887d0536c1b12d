/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors and arrays of a CUDA device, from Python's side.
 *
 * torch's tensors are described as on the CPU (torch.c). A tensor not in C order is first made
 * contiguous on torch's current stream, which also orders the copy. Arrays of other libraries
 * (CuPy, JAX, any type with __dlpack__) are rarer and go through ringcast/_device.py.
 */
#include "python/extension/tensors/device.h"

/* For a failure that only means "not such an array". */
static int none_or_raised(void) {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}

/* ---- torch's --------------------------------------------------------------------------------- */

static bool ordinal_of(struct rc_py_state *state, PyObject *tensor, int32_t *out) {
  PyObject *device = PyObject_CallMethodNoArgs(tensor, state->names.get_device);
  if (!device) return false;
  long ordinal = PyLong_AsLong(device);
  Py_DECREF(device);
  if (ordinal == -1 && PyErr_Occurred()) return false;
  *out = (int32_t)ordinal;
  return true;
}

bool rc_py_torch_stream(struct rc_py_state *state, int32_t device, void **out) {
  struct rc_py_torch *torch = &state->torch;
  if (torch->exchange && rc_py_dlpack_stream(torch->exchange, device, out)) return true;
  PyObject *stream = rc_py_device_call(state, "stream_number", "(i)", (int)device);
  if (!stream) return false;
  *out = PyLong_AsVoidPtr(stream);
  Py_DECREF(stream);
  return *out || !PyErr_Occurred();
}

/* Puts a torch tensor in C order in place of the described tensor; consumes `tensor`. */
static bool replace(struct rc_py_state *state, PyObject *tensor, struct rc_py_source *out) {
  void *data = NULL;
  if (!tensor || !rc_py_torch_data_ptr(state, tensor, &data)) {
    Py_XDECREF(tensor);
    return false;
  }
  Py_XSETREF(out->keep, tensor);
  out->tensor.data = data;
  out->tensor.strides = NULL;
  return true;
}

/* Tells torch that the stream uses the tensor: otherwise torch may reuse the memory as soon as the
 * tensor is dropped. If the tensor was allocated on the stream, torch ignores the call. False:
 * raised. */
static bool record(struct rc_py_state *state, const struct rc_py_source *source) {
  struct rc_py_torch *torch = &state->torch;
  if (!torch->stream || torch->stream_is != source->stream ||
      torch->stream_device != source->device) {
    PyObject *stream = rc_py_device_call(state, "current_stream", "(i)", (int)source->device);
    if (!stream) return false;
    Py_XSETREF(torch->stream, stream);
    torch->stream_is = source->stream;
    torch->stream_device = source->device;
  }
  PyObject *none =
      PyObject_CallMethodOneArg(source->keep, state->names.record_stream, torch->stream);
  Py_XDECREF(none);
  return none || none_or_raised() == 0; /* a foreign allocator may refuse */
}

bool rc_py_cuda_before_copy(struct rc_py_state *state, PyObject *tensor) {
  struct rc_py_source source = {.keep = tensor};
  if (!rc_py_device_may_start(state)) return false;
  if (!ordinal_of(state, tensor, &source.device)) return false;
  return rc_py_torch_stream(state, source.device, &source.stream) && record(state, &source);
}

int rc_py_cuda_complete(struct rc_py_state *state, PyObject *Py_UNUSED(object),
                        struct rc_py_source *out) {
  const struct ringcast_tensor *tensor = &out->tensor;
  out->tensor.flags |= RINGCAST_ITEM_CUDA;
  if (!rc_py_torch_stream(state, out->device, &out->stream) || !record(state, out)) return -1;
  if (rc_py_is_c_order(tensor->ndim, tensor->shape, tensor->strides)) return 1;
  PyObject *contiguous = PyObject_CallMethodNoArgs(out->keep, state->names.contiguous);
  return replace(state, contiguous, out) ? 1 : -1;
}

int rc_py_cuda_move(struct rc_py_state *state, PyObject *Py_UNUSED(object), int32_t device,
                    struct rc_py_source *out) {
  PyObject *moved = rc_py_device_call(state, "move", "(Oi)", out->keep, (int)device);
  if (!replace(state, moved, out)) return -1;
  out->device = device;
  return rc_py_torch_stream(state, device, &out->stream) ? 1 : -1;
}

PyObject *rc_py_torch_empty_on(struct rc_py_state *state, int dtype,
                               const struct ringcast_item *item, int32_t device, uint64_t *out) {
  PyObject *where = PyUnicode_FromFormat("cuda:%d", (int)device);
  void *data = NULL;
  if (!where) return NULL;
  PyObject *modes = NULL;
  PyObject *tensor = rc_py_torch_empty(state, dtype, item, where, &data);
  if (!tensor) modes = rc_py_torch_leave_modes_after(state);
  if (modes) tensor = rc_py_torch_empty(state, dtype, item, where, &data);
  rc_py_torch_enter_modes(state, modes);
  Py_DECREF(where);
  *out = (uint64_t)(uintptr_t)data;
  return tensor;
}

/* The strides, with torch's value for axes of length 0: as if of length 1. */
static PyObject *strides_of(const struct ringcast_item *item) {
  int64_t strides[RINGCAST_MAX_NDIM], stride = 1;
  if (!rc_py_is_c_order(item->ndim, item->shape, item->strides))
    return rc_py_dims(item->strides, item->ndim, 1);
  for (int32_t i = item->ndim; i-- > 0;) {
    strides[i] = stride;
    if (item->shape[i] > 1) stride *= item->shape[i];
  }
  return rc_py_dims(strides, item->ndim, 1);
}

/* An empty tensor of the dtype, where the arena is. */
static PyObject *empty_beside(struct rc_py_state *state, PyObject *arena, int dtype) {
  const struct ringcast_item none = {.ndim = 1, .strides = {1}};
  int32_t device;
  uint64_t address;
  if (!ordinal_of(state, arena, &device)) return NULL;
  return rc_py_torch_empty_on(state, dtype, &none, device, &address);
}

/* Not a view: views of one base share a version counter, so autograd would count a write to any
 * view as a write to all. */
PyObject *rc_py_torch_within(struct rc_py_state *state, PyObject *arena,
                             const struct ringcast_item *item, uint64_t offset) {
  int index = rc_py_torch_index(state, item);
  if (index < 0) return NULL;
  const struct ringcast_dtype *dtype = &item->dtype;
  uint64_t size = ((uint64_t)dtype->bits * dtype->lanes + 7) / 8;
  PyObject *storage = NULL, *start = NULL, *shape = NULL, *strides = NULL, *set = NULL;
  PyObject *tensor = empty_beside(state, arena, index);
  if (tensor) storage = PyObject_CallMethodNoArgs(arena, state->names.untyped_storage);
  if (storage) start = PyLong_FromUnsignedLongLong(offset / size);
  if (start) shape = rc_py_dims(item->shape, item->ndim, 1);
  if (shape) strides = strides_of(item);
  if (strides) {
    set =
        PyObject_CallMethodObjArgs(tensor, state->names.set_, storage, start, shape, strides, NULL);
  }
  Py_XDECREF(tensor);
  Py_XDECREF(storage);
  Py_XDECREF(start);
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  return set; /* the same object as `tensor` */
}

/* ---- Others' --------------------------------------------------------------------------------- */

/* The tensor in a DLPack capsule; NULL, with nothing raised: no such capsule. The unversioned
 * struct begins with the tensor; in the versioned struct a version, a context, a deleter and flags
 * come first. */
static const struct rc_py_dltensor *in_capsule(PyObject *capsule) {
  const size_t head = 2 * sizeof(uint32_t) + 2 * sizeof(void *) + sizeof(uint64_t);
  if (PyCapsule_IsValid(capsule, "dltensor")) return PyCapsule_GetPointer(capsule, "dltensor");
  if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) return NULL;
  const uint8_t *versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
  uint32_t major;
  memcpy(&major, versioned, sizeof major);
  if (major != 1) return NULL;
  return (const struct rc_py_dltensor *)(versioned + head);
}

/* 1, 0, -1. The capsule's destructor gives the memory back. */
static int describe_capsule(PyObject *capsule, struct rc_py_source *out) {
  const struct rc_py_dltensor *tensor = in_capsule(capsule);
  if (!tensor || tensor->device.type != RC_PY_DLPACK_CUDA) return 0;
  if (tensor->ndim < 0 || tensor->ndim > RINGCAST_MAX_NDIM) return 0;
  if (rc_py_dtype_find(tensor->dtype) < 0) return 0;
  size_t bytes = (size_t)tensor->ndim * sizeof(int64_t);
  out->dims = PyMem_Malloc(2 * bytes + 1);
  if (!out->dims) {
    PyErr_NoMemory();
    return -1;
  }
  if (bytes) memcpy(out->dims, tensor->shape, bytes);
  if (bytes && tensor->strides) memcpy(out->dims + tensor->ndim, tensor->strides, bytes);
  out->keep = Py_NewRef(capsule);
  out->device = tensor->device.id;
  out->is_on_device = true;
  out->tensor =
      (struct ringcast_tensor){.data = (const uint8_t *)tensor->data + tensor->byte_offset,
                               .dtype = tensor->dtype,
                               .ndim = tensor->ndim,
                               .shape = out->dims,
                               .strides = tensor->strides ? out->dims + tensor->ndim : NULL};
  return 1;
}

/* A received DeviceTensor is sent on by the stream of its memory, which also orders the end of the
 * memory. */
static int describe_own(PyObject *object, struct rc_py_source *out) {
  PyObject *capsule = rc_py_device_tensor_export(object, &out->stream);
  if (!capsule) return -1;
  int described = describe_capsule(capsule, out);
  Py_DECREF(capsule);
  out->tensor.flags = RINGCAST_ITEM_CUDA;
  out->is_loose = false;
  if (described <= 0) rc_py_source_clear(out);
  return described;
}

/* Whether the type was checked elsewhere, or can't be an array. */
static bool is_known(struct rc_py_state *state, PyTypeObject *type) {
  const unsigned long builtin = Py_TPFLAGS_LONG_SUBCLASS | Py_TPFLAGS_LIST_SUBCLASS |
                                Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_BYTES_SUBCLASS |
                                Py_TPFLAGS_UNICODE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS |
                                Py_TPFLAGS_BASE_EXC_SUBCLASS | Py_TPFLAGS_TYPE_SUBCLASS;
  if (type->tp_flags & builtin || !_PyType_Lookup(type, state->names.__dlpack_device__))
    return true;
  if (state->numpy.ndarray && PyType_IsSubtype(type, (PyTypeObject *)state->numpy.ndarray))
    return true;
  return state->torch.tensor && PyType_IsSubtype(type, (PyTypeObject *)state->torch.tensor);
}

/* Describes the result of _device.py's export() or export_contiguous(), and consumes the result. 1,
 * 0, -1. */
static int describe_exported(PyObject *exported, struct rc_py_source *out) {
  PyObject *capsule;
  unsigned long long stream;
  unsigned flags;
  int is_loose, described = -1;
  if (exported && PyArg_ParseTuple(exported, "OKIp", &capsule, &stream, &flags, &is_loose)) {
    described = describe_capsule(capsule, out);
    out->tensor.flags = flags | RINGCAST_ITEM_CUDA;
    out->stream = (void *)(uintptr_t)stream;
    out->is_loose = is_loose;
  }
  Py_XDECREF(exported);
  if (described <= 0) rc_py_source_clear(out);
  return described;
}

int rc_py_cuda_describe(struct rc_py_state *state, PyObject *object, struct rc_py_source *out) {
  if (is_known(state, Py_TYPE(object))) return 0;
  if (Py_TYPE(object) == state->device_tensor_type) return describe_own(object, out);
  int type, device;
  PyObject *pair = PyObject_CallMethodNoArgs(object, state->names.__dlpack_device__);
  bool is_pair = pair && PyTuple_Check(pair) && PyArg_ParseTuple(pair, "ii", &type, &device);
  Py_XDECREF(pair);
  if (!is_pair) return none_or_raised();
  if (type != RC_PY_DLPACK_CUDA) return 0;
  int described = describe_exported(rc_py_device_call(state, "export", "(O)", object), out);
  const struct ringcast_tensor *tensor = &out->tensor;
  if (described <= 0 || !tensor->strides) return described;
  if (rc_py_is_c_order(tensor->ndim, tensor->shape, tensor->strides)) return described;
  rc_py_source_clear(out);
  /* A captured copy has no data until the graph is replayed. */
  if (!rc_py_device_may_start(state)) return -1;
  return describe_exported(rc_py_device_call(state, "export_contiguous", "(O)", object), out);
}
