/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writer.send_many(): small values become messages of a batch, which the library sends in packed
 * frames.
 *
 * A short bytes object is a message already. Any other value is encoded into private memory first,
 * because the place in the packed frame depends on the sizes before. A value with a large frame or
 * on a device is sent alone, in its turn. Whatever fails, the values before are sent first, and the
 * exception's attribute `sent` counts them.
 */
#include "python/extension/handles/writer.h"

#include "python/extension/errors.h"

#include "ringcast/batch.h"

enum {
  MESSAGES = 256, /* of a batch */
  ROOM = 1 << 16, /* for encoded values */
  SMALL = 1024,   /* a message of more bytes is sent alone */
  LINE = 64,
  PHASE = 16, /* a frame starts so many bytes into a line, as in a ring */
};

struct batch {
  struct rc_py_writer *writer;
  uint32_t count, done; /* of the messages: filled in, and sent */
  size_t sent;          /* in batches before */
  size_t used;          /* bytes of the memory */
  bool is_full;         /* the last try to send found no room */
  int64_t timeout_ns, deadline;
  struct ringcast_message messages[MESSAGES];
  uint8_t *memory; /* of encoded values; NULL: none yet */
};

/* After a part of the batch, the caller computes the rest of the timeout. */
static int try_send(void *context, int64_t timeout_ns, bool Py_UNUSED(has_gil)) {
  struct batch *batch = context;
  bool waits = timeout_ns != 0;
  rc_py_spans_phase(batch->writer->base.trace, waits ? RC_PY_PHASE_WAIT_ROOM : RC_PY_PHASE_PUBLISH);
  while (batch->done < batch->count) {
    int sent = ringcast_writer_send_many(batch->writer->writer, batch->messages + batch->done,
                                         batch->count - batch->done, timeout_ns);
    if (sent == -ETIMEDOUT && rc_py_is_reader_too_slow(batch->writer)) return RC_PY_TOO_SLOW;
    if (sent < 0) return sent;
    batch->done += (uint32_t)sent;
    if (timeout_ns > 1 && batch->done < batch->count) return -EAGAIN;
  }
  return 0;
}

/* Records the messages that were sent as one frame, at the place of the first. */
static __attribute__((noinline)) void record(struct batch *batch, uint64_t at) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < batch->done; i++) bytes += batch->messages[i].bytes;
  if (batch->done > 0) rc_py_spans_frame(batch->writer->base.trace, at, bytes);
}

/* False: raised. */
static bool flush(struct batch *batch) {
  struct rc_py_writer *self = batch->writer;
  struct rc_py_trace *trace = self->base.trace;
  if (batch->count == 0) return true;
  uint64_t at = 0;
  if (trace) at = rc_py_writer_position(self);
  rc_py_spans_phase(trace, RC_PY_PHASE_PUBLISH);
  int rc = rc_py_wait_until(try_send, NULL, batch, batch->timeout_ns, &batch->deadline);
  if (rc < 0) {
    uint64_t bytes = batch->messages[batch->done].bytes;
    rc_py_raise_of_frame(rc_py_state_of(self), rc, &self->info, bytes);
  }
  batch->is_full = rc == -EAGAIN;
  rc_py_watch_after(&self->base, rc);
  if (trace) record(batch, at);
  batch->sent += batch->done;
  batch->count = 0;
  batch->done = 0;
  batch->used = 0;
  return rc == 0;
}

static bool add(struct batch *batch, const void *data, size_t bytes, uint16_t kind) {
  batch->messages[batch->count++] =
      (struct ringcast_message){.data = data, .bytes = bytes, .kind = kind};
  return batch->count < MESSAGES || flush(batch);
}

/* Memory for a frame, placed as in a ring. NULL: raised. */
static uint8_t *room_for(struct batch *batch, size_t bytes) {
  if (!batch->memory) batch->memory = PyMem_RawMalloc(ROOM + LINE);
  if (!batch->memory) {
    PyErr_NoMemory();
    return NULL;
  }
  if (batch->used + PHASE + bytes > ROOM && !flush(batch)) return NULL;
  uintptr_t first_line = ((uintptr_t)batch->memory + LINE - 1) & ~(uintptr_t)(LINE - 1);
  uint8_t *frame = (uint8_t *)first_line + batch->used + PHASE;
  batch->used += (PHASE + bytes + LINE - 1) & ~(size_t)(LINE - 1);
  return frame;
}

static int64_t time_left(const struct batch *batch) {
  if (batch->timeout_ns <= 0) return batch->timeout_ns;
  int64_t left = batch->deadline - rc_py_now_ns();
  return left > 0 ? left : 1;
}

/* A value with a frame of its own, after the messages before it. `encoding` NULL: not measured. */
static bool send_alone(struct batch *batch, PyObject *object, struct rc_py_encoding *encoding,
                       uint32_t tag) {
  if (!flush(batch)) return false;
  struct rc_py_sending sending = {
      .writer = batch->writer, .timeout_ns = time_left(batch), .tag = tag};
  int rc = encoding ? rc_py_send_encoding(&sending, encoding) : rc_py_send_value(&sending, object);
  batch->is_full = rc == -EAGAIN;
  PyObject *none = rc_py_sent(&sending, rc);
  Py_XDECREF(none);
  if (none) batch->sent++;
  return none;
}

