/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames being read: from the pool, or the ring, to the caller's memory, on the caller's stream. What is enqueued for a
 * frame of the pool, and who else must know of it, is told atop import.c; for a frame of the ring, in bounce.c.
 *
 * A take is the caller's, who may copy it and end it twice; so which frames are being read is noted here too.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/reader.h"
#include "gpu/point.h"
#include "shm/error.h"

enum { TAKE_NONE, TAKE_OPEN = 1, TAKE_INLINE = 2 /* bytes of the ring were copied */ };

struct ringcast_gpu_hold {
  struct rc_import *import;
  uint32_t slot;
};

/* The import of the frame's pool. NULL: this reader is not counted on for it. */
static struct rc_import *import_of(const ringcast_gpu_reader *gpu, uint32_t epoch, uint64_t position) {
  struct rc_import *import = gpu->import;
  bool is_it = import && import->segment.epoch == epoch && rc_import_counts(import, position);
  return is_it ? import : NULL;
}

static int fail_not_counted(void) {
  return rc_fail_as(-ECONNABORTED, "this frame was under way when this reader attached, and its device tensors are not "
                                   "for it: release it, and go on with the next one");
}

/* Where it is noted that the take of the frame at `entry` - 1 is open; `entry` 0: where one can be. NULL: nowhere. */
static uint64_t *find_begun(ringcast_gpu_reader *gpu, uint64_t entry) {
  for (uint32_t i = 0; i < RC_MAX_LEASES; i++)
    if (gpu->begun[i] == entry) return &gpu->begun[i];
  return NULL;
}

/* Of those that were released without ending their takes. */
static void forget_begun(ringcast_gpu_reader *gpu) {
  for (uint32_t i = 0; i < RC_MAX_LEASES; i++)
    if (gpu->begun[i] != 0 && !rc_ring_holds(&gpu->reader->ring, gpu->begun[i] - 1)) gpu->begun[i] = 0;
}

/* What lies where a frame lay that was given back may be another frame by now, whose slot is not to be touched. */
static int check_held(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame) {
  if (!rc_ring_holds(&gpu->reader->ring, frame->position)) return rc_fail_not_held(frame->position);
  if (!find_begun(gpu, frame->position + 1)) return 0;
  return rc_fail_as(-EBUSY, "this frame is being read: end its take first");
}

/* Notes it, and has the stream wait. */
static int begin_in_pool(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  struct rc_import *import = import_of(gpu, take->epoch, take->frame.position);
  if (!import) return fail_not_counted();
  int failed = rc_import_take(import, take->slot, take->generation, take->stream);
  if (failed != 0) return failed;
  const struct rc_gpu_segment *segment = &import->segment;
  /* What the host has seen comes before all that the host enqueues afterwards. A released word is looked at later, by
   * what was noted. */
  if (rc_word_has_reached(rc_gpu_ready(segment, take->slot), take->generation)) return 0;
  rc_cu_ptr ready = segment->address + rc_gpu_ready_at(segment->consumers, take->slot);
  rc_cu_result result = rc_word_wait(gpu->device.cuda, take->stream, ready, take->generation);
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
    return rc_fail_as(-EPROTO, "the frame's header makes no sense, or is of a later version");
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
                                   .state = TAKE_OPEN};
  failed = rc_gpu_reader_failed(gpu, rc_device_check_stream(&gpu->device, stream));
  if (failed == 0) rc_gpu_reader_look_for_pool(gpu);
  if (failed == 0 && take.epoch != 0) failed = begin_in_pool(gpu, &take);
  rc_cuda_leave(&entry);
  if (failed != 0) return failed;
  *begun = frame->position + 1;
  *out = take;
  return 0;
}

/* Not one that was ended by way of a copy of it. */
static bool is_open(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take) {
  return take->state & TAKE_OPEN && find_begun(gpu, take->frame.position + 1);
}

static int fail_no_take(void) { return rc_fail_as(-EINVAL, "this take is not open: begin it first"); }

static int fail_outside(void) { return rc_fail_as(-EPROTO, "a tensor of the frame points outside of where it may be"); }

static bool is_inside(const struct ringcast_frame *frame, const void *from, uint64_t bytes) {
  const uint8_t *start = frame->data, *first = from;
  if (first < start) return false;
  uint64_t offset = (uint64_t)(first - start);
  return offset <= frame->bytes && bytes <= frame->bytes - offset;
}

int rc_gpu_reader_copied(ringcast_gpu_reader *gpu, rc_cu_result result) {
  RC_POINT(COPIED_OUT);
  return result == RC_CU_SUCCESS ? 0 : rc_gpu_reader_failed(gpu, rc_cuda_fail(result, "a copy to the device"));
}

int ringcast_gpu_copy_frame(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, const void *from, uint64_t bytes,
                            ringcast_device_ptr to) {
  struct rc_cuda_entry entry;
  if (!is_open(gpu, take)) return fail_no_take();
  if (!is_inside(&take->frame, from, bytes)) return fail_outside();
  take->copied = 0;
  if (bytes == 0) return 0;
  int failed = rc_check_wait(gpu->reader->forks, take->timeout_ns);
  if (failed == 0) failed = rc_gpu_reader_enter(gpu, &entry);
  if (failed != 0) return failed;
  failed = rc_gpu_reader_failed(gpu, rc_device_check_stream(&gpu->device, take->stream));
  if (failed == 0) {
    take->state |= TAKE_INLINE;
    failed = rc_bounce_copy(gpu, take, from, bytes, to);
  }
  rc_cuda_leave(&entry);
  return failed;
}

