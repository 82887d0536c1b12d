/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on a CUDA device, in a frame that is sent.
 *
 * All of a frame's go by one stream, that of the first of them: `ready` is said on it. Where they have several (those
 * of torch and of CuPy, each with its own current one), nothing says when all are there, so the frame has their bytes
 * in itself, and is sent when the device has copied them.
 */
#include "python/extension/device.h"

static int raise(struct rc_py_encoding *encoding, struct rc_py_step *step, const struct rc_py_source *source,
                 const char *why) {
  PyObject *place = rc_py_step_path(step);
  if (place) {
    PyErr_Format(PyExc_TypeError, "%U is a tensor on device 'cuda:%d', and %s: move it with .cpu()", place,
                 (int)source->device, why);
  }
  Py_XDECREF(place);
  (void)encoding;
  return -1;
}

/* The driver is asked until it is there; it does not go away. */
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

static int see_to(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step,
                  struct rc_py_source *source) {
  struct ringcast_gpu_driver status;
  char why[sizeof status.why + 64];
  uint64_t bytes;
  if (!is_ready(encoding->state, &status)) {
    snprintf(why, sizeof why, "ringcast can't use it here (%s)", status.why);
    return raise(encoding, step, source, why);
  }
  if (ringcast_tensor_bytes(&source->tensor, &bytes) < 0 || bytes == 0) return 1; /* nothing to copy */
  const struct rc_py_writer *writer = encoding->writer;
  int32_t device = !writer               ? source->device
                   : writer->gpu         ? writer->gpu_device
                   : encoding->on_device ? encoding->device
                                         : source->device;
  if (source->device != device) {
    if (!(source->tensor.flags & RINGCAST_ITEM_TORCH)) {
      snprintf(why, sizeof why, "this Writer sends from 'cuda:%d'", (int)device);
      return raise(encoding, step, source, why);
    }
    if (rc_py_cuda_move(encoding->state, value, device, source) < 0) return -1;
  }
  if (encoding->on_device++ == 0) {
    encoding->device = device;
    encoding->device_stream = source->stream;
  }
  encoding->has_streams |= source->stream != encoding->device_stream;
  encoding->is_loose |= source->is_loose;
  return 1;
}

int rc_py_device_note(struct rc_py_encoding *encoding, PyObject *value, struct rc_py_step *step,
                      struct rc_py_source *source) {
  int seen = see_to(encoding, value, step, source);
  if (seen < 0) rc_py_source_clear(source);
  return seen;
}

/* Where the frame does not have it itself. */
static bool goes_to_pool(const struct rc_py_part *part) { return rc_py_is_on_device(part) && !part->place; }

uint32_t rc_py_device_sizes(const struct rc_py_encoding *encoding, uint64_t *out) {
  uint32_t count = 0;
  for (size_t i = 0; i < encoding->count; i++) {
    if (goes_to_pool(&encoding->parts[i])) out[count++] = encoding->parts[i].bytes;
  }
  return count;
}

bool rc_py_device_plan(struct rc_py_encoding *encoding, const uint64_t *offsets) {
  encoding->in_pool = offsets;
  for (size_t i = 0; offsets && i < encoding->count; i++) {
    struct rc_py_part *part = &encoding->parts[i];
    if (goes_to_pool(part)) part->scalar.in_pool = *offsets++;
  }
  return rc_py_encoding_plan(encoding);
}

uint32_t rc_py_device_puts(const struct rc_py_encoding *encoding, struct ringcast_gpu_put *out) {
  uint32_t count = 0;
  for (size_t i = 0; i < encoding->count; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    if (!goes_to_pool(part)) continue;
    out[count++] = (struct ringcast_gpu_put){.tensor = &part->source.tensor, .offset = part->scalar.in_pool};
  }
  return count;
}

/* Each on its own stream; one is waited for when the next tensor is on another. Also after a failure: what was enqueued
 * before it still writes to the frame, which is about to be given back. */
static int fetch_all(const struct rc_py_encoding *encoding, ringcast_gpu_writer *gpu) {
  const struct rc_py_source *last = NULL;
  int rc = 0;
  for (size_t i = 0; i < encoding->count && rc == 0; i++) {
    const struct rc_py_part *part = &encoding->parts[i];
    if (!rc_py_is_on_device(part)) continue;
    if (last && last->stream != part->source.stream) rc = ringcast_gpu_stream_wait(encoding->device, last->stream);
    if (rc < 0) break;
    rc = ringcast_gpu_fetch(gpu, &part->source.tensor, part->out, part->source.stream);
    if (rc != -EBUSY) last = &part->source; /* one that captures has got nothing, and can't be waited for */
  }
  int waited = last ? ringcast_gpu_wait(gpu, last->stream) : 0;
  return rc < 0 ? rc : waited;
}

/* Where there is no writer, one after the other, each from its own device. */
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
  rc = gpu ? fetch_all(encoding, gpu) : copy_back_all(encoding);
  Py_END_ALLOW_THREADS
  return rc;
}
