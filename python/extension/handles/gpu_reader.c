/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gpu part of a Reader: opened by the first device tensor, and closed before the rest of the
 * Reader.
 *
 * Once the gpu part is open, the Reader gives each frame back through the gpu part: the frame's
 * place in the writer's pool must not be reused before a device has read it.
 */
#include "python/extension/handles/gpu.h"

#include "python/extension/errors.h"

/* The number of devices if `map` names none of them; else -1. */
static int count_without(const struct rc_py_map *map) {
  struct ringcast_gpu_driver status = {.size = sizeof status};
  if (map->device < 0) return -1;
  Py_BEGIN_ALLOW_THREADS
  ringcast_gpu_status(&status);
  Py_END_ALLOW_THREADS
  if (!status.ready || map->device < status.devices) return -1;
  return status.devices;
}

#define NO_SUCH_DEVICE "map_location is 'cuda:%d': this process sees %d device%s"

bool rc_py_gpu_map_is_known(struct rc_py_state *state, const struct rc_py_map *map) {
  if (!state->device_is_ready) return true;
  int count = count_without(map);
  if (count < 0) return true;
  PyErr_Format(PyExc_ValueError, NO_SUCH_DEVICE, (int)map->device, count, count == 1 ? "" : "s");
  return false;
}

static bool map_exists(struct rc_py_gpu_side *self) {
  int count = count_without(&self->receiver.map);
  if (count < 0) return true;
  rc_py_raise_text(self->state, EINVAL, NO_SUCH_DEVICE, (int)self->receiver.map.device, count,
                   count == 1 ? "" : "s");
  return false;
}

/* The device for tensors that were on a device: torch's current one if torch has used CUDA in the
 * process, else the first. */
static bool choose_device(struct rc_py_gpu_side *self, int32_t *out) {
  *out = self->receiver.map.device;
  if (*out >= 0) return true;
  PyObject *device = rc_py_device_call(self->state, "current_device", "()");
  long ordinal = device ? PyLong_AsLong(device) : -1;
  Py_XDECREF(device);
  if (ordinal < 0) return false;
  *out = (int32_t)ordinal;
  return true;
}

static int open_reader(struct rc_py_gpu_side *self, struct rc_py_gpu_reader *gpu) {
  const struct ringcast_gpu_reader_options options = {.size = sizeof options,
                                                      .device = gpu->device};
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_reader_open(self->reader, &options, &gpu->reader);
  Py_END_ALLOW_THREADS
  return rc;
}

static struct rc_py_gpu_reader *new_reader(struct rc_py_gpu_side *self) {
  struct rc_py_gpu_reader *gpu = PyMem_Calloc(1, sizeof *gpu);
  if (!gpu) {
    PyErr_NoMemory();
  } else if (!choose_device(self, &gpu->device)) {
    PyMem_Free(gpu);
    gpu = NULL;
  }
  return gpu;
}

/* The gpu part, opened; without a usable device `reader` is NULL. NULL: raised. */
static struct rc_py_gpu_reader *open_of(struct rc_py_gpu_side *self) {
  struct rc_py_gpu_reader *gpu = self->gpu;
  /* Any other failure may have passed. */
  if (gpu && (gpu->rc == 0 || gpu->rc == -ENODEV)) return gpu;
  if (!gpu) gpu = new_reader(self);
  if (!gpu) return NULL;
  Py_CLEAR(gpu->why);
  gpu->rc = open_reader(self, gpu);
  self->state->device_is_ready |= gpu->rc == 0;
  if (gpu->rc < 0) {
    const char *why = ringcast_last_error();
    gpu->why = PyUnicode_DecodeUTF8(why, (Py_ssize_t)strlen(why), "replace");
    if (!gpu->why) PyErr_Clear();
  }
  self->gpu = gpu;
  return gpu;
}

int rc_py_gpu_prepare(struct rc_py_gpu_side *self) {
  struct rc_py_gpu_reader *gpu = open_of(self);
  int rc;
  if (!gpu) return RC_PY_RAISED;
  if (!gpu->reader) {
    if (map_exists(self)) {
      rc_py_raise_text(self->state, -gpu->rc, "this process can't use a CUDA device (%V)", gpu->why,
                       "no reason was given");
    }
    return RC_PY_RAISED;
  }
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_reader_prepare(gpu->reader);
  Py_END_ALLOW_THREADS
  return rc;
}

/* The take of a frame that has begun; NULL: none. */
static struct rc_py_take *find_take(struct rc_py_gpu_reader *gpu,
                                    const struct ringcast_frame *frame) {
  for (uint32_t i = 0; i < gpu->take_count; i++) {
    if (gpu->takes[i].take.frame.position == frame->position) return &gpu->takes[i];
  }
  return NULL;
}

