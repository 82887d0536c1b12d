/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory of ringcast's own, and DeviceTensor, the Python object over such memory; and calls
 * of ringcast/_device.py, which handles rare requests to torch, CuPy and JAX.
 *
 * A tensor of torch or CuPy over the memory may die in any thread, with the GIL or without. So the
 * memory is counted by an atomic and is not a Python object, as in view_arrays.c.
 *
 * The memory is freed in the order of its own stream. A consumer that goes on by another stream
 * names the stream in __dlpack__, and kernels of the named stream may still read the memory when
 * the consumer drops the last reference. (No library takes care of that: torch's record_stream()
 * ignores memory of foreign allocators.)
 *
 * A number alone does not keep a stream: a destroyed stream's number may crash the driver, or
 * belong to a new stream. So if torch or CuPy names the stream as the current one, the stream's
 * Python object is kept with the memory, and the memory's own stream waits for the kept stream at
 * the end. Any other number is used once, at the hand-over, and is not remembered: at the end the
 * worker waits until the device has done all work of the process, which covers everything that the
 * consumer enqueued after the hand-over, on any stream.
 */
#include "python/extension/tensors/device.h"

#include "python/docstrings.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <structmember.h>

/* ---- Calls of ringcast/_device.py ------------------------------------------------------------ */

PyObject *rc_py_device_call(struct rc_py_state *state, const char *name, const char *format, ...) {
  if (!state->device_helpers) state->device_helpers = PyImport_ImportModule("ringcast._device");
  if (!state->device_helpers) return NULL;
  PyObject *function = PyObject_GetAttrString(state->device_helpers, name);
  if (!function) return NULL;
  PyObject *result = NULL;
  va_list arguments;
  va_start(arguments, format);
  PyObject *tuple = Py_VaBuildValue(format, arguments);
  va_end(arguments);
  if (tuple) result = PyObject_CallObject(function, tuple);
  Py_DECREF(function);
  Py_XDECREF(tuple);
  return result;
}

