/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader.recv: the next frame's object.
 *
 * A call waits for a frame (arrive), decodes it (read_frame), and gives it back. If the frame has
 * tensors of a device, decoding opens the Reader's gpu part, and from then on gpu_reader.c has a
 * part in all three; before, nothing here asks it.
 *
 * The stash: if a frame's tensors can't be copied now, because their stream captures a graph or
 * Ctrl-C ends the copy to a device, the frame is not lost. It stays held, as the Reader's `stash`,
 * and is the next one.
 *
 * Retention: instead of copying, a Reader with `retain` keeps a large frame if the frame is made of
 * large arrays and the receiver keeps the arrays. Both are known only after decoding. So the last
 * large frame decides (`retain_next`), and a frame that can't be retained is copied. The hold that
 * keeps a retained frame, rc_py_hold_retained, is in tensors/view_arrays.c.
 *
 * Dropped frames: any thread may release or drop a Frame at any time. While a call is at work on
 * the Reader, the frame goes to the list of dropped frames: a waiting call gives them back in its
 * next slice, for the writer may be waiting for exactly these; any other call gives them back when
 * it leaves.
 */
#include "python/extension/handles/reader.h"

#include "python/extension/errors.h"
#include "ringcast/batch.h"

#include <unistd.h>

/* ---- Dropped frames -------------------------------------------------------------------------- */

static int release(struct rc_py_reader *self, const struct ringcast_frame *frame) {
  if (self->device.gpu) return rc_py_gpu_release(&self->device, frame);
  return ringcast_reader_release(self->reader, frame);
}

bool rc_py_reader_defer(struct rc_py_reader *self, const struct ringcast_frame *frame) {
  if (!self->base.busy || getpid() != self->base.pid) return false;
  /* A Reader holds no more frames than there is room for. */
  self->dropped[self->dropped_count++] = *frame;
  return true;
}

void rc_py_reader_give_back_dropped(struct rc_py_reader *self) {
  while (self->dropped_count > 0) {
    /* A copy: more frames may be dropped meanwhile. */
    struct ringcast_frame frame = self->dropped[--self->dropped_count];
    /* No caller is left to be told of an eviction: the next call tells. */
    if (self->reader) release(self, &frame);
  }
}

/* ---- The Reader's turn ----------------------------------------------------------------------- */

bool rc_py_reader_enter(struct rc_py_reader *self) { return rc_py_handle_enter(&self->base); }

void rc_py_reader_leave(struct rc_py_reader *self) {
  if (self->dropped_count > 0) rc_py_reader_give_back_dropped(self);
  rc_py_handle_leave(&self->base);
}

bool rc_py_reader_begin(struct rc_py_reader *self) {
  if (!rc_py_reader_enter(self)) return false;
  rc_py_handle_begin(&self->base);
  return true;
}

void rc_py_reader_end(struct rc_py_reader *self, bool is_nothing) {
  rc_py_reader_leave(self);
  rc_py_spans_end(&self->base.trace, RC_PY_CALL_RECV, is_nothing);
}

/* ---- Giving the frame back ------------------------------------------------------------------- */

/* Raises `rc` in place of the current exception, if any; the old exception is dropped last, as any
 * code may run then. */
static void raise_instead(struct rc_py_reader *self, int rc) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  rc_py_raise(rc_py_state_of(self), rc);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

bool rc_py_reader_give_back(struct rc_py_reader *self, const struct ringcast_frame *frame) {
  int rc = release(self, frame);
  if (rc == 0) return true;
  bool is_stale = rc == -ESTALE; /* whatever was made of the frame, and why it failed */
  if (!PyErr_Occurred() || (is_stale && PyErr_ExceptionMatches(PyExc_Exception)))
    raise_instead(self, rc);
  return false;
}

PyObject *rc_py_reader_made_sure(struct rc_py_reader *self, PyObject *object) {
  int rc = ringcast_reader_check(self->reader);
  if (rc == 0 || (!object && !PyErr_ExceptionMatches(PyExc_Exception))) return object;
  if (object || rc == -ESTALE) raise_instead(self, rc);
  Py_XDECREF(object);
  return NULL;
}

