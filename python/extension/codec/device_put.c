/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on a CUDA device, in a frame to send.
 *
 * All tensors of a frame go by one stream, the stream of the first tensor, and `ready` is signalled
 * on it. If the tensors have several streams (torch and CuPy have a current stream each), no event
 * says when all are ready. The bytes then go into the frame itself, which is sent after the device
 * has copied the bytes.
 *
 * Small tensors lie side by side in the pool. If several belong to torch, torch packs copies of all
 * into one allocation with the pool's layout, by a few kernels, and a single copy moves the
 * allocation to the pool.
 */
#include "python/extension/codec/device.h"

/* Where a tensor is in the value, for an error message. */
struct place {
  rc_py_where where;
  void *context;
};

static int raise(const struct place *place, const struct rc_py_source *source, const char *why) {
  PyObject *text = place->where(place->context);
  if (text) {
    PyErr_Format(PyExc_TypeError, "%U is a tensor on device 'cuda:%d', and %s: move it with .cpu()",
                 text, (int)source->device, why);
  }
  Py_XDECREF(text);
  return -1;
}

/* Asks for a driver until found; a driver does not go away. */
static bool is_ready(struct rc_py_state *state, struct ringcast_gpu_driver *status) {
  if (state->device_is_ready) return true;
  *status = (struct ringcast_gpu_driver){.size = sizeof *status};
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_status(status);
  Py_END_ALLOW_THREADS
  state->device_is_ready = rc == 0 && status->ready;
  return state->device_is_ready;
}

/* The device that the tensor is sent from. */
static int32_t device_for(const struct rc_py_encoding *encoding,
                          const struct rc_py_source *source) {
  if (encoding->sends_from >= 0) return encoding->sends_from;
  bool follows = encoding->sends_from == RC_PY_FROM_FIRST && encoding->on_device > 0;
  if (follows) return encoding->device;
  return source->device;
}

static int see_to(struct rc_py_encoding *encoding, PyObject *value, const struct place *place,
                  struct rc_py_source *source) {
  struct ringcast_gpu_driver status;
  char why[sizeof status.why + 64];
  uint64_t bytes;
  if (!is_ready(encoding->state, &status)) {
    snprintf(why, sizeof why, "ringcast can't use it here (%s)", status.why);
    return raise(place, source, why);
  }
  if (ringcast_tensor_bytes(&source->tensor, &bytes) < 0 || bytes == 0)
    return 1; /* nothing to copy */
  int32_t device = device_for(encoding, source);
  if (source->device != device) {
    if (!(source->tensor.flags & RINGCAST_ITEM_TORCH)) {
      snprintf(why, sizeof why, "this Writer sends from 'cuda:%d'", (int)device);
      return raise(place, source, why);
    }
    if (rc_py_cuda_move(encoding->state, value, device, source) < 0) return -1;
  }
  if (encoding->on_device == 0) {
    encoding->device = device;
    encoding->device_stream = source->stream;
  }
  encoding->on_device++;
  encoding->has_streams |= source->stream != encoding->device_stream;
  encoding->is_loose |= source->is_loose;
  return 1;
}

int rc_py_device_note(struct rc_py_encoding *encoding, PyObject *value, rc_py_where where,
                      void *context, struct rc_py_source *source) {
  const struct place place = {where, context};
  int seen = see_to(encoding, value, &place, source);
  if (seen < 0) rc_py_source_clear(source);
  return seen;
}

/* Whether the tensor is to be copied to the pool. */
static bool goes_to_pool(const struct rc_py_part *part) {
  return rc_py_is_on_device(part) && !part->place;
}

/* The order in the pool: a receiver finds small tensors of one kind side by side. */
enum { PACKED, SMALL, LARGE, ORDERS };

static int order_of(const struct rc_py_part *part) {
  const struct ringcast_tensor *tensor = &part->source.tensor;
  if (part->bytes >= RC_PY_PACKED_LESS) return LARGE;
  if (tensor->flags & RINGCAST_ITEM_TORCH && tensor->dtype.bits % 8 == 0) return PACKED;
  return SMALL;
}

/* The next part to copy to the pool. *next counts the parts once for each order. NULL: no more. */
static struct rc_py_part *next_part(const struct rc_py_encoding *encoding, size_t *next) {
  while (*next < ORDERS * encoding->count) {
    size_t i = (*next)++;
    struct rc_py_part *part = &encoding->parts[i % encoding->count];
    if (goes_to_pool(part) && order_of(part) == (int)(i / encoding->count)) return part;
  }
  return NULL;
}

uint32_t rc_py_device_sizes(const struct rc_py_encoding *encoding, uint64_t *out) {
  uint32_t count = 0;
  size_t next = 0;
  const struct rc_py_part *part = next_part(encoding, &next);
  while (part) {
    out[count++] = part->bytes;
    part = next_part(encoding, &next);
  }
  return count;
}

void rc_py_device_place(struct rc_py_encoding *encoding, const uint64_t *offsets) {
  size_t next = 0;
  encoding->in_pool = offsets;
  if (!offsets) return;
  struct rc_py_part *part = next_part(encoding, &next);
  while (part) {
    part->scalar.in_pool = *offsets++;
    part = next_part(encoding, &next);
  }
}

