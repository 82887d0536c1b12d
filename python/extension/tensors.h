/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors and arrays of the CPU: what tensors/ offers the other rooms. For a CUDA device see
 * tensors/device.h. */
#ifndef RC_EXTENSION_TENSORS_H
#define RC_EXTENSION_TENSORS_H

#include "python/extension/call.h"
#include "python/extension/errors.h"

/* ---- tensor.c, torch.c, torch_describe.c, numpy.c -------------------------------------------- */

struct rc_py_dtype {
  struct ringcast_dtype dtype;
  const char *torch; /* torch's name for the dtype */
  const char *numpy; /* NumPy's, or NULL */
  uint32_t flags;    /* RINGCAST_ITEM_PADDED, or 0 */
};
extern const struct rc_py_dtype rc_py_dtypes[RC_PY_DTYPES];
#define RC_PY_OPAQUE_CODE 3 /* torch's bits8 and the like */
#define RC_PY_BOOL_CODE   6
/* The index in rc_py_dtypes; -1: none. A padded dtype is found by rc_py_dtype_of alone. */
int rc_py_dtype_find(struct ringcast_dtype dtype);
int rc_py_dtype_of(const struct ringcast_item *item);
/* A tuple of numbers, each times `unit`. */
PyObject *rc_py_dims(const int64_t *dims, int32_t ndim, int64_t unit);
bool rc_py_is_c_order(int32_t ndim, const int64_t *shape, const int64_t *strides);
/* Whether a tensor makes sense and has no gaps (C order, perhaps with permuted axes), and then its
 * bytes. */
bool rc_py_is_dense(const struct ringcast_tensor *tensor, uint64_t *bytes);
struct ringcast_tensor rc_py_tensor_of(const struct ringcast_item *item);

/* A tensor to send. `keep`, `storage` and `view` hold the tensor's memory; `dims` are shape and
 * strides, from PyMem. */
struct rc_py_source {
  struct ringcast_tensor tensor;
  PyObject *keep;
  /* torch's: `tensor.data = ...` may give the tensor a new storage before the copy. */
  PyObject *storage;
  Py_buffer view; /* view.obj NULL: none */
  int64_t *dims;
  void *stream;   /* of a tensor on a CUDA device: the stream that orders the memory, ... */
  int32_t device; /* ... and the device */
  bool is_on_device;
  bool is_empty; /* a placeholder: the bytes are written later */
  bool is_loose; /* the memory may be reused regardless of the stream */
};

/* Each describes `object` and returns 1; 0: `object` is of another library or can't be sent as a
 * tensor; -1: raised. `where(context)` gives the object's place in words for an error message.
 * Without `takes_cuda` CUDA is a device like any other: refused. */
typedef PyObject *(*rc_py_where)(void *context);
int rc_py_torch_describe(struct rc_py_state *state, PyObject *object, bool takes_cuda,
                         rc_py_where where, void *context, struct rc_py_source *out);
int rc_py_numpy_describe(struct rc_py_state *state, PyObject *object, struct rc_py_source *out);
/* An array of another dtype, described as uint8 with an axis more, and the dtype as text
 * (ringcast._arrays). NULL, also with nothing raised: no such array. */
PyObject *rc_py_numpy_describe_bytes(struct rc_py_state *state, PyObject *object,
                                     struct rc_py_source *out);
/* The array of such a text over `elements`; either may be any value. NULL: raised. */
PyObject *rc_py_numpy_of_bytes(struct rc_py_state *state, PyObject *text, PyObject *elements,
                               bool is_record, PyObject **dtypes);
/* The owner of a NumPy array's memory, borrowed. NULL: the array itself, or no array. */
PyObject *rc_py_numpy_base(struct rc_py_state *state, PyObject *object);
/* Whether torch is imported; false may mean: half. */
bool rc_py_torch_seen(struct rc_py_state *state);
/* Imports torch if necessary. False: raised. */
bool rc_py_torch_needed(struct rc_py_state *state);
/* Takes the modes of torch in force off the thread (FakeTensorMode, `with torch.device(...)`); the
 * exception stays. NULL: there are none. */
PyObject *rc_py_torch_leave_modes(struct rc_py_state *state);
/* The same after a failure that they may have caused, which is then forgotten. */
PyObject *rc_py_torch_leave_modes_after(struct rc_py_state *state);
/* Puts them back; the exception stays. NULL is allowed. */
void rc_py_torch_enter_modes(struct rc_py_state *state, PyObject *modes);
/* NumPy's dtype, borrowed. NULL: raised, or NumPy has no such dtype. */
PyObject *rc_py_numpy_dtype(struct rc_py_state *state, struct ringcast_dtype dtype);
/* numpy.frombuffer(data, dtype) */
PyObject *rc_py_numpy_over_bytes(struct rc_py_state *state, PyObject *data, PyObject *dtype);
void rc_py_source_clear(struct rc_py_source *source);

/* Each makes an uninitialised tensor of `bytes` for `item`, and gives the address for the bytes. */
PyObject *rc_py_torch_make(struct rc_py_state *state, const struct ringcast_item *item,
                           uint64_t bytes, void **out);
PyObject *rc_py_numpy_make(struct rc_py_state *state, const struct ringcast_item *item,
                           uint64_t bytes, void **out);

