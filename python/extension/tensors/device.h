/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of a CUDA device, in the extension.
 *
 *   tensors/cuda.c       describing and making, by Python calls
 *   tensors/device.c     our device memory; calls of ringcast/_device.py
 *   codec/device_put.c   entries, and copies into the pool
 *   codec/device_get.c   decoding, and copies out
 *   handles/gpu.h        the gpu part of a Writer and of a Reader; tensors made in the pool
 *
 * Nothing here runs before a device tensor is met. Rare cases (libraries other than torch) are left
 * to Python, in ringcast/_device.py.
 */
#ifndef RC_EXTENSION_TENSORS_DEVICE_H
#define RC_EXTENSION_TENSORS_DEVICE_H

#include "python/extension/tensors.h"

/* ---- cuda.c ---------------------------------------------------------------------------------- */

/* Completes torch_describe's description of a tensor on a CUDA device: in C order, with a stream.
 * 1, -1. */
int rc_py_cuda_complete(struct rc_py_state *state, PyObject *object, struct rc_py_source *out);
/* Describes a tensor or array of another library than torch. As rc_py_torch_describe; 0 for any
 * object that is on no CUDA device. */
int rc_py_cuda_describe(struct rc_py_state *state, PyObject *object, struct rc_py_source *out);
/* Call before torch copies a tensor on the current stream: tells torch that the stream uses the
 * tensor. False: raised. */
bool rc_py_cuda_before_copy(struct rc_py_state *state, PyObject *tensor);
/* Moves a torch tensor to another device. 1, -1. */
int rc_py_cuda_move(struct rc_py_state *state, PyObject *object, int32_t device,
                    struct rc_py_source *out);

/* In torch.c: the address of a tensor's memory, and the ordinal of the device. */
bool rc_py_torch_data_ptr(struct rc_py_state *state, PyObject *tensor, void **out);
/* torch's current stream of the device. */
bool rc_py_torch_stream(struct rc_py_state *state, int32_t device, void **out);
/* torch.empty(shape, dtype=..., device=...), or empty_strided, with the item's shape and order;
 * `out` gets the address. `dtype` is an index. The device is explicit, as a `with
 * torch.device(...)` may be active. NULL: raised, also if a mode of torch gives a tensor without
 * memory. */
PyObject *rc_py_torch_empty(struct rc_py_state *state, int dtype, const struct ringcast_item *item,
                            PyObject *device, void **out);
/* rc_py_torch_empty on a CUDA device; `out` gets the address. */
PyObject *rc_py_torch_empty_on(struct rc_py_state *state, int dtype,
                               const struct ringcast_item *item, int32_t device, uint64_t *out);
/* A tensor over the storage of an arena of bytes, from `offset` on. */
PyObject *rc_py_torch_within(struct rc_py_state *state, PyObject *arena,
                             const struct ringcast_item *item, uint64_t offset);
/* Turns the tensor into a Parameter and the like; takes the tensor over. */
PyObject *rc_py_torch_finish(struct rc_py_state *state, PyObject *tensor, uint32_t flags);
/* torch_dtypes' index of the item; -1: raised. */
int rc_py_torch_index(struct rc_py_state *state, const struct ringcast_item *item);

/* ---- device.c -------------------------------------------------------------------------------- */

/* Calls a function of ringcast/_device.py: a new reference to the result, or NULL: raised. */
PyObject *rc_py_device_call(struct rc_py_state *state, const char *name, const char *format, ...);
/* False: raised, as torch's stream captures a graph: nothing can be allocated or opened
 * meanwhile. */
bool rc_py_device_may_start(struct rc_py_state *state);

struct rc_py_stream {
  void *handle;
  /* The owner of the stream, as CuPy's Stream; NULL: the stream is never destroyed. */
  PyObject *keep;
};
/* With the GIL. */
static inline struct rc_py_stream rc_py_stream_take(const struct rc_py_stream *stream) {
  Py_XINCREF(stream->keep);
  return *stream;
}
/* In any thread, with the GIL or without. */
void rc_py_stream_drop(struct rc_py_stream *stream);

/* Device memory that ends with the last holder, in any thread: memory of ringcast's own, or a place
 * in the pool. */
struct rc_py_device_memory;
/* NULL: raised. `out` is the address. */
struct rc_py_device_memory *
rc_py_device_memory_new(struct rc_py_state *state, ringcast_gpu_reader *reader, int32_t device,
                        uint64_t bytes, const struct rc_py_stream *stream, uint64_t *out);
/* Takes the hold and the stream over; NULL: no memory, and nothing was taken over. With the GIL or
 * without. */
struct rc_py_device_memory *rc_py_device_memory_of(ringcast_gpu_hold *hold, int32_t device,
                                                   uint64_t address, struct rc_py_stream stream);
/* NULL is allowed. */
void rc_py_device_memory_drop(struct rc_py_device_memory *memory);
struct rc_py_device_memory *rc_py_device_memory_take(struct rc_py_device_memory *memory);
/* A capsule over the item at `offset` of the memory, for from_dlpack(). */
PyObject *rc_py_device_capsule(const struct ringcast_item *item, struct rc_py_device_memory *memory,
                               uint64_t offset, bool versioned);
/* ringcast.DeviceTensor over the memory, which is taken over. */
PyObject *rc_py_device_tensor(struct rc_py_state *state, const struct ringcast_item *item,
                              struct rc_py_device_memory *memory, uint64_t offset);
/* A capsule over a DeviceTensor's bytes, ordered by `stream`. NULL: raised. */
PyObject *rc_py_device_tensor_export(PyObject *tensor, void **stream);
extern PyType_Spec rc_py_device_tensor_spec;

#endif
