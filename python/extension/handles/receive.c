/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: the next frame, copied out or lent.
 *
 * The stash: if a frame's tensors can't be copied now, because their stream captures a graph or
 * Ctrl-C ends the copy to a device, the frame is not lost. The frame stays held, as the Reader's
 * `stash`, and is the next one.
 *
 * Retention: instead of copying, a Reader with `retain` keeps a large frame if the frame is made of
 * large arrays and the receiver keeps the arrays. Both are known only after decoding. So the last
 * large frame decides (`retain_next`), and a frame that can't be retained is copied.
 */
#include "python/extension/handles/gpu.h"
#include "python/extension/handles/receive.h"
#include "ringcast/batch.h"

struct arrival {
  struct rc_py_reader *owner;
  struct ringcast_frame frame;
  int64_t timeout_ns, deadline; /* deadline 0: the wait has not begun */
  bool retained, device_failed;
  bool is_more; /* not the first frame of the call: if decoding fails, the frame stays the next */
  struct rc_py_gpu_reader *gpu; /* NULL: none yet */
};

static int try_next(void *context, int64_t timeout_ns, bool has_gil) {
  struct arrival *call = context;
  ringcast_reader *reader = call->owner->reader;
  if (call->gpu && !has_gil) rc_py_gpu_end_owed(call->gpu);
  else if (call->gpu) rc_py_gpu_end_owed_now(call->gpu);
  if (!has_gil || !call->owner->retains)
    return ringcast_reader_next(reader, timeout_ns, &call->frame);
  int rc;
  Py_BEGIN_ALLOW_THREADS /* retained frames may have to be copied */
  rc = ringcast_reader_next(reader, timeout_ns, &call->frame);
  Py_END_ALLOW_THREADS
  return rc;
}

/* The writer may be waiting for exactly the dropped frames. */
static void before_slice(void *context) {
  rc_py_reader_give_back_dropped(((struct arrival *)context)->owner);
  rc_py_spans_deliver_old(); /* now costs no time of the receiver's */
}

/* Gets the next frame, or the stash. */
static int arrive(struct rc_py_reader *self, struct arrival *call) {
  if (self->has_stash) {
    self->has_stash = false;
    call->frame = self->stash;
    return 0;
  }
  rc_py_spans_phase(self->base.call, RC_PY_SPAN_WAIT_FRAME);
  call->gpu = self->gpu && self->gpu->reader ? self->gpu : NULL;
  int rc = rc_py_gpu_check(self);
  if (rc == 0) {
    rc = rc_py_wait_until(try_next, before_slice, call, call->timeout_ns, &call->deadline);
    self->has_ended = rc == -EPIPE;
  }
  if (rc == -EBUSY && call->gpu)
    rc_py_gpu_end_owed_now(call->gpu); /* for the error text, if owed takes hold the leases */
  return rc;
}

/* A frame in spill memory. */
static inline bool is_large(const struct rc_py_reader *self, const struct ringcast_frame *frame) {
  return frame->bytes > self->info.ring_frame;
}

static PyObject *decode(struct rc_py_reader *self, struct arrival *call,
                        const struct ringcast_frame *frame, struct rc_py_hold *hold,
                        uint32_t *tag) {
  uint64_t arrays = 0;
  const struct rc_py_decode_options options = {.reader = self->reader,
                                               .holder = &self->holder,
                                               .classes = &self->classes,
                                               .allow_pickle = self->base.allow_pickle,
                                               .hold = hold,
                                               .is_last = !hold,
                                               .arrays = &arrays,
                                               .device_failed = &call->device_failed};
  PyObject *object = rc_py_decode(rc_py_state_of(self), frame, &options, tag);
  if (is_large(self, frame)) self->retain_next = arrays > frame->bytes / 2;
  return object;
}

/* The object, with its large arrays left in the ring. */
static PyObject *decode_retained(struct rc_py_reader *self, struct arrival *call, uint32_t *tag) {
  struct ringcast_frame frame = call->frame;
  bool is_copied = self->holder.map.to == RC_PY_MAP_CUDA || rc_py_has_device(&frame);
  struct rc_py_hold *hold = is_copied ? NULL : rc_py_hold_retained(self->reader, &frame);
  if (!hold) return decode(self, call, &call->frame, NULL, tag);
  call->retained = true;
  PyObject *object = rc_py_reader_made_sure(self, decode(self, call, &frame, hold, tag));
  self->retain_next = self->retain_next && rc_py_hold_is_shared(hold);
  rc_py_hold_drop(hold);
  return object;
}