/* ---- dlpack.c -------------------------------------------------------------------------------- */

/* DLPack's DLTensor. Shape and strides are the owner's. */
struct rc_py_dltensor {
  void *data;
  struct {
    int32_t type, id;
  } device;
  int32_t ndim;
  struct ringcast_dtype dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
enum { RC_PY_DLPACK_CPU = 1, RC_PY_DLPACK_CUDA = 2 };

struct rc_py_block;
struct rc_py_exchange;
/* The exchange API of a tensor type; NULL, with nothing raised: unknown or absent. */
const struct rc_py_exchange *rc_py_dlpack_exchange(PyObject *type);
/* 1; 0, with nothing raised: refused; -1: raised an exception that is no Exception (Ctrl-C). */
int rc_py_dlpack_describe(const struct rc_py_exchange *exchange, PyObject *tensor,
                          struct rc_py_dltensor *out);
/* The current stream of a CUDA device. False, with nothing raised: unknown. */
bool rc_py_dlpack_stream(const struct rc_py_exchange *exchange, int32_t device, void **out);
/* A tensor for `item` over `data`, which belongs to `owner`. Consumes `owner` even on failure;
 * `give` runs in any thread, with the GIL or without. NULL: raised. */
PyObject *rc_py_dlpack_make(const struct rc_py_exchange *exchange, const struct ringcast_item *item,
                            void *data, void (*give)(void *owner), void *owner);
/* As a capsule for from_dlpack(). */
struct rc_py_dlpack_place {
  int32_t device_type, device;
  bool is_versioned; /* the capsule is of DLPack 1.0, which can say ... */
  bool is_read_only;
};
PyObject *rc_py_dlpack_capsule(const struct ringcast_item *item, const void *data,
                               const struct rc_py_dlpack_place *place, void (*give)(void *owner),
                               void *owner);

/* ---- memory.c -------------------------------------------------------------------------------- */

/* Memory that belongs to `owner`; `give` runs with the GIL. */
struct rc_py_buffer {
  void *data;
  uint64_t bytes;
  bool is_read_only;
  void (*give)(void *owner);
  void *owner;
};
/* An object with the buffer. Consumes `owner` even on failure. NULL: raised. */
PyObject *rc_py_memory_new(struct rc_py_state *state, struct rc_py_buffer buffer);

extern PyType_Spec rc_py_memory_spec;

/* Smaller arrays gain nothing: the allocators of NumPy and torch reuse small memory already. */
#define RC_PY_RECYCLE_LEAST (UINT64_C(64) << 10)

/* At least `bytes`, page-aligned, or NULL: too few to be worth recycling, more than the pool keeps,
 * or out of memory. Take and give need no GIL. */
struct rc_py_block *rc_py_block_take(uint64_t bytes);
void *rc_py_block_data(const struct rc_py_block *block);
void rc_py_block_give(void *block);
/* An object with a writable buffer of `bytes`, at `*out`; NULL, with nothing raised, as
 * rc_py_block_take. */
PyObject *rc_py_memory_take(struct rc_py_state *state, uint64_t bytes, void **out);

/* Sets the process's pool up, unless done. False: raised. */
bool rc_py_recycle_init(void);
PyObject *rc_py_recycling(PyObject *module, PyObject *args);

/* ---- torch.c, numpy.c: arrays over memory of ours -------------------------------------------- */

/* Over the item's own bytes, which belong to `owner`: see rc_py_dlpack_make. As
 * rc_py_array_over. */
PyObject *rc_py_torch_over(struct rc_py_state *state, const struct ringcast_item *item,
                           void (*give)(void *owner), void *owner);
/* From a capsule of DLPack's. As rc_py_array_over. */
PyObject *rc_py_torch_from(struct rc_py_state *state, const struct ringcast_item *item,
                           PyObject *capsule);
/* From an object with a buffer. NULL: raised. */
PyObject *rc_py_numpy_over(struct rc_py_state *state, const struct ringcast_item *item,
                           PyObject *memory);

/* ---- view_arrays.c: arrays over memory of the ring ------------------------------------------- */

struct rc_py_hold;
/* An array or tensor over the item's own packed `bytes`. NULL: raised, or, with nothing raised, the
 * caller must copy. */
PyObject *rc_py_array_over(struct rc_py_state *state, const struct ringcast_item *item,
                           uint64_t bytes, struct rc_py_hold *hold, bool to_torch);
/* The same as a buffer, of bytes. */
PyObject *rc_py_buffer_over(struct rc_py_state *state, const void *data, uint64_t bytes,
                            struct rc_py_hold *hold);
/* A hold of all of the reader's memory: the last rc_py_hold_drop closes the reader. NULL: out of
 * memory. */
struct rc_py_hold *rc_py_hold_new(ringcast_reader *reader);

/* Smaller arrays are copied out of a retained frame, so that no small array keeps a large frame. */
#define RC_PY_RETAIN_LEAST (UINT64_C(1) << 20)

/* Retains the frame, moved to writable memory. NULL, with nothing raised: not possible. */
struct rc_py_hold *rc_py_hold_retained(ringcast_reader *reader, struct ringcast_frame *frame);
/* Whether the hold has other users than the caller. */
bool rc_py_hold_is_shared(struct rc_py_hold *hold);
void rc_py_hold_drop(void *hold);

#endif
