/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's life. It is made with its words, and told to the ring's readers last. To free memory that another process
 * has open is undefined (CUDA's manual, cuIpcOpenMemHandle). So a pool that its writer has left stays allocated until
 * each consumer's place is free, or its process has ended. The process looks for that whenever it makes or leaves a
 * pool, and when a reader of its own closes; the end of the process frees the rest.
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
#include <unistd.h>

#include "gpu/point.h"
#include "shm/environment.h"
#include "shm/error.h"

static struct {
  pthread_mutex_t mutex;
  struct rc_exported *first; /* all, in use or left */
  uint32_t epochs, forks;
} pools = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* From a number at random on, in each process: a frame that was passed on to another ring than its own is not to be
 * taken for one of a pool there. Never 0. */
static uint32_t next_epoch(void) {
  bool is_first = pools.epochs == 0 || pools.forks != rc_fork_count();
  if (is_first && getrandom(&pools.epochs, sizeof pools.epochs, 0) < 0) pools.epochs = (uint32_t)getpid();
  pools.forks = rc_fork_count();
  if (++pools.epochs == 0) pools.epochs = 1;
  return pools.epochs;
}

static int write_pattern(const struct rc_exported *exported, uint64_t seed) {
  const struct rc_cuda *cuda = exported->device.cuda;
  uint64_t pattern[RC_GPU_PATTERN / sizeof(uint64_t)];
  rc_cu_stream stream;
  for (uint32_t i = 0; i < RC_GPU_PATTERN / sizeof(uint64_t); i++) pattern[i] = rc_gpu_pattern(seed, i);
  int failed = rc_stream_make(cuda, rc_gpu_busy_ns, &stream);
  if (failed != 0) return failed;
  rc_cu_result result = cuda->copy_htod(exported->memory + exported->pool_bytes, pattern, sizeof pattern, stream);
  if (result == RC_CU_SUCCESS) result = cuda->stream_synchronize(stream);
  cuda->stream_destroy(stream);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "the first copy to the pool");
}

static int make_memory(struct rc_exported *exported, struct rc_gpu_identity *id) {
  const struct rc_cuda *cuda = exported->device.cuda;
  rc_cu_result result = cuda->mem_alloc(&exported->memory, exported->pool_bytes + RC_GPU_GRANULE);
  if (result != RC_CU_SUCCESS) {
    exported->memory = 0;
    return rc_cuda_fail(result,
                        "cuMemAlloc of a pool of %llu bytes (RINGCAST_GPU_POOL_BYTES, or options.pool_bytes, "
                        "asks for less)",
                        (unsigned long long)exported->pool_bytes);
  }
  result = cuda->ipc_get_handle(&id->handle, exported->memory);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "cuIpcGetMemHandle of the pool");
  return write_pattern(exported, id->seed);
}

/* Called with the context current. */
static void free_memory(struct rc_exported *exported) {
  const struct rc_cuda *cuda = exported->device.cuda;
  if (exported->memory) cuda->mem_free(exported->memory);
  rc_gpu_segment_destroy(&exported->segment, cuda);
}

static int fill_identity(struct rc_exported *exported, const ringcast_writer *writer, struct rc_gpu_place *place) {
  struct rc_gpu_control *control = rc_gpu_control(&exported->segment);
  struct rc_gpu_identity *id = &control->id;
  struct stat file;
  if (fstat(exported->segment.memory.fd, &file) != 0)
    return rc_fail(-errno, "can't look at the device segment: %s", strerror(errno));
  if (getrandom(&id->seed, sizeof id->seed, 0) != sizeof id->seed)
    return rc_fail(-errno, "can't get random bytes: %s", strerror(errno));
  int failed = make_memory(exported, id);
  if (failed != 0) return failed;
  memcpy(exported->token, rc_segment_control(&writer->segment)->id.token, sizeof exported->token);
  id->magic = RC_GPU_MAGIC;
  id->layout = RC_GPU_LAYOUT;
  memcpy(id->token, exported->token, sizeof id->token);
  id->epoch = exported->segment.epoch;
  id->slots = exported->segment.slots;
  id->consumers = exported->segment.consumers;
  id->pool_bytes = exported->pool_bytes;
  memcpy(id->uuid, exported->device.uuid, sizeof id->uuid);
  rc_store_release(&id->ready, RC_GPU_READY); /* pairs with the load in check_identity */
  *place = (struct rc_gpu_place){.epoch = exported->segment.epoch,
                                 .fd = exported->segment.memory.fd,
                                 .inode = file.st_ino,
                                 .bytes = exported->segment.memory.bytes,
                                 .position = writer->ring.tail};
  return 0;
}

