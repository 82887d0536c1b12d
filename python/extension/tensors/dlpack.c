/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DLPack: the description of a tensor's memory that libraries exchange.
 *
 * DLPack's exchange API (1.3) is a table of functions that a tensor type offers: one call describes
 * a tensor's memory, another makes a tensor over given memory. Each call replaces several calls
 * into Python. The caller must find out what the description of a torch tensor lacks: the negative
 * and conjugate bits, requires_grad, and which sub-byte dtype fills each byte. For a tensor without
 * plain memory the API raises, at a thousand times the cost of a description.
 *
 * A tensor made here holds an owner of its memory. The deleter, which gives the owner back, may run
 * in any thread, with the GIL or without, and in a child of a fork.
 *
 * The layouts are those of dmlc/dlpack's dlpack.h, declared anew: nothing is linked, and the
 * version is checked.
 */
#include "python/extension/tensors.h"

#define MAJOR       1
#define MINOR       3
#define READ_ONLY   1u /* a flag of the versioned struct */
#define UNVERSIONED "dltensor"
#define VERSIONED   "dltensor_versioned"

/* DLManagedTensorVersioned, followed by fields of our own. */
struct managed {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct managed *self);
  uint64_t flags;
  struct rc_py_dltensor tensor;
  void (*give)(void *owner);
  void *owner;
  bool is_new, is_dropped; /* see take_over */
  int64_t dims[];
};

/* DLManagedTensor, the older form, which every library takes in a capsule. The owner holds the
 * data. */
struct unversioned {
  struct rc_py_dltensor tensor;
  void *context;
  void (*deleter)(struct unversioned *self);
  void (*give)(void *owner);
  void *owner;
  int64_t dims[];
};

/* DLPackExchangeAPI: the first fields are the same in every version, and point to an earlier
 * version, if any. */
struct rc_py_exchange {
  uint32_t major, minor;
  const struct rc_py_exchange *earlier;
  void *allocate, *managed_of; /* not used here */
  int (*make)(struct managed *tensor, void **out);
  int (*describe)(void *object, struct rc_py_dltensor *out);       /* may be NULL */
  int (*current_stream)(int32_t type, int32_t device, void **out); /* may be NULL */
};

/* ---- The exchange API ------------------------------------------------------------------------ */

const struct rc_py_exchange *rc_py_dlpack_exchange(PyObject *type) {
  PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  const struct rc_py_exchange *found =
      capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
  if (!found) PyErr_Clear(); /* an older version, or an unrelated attribute */
  Py_XDECREF(capsule);       /* the table lives as long as the process */
  while (found && found->major > MAJOR) found = found->earlier;
  if (!found || found->major != MAJOR || found->minor < MINOR || !found->describe || !found->make)
    return NULL;
  return found;
}

/* Strides may be left out in DLPack before 1.2. */
static bool has_dims(const struct rc_py_dltensor *tensor) {
  return tensor->ndim == 0 || (tensor->ndim > 0 && tensor->shape && tensor->strides);
}

int rc_py_dlpack_describe(const struct rc_py_exchange *exchange, PyObject *tensor,
                          struct rc_py_dltensor *out) {
  if (exchange->describe(tensor, out) == 0) return has_dims(out);
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}

bool rc_py_dlpack_stream(const struct rc_py_exchange *exchange, int32_t device, void **out) {
  if (!exchange->current_stream) return false;
  if (exchange->current_stream(RC_PY_DLPACK_CUDA, device, out) == 0) return true;
  PyErr_Clear();
  return false;
}

/* ---- Tensors over memory of ours ------------------------------------------------------------- */

static void fill(struct rc_py_dltensor *tensor, const struct ringcast_item *item, void *data,
                 int64_t *dims) {
  bool is_c_order = rc_py_is_c_order(item->ndim, item->shape, item->strides);
  int64_t stride = 1;
  *tensor = (struct rc_py_dltensor){
      .data = data,
      .device.type = RC_PY_DLPACK_CPU,
      .ndim = item->ndim,
      .dtype = item->dtype,
      .shape = dims,
      .strides = dims + item->ndim,
  };
  for (int32_t i = item->ndim; i-- > 0;) {
    tensor->shape[i] = item->shape[i];
    tensor->strides[i] = is_c_order ? stride : item->strides[i];
    /* If the tensor has no elements, the product of its shape may overflow; strides don't matter
     * then, and stop growing. */
    if (item->shape[i] > 0 && stride <= INT64_MAX / item->shape[i]) stride *= item->shape[i];
  }
}

