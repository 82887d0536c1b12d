/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that arrive on a CUDA device.
 *
 * At the frame's first such tensor, the Reader's stream is made to wait for the writer's stream
 * (ringcast_gpu_begin); from then on the whole frame is readable. Memory is made entry by entry, as
 * for the CPU; the copies are enqueued at the end. Small tensors that lie close together share an
 * allocation, an arena, and one copy: a launch takes as long as copying many kilobytes. A first
 * pass over the entries finds the small tensors. Its result is a mere hint: the entries are read
 * again and may have changed, and a tensor outside the arena gets memory of its own.
 *
 * Tensors for CuPy, JAX or no particular library have separate arenas, which are copied at once, as
 * such a tensor is handed on immediately.
 */
#include "python/extension/codec/device.h"

/* The source of the bytes; no arena has both. */
enum { FRAME, POOL, SOURCES };
/* Between two looks for signals, while a copy waits. */
enum { SLICE_NS = 50000000 };
/* A tensor within an arena must be aligned for its dtype. */
enum { ALIGNMENT = 16 };

struct arena {
  uint64_t start, end; /* in the frame, or the pool; equal: no arena */
  /* NULL until the arena is used: */
  PyObject *tensor;                   /* for torch */
  struct rc_py_device_memory *memory; /* for CuPy, JAX, DeviceTensor */
  uint64_t address;
};

/* The two readers of a frame's tensors, which share no arena. */
enum { TORCH, OTHERS, KINDS };

/* The state of fetching one frame's tensors to or from a device. */
struct rc_py_fetching {
  bool to_host;
  bool settles;       /* new tensors belong to several streams: also to ... */
  void *torch_stream; /* ... this one of torch's */
  struct rc_py_arrival at;
  uint64_t pool_left; /* bytes still to be read from the pool, at most: entries may share a place */
  struct arena arenas[KINDS * SOURCES];
  struct ringcast_gpu_copy *copies; /* enqueued at the end */
  size_t count, room;
};

static int source_of(const struct ringcast_item *item) {
  if (item->placement == RINGCAST_PLACEMENT_INLINE) return FRAME;
  return POOL;
}

static uint64_t place_of(const struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  if (source_of(item) == POOL) return item->device_offset;
  return (uint64_t)((const uint8_t *)item->data - (const uint8_t *)decoding->whole->data);
}

/* ---- The beginning --------------------------------------------------------------------------- */

static struct arena *arena_of(struct rc_py_fetching *device, const struct ringcast_item *item) {
  int kind = OTHERS;
  if (item->flags & RINGCAST_ITEM_TORCH) kind = TORCH;
  return &device->arenas[kind * SOURCES + source_of(item)];
}

static bool is_small(const struct ringcast_item *item) {
  return item->bytes > 0 && item->bytes < RC_PY_ARENA_LEAST;
}

/* Whether the item may go to an arena: in a view, the bytes stay in the pool. */
static bool is_for_arena(const struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  bool is_wanted =
      item->kind == RINGCAST_ITEM_TENSOR && rc_py_device_wants(decoding, item) && is_small(item);
  return is_wanted && !(item->placement == RINGCAST_PLACEMENT_POOL && decoding->hold);
}

/* Finds the ranges of small tensors. */
static void look_for_arenas(const struct rc_py_decoding *decoding, struct rc_py_fetching *device) {
  struct ringcast_item item;
  uint64_t needed[KINDS * SOURCES] = {0};
  for (uint32_t i = 0; i < decoding->frame.count; i++) {
    if (ringcast_frame_item(&decoding->frame, i, &item) < 0)
      return; /* reported when the entry is read */
    if (!is_for_arena(decoding, &item)) continue;
    struct arena *arena = arena_of(device, &item);
    uint64_t at = place_of(decoding, &item), end = at + item.bytes;
    bool is_outside = at > device->pool_left || end > device->pool_left;
    if (source_of(&item) == POOL && is_outside) continue; /* no such place */
    if (arena->end == arena->start) *arena = (struct arena){.start = at, .end = end};
    if (at < arena->start) arena->start = at;
    if (end > arena->end) arena->end = end;
    needed[arena - device->arenas] += item.bytes + RC_PY_ARENA_GAP / 2;
  }
  for (int i = 0; i < KINDS * SOURCES; i++) {
    struct arena *arena = &device->arenas[i];
    if (arena->end - arena->start > 2 * needed[i]) arena->end = arena->start;
  }
}