static struct rc_py_take *begin(struct rc_py_gpu_side *self, const struct ringcast_frame *frame,
                                const struct rc_py_stream *stream) {
  struct rc_py_gpu_reader *gpu = self->gpu;
  struct rc_py_take *take = find_take(gpu, frame);
  if (take) return take;
  if (gpu->take_count == sizeof gpu->takes / sizeof *gpu->takes) {
    PyErr_SetString(PyExc_RuntimeError,
                    "more frames are being read on a device than a Reader may hold");
    return NULL;
  }
  take = &gpu->takes[gpu->take_count];
  take->is_owed = false;
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_begin(gpu->reader, frame, stream->handle, &take->take); /* may open the pool */
  Py_END_ALLOW_THREADS
  if (rc < 0) {
    gpu->skips = rc == -ECONNABORTED;
    rc_py_raise(self->state, rc);
    return NULL;
  }
  struct ringcast_gpu_info info = {.size = sizeof info};
  gpu->pool_bytes = 0;
  if (ringcast_gpu_reader_info(gpu->reader, &info) == 0) gpu->pool_bytes = info.pool_bytes;
  take->stream = rc_py_stream_take(stream);
  gpu->take_count++;
  return take;
}

/* ---- What decoding asks for ------------------------------------------------------------------ */

static struct rc_py_gpu_side *side_of(struct rc_py_receiver *receiver) {
  return (struct rc_py_gpu_side *)((char *)receiver - offsetof(struct rc_py_gpu_side, receiver));
}

/* The process has no device. 0: the CPU will do; -1: raised. The writer sends a frame with tensors
 * in the pool only to Readers that have opened the pool. The exceptions are frames of the time
 * before the attach, which are not for the Reader: the first, which may have been under way, or all
 * from the newest of a tag on. */
static int do_without(struct rc_py_gpu_side *self, bool in_pool) {
  struct rc_py_state *state = self->state;
  if (in_pool) {
    struct ringcast_stats stats = {.size = sizeof stats};
    bool is_first = ringcast_reader_stats(self->reader, &stats) == 0 && stats.frames == 0;
    self->gpu->skips = self->starts_latest || is_first;
    rc_py_raise_text(state, ENODEV, RC_PY_ELSEWHERE "which this Reader has not opened");
    return -1;
  }
  if (self->receiver.map.to == RC_PY_MAP_CPU) return 0;
  if (!map_exists(self)) return -1;
  rc_py_raise_text(state, -self->gpu->rc,
                   "the frame is to arrive on a CUDA device, and this process can't use one (%V): "
                   "Reader(handle, map_location=\"cpu\") receives it on the CPU",
                   self->gpu->why, "no reason was given");
  return -1;
}

static int receiver_open(struct rc_py_receiver *receiver, bool in_pool, struct rc_py_arrival *out) {
  struct rc_py_gpu_reader *gpu = open_of(side_of(receiver));
  if (!gpu) return -1;
  if (!gpu->reader) return do_without(side_of(receiver), in_pool);
  out->reader = gpu->reader;
  out->device = gpu->device;
  return 1;
}

static bool receiver_begin(struct rc_py_receiver *receiver, const struct ringcast_frame *frame,
                           const struct rc_py_stream *stream, struct rc_py_arrival *out) {
  struct rc_py_gpu_side *self = side_of(receiver);
  struct rc_py_take *take = begin(self, frame, stream);
  if (!take) return false;
  out->take = &take->take;
  out->stream = take->stream;
  out->pool_bytes = self->gpu->pool_bytes;
  return true;
}

static void receiver_interrupt(struct rc_py_receiver *receiver) {
  side_of(receiver)->gpu->is_interrupted = true;
}

void rc_py_gpu_side_init(struct rc_py_gpu_side *side, struct rc_py_state *state,
                         struct rc_py_map map) {
  static const struct rc_py_receiver_calls calls = {receiver_open, receiver_begin,
                                                    receiver_interrupt};
  side->state = state;
  side->receiver.map = map;
  side->receiver.calls = &calls;
}

