/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writer.empty: a torch tensor in the writer's pool. Kernels write the tensor, and send refers to
 * the memory without a copy.
 *
 * The tensor may die in any thread, with the GIL or without, so an atomic counts the memory's
 * holders: the tensor and the Writer. When the Writer is the last holder, the Writer's next call
 * gives the memory back. A Writer that ends before its tensors leaves the memory to the tensors:
 * the library then keeps the pool.
 */
#include "python/extension/handles/gpu.h"

/* In C a gpu part without a size has a pool; in Python a pool is asked for. */
static uint64_t asked_bytes(const struct rc_py_writer *self) {
  const char *text = getenv("RINGCAST_GPU_POOL_BYTES");
  return self->gpu_pool_bytes != 0 || (text && *text) ? self->gpu_pool_bytes : RINGCAST_NO_POOL;
}

int rc_py_gpu_writer_open(struct rc_py_writer *self, int32_t device) {
  if (self->gpu) return 0;
  const struct ringcast_gpu_writer_options options = {
      .size = sizeof options, .device = device, .pool_bytes = asked_bytes(self)};
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_writer_open(self->writer, &options, &self->gpu);
  Py_END_ALLOW_THREADS
  if (rc == 0) self->gpu_device = device;
  return rc;
}

#include <stdatomic.h>

struct rc_py_place {
  struct rc_py_place *next; /* of the same Writer */
  struct ringcast_gpu_extent lease;
  uint64_t address, bytes;
  _Atomic uint32_t count;
};

/* True: the caller was the last. Acquire and release: every other holder's accesses happen before
 * the last holder's. */
static bool drop_place(struct rc_py_place *place) {
  return atomic_fetch_sub_explicit(&place->count, 1, memory_order_acq_rel) == 1;
}

static void give_tensor(void *place) {
  if (drop_place(place)) PyMem_RawFree(place);
}

void rc_py_places_sweep(struct rc_py_writer *writer) {
  for (struct rc_py_place **at = &writer->places, *place; (place = *at) != NULL;) {
    if (atomic_load_explicit(&place->count, memory_order_acquire) > 1) {
      at = &place->next;
      continue;
    }
    *at = place->next;
    ringcast_gpu_drop(writer->gpu, &place->lease);
    PyMem_RawFree(place);
  }
}

void rc_py_places_shut(struct rc_py_writer *writer) {
  rc_py_places_sweep(writer);
  for (struct rc_py_place *place = writer->places, *next; place; place = next) {
    next = place->next;
    give_tensor(place);
  }
  writer->places = NULL;
}

/* ---- Sending --------------------------------------------------------------------------------- */

static void find_one(const struct rc_py_writer *writer, struct rc_py_part *part) {
  const struct ringcast_tensor *tensor = &part->source.tensor;
  uint64_t address = (uint64_t)(uintptr_t)tensor->data;
  if (tensor->strides && !rc_py_is_c_order(tensor->ndim, tensor->shape, tensor->strides)) return;
  for (const struct rc_py_place *at = writer->places; at; at = at->next) {
    if (address < at->address || address - at->address > at->bytes) continue;
    if (part->bytes > at->bytes - (address - at->address)) continue;
    part->place = at;
    part->scalar.in_pool = at->lease.base + (address - at->address);
    return;
  }
}

bool rc_py_places_find(const struct rc_py_writer *writer, struct rc_py_encoding *encoding) {
  bool any = false;
  for (size_t i = 0; writer->places && i < encoding->count; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    if (!rc_py_is_on_device(part)) continue;
    find_one(writer, part);
    any |= part->place != NULL;
  }
  return any;
}

