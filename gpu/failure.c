/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's context, and a device that fails. */
#include <errno.h>
#include <string.h>

#include "gpu/writer.h"
#include "shm/error.h"

static int enter(ringcast_gpu_writer *gpu, bool relaxes, struct rc_cuda_entry *entry) {
  int failed = rc_check_fork(gpu->forks);
  return failed != 0 ? failed : rc_gpu_writer_failed(gpu, rc_device_enter(&gpu->device, relaxes, entry));
}

int rc_gpu_writer_enter(ringcast_gpu_writer *gpu, struct rc_cuda_entry *entry) { return enter(gpu, true, entry); }
int rc_gpu_writer_enter_context(ringcast_gpu_writer *gpu, struct rc_cuda_entry *entry) {
  return enter(gpu, false, entry);
}

/* The failed device may never write the semaphores for which readers' streams wait. Releases each wait, as the watchers
 * do after a death of the writer (import.c, X0 and X1). */
static void release_waits(ringcast_gpu_writer *gpu) {
  const struct rc_gpu_segment *segment = &gpu->exported->segment;
  rc_store_release(&rc_gpu_control(segment)->dead, 1); /* X0 -> the readers' next look */
  for (uint32_t i = 0; i < gpu->pool.slot_count; i++) {
    const struct rc_pool_slot *slot = &gpu->pool.slots[i];
    struct rc_semaphore *ready = rc_gpu_ready(segment, i);
    if (slot->state == RC_POOL_SENT && !rc_semaphore_has_reached(ready, slot->generation))
      rc_semaphore_store(ready, rc_semaphore_released(slot->generation)); /* X1 */
  }
}

int rc_gpu_writer_failed(ringcast_gpu_writer *gpu, int code) {
  if (code != -EIO || gpu->is_lost) return code;
  gpu->is_lost = true;
  strncpy(gpu->why, rc_error_text(), sizeof gpu->why - 1);
  if (gpu->exported) release_waits(gpu);
  return code;
}

bool rc_gpu_writer_look_for_loss(ringcast_gpu_writer *gpu) {
  if (gpu->exported && !gpu->is_lost && rc_device_is_lost(&gpu->device))
    rc_gpu_writer_failed(gpu, rc_fail_as(-EIO, "the device has failed"));
  return gpu->is_lost;
}
