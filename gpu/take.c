/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes: frames that are read from the pool, or the ring, to the caller's memory, on the caller's stream. The essay
 * atop import.c says what is enqueued for a frame of the pool, bounce.c has frames of the ring.
 *
 * The caller owns the struct of a take, and may copy the struct and end both copies. So the reader keeps a list of the
 * open takes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/reader.h"
#include "gpu/point.h"
#include "shm/error.h"

enum {
  TAKE_NONE = 0,
  TAKE_OPEN = 1,
  TAKE_INLINE = 2, /* bytes of the ring were copied */
  TAKE_FRESH = 4,  /* no call since begin, and begin saw that the stream does not capture */
  TAKE_READ = 8,   /* the last copies are enqueued */
};

struct ringcast_gpu_hold {
  struct rc_import *import;
  uint32_t slot;
};

/* The import of the frame's pool. NULL: the writer did not expect this reader to read the frame. */
static struct rc_import *import_of(const ringcast_gpu_reader *gpu, uint32_t epoch, uint64_t position) {
  struct rc_import *import = gpu->import;
  bool is_it = import && import->segment.epoch == epoch && rc_import_is_expected(import, position);
  return is_it ? import : NULL;
}

static int fail_not_expected(void) {
  return rc_fail_as(-ECONNABORTED, "this frame was under way when this reader attached, and the frame's device tensors "
                                   "are not for this reader: release the frame, and go on with the next one");
}

/* The entry of the open take of the frame at `entry` - 1; for `entry` 0, a free entry. NULL: not found. */
static uint64_t *find_begun(ringcast_gpu_reader *gpu, uint64_t entry) {
  for (uint32_t i = 0; i < RC_MAX_LEASES; i++)
    if (gpu->begun[i] == entry) return &gpu->begun[i];
  return NULL;
}

/* Frees the entries of frames that were released before their takes ended. */
static void forget_begun(ringcast_gpu_reader *gpu) {
  for (uint32_t i = 0; i < RC_MAX_LEASES; i++)
    if (gpu->begun[i] != 0 && !rc_ring_holds(&gpu->reader->ring, gpu->begun[i] - 1)) gpu->begun[i] = 0;
}

/* A frame that was released may have been overwritten by a later frame, whose slot must not be touched. */
static int check_held(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame) {
  if (!rc_ring_holds(&gpu->reader->ring, frame->position)) return rc_fail_not_held(frame->position);
  if (!find_begun(gpu, frame->position + 1)) return 0;
  return rc_fail_as(-EBUSY, "the take of this frame is open: end the take first");
}

/* Records the take, and has the stream wait. */
static int begin_in_pool(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  struct rc_import *import = import_of(gpu, take->epoch, take->frame.position);
  if (!import) return fail_not_expected();
  int failed = rc_import_take(import, take->slot, take->generation, take->stream);
  if (failed != 0) return failed;
  const struct rc_gpu_segment *segment = &import->segment;
  /* If the host has seen the value, all that the host enqueues afterwards comes after the copies. A semaphore that was
   * released, not written by the device, is found later by way of the record. */
  if (rc_semaphore_has_reached(rc_gpu_ready(segment, take->slot), take->generation)) return 0;
  rc_cu_ptr ready = segment->address + rc_gpu_ready_at(segment->importers, take->slot);
  rc_cu_result result = rc_semaphore_wait(gpu->device.cuda, take->stream, ready, take->generation);
  RC_POINT(WAIT_ENQUEUED);
  if (result == RC_CU_SUCCESS) return 0;
  rc_import_forget(import, take->slot);
  return rc_gpu_reader_failed(gpu, rc_cuda_fail(result, "cuStreamWaitValue of a pool's word"));
}

