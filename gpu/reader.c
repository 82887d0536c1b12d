/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader's side of ringcast/gpu.h: from the pool, or the ring, to the caller's memory, on the caller's stream. What
 * is enqueued for a frame of the pool, and who else must know of it, is told atop import.c; for a frame of the ring, in
 * deferred.c.
 */
#include "gpu/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ring/point.h"
#include "shm/disable.h"
#include "shm/error.h"

#define SLICE_NS 200000 /* a reader that has deferred too much sleeps no longer without looking for marks */

enum { TAKE_NONE, TAKE_OPEN = 1, TAKE_DEFERS = 2, TAKE_WAITS = 4, TAKE_UNNOTED = 8 };

struct ringcast_gpu_hold {
  struct rc_import *import;
  uint32_t slot;
};

int rc_gpu_reader_enter(const ringcast_gpu_reader *gpu, struct rc_cuda_entry *entry) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  rc_cu_result result = rc_cuda_enter(gpu->device.context, entry);
  return result == RC_CU_SUCCESS ? 0 : rc_cuda_fail(result, "cuCtxPushCurrent");
}

int rc_gpu_reader_failed(ringcast_gpu_reader *gpu, int code) {
  if (code == -EIO && gpu->import && rc_device_is_lost(&gpu->device)) rc_import_lose(gpu->import, code);
  return code;
}

/* ---- The pool --------------------------------------------------------------------------------------------------- */

static void note_refusal(ringcast_gpu_reader *gpu, uint32_t epoch) {
  gpu->refused = epoch;
  strncpy(gpu->why, rc_error_text(), sizeof gpu->why - 1);
}

/* The pool that the writer has now, if it can be opened. What is open of an earlier one is closed. */
static void open_pool(ringcast_gpu_reader *gpu) {
  struct rc_gpu_place place;
  if (rc_gpu_place_read(&gpu->reader->ring.ring.control->device, &place) != 0) return;
  /* There may be frames of an earlier one still to be read, or being read. */
  if (gpu->reader->ring.cursor < place.position) return;
  if (gpu->import && gpu->import->segment.epoch == place.epoch) return;
  if (gpu->refused == place.epoch) return;
  if (rc_disabled("cuda_pool")) {
    rc_fail_as(-ENOTSUP, "RINGCAST_DISABLE says cuda_pool");
    note_refusal(gpu, place.epoch);
    return;
  }
  if (gpu->import) {
    gpu->missing |= rc_import_is_missing(gpu->import); /* what it was asked for is asked for still */
    rc_import_close(gpu->import);
  }
  gpu->import = NULL;
  int failed = rc_import_open(gpu->reader, &gpu->device, &place, &gpu->import);
  if (failed == 0) gpu->opens++;
  else if (failed != -EAGAIN && failed != -ENOENT) note_refusal(gpu, place.epoch);
}

int ringcast_gpu_reader_prepare(ringcast_gpu_reader *gpu) {
  struct rc_cuda_entry entry;
  int failed = rc_gpu_reader_enter(gpu, &entry);
  if (failed != 0) return failed;
  open_pool(gpu);
  rc_cuda_leave(&entry);
  uint32_t epoch = rc_load_relaxed(&gpu->reader->ring.ring.control->device.epoch); /* relaxed: to be told apart alone */
  if (epoch != 0 && gpu->import && gpu->import->segment.epoch == epoch) return 0;
  if (epoch != 0 && gpu->refused == epoch) return rc_fail(-ENOTSUP, "the writer's pool can't be opened: %s", gpu->why);
  return rc_fail_as(-EAGAIN, "the writer has no device pool now, or frames of an earlier one are to be read first");
}

/* ---- Open, close ------------------------------------------------------------------------------------------------ */

static int check_options(const struct ringcast_gpu_reader_options *given) {
  if (!given) return rc_check_disable();
  if (given->size != sizeof *given)
    return rc_fail(-EINVAL, "options.size is %u, not %zu: set it to sizeof(struct ringcast_gpu_reader_options)",
                   given->size, sizeof *given);
  if (given->flags != 0 || given->reserved != 0) return rc_fail_as(-EINVAL, "options.flags and reserved must be 0");
  return rc_check_disable();
}

