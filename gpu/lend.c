/* SPDX-License-Identifier: Apache-2.0 */
/*
 * EXTERN: memory of the caller's that readers open. Its words are those of a slot of the pool, which needs no extent,
 * so when it was read is known as for the pool. To take it back is a conversation: the writer makes its serial even and
 * wakes the readers' watchers, each of which closes it when its streams have done, and then clears its bit.
 *
 * What was sent of it is never read where a device has failed; and whose has finds that out with its next call, which
 * may not come. So who waits looks at its own, and asks the watchers to look at theirs: those give back what they held.
 */
#include "gpu/writer.h"

#include <errno.h>
#include <time.h>

#include "ring/point.h"
#include "ring/tensor.h"
#include "shm/error.h"

#define PAUSE_NS  1000000                      /* between two looks whether all have closed it, ... */
#define PROMPT_NS ((int64_t)100 * 1000 * 1000) /* ... and whether all devices work still */

static struct rc_gpu_lent *shared_at(const ringcast_gpu_writer *gpu, uint32_t place) {
  return &rc_gpu_control(&gpu->estate->segment)->lent[place];
}

/* The place of a number; RC_GPU_MAX_LENT: it is none. */
static uint32_t place_of(const ringcast_gpu_writer *gpu, uint32_t number) {
  uint32_t place = rc_gpu_lent_place(number);
  bool is_one = gpu->estate && place < RC_GPU_MAX_LENT && gpu->lent[place].base != 0 &&
                rc_gpu_lent_number(place, gpu->lent[place].serial) == number;
  return is_one ? place : RC_GPU_MAX_LENT;
}

static int fail_not_lent(uint32_t number) { return rc_fail(-EINVAL, "no memory is lent under the number %u", number); }

/* What the driver says of a pointer; -1: it won't say. */
static int64_t attribute(const struct rc_cuda *cuda, int which, rc_cu_ptr pointer) {
  unsigned value = 0; /* all that are asked for have 32 bits, or are a bool */
  return cuda->pointer_get_attribute(&value, which, pointer) == RC_CU_SUCCESS ? (int64_t)value : -1;
}

/* Fills in base and bytes of the allocation. */
static int look_at(const struct rc_device *device, rc_cu_ptr memory, rc_cu_ptr *base, size_t *bytes) {
  const struct rc_cuda *cuda = device->cuda;
  if (attribute(cuda, RC_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory) != RC_CU_MEMORYTYPE_DEVICE)
    return rc_fail_as(-EINVAL, "only memory of a device can be lent");
  if (attribute(cuda, RC_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory) != device->ordinal)
    return rc_fail(-ENOTSUP, "only memory of the writer's own device (%d) can be lent", device->ordinal);
  unsigned capable = 0; /* CUDA says it is a boolean, and not of how many bytes */
  rc_cu_result result =
      cuda->pointer_get_attribute(&capable, RC_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory);
  if (result == RC_CU_SUCCESS && !capable)
    return rc_fail_as(-ENOTSUP, "this memory can't be exported: it was not made by cudaMalloc or cuMemAlloc, but by a "
                                "memory pool, cuMemCreate (PyTorch's expandable_segments) or as managed memory");
  result = cuda->mem_get_address_range(base, bytes, memory);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "cuMemGetAddressRange");
}

static int lend(ringcast_gpu_writer *gpu, rc_cu_ptr memory, uint32_t *out) {
  rc_cu_ptr base;
  size_t bytes;
  uint32_t place = 0;
  int failed = look_at(&gpu->device, memory, &base, &bytes);
  if (failed != 0) return failed;
  for (uint32_t i = 0; i < RC_GPU_MAX_LENT; i++)
    if (gpu->lent[i].base == base && !gpu->lent[i].ending) {
      *out = rc_gpu_lent_number(i, gpu->lent[i].serial);
      return 0;
    }
  while (place < RC_GPU_MAX_LENT && gpu->lent[place].base != 0) place++;
  if (place == RC_GPU_MAX_LENT)
    return rc_fail(-EUSERS, "%u allocations are lent already: take one back first", RC_GPU_MAX_LENT);
  struct rc_gpu_lent *shared = shared_at(gpu, place);
  rc_cu_result result = gpu->device.cuda->ipc_get_handle(&shared->handle, base);
  if (result != RC_CU_SUCCESS) return rc_cuda_fail(result, "cuIpcGetMemHandle of the memory to be lent");
  shared->bytes = bytes;
  rc_estate_lend(gpu->estate, place, base);
  struct rc_lent_memory *own = &gpu->lent[place];
  *own = (struct rc_lent_memory){.base = base, .bytes = bytes, .serial = rc_gpu_next_serial(own->serial)};
  rc_store_release(&shared->serial, own->serial); /* pairs with the reader's look, before it opens it */
  RC_POINT(LENT);
  *out = rc_gpu_lent_number(place, own->serial);
  return 0;
}

int ringcast_gpu_writer_lend(ringcast_gpu_writer *gpu, ringcast_device_ptr memory, uint32_t *out) {
  struct rc_cuda_entry entry;
  if (!gpu->may_lend) return rc_fail_as(-EINVAL, "memory can be lent only where options.flags had RINGCAST_GPU_EXTERN");
  if (!gpu->estate) return rc_fail(-ENOTSUP, "nothing can be lent without a device pool: %s", gpu->why);
  int failed = rc_gpu_writer_enter(gpu, &entry);
  if (failed != 0) return failed;
  failed = rc_gpu_writer_failed(gpu, lend(gpu, memory, out));
  rc_cuda_leave(&entry);
  return failed;
}

