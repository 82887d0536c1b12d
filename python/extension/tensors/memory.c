/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for large received arrays, reused when the arrays die.
 *
 * Fresh memory costs a page fault per page, several times the cost of the copy into the page. So
 * blocks come from the pool, and go back when the last reference dies: an array holds its block by
 * the base object, a Memory, a torch tensor by the deleter of the storage, which may run in any
 * thread, with the GIL or without. Slices, memoryviews, storages and DLPack keep the base object or
 * the storage alive, so an idle block has no users.
 *
 * Idle blocks are listed by size class, eight to a doubling, with the last block given on top, as
 * its memory is warm; and by age: above the limit, the oldest block goes back to the kernel. Each
 * block is a mapping of its own, so unmapping takes effect at once. A mutex guards the pool, and is
 * held through a fork.
 */
#include "python/extension/tensors.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE       ((size_t)2 << 20)
#define CLASSES    512
#define MOST_BYTES (UINT64_C(256) << 20) /* of idle blocks */

struct rc_py_block {
  void *data;
  size_t bytes; /* of the mapping */
  uint32_t class;
  /* While idle: links in the list of the class, and in the list by age. */
  struct rc_py_block *above, *below, *older, *newer;
};

static struct {
  pthread_mutex_t mutex;
  uint64_t limit, idle, lent, reused, fresh;
  struct rc_py_block *top[CLASSES], *oldest, *newest;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .limit = MOST_BYTES};

static void lock(void) { pthread_mutex_lock(&pool.mutex); }

static void unlock(void) { pthread_mutex_unlock(&pool.mutex); }

/* ---- Mappings -------------------------------------------------------------------------------- */

static void unmap(struct rc_py_block *block) {
  munmap(block->data, block->bytes);
  PyMem_RawFree(block);
}