int ringcast_gpu_begin(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame, ringcast_stream stream,
                       struct ringcast_gpu_take *out) {
  struct ringcast_frame_reader opened;
  struct rc_cuda_entry entry;
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = check_held(gpu, frame);
  if (failed != 0) return failed;
  if (frame->kind != RINGCAST_KIND_TENSORS) return rc_fail_as(-EINVAL, "this frame holds bytes, and no tensors");
  if (ringcast_frame_open(&opened, frame->data, frame->bytes) != 0)
    return rc_fail_as(-EPROTO, "the frame's header is invalid, or of a later version");
  if (!find_begun(gpu, 0)) forget_begun(gpu);
  uint64_t *begun = find_begun(gpu, 0);
  if (!begun) return rc_fail(-EBUSY, "%u frames are being read: end their takes first", RC_MAX_LEASES);
  failed = rc_gpu_reader_enter_context(gpu, &entry);
  if (failed != 0) return failed;
  struct ringcast_gpu_take take = {.frame = *frame,
                                   .stream = stream,
                                   .timeout_ns = RINGCAST_FOREVER,
                                   .slot = opened.device_slot,
                                   .epoch = opened.device_epoch,
                                   .generation = opened.device_generation,
                                   .state = TAKE_OPEN | TAKE_FRESH};
  failed = rc_gpu_reader_failed(gpu, rc_device_check_stream(&gpu->device, stream));
  if (failed == 0) rc_gpu_reader_look_for_pool(gpu);
  if (failed == 0 && take.epoch != 0) failed = begin_in_pool(gpu, &take);
  rc_cuda_leave(&entry);
  if (failed != 0) return failed;
  *begun = frame->position + 1;
  *out = take;
  return 0;
}

/* False too for a take that was ended through a copy of the struct. */
static bool is_open(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take) {
  return (take->state & (TAKE_OPEN | TAKE_READ)) == TAKE_OPEN && find_begun(gpu, take->frame.position + 1);
}

static int fail_no_take(void) { return rc_fail_as(-EINVAL, "the take is not open: begin the take first"); }

static int fail_outside(void) { return rc_fail_as(-EPROTO, "a tensor of the frame points outside the frame or pool"); }

static bool is_inside(const struct ringcast_frame *frame, uint64_t offset, uint64_t bytes) {
  return offset <= frame->bytes && bytes <= frame->bytes - offset;
}

static bool is_item_inside(const struct ringcast_frame *frame, const struct ringcast_item *item) {
  const uint8_t *start = frame->data, *first = item->data;
  return first >= start && is_inside(frame, (uint64_t)(first - start), item->bytes);
}

static int finish_copy(ringcast_gpu_reader *gpu, rc_cu_result result) {
  RC_POINT(COPIED_OUT);
  return result == RC_CU_SUCCESS ? 0 : rc_gpu_reader_failed(gpu, rc_cuda_fail(result, "a copy to the device"));
}

/* The address of bytes of the pool in this reader's context. */
static int locate(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, uint64_t offset, uint64_t bytes,
                  rc_cu_ptr *out) {
  struct rc_import *import = gpu->import;
  if (take->epoch == 0 || !import || import->segment.epoch != take->epoch) return fail_no_take();
  if (offset > import->pool_bytes || bytes > import->pool_bytes - offset) return fail_outside();
  *out = import->pool + offset;
  return 0;
}

/* Called before the first copy is enqueued. *by_ring: some copies come from the frame. */
static int check_copies(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take,
                        const struct ringcast_gpu_copy *copies, uint32_t count, bool *by_ring) {
  rc_cu_ptr where = 0;
  int failed = 0;
  *by_ring = false;
  for (uint32_t i = 0; i < count && failed == 0; i++) {
    const struct ringcast_gpu_copy *copy = &copies[i];
    if (copy->in_pool > 1 || copy->reserved != 0)
      return rc_fail_as(-EINVAL, "a copy's in_pool must be 0 or 1, and its reserved must be 0");
    if (copy->copied > copy->bytes) return rc_fail_as(-EINVAL, "a copy's `copied` is more than its `bytes`");
    if (copy->in_pool) failed = copy->bytes > 0 ? locate(gpu, take, copy->offset, copy->bytes, &where) : 0;
    else if (!is_inside(&take->frame, copy->offset, copy->bytes)) failed = fail_outside();
    *by_ring |= !copy->in_pool && copy->bytes > 0;
  }
  return failed;
}