int ringcast_gpu_reader_open(ringcast_reader *reader, const struct ringcast_gpu_reader_options *options,
                             ringcast_gpu_reader **out) {
  int failed = rc_check_fork(reader->forks);
  if (failed == 0) failed = check_options(options);
  if (failed != 0) return failed;
  if (reader->has_gpu) return rc_fail_as(-EBUSY, "this reader has a ringcast_gpu_reader already: close that first");
  ringcast_gpu_reader *gpu = calloc(1, sizeof *gpu);
  if (!gpu) return rc_fail(-ENOMEM, "out of memory");
  gpu->reader = reader;
  gpu->forks = rc_fork_count();
  failed = rc_device_open(options ? options->device : -1, &gpu->device);
  if (failed != 0) {
    free(gpu);
    return failed;
  }
  reader->has_gpu = true;
  *out = gpu;
  return 0;
}

void ringcast_gpu_reader_close(ringcast_gpu_reader *gpu) {
  struct rc_cuda_entry entry;
  if (!gpu) return;
  if (gpu->forks == rc_fork_count()) { /* in a forked child all of it is the parent's */
    bool has_entered = rc_cuda_enter(gpu->device.context, &entry) == RC_CU_SUCCESS;
    bool is_done = rc_deferred_end(gpu);
    if (has_entered) rc_cuda_leave(&entry);
    if (gpu->import) rc_import_close(gpu->import);
    if (is_done) rc_device_close(&gpu->device); /* else its streams still read the ring */
    gpu->reader->has_gpu = false;
  }
  free(gpu);
}

/* ---- The next frame --------------------------------------------------------------------------------------------- */

int ringcast_gpu_tidy(ringcast_gpu_reader *gpu, int before_sleep) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  int64_t until = before_sleep > 1 ? rc_now_ns() + before_sleep : INT64_MAX;
  failed = rc_deferred_settle(gpu, before_sleep ? gpu->reader->ring.ring.capacity / 4 : UINT64_MAX, until);
  return failed == 0 ? 0 : rc_fail_as(failed, "a device still copies frames that the writer may come to wait for");
}

/* Sleeps in slices as long as too much is deferred: whoever sleeps releases nothing. */
static int next_with_deferred(ringcast_gpu_reader *gpu, int64_t timeout_ns, struct ringcast_frame *out) {
  int64_t now = rc_now_ns(), until = timeout_ns > 0 && timeout_ns < INT64_MAX - now ? now + timeout_ns : INT64_MAX;
  for (bool waits = false; ringcast_gpu_tidy(gpu, 2) == -EAGAIN; waits = true) {
    gpu->syncs += !waits;
    int64_t left = until - rc_now_ns();
    int rc = ringcast_reader_next(gpu->reader, left < 0 ? 0 : left < SLICE_NS ? left : SLICE_NS, out);
    if (rc != -ETIMEDOUT && rc != -EAGAIN) return rc;
    if (left <= SLICE_NS) return rc_fail_as(-ETIMEDOUT, "no frame came in that time");
  }
  if (until == INT64_MAX) return ringcast_reader_next(gpu->reader, timeout_ns, out);
  int64_t left = until - rc_now_ns();
  int rc = ringcast_reader_next(gpu->reader, left < 0 ? 0 : left, out);
  return rc == -EAGAIN ? rc_fail_as(-ETIMEDOUT, "no frame came in that time") : rc;
}

int ringcast_gpu_next(ringcast_gpu_reader *gpu, int64_t timeout_ns, struct ringcast_frame *out) {
  int failed = rc_check_wait(gpu->forks, timeout_ns);
  if (failed == 0) failed = ringcast_gpu_tidy(gpu, 0);
  if (failed != 0) return failed;
  if (timeout_ns == 0 || gpu->reader->ring.deferred == 0) return ringcast_reader_next(gpu->reader, timeout_ns, out);
  return next_with_deferred(gpu, timeout_ns, out);
}

/* ---- A frame ---------------------------------------------------------------------------------------------------- */

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

