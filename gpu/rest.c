/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of what a device reads of the ring itself. A stream has no time limit, so who closes a reader can't wait for
 * it, and nobody may unmap what a device is still to read (a fault that breaks the context), nor let the writer
 * write there. So whatever has not come to its end within a second is a rest, which goes on without the reader:
 *
 *   the ringcast_reader is open      its own thread gives frames back as they are read, whenever it finds none
 *   it has left, or was closed       a thread of the rest's does; then it unregisters the ring, and leaves it
 *
 * So the slot in the ring, by which the writer is held back, and the mapping are there until then, whatever was closed;
 * if the process ends before, both go with it.
 *
 * That a device has read a frame is told by a mark (deferred.c). A take that was never ended has none, and nobody may
 * ask its stream once the reader has closed: it may be gone by then. So it gets a mark too, or, where its stream
 * captures a graph, as soon as that is over. (Where the stream was destroyed before that, against the rules, the
 * context is synchronised.) Its frame is still the caller's: it is given back when both have done with it.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "gpu/reader.h"
#include "shm/error.h"

#define PAUSE_NS      20000
#define MOST_PAUSE_NS 20000000

/* ---- Takes that were never ended -------------------------------------------------------------------------------- */

bool rc_ring_take_note(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame, rc_cu_stream stream) {
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++) {
    if (gpu->taken[i].used) continue;
    gpu->taken[i] = (struct rc_ring_take){.frame = *frame, .stream = stream, .used = true};
    return true;
  }
  return false;
}

void rc_ring_take_end(ringcast_gpu_reader *gpu, uint64_t position) {
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++)
    if (gpu->taken[i].frame.position == position) gpu->taken[i].used = false;
}

static struct rc_word *mark_of(const ringcast_gpu_reader *gpu, uint32_t i) {
  return &gpu->marks[RC_GPU_MAX_DEFERRED + i];
}

static void mark(ringcast_gpu_reader *gpu, uint32_t i) {
  struct rc_ring_take *take = &gpu->taken[i];
  rc_cu_ptr address;
  if (!rc_marks_make(gpu) || rc_device_check_stream(&gpu->device, take->stream) != 0) return;
  address = gpu->marks_address + (RC_GPU_MAX_DEFERRED + i) * sizeof *gpu->marks;
  take->marked = rc_word_write(gpu->device.cuda, rc_marks_bits(gpu), take->stream, address, 1) == RC_CU_SUCCESS;
}

/* One that captures a graph can't be asked: that would spoil it. */
static bool is_read(ringcast_gpu_reader *gpu, uint32_t i) {
  const struct rc_ring_take *take = &gpu->taken[i];
  if (gpu->is_rest && !take->marked) mark(gpu, i);
  if (take->marked) return rc_word_has_reached(mark_of(gpu, i), rc_marks_bits(gpu), 1);
  return rc_device_check_stream(&gpu->device, take->stream) != -EBUSY &&
         gpu->device.cuda->stream_query(take->stream) == RC_CU_SUCCESS;
}

/* It was destroyed against the rules: before the reader has closed. */
static bool is_gone(ringcast_gpu_reader *gpu, uint32_t i) {
  const struct rc_ring_take *take = &gpu->taken[i];
  if (!take->used || take->marked || rc_device_check_stream(&gpu->device, take->stream) == -EBUSY) return false;
  rc_cu_result result = gpu->device.cuda->stream_query(take->stream);
  return result != RC_CU_SUCCESS && result != RC_CU_NOT_READY;
}

static void end_take(ringcast_gpu_reader *gpu, uint32_t i) {
  gpu->taken[i].used = false;
  if (gpu->taken[i].pinned) rc_reader_unpin(gpu->reader, &gpu->taken[i].frame);
}

/* ---- What is left ----------------------------------------------------------------------------------------------- */

static void give_back_read(ringcast_gpu_reader *gpu) {
  rc_deferred_settle(gpu, UINT64_MAX, 0);
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++)
    if (gpu->taken[i].used && is_read(gpu, i)) end_take(gpu, i);
}

/* A device that is lost reads nothing any more. */
static void give_back_all(ringcast_gpu_reader *gpu) {
  rc_deferred_drop(gpu);
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++)
    if (gpu->taken[i].used) end_take(gpu, i);
}

static bool is_all_read(const ringcast_gpu_reader *gpu) {
  bool is_all = gpu->stuck == 0;
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++) is_all &= !gpu->taken[i].used && !gpu->deferred[i].frame.data;
  return is_all;
}