static bool add_encoded(struct batch *batch, struct rc_py_encoding *encoding, uint32_t tag) {
  size_t bytes = ringcast_plan_bytes(&encoding->plan);
  struct ringcast_span span = {.data = room_for(batch, bytes), .bytes = bytes};
  if (!span.data) return false;
  int rc = rc_py_encoding_write(encoding, false, &span, tag, &bytes);
  if (rc == 0) return add(batch, span.data, bytes, RINGCAST_KIND_TENSORS);
  rc_py_raise(encoding->state, rc);
  return false;
}

static bool add_object(struct batch *batch, PyObject *object, uint32_t tag) {
  struct rc_py_writer *self = batch->writer;
  struct rc_py_encoding encoding;
  int32_t device = rc_py_writer_sends_from(self);
  bool allow_pickle = self->base.allow_pickle;
  if (!rc_py_encoding_measure(&encoding, rc_py_state_of(self), object, allow_pickle, device,
                              false)) {
    return false;
  }
  bool is_small = ringcast_plan_bytes(&encoding.plan) <= SMALL && !encoding.on_device;
  bool ok =
      is_small ? add_encoded(batch, &encoding, tag) : send_alone(batch, object, &encoding, tag);
  rc_py_encoding_clear(&encoding);
  return ok;
}

static bool add_value(struct batch *batch, PyObject *object, uint32_t tag) {
  struct rc_py_writer *self = batch->writer;
  rc_py_spans_phase(self->base.trace, RC_PY_PHASE_ENCODE);
  if (PyBytes_CheckExact(object) && PyBytes_GET_SIZE(object) <= SMALL && tag == 0) {
    return add(batch, PyBytes_AS_STRING(object), (size_t)PyBytes_GET_SIZE(object),
               RINGCAST_KIND_BYTES);
  }
  bool is_packed = Py_TYPE(object) == rc_py_state_of(self)->packed_type;
  return is_packed ? send_alone(batch, object, NULL, tag) : add_object(batch, object, tag);
}

/* Sends the messages before the failure. The failure stays the current exception, unless the
 * sending fails too. */
static void flush_after_failure(struct batch *batch) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  if (!flush(batch)) {
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return;
  }
  PyErr_Restore(type, error, traceback);
}

/* Sets the attribute `sent` of the current exception. */
static void note_sent(size_t sent) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  PyObject *number = PyLong_FromSize_t(sent);
  bool is_set = number && PyObject_SetAttrString(error, "sent", number) == 0;
  if (!is_set) PyErr_Clear(); /* a class without attributes */
  Py_XDECREF(number);
  PyErr_Restore(type, error, traceback);
}

static bool send_all(struct rc_py_writer *self, PyObject *values, int64_t timeout_ns, uint32_t tag,
                     bool *is_full) {
  struct batch batch; /* to clear the messages would take longer than to send a few */
  batch.writer = self;
  batch.count = 0;
  batch.done = 0;
  batch.sent = 0;
  batch.used = 0;
  batch.is_full = false;
  batch.timeout_ns = timeout_ns;
  batch.deadline = timeout_ns > 0 ? rc_py_now_ns() + timeout_ns : 0;
  batch.memory = NULL;
  bool ok = true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values) && ok; i++) {
    ok = add_value(&batch, PyTuple_GET_ITEM(values, i), tag);
  }
  if (ok) ok = flush(&batch);
  else if (batch.count > 0) flush_after_failure(&batch); /* a failed flush leaves nothing */
  if (!ok) note_sent(batch.sent);
  PyMem_RawFree(batch.memory);
  *is_full = batch.is_full;
  return ok;
}

PyObject *rc_py_writer_send_many(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                 PyObject *keywords) {
  static const char *const names[] = {"values", "timeout", "tag", NULL};
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  PyObject *values[3] = {NULL};
  int64_t timeout_ns;
  uint64_t tag = 0;
  if (!rc_py_arguments("send_many", names, 2, 1, args, count, keywords, values)) return NULL;
  if (!rc_py_timeout(values[1], &timeout_ns)) return NULL;
  if (values[2] && !rc_py_integer("tag", values[2], 0, UINT32_MAX, &tag)) return NULL;
  PyObject *all = PySequence_Tuple(values[0]);
  if (!all) {
    note_sent(0);
    return NULL;
  }
  bool ok = false, is_full = false;
  if (rc_py_writer_begin(self)) {
    ok = send_all(self, all, timeout_ns, (uint32_t)tag, &is_full);
    rc_py_writer_end(self, RC_PY_CALL_SEND, is_full);
  } else {
    note_sent(0);
  }
  self->is_full = is_full;
  Py_DECREF(all);
  if (!ok) return NULL;
  Py_RETURN_NONE;
}
