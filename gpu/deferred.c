/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the ring to the device. Where the ring's memory is registered with the driver, a copy reads it when the stream
 * gets there, which may be long after the call. So the frame is not given back before: behind its copies the stream
 * writes a word, a mark, and this reader's next calls release the frames whose marks have come.
 *
 * That must never hold up the writer while this reader sleeps: nobody would release anything then. A sleeping reader
 * has read all there is, so the writer's next frame lies behind the newest; it has room unless what is deferred reaches
 * further back than the ring is long, less that frame, which is at most half a ring. So before it may sleep, a reader
 * waits until all that is deferred lies within a quarter of the ring; that next frame then wakes it. Spill memory is
 * given back in the order of the ring, too: so it also waits for what was deferred before the last frame that lay
 * there.
 *
 * A reader may as well sleep elsewhere: in a barrier, or for room in a ring of its own, whose readers wait for room in
 * this one. So the end of a take waits for the same, for a second at most: a stream may itself wait for what comes of
 * that sleep. Where it was in vain it is not tried again before the device has read a frame.
 *
 * A writer that evicts slow readers waits for no frame, held or not. What a device reads after the call could be
 * overwritten meanwhile, and nobody would be told: there nothing is deferred, and the end of a take looks once more.
 */
#include <errno.h>
#include <time.h>

#include "gpu/reader.h"
#include "ring/point.h"
#include "shm/disable.h"
#include "shm/error.h"

#define PAUSE_NS 20000
#define SPIN_NS  50000 /* a stream is looked at for so long before it is worth a pause */
#define ASK_NS   1000000 /* between two times that the driver is asked whether there is a device still */

int64_t rc_ring_patience_ns = (int64_t)10 * 1000 * 1000 * 1000;
int64_t rc_ring_slack_ns = (int64_t)1000 * 1000 * 1000;

static int fail_not_read(void) {
  return rc_fail_as(-ETIMEDOUT, "the device has not read the frame yet, as its stream is behind: the frame is held "
                                "until it has: try again");
}

int rc_ring_await(ringcast_gpu_reader *gpu, rc_cu_stream stream, int64_t patience_ns) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  rc_cu_result result;
  gpu->syncs += patience_ns > 0;
  for (int64_t began = rc_now_ns(), waited;;) {
    /* Another thread may begin a capture meanwhile: to ask would spoil it, and would say nothing. */
    if (rc_device_check_stream(&gpu->device, stream) == -EBUSY) return -EBUSY;
    result = rc_stream_await(gpu->device.cuda, stream, 0);
    if (result != RC_CU_NOT_READY) break;
    waited = rc_now_ns() - began;
    if (waited > patience_ns) return fail_not_read();
    if (waited > SPIN_NS) nanosleep(&pause, NULL);
  }
  return result == RC_CU_SUCCESS ? 0 : rc_gpu_reader_failed(gpu, rc_cuda_fail(result, "cuStreamQuery"));
}

/* The words first: without them nothing is to be copied from the ring itself. */
bool rc_marks_make(ringcast_gpu_reader *gpu) {
  const struct rc_cuda *cuda = gpu->device.cuda;
  if (gpu->marks) return true;
  if (!cuda->write_value64 && !cuda->write_value32) return false;
  return rc_words_make(cuda, RC_GPU_MARKS, &gpu->marks, &gpu->marks_address) == 0;
}

/* Once. Both mappings of the ring follow each other, and a frame may lie across them. */
static void register_ring(ringcast_gpu_reader *gpu) {
  const struct rc_ring *ring = &gpu->reader->ring.ring;
  const struct rc_cuda *cuda = gpu->device.cuda;
  int can_read_only = 0;
  gpu->tried_to_register = true;
  if (rc_disabled("cuda_register") || !rc_marks_make(gpu)) return;
  cuda->device_get_attribute(&can_read_only, RC_CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
                             gpu->device.device);
  unsigned flags = RC_CU_MEMHOSTREGISTER_PORTABLE | (can_read_only ? RC_CU_MEMHOSTREGISTER_READ_ONLY : 0);
  gpu->registered = cuda->host_register(ring->data, 2 * ring->capacity, flags) == RC_CU_SUCCESS;
}

bool rc_ring_is_registered(ringcast_gpu_reader *gpu, const void *data, uint64_t bytes) {
  const struct rc_ring *ring = &gpu->reader->ring.ring;
  const uint8_t *from = data;
  if (rc_load_relaxed(&ring->control->evicts)) return false; /* relaxed: stored before anybody had the handle */
  if (!gpu->tried_to_register) register_ring(gpu);
  return gpu->registered && from >= ring->data && from < ring->data + 2 * ring->capacity &&
         bytes <= (uint64_t)(ring->data + 2 * ring->capacity - from);
}

static bool is_done(const ringcast_gpu_reader *gpu, uint32_t i) {
  return rc_word_has_reached(&gpu->marks[i], rc_marks_bits(gpu), gpu->mark[i]);
}

