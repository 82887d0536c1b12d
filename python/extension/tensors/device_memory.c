/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a device that no library of Python's gave, and DeviceTensor, which shows it.
 *
 * A tensor of torch's or CuPy's over it may die in any thread, with the GIL or without, so it is counted by an atomic
 * and is no object of Python's, as in lent.c.
 */
#include "python/extension/device.h"

#include <stdatomic.h>
#include <structmember.h>

struct rc_py_device_memory {
  _Atomic uint64_t count;
  ringcast_gpu_memory *own; /* NULL: it is the writer's, and ... */
  ringcast_gpu_hold *hold;  /* ... this says that we look at it */
  int32_t device;
  uint64_t address;
  void *stream; /* what its bytes are ordered by */
};

static struct rc_py_device_memory *memory_new(int32_t device, void *stream) {
  struct rc_py_device_memory *memory = PyMem_RawCalloc(1, sizeof *memory);
  if (!memory) return NULL;
  atomic_init(&memory->count, 1);
  memory->device = device;
  memory->stream = stream;
  return memory;
}

struct rc_py_device_memory *rc_py_device_memory_new(struct rc_py_state *state, const struct rc_py_gpu_reader *gpu,
                                                    uint64_t bytes, void *stream, uint64_t *out) {
  struct rc_py_device_memory *memory = memory_new(gpu->device, stream);
  if (!memory) {
    PyErr_NoMemory();
    return NULL;
  }
  int rc = bytes ? ringcast_gpu_memory_alloc(gpu->reader, bytes, stream, &memory->address, &memory->own) : 0;
  if (rc < 0) {
    PyMem_RawFree(memory);
    rc_py_raise(state, rc);
    return NULL;
  }
  *out = memory->address;
  return memory;
}

struct rc_py_device_memory *rc_py_device_memory_of(ringcast_gpu_hold *hold, int32_t device, uint64_t address,
                                                   void *stream) {
  struct rc_py_device_memory *memory = memory_new(device, stream);
  if (!memory) return NULL;
  memory->hold = hold;
  memory->address = address;
  return memory;
}

/* Relaxed: who takes it has one. */
static struct rc_py_device_memory *memory_take(struct rc_py_device_memory *memory) {
  atomic_fetch_add_explicit(&memory->count, 1, memory_order_relaxed);
  return memory;
}

/* The last one pairs with all the others: what they enqueued is before what this does. */
void rc_py_device_memory_drop(struct rc_py_device_memory *memory) {
  if (!memory || atomic_fetch_sub_explicit(&memory->count, 1, memory_order_acq_rel) > 1) return;
  ringcast_gpu_memory_free(memory->own);
  ringcast_gpu_unmap(memory->hold);
  PyMem_RawFree(memory);
}

/* ---- Capsules --------------------------------------------------------------------------------------------------- */

static void give_memory(void *memory) {
  rc_py_device_memory_drop(memory);
}

PyObject *rc_py_device_capsule(const struct ringcast_item *item, struct rc_py_device_memory *memory, bool versioned) {
  const struct rc_py_dlpack_place place = {.device_type = RC_PY_DLPACK_CUDA,
                                           .device = memory->device,
                                           .is_versioned = versioned,
                                           .is_read_only = memory->hold != NULL};
  return rc_py_dlpack_capsule_at(item, (const void *)(uintptr_t)memory->address, &place, give_memory,
                                 memory_take(memory));
}

/* ---- DeviceTensor ----------------------------------------------------------------------------------------------- */

struct device_tensor {
  PyObject_HEAD struct rc_py_device_memory *memory;
  PyObject *shape;
  struct ringcast_item item;
};

