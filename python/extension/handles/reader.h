/* SPDX-License-Identifier: Apache-2.0 */
/* Reader, and what its files share. */
#ifndef RC_EXTENSION_READER_H
#define RC_EXTENSION_READER_H

#include "python/extension/codec/decode.h"

#define RC_PY_MOST_LEASES 64

struct rc_py_hold;

struct rc_py_reader {
  PyObject_HEAD ringcast_reader *reader; /* NULL: closed */
  struct ringcast_info info;
  struct rc_py_holder holder;
  PyObject *handle;
  pid_t pid;
  bool busy, allow_pickle;
  PyObject *classes;       /* that came: the cache of classes.c */
  Py_ssize_t exports;      /* buffers in use, of all Frames */
  struct rc_py_hold *hold; /* what arrays of views hold; NULL: there was no view yet */
  /* Frames that were released or dropped while a call was at work: turn.c. */
  uint32_t dropped_count;
  struct ringcast_frame dropped[RC_PY_MOST_LEASES];
  PyObject *watch;  /* the descriptor in an event loop (ringcast._asyncio); NULL or None: it never was in one */
  unsigned spent;   /* on tasks that did not have to wait, since one had */
  bool has_ended;   /* the ring has said that the writer is gone and everything was received */
  bool retains;     /* asked for: see receive.c, as for ... */
  bool retain_next; /* ... this */
  /* A frame that a device could not copy when it was received: still held, and the next one. */
  bool has_stash;
  struct ringcast_frame stash;
  struct rc_py_gpu_reader *gpu;  /* NULL until a tensor of a device came */
  struct rc_py_warming *warming; /* NULL until a wait has spun for a message that was due: warm.c */
};

extern PyType_Spec rc_py_reader_spec;

/* ---- turn.c ----------------------------------------------------------------------------------------------------- */

bool rc_py_reader_enter(struct rc_py_reader *self);
void rc_py_reader_give_back_dropped(struct rc_py_reader *self);
static inline void rc_py_reader_leave(struct rc_py_reader *self) {
  if (self->dropped_count > 0) rc_py_reader_give_back_dropped(self);
  self->busy = false;
}
/* Raises what `rc` stands for if it is negative, and leaves. False: raised. */
bool rc_py_reader_finish(struct rc_py_reader *self, int rc);
/* Leaves the frame to the call that is at work on the Reader. False: none is. */
bool rc_py_reader_defer(struct rc_py_reader *self, const struct ringcast_frame *frame);
/* Keeps the frame as the next one, if all that is raised is that a device could not copy it now: Ctrl-C has ended the
 * copy, or the device's part of the work has failed (`device_failed`) for a stream captures a graph. */
bool rc_py_reader_stash(struct rc_py_reader *self, const struct ringcast_frame *frame, bool device_failed);
/* Gives the frame back, whatever became of its contents; an exception that is set already stays, but Evicted takes the
 * place of any other than KeyboardInterrupt and the like: it may come of what was overwritten. */
bool rc_py_reader_give_back(struct rc_py_reader *self, const struct ringcast_frame *frame);

/* `object` if all that was read so far of held frames was whole; else it is dropped, and Evicted raised. It may be
 * NULL: then Evicted takes the place of what was raised, as rc_py_reader_give_back says. */
PyObject *rc_py_reader_made_sure(struct rc_py_reader *self, PyObject *object);

/* ---- view.c ----------------------------------------------------------------------------------------------------- */

extern PyType_Spec rc_py_view_spec;
/* What `frame` holds, its arrays where they lie: a View, which has a reference to the Frame. NULL: raised. */
PyObject *rc_py_view_new(struct rc_py_reader *reader, PyObject *frame);

#endif
