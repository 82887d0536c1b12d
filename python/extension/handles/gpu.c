/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gpu's part of a Writer, and of a Reader: opened by the first tensor of a device, and closed before the rest.
 *
 * A Reader gives a frame back by way of the gpu's part once there is one, as the frame's place in the writer's pool is
 * not to be used again before a device has read it.
 */
#include "python/extension/handles/gpu.h"

/* ---- Writer ----------------------------------------------------------------------------------------------------- */

int rc_py_gpu_writer_open(struct rc_py_writer *self, int32_t device) {
  if (self->gpu) return 0;
  const struct ringcast_gpu_writer_options options = {
      .size = sizeof options, .device = device, .pool_bytes = self->gpu_pool_bytes};
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_writer_open(self->writer, &options, &self->gpu);
  Py_END_ALLOW_THREADS
  if (rc == 0) self->gpu_device = device;
  return rc;
}

void rc_py_gpu_writer_shut(struct rc_py_writer *self) {
  if (!self->gpu) return;
  Py_BEGIN_ALLOW_THREADS
  rc_py_places_shut(self);
  ringcast_gpu_writer_close(self->gpu);
  Py_END_ALLOW_THREADS
  self->gpu = NULL;
}

/* Each call of the driver is made without the GIL: the driver may wait for the device, or for another thread's call. */
static void drop(ringcast_gpu_writer *gpu, struct ringcast_gpu_extent *lease) {
  Py_BEGIN_ALLOW_THREADS
  ringcast_gpu_drop(gpu, lease);
  Py_END_ALLOW_THREADS
}

/* A place for the frame's tensors: 0; -EAGAIN, -EMSGSIZE: it is to go INLINE; -EBUSY: ask again, as some of them are to
 * be copied after all; or any other failure. */
static int lease_by(struct rc_py_writer *self, struct rc_py_encoding *encoding, uint64_t *sizes, bool is_there,
                    struct ringcast_gpu_extent *out) {
  uint64_t *offsets = sizes + encoding->on_device;
  uint32_t count = rc_py_device_sizes(encoding, sizes);
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_lease(self->gpu, sizes, count, offsets, out);
  Py_END_ALLOW_THREADS
  if (rc != 0) return rc;
  if (is_there) rc = rc_py_places_attach(self, encoding, out);
  if (rc == 0 && !rc_py_device_plan(encoding, offsets)) rc = RC_PY_RAISED;
  if (rc < 0) drop(self->gpu, out);
  return rc;
}

static int lease(struct rc_py_writer *self, struct rc_py_encoding *encoding, struct ringcast_gpu_extent *out) {
  if (encoding->hash || encoding->has_streams) return -EAGAIN;
  uint64_t *sizes = PyMem_New(uint64_t, 2 * (size_t)encoding->on_device);
  if (!sizes) {
    PyErr_NoMemory();
    return RC_PY_RAISED;
  }
  bool is_there = rc_py_places_find(self, encoding);
  int rc;
  while ((rc = lease_by(self, encoding, sizes, is_there, out)) == -EBUSY) continue;
  PyMem_Free(sizes);
  return rc;
}

static int commit(struct rc_py_writer *self, const struct rc_py_encoding *encoding, struct ringcast_gpu_extent *lease,
                  size_t bytes) {
  if (!lease) return ringcast_writer_commit(self->writer, bytes, RINGCAST_KIND_TENSORS);
  struct rc_py_puts puts = {.puts = PyMem_New(struct ringcast_gpu_put, (size_t)encoding->on_device)};
  if (!puts.puts) {
    PyErr_NoMemory();
    return RC_PY_RAISED;
  }
  int rc = rc_py_device_puts(encoding, &puts);
  if (rc == 0) {
    Py_BEGIN_ALLOW_THREADS /* the driver may wait, where the stream is far behind */
    rc = ringcast_gpu_commit(self->gpu, lease, puts.puts, puts.count, encoding->device_stream, bytes);
    Py_END_ALLOW_THREADS
  }
  PyMem_Free(puts.puts);
  Py_XDECREF(puts.packed); /* torch uses the memory again in the order of the stream */
  if (rc < 0 || !encoding->is_loose) return rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_stream_wait(encoding->device, encoding->device_stream);
  Py_END_ALLOW_THREADS
  self->gpu_late = rc; /* the frame was sent: it is for the next one to tell */
  return 0;
}

static int raise_late(struct rc_py_writer *self) {
  int rc = self->gpu_late;
  self->gpu_late = 0;
  rc_py_raise_text(rc_py_state_of(self), -rc,
                   "the device failed after the last frame was sent: its tensors may never "
                   "have come");
  return RC_PY_RAISED;
}