/* Whether any of the tensors to read is for torch. */
static bool is_for_torch(const struct rc_py_decoding *decoding, const struct ringcast_item *first) {
  struct ringcast_item item;
  if (first->flags & RINGCAST_ITEM_TORCH) return true;
  if (decoding->selection) return false;
  for (uint32_t i = 0; i < decoding->frame.count; i++) {
    if (ringcast_frame_item(&decoding->frame, i, &item) < 0)
      return false; /* reported when the entry is read */
    bool is_wanted = item.kind == RINGCAST_ITEM_TENSOR && rc_py_device_wants(decoding, &item);
    if (is_wanted && item.flags & RINGCAST_ITEM_TORCH) return true;
  }
  return false;
}

/* Whether torch is here, and can have a tensor on a device. */
static bool is_torch_ready(const struct rc_py_decoding *decoding) {
  struct rc_py_state *state = decoding->state;
  if (!rc_py_torch_needed(state)) return false;
  if (!state->torch.is_built_with_cuda) {
    PyObject *built = rc_py_device_call(state, "is_built_with_cuda", "()");
    int is_built = rc_py_is_yes(built);
    if (is_built < 0) return false;
    state->torch.is_built_with_cuda = is_built;
  }
  if (state->torch.is_built_with_cuda) return true;
  rc_py_raise_text(state, ENODEV,
                   "the torch of this process is built without CUDA: Reader(handle, "
                   "map_location=\"cpu\") receives it on the CPU");
  return false;
}

/* torch's stream, if any tensor is for torch, because torch's memory may be in use on its stream
 * until then; else the stream for the first tensor. */
static bool choose_stream(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                          int32_t device, struct rc_py_stream *out) {
  *out = (struct rc_py_stream){NULL, NULL};
  if (is_for_torch(decoding, item)) {
    return is_torch_ready(decoding) && rc_py_torch_stream(decoding->state, device, &out->handle);
  }
  if (!(item->flags & RINGCAST_ITEM_CUPY)) return true;
  unsigned long long number;
  PyObject *stream = rc_py_device_call(decoding->state, "cupy_stream", "(i)", (int)device);
  bool is_known = stream && PyArg_ParseTuple(stream, "KO", &number, &out->keep);
  if (is_known) {
    out->handle = (void *)(uintptr_t)number;
    Py_INCREF(out->keep);
  }
  Py_XDECREF(stream);
  return is_known;
}

/* 1: the device is open; 0: no device for the frame; -1: raised. */
static int open_device(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                       struct rc_py_fetching *device) {
  struct rc_py_receiver *receiver = decoding->receiver;
  bool in_pool = decoding->frame.device_epoch;
  if (!receiver && !in_pool) return 0;
  if (!receiver) {
    rc_py_raise_text(decoding->state, ENODEV,
                     RC_PY_ELSEWHERE "not in the frame: only a Reader gets at them");
    return -1;
  }
  int opened = receiver->calls->open(receiver, in_pool, &device->at);
  if (opened <= 0) return opened;
  device->to_host = receiver->map.to == RC_PY_MAP_CPU;
  struct rc_py_stream stream = {NULL, NULL};
  if (!device->to_host && !choose_stream(decoding, item, device->at.device, &stream)) return -1;
  bool begun = receiver->calls->begin(receiver, decoding->whole, &stream, &device->at);
  Py_XDECREF(stream.keep);
  if (!begun) return -1;
  device->pool_left = device->at.pool_bytes;
  return 1;
}