static bool is_to_be_retained(const struct rc_py_reader *self, const struct ringcast_frame *frame) {
  return self->retains && self->retain_next && is_large(self, frame) &&
         ringcast_reader_retains(self->reader);
}

/* Keeps the frame as the next frame, except after a KeyboardInterrupt or the like. */
static bool keep_next(struct rc_py_reader *self, const struct ringcast_frame *frame) {
  if (self->has_stash || !PyErr_Occurred() || !PyErr_ExceptionMatches(PyExc_Exception))
    return false;
  self->has_stash = true;
  self->stash = *frame;
  return true;
}

/* Reads the frame that has arrived. RC_PY_SKIPPED: not for the Reader. */
static int read_arrived(struct rc_py_reader *self, struct arrival *call, uint32_t *tag,
                        PyObject **object) {
  uint64_t ran_code = rc_py_state_of(self)->ran_code;
  rc_py_gpu_skips_none(self);
  call->retained = call->device_failed = false;
  *object = is_to_be_retained(self, &call->frame) ? decode_retained(self, call, tag)
                                                  : decode(self, call, &call->frame, NULL, tag);
  if (!*object && !call->retained && rc_py_reader_stash(self, &call->frame, call->device_failed))
    return RC_PY_RAISED;
  if (!*object && !call->retained && call->is_more && keep_next(self, &call->frame))
    return RC_PY_RAISED;
  bool skips = !*object && rc_py_gpu_skips(self);
  if (*object && !call->retained)
    rc_py_warming_keep(self, &call->frame, rc_py_state_of(self)->ran_code != ran_code);
  if (!call->retained && !rc_py_reader_give_back(self, &call->frame)) Py_CLEAR(*object);
  if (!*object && PyErr_Occurred()) {
    self->base.value_failed = !self->has_stash;
    return RC_PY_RAISED;
  }
  return skips ? RC_PY_SKIPPED : 0;
}

static int read_frame(struct rc_py_reader *self, struct arrival *call, uint32_t *tag,
                      PyObject **object) {
  rc_py_spans_phase(self->base.call, RC_PY_SPAN_DECODE);
  int rc = read_arrived(self, call, tag, object);
  rc_py_spans_frame(self->base.call, call->frame.position, call->frame.bytes);
  return rc;
}

int rc_py_receive_frame(struct rc_py_reader *self, int64_t timeout_ns, struct ringcast_frame *out) {
  struct arrival call = {.owner = self, .timeout_ns = timeout_ns};
  int rc = arrive(self, &call);
  if (rc == 0) *out = call.frame;
  return rc;
}

PyObject *rc_py_receive(struct rc_py_reader *self, int64_t timeout_ns, uint32_t *tag, bool taking) {
  if (!rc_py_reader_begin(self)) return NULL;
  struct arrival call = {.owner = self, .timeout_ns = timeout_ns};
  PyObject *object = NULL;
  int rc;
  self->base.value_failed = false;
  do {
    rc = arrive(self, &call);
    if (rc < 0) break;
    if (taking) self->base.spent += 1 + (unsigned)(call.frame.bytes >> 14);
    rc = read_frame(self, &call, tag, &object);
  } while (rc == RC_PY_SKIPPED);
  if (rc == -EAGAIN && taking) {
    self->base.spent = 0; /* the task is going to wait */
    object = rc_py_ref(rc_py_state_of(self)->nothing);
  } else if (rc < 0) {
    rc_py_raise(rc_py_state_of(self), rc);
    rc_py_watch_after(&self->base, rc);
  }
  rc_py_reader_end(self, rc == -EAGAIN);
  return object;
}

/* ---- Many ------------------------------------------------------------------------------------ */

enum { GROUP = 64 };

/* Whether frames can be taken together: nothing is owed between two frames. */
static bool takes_groups(const struct rc_py_reader *self) {
  return !self->retains && !self->gpu && !self->has_stash;
}