static void managed_free(struct managed *self) {
  self->give(self->owner);
  PyMem_RawFree(self);
}

static void managed_delete(struct managed *self) {
  if (self->is_new) {
    self->is_dropped = true;
  } else {
    managed_free(self);
  }
}

/* Consumes `owner` even on failure. NULL: raised. */
static struct managed *managed_new(const struct ringcast_item *item, const void *data,
                                   void (*give)(void *owner), void *owner) {
  struct managed *self =
      PyMem_RawMalloc(sizeof *self + 2 * (size_t)item->ndim * sizeof *self->dims);
  if (!self) {
    give(owner);
    PyErr_NoMemory();
    return NULL;
  }
  *self = (struct managed){
      .major = MAJOR, .minor = MINOR, .deleter = managed_delete, .give = give, .owner = owner};
  fill(&self->tensor, item, (void *)data, self->dims);
  return self;
}

/* A failed call may or may not have called the deleter, and afterwards there is no way to tell. So
 * the deleter does not free a new tensor; the caller does, while no other code can hold the
 * tensor. */
static PyObject *take_over(const struct rc_py_exchange *exchange, struct managed *self) {
  void *tensor = NULL;
  self->is_new = true;
  bool made = exchange->make(self, &tensor) == 0 && tensor;
  self->is_new = false;
  if (made && !self->is_dropped) return tensor;
  managed_free(self);
  if (made) { /* a copy, then */
    Py_DECREF((PyObject *)tensor);
    PyErr_SetString(PyExc_BufferError, "the new tensor did not keep its memory");
  }
  return NULL;
}

PyObject *rc_py_dlpack_make(const struct rc_py_exchange *exchange, const struct ringcast_item *item,
                            void *data, void (*give)(void *owner), void *owner) {
  struct managed *self = managed_new(item, data, give, owner);
  return self ? take_over(exchange, self) : NULL;
}

/* ---- Capsules -------------------------------------------------------------------------------- */

static void unversioned_delete(struct unversioned *self) {
  self->give(self->owner);
  PyMem_RawFree(self);
}

/* The capsule's destructor: frees the tensor if no consumer took it. */
static void capsule_drop(PyObject *capsule) {
  if (PyCapsule_IsValid(capsule, UNVERSIONED))
    unversioned_delete(PyCapsule_GetPointer(capsule, UNVERSIONED));
  if (PyCapsule_IsValid(capsule, VERSIONED))
    managed_delete(PyCapsule_GetPointer(capsule, VERSIONED));
}

static void set_place(struct rc_py_dltensor *tensor, const struct rc_py_dlpack_place *place) {
  tensor->device.type = place->device_type;
  tensor->device.id = place->device;
}

static PyObject *make_unversioned(const struct ringcast_item *item, const void *data,
                                  const struct rc_py_dlpack_place *place, void (*give)(void *owner),
                                  void *owner) {
  struct unversioned *self =
      PyMem_RawMalloc(sizeof *self + 2 * (size_t)item->ndim * sizeof *self->dims);
  if (!self) {
    give(owner);
    return PyErr_NoMemory();
  }
  *self = (struct unversioned){.deleter = unversioned_delete, .give = give, .owner = owner};
  fill(&self->tensor, item, (void *)data, self->dims);
  set_place(&self->tensor, place);
  PyObject *capsule = PyCapsule_New(self, UNVERSIONED, capsule_drop);
  if (!capsule) unversioned_delete(self);
  return capsule;
}

PyObject *rc_py_dlpack_capsule(const struct ringcast_item *item, const void *data,
                               const struct rc_py_dlpack_place *place, void (*give)(void *owner),
                               void *owner) {
  if (!place->is_versioned) return make_unversioned(item, data, place, give, owner);
  struct managed *self = managed_new(item, data, give, owner);
  if (!self) return NULL;
  self->flags = place->is_read_only ? READ_ONLY : 0;
  set_place(&self->tensor, place);
  PyObject *capsule = PyCapsule_New(self, VERSIONED, capsule_drop);
  if (!capsule) managed_delete(self);
  return capsule;
}