int rc_exported_make(struct rc_device *device, ringcast_writer *writer, uint64_t pool_bytes, uint32_t slots,
                     struct rc_exported **out) {
  struct rc_gpu_place place = {0};
  if (rc_feature_disabled("cuda_pool"))
    return rc_fail_as(-ENOTSUP, "there is no device pool: RINGCAST_DISABLE says cuda_pool");
  struct rc_exported *exported = calloc(1, sizeof *exported);
  if (!exported) return rc_fail(-ENOMEM, "out of memory");
  exported->device = *device;
  exported->pool_bytes = pool_bytes;
  exported->forks = rc_fork_count();
  int failed = rc_gpu_segment_create(device, slots, writer->ring.view.slots, &exported->segment);
  if (failed != 0) {
    if (failed == -ETIMEDOUT) device->context = NULL; /* never released */
    free(exported);
    return failed;
  }
  pthread_mutex_lock(&pools.mutex);
  exported->segment.epoch = next_epoch();
  pthread_mutex_unlock(&pools.mutex);
  failed = fill_identity(exported, writer, &place);
  if (failed != 0) {
    free_memory(exported);
    free(exported);
    return failed;
  }
  pthread_mutex_lock(&pools.mutex);
  exported->next = pools.first;
  pools.first = exported;
  pthread_mutex_unlock(&pools.mutex);
  RC_POINT(POOL_MADE);
  rc_gpu_place_write(&writer->ring.view.control->device, &place);
  RC_POINT(POOL_TOLD);
  device->context = NULL; /* the exported has it */
  *out = exported;
  return 0;
}

/* Under the mutex. */
static struct rc_exported *find(const uint64_t token[2], uint32_t epoch, const struct rc_device *device) {
  for (struct rc_exported *exported = pools.first; exported; exported = exported->next)
    if (exported->segment.epoch == epoch && exported->forks == rc_fork_count() &&
        memcmp(exported->token, token, sizeof exported->token) == 0 && exported->device.device == device->device)
      return exported;
  return NULL;
}

rc_cu_ptr rc_exported_find(const uint64_t token[2], uint32_t epoch, const struct rc_device *device) {
  pthread_mutex_lock(&pools.mutex);
  const struct rc_exported *exported = find(token, epoch, device);
  rc_cu_ptr found = exported ? exported->memory : 0;
  pthread_mutex_unlock(&pools.mutex);
  return found;
}

/* ---- What is left ----------------------------------------------------------------------------------------------- */

/* Acquire: pairs with the store by which a consumer leaves, after its streams have done. */
static bool has_consumers(const struct rc_exported *exported) {
  for (uint32_t i = 0; i < exported->segment.consumers; i++) {
    uint64_t owner = rc_load_acquire(&rc_gpu_control(&exported->segment)->consumers[i].owner);
    if (owner != 0 && !rc_owner_is_dead(owner)) return true;
  }
  return false;
}

/* By the worker: to free device memory may wait for all that the context's streams do. */
static bool free_left(struct rc_job *job) {
  struct rc_exported *exported = RC_CONTAINER_OF(job, struct rc_exported, job);
  struct rc_cuda_entry entry;
  if (rc_cuda_enter(exported->device.context, &entry) == RC_CU_SUCCESS) {
    free_memory(exported);
    rc_cuda_leave(&entry);
  } else { /* the pool has gone with the context, and so has what was registered in it */
    rc_memory_destroy(&exported->segment.memory);
  }
  rc_device_close(&exported->device);
  return true;
}

static void free_job(struct rc_job *job) { free(RC_CONTAINER_OF(job, struct rc_exported, job)); }

/* Takes the pools out of the list that no reader has open any more. */
static struct rc_exported *unlink_ended(void) {
  struct rc_exported *ended = NULL;
  pthread_mutex_lock(&pools.mutex);
  for (struct rc_exported **link = &pools.first, *exported; (exported = *link) != NULL;) {
    bool is_ours = exported->forks == rc_fork_count(); /* else the parent's; its memory goes with this process */
    if (!is_ours || !exported->is_left || exported->is_kept || has_consumers(exported)) {
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

/* In the child of a process that has used the driver, a thread that is not there may have the mutex. */
void rc_exported_tidy(int64_t patience_ns) {
  if (!rc_cuda_is_open()) return;
  for (struct rc_exported *exported = unlink_ended(), *next; exported; exported = next) {
    next = exported->next;
    exported->job = (struct rc_job){.run = free_left, .end = free_job};
    rc_worker_do(&exported->job, patience_ns);
  }
}

void rc_exported_leave(struct rc_exported *exported) {
  struct rc_gpu_control *control = rc_gpu_control(&exported->segment);
  pthread_mutex_lock(&pools.mutex);
  exported->is_left = true;
  rc_store_release(&control->closed, 1); /* for consumers to see that no more will come */
  /* The fence: a reader stores its place, and looks at `closed` after it; one of the two sees the other's.
   * <-> take_place in opening.c */
  rc_fence_full();
  RC_POINT(POOL_LEFT);
  pthread_mutex_unlock(&pools.mutex);
  rc_exported_tidy(rc_gpu_close_ns);
}