/* Notes it, and has the stream wait. */
static int begin_in_pool(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  struct rc_import *import = import_of(gpu, take->epoch, take->frame.position);
  if (!import) return fail_not_counted();
  int failed = rc_import_take(import, take->slot, take->generation, take->stream);
  if (failed != 0) return failed;
  const struct rc_gpu_segment *segment = &import->segment;
  rc_cu_ptr ready = segment->address + rc_gpu_ready_at(segment->consumers, take->slot);
  rc_cu_result result = rc_word_wait(gpu->device.cuda, segment->word_bits, take->stream, ready, take->generation);
  RC_POINT(WAIT_ENQUEUED);
  if (result == RC_CU_SUCCESS) return 0;
  rc_import_forget(import, take->slot);
  return rc_gpu_reader_failed(gpu, rc_cuda_fail(result, "cuStreamWaitValue of a pool's word"));
}

int ringcast_gpu_begin(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame, ringcast_stream stream,
                       struct ringcast_gpu_take *out) {
  struct ringcast_frame_reader opened;
  struct rc_cuda_entry entry;
  if (frame->kind != RINGCAST_KIND_TENSORS) return rc_fail_as(-EINVAL, "this frame holds bytes, and no tensors");
  if (ringcast_frame_open(&opened, frame->data, frame->bytes) != 0)
    return rc_fail_as(-EPROTO, "the frame's header makes no sense, or is of a later version");
  int failed = rc_gpu_reader_enter(gpu, &entry);
  if (failed != 0) return failed;
  struct ringcast_gpu_take take = {.frame = *frame,
                                   .stream = stream,
                                   .slot = opened.device_slot,
                                   .epoch = opened.device_epoch,
                                   .generation = opened.device_generation,
                                   .state = TAKE_OPEN};
  failed = rc_gpu_reader_failed(gpu, rc_device_check_stream(&gpu->device, stream));
  if (failed == 0) open_pool(gpu);
  if (failed == 0 && take.epoch != 0) failed = begin_in_pool(gpu, &take);
  rc_cuda_leave(&entry);
  if (failed == 0) *out = take;
  return failed;
}

static int fail_no_take(void) { return rc_fail_as(-EINVAL, "this take is not open: begin it first"); }

static int fail_outside(void) { return rc_fail_as(-EPROTO, "a tensor of the frame points outside of where it may be"); }

/* Waits for what the take's stream reads of the ring, if that can't be waited for later. */
static rc_cu_result note_ring_take(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  bool is_new = !(take->state & (TAKE_DEFERS | TAKE_WAITS | TAKE_UNNOTED));
  if (is_new && !rc_ring_take_note(gpu, take->frame.position, take->stream)) take->state |= TAKE_UNNOTED;
  return take->state & TAKE_UNNOTED ? gpu->device.cuda->stream_synchronize(take->stream) : RC_CU_SUCCESS;
}

/* After a copy was enqueued. */
static int copied(ringcast_gpu_reader *gpu, rc_cu_result result) {
  RC_POINT(COPIED_OUT);
  return result == RC_CU_SUCCESS ? 0 : rc_gpu_reader_failed(gpu, rc_cuda_fail(result, "a copy to the device"));
}

int ringcast_gpu_copy_frame(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, const void *from, uint64_t bytes,
                            ringcast_device_ptr to) {
  struct rc_cuda_entry entry;
  const uint8_t *start = take->frame.data, *first = from;
  if (!(take->state & TAKE_OPEN)) return fail_no_take();
  if (first < start || (uint64_t)(first - start) > take->frame.bytes ||
      bytes > take->frame.bytes - (uint64_t)(first - start))
    return fail_outside();
  if (bytes == 0) return 0;
  int failed = rc_gpu_reader_enter(gpu, &entry);
  if (failed != 0) return failed;
  failed = rc_gpu_reader_failed(gpu, rc_device_check_stream(&gpu->device, take->stream));
  if (failed == 0) {
    uint32_t way = rc_ring_is_registered(gpu, from, bytes) ? TAKE_DEFERS : TAKE_WAITS;
    rc_cu_result result = gpu->device.cuda->copy_htod(to, from, bytes, take->stream);
    rc_cu_result noted = note_ring_take(gpu, take);
    take->state |= way;
    failed = copied(gpu, result != RC_CU_SUCCESS ? result : noted);
  }
  rc_cuda_leave(&entry);
  return failed;
}