static bool fits_group(const struct rc_py_reader *self, const struct ringcast_frame *frame) {
  return !is_large(self, frame) && (frame->kind == RINGCAST_KIND_BYTES || !rc_py_has_device(frame));
}

/* Short bytes without decode(): the preparations there take as long as the bytes object. */
static inline PyObject *object_of(struct rc_py_reader *self, struct arrival *call,
                                  const struct ringcast_frame *frame) {
  uint32_t tag;
  if (frame->kind != RINGCAST_KIND_BYTES || frame->bytes > RC_PY_COPY_WITH_GIL)
    return decode(self, call, frame, NULL, &tag);
  return PyBytes_FromStringAndSize(frame->data, (Py_ssize_t)frame->bytes);
}

static int arrive_alone(struct rc_py_reader *self, struct arrival *call) {
  int rc = arrive(self, call);
  return rc < 0 ? rc : 1;
}

/* Appends the objects of a group. The group ends before a frame that can't be decoded or does not
 * fit a group. 0; 1: a frame that does not fit has arrived, as call->frame; -errno, or
 * RC_PY_RAISED. */
static int take_group(struct rc_py_reader *self, struct arrival *call, PyObject *received,
                      Py_ssize_t most) {
  struct ringcast_frame frames[GROUP];
  rc_py_spans_phase(self->base.call, RC_PY_SPAN_WAIT_FRAME);
  Py_ssize_t before = PyList_GET_SIZE(received), left = most - before;
  int count =
          ringcast_reader_next_many(self->reader, 0, frames, left < GROUP ? (uint32_t)left : GROUP),
      taken = 0;
  if (count < 0) return count;
  call->frame = frames[0];
  if (count == 1 && is_large(self, frames))
    return 1; /* with a lease of its own, as from arrive() */
  bool ok = true;
  for (; ok && taken < count && fits_group(self, &frames[taken]); taken += ok) {
    rc_py_spans_phase(self->base.call, RC_PY_SPAN_DECODE);
    PyObject *object = object_of(self, call, &frames[taken]);
    ok = object && PyList_Append(received, object) == 0;
    Py_XDECREF(object);
    if (ok) rc_py_spans_frame(self->base.call, frames[taken].position, frames[taken].bytes);
  }
  int rc = ringcast_reader_release_many(self->reader, frames, (uint32_t)taken);
  if (rc < 0) { /* evicted: the decoded values may be damaged */
    PyErr_Clear();
    return PyList_SetSlice(received, before, PyList_GET_SIZE(received), NULL) < 0 ? RC_PY_RAISED
                                                                                  : rc;
  }
  if (!ok && !PyErr_ExceptionMatches(PyExc_Exception)) return RC_PY_RAISED;
  if (!ok) {
    PyErr_Clear();
    return -EAGAIN;
  }
  if (taken == count) return 0;
  return arrive_alone(self, call);
}

PyObject *rc_py_receive_more(struct rc_py_reader *self, PyObject *received, Py_ssize_t most) {
  if (!rc_py_reader_begin(self)) return NULL;
  struct arrival call = {.owner = self, .is_more = true};
  uint32_t tag;
  int rc = 0;
  while (rc == 0 && PyList_GET_SIZE(received) < most) {
    PyObject *object = NULL;
    rc = takes_groups(self) ? take_group(self, &call, received, most) : arrive_alone(self, &call);
    if (rc <= 0) continue;
    do rc = read_frame(self, &call, &tag, &object);
    while (rc == RC_PY_SKIPPED && (rc = arrive(self, &call)) == 0);
    if (rc == 0 && object && PyList_Append(received, object) < 0) rc = RC_PY_RAISED;
    Py_XDECREF(object);
  }
  /* The next call meets the same error, and raises; but not Ctrl-C again. */
  if (rc == RC_PY_RAISED && self->has_stash && PyErr_ExceptionMatches(PyExc_Exception))
    PyErr_Clear();
  rc_py_watch_after(&self->base, rc);
  rc_py_reader_end(self, true);
  return PyErr_Occurred() ? NULL : rc_py_ref(Py_None);
}