bool rc_py_device_may_start(struct rc_py_state *state) {
  PyObject *captures = rc_py_device_call(state, "captures", "()");
  bool may = captures && captures != Py_True;
  Py_XDECREF(captures);
  if (may || PyErr_Occurred()) return may;
  rc_py_raise_text(state, EBUSY,
                   "the stream captures a CUDA graph, which can't hold a message: send and receive "
                   "outside of the capture");
  return false;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* A further stream that uses the bytes. The legacy stream also covers the per-thread streams, for
 * which it waits. */
struct user {
  struct user *next;
  struct rc_py_stream stream;
};

struct rc_py_device_memory {
  _Atomic uint64_t count;
  ringcast_gpu_memory *own; /* NULL: the memory is the writer's, held by ... */
  ringcast_gpu_hold *hold;  /* ... or this */
  int32_t device;
  uint64_t address;
  struct rc_py_stream stream; /* orders the bytes */
  /* Both are added to with the GIL, through a DeviceTensor: */
  struct user *users;
  bool has_strangers; /* unknown streams use the memory too */
};

static struct rc_py_device_memory *memory_new(int32_t device, struct rc_py_stream stream) {
  struct rc_py_device_memory *memory = PyMem_RawCalloc(1, sizeof *memory);
  if (!memory) return NULL;
  *memory = (struct rc_py_device_memory){.device = device, .stream = stream};
  atomic_init(&memory->count, 1);
  return memory;
}

/* ---- Freeing --------------------------------------------------------------------------------- */

void rc_py_stream_drop(struct rc_py_stream *stream) {
  if (!stream->keep || !Py_IsInitialized()) return;
  PyGILState_STATE gil = PyGILState_Ensure();
  Py_CLEAR(stream->keep);
  PyGILState_Release(gil);
}

/* Makes the memory's own stream wait for a user's stream, or else waits on the host. A failed call
 * alone proves nothing: freeing memory that is still read must not happen. If both calls fail, and
 * not for want of memory, the device is gone. */
static bool follow_user(const struct rc_py_device_memory *memory, void *stream) {
  int rc = ringcast_gpu_stream_follow(memory->device, memory->stream.handle, stream);
  if (rc == -ENOMEM || rc == -EIO) rc = ringcast_gpu_stream_wait(memory->device, stream);
  return rc != -EBUSY && rc != -ENOMEM;
}

/* False: not now. */
static bool follow_users(struct rc_py_device_memory *memory) {
  while (memory->users) {
    struct user *user = memory->users;
    if (!follow_user(memory, user->stream.handle)) return false;
    memory->users = user->next;
    rc_py_stream_drop(&user->stream);
    PyMem_RawFree(user);
  }
  return true;
}

/* The library finishes the stream's work on the memory and knows the stream by its number alone.
 * While the stream captures, the library can't; then the stream's object is kept, and so is the
 * memory. */
static bool must_stay(const struct rc_py_device_memory *memory) {
  void *own = memory->stream.handle;
  return memory->stream.keep && ringcast_gpu_stream_follow(memory->device, own, own) == -EBUSY;
}

static int give_back(struct rc_py_device_memory *memory) {
  if (must_stay(memory)) return 0;
  ringcast_gpu_memory_free(memory->own);
  ringcast_gpu_unmap(memory->hold);
  rc_py_stream_drop(&memory->stream);
  PyMem_RawFree(memory);
  return 1;
}

static int try_to_end(void *context);

/* A stream captures a graph, or waiting failed: the library's worker tries again. If the worker
 * can't be given the job for want of memory, the device memory stays. */
static void end_later(struct rc_py_device_memory *memory) {
  ringcast_gpu_run_until_done(try_to_end, memory);
}

static void end_idle(void *context) {
  struct rc_py_device_memory *memory = context;
  memory->has_strangers = false;
  if (!give_back(memory)) end_later(memory);
}

/* Returns 1 when no further call is needed, else 0. */
static int try_to_end(void *context) {
  struct rc_py_device_memory *memory = context;
  if (!follow_users(memory)) return 0;
  if (!memory->has_strangers) return give_back(memory);
  int rc = ringcast_gpu_run_when_idle(memory->device, end_idle, memory);
  if (rc == -ENOMEM) return 0;
  return rc < 0 ? give_back(memory) : 1;
}

#if PY_VERSION_HEX < 0x030d0000
#define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
#endif

/* Releases the GIL if the thread has it, and returns NULL otherwise: a library may drop a tensor
 * with the GIL or without. PyGILState_Check is of no use: after subinterpreters, or when Python
 * ends, the answer is always true. */
static PyThreadState *give_up_gil(void) {
  PyThreadState *own = PyGILState_GetThisThreadState();
  if (!own || own != PyThreadState_GetUnchecked()) return NULL;
  return PyEval_SaveThread();
}

/* The last drop (acquire) pairs with all earlier drops (release): the earlier holders' work is
 * enqueued before the memory's end. The GIL is released, as the driver may wait for the device. */
void rc_py_device_memory_drop(struct rc_py_device_memory *memory) {
  if (!memory || atomic_fetch_sub_explicit(&memory->count, 1, memory_order_acq_rel) > 1) return;
  PyThreadState *thread = give_up_gil();
  if (!try_to_end(memory)) end_later(memory);
  if (thread) PyEval_RestoreThread(thread);
}

/* ---- Allocating ------------------------------------------------------------------------------ */

struct rc_py_device_memory *
rc_py_device_memory_new(struct rc_py_state *state, ringcast_gpu_reader *reader, int32_t device,
                        uint64_t bytes, const struct rc_py_stream *stream, uint64_t *out) {
  struct rc_py_device_memory *memory = memory_new(device, rc_py_stream_take(stream));
  if (!memory) {
    Py_XDECREF(stream->keep);
    PyErr_NoMemory();
    return NULL;
  }
  int rc = 0;
  Py_BEGIN_ALLOW_THREADS
  if (bytes)
    rc = ringcast_gpu_memory_alloc(reader, bytes, stream->handle, &memory->address, &memory->own);
  Py_END_ALLOW_THREADS
  if (rc < 0) {
    rc_py_stream_drop(&memory->stream);
    PyMem_RawFree(memory);
    rc_py_raise(state, rc);
    return NULL;
  }
  *out = memory->address;
  return memory;
}

struct rc_py_device_memory *rc_py_device_memory_of(ringcast_gpu_hold *hold, int32_t device,
                                                   uint64_t address, struct rc_py_stream stream) {
  struct rc_py_device_memory *memory = memory_new(device, stream);
  if (!memory) return NULL;
  memory->hold = hold;
  memory->address = address;
  return memory;
}

/* Relaxed: the caller holds the memory already. */
struct rc_py_device_memory *rc_py_device_memory_take(struct rc_py_device_memory *memory) {
  atomic_fetch_add_explicit(&memory->count, 1, memory_order_relaxed);
  return memory;
}

static bool has_user(const struct rc_py_device_memory *memory, void *stream) {
  const struct user *user = memory->users;
  while (user && user->stream.handle != stream) user = user->next;
  return user;
}

/* Records a stream that goes on with the bytes. `keep` is the stream's object; None: the stream is
 * unknown. */
static bool add_user(struct rc_py_device_memory *memory, void *stream, PyObject *keep) {
  memory->has_strangers |= keep == Py_None;
  if (keep == Py_None || has_user(memory, stream)) return true;
  struct user *user = PyMem_RawMalloc(sizeof *user);
  if (!user) {
    PyErr_NoMemory();
    return false;
  }
  const struct rc_py_stream used = {.handle = stream, .keep = keep};
  *user = (struct user){.next = memory->users, .stream = rc_py_stream_take(&used)};
  memory->users = user;
  return true;
}

/* The legacy stream is never destroyed. False: raised. */
static bool memory_use(struct rc_py_state *state, struct rc_py_device_memory *memory,
                       void *stream) {
  if (!stream) return add_user(memory, NULL, NULL);
  PyObject *keep = rc_py_device_call(state, "stream_object", "(iK)", (int)memory->device,
                                     (unsigned long long)(uintptr_t)stream);
  bool is_noted = keep && add_user(memory, stream, keep);
  Py_XDECREF(keep);
  return is_noted;
}

/* ---- Capsules -------------------------------------------------------------------------------- */

static void give_memory(void *memory) { rc_py_device_memory_drop(memory); }

PyObject *rc_py_device_capsule(const struct ringcast_item *item, struct rc_py_device_memory *memory,
                               uint64_t offset, bool versioned) {
  const struct rc_py_dlpack_place place = {.device_type = RC_PY_DLPACK_CUDA,
                                           .device = memory->device,
                                           .is_versioned = versioned,
                                           .is_read_only = memory->hold != NULL};
  return rc_py_dlpack_capsule(item, (const void *)(uintptr_t)(memory->address + offset), &place,
                              give_memory, rc_py_device_memory_take(memory));
}

/* ---- DeviceTensor ---------------------------------------------------------------------------- */

struct device_tensor {
  PyObject_HEAD struct rc_py_device_memory *memory;
  PyObject *shape;
  uint64_t offset; /* in the memory */
  struct ringcast_item item;
};

PyObject *rc_py_device_tensor(struct rc_py_state *state, const struct ringcast_item *item,
                              struct rc_py_device_memory *memory, uint64_t offset) {
  PyTypeObject *type = state->device_tensor_type;
  struct device_tensor *self = (struct device_tensor *)type->tp_alloc(type, 0);
  if (!self) {
    rc_py_device_memory_drop(memory);
    return NULL;
  }
  self->memory = memory;
  self->offset = offset;
  self->item = *item;
  self->item.key = NULL;
  self->item.data = NULL;
  self->shape = rc_py_dims(item->shape, item->ndim, 1);
  if (!self->shape) Py_CLEAR(self);
  return (PyObject *)self;
}

static void tensor_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  struct device_tensor *self = (struct device_tensor *)object;
  rc_py_device_memory_drop(self->memory);
  Py_XDECREF(self->shape);
  type->tp_free(object);
  Py_DECREF(type);
}