/* Where an item lies on the device. */
static int locate(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, const struct ringcast_item *item,
                  rc_cu_ptr *out) {
  struct rc_import *import = gpu->import;
  if (take->epoch == 0 || !import || import->segment.epoch != take->epoch) return fail_no_take();
  if (item->placement == RINGCAST_PLACEMENT_EXTERN)
    return rc_import_lent(import, item->lent, item->device_offset, item->bytes, out);
  if (item->device_offset > import->pool_bytes || item->bytes > import->pool_bytes - item->device_offset)
    return fail_outside();
  *out = import->pool + item->device_offset;
  return 0;
}

/* One of `to` and `to_host`. */
static int copy_apart(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take, const struct ringcast_item *item,
                      rc_cu_ptr to, void *to_host) {
  struct rc_cuda_entry entry;
  rc_cu_ptr from;
  if (!(take->state & TAKE_OPEN)) return fail_no_take();
  if (item->bytes == 0) return 0;
  int failed = rc_gpu_reader_enter(gpu, &entry);
  if (failed != 0) return failed;
  failed = rc_gpu_reader_failed(gpu, rc_device_check_stream(&gpu->device, take->stream));
  if (failed == 0) failed = locate(gpu, take, item, &from);
  const struct rc_cuda *cuda = gpu->device.cuda;
  if (failed == 0)
    failed = copied(gpu, to_host ? cuda->copy_dtoh(to_host, from, item->bytes, take->stream)
                                 : cuda->copy_dtod(to, from, item->bytes, take->stream));
  rc_cuda_leave(&entry);
  if (failed == 0) gpu->pool_bytes += item->bytes;
  return failed;
}

int ringcast_gpu_copy_pool(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, uint64_t offset, uint64_t bytes,
                           ringcast_device_ptr to) {
  struct ringcast_item item;
  item.placement = RINGCAST_PLACEMENT_POOL;
  item.device_offset = offset;
  item.bytes = bytes;
  return copy_apart(gpu, take, &item, to, NULL);
}

int ringcast_gpu_copy_out(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, const struct ringcast_item *item,
                          ringcast_device_ptr to) {
  return item->placement == RINGCAST_PLACEMENT_INLINE ? ringcast_gpu_copy_frame(gpu, take, item->data, item->bytes, to)
                                                      : copy_apart(gpu, take, item, to, NULL);
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
    int failed = copy_apart(gpu, take, item, 0, to);
    if (failed == 0 && item->bytes > 0) failed = synchronise(gpu, take->stream);
    return failed != 0 ? failed : ringcast_gpu_check(gpu);
  }
  const uint8_t *start = take->frame.data, *from = item->data;
  int refused = rc_check_fork(gpu->forks);
  if (refused != 0) return refused;
  if (!(take->state & TAKE_OPEN)) return fail_no_take();
  if (from < start || (uint64_t)(from - start) > take->frame.bytes ||
      item->bytes > take->frame.bytes - (uint64_t)(from - start))
    return fail_outside();
  if (item->bytes > 0) memcpy(to, from, item->bytes);
  return 0;
}

int ringcast_gpu_map(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take, const struct ringcast_item *item,
                     ringcast_device_ptr *out, ringcast_gpu_hold **hold) {
  rc_cu_ptr where;
  if (!(take->state & TAKE_OPEN)) return fail_no_take();
  if (item->placement != RINGCAST_PLACEMENT_POOL)
    return rc_fail_as(-ENOTSUP, "only what lies in the writer's pool can be looked at in place: copy it");
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = locate(gpu, take, item, &where);
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

/* Gives the frame back, when its bytes have been read. */
static int give_back(ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take) {
  struct rc_cuda_entry entry;
  int failed = take->state & TAKE_WAITS ? synchronise(gpu, take->stream) : 0;
  if (failed != 0 || !(take->state & TAKE_DEFERS) || take->state & TAKE_WAITS) {
    int released = ringcast_reader_release(gpu->reader, &take->frame);
    return failed != 0 ? failed : released;
  }
  int checked = ringcast_reader_check(gpu->reader);
  failed = rc_gpu_reader_enter(gpu, &entry);
  if (failed != 0) { /* nothing can be waited for: what is copied of it may be wrong, as the error says */
    ringcast_reader_release(gpu->reader, &take->frame);
    return failed;
  }
  failed = rc_deferred_add(gpu, &take->frame, take->stream);
  rc_cuda_leave(&entry);
  return checked != 0 ? checked : failed;
}

/* -EBUSY: what is to be enqueued now would go into a graph. Other failures are for the calls themselves to find. */
static int check_end(const ringcast_gpu_reader *gpu, const struct ringcast_gpu_take *take) {
  struct rc_cuda_entry entry;
  if (take->epoch == 0 && !(take->state & (TAKE_DEFERS | TAKE_WAITS))) return 0;
  if (rc_gpu_reader_enter(gpu, &entry) != 0) return 0;
  int failed = rc_device_check_stream(&gpu->device, take->stream);
  rc_cuda_leave(&entry);
  return failed == -EBUSY ? failed : 0;
}

int ringcast_gpu_end(ringcast_gpu_reader *gpu, struct ringcast_gpu_take *take) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  if (!(take->state & TAKE_OPEN)) return fail_no_take();
  failed = check_end(gpu, take);
  if (failed != 0) return failed;
  bool is_here = gpu->import && take->epoch != 0 && gpu->import->segment.epoch == take->epoch;
  if (is_here) {
    rc_cu_result result = rc_import_end(gpu->import, take->slot);
    gpu->pool_frames++;
    if (result != RC_CU_SUCCESS) failed = rc_gpu_reader_failed(gpu, rc_cuda_fail(result, "cuStreamWriteValue"));
  }
  int given = give_back(gpu, take);
  if (take->state & (TAKE_DEFERS | TAKE_WAITS)) gpu->inline_frames++;
  rc_ring_take_end(gpu, take->frame.position);
  take->state = TAKE_NONE;
  return failed != 0 ? failed : given;
}