/* Where bytes of the pool lie for this reader. */
static int locate(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, uint64_t offset, uint64_t bytes,
                  rc_cu_ptr *out) {
  struct rc_import *import = gpu->import;
  if (take->epoch == 0 || !import || import->segment.epoch != take->epoch) return fail_no_take();
  if (offset > import->pool_bytes || bytes > import->pool_bytes - offset) return fail_outside();
  *out = import->pool + offset;
  return 0;
}

/* One of `to` and `to_host`. */
static int copy_apart(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, uint64_t offset, uint64_t bytes,
                      rc_cu_ptr to, void *to_host) {
  struct rc_cuda_entry entry;
  rc_cu_ptr from;
  if (!is_open(gpu, take)) return fail_no_take();
  if (bytes == 0) return 0;
  int failed = rc_gpu_reader_enter_context(gpu, &entry);
  if (failed != 0) return failed;
  failed = rc_gpu_reader_failed(gpu, rc_device_check_stream(&gpu->device, take->stream));
  if (failed == 0) failed = locate(gpu, take, offset, bytes, &from);
  const struct rc_cuda *cuda = gpu->device.cuda;
  if (failed == 0)
    failed = rc_gpu_reader_copied(gpu, to_host ? cuda->copy_dtoh(to_host, from, bytes, take->stream)
                                               : cuda->copy_dtod(to, from, bytes, take->stream));
  rc_cuda_leave(&entry);
  if (failed == 0) gpu->pool_bytes += bytes;
  return failed;
}

int ringcast_gpu_copy_pool(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, uint64_t offset, uint64_t bytes,
                           ringcast_device_ptr to) {
  return copy_apart(gpu, take, offset, bytes, to, NULL);
}

int ringcast_gpu_copy_out(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, const struct ringcast_item *item,
                          ringcast_device_ptr to) {
  if (item->placement == RINGCAST_PLACEMENT_INLINE)
    return ringcast_gpu_copy_frame(gpu, take, item->data, item->bytes, to);
  return copy_apart(gpu, take, item->device_offset, item->bytes, to, NULL);
}

static int synchronise(ringcast_gpu_reader *gpu, rc_cu_stream stream) {
  struct rc_cuda_entry entry;
  int failed = rc_gpu_reader_enter(gpu, &entry);
  if (failed != 0) return failed;
  gpu->syncs++;
  rc_cu_result result = gpu->device.cuda->stream_synchronize(stream);
  if (result != RC_CU_SUCCESS) failed = rc_gpu_reader_failed(gpu, rc_cuda_fail(result, "cuStreamSynchronize"));
  rc_cuda_leave(&entry);
  return failed;
}

int ringcast_gpu_copy_to_host(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take,
                              const struct ringcast_item *item, void *to) {
  if (item->placement != RINGCAST_PLACEMENT_INLINE) {
    int failed = copy_apart(gpu, take, item->device_offset, item->bytes, 0, to);
    if (failed == 0 && item->bytes > 0) failed = synchronise(gpu, take->stream);
    return failed != 0 ? failed : ringcast_gpu_check(gpu);
  }
  int refused = rc_check_fork(gpu->forks);
  if (refused != 0) return refused;
  if (!is_open(gpu, take)) return fail_no_take();
  if (!is_inside(&take->frame, item->data, item->bytes)) return fail_outside();
  if (item->bytes > 0) memcpy(to, item->data, item->bytes);
  return 0;
}

int ringcast_gpu_map(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, const struct ringcast_item *item,
                     ringcast_device_ptr *out, ringcast_gpu_hold **hold) {
  rc_cu_ptr where;
  if (!is_open(gpu, take)) return fail_no_take();
  if (item->placement != RINGCAST_PLACEMENT_POOL)
    return rc_fail_as(-ENOTSUP, "only what lies in the writer's pool can be looked at in place: copy it");
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = locate(gpu, take, item->device_offset, item->bytes, &where);
  if (failed != 0) return failed;
  ringcast_gpu_hold *made = malloc(sizeof *made);
  if (!made) return rc_fail(-ENOMEM, "out of memory");
  *made = (ringcast_gpu_hold){.import = gpu->import, .slot = take->slot};
  if (!rc_import_hold(gpu->import, take->slot, take->generation)) {
    free(made);
    return fail_no_take();
  }
  take->maps++;
  *out = where;
  *hold = made;
  return 0;
}

void ringcast_gpu_unmap(ringcast_gpu_hold *hold) {
  if (!hold) return;
  if (hold->import->forks == rc_fork_count()) { /* in a forked child the pool is the parent's */
    rc_import_unhold(hold->import, hold->slot);
    rc_import_drop(hold->import);
  }
  free(hold);
}

/* -EBUSY: the `ack` would go into a graph. */
static int end_in_pool(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  struct rc_cuda_entry entry;
  struct rc_import *import = gpu->import;
  if (take->epoch == 0 || !import || import->segment.epoch != take->epoch) return 0;
  bool has_entered = rc_gpu_reader_enter_context(gpu, &entry) == 0;
  int failed = has_entered ? rc_device_check_stream(&gpu->device, take->stream) : 0;
  if (failed != -EBUSY) {
    rc_cu_result result = rc_import_end(import, take->slot, take->generation, has_entered);
    gpu->pool_frames++;
    failed = result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "cuStreamWriteValue");
  }
  if (has_entered) rc_cuda_leave(&entry);
  return failed == -EBUSY ? failed : rc_gpu_reader_failed(gpu, failed);
}

int ringcast_gpu_end(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  if (!is_open(gpu, take)) return fail_no_take();
  failed = end_in_pool(gpu, take);
  if (failed == -EBUSY) return failed;
  gpu->inline_frames += (take->state & TAKE_INLINE) != 0;
  *find_begun(gpu, take->frame.position + 1) = 0;
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
