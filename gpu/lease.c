/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames by the pool, as the writer sends them: from the caller's tensor to the pool, on the caller's stream.
 *
 *   lease      Q1  a free slot, and an extent (slots that all importers have read become free: importers.c)
 *   commit     Q2  enqueue: tensor -> extent, for each tensor
 *              Q3  enqueue: ready = generation                  -> the wait of the reader's stream (take.c, U2)
 *              Q4  commit the frame, which names slot, epoch and generation
 *
 * Q3 is enqueued before Q4, so each `ready` for which a reader's stream waits will be written, unless the device fails
 * or the writer dies before the stream comes to Q3: then the process that detects the failure releases the wait. The
 * host does not wait. Work that the caller enqueues on the stream after the commit comes after Q2.
 */
#include <errno.h>

#include "gpu/writer.h"
#include "gpu/point.h"
#include "shm/error.h"

static int fail_too_large(uint64_t bytes, uint64_t most) {
  return rc_fail(-EMSGSIZE, "%llu bytes do not fit the device pool (%llu)", (unsigned long long)bytes,
                 (unsigned long long)most);
}

/* The offset of each tensor in the extent, and the bytes of the extent. */
static int lay_out(const uint64_t *bytes, uint32_t count, uint64_t most, uint64_t *offsets, uint64_t *out) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (bytes[i] > most || total > most) return fail_too_large(bytes[i], most);
    offsets[i] = total;
    *out = total + bytes[i];
    total += (bytes[i] + RC_GPU_ALIGN - 1) & ~(uint64_t)(RC_GPU_ALIGN - 1);
  }
  return total <= most ? 0 : fail_too_large(total, most);
}

/* A stream's write of `ready` comes after the copies of the same stream only. */
static int fail_other_stream(void) {
  return rc_fail_as(-EINVAL, "a lease is filled and committed on one stream, and this is a different stream");
}

static rc_cu_ptr address_of(const ringcast_gpu_writer *gpu, uint32_t slot) {
  const struct rc_gpu_segment *segment = &gpu->exported->segment;
  return segment->address + rc_gpu_ready_at(segment->importers, slot);
}

/* Q3. The stream of the slot does not capture; the context is current. */
static int enqueue_ready(ringcast_gpu_writer *gpu, uint32_t slot) {
  const struct rc_pool_slot *own = &gpu->pool.slots[slot];
  rc_cu_result result =
      rc_semaphore_write(gpu->device.cuda, own->stream, address_of(gpu, slot), own->generation); /* Q3 -> U2 */
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "cuStreamWriteValue of a pool's word");
}

/* Gives back a slot that was filled and not sent. -EBUSY: the slot's stream captures a graph. */
static int drop_by_stream(ringcast_gpu_writer *gpu, uint32_t slot) {
  struct rc_cuda_entry entry;
  int failed = rc_gpu_writer_enter_context(gpu, &entry);
  if (failed != 0) return failed;
  failed = rc_device_check_stream(&gpu->device, gpu->pool.slots[slot].stream);
  if (failed == 0) failed = enqueue_ready(gpu, slot);
  rc_cuda_leave(&entry);
  return rc_gpu_writer_failed(gpu, failed);
}

/* Retries for slots that were dropped while their streams captured a graph. */
static void drop_again(ringcast_gpu_writer *gpu) {
  for (uint32_t i = 0; i < gpu->pool.slot_count; i++) {
    struct rc_pool_slot *slot = &gpu->pool.slots[i];
    if (slot->state != RC_POOL_OWED) continue;
    int failed = drop_by_stream(gpu, i);
    if (failed != -EBUSY) slot->state = failed == 0 ? RC_POOL_DROPPED : RC_POOL_LOST;
  }
}

void rc_gpu_writer_reclaim(ringcast_gpu_writer *gpu) {
  drop_again(gpu);
  rc_importers_reclaim(gpu, true);
}