bool rc_py_gpu_skips(struct rc_py_gpu_side *self) {
  if (!self->gpu || !self->gpu->skips) return false;
  self->gpu->skips = false;
  if (!PyErr_Occurred() || !PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();
  return true;
}

/* Only the call that has the Reader's turn looks at the takes. */
static int end_take(struct rc_py_gpu_reader *gpu, struct rc_py_take *take) {
  int rc = ringcast_gpu_end(gpu->reader, &take->take);
  if (take->is_owed) gpu->owed_count--;
  take->is_owed = rc == -EBUSY; /* the stream captures a graph: still open */
  if (take->is_owed) {
    gpu->owed_count++;
    return rc;
  }
  rc_py_stream_drop(&take->stream);
  *take = gpu->takes[--gpu->take_count];
  return rc;
}

/* A failure is reported by the next call. */
static void end_owed(struct rc_py_gpu_reader *gpu) {
  for (uint32_t i = gpu->take_count; i-- > 0;) {
    if (gpu->takes[i].is_owed) end_take(gpu, &gpu->takes[i]);
  }
}

void rc_py_gpu_end_owed(struct rc_py_gpu_reader *gpu, bool has_gil) {
  if (gpu->owed_count == 0) return;
  PyThreadState *thread = has_gil ? PyEval_SaveThread() : NULL;
  end_owed(gpu);
  if (thread) PyEval_RestoreThread(thread);
}

static int release_begun(struct rc_py_gpu_reader *gpu, struct rc_py_take *take) {
  int lost, rc;
  Py_BEGIN_ALLOW_THREADS
  lost = ringcast_gpu_check(gpu->reader);
  rc = end_take(gpu, take);
  Py_END_ALLOW_THREADS
  gpu->has_told |= lost < 0;
  return rc < 0 && rc != -EBUSY ? rc : lost;
}

int rc_py_gpu_release(struct rc_py_gpu_side *self, const struct ringcast_frame *frame) {
  struct rc_py_gpu_reader *gpu = self->gpu;
  if (!gpu->reader) return ringcast_reader_release(self->reader, frame);
  struct rc_py_take *take = find_take(gpu, frame);
  return take ? release_begun(gpu, take) : ringcast_gpu_release(gpu->reader, frame);
}

int rc_py_gpu_check(struct rc_py_gpu_side *self) {
  struct rc_py_gpu_reader *gpu = self->gpu;
  if (!gpu->reader) return 0;
  rc_py_gpu_end_owed(gpu, true);
  int rc = ringcast_gpu_check(gpu->reader);
  bool was_told = gpu->has_told;
  gpu->has_told = rc < 0;
  return was_told ? 0 : rc; /* later frames without device tensors can still be received */
}

/* A take is open when the Reader closes: the library enqueues the take's `ack`, after a capture of
 * the stream if need be, and knows the stream by its number alone. So the stream's object goes to
 * a hold, which the `ack` waits for. NULL: no such object or no such `ack`; the stream was
 * dropped. */
static struct rc_py_device_memory *hold_stream(const struct rc_py_gpu_reader *gpu,
                                               struct rc_py_take *take) {
  const struct ringcast_item anything = {.placement = RINGCAST_PLACEMENT_POOL};
  struct rc_py_device_memory *memory = NULL;
  ringcast_gpu_hold *hold = NULL;
  uint64_t address;
  if (take->stream.keep &&
      ringcast_gpu_map(gpu->reader, &take->take, &anything, &address, &hold) == 0) {
    memory = rc_py_device_memory_of(hold, gpu->device, address, take->stream);
  }
  if (memory) return memory;
  ringcast_gpu_unmap(hold);
  rc_py_stream_drop(&take->stream);
  return NULL;
}

void rc_py_gpu_reader_shut(struct rc_py_gpu_side *self) {
  struct rc_py_gpu_reader *gpu = self->gpu;
  struct rc_py_device_memory *held[RC_PY_MOST_LEASES + 1];
  if (!gpu || !gpu->reader) return;
  for (uint32_t i = 0; i < gpu->take_count; i++) held[i] = hold_stream(gpu, &gpu->takes[i]);
  ringcast_gpu_reader_close(gpu->reader);
  gpu->reader = NULL;
  while (gpu->take_count > 0) rc_py_device_memory_drop(held[--gpu->take_count]);
  gpu->owed_count = 0;
}

void rc_py_gpu_side_clear(struct rc_py_gpu_side *side) {
  if (side->gpu) Py_XDECREF(side->gpu->why);
  PyMem_Free(side->gpu);
  side->gpu = NULL;
}

/* ---- Status ---------------------------------------------------------------------------------- */

PyObject *rc_py_gpu_info(struct rc_py_state *state, const struct ringcast_gpu_info *info) {
  static const char *const ways[] = {"unknown", "pool",    "no_pool", "no_reader",
                                     "waiting", "refused", "lost"};
  const char *way = info->way < sizeof ways / sizeof *ways ? ways[info->way] : ways[0];
  PyObject *why =
      PyUnicode_DecodeUTF8(info->why, (Py_ssize_t)strnlen(info->why, sizeof info->why), "replace");
  if (!why) return NULL;
  return PyObject_CallFunction(
      state->gpu_info, "sNiKIIIiKKKKKKKKN", way, why, (int)info->device,
      (unsigned long long)info->pool_bytes, (unsigned)info->slots, (unsigned)info->epoch,
      (unsigned)info->reader, (int)info->reader_pid, (unsigned long long)info->pool_frames,
      (unsigned long long)info->pool_bytes_sent, (unsigned long long)info->inline_frames,
      (unsigned long long)info->full, (unsigned long long)info->opens,
      (unsigned long long)info->syncs, (unsigned long long)info->slots_used,
      (unsigned long long)info->bytes_used, PyBool_FromLong(info->registered != 0));
}

PyObject *rc_py_gpu_status(PyObject *module, PyObject *Py_UNUSED(unused)) {
  struct rc_py_state *state = PyModule_GetState(module);
  struct ringcast_gpu_driver status = {.size = sizeof status};
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_status(&status);
  Py_END_ALLOW_THREADS
  if (rc < 0) return rc_py_raise(state, rc);
  state->device_is_ready |= status.ready;
  PyObject *why = PyUnicode_DecodeUTF8(
      status.why, (Py_ssize_t)strnlen(status.why, sizeof status.why), "replace");
  if (!why) return NULL;
  return PyObject_CallFunction(state->gpu_state, "NNiii", PyBool_FromLong(status.ready), why,
                               (int)status.version, (int)status.devices, (int)status.result);
}