/* Whether the current exception says that a stream captures a graph: the frame was not decoded. */
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

bool rc_py_reader_stash(struct rc_py_reader *self, const struct ringcast_frame *frame,
                        bool device_failed) {
  if (self->has_stash || !self->device.gpu) return false;
  bool is_captured_now = device_failed && is_captured(rc_py_state_of(self));
  if (!self->device.gpu->is_interrupted && !is_captured_now) return false;
  self->has_stash = true;
  self->stash = *frame;
  return true;
}

/* ---- Waiting for a frame --------------------------------------------------------------------- */

struct arrival {
  struct rc_py_reader *owner;
  int64_t timeout_ns, deadline; /* deadline 0: the wait has not begun */
  struct ringcast_frame frame;
  bool retained, device_failed;
  bool is_more; /* not the first frame of the call: if decoding fails, the frame stays the next */
};

static int try_next(void *context, int64_t timeout_ns, bool has_gil) {
  struct arrival *arrival = context;
  struct rc_py_reader *self = arrival->owner;
  if (self->device.gpu) rc_py_gpu_end_owed(self->device.gpu, has_gil);
  if (!has_gil || !self->retains)
    return ringcast_reader_next(self->reader, timeout_ns, &arrival->frame);
  int rc;
  Py_BEGIN_ALLOW_THREADS /* retained frames may have to be copied */
  rc = ringcast_reader_next(self->reader, timeout_ns, &arrival->frame);
  Py_END_ALLOW_THREADS
  return rc;
}

static void before_slice(void *context) {
  struct arrival *arrival = context;
  rc_py_reader_give_back_dropped(arrival->owner);
  rc_py_spans_deliver_old(); /* now costs no time of the receiver's */
}

/* Gets the next frame, or the stash. */
static int arrive(struct arrival *arrival) {
  struct rc_py_reader *self = arrival->owner;
  if (self->has_stash) {
    self->has_stash = false;
    arrival->frame = self->stash;
    return 0;
  }
  rc_py_spans_phase(self->base.trace, RC_PY_PHASE_WAIT_FRAME);
  if (self->device.gpu) {
    int lost = rc_py_gpu_check(&self->device);
    if (lost < 0) return lost;
  }
  int rc =
      rc_py_wait_until(try_next, before_slice, arrival, arrival->timeout_ns, &arrival->deadline);
  self->has_ended = rc == -EPIPE;
  /* For the error text, if owed takes hold the leases. */
  if (rc == -EBUSY && self->device.gpu) rc_py_gpu_end_owed(self->device.gpu, true);
  return rc;
}

int rc_py_receive_frame(struct rc_py_reader *self, int64_t timeout_ns, struct ringcast_frame *out) {
  struct arrival arrival = {.owner = self, .timeout_ns = timeout_ns};
  int rc = arrive(&arrival);
  if (rc == 0) *out = arrival.frame;
  return rc;
}

/* ---- Decoding it ----------------------------------------------------------------------------- */

/* A frame in spill memory. */
static inline bool is_large(const struct rc_py_reader *self, const struct ringcast_frame *frame) {
  return frame->bytes > self->info.ring_frame;
}

static PyObject *decode(struct arrival *arrival, const struct ringcast_frame *frame,
                        struct rc_py_hold *hold, uint32_t *tag) {
  struct rc_py_reader *self = arrival->owner;
  uint64_t arrays = 0;
  const struct rc_py_decode_options options = {.reader = self->reader,
                                               .receiver = &self->device.receiver,
                                               .classes = &self->classes,
                                               .allow_pickle = self->base.allow_pickle,
                                               .hold = hold,
                                               .is_last = !hold,
                                               .arrays = &arrays,
                                               .device_failed = &arrival->device_failed};
  PyObject *object = rc_py_decode(rc_py_state_of(self), frame, &options, tag);
  if (is_large(self, frame)) self->retain_next = arrays > frame->bytes / 2;
  return object;
}

