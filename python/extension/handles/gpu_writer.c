/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gpu part of a Writer: the place of a frame's tensors in the writer's pool, for send.c; and
 * Writer.empty, a torch tensor in the pool. Kernels write such a tensor, and send refers to the
 * memory without a copy.
 *
 * The tensor may die in any thread, with the GIL or without, so an atomic counts the memory's
 * holders: the tensor and the Writer. When the Writer is the last holder, the Writer's next call
 * gives the memory back. A Writer that ends before its tensors leaves the memory to the tensors:
 * the library then keeps the pool.
 *
 * Each call of the driver is made without the GIL: the driver may wait for the device, or for
 * another thread's call.
 */
#include "python/extension/handles/gpu.h"

#include "python/extension/errors.h"
#include "python/extension/spans.h"

#include <stdatomic.h>

/* In C a gpu part without a size has a pool; in Python a pool is asked for. */
static uint64_t asked_bytes(const struct rc_py_gpu_writer *self) {
  const char *text = getenv("RINGCAST_GPU_POOL_BYTES");
  bool is_asked = self->pool_bytes != 0 || (text && *text);
  return is_asked ? self->pool_bytes : RINGCAST_NO_POOL;
}

static int open_part(struct rc_py_gpu_writer *self, int32_t device) {
  if (self->gpu) return 0;
  const struct ringcast_gpu_writer_options options = {
      .size = sizeof options, .device = device, .pool_bytes = asked_bytes(self)};
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_writer_open(self->owner, &options, &self->gpu);
  Py_END_ALLOW_THREADS
  if (rc == 0) self->device = device;
  return rc;
}

/* ---- Places in the pool ---------------------------------------------------------------------- */