PyObject *rc_py_device_tensor(struct rc_py_state *state, const struct ringcast_item *item,
                              struct rc_py_device_memory *memory) {
  PyTypeObject *type = state->device_tensor_type;
  struct device_tensor *self = (struct device_tensor *)type->tp_alloc(type, 0);
  if (!self) {
    rc_py_device_memory_drop(memory);
    return NULL;
  }
  self->memory = memory;
  self->item = *item;
  self->item.key = NULL;
  self->item.data = NULL;
  if ((self->shape = rc_py_shape(item))) return (PyObject *)self;
  Py_DECREF(self);
  return NULL;
}

static void tensor_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  struct device_tensor *self = (struct device_tensor *)object;
  rc_py_device_memory_drop(self->memory);
  Py_XDECREF(self->shape);
  type->tp_free(object);
  Py_DECREF(type);
}

/* Makes sure that who goes on on another stream finds the bytes there: nothing but that is waited for. DLPack: None and
 * 1 are the legacy default stream, 2 the one of each thread, -1 that nothing is to be done. */
static bool settle(struct device_tensor *self, PyObject *stream) {
  long long number = !stream || stream == Py_None ? 1 : PyLong_AsLongLong(stream);
  if (number == -1) return !PyErr_Occurred();
  void *wanted = number == 1 ? NULL : (void *)(intptr_t)number;
  if (wanted == self->memory->stream || self->item.bytes == 0) return true;
  int rc;
  Py_BEGIN_ALLOW_THREADS rc = ringcast_gpu_stream_wait(self->memory->device, self->memory->stream);
  Py_END_ALLOW_THREADS
  if (rc < 0) rc_py_raise(rc_py_state_of(self), rc);
  return rc == 0;
}

/* Whether it asks for a version from 1.0 on; -1: raised. */
static int wants_version(PyObject *version) {
  if (!version || version == Py_None) return 0;
  PyObject *major = PySequence_GetItem(version, 0);
  long number = major ? PyLong_AsLong(major) : -1;
  Py_XDECREF(major);
  return number == -1 && PyErr_Occurred() ? -1 : number >= 1;
}

static bool may_copy(PyObject *copy, PyObject *device, const struct device_tensor *self) {
  int type = RC_PY_DLPACK_CUDA, ordinal = self->memory->device;
  if (device && device != Py_None && !PyTuple_Check(device)) {
    PyErr_Format(PyExc_TypeError, "dl_device must be a tuple of two ints, not %R", device);
    return false;
  }
  if (device && device != Py_None && !PyArg_ParseTuple(device, "ii", &type, &ordinal)) return false;
  if (copy != Py_True && type == RC_PY_DLPACK_CUDA && ordinal == self->memory->device) return true;
  PyErr_SetString(PyExc_BufferError, "a DeviceTensor gives its memory where it is, not a copy");
  return false;
}

PyDoc_STRVAR(dlpack_doc,
             "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
             "A capsule of DLPack's, for from_dlpack() of torch, CuPy, JAX. BufferError: a copy is asked for, or "
             "another device.");
static PyObject *tensor_dlpack(PyObject *object, PyObject *args, PyObject *keywords) {
  static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
  struct device_tensor *self = (struct device_tensor *)object;
  PyObject *stream = NULL, *version = NULL, *device = NULL, *copy = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__", names, &stream, &version, &device, &copy)) {
    return NULL;
  }
  int versioned = wants_version(version);
  if (versioned < 0 || !may_copy(copy, device, self) || !settle(self, stream)) return NULL;
  return rc_py_device_capsule(&self->item, self->memory, versioned);
}

PyObject *rc_py_device_tensor_export(PyObject *tensor, void **stream) {
  const struct device_tensor *self = (struct device_tensor *)tensor;
  *stream = self->memory->stream;
  return rc_py_device_capsule(&self->item, self->memory, false);
}

PyDoc_STRVAR(dlpack_device_doc, "__dlpack_device__($self)\n--\n\n(2, ordinal): CUDA's, and which.");
static PyObject *tensor_dlpack_device(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return Py_BuildValue("(ii)", RC_PY_DLPACK_CUDA, (int)((struct device_tensor *)object)->memory->device);
}