static bool is_to_be_retained(const struct rc_py_reader *self, const struct ringcast_frame *frame) {
  if (!self->retains || !self->retain_next || !is_large(self, frame)) return false;
  if (self->device.receiver.map.to == RC_PY_MAP_CUDA || rc_py_has_device(frame)) return false;
  return ringcast_reader_retains(self->reader);
}

/* The object, with its large arrays left in the ring if the frame can be retained. */
static PyObject *decode_retained(struct arrival *arrival, uint32_t *tag) {
  struct rc_py_reader *self = arrival->owner;
  struct ringcast_frame frame = arrival->frame;
  struct rc_py_hold *hold = rc_py_hold_retained(self->reader, &frame);
  if (!hold) return decode(arrival, &arrival->frame, NULL, tag);
  arrival->retained = true;
  PyObject *object = rc_py_reader_made_sure(self, decode(arrival, &frame, hold, tag));
  self->retain_next = self->retain_next && rc_py_hold_is_shared(hold);
  rc_py_hold_drop(hold);
  return object;
}

/* Keeps the frame as the next frame, except after a KeyboardInterrupt or the like. */
static bool keep_next(struct rc_py_reader *self, const struct ringcast_frame *frame) {
  if (self->has_stash || !PyErr_Occurred()) return false;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  self->has_stash = true;
  self->stash = *frame;
  return true;
}

/* After a failure: whether the frame is the next once more, and stays held. */
static bool is_next_again(struct arrival *arrival) {
  struct rc_py_reader *self = arrival->owner;
  if (arrival->retained) return false;
  if (rc_py_reader_stash(self, &arrival->frame, arrival->device_failed)) return true;
  return arrival->is_more && keep_next(self, &arrival->frame);
}

/* Gives the frame back, after a copy for rc_py_warm. The object is dropped if the frame was
 * overwritten meanwhile. */
static inline void give_back(struct arrival *arrival, PyObject **object, bool ran_code) {
  struct rc_py_reader *self = arrival->owner;
  if (arrival->retained) return; /* the arrays keep the frame */
  if (*object && self->warming) rc_py_warming_keep(self, &arrival->frame, ran_code);
  if (!rc_py_reader_give_back(self, &arrival->frame)) Py_CLEAR(*object);
}

static inline int result_of(const PyObject *object, bool skips) {
  if (object) return 0;
  if (PyErr_Occurred()) return RC_PY_OF_VALUE;
  return skips ? RC_PY_SKIPPED : 0;
}

/* The object of a frame that has arrived; the frame is given back, unless it is the next again.
 * RC_PY_SKIPPED: it is not for the Reader. */
static int read_arrived(struct arrival *arrival, uint32_t *tag, PyObject **object) {
  struct rc_py_reader *self = arrival->owner;
  const struct rc_py_state *state = rc_py_state_of(self);
  uint64_t ran_before = state->ran_code;
  if (self->device.gpu) rc_py_gpu_skips_none(self->device.gpu);
  arrival->retained = false;
  arrival->device_failed = false;
  if (is_to_be_retained(self, &arrival->frame)) *object = decode_retained(arrival, tag);
  else *object = decode(arrival, &arrival->frame, NULL, tag);
  bool ran_code = state->ran_code != ran_before;
  if (!*object && is_next_again(arrival)) return RC_PY_RAISED;
  bool skips = !*object && self->device.gpu && rc_py_gpu_skips(&self->device);
  give_back(arrival, object, ran_code);
  return result_of(*object, skips);
}

static int read_frame(struct arrival *arrival, uint32_t *tag, PyObject **object) {
  struct rc_py_trace *trace = arrival->owner->base.trace;
  rc_py_spans_phase(trace, RC_PY_PHASE_DECODE);
  int rc = read_arrived(arrival, tag, object);
  rc_py_spans_frame(trace, arrival->frame.position, arrival->frame.bytes);
  return rc;
}

/* The object of the frame that has arrived, or of the next frame that is for the Reader. */
static int read_next(struct arrival *arrival, uint32_t *tag, PyObject **object) {
  int rc = read_frame(arrival, tag, object);
  while (rc == RC_PY_SKIPPED) {
    rc = arrive(arrival);
    if (rc == 0) rc = read_frame(arrival, tag, object);
  }
  return rc;
}