/* DLPack's stream numbers; None: the legacy default stream. */
enum { LEGACY = 1, PER_THREAD = 2, UNSAID = -1 };

/* `wanted` waits for the bytes; if `wanted` captures a graph, or is a different stream in each
 * thread, the host does. */
static int follow_bytes(const struct rc_py_device_memory *memory, void *wanted, bool can) {
  void *own = memory->stream.handle;
  int rc = -EBUSY;
  if (can) rc = ringcast_gpu_stream_follow(memory->device, wanted, own);
  if (rc != -EBUSY) return rc;
  return ringcast_gpu_stream_wait(memory->device, own);
}

/* Makes a consumer on another stream see the bytes, and keeps the bytes until the consumer's stream
 * is done. */
static bool settle(struct device_tensor *self, PyObject *stream) {
  struct rc_py_device_memory *memory = self->memory;
  long long number = !stream || stream == Py_None ? LEGACY : PyLong_AsLongLong(stream);
  if (number == UNSAID) {
    memory->has_strangers = true;
    return !PyErr_Occurred();
  }
  bool is_known = number != PER_THREAD;
  void *wanted = number == LEGACY || !is_known ? NULL : (void *)(intptr_t)number;
  /* A stream that waited once, as a user, sees the bytes in all later work. */
  bool follows = is_known && (wanted == memory->stream.handle || has_user(memory, wanted));
  if (follows || self->item.bytes == 0) return true;
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = follow_bytes(memory, wanted, is_known);
  Py_END_ALLOW_THREADS
  if (rc < 0) {
    rc_py_raise(rc_py_state_of(self), rc);
    return false;
  }
  return memory_use(rc_py_state_of(self), memory, wanted);
}

/* Whether a version from 1.0 on is wanted; -1: raised. */
static int wants_version(PyObject *version) {
  if (!version || version == Py_None) return 0;
  PyObject *major = PySequence_GetItem(version, 0);
  if (!major) return -1;
  long number = PyLong_AsLong(major);
  Py_DECREF(major);
  if (number == -1 && PyErr_Occurred()) return -1;
  return number >= 1;
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

static PyObject *tensor_dlpack(PyObject *object, PyObject *args, PyObject *keywords) {
  static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
  struct device_tensor *self = (struct device_tensor *)object;
  PyObject *stream = NULL, *version = NULL, *device = NULL, *copy = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__", names, &stream, &version,
                                   &device, &copy)) {
    return NULL;
  }
  int versioned = wants_version(version);
  if (versioned < 0 || !may_copy(copy, device, self) || !settle(self, stream)) return NULL;
  return rc_py_device_capsule(&self->item, self->memory, self->offset, versioned);
}

