/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of a CUDA device, in the extension.
 *
 *   tensors/cuda.c       described, and made, from Python's side     tensors/device_memory.c  memory of ours there
 *   codec/device_put.c   their entries, and the copies to the pool   codec/device_get.c  what comes, and where it goes
 *   handles/gpu.c        the gpu's part of a Writer and of a Reader
 *   handles/empty.c      tensors that are made in the pool
 *
 * Nothing here runs before a tensor of a device is met. What is rare (other libraries than torch) is asked for in
 * Python, in ringcast/_device.py.
 */
#ifndef RC_EXTENSION_DEVICE_H
#define RC_EXTENSION_DEVICE_H

#include "python/extension/codec/encode.h"
#include "python/extension/view.h"

/* Smaller tensors of a frame share one piece of memory, if that is at most twice what they need, beside a gap for each:
 * to copy so much more takes less time than another copy. */
#define RC_PY_ARENA_LEAST (UINT64_C(1) << 20)
#define RC_PY_ARENA_GAP   4096
/* From so many tensors of less bytes on, a kernel that packs them takes less time than to copy each to the pool. */
#define RC_PY_PACKED_LEAST 8
#define RC_PY_PACKED_LESS  (UINT64_C(1) << 16)

/* ---- tensors/cuda.c --------------------------------------------------------------------------------------------- */

/* The functions of ringcast/_device.py: a new reference to what it gives, or NULL: raised. */
PyObject *rc_py_device_call(struct rc_py_state *state, const char *name, const char *format, ...);

/* Completes torch_describe's description of a tensor on a CUDA device: in C order, with a stream. 1, -1. */
int rc_py_cuda_complete(struct rc_py_state *state, PyObject *object, struct rc_py_source *out);
/* A tensor or array of any other library. As rc_py_torch_describe; 0 for any object that is on no CUDA device. */
int rc_py_cuda_describe(struct rc_py_state *state, PyObject *object, struct rc_py_source *out);
/* False: raised, as torch's stream captures a graph: nothing can be allocated or opened meanwhile. */
bool rc_py_device_may_start(struct rc_py_state *state);
/* Before torch copies a tensor on the current stream: torch is told that the stream uses the tensor. False: raised. */
bool rc_py_cuda_before_copy(struct rc_py_state *state, PyObject *tensor);
/* Moves torch's tensor to another device. 1, -1. */
int rc_py_cuda_move(struct rc_py_state *state, PyObject *object, int32_t device, struct rc_py_source *out);

/* torch.c's: the address of a tensor's memory, and the ordinal of its device. */
bool rc_py_torch_data_ptr(struct rc_py_state *state, PyObject *tensor, void **out);
bool rc_py_torch_ordinal(struct rc_py_state *state, PyObject *tensor, int32_t *out);
/* torch's current stream of that device. */
bool rc_py_torch_stream(struct rc_py_state *state, int32_t device, void **out);
/* torch.empty there; `out` NULL: the address is not wanted. `dtype` is an index, `shape` a tuple. */
PyObject *rc_py_torch_empty_on(struct rc_py_state *state, int dtype, PyObject *shape, int32_t device, uint64_t *out);
/* A tensor over the storage of an arena of bytes, from `offset` on. */
PyObject *rc_py_torch_within(struct rc_py_state *state, PyObject *arena, const struct ringcast_item *item,
                             uint64_t offset);
/* Turns the tensor into a Parameter and the like; takes the tensor over. */
PyObject *rc_py_torch_finish(struct rc_py_state *state, PyObject *tensor, uint32_t flags);
/* torch_dtypes' index of the item; -1: raised. */
int rc_py_torch_index(struct rc_py_state *state, const struct ringcast_item *item);

struct rc_py_gpu_reader;

/* ---- tensors/device_memory.c ------------------------------------------------------------------------------------ */

struct rc_py_stream {
  void *handle;
  PyObject *keep; /* the object whose end destroys the stream, as CuPy's Stream; NULL: the stream is not destroyed */
};
/* With the GIL. */
static inline struct rc_py_stream rc_py_stream_take(const struct rc_py_stream *stream) {
  Py_XINCREF(stream->keep);
  return *stream;
}
/* In any thread, with the GIL or without. */
void rc_py_stream_drop(struct rc_py_stream *stream);