/* Reclaims slots when no slot is free, and from time to time before. */
static int take_slot(ringcast_gpu_writer *gpu, uint64_t bytes) {
  struct rc_pool *pool = &gpu->pool;
  if (pool->used >= gpu->look_at) {
    rc_importers_reclaim(gpu, false);
    gpu->look_at = pool->used + pool->slot_count / 8 + 1;
  }
  int slot = rc_pool_take(pool, bytes);
  if (slot >= 0) return slot;
  rc_gpu_writer_reclaim(gpu);
  slot = rc_pool_take(pool, bytes);
  if (slot >= 0) return slot;
  gpu->full++;
  if (pool->used < pool->slot_count) rc_gpu_writer_want_pool(gpu, bytes);
  return rc_fail(-EAGAIN, "the device pool is full: %u of %u slots and %llu of %llu bytes are under way", pool->used,
                 pool->slot_count, (unsigned long long)pool->used_bytes, (unsigned long long)pool->bytes);
}

static int check_pool(ringcast_gpu_writer *gpu) {
  if (gpu->is_lost) return rc_fail(-EAGAIN, "the device pool is dead: %s", gpu->why);
  rc_gpu_writer_look_for_pool(gpu);
  if (gpu->exported) return 0;
  rc_gpu_writer_want_pool(gpu, 0);
  return rc_fail(-EAGAIN, "there is no device pool: %s", gpu->why);
}

static struct ringcast_gpu_extent lease_of(const ringcast_gpu_writer *gpu, uint32_t number, uint64_t bytes) {
  const struct rc_pool_slot *slot = &gpu->pool.slots[number];
  return (struct ringcast_gpu_extent){.slot = number,
                                      .epoch = gpu->exported->segment.epoch,
                                      .generation = slot->generation,
                                      .base = slot->base,
                                      .bytes = bytes};
}

int ringcast_gpu_lease(ringcast_gpu_writer *gpu, const uint64_t *bytes, uint32_t count, uint64_t *offsets,
                       struct ringcast_gpu_extent *out) {
  uint64_t total = 0;
  uint32_t reader;
  int32_t pid, reason;
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = check_pool(gpu);
  if (failed == 0 && rc_importers_look(gpu, &reader, &pid, &reason) != RINGCAST_GPU_WAY_POOL)
    failed = rc_fail_as(-EAGAIN, "a reader has not opened the device pool");
  if (failed == 0) failed = lay_out(bytes, count, gpu->most_bytes, offsets, &total);
  if (failed != 0) return failed;
  int slot = take_slot(gpu, total);
  if (slot < 0) return slot;
  *out = lease_of(gpu, (uint32_t)slot, total);
  for (uint32_t i = 0; i < count; i++) offsets[i] += out->base;
  RC_POINT(LEASED);
  return 0;
}

/* The slot of an open lease. NULL: the lease is not open. */
static struct rc_pool_slot *slot_of(const ringcast_gpu_writer *gpu, const struct ringcast_gpu_extent *lease) {
  if (!gpu->exported || lease->epoch != gpu->exported->segment.epoch || lease->slot >= gpu->pool.slot_count)
    return NULL;
  struct rc_pool_slot *slot = &gpu->pool.slots[lease->slot];
  return slot->state == RC_POOL_LEASED && slot->generation == lease->generation ? slot : NULL;
}

static int fail_no_lease(void) { return rc_fail_as(-EINVAL, "the lease is not open: lease a place first"); }

int ringcast_gpu_lease_address(ringcast_gpu_writer *gpu, const struct ringcast_gpu_extent *lease, uint64_t offset,
                               ringcast_stream stream, ringcast_device_ptr *out) {
  struct rc_pool_slot *slot = slot_of(gpu, lease);
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  if (!slot) return fail_no_lease();
  if (offset < slot->base || offset - slot->base > lease->bytes)
    return rc_fail_as(-EINVAL, "the offset does not lie within its lease");
  if (slot->copied && slot->stream != stream) return fail_other_stream();
  slot->stream = stream;
  slot->copied = true;
  *out = gpu->exported->memory + offset;
  return 0;
}

int ringcast_gpu_allocate(ringcast_gpu_writer *gpu, uint64_t bytes, ringcast_stream stream, ringcast_device_ptr *out,
                          struct ringcast_gpu_extent *lease) {
  uint64_t offset, total;
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) drop_again(gpu);
  if (failed == 0) failed = rc_gpu_writer_whole_pool(gpu);
  if (failed == 0) failed = check_pool(gpu);
  if (failed == 0) failed = lay_out(&bytes, 1, gpu->most_bytes, &offset, &total);
  if (failed != 0) return failed;
  int slot = take_slot(gpu, bytes);
  if (slot < 0) return slot;
  gpu->pool.slots[slot].is_kept = true;
  *lease = lease_of(gpu, (uint32_t)slot, bytes);
  return ringcast_gpu_lease_address(gpu, lease, lease->base, stream, out);
}