static void release(ringcast_gpu_reader *gpu, uint32_t i) {
  gpu->is_behind = false;
  rc_reader_undefer(gpu->reader, gpu->deferred[i].frame.position);
  RC_POINT(DEFERRED_DONE);
  rc_reader_release_kept(gpu->reader, &gpu->deferred[i].frame);
  gpu->deferred[i].frame.data = NULL;
}

/* The one that reaches furthest back; RC_GPU_MAX_DEFERRED: there is none. */
static uint32_t oldest(const ringcast_gpu_reader *gpu) {
  uint32_t found = RC_GPU_MAX_DEFERRED;
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++) {
    if (!gpu->deferred[i].frame.data) continue;
    bool is_first = found == RC_GPU_MAX_DEFERRED;
    if (is_first || gpu->deferred[i].frame.position < gpu->deferred[found].frame.position) found = i;
  }
  return found;
}

/* Whether the writer might be held up by it for ever. */
static bool is_in_the_way(const ringcast_gpu_reader *gpu, uint32_t i, uint64_t slack) {
  uint64_t position = gpu->deferred[i].frame.position;
  return gpu->reader->ring.next - position > slack || (slack != UINT64_MAX && position < gpu->reader->last_spilled);
}

/* No mark will come any more, and nothing is read. */
static bool is_lost(ringcast_gpu_reader *gpu) {
  int64_t now = rc_now_ns();
  if (now - gpu->asked_ns < ASK_NS) return false;
  gpu->asked_ns = now;
  return rc_device_is_lost(&gpu->device);
}

int rc_deferred_settle(ringcast_gpu_reader *gpu, uint64_t slack, int64_t until) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  const struct rc_ring_reader *ring = &gpu->reader->ring;
  bool waits = false;
  if (ring->deferred == 0) return 0;
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++)
    if (gpu->deferred[i].frame.data && is_done(gpu, i)) release(gpu, i);
  for (uint32_t i; (i = oldest(gpu)) != RC_GPU_MAX_DEFERRED && is_in_the_way(gpu, i, slack);) {
    if (is_done(gpu, i)) {
      release(gpu, i);
    } else if (rc_now_ns() >= until) { /* the driver is not asked for who does not wait: it might have him wait */
      return -EAGAIN;
    } else if (is_lost(gpu)) {
      rc_deferred_drop(gpu);
    } else {
      gpu->syncs += !waits;
      waits = true;
      nanosleep(&pause, NULL);
    }
  }
  return 0;
}

static void leave_room(ringcast_gpu_reader *gpu) {
  if (gpu->is_behind) return;
  int64_t until = rc_now_ns() + rc_ring_slack_ns;
  gpu->is_behind = rc_deferred_settle(gpu, gpu->reader->ring.ring.capacity / 4, until) != 0;
}

int rc_deferred_add(ringcast_gpu_reader *gpu, const struct ringcast_frame *frame, rc_cu_stream stream,
                    int64_t patience_ns) {
  uint32_t free = 0;
  uint32_t first = gpu->reader->ring.deferred == RC_GPU_MAX_DEFERRED ? oldest(gpu) : RC_GPU_MAX_DEFERRED;
  if (first != RC_GPU_MAX_DEFERRED &&
      rc_deferred_settle(gpu, gpu->reader->ring.next - gpu->deferred[first].frame.position - 1,
                         rc_now_ns() + patience_ns) != 0)
    return fail_not_read();
  while (free < RC_GPU_MAX_DEFERRED && gpu->deferred[free].frame.data) free++;
  rc_cu_result result = RC_CU_NOT_READY;
  if (free < RC_GPU_MAX_DEFERRED)
    result = rc_word_write(gpu->device.cuda, rc_marks_bits(gpu), stream,
                           gpu->marks_address + free * sizeof *gpu->marks, gpu->mark[free] + 1);
  if (result != RC_CU_SUCCESS) { /* then the device has to be waited for */
    int failed = rc_ring_await(gpu, stream, patience_ns);
    if (rc_ring_is_not_yet_read(failed)) return failed;
    int released = ringcast_reader_release(gpu->reader, frame);
    return failed != 0 ? failed : released;
  }
  gpu->mark[free]++;
  gpu->deferred[free].frame = *frame;
  rc_reader_defer(gpu->reader, frame->position);
  RC_POINT(DEFERRED);
  if (patience_ns > 0) leave_room(gpu);
  return 0;
}

void rc_deferred_look_for_loss(ringcast_gpu_reader *gpu) {
  if (is_lost(gpu)) rc_deferred_drop(gpu);
}

void rc_deferred_drop(ringcast_gpu_reader *gpu) {
  for (uint32_t i = 0; i < RC_GPU_MAX_DEFERRED; i++)
    if (gpu->deferred[i].frame.data) release(gpu, i);
}
