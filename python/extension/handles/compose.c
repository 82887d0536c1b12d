/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writer.compose: a frame with arrays that are written in the ring, after the frame was reserved.
 *
 * The value is encoded as by send, but for the placeholders of ringcast.empty(): of a placeholder
 * the frame gets the entry, and no bytes. The Span keeps the frame open until all arrays over the
 * Span's memory are gone: see span.c. ringcast/_compose.py makes the arrays, and names one that is
 * still in use.
 */
#include "python/extension/codec/encode.h"
#include "python/extension/handles/gpu.h"
#include "python/extension/handles/writer.h"

/* [(placeholder, offset in the Span, bytes), ...] */
static PyObject *places_of(const struct rc_py_encoding *encoding, const void *data) {
  PyObject *places = PyList_New(0);
  for (size_t i = 0; places && i < encoding->count; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    if (part->kind != RINGCAST_ITEM_TENSOR || !part->source.is_empty) continue;
    Py_ssize_t offset = part->bytes ? (uint8_t *)part->out - (const uint8_t *)data : 0;
    PyObject *place = Py_BuildValue("(Onn)", part->value, offset, (Py_ssize_t)part->bytes);
    if (!place || PyList_Append(places, place) < 0) Py_CLEAR(places);
    Py_XDECREF(place);
  }
  return places;
}

/* Fills the reservation. 0, -errno, RC_PY_RAISED. */
static int fill(struct rc_py_writer *self, struct rc_py_encoding *encoding,
                const struct ringcast_span *span, uint32_t tag) {
  size_t bytes;
  int rc =
      encoding->on_device
          ? rc_py_encoding_write_device(encoding, NULL, span, tag, NULL, &bytes)
          : rc_py_encoding_write(encoding, span->bytes > self->info.ring_frame, span, tag, &bytes);
  return rc == 0 && bytes != span->bytes ? -EPROTO : rc;
}

/* (Span, places); nothing is left open after an error. */
static PyObject *compose(struct rc_py_writer *self, struct rc_py_encoding *encoding,
                         int64_t timeout_ns, uint32_t tag) {
  struct rc_py_state *state = rc_py_state_of(self);
  struct rc_py_reservation call = {.writer = self, .bytes = ringcast_plan_bytes(&encoding->plan)};
  int rc = rc_py_reserve(&call, timeout_ns, RC_PY_SPAN_ENCODE);
  rc_py_watch_after(&self->base, rc);
  if (rc < 0) return rc_py_raise_of_frame(state, rc, &self->info, call.bytes);
  rc = fill(self, encoding, &call.span, tag);
  if (rc == 0) rc_py_spans_frame(self->base.call, rc_py_writer_position(self), call.bytes);
  PyObject *places = rc == 0 ? places_of(encoding, call.span.data) : rc_py_raise(state, rc);
  if (!places) {
    ringcast_writer_abort(self->writer);
    return NULL;
  }
  PyObject *span = rc_py_span_new(self, &call.span);
  if (span) return Py_BuildValue("(NN)", span, places);
  Py_DECREF(places);
  return NULL;
}

static bool knows_empty(struct rc_py_state *state) {
  if (!state->empty_type) state->empty_type = rc_py_import("ringcast._compose", "Empty");
  return state->empty_type;
}

/* _compose(value, timeout, tag) */
PyObject *rc_py_writer_compose(PyObject *object, PyObject *const *args, Py_ssize_t count) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct rc_py_state *state = rc_py_state_of(self);
  struct rc_py_encoding encoding;
  int64_t timeout_ns;
  uint64_t tag;
  if (count != 3)
    return PyErr_Format(PyExc_TypeError, "_compose() takes a value, a timeout and a tag");
  if (!rc_py_timeout(args[1], &timeout_ns) || !rc_py_integer("tag", args[2], 0, UINT32_MAX, &tag))
    return NULL;
  if (!knows_empty(state) || !rc_py_writer_begin(self)) return NULL;
  PyObject *composed = NULL;
  rc_py_spans_phase(self->base.call, RC_PY_SPAN_ENCODE);
  int32_t device = self->takes_cuda ? RC_PY_FROM_EACH : RC_PY_FROM_NONE;
  if (rc_py_encoding_measure(&encoding, state, args[0], self->base.allow_pickle, device, true)) {
    encoding.call = self->base.call;
    composed = compose(self, &encoding, timeout_ns, (uint32_t)tag);
    rc_py_encoding_clear(&encoding);
  }
  rc_py_writer_end(self, RC_PY_SPAN_NONE, !composed && timeout_ns == 0);
  return composed;
}
