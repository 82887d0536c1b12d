/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's life. It is made with its words, and told to the ring's readers last. To free memory that another process
 * has open is undefined (CUDA's manual, cuIpcOpenMemHandle), so what its writer is done with becomes an estate: it is
 * freed once no consumer's place is taken any more, or by those alone whose process has ended. That is looked for
 * whenever a pool is made or left, as nobody is to wait for it; the end of the process frees the rest.
 *
 * The list of them is also where a reader in the same process finds the memory, which CUDA can't open there by its
 * handle.
 */
#include "gpu/writer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring/point.h"
#include "shm/environment.h"
#include "shm/error.h"

static struct {
  pthread_mutex_t mutex;
  struct rc_estate *first; /* all, in use or left */
  uint32_t epochs, forks;
} estates = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* From a number at random on, in each process: a frame that was passed on to another ring than its own is not to be
 * taken for one of a pool there. Never 0. */
static uint32_t next_epoch(void) {
  bool is_first = estates.epochs == 0 || estates.forks != rc_fork_count();
  if (is_first && getrandom(&estates.epochs, sizeof estates.epochs, 0) < 0) estates.epochs = (uint32_t)getpid();
  estates.forks = rc_fork_count();
  if (++estates.epochs == 0) estates.epochs = 1;
  return estates.epochs;
}

static int write_pattern(const struct rc_estate *estate, uint64_t seed) {
  const struct rc_cuda *cuda = estate->device.cuda;
  uint64_t pattern[RC_GPU_PATTERN / sizeof(uint64_t)];
  rc_cu_stream stream;
  for (uint32_t i = 0; i < RC_GPU_PATTERN / sizeof(uint64_t); i++) pattern[i] = rc_gpu_pattern(seed, i);
  int failed = rc_stream_make(cuda, rc_gpu_busy_ns, &stream);
  if (failed != 0) return failed;
  rc_cu_result result = cuda->copy_htod(estate->memory + estate->pool_bytes, pattern, sizeof pattern, stream);
  if (result == RC_CU_SUCCESS) result = cuda->stream_synchronize(stream);
  cuda->stream_destroy(stream);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "the first copy to the pool");
}

static int make_memory(struct rc_estate *estate, struct rc_gpu_identity *id) {
  const struct rc_cuda *cuda = estate->device.cuda;
  rc_cu_result result = cuda->mem_alloc(&estate->memory, estate->pool_bytes + RC_GPU_GRANULE);
  if (result != RC_CU_SUCCESS) {
    estate->memory = 0;
    return rc_cuda_fail(result,
                        "cuMemAlloc of a pool of %llu bytes (RINGCAST_GPU_POOL_BYTES, or options.pool_bytes, "
                        "asks for less)",
                        (unsigned long long)estate->pool_bytes);
  }
  result = cuda->ipc_get_handle(&id->handle, estate->memory);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "cuIpcGetMemHandle of the pool");
  return write_pattern(estate, id->seed);
}

/* Called with the context current. */
static void free_estate(struct rc_estate *estate) {
  const struct rc_cuda *cuda = estate->device.cuda;
  if (estate->memory && !estate->is_gone) cuda->mem_free(estate->memory);
  rc_gpu_segment_destroy(&estate->segment, cuda);
}

static int fill_identity(struct rc_estate *estate, const ringcast_writer *writer, struct rc_gpu_place *place) {
  struct rc_gpu_control *control = rc_gpu_control(&estate->segment);
  struct rc_gpu_identity *id = &control->id;
  struct stat file;
  if (fstat(estate->segment.memory.fd, &file) != 0)
    return rc_fail(-errno, "can't look at the device segment: %s", strerror(errno));
  if (getrandom(&id->seed, sizeof id->seed, 0) != sizeof id->seed)
    return rc_fail(-errno, "can't get random bytes: %s", strerror(errno));
  int failed = make_memory(estate, id);
  if (failed != 0) return failed;
  memcpy(estate->token, rc_segment_control(&writer->segment)->id.token, sizeof estate->token);
  id->magic = RC_GPU_MAGIC;
  id->layout = RC_GPU_LAYOUT;
  memcpy(id->token, estate->token, sizeof id->token);
  id->epoch = estate->segment.epoch;
  id->slots = estate->segment.slots;
  id->consumers = estate->segment.consumers;
  id->pool_bytes = estate->pool_bytes;
  memcpy(id->uuid, estate->device.uuid, sizeof id->uuid);
  rc_store_release(&id->ready, RC_GPU_READY); /* pairs with the load in check_identity */
  *place = (struct rc_gpu_place){.epoch = estate->segment.epoch,
                                 .fd = estate->segment.memory.fd,
                                 .inode = file.st_ino,
                                 .bytes = estate->segment.memory.bytes,
                                 .position = writer->ring.tail};
  return 0;
}