/* The frame, reserved and all. With `lease` NULL it is INLINE; else the lease is used up. */
static int send_by(struct rc_py_writer *self, struct rc_py_encoding *encoding, int64_t timeout_ns, uint32_t tag,
                   struct ringcast_gpu_extent *lease) {
  struct rc_py_reservation call = {.writer = self, .bytes = ringcast_plan_bytes(&encoding->plan)};
  size_t bytes;
  int rc = rc_py_wait(rc_py_try_reserve, &call, timeout_ns);
  if (rc == 0) {
    rc = rc_py_encoding_write_device(encoding, self->gpu, &call.span, tag, lease, &bytes);
    if (rc == 0) rc = commit(self, encoding, lease, bytes);
    if (rc == 0) return 0;
    ringcast_writer_abort(self->writer);
  }
  if (lease) drop(self->gpu, lease);
  return rc;
}

int rc_py_gpu_send(struct rc_py_writer *self, struct rc_py_encoding *encoding, int64_t timeout_ns, uint32_t tag) {
  struct ringcast_gpu_extent place;
  if (self->gpu_late < 0) return raise_late(self);
  if (!self->gpu && !rc_py_device_may_start(rc_py_state_of(self))) return RC_PY_RAISED;
  int rc = rc_py_gpu_writer_open(self, encoding->device);
  if (rc < 0) return rc;
  if (self->places) {
    Py_BEGIN_ALLOW_THREADS
    rc_py_places_sweep(self);
    Py_END_ALLOW_THREADS
  }
  rc = lease(self, encoding, &place);
  if (rc == 0) return send_by(self, encoding, timeout_ns, tag, &place);
  return rc == -EAGAIN || rc == -EMSGSIZE ? send_by(self, encoding, timeout_ns, tag, NULL) : rc;
}

/* ---- Reader ----------------------------------------------------------------------------------------------------- */

bool rc_py_gpu_map(PyObject *location, struct rc_py_map *out) {
  *out = (struct rc_py_map){.to = RC_PY_MAP_AS_SENT, .device = -1};
  if (!location || location == Py_None) return true;
  PyObject *text = PyObject_Str(location);
  const char *name = text ? PyUnicode_AsUTF8(text) : NULL;
  bool ok = name;
  if (ok && strcmp(name, "cpu") == 0) {
    out->to = RC_PY_MAP_CPU;
  } else if (ok && strncmp(name, "cuda", 4) == 0) {
    char *end = (char *)name + 4;
    long device = -1;
    out->to = RC_PY_MAP_CUDA;
    if (*end == ':' && end[1] >= '0' && end[1] <= '9') device = strtol(end + 1, &end, 10);
    ok = *end == '\0' && device < 1024;
    if (ok) out->device = (int32_t)device;
  } else {
    ok = false;
  }
  if (!ok && name) {
    PyErr_Format(PyExc_ValueError, "map_location must be None, 'cpu', 'cuda', 'cuda:N' or such a torch.device, not %R",
                 location);
  }
  Py_XDECREF(text);
  return ok;
}

/* The devices that there are, if it is none of them; else -1. */
static int count_without(const struct rc_py_map *map) {
  struct ringcast_gpu_driver status = {.size = sizeof status};
  if (map->device < 0) return -1;
  Py_BEGIN_ALLOW_THREADS
  ringcast_gpu_status(&status);
  Py_END_ALLOW_THREADS
  if (!status.ready) return -1;
  return map->device < status.devices ? -1 : status.devices;
}

#define NO_SUCH_DEVICE "map_location is 'cuda:%d': this process sees %d device%s"

bool rc_py_gpu_map_is_known(struct rc_py_state *state, const struct rc_py_map *map) {
  int count = state->device_is_ready ? count_without(map) : -1;
  if (count < 0) return true;
  PyErr_Format(PyExc_ValueError, NO_SUCH_DEVICE, (int)map->device, count, count == 1 ? "" : "s");
  return false;
}

static bool map_exists(struct rc_py_reader *self) {
  int count = count_without(&self->holder.map);
  if (count < 0) return true;
  rc_py_raise_text(rc_py_state_of(self), EINVAL, NO_SUCH_DEVICE, (int)self->holder.map.device, count,
                   count == 1 ? "" : "s");
  return false;
}

bool rc_py_has_device(const struct ringcast_frame *frame) {
  struct ringcast_frame_header header;
  if (frame->kind != RINGCAST_KIND_TENSORS || frame->bytes < sizeof header) return false;
  memcpy(&header, frame->data, sizeof header);
  return header.magic == RINGCAST_FRAME_MAGIC && header.version >= 3;
}