static const char *dtype_name(const struct device_tensor *self) {
  int index = rc_py_dtype_of(&self->item);
  return index < 0 ? "unknown" : rc_py_dtypes[index].torch;
}

static PyObject *get_dtype(PyObject *object, void *Py_UNUSED(closure)) {
  return PyUnicode_FromString(dtype_name((struct device_tensor *)object));
}

static PyObject *get_device(PyObject *object, void *Py_UNUSED(closure)) {
  return PyUnicode_FromFormat("cuda:%d", (int)((struct device_tensor *)object)->memory->device);
}

static PyObject *get_data_ptr(PyObject *object, void *Py_UNUSED(closure)) {
  return PyLong_FromUnsignedLongLong(((struct device_tensor *)object)->memory->address);
}

/* Version 3 of what Numba has described. */
static PyObject *get_interface(PyObject *object, void *Py_UNUSED(closure)) {
  struct device_tensor *self = (struct device_tensor *)object;
  int index = rc_py_dtype_of(&self->item);
  const char *name = index < 0 ? NULL : rc_py_dtypes[index].numpy;
  if (!name) return PyErr_Format(PyExc_AttributeError, "__cuda_array_interface__ has no name for %s", dtype_name(self));
  const struct ringcast_dtype *dtype = &self->item.dtype;
  const char *order = dtype->bits == 8 ? "|" : "<";
  PyObject *type = PyUnicode_FromFormat("%s%c%d", order, "iuf  cb"[dtype->code], dtype->bits / 8);
  if (!type) return NULL;
  unsigned long long stream = (unsigned long long)(uintptr_t)self->memory->stream;
  return Py_BuildValue("{s:O,s:N,s:(KO),s:i,s:O,s:K}", "shape", self->shape, "typestr", type, "data",
                       (unsigned long long)self->memory->address, self->memory->hold ? Py_True : Py_False, "version", 3,
                       "strides", Py_None, "stream", stream ? stream : 1);
}

static PyObject *tensor_repr(PyObject *object) {
  struct device_tensor *self = (struct device_tensor *)object;
  return PyUnicode_FromFormat("<ringcast.DeviceTensor of %s, shape %R, on cuda:%d>", dtype_name(self), self->shape,
                              (int)self->memory->device);
}

static PyMethodDef tensor_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS, dlpack_doc},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS, dlpack_device_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef tensor_members[] = {
    {"shape", T_OBJECT_EX, offsetof(struct device_tensor, shape), READONLY, "A tuple of ints."},
    {"nbytes", T_ULONGLONG, offsetof(struct device_tensor, item.bytes), READONLY, "Bytes of it, in C order."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef tensor_properties[] = {
    {"dtype", get_dtype, NULL, "Its name, as torch has it: \"float32\".", NULL},
    {"device", get_device, NULL, "\"cuda:0\" and the like.", NULL},
    {"data_ptr", get_data_ptr, NULL, "Its address on the device; 0: it is empty.", NULL},
    {"__cuda_array_interface__", get_interface, NULL, "For who knows no DLPack: CuPy, Numba.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(tensor_doc,
             "An array on a CUDA device, received from a sender that had it of no library known here, or of one that "
             "is missing here.\n\n"
             "torch.from_dlpack(tensor), cupy.from_dlpack(tensor) and the like make theirs of it, over the same "
             "memory, which goes\nwith the last of them. Of a view() it is a place in the writer's pool: read-only.");
static PyType_Slot tensor_slots[] = {
    {Py_tp_doc, (void *)tensor_doc},   {Py_tp_methods, tensor_methods}, {Py_tp_members, tensor_members},
    {Py_tp_getset, tensor_properties}, {Py_tp_repr, tensor_repr},       {Py_tp_dealloc, tensor_dealloc},
    {0, NULL},
};
PyType_Spec rc_py_device_tensor_spec = {"ringcast.DeviceTensor", sizeof(struct device_tensor), 0, Py_TPFLAGS_DEFAULT,
                                        tensor_slots};