/* Device memory that goes with its last holder, in any thread: memory of ringcast's own, or a place in the pool. */
struct rc_py_device_memory;
/* NULL: raised. `out` is its address. */
struct rc_py_device_memory *rc_py_device_memory_new(struct rc_py_state *state, const struct rc_py_gpu_reader *gpu,
                                                    uint64_t bytes, const struct rc_py_stream *stream, uint64_t *out);
/* Takes the hold over. */
struct rc_py_device_memory *rc_py_device_memory_of(ringcast_gpu_hold *hold, int32_t device, uint64_t address,
                                                   const struct rc_py_stream *stream);
void rc_py_device_memory_drop(struct rc_py_device_memory *memory);
/* Memory of this process whose end a capture put off, and its end if possible now, without the GIL. */
bool rc_py_device_memory_has_left(void);
void rc_py_device_memory_end_left(void);
struct rc_py_device_memory *rc_py_device_memory_take(struct rc_py_device_memory *memory);
/* A capsule over the item at `offset` of the memory, for from_dlpack(). */
PyObject *rc_py_device_capsule(const struct ringcast_item *item, struct rc_py_device_memory *memory, uint64_t offset,
                               bool versioned);
/* ringcast.DeviceTensor over the memory, which is taken over. */
PyObject *rc_py_device_tensor(struct rc_py_state *state, const struct ringcast_item *item,
                              struct rc_py_device_memory *memory, uint64_t offset);
/* A capsule over a DeviceTensor's bytes, ordered by `stream`. NULL: raised. */
PyObject *rc_py_device_tensor_export(PyObject *tensor, void **stream);
extern PyType_Spec rc_py_device_tensor_spec;

/* ---- codec/device_put.c ----------------------------------------------------------------------------------------- */

/* Prepares a described tensor on a device for sending. 1, -1. */
int rc_py_device_note(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step,
                      struct rc_py_source *source);
/* Plans the frame anew, with those tensors in the pool. False: raised. */
bool rc_py_device_plan(struct rc_py_encoding *encoding, const uint64_t *offsets); /* NULL: not there, after all */
/* How many bytes each of them has: those that have any, and are not there already. */
uint32_t rc_py_device_sizes(const struct rc_py_encoding *encoding, uint64_t *out);
/* The copies to the pool. 0, -errno, or RC_PY_RAISED. */
struct rc_py_puts {
  struct ringcast_gpu_put *puts; /* room for encoding->on_device */
  uint32_t count;
  /* Torch's tensor with copies of all small ones, for one copy; NULL: each is copied on its own. To be dropped. */
  PyObject *packed;
  struct ringcast_tensor tensor;
  int64_t bytes;
};
int rc_py_device_puts(const struct rc_py_encoding *encoding, struct rc_py_puts *out);
/* Copies them into the frame, and waits for that. */
int rc_py_device_fetch(const struct rc_py_encoding *encoding, ringcast_gpu_writer *gpu);
static inline bool rc_py_is_on_device(const struct rc_py_part *part) {
  return part->kind == RINGCAST_ITEM_TENSOR && part->source.is_on_device && part->bytes > 0;
}

/* ---- codec/device_get.c ----------------------------------------------------------------------------------------- */

struct rc_py_decoding;
/* Whether the item is to arrive on a device, or came from a device's pool. */
bool rc_py_device_wants(const struct rc_py_decoding *decoding, const struct ringcast_item *item);
/* Its tensor; the bytes come with rc_py_device_copy. NULL: raised, or, with nothing raised, its bytes are in the frame
 * and go to host memory. */
PyObject *rc_py_device_make(struct rc_py_decoding *decoding, const struct ringcast_item *item, uint64_t bytes);
/* Enqueues the copies that are due. False: raised. */
bool rc_py_device_copy(struct rc_py_decoding *decoding);
void rc_py_device_clear(struct rc_py_decoding *decoding);

/* ---- handles/gpu.c ---------------------------------------------------------------------------------------------- */

/* Sends what was measured. 0, -errno, or RC_PY_RAISED. On an error nothing is left open. */
int rc_py_gpu_send(struct rc_py_writer *self, struct rc_py_encoding *encoding, int64_t timeout_ns, uint32_t tag);
/* Of that device, unless it is open. 0, -errno. */
int rc_py_gpu_writer_open(struct rc_py_writer *self, int32_t device);
void rc_py_gpu_writer_shut(struct rc_py_writer *self);