/* Whether nothing is read any more. Waits for nothing. */
static bool look(ringcast_gpu_reader *gpu) {
  struct rc_cuda_entry entry;
  if (rc_cuda_enter(gpu->device.context, &entry) == RC_CU_SUCCESS) {
    give_back_read(gpu);
    rc_cuda_leave(&entry);
    if (is_all_read(gpu)) return true;
  }
  if (!rc_device_is_lost(&gpu->device)) return false; /* not already if it can't be entered once */
  give_back_all(gpu);
  return true;
}

/* What is registered may be unmapped only after that was undone. */
static void unregister(ringcast_gpu_reader *gpu) {
  const struct rc_cuda *cuda = gpu->device.cuda;
  struct rc_cuda_entry entry;
  bool has_entered = rc_device_enter_to_close(&gpu->device, &entry);
  if (has_entered && gpu->registered) cuda->host_unregister(gpu->reader->ring.ring.data);
  rc_words_end(has_entered ? cuda : NULL, gpu->marks, RC_GPU_MARKS);
  if (has_entered) rc_cuda_leave(&entry);
  gpu->registered = false;
  gpu->marks = NULL;
}

static bool try_to_end(ringcast_gpu_reader *gpu) {
  if (!look(gpu)) return false;
  unregister(gpu);
  rc_device_close(&gpu->device);
  return true;
}

static void pause_longer(struct timespec *pause, int64_t most) {
  nanosleep(pause, NULL);
  if (pause->tv_nsec < most) pause->tv_nsec *= 2;
}

/* ---- A rest ----------------------------------------------------------------------------------------------------- */

static ringcast_gpu_reader *of_rest(struct rc_rest *rest) { return (ringcast_gpu_reader *)rest; }

static void settle(struct rc_rest *rest) { look(of_rest(rest)); }

static void end_of_rest(ringcast_gpu_reader *gpu) {
  rc_reader_end_rest(gpu->reader);
  free(gpu);
}

/* Of streams that are gone, or are not known, nothing can be asked: what they had to do is done when the context has
 * nothing left. */
static void see_to_gone(ringcast_gpu_reader *gpu) {
  bool gone[RC_GPU_MAX_DEFERRED], is_any = gpu->stuck > 0;
  struct rc_cuda_entry entry;
  if (rc_cuda_enter(gpu->device.context, &entry) != RC_CU_SUCCESS) return;
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++) is_any |= gone[i] = is_gone(gpu, i);
  bool is_done = is_any && rc_device_synchronise(&gpu->device, &gpu->seldom);
  rc_cuda_leave(&entry);
  if (is_done) gpu->stuck = 0;
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED && is_done; i++)
    if (gone[i]) end_take(gpu, i);
}

static void *go_on(void *context) {
  ringcast_gpu_reader *gpu = context;
  struct timespec pause = {.tv_nsec = PAUSE_NS};
  for (; !try_to_end(gpu); pause_longer(&pause, MOST_PAUSE_NS)) see_to_gone(gpu);
  end_of_rest(gpu);
  return NULL;
}

/* Where no thread is to be had, and a device reads it still, the ring stays as it is. */
static void take_over(struct rc_rest *rest) {
  ringcast_gpu_reader *gpu = of_rest(rest);
  if (rc_thread_start(go_on, gpu) != 0 && try_to_end(gpu)) end_of_rest(gpu);
}

/* As long as the streams are there still. */
static void mark_and_pin(ringcast_gpu_reader *gpu) {
  struct rc_cuda_entry entry;
  bool has_entered = rc_cuda_enter(gpu->device.context, &entry) == RC_CU_SUCCESS;
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++) {
    struct rc_ring_take *take = &gpu->taken[i];
    if (!take->used) continue;
    if (has_entered) mark(gpu, i);
    take->pinned = rc_ring_holds(&gpu->reader->ring, take->frame.position);
    if (take->pinned) rc_reader_pin(gpu->reader, take->frame.position);
  }
  if (has_entered) rc_cuda_leave(&entry);
}

struct rc_rest *rc_rest_of(ringcast_gpu_reader *gpu) {
  struct timespec pause = {.tv_nsec = PAUSE_NS};
  for (int64_t until = rc_now_ns() + rc_ring_slack_ns; !try_to_end(gpu);
       pause_longer(&pause, MOST_PAUSE_NS / 20)) {
    if (rc_now_ns() < until) continue;
    gpu->rest = (struct rc_rest){.settle = settle, .take_over = take_over};
    gpu->is_rest = true;
    mark_and_pin(gpu);
    return &gpu->rest;
  }
  return NULL;
}

bool rc_rest_try_to_end(struct rc_rest *rest) {
  if (!try_to_end(of_rest(rest))) return false;
  of_rest(rest)->reader->rest = NULL;
  free(of_rest(rest));
  return true;
}