int rc_py_places_attach(const struct rc_py_writer *writer, struct rc_py_encoding *encoding,
                        const struct ringcast_gpu_extent *lease) {
  bool is_busy = false;
  for (size_t i = 0; i < encoding->count; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    if (!part->place) continue;
    int rc = ringcast_gpu_attach(writer->gpu, lease, &part->place->lease);
    if (rc < 0 && rc != -EBUSY) return rc;
    if (rc == -EBUSY) part->place = NULL; /* it will be copied */
    is_busy |= rc == -EBUSY;
  }
  return is_busy ? -EBUSY : 0;
}

/* ---- Making ---------------------------------------------------------------------------------- */

/* A tensor of bytes over the place; the place's count includes the capsule already. */
static PyObject *make_capsule(struct rc_py_place *place, int32_t device) {
  const struct rc_py_dlpack_place where = {.device_type = RC_PY_DLPACK_CUDA, .device = device};
  struct ringcast_item item = {
      .kind = RINGCAST_ITEM_TENSOR, .bytes = place->bytes, .dtype = {1, 8, 1}, .ndim = 1};
  item.shape[0] = (int64_t)place->bytes;
  item.strides[0] = 1;
  return rc_py_dlpack_capsule(&item, (const void *)(uintptr_t)place->address, &where, give_tensor,
                              place);
}

static int allocate(struct rc_py_writer *writer, int32_t device, void *stream,
                    struct rc_py_place *place) {
  struct rc_py_state *state = rc_py_state_of(writer);
  if (!writer->gpu && !rc_py_device_may_start(state)) return RC_PY_RAISED;
  int rc = rc_py_gpu_writer_open(writer, device);
  if (rc < 0) return rc;
  if (writer->gpu_device != device) {
    PyErr_Format(PyExc_ValueError, "this Writer sends from 'cuda:%d', not from 'cuda:%d'",
                 (int)writer->gpu_device, (int)device);
    return RC_PY_RAISED;
  }
  Py_BEGIN_ALLOW_THREADS
  rc_py_places_sweep(writer);
  rc = ringcast_gpu_allocate(writer->gpu, place->bytes, stream, &place->address, &place->lease);
  Py_END_ALLOW_THREADS
  return rc;
}

static PyObject *make(struct rc_py_writer *writer, int32_t device, uint64_t bytes, void *stream) {
  struct rc_py_place *place = PyMem_RawCalloc(1, sizeof *place);
  if (!place) return PyErr_NoMemory();
  place->bytes = bytes;
  int rc = allocate(writer, device, stream, place);
  if (rc < 0) {
    PyMem_RawFree(place);
    return rc_py_raise(rc_py_state_of(writer), rc);
  }
  atomic_init(&place->count, 2);
  place->next = writer->places;
  writer->places = place;
  PyObject *capsule = make_capsule(place, device);
  if (!capsule) give_tensor(place); /* the next call gives the memory back */
  return capsule;
}

PyObject *rc_py_writer_empty(PyObject *object, PyObject *args, PyObject *keywords) {
  static char *names[] = {"shape", "dtype", "device", NULL};
  struct rc_py_writer *writer = (struct rc_py_writer *)object;
  struct rc_py_state *state = rc_py_state_of(writer);
  PyObject *shape, *dtype, *device = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|O:empty", names, &shape, &dtype, &device))
    return NULL;
  int ordinal;
  unsigned long long bytes, stream;
  PyObject *plan = rc_py_device_call(state, "plan_empty", "(OOO)", shape, dtype, device);
  PyObject *capsule = NULL;
  if (plan && PyArg_ParseTuple(plan, "iKKO", &ordinal, &bytes, &stream, &shape) &&
      rc_py_writer_enter(writer)) {
    capsule = bytes ? make(writer, ordinal, bytes, (void *)(uintptr_t)stream) : rc_py_ref(Py_None);
    rc_py_writer_leave(writer);
  }
  PyObject *tensor =
      capsule ? rc_py_device_call(state, "make_empty", "(OOOi)", capsule, shape, dtype, ordinal)
              : NULL;
  Py_XDECREF(capsule);
  Py_XDECREF(plan); /* which holds the shape */
  return tensor;
}