int rc_estate_make(struct rc_device *device, ringcast_writer *writer, uint64_t pool_bytes, uint32_t slots,
                   struct rc_estate **out) {
  struct rc_gpu_place place = {0};
  if (rc_feature_disabled("cuda_pool"))
    return rc_fail_as(-ENOTSUP, "there is no device pool: RINGCAST_DISABLE says cuda_pool");
  struct rc_estate *estate = calloc(1, sizeof *estate);
  if (!estate) return rc_fail(-ENOMEM, "out of memory");
  estate->device = *device;
  estate->pool_bytes = pool_bytes;
  estate->forks = rc_fork_count();
  int failed = rc_gpu_segment_create(device, slots, writer->ring.view.slots, &estate->segment);
  if (failed != 0) {
    if (failed == -ETIMEDOUT) device->context = NULL; /* never released */
    free(estate);
    return failed;
  }
  pthread_mutex_lock(&estates.mutex);
  estate->segment.epoch = next_epoch();
  pthread_mutex_unlock(&estates.mutex);
  failed = fill_identity(estate, writer, &place);
  if (failed != 0) {
    free_estate(estate);
    free(estate);
    return failed;
  }
  pthread_mutex_lock(&estates.mutex);
  estate->next = estates.first;
  estates.first = estate;
  pthread_mutex_unlock(&estates.mutex);
  RC_POINT(POOL_MADE);
  rc_gpu_place_write(&writer->ring.view.control->device, &place);
  RC_POINT(POOL_TOLD);
  device->context = NULL; /* the estate has it */
  *out = estate;
  return 0;
}

/* Under the mutex. */
static struct rc_estate *find(const uint64_t token[2], uint32_t epoch, const struct rc_device *device) {
  for (struct rc_estate *estate = estates.first; estate; estate = estate->next)
    if (estate->segment.epoch == epoch && estate->forks == rc_fork_count() &&
        memcmp(estate->token, token, sizeof estate->token) == 0 && estate->device.device == device->device)
      return estate;
  return NULL;
}

rc_cu_ptr rc_estate_find(const uint64_t token[2], uint32_t epoch, const struct rc_device *device) {
  pthread_mutex_lock(&estates.mutex);
  const struct rc_estate *estate = find(token, epoch, device);
  rc_cu_ptr found = estate ? estate->memory : 0;
  pthread_mutex_unlock(&estates.mutex);
  return found;
}

/* ---- What is left ----------------------------------------------------------------------------------------------- */

/* By its word or, as anybody may have zeroed that, by its lock. Acquire: pairs with the store by which a consumer
 * leaves, after its streams have done. */
static bool has_consumers(const struct rc_estate *estate) {
  for (uint32_t i = 0; i < estate->segment.consumers; i++) {
    uint64_t owner = rc_load_acquire(&rc_gpu_control(&estate->segment)->consumers[i].owner);
    if (owner != 0 && !rc_owner_is_dead(owner)) return true;
    if (rc_consumer_has_lock(&estate->segment, estate->counted, i)) return true;
  }
  return false;
}

static void end_estate(struct rc_estate *estate) {
  struct rc_cuda_entry entry;
  if (rc_device_enter_to_close(&estate->device, &entry)) {
    free_estate(estate);
    rc_cuda_leave(&entry);
  } else { /* the pool has gone with the context, and so has what was registered in it */
    rc_memory_destroy(&estate->segment.memory);
  }
  rc_device_close(&estate->device);
  free(estate->counted);
  free(estate);
}

/* Takes those out of the list that nobody has open any more. */
static struct rc_estate *unlink_ended(void) {
  struct rc_estate *ended = NULL;
  pthread_mutex_lock(&estates.mutex);
  for (struct rc_estate **link = &estates.first, *estate; (estate = *link) != NULL;) {
    bool is_ours = estate->forks == rc_fork_count(); /* else the parent's; its memory goes with this process */
    if (!is_ours || !estate->is_left || estate->is_kept || has_consumers(estate)) {
      link = &estate->next;
      continue;
    }
    *link = estate->next;
    estate->next = ended;
    ended = estate;
  }
  pthread_mutex_unlock(&estates.mutex);
  return ended;
}

/* In the child of a process that has used the driver, a thread that is not there may have the mutex. What ends does so
 * outside of it: to free device memory may wait for all that the context's streams do. */
void rc_estates_tidy(void) {
  if (!rc_cuda_is_open()) return;
  for (struct rc_estate *estate = unlink_ended(), *next; estate; estate = next) {
    next = estate->next;
    end_estate(estate);
  }
}

void rc_estate_leave(struct rc_estate *estate, struct rc_counted *counted) {
  struct rc_gpu_control *control = rc_gpu_control(&estate->segment);
  pthread_mutex_lock(&estates.mutex);
  estate->counted = counted;
  estate->is_left = true;
  rc_store_release(&control->closed, 1); /* for consumers to see that no more will come */
  /* The fence: a reader stores its place, and looks at `closed` after it; one of the two sees the other's.
   * <-> take_place in opening.c */
  rc_fence_full();
  RC_POINT(POOL_LEFT);
  rc_wake(&control->attention); /* still under it: whoever tidies next unmaps the event */
  pthread_mutex_unlock(&estates.mutex);
  rc_estates_tidy();
}