int ringcast_gpu_lent_range(const ringcast_gpu_writer *gpu, uint32_t number, ringcast_device_ptr *base,
                            uint64_t *bytes) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  uint32_t place = place_of(gpu, number);
  if (place == RC_GPU_MAX_LENT) return fail_not_lent(number);
  *base = gpu->lent[place].base;
  *bytes = gpu->lent[place].bytes;
  return 0;
}

int rc_lent_offset(const ringcast_gpu_writer *gpu, uint32_t number, const struct ringcast_tensor *tensor,
                   uint64_t *out) {
  uint32_t place = place_of(gpu, number);
  uint64_t bytes, address = (uint64_t)(uintptr_t)tensor->data;
  if (place == RC_GPU_MAX_LENT || gpu->lent[place].ending) return fail_not_lent(number);
  const struct rc_lent_memory *lent = &gpu->lent[place];
  bool is_there = ringcast_tensor_bytes(tensor, &bytes) == 0 && address >= lent->base &&
                  address - lent->base <= lent->bytes && bytes <= lent->bytes - (address - lent->base);
  bool is_c = !tensor->strides || rc_strides_are_c(tensor->ndim, tensor->shape, tensor->strides);
  if (!is_there || !is_c) return rc_fail_as(-EINVAL, "a tensor must lie in the memory that was lent, in C order");
  *out = address - lent->base;
  return 0;
}

int ringcast_gpu_lease_lent(ringcast_gpu_writer *gpu, const struct ringcast_gpu_extent *lease, uint32_t number) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  struct rc_pool_slot *slot = rc_gpu_writer_slot(gpu, lease);
  if (!slot) return rc_gpu_writer_fail_no_lease();
  uint32_t place = place_of(gpu, number);
  if (place == RC_GPU_MAX_LENT || gpu->lent[place].ending) return fail_not_lent(number);
  rc_lent_take(gpu, slot, place);
  return 0;
}

/* ---- Taking it back --------------------------------------------------------------------------------------------- */

/* -EPIPE: the writer's own. */
static int look_for_losses(ringcast_gpu_writer *gpu) {
  struct rc_gpu_control *control = rc_gpu_control(&gpu->estate->segment);
  int64_t now = rc_now_ns();
  if (!gpu->is_lost && now - gpu->prompted >= PROMPT_NS) {
    gpu->prompted = now;
    rc_add_acq_rel(&control->asked, 1); /* -> the watchers' look */
    rc_wake(&control->attention);
    rc_gpu_writer_failed(gpu, -EIO);
  }
  return gpu->is_lost ? rc_fail_as(-EPIPE, "the device has failed: what was lent of it is lost, too") : 0;
}

int ringcast_gpu_lent_is_idle(ringcast_gpu_writer *gpu, uint32_t number) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  uint32_t place = place_of(gpu, number);
  if (place == RC_GPU_MAX_LENT) return fail_not_lent(number);
  rc_consumers_reclaim(gpu, true);
  if (gpu->lent[place].under_way == 0) return 1;
  return look_for_losses(gpu);
}

/* Whether a consumer that lives has it open. */
static bool is_open(const ringcast_gpu_writer *gpu, uint32_t place) {
  const struct rc_gpu_segment *segment = &gpu->estate->segment;
  for (uint32_t i = 0; i < segment->consumers; i++) {
    struct rc_gpu_consumer *consumer = &rc_gpu_control(segment)->consumers[i];
    /* Acquire: pairs with the store that clears the bit, after it was closed. */
    bool says_so = rc_load_acquire(&consumer->lent) >> place & 1;
    uint64_t owner = rc_load_acquire(&consumer->owner); /* pairs with the store by which it leaves */
    if (says_so && owner != 0 && !rc_owner_is_dead(owner)) return true;
    if (rc_consumer_has_lock(segment, gpu->counted, i, 1 + place)) return true; /* as in has_consumers */
  }
  return false;
}

static bool is_taken_back(ringcast_gpu_writer *gpu, uint32_t place) {
  struct rc_lent_memory *own = &gpu->lent[place];
  struct rc_gpu_control *control = rc_gpu_control(&gpu->estate->segment);
  own->ending = true;
  rc_consumers_reclaim(gpu, true);
  if (own->under_way != 0) return false;
  /* The fence: a reader stores its bit, and looks at the serial once more; one of the two sees the other's.
   * <-> open_lent in borrow.c */
  if (rc_load_relaxed(&control->lent[place].serial) == own->serial) { /* relaxed: its own store */
    rc_store_release(&control->lent[place].serial, rc_gpu_next_serial(own->serial));
    rc_fence_full();
    RC_POINT(TAKING_BACK);
    rc_wake(&control->attention);
  }
  return !is_open(gpu, place);
}

int ringcast_gpu_writer_unlend(ringcast_gpu_writer *gpu, uint32_t number, int64_t timeout_ns) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  int failed = rc_check_wait(gpu->forks, timeout_ns);
  if (failed != 0) return failed;
  uint32_t place = place_of(gpu, number);
  if (place == RC_GPU_MAX_LENT) return fail_not_lent(number);
  for (int64_t began = rc_now_ns(); gpu->is_lost || !is_taken_back(gpu, place); nanosleep(&pause, NULL)) {
    failed = look_for_losses(gpu);
    if (failed != 0) return failed;
    if (timeout_ns >= 0 && rc_now_ns() - began >= timeout_ns)
      return rc_fail_as(timeout_ns == 0 ? -EAGAIN : -ETIMEDOUT, "a reader still has the lent memory open");
  }
  struct rc_lent_memory *own = &gpu->lent[place];
  *own = (struct rc_lent_memory){.serial = rc_gpu_next_serial(own->serial)};
  RC_POINT(TAKEN_BACK);
  return 0;
}