struct rc_py_place {
  struct rc_py_place *next; /* of the same Writer */
  struct ringcast_gpu_extent extent;
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

/* Gives back the memory of tensors that have died. Call without the GIL: the driver may wait. */
static void sweep(struct rc_py_gpu_writer *self) {
  struct rc_py_place **at = &self->places;
  while (*at) {
    struct rc_py_place *place = *at;
    if (atomic_load_explicit(&place->count, memory_order_acquire) > 1) {
      at = &place->next;
      continue;
    }
    *at = place->next;
    ringcast_gpu_drop(self->gpu, &place->extent);
    PyMem_RawFree(place);
  }
}

static void shut_places(struct rc_py_gpu_writer *self) {
  sweep(self);
  while (self->places) {
    struct rc_py_place *place = self->places;
    self->places = place->next;
    give_tensor(place);
  }
}

void rc_py_gpu_writer_shut(struct rc_py_gpu_writer *self) {
  if (!self->gpu) return;
  Py_BEGIN_ALLOW_THREADS
  shut_places(self);
  ringcast_gpu_writer_close(self->gpu);
  Py_END_ALLOW_THREADS
  self->gpu = NULL;
}

/* ---- Sending --------------------------------------------------------------------------------- */

static void find_one(const struct rc_py_gpu_writer *self, struct rc_py_part *part) {
  const struct ringcast_tensor *tensor = &part->source.tensor;
  uint64_t address = (uint64_t)(uintptr_t)tensor->data;
  if (tensor->strides && !rc_py_is_c_order(tensor->ndim, tensor->shape, tensor->strides)) return;
  for (const struct rc_py_place *at = self->places; at; at = at->next) {
    if (address < at->address || address - at->address > at->bytes) continue;
    if (part->bytes > at->bytes - (address - at->address)) continue;
    part->place = at;
    part->scalar.in_pool = at->extent.base + (address - at->address);
    return;
  }
}

/* Notes for each device tensor whether the tensor lies in memory of Writer.empty, and where. False:
 * none does. */
static bool find_places(const struct rc_py_gpu_writer *self, struct rc_py_encoding *encoding) {
  bool any = false;
  for (size_t i = 0; self->places && i < encoding->count; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    if (!rc_py_is_on_device(part)) continue;
    find_one(self, part);
    any |= part->place != NULL;
  }
  return any;
}

/* Makes the frame refer to the places found. -EBUSY: another frame still refers to some places,
 * which are dropped from the result. */
static int attach_places(const struct rc_py_gpu_writer *self, struct rc_py_encoding *encoding,
                         const struct ringcast_gpu_extent *extent) {
  bool is_busy = false;
  for (size_t i = 0; i < encoding->count; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    if (!part->place) continue;
    int rc = ringcast_gpu_attach(self->gpu, extent, &part->place->extent);
    if (rc == 0) continue;
    if (rc != -EBUSY) return rc;
    part->place = NULL; /* it will be copied */
    is_busy = true;
  }
  return is_busy ? -EBUSY : 0;
}

void rc_py_gpu_drop(struct rc_py_gpu_writer *self, struct ringcast_gpu_extent *extent) {
  Py_BEGIN_ALLOW_THREADS
  ringcast_gpu_drop(self->gpu, extent);
  Py_END_ALLOW_THREADS
}

/* As rc_py_gpu_lease. -EBUSY: ask again, as some of the tensors must be copied after all. */
static int lease_by(struct rc_py_gpu_writer *self, struct rc_py_encoding *encoding, uint64_t *sizes,
                    bool is_there, struct ringcast_gpu_extent *out) {
  uint64_t *offsets = sizes + encoding->on_device;
  uint32_t count = rc_py_device_sizes(encoding, sizes);
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_lease(self->gpu, sizes, count, offsets, out);
  Py_END_ALLOW_THREADS
  if (rc != 0) return rc;
  if (is_there) rc = attach_places(self, encoding, out);
  if (rc == 0 && !rc_py_device_plan(encoding, offsets)) rc = RC_PY_RAISED;
  if (rc < 0) rc_py_gpu_drop(self, out);
  return rc;
}

static int lease(struct rc_py_gpu_writer *self, struct rc_py_encoding *encoding,
                 struct ringcast_gpu_extent *out) {
  if (encoding->hash || encoding->has_streams) return -EAGAIN;
  uint64_t *sizes = PyMem_New(uint64_t, 2 * (size_t)encoding->on_device);
  if (!sizes) {
    PyErr_NoMemory();
    return RC_PY_RAISED;
  }
  bool is_there = find_places(self, encoding);
  int rc;
  do rc = lease_by(self, encoding, sizes, is_there, out);
  while (rc == -EBUSY);
  PyMem_Free(sizes);
  return rc;
}

/* The last frame was sent, and its tensors may never have come. */
static int raise_late(struct rc_py_gpu_writer *self) {
  int rc = self->late;
  self->late = 0;
  rc_py_raise_text(self->state, -rc,
                   "the device failed after the last frame was sent: its tensors may never "
                   "have come");
  return RC_PY_RAISED;
}

int rc_py_gpu_lease(struct rc_py_gpu_writer *self, struct rc_py_encoding *encoding,
                    struct ringcast_gpu_extent *out) {
  if (self->late < 0) return raise_late(self);
  if (!self->gpu && !rc_py_device_may_start(self->state)) return RC_PY_RAISED;
  int rc = open_part(self, encoding->device);
  if (rc < 0) return rc;
  if (self->places) {
    Py_BEGIN_ALLOW_THREADS
    sweep(self);
    Py_END_ALLOW_THREADS
  }
  return lease(self, encoding, out);
}

/* As rc_py_gpu_commit. `puts` has room for the copies. */
static int copy_and_commit(struct rc_py_gpu_writer *self, const struct rc_py_encoding *encoding,
                           struct ringcast_gpu_extent *extent, struct rc_py_puts *puts,
                           size_t bytes) {
  int rc = rc_py_device_puts(encoding, puts);
  rc_py_spans_phase(encoding->trace, RC_PY_PHASE_PUBLISH);
  if (rc < 0) return rc;
  Py_BEGIN_ALLOW_THREADS /* the driver may wait, where the stream is far behind */
  rc = ringcast_gpu_commit(self->gpu, extent, puts->puts, puts->count, encoding->device_stream,
                           bytes);
  Py_END_ALLOW_THREADS
  return rc;
}

int rc_py_gpu_commit(struct rc_py_gpu_writer *self, const struct rc_py_encoding *encoding,
                     struct ringcast_gpu_extent *extent, size_t bytes) {
  struct rc_py_puts puts = {.puts = PyMem_New(struct ringcast_gpu_put, encoding->on_device)};
  if (!puts.puts) {
    PyErr_NoMemory();
    return RC_PY_RAISED;
  }
  int rc = copy_and_commit(self, encoding, extent, &puts, bytes);
  PyMem_Free(puts.puts);
  Py_XDECREF(puts.packed); /* torch uses the memory again in the order of the stream */
  if (rc < 0 || !encoding->is_loose) return rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_stream_wait(encoding->device, encoding->device_stream);
  Py_END_ALLOW_THREADS
  self->late = rc; /* the frame is sent: the next call reports the failure */
  return 0;
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

static int allocate(struct rc_py_gpu_writer *self, int32_t device, void *stream,
                    struct rc_py_place *place) {
  if (!self->gpu && !rc_py_device_may_start(self->state)) return RC_PY_RAISED;
  int rc = open_part(self, device);
  if (rc < 0) return rc;
  if (self->device != device) {
    PyErr_Format(PyExc_ValueError, "this Writer sends from 'cuda:%d', not from 'cuda:%d'",
                 (int)self->device, (int)device);
    return RC_PY_RAISED;
  }
  Py_BEGIN_ALLOW_THREADS
  sweep(self);
  rc = ringcast_gpu_allocate(self->gpu, place->bytes, stream, &place->address, &place->extent);
  Py_END_ALLOW_THREADS
  return rc;
}

PyObject *rc_py_gpu_allocate(struct rc_py_gpu_writer *self, int32_t device, uint64_t bytes,
                             void *stream) {
  struct rc_py_place *place = PyMem_RawCalloc(1, sizeof *place);
  if (!place) return PyErr_NoMemory();
  place->bytes = bytes;
  int rc = allocate(self, device, stream, place);
  if (rc < 0) {
    PyMem_RawFree(place);
    return rc_py_raise(self->state, rc);
  }
  atomic_init(&place->count, 2);
  place->next = self->places;
  self->places = place;
  PyObject *capsule = make_capsule(place, device);
  if (!capsule) give_tensor(place); /* the next call gives the memory back */
  return capsule;
}