/* NULL: raised. */
static struct rc_py_fetching *begin(struct rc_py_decoding *decoding,
                                    const struct ringcast_item *item) {
  if (decoding->device) return decoding->device;
  struct rc_py_fetching *device = PyMem_Calloc(1, sizeof *device);
  if (!device) {
    PyErr_NoMemory();
    return NULL;
  }
  decoding->device = device;
  int opened = open_device(decoding, item, device);
  if (opened < 0) return NULL;
  if (opened == 0) device->to_host = true;
  if (!device->to_host && !decoding->selection) look_for_arenas(decoding, device);
  return device;
}

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Waits for a stream that is far behind, until a signal raises (RC_PY_RAISED). */
static int copy_some(struct rc_py_decoding *decoding, struct ringcast_gpu_copy *copies,
                     size_t count, uint32_t flags) {
  struct rc_py_fetching *device = decoding->device;
  int rc;
  device->at.take->timeout_ns = SLICE_NS;
  for (;;) {
    Py_BEGIN_ALLOW_THREADS
    rc = ringcast_gpu_copy_all(device->at.reader, device->at.take, copies, (uint32_t)count, flags);
    Py_END_ALLOW_THREADS
    if (rc != -ETIMEDOUT && rc != -EINTR) return rc;
    if (PyErr_CheckSignals() < 0) {
      decoding->receiver->calls->interrupt(decoding->receiver);
      return RC_PY_RAISED;
    }
  }
}

/* To be enqueued at the end. */
static bool copy_later(struct rc_py_decoding *decoding, int source, uint64_t at, uint64_t bytes,
                       uint64_t to) {
  struct rc_py_fetching *device = decoding->device;
  if (!rc_py_grow((void **)&device->copies, device->count, &device->room, sizeof *device->copies))
    return false;
  device->copies[device->count++] =
      (struct ringcast_gpu_copy){.offset = at, .bytes = bytes, .to = to, .in_pool = source == POOL};
  return true;
}

static int follow(const struct rc_py_fetching *device, void *stream, void *before) {
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_stream_follow(device->at.device, stream, before);
  Py_END_ALLOW_THREADS
  return rc;
}

/* torch orders the use of new memory by torch's stream alone. So another stream waits for torch's
 * before the copies to the memory, and torch's stream waits after the copies. */
static int follow_torch(const struct rc_py_fetching *device) {
  if (!device->settles) return 0;
  return follow(device, device->at.stream.handle, device->torch_stream);
}

/* Returns `rc`, or the failure of the wait. Waits after a failure too: copies may be under way. */
static int let_torch_follow(const struct rc_py_fetching *device, int rc) {
  if (!device->settles) return rc;
  int failed = follow(device, device->torch_stream, device->at.stream.handle);
  if (rc != 0) return rc;
  return failed;
}

bool rc_py_device_copy(struct rc_py_decoding *decoding) {
  struct rc_py_fetching *device = decoding->device;
  if (device->count == 0) return true;
  uint32_t flags = 0;
  if (decoding->is_last) flags = RINGCAST_GPU_LAST;
  int rc = follow_torch(device);
  if (rc == 0) rc = copy_some(decoding, device->copies, device->count, flags);
  rc = let_torch_follow(device, rc);
  if (rc != 0) rc_py_raise(decoding->state, rc);
  return rc == 0;
}

