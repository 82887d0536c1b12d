/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a CUDA device in frames. */
#ifndef RC_EXTENSION_CODEC_DEVICE_H
#define RC_EXTENSION_CODEC_DEVICE_H

#include "python/extension/codec/decode.h"
#include "python/extension/codec/encode.h"
#include "python/extension/tensors/device.h"

/* Smaller tensors of a frame share one piece of memory, if that is at most twice what they need, beside a gap for each:
 * to copy so much more takes less time than another copy. */
#define RC_PY_ARENA_LEAST (UINT64_C(1) << 20)
#define RC_PY_ARENA_GAP   4096
/* From so many tensors of less bytes on, a kernel that packs them takes less time than to copy each to the pool. */
#define RC_PY_PACKED_LEAST 8
#define RC_PY_PACKED_LESS  (UINT64_C(1) << 16)

#define RC_PY_ELSEWHERE "the frame's tensors lie in the writer's device memory, "

/* ---- device_put.c ----------------------------------------------------------------------------------------------- */

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

/* ---- device_get.c ----------------------------------------------------------------------------------------------- */

/* The device of a Reader, and a frame that is read there. */
struct rc_py_arrival {
  ringcast_gpu_reader *reader;
  int32_t device;
  struct ringcast_gpu_take *take;
  struct rc_py_stream stream; /* that of the first look at the frame; kept by the take */
  uint64_t pool_bytes;        /* of the writer's pool */
};
struct rc_py_holder_calls {
  /* Gives reader and device. 1; 0: there is no device, and the CPU will do; -1: raised. `in_pool`: the CPU won't. */
  int (*open)(struct rc_py_holder *holder, bool in_pool, struct rc_py_arrival *out);
  /* Begins to read the frame in the order of `stream`, unless it has begun, and gives the rest. False: raised. */
  bool (*begin)(struct rc_py_holder *holder, const struct ringcast_frame *frame, const struct rc_py_stream *stream,
                struct rc_py_arrival *out);
  /* A signal ended the copy of the frame. */
  void (*interrupt)(struct rc_py_holder *holder);
};

struct rc_py_decoding;
/* Whether the item is to arrive on a device, or came from a device's pool. */
bool rc_py_device_wants(const struct rc_py_decoding *decoding, const struct ringcast_item *item);
/* Its tensor; the bytes come with rc_py_device_copy. NULL: raised, or, with nothing raised, its bytes are in the frame
 * and go to host memory. */
PyObject *rc_py_device_make(struct rc_py_decoding *decoding, const struct ringcast_item *item, uint64_t bytes);
/* Enqueues the copies that are due. False: raised. */
bool rc_py_device_copy(struct rc_py_decoding *decoding);
void rc_py_device_clear(struct rc_py_decoding *decoding);

#endif
