/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warming. Between two steps of an engine other code runs, or the CPU sleeps, and the caches, the
 * TLB and the branch predictors forget the decoder: a dict that takes 2 us to decode right after
 * another dict then takes 40. So a Reader keeps a copy of the last small frame. Shortly before the
 * next frame is due (channel/reader.h), the copy is decoded and the result dropped.
 *
 * A frame is kept only if decoding ran no code that may be the user's (`ran_code` of the module's
 * state): user code must run once per frame. Frames for a device are not kept.
 */
#include "python/extension/handles/reader.h"

#include <stdlib.h>

#define MOST_BYTES ((size_t)16 << 10)

struct rc_py_warming {
  bool is_asked;               /* a window has begun since a frame was kept */
  struct ringcast_frame frame; /* 0 bytes: no frame */
  _Alignas(64) uint8_t memory[16 + MOST_BYTES];
};

static void decode(struct rc_py_reader *self, const struct ringcast_frame *frame) {
  const struct rc_py_decode_options options = {.classes = &self->classes,
                                               .allow_pickle = self->base.allow_pickle};
  uint32_t tag;
  PyObject *object = rc_py_decode(rc_py_state_of(self), frame, &options, &tag);
  bool is_interrupted = !object && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
  if (is_interrupted) PyErr_SetInterrupt(); /* the wait reports Ctrl-C */
  PyErr_Clear();
  Py_XDECREF(object);
}

static struct rc_py_warming *new_warming(void) {
  struct rc_py_warming *warming = aligned_alloc(64, sizeof *warming);
  if (warming) warming->frame.bytes = 0;
  return warming;
}

/* Called with the GIL or without. */
void rc_py_warm(void *context) {
  struct rc_py_reader *self = context;
  if (!Py_IsInitialized()) return; /* a daemon thread, while the process exits */
  if (!self->warming) self->warming = new_warming();
  struct rc_py_warming *warming = self->warming;
  if (!warming) return;
  warming->is_asked = true;
  if (warming->frame.bytes == 0) return;
  PyGILState_STATE gil = PyGILState_Ensure();
  decode(self, &warming->frame);
  PyGILState_Release(gil);
}

void rc_py_warming_keep(struct rc_py_reader *self, const struct ringcast_frame *frame,
                        bool ran_code) {
  struct rc_py_warming *warming = self->warming;
  if (!warming->is_asked) return;
  warming->is_asked = false;
  warming->frame.bytes = 0;
  bool is_for_device = rc_py_has_device(frame) || self->device.receiver.map.to == RC_PY_MAP_CUDA;
  if (ran_code || is_for_device || frame->bytes > MOST_BYTES) return;
  uint8_t *data = warming->memory + 16; /* as in the ring: 16 bytes into a line */
  memcpy(data, frame->data, frame->bytes);
  warming->frame =
      (struct ringcast_frame){.data = data, .bytes = frame->bytes, .kind = frame->kind};
}