PyObject *rc_py_device_tensor_export(PyObject *tensor, void **stream) {
  const struct device_tensor *self = (struct device_tensor *)tensor;
  *stream = self->memory->stream.handle;
  return rc_py_device_capsule(&self->item, self->memory, self->offset, false);
}

static PyObject *tensor_dlpack_device(PyObject *object, PyObject *Py_UNUSED(unused)) {
  return Py_BuildValue("(ii)", RC_PY_DLPACK_CUDA,
                       (int)((struct device_tensor *)object)->memory->device);
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
  const struct device_tensor *self = (struct device_tensor *)object;
  return PyLong_FromUnsignedLongLong(self->memory->address + self->offset);
}

/* Version 3 of the interface that Numba documents. */
static PyObject *get_interface(PyObject *object, void *Py_UNUSED(closure)) {
  struct device_tensor *self = (struct device_tensor *)object;
  int index = rc_py_dtype_of(&self->item);
  const char *name = index < 0 ? NULL : rc_py_dtypes[index].numpy;
  if (!name) {
    return PyErr_Format(PyExc_AttributeError, "__cuda_array_interface__ has no name for %s",
                        dtype_name(self));
  }
  const struct ringcast_dtype *dtype = &self->item.dtype;
  const char *order = dtype->bits == 8 ? "|" : "<";
  PyObject *type = PyUnicode_FromFormat("%s%c%d", order, "iuf  cb"[dtype->code], dtype -> bits / 8);
  if (!type) return NULL;
  unsigned long long stream = (unsigned long long)(uintptr_t)self->memory->stream.handle;
  self->memory->has_strangers = true;
  return Py_BuildValue("{s:O,s:N,s:(KO),s:i,s:O,s:K}", "shape", self->shape, "typestr", type,
                       "data", (unsigned long long)self->memory->address + self->offset,
                       self->memory->hold ? Py_True : Py_False, "version", 3, "strides", Py_None,
                       "stream", stream ? stream : 1);
}

static PyObject *tensor_repr(PyObject *object) {
  struct device_tensor *self = (struct device_tensor *)object;
  return PyUnicode_FromFormat("<ringcast.DeviceTensor of %s, shape %R, on cuda:%d>",
                              dtype_name(self), self->shape, (int)self->memory->device);
}

static PyObject *tensor_array(PyObject *object, PyObject *Py_UNUSED(args),
                              PyObject *Py_UNUSED(keywords)) {
  return PyErr_Format(PyExc_TypeError,
                      "a DeviceTensor is on cuda:%d, and no array of NumPy's: Reader(handle, "
                      "map_location=\"cpu\") receives such arrays there, as NumPy's",
                      (int)((struct device_tensor *)object)->memory->device);
}

static PyMethodDef tensor_methods[] = {
    {"__array__", (PyCFunction)(void (*)(void))tensor_array, METH_VARARGS | METH_KEYWORDS,
     RC_DOC_DeviceTensor___array__},
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS,
     RC_DOC_DeviceTensor___dlpack__},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS, RC_DOC_DeviceTensor___dlpack_device__},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef tensor_members[] = {
    {"shape", T_OBJECT_EX, offsetof(struct device_tensor, shape), READONLY,
     RC_DOC_DeviceTensor_shape},
    {"nbytes", T_ULONGLONG, offsetof(struct device_tensor, item.bytes), READONLY,
     RC_DOC_DeviceTensor_nbytes},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef tensor_properties[] = {
    {"dtype", get_dtype, NULL, RC_DOC_DeviceTensor_dtype, NULL},
    {"device", get_device, NULL, RC_DOC_DeviceTensor_device, NULL},
    {"data_ptr", get_data_ptr, NULL, RC_DOC_DeviceTensor_data_ptr, NULL},
    {"__cuda_array_interface__", get_interface, NULL, RC_DOC_DeviceTensor___cuda_array_interface__,
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot tensor_slots[] = {
    {Py_tp_doc, (void *)RC_DOC_DeviceTensor},
    {Py_tp_methods, tensor_methods},
    {Py_tp_members, tensor_members},
    {Py_tp_getset, tensor_properties},
    {Py_tp_repr, tensor_repr},
    {Py_tp_dealloc, tensor_dealloc},
    {0, NULL},
};
PyType_Spec rc_py_device_tensor_spec = {"ringcast.DeviceTensor", sizeof(struct device_tensor), 0,
                                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                        tensor_slots};