int ringcast_gpu_release(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame) {
  struct ringcast_frame_reader opened;
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  bool is_whole = frame->kind == RINGCAST_KIND_TENSORS && ringcast_reader_check(gpu->reader) == 0 &&
                  ringcast_frame_open(&opened, frame->data, frame->bytes) == 0;
  if (is_whole && opened.device_epoch != 0) {
    struct rc_import *import = import_of(gpu, opened.device_epoch, frame->position);
    if (import) rc_import_pass(import, opened.device_slot, opened.device_generation);
  }
  return ringcast_reader_release(gpu->reader, frame);
}

/* ---- Introspection ---------------------------------------------------------------------------------------------- */

int ringcast_gpu_check(const ringcast_gpu_reader *gpu) {
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  failed = ringcast_reader_check(gpu->reader); /* evicted: what was read may have been overwritten meanwhile */
  if (failed != 0) return failed;
  if (!gpu->missing && (!gpu->import || !rc_import_is_missing(gpu->import))) return 0;
  return rc_fail_as(-EPIPE, "the writer, or a device, has failed, and device tensors that were being received never "
                            "came: drop what was made of them");
}

int ringcast_gpu_reader_info(ringcast_gpu_reader *gpu, struct ringcast_gpu_info *out) {
  if (out->size != sizeof *out)
    return rc_fail(-EINVAL, "info.size is %u, not %zu: set it to sizeof(struct ringcast_gpu_info)", out->size,
                   sizeof *out);
  int failed = rc_check_fork(gpu->forks);
  if (failed != 0) return failed;
  struct rc_import *import = gpu->import;
  bool is_lost = import && (rc_import_is_missing(import) || rc_load_acquire(&import->dead)); /* pairs with X0 */
  uint32_t way = is_lost         ? RINGCAST_GPU_WAY_LOST
                 : import        ? RINGCAST_GPU_WAY_POOL
                 : gpu->refused  ? RINGCAST_GPU_WAY_REFUSED
                                 : RINGCAST_GPU_WAY_NO_POOL;
  *out = (struct ringcast_gpu_info){
      .size = sizeof *out,
      .way = way,
      .device = gpu->device.ordinal,
      .word_bits = import ? import->segment.word_bits : 0,
      .pool_bytes = import ? import->pool_bytes : 0,
      .slots = import ? import->segment.slots : 0,
      .epoch = import ? import->segment.epoch : 0,
      .reader = gpu->reader->ring.slot,
      .pool_frames = gpu->pool_frames,
      .pool_bytes_sent = gpu->pool_bytes,
      .inline_frames = gpu->inline_frames,
      .opens = gpu->opens,
      .syncs = gpu->syncs,
      .registered = gpu->registered,
  };
  if (way == RINGCAST_GPU_WAY_REFUSED) memcpy(out->why, gpu->why, sizeof gpu->why);
  return 0;
}