/* Lists the first `count` parts: torch's tensors, and where each starts in the packed one. */
static bool list_parts(const struct rc_py_encoding *encoding, uint32_t count, PyObject *tensors,
                       PyObject *starts) {
  size_t next = 0;
  uint64_t first = 0;
  for (uint32_t i = 0; i < count; i++) {
    const struct rc_py_part *part = next_part(encoding, &next);
    if (i == 0) first = part->scalar.in_pool;
    PyObject *start = PyLong_FromUnsignedLongLong(part->scalar.in_pool - first);
    if (!start) return false;
    PyList_SET_ITEM(tensors, i, Py_NewRef(part->source.keep));
    PyList_SET_ITEM(starts, i, start);
  }
  return true;
}

/* torch's tensor of bytes with the first `count` parts in the pool's layout. NULL, with nothing
 * raised: torch failed, so each part is copied separately. */
static PyObject *pack(const struct rc_py_encoding *encoding, uint32_t count) {
  PyObject *tensors = PyList_New(count), *starts = PyList_New(count), *packed = NULL;
  if (tensors && starts && list_parts(encoding, count, tensors, starts))
    packed = rc_py_device_call(encoding->state, "pack", "(OO)", tensors, starts);
  Py_XDECREF(tensors);
  Py_XDECREF(starts);
  if (!packed && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
  return packed;
}

/* Puts one tensor of the first `small` parts, the packed ones, in their place. 0, -errno, or
 * RC_PY_RAISED. */
static int put_packed(const struct rc_py_encoding *encoding, struct rc_py_puts *out,
                      uint32_t small) {
  struct ringcast_gpu_put *puts = out->puts;
  const struct ringcast_gpu_put *last = &puts[small - 1];
  uint64_t bytes;
  void *data;
  if (!rc_py_torch_data_ptr(encoding->state, out->packed, &data)) return RC_PY_RAISED;
  if (ringcast_tensor_bytes(last->tensor, &bytes) < 0) return -EINVAL;
  out->bytes = (int64_t)(last->offset + bytes - puts[0].offset);
  out->tensor = (struct ringcast_tensor){
      .data = data, .dtype = {.code = 1, .bits = 8, .lanes = 1}, .ndim = 1, .shape = &out->bytes};
  puts[0].tensor = &out->tensor;
  memmove(puts + 1, puts + small, (out->count - small) * sizeof *puts);
  out->count -= small - 1;
  return 0;
}

/* Lists a copy for each part, and gives the number of those first ones that torch can pack. */
static uint32_t list_puts(const struct rc_py_encoding *encoding, struct rc_py_puts *out) {
  uint32_t small = 0;
  size_t next = 0;
  out->count = 0;
  const struct rc_py_part *part = next_part(encoding, &next);
  while (part) {
    small += order_of(part) == PACKED;
    out->puts[out->count++] =
        (struct ringcast_gpu_put){.tensor = &part->source.tensor, .offset = part->scalar.in_pool};
    part = next_part(encoding, &next);
  }
  return small;
}

int rc_py_device_puts(const struct rc_py_encoding *encoding, struct rc_py_puts *out) {
  uint32_t small = list_puts(encoding, out);
  if (small < RC_PY_PACKED_LEAST) return 0;
  int rc; /* torch's kernels must not become part of a captured graph */
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_stream_follow(encoding->device, encoding->device_stream,
                                  encoding->device_stream);
  Py_END_ALLOW_THREADS
  if (rc < 0) return rc;
  out->packed = pack(encoding, small);
  if (out->packed) return put_packed(encoding, out, small);
  if (PyErr_Occurred()) return RC_PY_RAISED;
  return 0;
}

/* Copies each tensor on its own stream, and waits for a stream when the next tensor is on another.
 * Waits after a failure too: the copies enqueued so far still write to the frame, which is about to
 * be given back. */
static int fetch_all(const struct rc_py_encoding *encoding, ringcast_gpu_writer *gpu) {
  const struct rc_py_source *last = NULL;
  int rc = 0;
  for (size_t i = 0; i < encoding->count && rc == 0; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    if (!rc_py_is_on_device(part)) continue;
    if (last && last->stream != part->source.stream)
      rc = ringcast_gpu_stream_wait(encoding->device, last->stream);
    if (rc < 0) break;
    rc = ringcast_gpu_fetch(gpu, &part->source.tensor, part->out, part->source.stream);
    if (rc != -EBUSY)
      last = &part->source; /* a capturing stream got no copy, and can't be waited for */
  }
  int waited = 0;
  if (last) waited = ringcast_gpu_wait(gpu, last->stream);
  if (rc < 0) return rc;
  return waited;
}

/* Without a Writer: copies one tensor after the next, each from its own device. */
static int copy_back_all(const struct rc_py_encoding *encoding) {
  int rc = 0;
  for (size_t i = 0; i < encoding->count && rc == 0; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    const struct rc_py_source *source = &part->source;
    if (!rc_py_is_on_device(part)) continue;
    rc = ringcast_gpu_copy_back(source->device, &source->tensor, part->out, source->stream);
  }
  return rc;
}

int rc_py_device_fetch(const struct rc_py_encoding *encoding, ringcast_gpu_writer *gpu) {
  int rc;
  Py_BEGIN_ALLOW_THREADS
  if (gpu) rc = fetch_all(encoding, gpu);
  else rc = copy_back_all(encoding);
  Py_END_ALLOW_THREADS
  return rc;
}