/* The context is current. */
static int copy_one(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, struct ringcast_gpu_copy *copy) {
  uint64_t left = copy->bytes - copy->copied, from = copy->offset + copy->copied;
  rc_cu_ptr to = copy->to + copy->copied;
  if (left == 0) return 0;
  if (!copy->in_pool) {
    take->state |= TAKE_INLINE;
    int failed = rc_bounce_copy(gpu, take, (const uint8_t *)take->frame.data + from, left, to);
    copy->copied += take->copied;
    return rc_gpu_reader_failed(gpu, failed);
  }
  rc_cu_result result = gpu->device.cuda->copy_dtod(to, gpu->import->pool + from, left, take->stream);
  if (result != RC_CU_SUCCESS) return finish_copy(gpu, result);
  gpu->pool_bytes += left;
  copy->copied = copy->bytes;
  return finish_copy(gpu, result);
}

/* -EIO: `ack` could not be enqueued and is pending, as after a capture that has just begun. The context is current. */
static int acknowledge(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take) {
  struct rc_import *import = gpu->import;
  if (take->epoch == 0 || !import || import->segment.epoch != take->epoch) return 0;
  rc_cu_result result = rc_import_end(import, take->slot, take->generation);
  gpu->pool_frames++;
  if (result == RC_CU_SUCCESS || result == RC_CU_STREAM_CAPTURE_UNSUPPORTED) return 0;
  return rc_gpu_reader_failed(gpu, rc_cuda_fail(result, "cuStreamWriteValue"));
}

int ringcast_gpu_copy_all(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, struct ringcast_gpu_copy *copies,
                          uint32_t count, uint32_t flags) {
  struct rc_cuda_entry entry;
  bool by_ring, is_last = flags & RINGCAST_GPU_LAST, is_fresh = take->state & TAKE_FRESH;
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  if (!is_open(gpu, take)) return fail_no_take();
  if ((flags & ~RINGCAST_GPU_LAST) != 0) return rc_fail(-EINVAL, "flags are 0x%x: one is not known", flags);
  take->copied = 0;
  failed = check_copies(gpu, take, copies, count, &by_ring);
  if (failed == 0 && by_ring) failed = rc_check_wait(gpu->reader->forks, take->timeout_ns);
  /* Copies and semaphores on a stream that does not capture invalidate no graph; a query of an event may. */
  if (failed == 0) failed = by_ring ? rc_gpu_reader_enter(gpu, &entry) : rc_gpu_reader_enter_context(gpu, &entry);
  if (failed != 0) return failed;
  take->state &= ~(uint32_t)TAKE_FRESH;
  if (!is_fresh) failed = rc_gpu_reader_failed(gpu, rc_device_check_stream(&gpu->device, take->stream));
  for (uint32_t i = 0; i < count && failed == 0; i++) failed = copy_one(gpu, take, &copies[i]);
  if (failed == 0 && is_last) {
    take->state |= TAKE_READ;
    failed = acknowledge(gpu, take);
  }
  rc_cuda_leave(&entry);
  return failed;
}

int ringcast_gpu_copy_out(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, const struct ringcast_item *item,
                          ringcast_device_ptr to) {
  struct ringcast_gpu_copy copy = {.offset = item->device_offset, .bytes = item->bytes, .to = to, .in_pool = 1};
  if (item->placement != RINGCAST_PLACEMENT_INLINE) return ringcast_gpu_copy_all(gpu, take, &copy, 1, 0);
  if (!is_open(gpu, take)) return fail_no_take();
  if (!is_item_inside(&take->frame, item)) return fail_outside();
  copy.offset = (uint64_t)((const uint8_t *)item->data - (const uint8_t *)take->frame.data);
  copy.in_pool = 0;
  return ringcast_gpu_copy_all(gpu, take, &copy, 1, 0);
}

static int copy_pool_to_host(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take,
                             const struct ringcast_item *item, void *to) {
  struct rc_cuda_entry entry;
  rc_cu_ptr from = 0;
  if (!is_open(gpu, take)) return fail_no_take();
  if (item->bytes == 0) return 0;
  int failed = rc_gpu_reader_enter(gpu, &entry);
  if (failed != 0) return failed;
  failed = rc_gpu_reader_failed(gpu, rc_device_check_stream(&gpu->device, take->stream));
  if (failed == 0) failed = locate(gpu, take, item->device_offset, item->bytes, &from);
  if (failed == 0) {
    const struct rc_cuda *cuda = gpu->device.cuda;
    rc_cu_result result = cuda->copy_dtoh(to, from, item->bytes, take->stream);
    if (result == RC_CU_SUCCESS) result = cuda->stream_synchronize(take->stream);
    gpu->syncs++;
    gpu->pool_bytes += item->bytes;
    failed = finish_copy(gpu, result);
  }
  rc_cuda_leave(&entry);
  return failed;
}

