/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's side of ringcast/gpu.h: open, close, and frames by the ring. lease.c has frames by the pool. */
#include "gpu/writer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/options.h"
#include "shm/error.h"

#define DEFAULT_SLOTS 128u

/* ---- Lifecycle -------------------------------------------------------------------------------------------------- */

static int resolve_options(const struct ringcast_gpu_writer_options *given, struct ringcast_gpu_writer_options *out) {
  struct ringcast_gpu_writer_options options;
  int failed = rc_sized_read("ringcast_gpu_writer_options", given, &options, sizeof options);
  if (failed != 0) return failed;
  if (!given) options.device = -1;
  if (options.flags != 0) return rc_fail(-EINVAL, "options.flags is 0x%x: no flag is known", options.flags);
  if (options.slots > RC_GPU_MAX_SLOTS)
    return rc_fail(-EINVAL, "options.slots is %u: at most %u frames can be under way", options.slots, RC_GPU_MAX_SLOTS);
  if (options.slots == 0) options.slots = DEFAULT_SLOTS;
  *out = options;
  return rc_features_check();
}

static void unregister_ring(ringcast_gpu_writer *gpu) {
  struct rc_cuda_entry entry;
  if (!gpu->registered || rc_cuda_enter(gpu->device.context, &entry) != RC_CU_SUCCESS) return;
  gpu->device.cuda->host_unregister(gpu->writer->ring.view.data);
  rc_cuda_leave(&entry);
}

/* Ends everything except the handle; calls with the handle give -EINVAL from here on. */
static void detach(void *context) {
  ringcast_gpu_writer *gpu = context;
  rc_gpu_writer_look_for_loss(gpu); /* once this handle has gone nothing would find that out */
  rc_gpu_writer_leave_pool(gpu);
  unregister_ring(gpu);
  rc_device_close(&gpu->device);
  gpu->forks = RC_LEFT;
}

int ringcast_gpu_writer_open(ringcast_writer *writer, const struct ringcast_gpu_writer_options *given,
                             ringcast_gpu_writer **out) {
  struct ringcast_gpu_writer_options options = {0};
  int failed = rc_check_fork(writer->forks);
  if (failed == 0) failed = resolve_options(given, &options);
  if (failed != 0) return failed;
  if (writer->attachment.detach)
    return rc_fail_as(-EBUSY, "this writer has a ringcast_gpu_writer already: close that first");
  ringcast_gpu_writer *gpu = calloc(1, sizeof *gpu);
  struct rc_expected *expected = calloc(writer->ring.view.slots, sizeof *expected);
  if (!gpu || !expected) {
    free(gpu);
    free(expected);
    return rc_fail(-ENOMEM, "out of memory");
  }
  *gpu =
      (ringcast_gpu_writer){.writer = writer, .expected = expected, .forks = rc_fork_count(), .slots = options.slots};
  failed = rc_device_open(options.device, &gpu->device);
  if (failed == 0) rc_exported_tidy(rc_gpu_close_ns); /* only where there is a driver */
  if (failed == 0) failed = rc_gpu_writer_first_pool(gpu, options.pool_bytes);
  if (failed != 0) {
    rc_gpu_writer_leave_pool(gpu);
    rc_device_close(&gpu->device);
    free(gpu->expected);
    free(gpu);
    return failed;
  }
  writer->attachment = (struct rc_attachment){.detach = detach, .context = gpu};
  *out = gpu;
  return 0;
}

void ringcast_gpu_writer_close(ringcast_gpu_writer *gpu) {
  if (!gpu) return;
  if (gpu->forks == rc_fork_count()) { /* in a forked child the parent owns everything but the handle */
    gpu->writer->attachment.detach = NULL;
    detach(gpu);
  }
  rc_pool_free(&gpu->pool);
  free(gpu->expected);
  free(gpu);
}

/* ---- By the ring ------------------------------------------------------------------------------------------------ */

/* Registers the ring with the driver, once, at the first copy to the ring: the driver copies to unregistered memory by
 * way of a staging buffer. The ring's second mapping follows the first. */
static void register_ring(ringcast_gpu_writer *gpu) {
  const struct rc_ring *ring = &gpu->writer->ring.view;
  if (gpu->tried_to_register) return;
  gpu->tried_to_register = true;
  if (rc_feature_disabled("cuda_register")) return;
  gpu->registered =
      gpu->device.cuda->host_register(ring->data, 2 * ring->capacity, RC_CU_MEMHOSTREGISTER_PORTABLE) == RC_CU_SUCCESS;
}

int ringcast_gpu_fetch(ringcast_gpu_writer *gpu, const struct ringcast_tensor *tensor, void *to,
                       ringcast_stream stream) {
  struct rc_cuda_entry entry;
  int failed = rc_gpu_writer_enter(gpu, &entry);
  if (failed != 0) return failed;
  register_ring(gpu);
  failed = rc_device_check_stream(&gpu->device, stream);
  if (failed == 0) failed = rc_device_copy(&gpu->device, tensor, 0, to, stream);
  if (failed != 0) rc_gpu_writer_failed(gpu, failed);
  rc_cuda_leave(&entry);
  return failed;
}

int ringcast_gpu_wait(ringcast_gpu_writer *gpu, ringcast_stream stream) {
  struct rc_cuda_entry entry;
  int failed = rc_gpu_writer_enter(gpu, &entry);
  if (failed != 0) return failed;
  if (rc_device_check_stream(&gpu->device, stream) == -EBUSY) { /* a wait would invalidate the capture */
    failed = -EBUSY;
  } else {
    rc_cu_result result = gpu->device.cuda->stream_synchronize(stream);
    gpu->syncs++;
    gpu->inline_frames++;
    if (result != RC_CU_SUCCESS) failed = rc_gpu_writer_failed(gpu, rc_cuda_fail(result, "cuStreamSynchronize"));
  }
  rc_cuda_leave(&entry);
  return failed;
}

/* ---- Introspection ---------------------------------------------------------------------------------------------- */

static void say_way(ringcast_gpu_writer *gpu, struct ringcast_gpu_info *info) {
  if (gpu->is_lost || !gpu->exported) {
    info->way = gpu->is_lost ? RINGCAST_GPU_WAY_LOST : RINGCAST_GPU_WAY_NO_POOL;
    snprintf(info->why, sizeof info->why, "%s%s", gpu->is_lost ? "the device has failed: " : "", gpu->why);
  } else {
    rc_importers_tell(gpu, info);
  }
}

int ringcast_gpu_writer_info(ringcast_gpu_writer *gpu, struct ringcast_gpu_info *out) {
  int failed = rc_check_fork(gpu->forks);
  if (failed == 0) failed = rc_sized_check("ringcast_gpu_info", out->size);
  if (failed != 0) return failed;
  rc_gpu_writer_look_for_pool(gpu);
  if (gpu->exported) rc_gpu_writer_reclaim(gpu);
  struct ringcast_gpu_info info = {
      .device = gpu->device.ordinal,
      .pool_bytes = gpu->pool.bytes,
      .slots = gpu->pool.slot_count,
      .slots_used = gpu->pool.used,
      .bytes_used = gpu->pool.used_bytes,
      .epoch = gpu->exported ? gpu->exported->segment.epoch : 0,
      .pool_frames = gpu->pool_frames,
      .pool_bytes_sent = gpu->pool_bytes,
      .inline_frames = gpu->inline_frames,
      .full = gpu->full,
      .syncs = gpu->syncs,
      .registered = gpu->registered,
  };
  say_way(gpu, &info);
  rc_sized_write(out, out->size, &info, sizeof info);
  return 0;
}