/* ---- Reader.recv ----------------------------------------------------------------------------- */

static int receive(struct arrival *arrival, uint32_t *tag, PyObject **object) {
  struct rc_py_reader *self = arrival->owner;
  *object = NULL;
  int rc = arrive(arrival);
  if (rc == 0) rc = read_next(arrival, tag, object);
  self->base.value_failed = rc == RC_PY_OF_VALUE;
  return rc;
}

static PyObject *receive_one(struct rc_py_reader *self, int64_t timeout_ns, uint32_t *tag) {
  struct arrival arrival = {.owner = self, .timeout_ns = timeout_ns};
  PyObject *object;
  if (!rc_py_reader_begin(self)) return NULL;
  int rc = receive(&arrival, tag, &object);
  if (rc < 0) {
    rc_py_raise(rc_py_state_of(self), rc);
    rc_py_watch_after(&self->base, rc);
  }
  rc_py_reader_end(self, rc == -EAGAIN);
  return object;
}

static PyObject *with_tag(PyObject *object, uint32_t tag) {
  return object ? Py_BuildValue("(NI)", object, (unsigned)tag) : NULL;
}

PyObject *rc_py_reader_recv(PyObject *object, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag;
  if (!rc_py_timeout_argument("recv", args, count, keywords, &timeout_ns)) return NULL;
  return receive_one((struct rc_py_reader *)object, timeout_ns, &tag);
}

PyObject *rc_py_reader_recv_tagged(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                   PyObject *keywords) {
  int64_t timeout_ns;
  uint32_t tag = 0;
  if (!rc_py_timeout_argument("recv_tagged", args, count, keywords, &timeout_ns)) return NULL;
  PyObject *received = receive_one((struct rc_py_reader *)object, timeout_ns, &tag);
  return with_tag(received, tag);
}

PyObject *rc_py_reader_iternext(PyObject *object) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct rc_py_state *state = rc_py_state_of(self);
  uint32_t tag;
  PyObject *received = receive_one(self, RINGCAST_FOREVER, &tag);
  if (received) return received;
  rc_py_end_iteration(state, self->has_ended);
  return NULL;
}

PyObject *rc_py_reader_take(PyObject *object, PyObject *tagged) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct rc_py_state *state = rc_py_state_of(self);
  struct arrival arrival = {.owner = self};
  PyObject *received;
  uint32_t tag = 0;
  PyObject *turn = rc_py_pass_turn(&self->base);
  if (turn) return turn;
  if (!rc_py_reader_begin(self)) return NULL;
  int rc = receive(&arrival, &tag, &received);
  if (rc == -EAGAIN) {
    self->base.spent = 0; /* the task is going to wait */
    rc_py_reader_end(self, true);
    return Py_NewRef(state->nothing);
  }
  rc_py_spend(&self->base, arrival.frame.bytes, RC_PY_RECEIVED_UNIT);
  if (rc < 0) {
    rc_py_raise(state, rc);
    rc_py_watch_after(&self->base, rc);
  }
  rc_py_reader_end(self, false);
  return tagged == Py_True ? with_tag(received, tag) : received;
}

/* ---- Many ------------------------------------------------------------------------------------ */

enum { GROUP = 64 };

/* Whether frames can be taken together: nothing is owed between two frames. */
static bool takes_groups(const struct rc_py_reader *self) {
  return !self->retains && !self->device.gpu && !self->has_stash;
}

static bool fits_group(const struct rc_py_reader *self, const struct ringcast_frame *frame) {
  if (is_large(self, frame)) return false;
  return frame->kind == RINGCAST_KIND_BYTES || !rc_py_has_device(frame);
}

/* Short bytes without decode(): the preparations there take as long as the bytes object. */
static inline PyObject *object_of(struct arrival *arrival, const struct ringcast_frame *frame) {
  uint32_t tag;
  if (frame->kind != RINGCAST_KIND_BYTES || frame->bytes > RC_PY_COPY_WITH_GIL) {
    return decode(arrival, frame, NULL, &tag);
  }
  return PyBytes_FromStringAndSize(frame->data, (Py_ssize_t)frame->bytes);
}