int ringcast_gpu_copy_to_host(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take,
                              const struct ringcast_item *item, void *to) {
  int failed = rc_check_fork(gpu->forks);
  take->state &= ~(uint32_t)TAKE_FRESH;
  if (failed != 0) return failed;
  if (item->placement != RINGCAST_PLACEMENT_INLINE) {
    failed = copy_pool_to_host(gpu, take, item, to);
    return failed != 0 ? failed : ringcast_gpu_check(gpu);
  }
  if (!is_open(gpu, take)) return fail_no_take();
  if (!is_item_inside(&take->frame, item)) return fail_outside();
  if (item->bytes > 0) memcpy(to, item->data, item->bytes);
  return 0;
}

int ringcast_gpu_map(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, const struct ringcast_item *item,
                     ringcast_device_ptr *out, ringcast_gpu_hold **hold) {
  rc_cu_ptr where = 0;
  if (!is_open(gpu, take)) return fail_no_take();
  if (item->placement != RINGCAST_PLACEMENT_POOL)
    return rc_fail_as(-ENOTSUP, "only a tensor in the writer's pool can be read in place: copy the tensor");
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = locate(gpu, take, item->device_offset, item->bytes, &where);
  if (failed != 0) return failed;
  ringcast_gpu_hold *made = malloc(sizeof *made);
  if (!made) return rc_fail(-ENOMEM, "out of memory");
  *made = (ringcast_gpu_hold){.import = gpu->import, .slot = take->slot};
  rc_import_hold(gpu->import, take->slot);
  take->maps++;
  take->state &= ~(uint32_t)TAKE_FRESH;
  *out = where;
  *hold = made;
  return 0;
}

void ringcast_gpu_unmap(ringcast_gpu_hold *hold) {
  if (!hold) return;
  if (hold->import->forks == rc_fork_count()) { /* in a forked child the parent owns the pool */
    rc_import_unhold(hold->import, hold->slot);
    rc_import_drop(hold->import);
  }
  free(hold);
}

/* -EBUSY: the stream would add the `ack` to a graph. If the context can't be entered, `ack` is pending. */
static int end_in_pool(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  struct rc_cuda_entry entry;
  if (take->epoch == 0 || take->state & TAKE_READ) return 0;
  bool has_entered = rc_gpu_reader_enter_context(gpu, &entry) == 0;
  int failed = has_entered ? rc_device_check_stream(&gpu->device, take->stream) : 0;
  if (failed != -EBUSY) failed = acknowledge(gpu, take);
  if (has_entered) rc_cuda_leave(&entry);
  return failed;
}

int ringcast_gpu_end(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  uint64_t *begun = take->state & TAKE_OPEN ? find_begun(gpu, take->frame.position + 1) : NULL;
  if (!begun) return fail_no_take();
  failed = end_in_pool(gpu, take);
  if (failed == -EBUSY) return failed;
  gpu->inline_frames += (take->state & TAKE_INLINE) != 0;
  *begun = 0;
  take->state = TAKE_NONE;
  int released = ringcast_reader_release(gpu->reader, &take->frame);
  return failed != 0 ? failed : released;
}

int ringcast_gpu_release(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame) {
  struct ringcast_frame_reader opened;
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = check_held(gpu, frame);
  if (failed != 0) return failed;
  bool is_whole = frame->kind == RINGCAST_KIND_TENSORS && ringcast_reader_check(gpu->reader) == 0 &&
                  ringcast_frame_open(&opened, frame->data, frame->bytes) == 0;
  if (is_whole && opened.device_epoch != 0) {
    struct rc_import *import = import_of(gpu, opened.device_epoch, frame->position);
    if (import) rc_import_pass(import, opened.device_slot, opened.device_generation);
  }
  return ringcast_reader_release(gpu->reader, frame);
}