/* A mapping that starts on a huge page, for as many huge pages as possible. */
static void *map_huge(size_t bytes) {
  uint8_t *start =
      mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return MAP_FAILED;
  uint8_t *data = (uint8_t *)(((uintptr_t)start + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
  if (data > start) munmap(start, (size_t)(data - start));
  munmap(data + bytes, (size_t)(start + HUGE - data)); /* never nothing */
  madvise(data, bytes, MADV_HUGEPAGE); /* a hint: kernels without huge pages refuse */
  return data;
}

static struct rc_py_block *map(size_t bytes, uint32_t class) {
  struct rc_py_block *block = PyMem_RawCalloc(1, sizeof *block);
  if (!block) return NULL;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  block->class = class;
  block->bytes = (bytes + page - 1) & ~(page - 1);
  block->data = bytes >= HUGE ? map_huge(block->bytes)
                              : mmap(NULL, block->bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block->data != MAP_FAILED) return block;
  PyMem_RawFree(block);
  return NULL;
}

/* Rounds up to four significant bits. */
static uint32_t class_of(size_t bytes, size_t *rounded) {
  uint32_t shift = 60 - (uint32_t)__builtin_clzll(bytes - 1);
  size_t steps = ((bytes - 1) >> shift) + 1; /* 9 to 16 */
  *rounded = steps << shift;
  return shift * 8 + (uint32_t)steps - 9;
}

/* ---- Idle blocks ----------------------------------------------------------------------------- */

static void push(struct rc_py_block *block) {
  block->above = NULL;
  block->below = pool.top[block->class];
  if (block->below) block->below->above = block;
  pool.top[block->class] = block;
  block->newer = NULL;
  block->older = pool.newest;
  if (block->older) block->older->newer = block;
  pool.newest = block;
  if (!pool.oldest) pool.oldest = block;
  pool.idle += block->bytes;
}

static void take_out(struct rc_py_block *block) {
  *(block->above ? &block->above->below : &pool.top[block->class]) = block->below;
  if (block->below) block->below->above = block->above;
  *(block->newer ? &block->newer->older : &pool.newest) = block->older;
  *(block->older ? &block->older->newer : &pool.oldest) = block->newer;
  pool.idle -= block->bytes;
}

/* Takes out the oldest until no more than the limit is left; a chain by `newer`, to be unmapped
 * without the mutex. */
static struct rc_py_block *evict(void) {
  struct rc_py_block *chain = NULL;
  while (pool.idle > pool.limit) {
    struct rc_py_block *block = pool.oldest;
    take_out(block);
    block->newer = chain;
    chain = block;
  }
  return chain;
}

static void unmap_all(struct rc_py_block *chain) {
  while (chain) {
    struct rc_py_block *next = chain->newer;
    unmap(chain);
    chain = next;
  }
}

struct rc_py_block *rc_py_block_take(uint64_t bytes) {
  if (bytes < RC_PY_RECYCLE_LEAST || bytes > PTRDIFF_MAX / 2) return NULL;
  size_t rounded;
  uint32_t class = class_of(bytes, &rounded);
  lock();
  bool wanted = rounded <= pool.limit;
  struct rc_py_block *block = wanted ? pool.top[class] : NULL;
  if (block) {
    take_out(block);
    pool.lent += block->bytes;
    pool.reused++;
  }
  unlock();
  if (block || !wanted) return block;
  block = map(rounded, class);
  if (!block) return NULL;
  lock();
  pool.lent += block->bytes;
  pool.fresh++;
  unlock();
  return block;
}

void *rc_py_block_data(const struct rc_py_block *block) { return block->data; }

void rc_py_block_give(void *given) {
  struct rc_py_block *block = given;
  lock();
  pool.lent -= block->bytes;
  push(block);
  struct rc_py_block *chain = evict();
  unlock();
  unmap_all(chain);
}

static void set_limit(uint64_t limit) {
  lock();
  pool.limit = limit;
  struct rc_py_block *chain = evict();
  unlock();
  unmap_all(chain);
}

/* ---- Memory: the base of a NumPy array over memory of ours ----------------------------------- */

struct memory {
  PyObject_HEAD struct rc_py_buffer buffer;
};

PyObject *rc_py_memory_new(struct rc_py_state *state, struct rc_py_buffer buffer) {
  struct memory *self = (struct memory *)state->memory_type->tp_alloc(state->memory_type, 0);
  if (self) self->buffer = buffer;
  else buffer.give(buffer.owner);
  return (PyObject *)self;
}

static void memory_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  const struct rc_py_buffer *buffer = &((struct memory *)object)->buffer;
  buffer->give(buffer->owner);
  type->tp_free(object);
  Py_DECREF(type);
}

static int memory_get_buffer(PyObject *object, Py_buffer *view, int flags) {
  const struct rc_py_buffer *buffer = &((struct memory *)object)->buffer;
  return PyBuffer_FillInfo(view, object, buffer->data, (Py_ssize_t)buffer->bytes,
                           buffer->is_read_only, flags);
}

static Py_ssize_t memory_length(PyObject *object) {
  return (Py_ssize_t)((struct memory *)object)->buffer.bytes;
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, (void *)"The memory of a received array, as long as the array lives."},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_get_buffer},
    {Py_sq_length, memory_length},
    {0, NULL},
};
PyType_Spec rc_py_memory_spec = {"ringcast._ringcast._Memory", sizeof(struct memory), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 memory_slots};

PyObject *rc_py_memory_take(struct rc_py_state *state, uint64_t bytes, void **out) {
  struct rc_py_block *block = rc_py_block_take(bytes);
  if (!block) return NULL;
  *out = block->data;
  PyObject *memory = rc_py_memory_new(
      state, (struct rc_py_buffer){
                 .data = block->data, .bytes = bytes, .give = rc_py_block_give, .owner = block});
  if (!memory) PyErr_Clear();
  return memory;
}

/* ---- The module's functions ------------------------------------------------------------------ */

/* For tests: (limit, idle, lent, reused, fresh); lent: bytes of live arrays. An argument sets the
 * limit; 0: each array has fresh memory, whose bounds a sanitizer then knows. */
PyObject *rc_py_recycling(PyObject *Py_UNUSED(module), PyObject *args) {
  long long limit = -1;
  if (!PyArg_ParseTuple(args, "|L:_recycling", &limit)) return NULL;
  if (limit >= 0) set_limit((uint64_t)limit);
  lock();
  unsigned long long now = pool.limit, idle = pool.idle, lent = pool.lent, reused = pool.reused,
                     fresh = pool.fresh;
  unlock();
  return Py_BuildValue("KKKKK", now, idle, lent, reused, fresh);
}

bool rc_py_recycle_init(void) {
  static bool is_ready; /* guarded by the GIL */
  if (!is_ready && pthread_atfork(lock, unlock, unlock) != 0) {
    PyErr_NoMemory();
    return false;
  }
  is_ready = true;
  return true;
}