/* Where tensors arrive that were on a device: torch's current one if it has been used here, else the first. */
static bool choose_device(struct rc_py_reader *self, int32_t *out) {
  *out = self->holder.map.device;
  if (*out >= 0) return true;
  PyObject *device = rc_py_device_call(rc_py_state_of(self), "current_device", "()");
  long ordinal = device ? PyLong_AsLong(device) : -1;
  Py_XDECREF(device);
  if (ordinal < 0) return false;
  *out = (int32_t)ordinal;
  return true;
}

static int open_reader(struct rc_py_reader *self, struct rc_py_gpu_reader *gpu) {
  const struct ringcast_gpu_reader_options options = {.size = sizeof options, .device = gpu->device};
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_reader_open(self->reader, &options, &gpu->reader);
  Py_END_ALLOW_THREADS
  return rc;
}

static struct rc_py_gpu_reader *new_reader(struct rc_py_reader *self) {
  struct rc_py_gpu_reader *gpu = PyMem_Calloc(1, sizeof *gpu);
  if (!gpu) {
    PyErr_NoMemory();
  } else if (!choose_device(self, &gpu->device)) {
    PyMem_Free(gpu);
    gpu = NULL;
  }
  return gpu;
}

static struct rc_py_gpu_reader *open_of(struct rc_py_reader *self) {
  struct rc_py_gpu_reader *gpu = self->gpu;
  if (gpu && (gpu->rc == 0 || gpu->rc == -ENODEV)) return gpu; /* any other failure may be over by now */
  if (!gpu && !(gpu = new_reader(self))) return NULL;
  Py_CLEAR(gpu->why);
  gpu->rc = open_reader(self, gpu);
  rc_py_state_of(self)->device_is_ready |= gpu->rc == 0;
  if (gpu->rc < 0) {
    const char *why = ringcast_last_error();
    gpu->why = PyUnicode_DecodeUTF8(why, (Py_ssize_t)strlen(why), "replace");
    if (!gpu->why) PyErr_Clear();
  }
  return self->gpu = gpu;
}

PyObject *rc_py_reader_prepare_gpu(PyObject *object, PyObject *Py_UNUSED(unused)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  if (!rc_py_reader_enter(self)) return NULL;
  struct rc_py_gpu_reader *gpu = open_of(self);
  int rc = gpu ? gpu->rc : RC_PY_RAISED;
  if (gpu && gpu->reader) {
    Py_BEGIN_ALLOW_THREADS
    rc = ringcast_gpu_reader_prepare(gpu->reader);
    Py_END_ALLOW_THREADS
  } else if (gpu) {
    if (map_exists(self)) {
      rc_py_raise_text(rc_py_state_of(self), -rc, "this process can't use a CUDA device (%V)", gpu->why,
                       "no reason was given");
    }
    rc = RC_PY_RAISED;
  }
  rc_py_reader_leave(self);
  if (rc == -EAGAIN) Py_RETURN_FALSE;
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : rc_py_ref(Py_True);
}

/* The take of a frame that has begun; else NULL. */
static struct rc_py_take *find_take(struct rc_py_gpu_reader *gpu, const struct ringcast_frame *frame) {
  for (uint32_t i = 0; i < gpu->take_count; i++) {
    if (gpu->takes[i].take.frame.position == frame->position) return &gpu->takes[i];
  }
  return NULL;
}

static struct rc_py_take *begin(struct rc_py_reader *self, const struct ringcast_frame *frame,
                                const struct rc_py_stream *stream) {
  struct rc_py_gpu_reader *gpu = self->gpu;
  struct rc_py_take *take = find_take(gpu, frame);
  if (take) return take;
  if (gpu->take_count == sizeof gpu->takes / sizeof *gpu->takes) {
    PyErr_SetString(PyExc_RuntimeError, "more frames are being read on a device than a Reader may hold");
    return NULL;
  }
  take = &gpu->takes[gpu->take_count];
  take->is_owed = false;
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_begin(gpu->reader, frame, stream->handle, &take->take); /* it may open the pool */
  Py_END_ALLOW_THREADS
  if (rc < 0) {
    gpu->skips = rc == -ECONNABORTED;
    rc_py_raise(rc_py_state_of(self), rc);
    return NULL;
  }
  struct ringcast_gpu_info info = {.size = sizeof info};
  gpu->pool_bytes = ringcast_gpu_reader_info(gpu->reader, &info) == 0 ? info.pool_bytes : 0;
  take->stream = rc_py_stream_take(stream);
  gpu->take_count++;
  return take;
}