/* Appends the frame's object. False: raised. */
static bool append(struct arrival *arrival, const struct ringcast_frame *frame,
                   PyObject *received) {
  struct rc_py_trace *trace = arrival->owner->base.trace;
  rc_py_spans_phase(trace, RC_PY_PHASE_DECODE);
  PyObject *object = object_of(arrival, frame);
  bool ok = object && PyList_Append(received, object) == 0;
  Py_XDECREF(object);
  if (ok) rc_py_spans_frame(trace, frame->position, frame->bytes);
  return ok;
}

static int arrive_alone(struct arrival *arrival) {
  int rc = arrive(arrival);
  return rc < 0 ? rc : 1;
}

/* Appends the objects of a group. The group ends before a frame that can't be decoded or does not
 * fit a group. 0; 1: a frame that does not fit has arrived, as arrival->frame; -errno, or
 * RC_PY_RAISED. */
static int take_group(struct arrival *arrival, PyObject *received, Py_ssize_t most) {
  struct rc_py_reader *self = arrival->owner;
  struct ringcast_frame frames[GROUP];
  Py_ssize_t before = PyList_GET_SIZE(received);
  Py_ssize_t left = most - before;
  rc_py_spans_phase(self->base.trace, RC_PY_PHASE_WAIT_FRAME);
  int count =
      ringcast_reader_next_many(self->reader, 0, frames, left < GROUP ? (uint32_t)left : GROUP);
  if (count < 0) return count;
  if (count == 1 && is_large(self, frames)) {
    arrival->frame = frames[0]; /* with a lease of its own, as from arrive() */
    return 1;
  }
  int taken = 0;
  bool ok = true;
  while (ok && taken < count && fits_group(self, &frames[taken])) {
    ok = append(arrival, &frames[taken], received);
    taken += ok;
  }
  int rc = ringcast_reader_release_many(self->reader, frames, (uint32_t)taken);
  if (rc < 0) { /* evicted: the decoded values may be damaged */
    PyErr_Clear();
    Py_ssize_t end = PyList_GET_SIZE(received);
    return PyList_SetSlice(received, before, end, NULL) < 0 ? RC_PY_RAISED : rc;
  }
  if (!ok) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return RC_PY_RAISED;
    PyErr_Clear();
    return -EAGAIN;
  }
  return taken == count ? 0 : arrive_alone(arrival);
}

/* Appends what is there next: a group, or one frame's object. 0, -errno, or raised. */
static int receive_next(struct arrival *arrival, PyObject *received, Py_ssize_t most) {
  PyObject *object = NULL;
  uint32_t tag;
  int rc =
      takes_groups(arrival->owner) ? take_group(arrival, received, most) : arrive_alone(arrival);
  if (rc <= 0) return rc;
  rc = read_next(arrival, &tag, &object);
  if (rc == 0 && object && PyList_Append(received, object) < 0) rc = RC_PY_RAISED;
  Py_XDECREF(object);
  return rc;
}

PyObject *rc_py_reader_more(PyObject *object, PyObject *const *args, Py_ssize_t count) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct arrival arrival = {.owner = self, .is_more = true};
  uint64_t most;
  if (count != 2 || !PyList_CheckExact(args[0])) {
    return PyErr_Format(PyExc_TypeError, "_more() takes a list and an int");
  }
  if (!rc_py_integer("most", args[1], 0, PY_SSIZE_T_MAX, &most)) return NULL;
  if (!rc_py_reader_begin(self)) return NULL;
  int rc = 0;
  while (rc == 0 && PyList_GET_SIZE(args[0]) < (Py_ssize_t)most) {
    rc = receive_next(&arrival, args[0], (Py_ssize_t)most);
  }
  /* The next call meets the same error, and raises; but not Ctrl-C again. */
  if (rc == RC_PY_RAISED && self->has_stash && PyErr_ExceptionMatches(PyExc_Exception)) {
    PyErr_Clear();
  }
  rc_py_watch_after(&self->base, rc);
  rc_py_reader_end(self, true);
  return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
