/* SPDX-License-Identifier: Apache-2.0 */
/* The device pool: its segment, its slots, and its life from the first allocation to the last
 * reader's close. */
#include "gpu/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "shm/options.h"
#include "shm/error.h"
#include "shm/segment.h"

/* ---- The segment ----------------------------------------------------------------------------- */

int64_t rc_gpu_busy_ns = (int64_t)10 * 1000 * 1000 * 1000;

int rc_gpu_segment_register(struct rc_gpu_segment *segment, const struct rc_cuda *cuda) {
  const unsigned flags = RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP;
  if (rc_feature_disabled("cuda_register"))
    return rc_fail_as(
        -ENOTSUP,
        "host memory is not registered with the driver: RINGCAST_DISABLE says cuda_register");
  rc_cu_result result = cuda->host_register(segment->memory.base, segment->memory.bytes, flags);
  if (result != RC_CU_SUCCESS) return rc_cuda_code(result, "cuMemHostRegister of the words");
  result = cuda->host_get_device_pointer(&segment->address, segment->memory.base, 0);
  if (result == RC_CU_SUCCESS && segment->address != 0) return 0;
  cuda->host_unregister(segment->memory.base);
  segment->address = 0;
  return rc_cuda_code(result == RC_CU_SUCCESS ? RC_CU_NOT_SUPPORTED : result,
                      "cuMemHostGetDevicePointer");
}

void rc_gpu_segment_destroy(struct rc_gpu_segment *segment, const struct rc_cuda *cuda) {
  if (segment->address != 0) cuda->host_unregister(segment->memory.base);
  segment->address = 0;
  rc_memory_destroy(&segment->memory);
}

int rc_gpu_segment_try(const struct rc_gpu_segment *segment, const struct rc_cuda *cuda,
                       uint32_t importer, int64_t patience_ns) {
  uint64_t at = rc_gpu_try_at(segment->slots, segment->importers, importer);
  struct rc_semaphore *words = rc_gpu_semaphore(segment, at);
  for (int i = 0; i < 2; i++) rc_semaphore_store(&words[i], 0); /* of an earlier try */
  return rc_semaphores_try(cuda, words, segment->address + at, patience_ns);
}

/* Makes and registers a segment, whose slots, importers and epoch are set, and tries its words; the
 * caller fills in the identity, and destroys the segment after a failure too. The context is
 * current. -ENOTSUP: the driver can't register memory, or wait for words of it. -EAGAIN: the device
 * is busy. -ETIMEDOUT: a stream hangs in such a wait: the memory must stay, and so must the
 * context. */
static int create_segment(struct rc_gpu_segment *segment, const struct rc_cuda *cuda,
                          int64_t patience_ns) {
  uint64_t bytes = rc_gpu_segment_bytes(segment->slots, segment->importers);
  int failed = rc_memory_create_small("device", bytes, &segment->memory);
  if (failed == 0) failed = rc_gpu_segment_register(segment, cuda);
  if (failed == 0) failed = rc_gpu_segment_try(segment, cuda, 0, patience_ns); /* no reader has 0 */
  return failed;
}

/* ---- The place ------------------------------------------------------------------------------- */

void rc_gpu_place_write(struct rc_device_place *shared, const struct rc_gpu_place *place) {
  rc_store_relaxed(&shared->epoch, 0); /* relaxed: the fence */
  rc_fence_release(); /* a reader that sees a store below sees the 0 by its second look */
  rc_store_relaxed(&shared->fd, place->fd);
  rc_store_relaxed(&shared->inode, place->inode);
  rc_store_relaxed(&shared->bytes, place->bytes);
  rc_store_relaxed(&shared->position, place->position);
  rc_store_release(&shared->epoch, place->epoch); /* pairs with the first look */
}

int rc_gpu_place_read(struct rc_device_place *shared, struct rc_gpu_place *out) {
  uint32_t epoch = rc_load_acquire(&shared->epoch); /* pairs with the last store */
  /* relaxed: the fence. */
  struct rc_gpu_place place = {.epoch = epoch,
                               .fd = rc_load_relaxed(&shared->fd),
                               .inode = rc_load_relaxed(&shared->inode),
                               .bytes = rc_load_relaxed(&shared->bytes),
                               .position = rc_load_relaxed(&shared->position)};
  rc_fence_acquire();
  if (epoch == 0 || rc_load_relaxed(&shared->epoch) != epoch) return -ENOENT;
  *out = place;
  return 0;
}

/* ---- Attaching ------------------------------------------------------------------------------- */