/* ---- What decoding asks for -------------------------------------------------------------------------------------- */

static struct rc_py_reader *reader_of(struct rc_py_holder *holder) {
  return (struct rc_py_reader *)((char *)holder - offsetof(struct rc_py_reader, holder));
}

/* There is no device here. 0: the CPU will do; -1: raised. A frame whose tensors lie in the pool is sent to those
 * Readers alone that have opened the pool; but the first frame to come may have been under way when this Reader
 * attached, and is not for this Reader. */
static int do_without(struct rc_py_reader *self, bool in_pool) {
  struct rc_py_state *state = rc_py_state_of(self);
  struct ringcast_stats stats = {.size = sizeof stats};
  if (in_pool) {
    self->gpu->skips = ringcast_reader_stats(self->reader, &stats) == 0 && stats.frames == 0;
    rc_py_raise_text(state, ENODEV, RC_PY_ELSEWHERE "which this Reader has not opened");
    return -1;
  }
  if (self->holder.map.to == RC_PY_MAP_CPU) return 0;
  if (!map_exists(self)) return -1;
  rc_py_raise_text(state, -self->gpu->rc,
                   "the frame is to arrive on a CUDA device, and this process can't use one (%V): "
                   "Reader(handle, map_location=\"cpu\") receives it on the CPU",
                   self->gpu->why, "no reason was given");
  return -1;
}

static int holder_open(struct rc_py_holder *holder, bool in_pool, struct rc_py_arrival *out) {
  struct rc_py_gpu_reader *gpu = open_of(reader_of(holder));
  if (!gpu) return -1;
  if (!gpu->reader) return do_without(reader_of(holder), in_pool);
  out->reader = gpu->reader;
  out->device = gpu->device;
  return 1;
}

static bool holder_begin(struct rc_py_holder *holder, const struct ringcast_frame *frame,
                         const struct rc_py_stream *stream, struct rc_py_arrival *out) {
  struct rc_py_reader *self = reader_of(holder);
  struct rc_py_take *take = begin(self, frame, stream);
  if (!take) return false;
  out->take = &take->take;
  out->stream = take->stream;
  out->pool_bytes = self->gpu->pool_bytes;
  return true;
}

static void holder_interrupt(struct rc_py_holder *holder) { reader_of(holder)->gpu->is_interrupted = true; }

void rc_py_gpu_holder_init(struct rc_py_holder *holder, struct rc_py_map map) {
  static const struct rc_py_holder_calls calls = {holder_open, holder_begin, holder_interrupt};
  holder->map = map;
  holder->calls = &calls;
}

