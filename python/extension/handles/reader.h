/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader.
 *
 *   reader.c    attaches to a ring, and leaves it; the type
 *   receive.c   from Reader.recv to the object, and giving frames back
 *   warm.c      decodes an old frame shortly before the next is due
 *   frame.c     Frame: a received frame that still occupies the ring; Reader.next
 *   view.c      View: an object with its arrays in the ring; Reader.view
 */
#ifndef RC_EXTENSION_READER_H
#define RC_EXTENSION_READER_H

#include "python/extension/call.h"
#include "python/extension/handles/gpu.h"

struct rc_py_hold;

struct rc_py_reader {
  struct rc_py_handle base;
  ringcast_reader *reader; /* NULL: closed */
  struct ringcast_info info;
  PyObject *classes;       /* classes received: the cache of classes.c */
  Py_ssize_t exports;      /* buffers in use, of all Frames */
  struct rc_py_hold *hold; /* keeps the memory of viewed arrays; NULL: no view yet */
  /* Frames released or dropped during a call: receive.c. */
  uint32_t dropped_count;
  struct ringcast_frame dropped[RC_PY_MOST_LEASES];
  bool has_ended;   /* the ring reported that the writer is gone and everything was received */
  bool retains;     /* asked for: see receive.c, as for ... */
  bool retain_next; /* ... this */
  /* A frame that a device could not copy on arrival: still held, and the next to be received. */
  bool has_stash;
  struct ringcast_frame stash;
  struct rc_py_gpu_side device;
  struct rc_py_warming *warming; /* NULL until a wait has spun for a due message: warm.c */
};

extern PyType_Spec rc_py_reader_spec;

/* ---- receive.c ------------------------------------------------------------------------------- */

bool rc_py_reader_enter(struct rc_py_reader *self);
void rc_py_reader_give_back_dropped(struct rc_py_reader *self);
void rc_py_reader_leave(struct rc_py_reader *self);
/* The same, with the spans of a recv. `is_nothing`: no frame has come in a try. */
bool rc_py_reader_begin(struct rc_py_reader *self);
void rc_py_reader_end(struct rc_py_reader *self, bool is_nothing);
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

/* The next frame, whole. The caller has entered the Reader. 0, -errno, or RC_PY_RAISED. */
int rc_py_receive_frame(struct rc_py_reader *self, int64_t timeout_ns, struct ringcast_frame *out);

PyObject *rc_py_reader_recv(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords);
PyObject *rc_py_reader_recv_tagged(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                   PyObject *keywords);
PyObject *rc_py_reader_iternext(PyObject *self);
/* _take(tagged): recv(0) or recv_tagged(0) for a task, but for state->nothing if nothing is
 * there. */
PyObject *rc_py_reader_take(PyObject *self, PyObject *tagged);
/* _more(received, most): appends to the list what is there, until it has `most`. If a frame can't
 * be decoded, the call ends, and the next call raises the reason. */
PyObject *rc_py_reader_more(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* Whether the frame, complete in memory, holds tensors of a device. */
static inline bool rc_py_has_device(const struct ringcast_frame *frame) {
  struct ringcast_frame_header header;
  if (frame->kind != RINGCAST_KIND_TENSORS || frame->bytes < sizeof header) return false;
  memcpy(&header, frame->data, sizeof header);
  return header.magic == RINGCAST_FRAME_MAGIC && header.version >= 3;
}

/* ---- warm.c ---------------------------------------------------------------------------------- */

/* Decodes the kept frame: for rc_reader_warm_by, with the Reader as the context. */
void rc_py_warm(void *context);
/* Keeps a copy of the frame for rc_py_warm, if a window asked and the frame allows it. `ran_code`:
 * decoding ran user code. */
void rc_py_warming_keep(struct rc_py_reader *self, const struct ringcast_frame *frame,
                        bool ran_code);

/* ---- frame.c --------------------------------------------------------------------------------- */

extern PyType_Spec rc_py_frame_spec;

PyObject *rc_py_reader_next(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords);
/* The next frame, as a Frame. `is_view`: the caller decodes it. */
PyObject *rc_py_lend(struct rc_py_reader *reader, int64_t timeout_ns, bool is_view);
/* Gives the frame back while an exception is set, as rc_py_reader_give_back, unless already
 * done. */
void rc_py_frame_give_up(PyObject *frame);

const struct ringcast_frame *rc_py_frame_of(PyObject *frame);
/* As rc_py_reader_stash; for Python the Frame is released then. */
bool rc_py_frame_stash(PyObject *frame, bool device_failed);
PyObject *rc_py_frame_exit(PyObject *frame, PyObject *exception);
/* Copies out the frame's object, or the object of `part`, a frame inside the frame's memory.
 * `classes`: as in rc_py_classes_allowed; NULL: pickles if the Reader allows pickles. If the Reader
 * allows none, the Reader's own classes count, unless `are_given`. */
PyObject *rc_py_frame_unpack(PyObject *frame, const struct ringcast_frame *part, PyObject *classes,
                             bool are_given);

/* ---- view.c ---------------------------------------------------------------------------------- */

extern PyType_Spec rc_py_view_spec;

PyObject *rc_py_reader_view(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords);

#endif
