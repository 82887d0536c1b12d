/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/segment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shm/options.h"
#include "shm/error.h"
#include "shm/segment.h"

int64_t rc_gpu_busy_ns = (int64_t)10 * 1000 * 1000 * 1000;

int rc_gpu_segment_register(struct rc_gpu_segment *segment, const struct rc_cuda *cuda) {
  const unsigned flags = RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP;
  if (rc_feature_disabled("cuda_register"))
    return rc_fail_as(-ENOTSUP, "host memory is not registered with the driver: RINGCAST_DISABLE says cuda_register");
  rc_cu_result result = cuda->host_register(segment->memory.base, segment->memory.bytes, flags);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "cuMemHostRegister of the words");
  result = cuda->host_get_device_pointer(&segment->address, segment->memory.base, 0);
  if (result == RC_CU_SUCCESS && segment->address != 0) return 0;
  cuda->host_unregister(segment->memory.base);
  segment->address = 0;
  return rc_cuda_fail(result == RC_CU_SUCCESS ? RC_CU_NOT_SUPPORTED : result, "cuMemHostGetDevicePointer");
}

void rc_gpu_segment_destroy(struct rc_gpu_segment *segment, const struct rc_cuda *cuda) {
  if (segment->address != 0) cuda->host_unregister(segment->memory.base);
  segment->address = 0;
  rc_memory_destroy(&segment->memory);
}

int rc_gpu_segment_try(const struct rc_gpu_segment *segment, const struct rc_cuda *cuda, uint32_t importer,
                       int64_t patience_ns) {
  uint64_t at = rc_gpu_try_at(segment->slots, segment->importers, importer);
  struct rc_semaphore *words = rc_gpu_semaphore(segment, at);
  for (int i = 0; i < 2; i++) rc_semaphore_store(&words[i], 0); /* of an earlier try */
  return rc_semaphores_try(cuda, words, segment->address + at, patience_ns);
}

int rc_gpu_segment_create(struct rc_gpu_segment *segment, const struct rc_cuda *cuda, int64_t patience_ns) {
  uint64_t bytes = rc_gpu_segment_bytes(segment->slots, segment->importers);
  int failed = rc_memory_create_small("device", bytes, &segment->memory);
  if (failed == 0) failed = rc_gpu_segment_register(segment, cuda);
  return failed == 0 ? rc_gpu_segment_try(segment, cuda, 0, patience_ns) : failed; /* no reader has place 0 yet */
}

/* ---- The place -------------------------------------------------------------------------------------------------- */

void rc_gpu_place_write(struct rc_device_place *shared, const struct rc_gpu_place *place) {
  rc_store_relaxed(&shared->epoch, 0); /* relaxed: the fence */
  rc_fence_release();                  /* a reader that sees a store below sees the 0 by its second look */
  rc_store_relaxed(&shared->fd, place->fd);
  rc_store_relaxed(&shared->inode, place->inode);
  rc_store_relaxed(&shared->bytes, place->bytes);
  rc_store_relaxed(&shared->position, place->position);
  rc_store_release(&shared->epoch, place->epoch); /* pairs with the first look */
}

int rc_gpu_place_read(struct rc_device_place *shared, struct rc_gpu_place *out) {
  uint32_t epoch = rc_load_acquire(&shared->epoch); /* pairs with the last store */
  struct rc_gpu_place place = {.epoch = epoch,
                               .fd = rc_load_relaxed(&shared->fd), /* relaxed: the fence */
                               .inode = rc_load_relaxed(&shared->inode),
                               .bytes = rc_load_relaxed(&shared->bytes),
                               .position = rc_load_relaxed(&shared->position)};
  rc_fence_acquire();
  if (epoch == 0 || rc_load_relaxed(&shared->epoch) != epoch) return -ENOENT;
  *out = place;
  return 0;
}

/* ---- Attaching -------------------------------------------------------------------------------------------------- */

static int check_identity(const struct rc_gpu_place *place, const uint64_t token[2], uint32_t importers,
                          struct rc_gpu_segment *segment, struct rc_gpu_identity *id) {
  struct rc_gpu_identity *shared = &rc_gpu_control(segment)->id;
  uint32_t ready = rc_load_acquire(&shared->ready); /* pairs with the writer's last store */
  memcpy(id, shared, sizeof *id);                   /* a peer may store to the page after the checks */
  rc_fence_light();
  if (id->magic != RC_GPU_MAGIC || ready != RC_GPU_READY || id->epoch != place->epoch ||
      memcmp(id->token, token, sizeof id->token) != 0)
    return rc_fail_as(-ENOENT, "the writer's device pool is gone: it has closed it since");
  if (id->layout != RC_GPU_LAYOUT)
    return rc_fail(-EPROTO,
                   "the writer's ringcast lays device memory out in another way: install the same version "
                   "(here %s) on both sides",
                   RINGCAST_VERSION);
  bool fits = id->slots >= 1 && id->slots <= RC_GPU_MAX_SLOTS && id->importers == importers &&
              id->pool_bytes >= RC_GPU_GRANULE && id->pool_bytes <= RC_GPU_MAX_POOL &&
              id->pool_bytes % RC_GPU_GRANULE == 0 &&
              rc_gpu_segment_bytes(id->slots, importers) <= segment->memory.bytes;
  if (!fits) return rc_fail_as(-EPROTO, "the writer's device segment is damaged: its sizes can't be right");
  segment->slots = id->slots;
  segment->importers = importers;
  segment->epoch = id->epoch;
  return 0;
}

int rc_gpu_segment_attach(const struct rc_process *writer, const struct rc_gpu_place *place, const uint64_t token[2],
                          uint32_t importers, struct rc_gpu_segment *out, struct rc_gpu_identity *id) {
  struct rc_gpu_segment segment = {.memory = {.fd = -1}};
  if (place->bytes < sizeof(struct rc_gpu_control))
    return rc_fail_as(-EPROTO, "the ring's control page is damaged: its device segment can't be so small");
  int failed = rc_segment_attach_more(writer, place->fd, place->inode, place->bytes, &segment.memory);
  if (failed != 0) return failed;
  failed = check_identity(place, token, importers, &segment, id);
  if (failed != 0) rc_memory_destroy(&segment.memory);
  else *out = segment;
  return failed;
}