static int check_identity(const struct rc_gpu_place *place, const uint64_t token[2],
                          uint32_t importers, struct rc_gpu_segment *segment,
                          struct rc_gpu_identity *id) {
  struct rc_gpu_identity *shared = &rc_gpu_control(segment)->id;
  uint32_t ready = rc_load_acquire(&shared->ready); /* pairs with the writer's last store */
  memcpy(id, shared, sizeof *id); /* a peer may store to the page after the checks */
  rc_fence_light();
  if (id->magic != RC_GPU_MAGIC || ready != RC_GPU_READY || id->epoch != place->epoch ||
      memcmp(id->token, token, sizeof id->token) != 0)
    return rc_fail_as(-ENOENT, "the writer's device pool is gone: it has closed it since");
  if (id->layout != RC_GPU_LAYOUT)
    return rc_fail(
        -EPROTO,
        "the writer's ringcast lays device memory out in another way: install the same version "
        "(here %s) on both sides",
        RINGCAST_VERSION);
  bool fits = id->slots >= 1 && id->slots <= RC_GPU_MAX_SLOTS && id->importers == importers &&
              id->pool_bytes >= RC_GPU_GRANULE && id->pool_bytes <= RC_GPU_MAX_POOL &&
              id->pool_bytes % RC_GPU_GRANULE == 0 &&
              rc_gpu_segment_bytes(id->slots, importers) <= segment->memory.bytes;
  if (!fits)
    return rc_fail_as(-EPROTO, "the writer's device segment is damaged: its sizes can't be right");
  segment->slots = id->slots;
  segment->importers = importers;
  segment->epoch = id->epoch;
  return 0;
}

int rc_gpu_segment_attach(const struct rc_process *writer, const struct rc_gpu_place *place,
                          const uint64_t token[2], uint32_t importers, struct rc_gpu_segment *out,
                          struct rc_gpu_identity *id) {
  struct rc_gpu_segment segment = {.memory = {.fd = -1}};
  if (place->bytes < sizeof(struct rc_gpu_control))
    return rc_fail_as(-EPROTO,
                      "the ring's control page is damaged: its device segment can't be so small");
  int failed =
      rc_segment_attach_more(writer, place->fd, place->inode, place->bytes, &segment.memory);
  if (failed != 0) return failed;
  failed = check_identity(place, token, importers, &segment, id);
  if (failed != 0) rc_memory_destroy(&segment.memory);
  else *out = segment;
  return failed;
}

/* ---- Slots ----------------------------------------------------------------------------------- */

/*
 * The pool's extents: first fit among the gaps between the used extents, which are kept in order.
 * The extents are few (one for each frame under way), of any size, and become free in any order, as
 * a reader may hold a frame for long.
 */

int rc_pool_init(struct rc_pool *pool, uint64_t bytes, uint32_t slots) {
  *pool = (struct rc_pool){.bytes = bytes, .slot_count = slots};
  pool->slots = calloc(slots, sizeof *pool->slots + sizeof *pool->order);
  if (!pool->slots) return -ENOMEM;
  pool->order = (uint32_t *)(pool->slots + slots);
  return 0;
}

void rc_pool_free(struct rc_pool *pool) {
  free(pool->slots);
  *pool = (struct rc_pool){.slots = NULL};
}

static uint64_t end_of(const struct rc_pool_slot *slot) { return slot->base + slot->bytes; }

/* Empty extents have no place, and are last in the order. */
static bool find_gap(const struct rc_pool *pool, uint64_t bytes, uint32_t *rank, uint64_t *base) {
  uint64_t at = 0;
  *rank = pool->used;
  *base = 0;
  if (bytes == 0) return true;
  for (uint32_t i = 0; i < pool->used; i++) {
    const struct rc_pool_slot *next = &pool->slots[pool->order[i]];
    if (next->bytes == 0 || next->base - at >= bytes) {
      if (next->bytes == 0 && pool->bytes - at < bytes) return false;
      *rank = i;
      *base = at;
      return true;
    }
    at = end_of(next);
  }
  *base = at;
  return pool->bytes - at >= bytes;
}