void rc_py_device_clear(struct rc_py_decoding *decoding) {
  struct rc_py_fetching *device = decoding->device;
  for (int i = 0; i < KINDS * SOURCES; i++) {
    Py_XDECREF(device->arenas[i].tensor);
    rc_py_device_memory_drop(device->arenas[i].memory);
  }
  PyMem_Free(device->copies);
  PyMem_Free(device);
  decoding->device = NULL;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* Counts bytes read from the frame or the pool. */
static bool take_bytes(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                       uint64_t bytes) {
  struct rc_py_fetching *device = decoding->device;
  if (source_of(item) == FRAME) return rc_py_take_bytes(decoding, bytes);
  if (bytes > device->pool_left)
    return rc_py_damaged(decoding, "its entries share their place in the pool");
  device->pool_left -= bytes;
  return true;
}

static bool make_arena(struct rc_py_decoding *decoding, struct arena *arena, int source) {
  struct rc_py_fetching *device = decoding->device;
  if (arena->tensor) return true;
  uint64_t bytes = arena->end - arena->start;
  struct ringcast_item item = {
      .dtype = {.code = 1, .bits = 8, .lanes = 1}, .ndim = 1, .strides = {1}};
  item.shape[0] = (int64_t)((bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  int dtype = rc_py_dtype_of(&item);
  arena->tensor =
      rc_py_torch_empty_on(decoding->state, dtype, &item, device->at.device, &arena->address);
  return arena->tensor && copy_later(decoding, source, arena->start, bytes, arena->address);
}

/* NULL: the item lies in no arena. */
static struct arena *find_arena(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                                uint64_t bytes) {
  struct arena *arena = arena_of(decoding->device, item);
  uint64_t at = place_of(decoding, item);
  bool is_within =
      is_small(item) && at >= arena->start && at <= arena->end && bytes <= arena->end - at;
  if (!is_within || (at - arena->start) % ALIGNMENT != 0) return NULL;
  return arena;
}

/* NULL, with nothing raised: the item lies in no arena. */
static PyObject *make_within(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                             uint64_t bytes) {
  struct arena *arena = find_arena(decoding, item, bytes);
  if (!arena || !make_arena(decoding, arena, source_of(item))) return NULL;
  return rc_py_torch_within(decoding->state, arena->tensor, item,
                            place_of(decoding, item) - arena->start);
}

/* New memory with bytes of the frame, or of the pool, which are copied at once. NULL: raised. */
static struct rc_py_device_memory *copy_to_memory(struct rc_py_decoding *decoding, int source,
                                                  uint64_t at, uint64_t bytes) {
  struct rc_py_fetching *device = decoding->device;
  struct ringcast_gpu_copy copy = {.offset = at, .bytes = bytes, .in_pool = source == POOL};
  struct rc_py_device_memory *memory = rc_py_device_memory_new(
      decoding->state, device->at.reader, device->at.device, bytes, &device->at.stream, &copy.to);
  if (!memory || bytes == 0) return memory;
  int rc = copy_some(decoding, &copy, 1, 0);
  if (rc == 0) return memory;
  rc_py_device_memory_drop(memory);
  rc_py_raise(decoding->state, rc);
  return NULL;
}

static PyObject *make_own(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                          uint64_t bytes) {
  uint64_t address;
  int index = rc_py_torch_index(decoding->state, item);
  if (index < 0) return NULL;
  PyObject *tensor =
      rc_py_torch_empty_on(decoding->state, index, item, decoding->device->at.device, &address);
  if (tensor && bytes &&
      !copy_later(decoding, source_of(item), place_of(decoding, item), bytes, address))
    Py_CLEAR(tensor);
  return tensor;
}

static PyObject *make_torch(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                            uint64_t bytes) {
  struct rc_py_fetching *device = decoding->device;
  if (!is_torch_ready(decoding)) return NULL;
  if (!rc_py_torch_stream(decoding->state, device->at.device, &device->torch_stream)) return NULL;
  if (device->torch_stream != device->at.stream.handle) device->settles = true;
  PyObject *tensor = make_within(decoding, item, bytes);
  if (!tensor && !PyErr_Occurred()) tensor = make_own(decoding, item, bytes);
  if (!tensor) return NULL;
  return rc_py_torch_finish(decoding->state, tensor, item->flags);
}

/* CuPy's or JAX's array over a DeviceTensor, or the DeviceTensor without the library. Takes the
 * tensor over. */
static PyObject *hand_on(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                         PyObject *tensor) {
  const char *name = NULL;
  if (item->flags & RINGCAST_ITEM_JAX) name = "as_jax";
  if (item->flags & RINGCAST_ITEM_CUPY) name = "as_cupy";
  if (!tensor || !name) return tensor;
  PyObject *made = rc_py_device_call(decoding->state, name, "(O)", tensor);
  Py_DECREF(tensor);
  return made;
}

/* The arena's memory, with a reference for the caller. NULL: raised. */
static struct rc_py_device_memory *arena_memory(struct rc_py_decoding *decoding,
                                                struct arena *arena, int source) {
  if (!arena->memory) {
    arena->memory = copy_to_memory(decoding, source, arena->start, arena->end - arena->start);
    if (!arena->memory) return NULL;
  }
  rc_py_device_memory_take(arena->memory);
  return arena->memory;
}

static PyObject *make_other(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                            uint64_t bytes) {
  struct arena *arena = find_arena(decoding, item, bytes);
  uint64_t at = place_of(decoding, item), within = 0;
  struct rc_py_device_memory *memory;
  if (arena) {
    memory = arena_memory(decoding, arena, source_of(item));
    within = at - arena->start;
  } else {
    memory = copy_to_memory(decoding, source_of(item), at, bytes);
  }
  if (!memory) return NULL;
  return hand_on(decoding, item, rc_py_device_tensor(decoding->state, item, memory, within));
}

/* A tensor over the item's place in the pool. As rc_py_array_over. */
static PyObject *make_over(struct rc_py_decoding *decoding, const struct ringcast_item *item) {
  struct rc_py_fetching *device = decoding->device;
  uint64_t address;
  ringcast_gpu_hold *hold;
  int rc = ringcast_gpu_map(device->at.reader, device->at.take, item, &address, &hold);
  if (rc == -ENOTSUP) return NULL;
  if (rc < 0) return rc_py_raise(decoding->state, rc);
  struct rc_py_stream stream = rc_py_stream_take(&device->at.stream);
  struct rc_py_device_memory *memory =
      rc_py_device_memory_of(hold, device->at.device, address, stream);
  if (!memory) {
    rc_py_stream_drop(&stream);
    ringcast_gpu_unmap(hold);
    return PyErr_NoMemory();
  }
  if (!(item->flags & RINGCAST_ITEM_TORCH)) {
    return hand_on(decoding, item, rc_py_device_tensor(decoding->state, item, memory, 0));
  }
  PyObject *capsule = rc_py_device_capsule(item, memory, 0, false);
  rc_py_device_memory_drop(memory);
  if (!capsule) return NULL;
  PyObject *tensor = rc_py_torch_from(decoding->state, item, capsule);
  Py_DECREF(capsule);
  return tensor;
}

/* From the pool to the CPU: the call waits for the copy. */
static PyObject *make_on_host(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                              uint64_t bytes) {
  struct rc_py_fetching *device = decoding->device;
  void *out = NULL;
  if (!take_bytes(decoding, item, bytes)) return NULL;
  PyObject *array = rc_py_make_array(decoding->state, item, bytes, &out);
  if (!array) return NULL;
  int rc;
  Py_BEGIN_ALLOW_THREADS
  rc = ringcast_gpu_copy_to_host(device->at.reader, device->at.take, item, out);
  Py_END_ALLOW_THREADS
  if (rc == 0) return array;
  Py_DECREF(array);
  return rc_py_raise(decoding->state, rc);
}

PyObject *rc_py_device_make(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                            uint64_t bytes) {
  struct rc_py_fetching *device = begin(decoding, item);
  if (!device) return NULL;
  bool is_inline = item->placement == RINGCAST_PLACEMENT_INLINE;
  const struct ringcast_tensor tensor = rc_py_tensor_of(item);
  uint64_t packed;
  bool keeps_order =
      is_inline && item->flags & RINGCAST_ITEM_TORCH && rc_py_is_dense(&tensor, &packed);
  if (!keeps_order && !rc_py_is_c_order(item->ndim, item->shape, item->strides)) {
    if (!is_inline) rc_py_damaged(decoding, "a tensor in a pool is not in C order");
    return NULL; /* ringcast's writers make no such tensor; the tensor arrives on the CPU */
  }
  if (device->to_host) {
    if (is_inline) return NULL;
    return make_on_host(decoding, item, bytes);
  }
  if (decoding->hold && !is_inline) {
    PyObject *over = make_over(decoding, item);
    if (over || PyErr_Occurred()) return over;
  }
  if (!take_bytes(decoding, item, bytes)) return NULL;
  if (item->flags & RINGCAST_ITEM_TORCH) return make_torch(decoding, item, bytes);
  return make_other(decoding, item, bytes);
}
