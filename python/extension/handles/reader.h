/* SPDX-License-Identifier: Apache-2.0 */
/* Reader, for the files that implement it. */
#ifndef RC_EXTENSION_READER_H
#define RC_EXTENSION_READER_H

#include "python/extension/codec/decode.h"
#include "python/extension/handles/handle.h"

#define RC_PY_MOST_LEASES 64

struct rc_py_hold;

struct rc_py_reader {
  struct rc_py_handle base;
  ringcast_reader *reader; /* NULL: closed */
  struct ringcast_info info;
  struct rc_py_holder holder;
  PyObject *classes;       /* classes received: the cache of classes.c */
  Py_ssize_t exports;      /* buffers in use, of all Frames */
  struct rc_py_hold *hold; /* keeps the memory of viewed arrays; NULL: no view yet */
  /* Frames released or dropped during a call: turn.c. */
  uint32_t dropped_count;
  struct ringcast_frame dropped[RC_PY_MOST_LEASES];
  bool has_ended; /* the ring reported that the writer is gone and everything was received */
  bool starts_latest;
  bool retains;     /* asked for: see receive.c, as for ... */
  bool retain_next; /* ... this */
  /* A frame that a device could not copy on arrival: still held, and the next to be received. */
  bool has_stash;
  struct ringcast_frame stash;
  struct rc_py_gpu_reader *gpu;  /* NULL until a tensor of a device came */
  struct rc_py_warming *warming; /* NULL until a wait has spun for a due message: warm.c */
};

extern PyType_Spec rc_py_reader_spec;

/* ---- turn.c ---------------------------------------------------------------------------------- */

static inline bool rc_py_reader_enter(struct rc_py_reader *self) {
  return rc_py_handle_enter(&self->base);
}
void rc_py_reader_give_back_dropped(struct rc_py_reader *self);
static inline void rc_py_reader_leave(struct rc_py_reader *self) {
  if (self->dropped_count > 0) rc_py_reader_give_back_dropped(self);
  rc_py_handle_leave(&self->base);
}
/* The same, with the spans of a recv. `is_nothing`: no frame has come in a try. */
static inline bool rc_py_reader_begin(struct rc_py_reader *self) {
  bool is_in = rc_py_reader_enter(self);
  if (is_in) rc_py_handle_begin(&self->base);
  return is_in;
}
static inline void rc_py_reader_end(struct rc_py_reader *self, bool is_nothing) {
  rc_py_reader_leave(self);
  rc_py_spans_end(&self->base.call, RC_PY_SPAN_RECV, is_nothing);
}
/* Raises the exception for `rc` if negative, and leaves. False: raised. */
bool rc_py_reader_finish(struct rc_py_reader *self, int rc);
/* Leaves the frame to the call at work on the Reader. False: no call is. */
bool rc_py_reader_defer(struct rc_py_reader *self, const struct ringcast_frame *frame);
/* Keeps the frame as the next one, if the current exception only says that the frame could not be
 * decoded now: Ctrl-C ended the copy from a device, or the device part failed (`device_failed`)
 * because a stream captures a graph, or because a mode of torch gives no real tensors. */
bool rc_py_reader_stash(struct rc_py_reader *self, const struct ringcast_frame *frame,
                        bool device_failed);
/* Gives the frame back, even if decoding failed. The current exception stays; but Evicted
 * replaces any exception except KeyboardInterrupt and the like, since overwritten data may have
 * caused it. */
bool rc_py_reader_give_back(struct rc_py_reader *self, const struct ringcast_frame *frame);

/* Returns `object` if everything read so far from held frames was whole; else drops `object` and
 * raises Evicted. `object` may be NULL: Evicted then replaces the current exception, as
 * rc_py_reader_give_back says. */
PyObject *rc_py_reader_made_sure(struct rc_py_reader *self, PyObject *object);

/* ---- view.c ---------------------------------------------------------------------------------- */

extern PyType_Spec rc_py_view_spec;
/* The object in `frame`, with arrays left in the ring: a View, with a reference to the Frame. NULL:
 * raised. */
PyObject *rc_py_view_new(struct rc_py_reader *reader, PyObject *frame);

#endif