int rc_pool_take(struct rc_pool *pool, uint64_t bytes) {
  uint32_t number = 0, rank;
  uint64_t base;
  if (bytes > pool->bytes) return -EAGAIN;
  bytes = (bytes + RC_GPU_ALIGN - 1) & ~(uint64_t)(RC_GPU_ALIGN - 1);
  while (number < pool->slot_count && pool->slots[number].state != RC_POOL_FREE) number++;
  if (number == pool->slot_count || !find_gap(pool, bytes, &rank, &base)) return -EAGAIN;
  memmove(&pool->order[rank + 1], &pool->order[rank], (pool->used - rank) * sizeof *pool->order);
  pool->order[rank] = number;
  pool->used++;
  pool->used_bytes += bytes;
  struct rc_pool_slot *slot = &pool->slots[number];
  *slot = (struct rc_pool_slot){
      .state = RC_POOL_LEASED, .generation = slot->generation + 1, .base = base, .bytes = bytes};
  assert(rc_pool_is_valid(pool));
  return (int)number;
}

static void detach_all(struct rc_pool *pool, uint32_t frame) {
  for (uint32_t i = 0; i < pool->slot_count && pool->slots[frame].attached > 0; i++) {
    if (pool->slots[i].frame != frame + 1) continue;
    pool->slots[i].frame = 0;
    pool->slots[frame].attached--;
  }
}

void rc_pool_give(struct rc_pool *pool, uint32_t number) {
  uint32_t rank = 0;
  detach_all(pool, number);
  while (pool->order[rank] != number) rank++;
  pool->used--;
  pool->used_bytes -= pool->slots[number].bytes;
  memmove(&pool->order[rank], &pool->order[rank + 1], (pool->used - rank) * sizeof *pool->order);
  pool->slots[number].state = RC_POOL_FREE;
  assert(rc_pool_is_valid(pool));
}

int rc_pool_find(const struct rc_pool *pool, uint64_t at, uint64_t bytes) {
  for (uint32_t i = 0; i < pool->slot_count; i++) {
    const struct rc_pool_slot *slot = &pool->slots[i];
    if (slot->state != RC_POOL_LEASED || at < slot->base || at - slot->base > slot->bytes) continue;
    if (bytes <= slot->bytes - (at - slot->base)) return (int)i;
  }
  return -ENOENT;
}

bool rc_pool_attach(struct rc_pool *pool, uint32_t number, uint32_t frame) {
  struct rc_pool_slot *slot = &pool->slots[number];
  if (slot->frame == 0) {
    slot->frame = frame + 1;
    pool->slots[frame].attached++;
  }
  return slot->frame == frame + 1;
}

bool rc_pool_is_valid(const struct rc_pool *pool) {
  uint64_t at = 0, bytes = 0;
  bool empty = false;
  for (uint32_t i = 0; i < pool->used; i++) {
    const struct rc_pool_slot *slot = &pool->slots[pool->order[i]];
    if (slot->state == RC_POOL_FREE || slot->base % RC_GPU_ALIGN != 0 ||
        slot->bytes % RC_GPU_ALIGN != 0)
      return false;
    if (slot->bytes == 0) {
      empty = true;
      continue;
    }
    if (empty || slot->base < at || slot->bytes > pool->bytes - slot->base) return false;
    at = end_of(slot);
    bytes += slot->bytes;
  }
  return bytes == pool->used_bytes;
}

/* ---- Pools of this process ------------------------------------------------------------------- */

/*
 * A pool's life: made with its semaphores, by the caller or by the worker; told to the ring's
 * readers; left; freed.
 *
 * To free memory that another process has open is undefined (CUDA's manual, cuIpcOpenMemHandle). So
 * a pool that the writer has left stays allocated until each importer's place is free, or the
 * importer's process has ended. The process looks for that when a pool is made or left, when a
 * reader of its own closes, and when a writer looks for slots that are done. The end of the process
 * frees the rest.
 *
 * A reader in the same process finds the memory in the list of pools, because CUDA can't open a
 * handle there.
 */

static struct {
  pthread_mutex_t mutex;
  struct rc_exported *first; /* all, in the making, in use or left */
  uint32_t epochs;
} pools = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Never 0. Each process counts from a random number: a frame that is passed on to a different ring
 * fits no pool of that ring. Under the mutex. */
static uint32_t next_epoch(void) {
  if (pools.epochs == 0) (void)!getrandom(&pools.epochs, sizeof pools.epochs, 0);
  if (++pools.epochs == 0) pools.epochs = 1;
  return pools.epochs;
}

static int write_pattern(const struct rc_exported *exported, uint64_t seed, int64_t patience_ns) {
  const struct rc_cuda *cuda = exported->device.cuda;
  uint64_t pattern[RC_GPU_PATTERN / sizeof(uint64_t)];
  rc_cu_stream stream;
  for (uint32_t i = 0; i < RC_GPU_PATTERN / sizeof(uint64_t); i++)
    pattern[i] = rc_gpu_pattern(seed, i);
  int failed = rc_stream_make(cuda, patience_ns, &stream);
  if (failed != 0) return failed;
  rc_cu_result result =
      cuda->copy_htod(exported->memory + exported->pool_bytes, pattern, sizeof pattern, stream);
  if (result == RC_CU_SUCCESS) result = cuda->stream_synchronize(stream);
  cuda->stream_destroy(stream);
  return rc_cuda_code(result, "the first copy to the pool");
}