int ringcast_gpu_attach(ringcast_gpu_writer *gpu, const struct ringcast_gpu_extent *lease,
                        const struct ringcast_gpu_extent *memory) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  if (!slot_of(gpu, lease) || !slot_of(gpu, memory) || lease->slot == memory->slot) return fail_no_lease();
  if (rc_pool_attach(&gpu->pool, memory->slot, lease->slot)) return 0;
  rc_importers_reclaim(gpu, true); /* the earlier frame may have been read by now */
  if (rc_pool_attach(&gpu->pool, memory->slot, lease->slot)) return 0;
  return rc_fail_as(-EBUSY, "an earlier frame with this memory of the pool is still under way");
}

/* Q2. The context is current, and the stream is the slot's. */
static int put(ringcast_gpu_writer *gpu, struct rc_pool_slot *slot, const struct ringcast_gpu_extent *lease,
               uint64_t offset, const struct ringcast_tensor *tensor) {
  uint64_t bytes;
  if (ringcast_tensor_bytes(tensor, &bytes) < 0) return rc_fail_as(-EINVAL, "the tensor's dtype or shape is invalid");
  if (offset < slot->base || offset - slot->base > lease->bytes || bytes > lease->bytes - (offset - slot->base))
    return rc_fail_as(-EINVAL, "the tensor does not lie within its lease");
  int failed = rc_device_copy(&gpu->device, tensor, gpu->exported->memory + offset, NULL, slot->stream);
  RC_POINT(COPIED_IN);
  return failed;
}

/* The copies and the `ready` of a slot are on one stream. */
static int choose_stream(ringcast_gpu_writer *gpu, struct rc_pool_slot *slot, ringcast_stream stream) {
  if (slot->copied && slot->stream != stream) return fail_other_stream();
  int failed = rc_device_check_stream(&gpu->device, stream);
  if (failed != 0) return failed;
  slot->stream = stream;
  slot->copied = true;
  return 0;
}

int ringcast_gpu_commit(ringcast_gpu_writer *gpu, struct ringcast_gpu_extent *lease,
                        const struct ringcast_gpu_put *puts, uint32_t count, ringcast_stream stream,
                        size_t frame_bytes) {
  struct rc_cuda_entry entry;
  struct rc_pool_slot *slot = slot_of(gpu, lease);
  if (!slot) return fail_no_lease();
  int failed = rc_gpu_writer_enter_context(gpu, &entry);
  if (failed != 0) return failed;
  failed = choose_stream(gpu, slot, stream);
  for (uint32_t i = 0; i < count && failed == 0; i++) failed = put(gpu, slot, lease, puts[i].offset, puts[i].tensor);
  if (failed == 0) failed = enqueue_ready(gpu, lease->slot);
  rc_cuda_leave(&entry);
  if (failed != 0) return rc_gpu_writer_failed(gpu, failed);
  RC_POINT(READY_ENQUEUED);
  slot->position = gpu->writer->ring.tail;
  failed = ringcast_writer_commit(gpu->writer, frame_bytes, RINGCAST_KIND_TENSORS); /* Q4 */
  RC_POINT(COMMITTED);
  slot->state = failed == 0 ? RC_POOL_SENT : RC_POOL_DROPPED;
  if (failed != 0) return failed;
  gpu->pool_frames++;
  gpu->pool_bytes += lease->bytes;
  return 0;
}

/* No frame names this generation. The next lease takes the same generation, as readers accept only the next one. */
static void give_unused(ringcast_gpu_writer *gpu, uint32_t number) {
  gpu->pool.slots[number].generation--;
  rc_pool_give(&gpu->pool, number);
}

void ringcast_gpu_drop(ringcast_gpu_writer *gpu, struct ringcast_gpu_extent *lease) {
  struct rc_pool_slot *slot = slot_of(gpu, lease);
  if (!slot || gpu->forks != rc_fork_count()) return;
  if (!slot->copied) {
    give_unused(gpu, lease->slot);
    return;
  }
  int failed = drop_by_stream(gpu, lease->slot);
  slot->state = failed == 0 ? RC_POOL_DROPPED : failed == -EBUSY ? RC_POOL_OWED : RC_POOL_LOST;
}
