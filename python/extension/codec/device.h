/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a CUDA device in frames. */
#ifndef RC_EXTENSION_CODEC_DEVICE_H
#define RC_EXTENSION_CODEC_DEVICE_H

#include "python/extension/codec/decoding.h"
#include "python/extension/codec/encoding.h"
#include "python/extension/tensors/device.h"

/* A frame's smaller tensors share one allocation, if the copied range is at most twice the tensors'
 * bytes, plus a gap per tensor: copying the excess takes less time than a copy per tensor. */
#define RC_PY_ARENA_LEAST (UINT64_C(1) << 20)
#define RC_PY_ARENA_GAP   4096
/* A kernel that packs so many tensors, each of less bytes, takes less time than a copy to the pool
 * for each. */
#define RC_PY_PACKED_LEAST 8
#define RC_PY_PACKED_LESS  (UINT64_C(1) << 16)

#define RC_PY_ELSEWHERE "the frame's tensors lie in the writer's device memory, "

/* ---- device_put.c ---------------------------------------------------------------------------- */

/* Prepares a described tensor on a device for sending; `where(context)` gives its place in words,
 * for an error message. 1, -1. */
int rc_py_device_note(struct rc_py_encoding *encoding, PyObject *value, rc_py_where where,
                      void *context, struct rc_py_source *source);
/* Places the tensors at `offsets` in the pool; NULL: not in the pool. See rc_py_device_plan. */
void rc_py_device_place(struct rc_py_encoding *encoding, const uint64_t *offsets);
/* The sizes of the tensors to copy to the pool: not empty, and not in the pool already. Returns the
 * count. */
uint32_t rc_py_device_sizes(const struct rc_py_encoding *encoding, uint64_t *out);
/* The copies to the pool. 0, -errno, or RC_PY_RAISED. */
struct rc_py_puts {
  struct ringcast_gpu_put *puts; /* room for encoding->on_device */
  uint32_t count;
  /* torch's tensor with copies of all small tensors, for a single copy; NULL: a copy for each. The
   * caller drops it. */
  PyObject *packed;
  struct ringcast_tensor tensor;
  int64_t bytes;
};
int rc_py_device_puts(const struct rc_py_encoding *encoding, struct rc_py_puts *out);
/* Copies the device tensors into the frame, and waits for the copies. */
int rc_py_device_fetch(const struct rc_py_encoding *encoding, ringcast_gpu_writer *gpu);
static inline bool rc_py_is_on_device(const struct rc_py_part *part) {
  return part->kind == RINGCAST_ITEM_TENSOR && part->source.is_on_device && part->bytes > 0;
}

/* ---- device_get.c ---------------------------------------------------------------------------- */

/* The device of a Reader, and a frame being read on the device. */
struct rc_py_arrival {
  ringcast_gpu_reader *reader;
  int32_t device;
  struct ringcast_gpu_take *take;
  struct rc_py_stream stream; /* the stream of the first read of the frame; kept by the take */
  uint64_t pool_bytes;        /* of the writer's pool */
};
struct rc_py_receiver_calls {
  /* Gives reader and device. 1; 0: there is no device, and the CPU will do; -1: raised. `in_pool`:
   * the CPU won't. */
  int (*open)(struct rc_py_receiver *receiver, bool in_pool, struct rc_py_arrival *out);
  /* Begins to read the frame in the order of `stream`, unless begun, and fills in the rest. False:
   * raised. */
  bool (*begin)(struct rc_py_receiver *receiver, const struct ringcast_frame *frame,
                const struct rc_py_stream *stream, struct rc_py_arrival *out);
  /* A signal ended the copy of the frame. */
  void (*interrupt)(struct rc_py_receiver *receiver);
};

/* The item's tensor; rc_py_device_copy fetches the bytes. NULL: raised, or, with nothing raised,
 * the bytes are in the frame and go to host memory. */
PyObject *rc_py_device_make(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                            uint64_t bytes);
/* Enqueues the pending copies. False: raised. */
bool rc_py_device_copy(struct rc_py_decoding *decoding);
void rc_py_device_clear(struct rc_py_decoding *decoding);

#endif