static int make_memory(struct rc_exported *exported, struct rc_gpu_identity *id,
                       int64_t patience_ns) {
  const struct rc_cuda *cuda = exported->device.cuda;
  rc_cu_ptr memory;
  rc_cu_result result = cuda->mem_alloc(&memory, exported->pool_bytes + RC_GPU_GRANULE);
  if (result != RC_CU_SUCCESS)
    return rc_cuda_code(
        result, "cuMemAlloc of a pool of %llu bytes (set RINGCAST_GPU_POOL_BYTES, or pool_bytes)",
        (unsigned long long)exported->pool_bytes);
  exported->memory = memory;
  result = cuda->ipc_get_handle(&id->handle, memory);
  if (result != RC_CU_SUCCESS) return rc_cuda_code(result, "cuIpcGetMemHandle of the pool");
  return write_pattern(exported, id->seed, patience_ns);
}

static int fill_identity(struct rc_exported *exported, int64_t patience_ns) {
  struct rc_gpu_identity *id = &rc_gpu_control(&exported->segment)->id;
  struct stat file;
  if (fstat(exported->segment.memory.fd, &file) != 0)
    return rc_fail(-errno, "can't look at the device segment: %s", strerror(errno));
  id->seed = exported->token[0] + exported->segment.epoch; /* a later pool's differs */
  int failed = make_memory(exported, id, patience_ns);
  if (failed != 0) return failed;
  id->magic = RC_GPU_MAGIC;
  id->layout = RC_GPU_LAYOUT;
  memcpy(id->token, exported->token, sizeof id->token);
  id->epoch = exported->segment.epoch;
  id->slots = exported->segment.slots;
  id->importers = exported->segment.importers;
  id->pool_bytes = exported->pool_bytes;
  memcpy(id->uuid, exported->device.uuid, sizeof id->uuid);
  rc_store_release(&id->ready, RC_GPU_READY); /* pairs with the load in check_identity */
  exported->place = (struct rc_gpu_place){.epoch = exported->segment.epoch,
                                          .fd = exported->segment.memory.fd,
                                          .inode = file.st_ino,
                                          .bytes = exported->segment.memory.bytes};
  return 0;
}

int rc_exported_new(int32_t ordinal, const ringcast_writer *writer, uint64_t pool_bytes,
                    uint32_t slots, struct rc_exported **out) {
  struct rc_exported *exported = calloc(1, sizeof *exported);
  if (!exported) return rc_fail(-ENOMEM, "out of memory");
  /* A hold of its own: the pool may outlive the writer. */
  int failed = rc_device_open(ordinal, &exported->device);
  if (failed != 0) {
    free(exported);
    return failed;
  }
  exported->pool_bytes = pool_bytes;
  memcpy(exported->token, rc_segment_control(&writer->segment)->id.token, sizeof exported->token);
  exported->segment = (struct rc_gpu_segment){
      .memory = {.fd = -1}, .slots = slots, .importers = writer->ring.view.slots};
  pthread_mutex_lock(&pools.mutex);
  exported->segment.epoch = next_epoch();
  exported->next = pools.first;
  pools.first = exported;
  pthread_mutex_unlock(&pools.mutex);
  *out = exported;
  return 0;
}

void rc_exported_make(struct rc_exported *exported, int64_t patience_ns) {
  struct rc_cuda_entry entry;
  int failed = rc_device_enter(&exported->device, true, &entry);
  if (failed == 0) failed = create_segment(&exported->segment, exported->device.cuda, patience_ns);
  if (failed == 0) failed = fill_identity(exported, patience_ns);
  rc_cuda_leave(&entry);
  exported->failed = failed;
  exported->is_kept = failed == -ETIMEDOUT; /* a stream hangs in the context, which must stay */
  if (failed != 0) strncpy(exported->why, rc_error_text(), sizeof exported->why - 1);
}

static bool make_job(struct rc_job *job) {
  rc_exported_make(RC_CONTAINER_OF(job, struct rc_exported, job), rc_semaphore_patience_ns);
  return true;
}

