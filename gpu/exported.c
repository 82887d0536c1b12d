/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's life: made with its semaphores, by the caller or by the worker; told to the ring's readers; left; freed.
 *
 * To free memory that another process has open is undefined (CUDA's manual, cuIpcOpenMemHandle). So a pool that the
 * writer has left stays allocated until each importer's place is free, or the importer's process has ended. The process
 * looks for that when a pool is made or left, when a reader of its own closes, and when a writer looks for slots that
 * are done. The end of the process frees the rest.
 *
 * A reader in the same process finds the memory in the list of pools, because CUDA can't open a handle there.
 */
#include "gpu/exported.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "gpu/point.h"
#include "shm/error.h"

static struct {
  pthread_mutex_t mutex;
  struct rc_exported *first; /* all, in the making, in use or left */
  uint32_t epochs;
} pools = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Never 0. Each process counts from a random number: a frame that is passed on to a different ring fits no pool of that
 * ring. Under the mutex. */
static uint32_t next_epoch(void) {
  if (pools.epochs == 0) (void)!getrandom(&pools.epochs, sizeof pools.epochs, 0);
  if (++pools.epochs == 0) pools.epochs = 1;
  return pools.epochs;
}

static int write_pattern(const struct rc_exported *exported, uint64_t seed, int64_t patience_ns) {
  const struct rc_cuda *cuda = exported->device.cuda;
  uint64_t pattern[RC_GPU_PATTERN / sizeof(uint64_t)];
  rc_cu_stream stream;
  for (uint32_t i = 0; i < RC_GPU_PATTERN / sizeof(uint64_t); i++) pattern[i] = rc_gpu_pattern(seed, i);
  int failed = rc_stream_make(cuda, patience_ns, &stream);
  if (failed != 0) return failed;
  rc_cu_result result = cuda->copy_htod(exported->memory + exported->pool_bytes, pattern, sizeof pattern, stream);
  if (result == RC_CU_SUCCESS) result = cuda->stream_synchronize(stream);
  cuda->stream_destroy(stream);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "the first copy to the pool");
}

static int make_memory(struct rc_exported *exported, struct rc_gpu_identity *id, int64_t patience_ns) {
  const struct rc_cuda *cuda = exported->device.cuda;
  rc_cu_ptr memory;
  rc_cu_result result = cuda->mem_alloc(&memory, exported->pool_bytes + RC_GPU_GRANULE);
  if (result != RC_CU_SUCCESS)
    return rc_cuda_fail(result, "cuMemAlloc of a pool of %llu bytes (set RINGCAST_GPU_POOL_BYTES, or pool_bytes)",
                        (unsigned long long)exported->pool_bytes);
  exported->memory = memory;
  result = cuda->ipc_get_handle(&id->handle, memory);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "cuIpcGetMemHandle of the pool");
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

int rc_exported_new(int32_t ordinal, const ringcast_writer *writer, uint64_t pool_bytes, uint32_t slots,
                    struct rc_exported **out) {
  struct rc_exported *exported = calloc(1, sizeof *exported);
  if (!exported) return rc_fail(-ENOMEM, "out of memory");
  int failed = rc_device_open(ordinal, &exported->device); /* a hold of its own: the pool may outlive the writer */
  if (failed != 0) {
    free(exported);
    return failed;
  }
  exported->pool_bytes = pool_bytes;
  memcpy(exported->token, rc_segment_control(&writer->segment)->id.token, sizeof exported->token);
  exported->segment =
      (struct rc_gpu_segment){.memory = {.fd = -1}, .slots = slots, .importers = writer->ring.view.slots};
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
  if (failed == 0) failed = rc_gpu_segment_create(&exported->segment, exported->device.cuda, patience_ns);
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

rc_cu_ptr rc_exported_find(const uint64_t token[2], uint32_t epoch, const struct rc_device *device) {
  rc_cu_ptr found = 0;
  pthread_mutex_lock(&pools.mutex);
  for (struct rc_exported *exported = pools.first; exported && found == 0; exported = exported->next)
    if (exported->segment.epoch == epoch && memcmp(exported->token, token, sizeof exported->token) == 0 &&
        exported->device.device == device->device)
      found = exported->memory;
  pthread_mutex_unlock(&pools.mutex);
  return found;
}

/* ---- What is left ----------------------------------------------------------------------------------------------- */

/* Acquire: pairs with the store by which a importer leaves, after the importer's streams have done. */
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
    bool may_end = exported->is_left && !rc_load_relaxed(&exported->is_making) && !exported->is_kept;
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

/* In the child of a process that has used the driver, the pools are the parent's, and a thread of the parent may have
 * the mutex. */
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
  if (is_made) rc_store_release(&rc_gpu_control(&exported->segment)->closed, 1); /* -> take_place in opening.c */
  /* The fence: a reader stores its place, and looks at `closed` after that; one of the two sees the other's.
   * <-> take_place in opening.c */
  rc_fence_full();
  RC_POINT(POOL_LEFT);
  pthread_mutex_unlock(&pools.mutex);
  rc_exported_tidy(patience_ns);
}