struct rc_py_take {
  struct ringcast_gpu_take take;
  struct rc_py_stream stream;
  bool is_owed; /* given back while the stream captured a graph: to be ended after the capture */
};

struct rc_py_gpu_reader {
  ringcast_gpu_reader *reader; /* NULL: this process has no device, or not for us: */
  int rc;                      /* why, and ... */
  PyObject *why;               /* ... in words */
  int32_t device;
  uint64_t pool_bytes; /* of the writer's pool, as far as is known */
  bool skips;          /* the frame that was begun last is not for this Reader */
  bool has_told;       /* -EPIPE was reported for tensors that never came */
  bool is_interrupted; /* a signal ended the copy of the frame that was begun last */
  uint32_t take_count, owed_count;
  struct rc_py_take takes[RC_PY_MOST_LEASES + 1];
};
/* The Reader's, opened by the first call; its `reader` may be NULL. NULL: raised. */
struct rc_py_gpu_reader *rc_py_gpu_reader_of(struct rc_py_reader *self);
/* Begins to read a frame that is held, unless it has begun. NULL: raised, and `skips` perhaps set. `stream` is what the
 * copies are to be ordered by. */
struct rc_py_take *rc_py_gpu_begin(struct rc_py_reader *self, const struct ringcast_frame *frame,
                                   const struct rc_py_stream *stream);
/* Whether the exception that is set comes of a frame that is not for this Reader: clears it then. */
bool rc_py_gpu_skips(struct rc_py_reader *self);
/* Before the next frame is read. */
static inline void rc_py_gpu_skips_none(struct rc_py_reader *self) {
  if (self->gpu) self->gpu->skips = self->gpu->is_interrupted = false;
}
/* ringcast_reader_release, of a frame that may have been begun. -EPIPE: what was waited for never came. A frame whose
 * stream captures a graph is owed. */
int rc_py_reader_release(struct rc_py_reader *self, const struct ringcast_frame *frame);
/* Gives back owed takes and what was left of memory, if possible now. Without the GIL: another thread's call of the
 * driver, which waits for the device, may hold up the calls. */
void rc_py_gpu_end_owed(struct rc_py_gpu_reader *gpu);
/* The same for a caller with the GIL, which is released meanwhile. */
void rc_py_gpu_end_owed_now(struct rc_py_gpu_reader *gpu);
/* Before the next frame is asked for. -EPIPE, once: the writer died, and tensors that were given before never came. */
int rc_py_gpu_check(struct rc_py_reader *self);
void rc_py_gpu_reader_shut(struct rc_py_reader *self);
/* None, "cpu", "cuda", "cuda:N", or what has such a str(). */
bool rc_py_gpu_map(PyObject *location, struct rc_py_map *out);
/* Whether there is such a device, as far as the driver has said; false: raised, a ValueError, or the Error of a frame
 * that was to arrive there. */
bool rc_py_gpu_map_is_known(struct rc_py_state *state, const struct rc_py_map *map);
bool rc_py_gpu_map_exists(struct rc_py_reader *self);
/* Whether such a frame holds tensors of a device. It is there as a whole. */
bool rc_py_has_device(const struct ringcast_frame *frame);

PyObject *rc_py_reader_prepare_gpu(PyObject *self, PyObject *unused);
PyObject *rc_py_writer_gpu(PyObject *self, void *closure);
PyObject *rc_py_reader_gpu(PyObject *self, void *closure);
PyObject *rc_py_gpu_status(PyObject *module, PyObject *unused);

/* ---- handles/empty.c -------------------------------------------------------------------------------------------- */

PyObject *rc_py_writer_empty(PyObject *writer, PyObject *args, PyObject *keywords);
/* Notes of each tensor on a device whether the tensor lies in memory of Writer.empty, and where. False: none does. */
bool rc_py_places_find(const struct rc_py_writer *writer, struct rc_py_encoding *encoding);
/* Has the frame refer to what was found. -EBUSY: another frame refers to some of it still; that is found no more. */
int rc_py_places_attach(const struct rc_py_writer *writer, struct rc_py_encoding *encoding,
                        const struct ringcast_gpu_extent *lease);
/* Gives back the memory of tensors that have gone. Both without the GIL: the driver may wait. */
void rc_py_places_sweep(struct rc_py_writer *writer);
/* Before the gpu's part is closed. */
void rc_py_places_shut(struct rc_py_writer *writer);

#endif