/* Behind the store the pool may be freed, once the mutex is. */
static void end_making(struct rc_job *job) {
  struct rc_exported *exported = RC_CONTAINER_OF(job, struct rc_exported, job);
  pthread_mutex_lock(&pools.mutex);
  bool is_left = exported->is_left;
  rc_store_release(&exported->is_making, 0); /* -> the writer's next lease */
  pthread_mutex_unlock(&pools.mutex);
  if (is_left) rc_exported_tidy(0);
}

void rc_exported_make_soon(struct rc_exported *exported) {
  rc_store_relaxed(&exported->is_making, 1); /* relaxed: the worker learns of it by the job */
  exported->job = (struct rc_job){.run = make_job, .end = end_making};
  rc_worker_do(&exported->job, 0);
}

rc_cu_ptr rc_exported_find(const uint64_t token[2], uint32_t epoch,
                           const struct rc_device *device) {
  rc_cu_ptr found = 0;
  pthread_mutex_lock(&pools.mutex);
  for (struct rc_exported *exported = pools.first; exported && found == 0;
       exported = exported->next)
    if (exported->segment.epoch == epoch &&
        memcmp(exported->token, token, sizeof exported->token) == 0 &&
        exported->device.device == device->device)
      found = exported->memory;
  pthread_mutex_unlock(&pools.mutex);
  return found;
}

/* ---- What is left ---------------------------------------------------------------------------- */

/* Acquire: pairs with the store by which a importer leaves, after the importer's streams have
 * done. */
static bool has_importers(const struct rc_exported *exported) {
  if (!exported->segment.memory.base) return false;
  for (uint32_t i = 0; i < exported->segment.importers; i++) {
    uint64_t owner = rc_load_acquire(&rc_gpu_control(&exported->segment)->importers[i].owner);
    if (owner != 0 && !rc_owner_is_dead(owner)) return true;
  }
  return false;
}

/* By the worker: to free device memory may wait for all that the context's streams do. */
static bool free_job(struct rc_job *job) {
  struct rc_exported *exported = RC_CONTAINER_OF(job, struct rc_exported, job);
  struct rc_cuda_entry entry;
  if (rc_cuda_enter(exported->device.context, &entry) == RC_CU_SUCCESS) {
    if (exported->memory) exported->device.cuda->mem_free(exported->memory);
    rc_gpu_segment_destroy(&exported->segment, exported->device.cuda);
    rc_cuda_leave(&entry);
  } else { /* the pool has gone with the context, and so has what was registered in it */
    rc_memory_destroy(&exported->segment.memory);
  }
  rc_device_close(&exported->device);
  return true;
}

static void end_freeing(struct rc_job *job) { free(RC_CONTAINER_OF(job, struct rc_exported, job)); }

/* Takes the pools out of the list that no reader has open any more. */
static struct rc_exported *unlink_ended(void) {
  struct rc_exported *ended = NULL;
  pthread_mutex_lock(&pools.mutex);
  for (struct rc_exported **link = &pools.first, *exported; (exported = *link) != NULL;) {
    bool may_end =
        exported->is_left && !rc_load_relaxed(&exported->is_making) && !exported->is_kept;
    if (!may_end || has_importers(exported)) {
      link = &exported->next;
      continue;
    }
    *link = exported->next;
    exported->next = ended;
    ended = exported;
  }
  pthread_mutex_unlock(&pools.mutex);
  return ended;
}

/* In the child of a process that has used the driver, the pools are the parent's, and a thread of
 * the parent may have the mutex. */
void rc_exported_tidy(int64_t patience_ns) {
  if (!rc_cuda_is_open()) return;
  for (struct rc_exported *exported = unlink_ended(), *next; exported; exported = next) {
    next = exported->next;
    exported->job = (struct rc_job){.run = free_job, .end = end_freeing};
    rc_worker_do(&exported->job, patience_ns);
  }
}

void rc_exported_leave(struct rc_exported *exported, bool is_kept, int64_t patience_ns) {
  pthread_mutex_lock(&pools.mutex);
  exported->is_left = true;
  exported->is_kept |= is_kept;
  bool is_made = !rc_load_relaxed(&exported->is_making) && exported->segment.memory.base;
  if (is_made) /* -> take_place in import.c */
    rc_store_release(&rc_gpu_control(&exported->segment)->closed, 1);
  /* The fence: a reader stores its place, and looks at `closed` after that; one of the two sees the
   * other's. <-> take_place in import.c */
  rc_fence_full();
  RC_POINT(POOL_LEFT);
  pthread_mutex_unlock(&pools.mutex);
  rc_exported_tidy(patience_ns);
}
