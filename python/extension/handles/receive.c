/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: the next frame, copied out or lent.
 *
 * A frame is not lost whose tensors can't be copied just now, because their stream captures a graph, or Ctrl-C ends the
 * copy to a device: the frame stays held, as the Reader's `rest`, and is the next one.
 *
 * A Reader that keeps copies what it can't keep. Whether a large frame is worth keeping is known only once the frame
 * was read. So the last large frame decides: if it was made of large arrays, the next one is kept.
 */
#include "python/extension/handles/receive.h"

#include "python/extension/device.h"

struct arrival {
  struct rc_py_reader *owner;
  struct ringcast_frame frame;
  int64_t timeout_ns, deadline; /* deadline 0: the wait has not begun */
  bool retained;
  struct rc_py_gpu_reader *gpu; /* NULL: none yet */
};

/* With a timeout of 0 or 1 it has the GIL. */
static int try_next(void *context, int64_t timeout_ns) {
  struct arrival *call = context;
  if (call->gpu && timeout_ns > 1) rc_py_gpu_end_owed(call->gpu);
  else if (call->gpu) rc_py_gpu_end_owed_now(call->gpu);
  return ringcast_reader_next(call->owner->reader, timeout_ns, &call->frame);
}

/* The writer may be waiting for just what was dropped. */
static void give_back_dropped(void *context) { rc_py_reader_give_back_dropped(((struct arrival *)context)->owner); }

/* The next frame, or the one that an earlier call could not copy. */
static int arrive(struct rc_py_reader *self, struct arrival *call) {
  if (self->begun) {
    call->frame = self->rest;
    return 0;
  }
  call->gpu = self->gpu && self->gpu->reader ? self->gpu : NULL;
  int rc = rc_py_gpu_check(self);
  if (rc == 0) rc = rc_py_wait_until(try_next, give_back_dropped, call, call->timeout_ns, &call->deadline);
  if (rc == -EBUSY && call->gpu) rc_py_gpu_end_owed_now(call->gpu); /* says why, if that is what leaves no lease */
  return rc;
}

/* A frame in spill memory. */
static inline bool is_large(const struct rc_py_reader *self, const struct arrival *call) {
  return call->frame.bytes > self->info.ring_frame;
}

static PyObject *decode_by(struct rc_py_reader *self, const struct ringcast_frame *frame, struct rc_py_hold *hold,
                           uint32_t *tag) {
  uint64_t arrays = 0;
  const struct rc_py_decoder decoder = {.reader = self->reader,
                                        .owner = self,
                                        .classes = &self->classes,
                                        .allow_pickle = self->allow_pickle,
                                        .hold = hold,
                                        .arrays = &arrays};
  PyObject *object = rc_py_decode_by(rc_py_state_of(self), frame, &decoder, tag);
  if (frame->bytes > self->info.ring_frame) self->has_arrays = arrays > frame->bytes / 2;
  return object;
}

static PyObject *decode(struct rc_py_reader *self, const struct arrival *call, uint32_t *tag) {
  return decode_by(self, &call->frame, NULL, tag);
}

/* The object, with its large arrays where they are. */
static PyObject *decode_retained(struct rc_py_reader *self, struct arrival *call, uint32_t *tag) {
  struct ringcast_frame frame = call->frame;
  bool is_copied = self->map.to == RC_PY_MAP_CUDA || rc_py_has_device(&frame);
  if (is_copied) return decode(self, call, tag);
  struct rc_py_hold *hold = rc_py_hold_retained(self->reader, &frame);
  if (!hold) return decode(self, call, tag);
  call->retained = true;
  PyObject *object = rc_py_reader_made_sure(self, decode_by(self, &frame, hold, tag));
  self->has_arrays = self->has_arrays && rc_py_hold_is_shared(hold);
  rc_py_hold_drop(hold);
  return object;
}

static bool is_to_be_retained(const struct rc_py_reader *self) {
  return self->retains && self->has_arrays && ringcast_reader_retains(self->reader);
}

/* Whether what is raised comes of a stream that captures a graph: nothing was made of the frame. */
static bool is_captured(struct rc_py_state *state) {
  PyObject *type, *error, *traceback;
  if (!PyErr_ExceptionMatches(state->error)) return false;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  PyObject *number = error ? PyObject_GetAttrString(error, "errno") : NULL;
  bool is_busy = number && PyLong_Check(number) && PyLong_AsLong(number) == EBUSY;
  Py_XDECREF(number);
  PyErr_Restore(type, error, traceback);
  return is_busy;
}

/* The frame that has arrived. -ECONNABORTED: it was not for this Reader, go on with the next one. */
static int read_frame(struct rc_py_reader *self, struct arrival *call, uint32_t *tag, PyObject **object) {
  rc_py_gpu_skips_none(self);
  bool retains = is_large(self, call) && is_to_be_retained(self);
  *object = retains ? decode_retained(self, call, tag) : decode(self, call, tag);
  self->begun =
      !*object && !call->retained && self->gpu && (self->gpu->is_interrupted || is_captured(rc_py_state_of(self)));
  self->rest = call->frame;
  if (self->begun) return RC_PY_RAISED;
  bool skips = !*object && rc_py_gpu_skips(self);
  if (!call->retained && !rc_py_reader_give_back(self, &call->frame)) Py_CLEAR(*object);
  call->retained = false;
  if (!*object && PyErr_Occurred()) return RC_PY_RAISED;
  return skips ? -ECONNABORTED : 0;
}

int rc_py_receive_frame(struct rc_py_reader *self, int64_t timeout_ns, struct ringcast_frame *out) {
  struct arrival call = {.owner = self, .timeout_ns = timeout_ns};
  int rc = arrive(self, &call);
  if (rc < 0) return rc;
  self->begun = false; /* a frame that could not be copied is lent now */
  *out = call.frame;
  return 0;
}

PyObject *rc_py_receive(struct rc_py_reader *self, int64_t timeout_ns, uint32_t *tag, bool taking) {
  if (!rc_py_reader_enter(self)) return NULL;
  struct arrival call = {.owner = self, .timeout_ns = timeout_ns};
  PyObject *object = NULL;
  int rc;
  do {
    rc = arrive(self, &call);
    if (rc < 0) break;
    if (taking) self->spent += 1 + (unsigned)(call.frame.bytes >> 14);
    rc = read_frame(self, &call, tag, &object);
  } while (rc == -ECONNABORTED);
  if (rc == -EAGAIN && taking) {
    self->spent = 0; /* the task is going to wait */
    object = rc_py_ref(rc_py_state_of(self)->nothing);
  } else if (rc < 0) {
    rc_py_raise(rc_py_state_of(self), rc);
    rc_py_watch_after(self->watch, self->pid, rc);
  }
  rc_py_reader_leave(self);
  return object;
}