bool rc_py_gpu_skips(struct rc_py_reader *self) {
  if (!self->gpu || !self->gpu->skips) return false;
  self->gpu->skips = false;
  if (!PyErr_Occurred() || !PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();
  return true;
}

/* By who has the Reader's turn: nobody else looks at its takes. */
static int end_take(struct rc_py_gpu_reader *gpu, struct rc_py_take *take) {
  int rc = ringcast_gpu_end(gpu->reader, &take->take);
  gpu->owed_count -= take->is_owed;
  take->is_owed = rc == -EBUSY; /* its stream captures a graph: still open */
  gpu->owed_count += take->is_owed;
  if (take->is_owed) return rc;
  rc_py_stream_drop(&take->stream);
  *take = gpu->takes[--gpu->take_count];
  return rc;
}

void rc_py_gpu_end_owed(struct rc_py_gpu_reader *gpu) {
  for (uint32_t i = gpu->owed_count ? gpu->take_count : 0; i-- > 0;) {
    if (gpu->takes[i].is_owed) end_take(gpu, &gpu->takes[i]); /* nobody is there to be told: the next call tells */
  }
}

void rc_py_gpu_end_owed_now(struct rc_py_gpu_reader *gpu) {
  if (gpu->owed_count == 0) return;
  Py_BEGIN_ALLOW_THREADS
  rc_py_gpu_end_owed(gpu);
  Py_END_ALLOW_THREADS
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

int rc_py_reader_release(struct rc_py_reader *self, const struct ringcast_frame *frame) {
  if (!self->gpu || !self->gpu->reader) return ringcast_reader_release(self->reader, frame);
  struct rc_py_take *take = find_take(self->gpu, frame);
  return take ? release_begun(self->gpu, take) : ringcast_gpu_release(self->gpu->reader, frame);
}

int rc_py_gpu_check(struct rc_py_reader *self) {
  struct rc_py_gpu_reader *gpu = self->gpu;
  if (!gpu || !gpu->reader) return 0;
  rc_py_gpu_end_owed_now(gpu);
  int rc = ringcast_gpu_check(gpu->reader);
  bool was_told = gpu->has_told;
  gpu->has_told = rc < 0;
  return was_told ? 0 : rc; /* what comes after it, if it needs no device, is still to be had */
}

/* A take that is open when the Reader closes: the library enqueues the take's `ack`, after a capture of the stream if
 * need be, and knows the stream by its number alone. So the stream's object goes to a hold, which the `ack` waits for.
 * NULL: there is no such object, or no such `ack`, and the stream was dropped. */
static struct rc_py_device_memory *hold_stream(const struct rc_py_gpu_reader *gpu, struct rc_py_take *take) {
  const struct ringcast_item anything = {.placement = RINGCAST_PLACEMENT_POOL};
  struct rc_py_device_memory *memory = NULL;
  ringcast_gpu_hold *hold = NULL;
  uint64_t address;
  if (take->stream.keep && ringcast_gpu_map(gpu->reader, &take->take, &anything, &address, &hold) == 0) {
    memory = rc_py_device_memory_of(hold, gpu->device, address, take->stream);
  }
  if (memory) return memory;
  ringcast_gpu_unmap(hold);
  rc_py_stream_drop(&take->stream);
  return NULL;
}

void rc_py_gpu_reader_shut(struct rc_py_reader *self) {
  struct rc_py_gpu_reader *gpu = self->gpu;
  struct rc_py_device_memory *held[RC_PY_MOST_LEASES + 1];
  if (!gpu || !gpu->reader) return;
  for (uint32_t i = 0; i < gpu->take_count; i++) held[i] = hold_stream(gpu, &gpu->takes[i]);
  ringcast_gpu_reader_close(gpu->reader);
  gpu->reader = NULL;
  while (gpu->take_count > 0) rc_py_device_memory_drop(held[--gpu->take_count]);
  gpu->owed_count = 0;
}

/* ---- Looking ---------------------------------------------------------------------------------------------------- */

static PyObject *make_info(struct rc_py_state *state, const struct ringcast_gpu_info *info) {
  static const char *const ways[] = {"unknown", "pool", "no_pool", "no_reader", "waiting", "refused", "lost"};
  const char *way = ways[info->way < sizeof ways / sizeof *ways ? info->way : 0];
  PyObject *why = PyUnicode_DecodeUTF8(info->why, (Py_ssize_t)strnlen(info->why, sizeof info->why), "replace");
  if (!why) return NULL;
  return PyObject_CallFunction(state->gpu_info, "sNiKIIIiKKKKKKKKN", way, why, (int)info->device,
                               (unsigned long long)info->pool_bytes, (unsigned)info->slots, (unsigned)info->epoch,
                               (unsigned)info->reader, (int)info->reader_pid, (unsigned long long)info->pool_frames,
                               (unsigned long long)info->pool_bytes_sent, (unsigned long long)info->inline_frames,
                               (unsigned long long)info->full, (unsigned long long)info->opens,
                               (unsigned long long)info->syncs, (unsigned long long)info->slots_used,
                               (unsigned long long)info->bytes_used, PyBool_FromLong(info->registered != 0));
}

PyObject *rc_py_writer_gpu(PyObject *object, void *Py_UNUSED(closure)) {
  struct rc_py_writer *self = (struct rc_py_writer *)object;
  struct ringcast_gpu_info info = {.size = sizeof info};
  if (!self->gpu) Py_RETURN_NONE;
  if (!rc_py_writer_enter(self)) return NULL;
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_writer_info(self->gpu, &info);
  Py_END_ALLOW_THREADS
  rc_py_writer_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : make_info(rc_py_state_of(self), &info);
}

PyObject *rc_py_reader_gpu(PyObject *object, void *Py_UNUSED(closure)) {
  struct rc_py_reader *self = (struct rc_py_reader *)object;
  struct ringcast_gpu_info info = {.size = sizeof info};
  if (!self->reader || !self->gpu || !self->gpu->reader) Py_RETURN_NONE;
  if (!rc_py_reader_enter(self)) return NULL;
  int rc = ringcast_gpu_reader_info(self->gpu->reader, &info);
  rc_py_reader_leave(self);
  return rc < 0 ? rc_py_raise(rc_py_state_of(self), rc) : make_info(rc_py_state_of(self), &info);
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
  PyObject *why = PyUnicode_DecodeUTF8(status.why, (Py_ssize_t)strnlen(status.why, sizeof status.why), "replace");
  if (!why) return NULL;
  return PyObject_CallFunction(state->gpu_state, "NNiii", PyBool_FromLong(status.ready), why, (int)status.version,
                               (int)status.devices, (int)status.result);
}
