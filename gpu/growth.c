/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The size of the writer's pool over time. A size that is given, by options or environment, is allocated at open.
 * Otherwise the first pool has 32 MiB, and a pool without room for a frame gives way to one of twice the size, or more,
 * up to 256 MiB:
 *
 *   1  a lease finds no room: the worker begins to make the next pool; the frame goes INLINE
 *   2  a later lease finds the pool made, tells the readers, and leaves the old pool
 *   3  each reader opens the next pool at its next frame, and closes the old pool once the reader's streams are done
 *
 * Readers need no rule for growth: a reader sees a pool of a later epoch, as after the writer was closed and opened. A
 * reader opens the next pool once the frames of the old pool are behind the reader; until all readers have, frames go
 * INLINE; the old pool is freed when no reader has the pool open (exported.c). A death at any step, on either side, is
 * a death beside one pool or the other.
 *
 * Step 2 waits until the old pool has no lease, and until the copies to it have come: afterwards the writer would not
 * notice that the device fails before them, nor release the readers' waits. Memory of ringcast_gpu_allocate is a lease
 * that lasts; so the first such call makes the pool as large as a pool may be, at once, and waits for copies to the old
 * pool. If a lease is open, the call is refused. If the pool can't be made, a pool with such memory stays, and no next
 * one is made.
 *
 * A lease must not wait for the device, so the worker makes the pool. If memory is lacking, or the device is busy, the
 * writer keeps the pool that there is, or sends INLINE, and later leases try again, half as often after each failure
 * (struct rc_holdoff, shm/wait.h). A failure of another kind, as of a driver that can't export, ends the tries.
 */
#include "gpu/writer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "gpu/point.h"
#include "shm/options.h"
#include "shm/error.h"
#include "shm/wait.h"

#define DEFAULT_POOL ((uint64_t)256 << 20)
#define PAUSE_NS     (20 * 1000)
#define LOOK_NS      (1000 * 1000) /* between two checks whether the device has failed */

uint64_t rc_gpu_first_pool = (uint64_t)32 << 20;

static void note_failure(ringcast_gpu_writer *gpu, int failed, const char *why) {
  rc_holdoff_learn(&gpu->holdoff, false, 4, 4096, 1);
  if (!rc_gpu_is_for_now(failed)) gpu->most_bytes = gpu->pool.bytes; /* no further tries */
  if (!gpu->exported) snprintf(gpu->why, sizeof gpu->why, "%s", why);
}

/* Memory of ringcast_gpu_allocate is in the pool. */
static bool is_kept(const ringcast_gpu_writer *gpu) {
  bool is_kept = false;
  for (uint32_t i = 0; i < gpu->pool.slot_count; i++)
    is_kept |= gpu->pool.slots[i].state == RC_POOL_LEASED && gpu->pool.slots[i].is_kept;
  return is_kept;
}

/* ---- Step 1 ------------------------------------------------------------------------------------------------------ */

static void make(ringcast_gpu_writer *gpu, uint64_t bytes, bool at_once) {
  gpu->next = NULL;
  int failed = rc_exported_new(gpu->device.ordinal, gpu->writer, bytes, gpu->slots, &gpu->next);
  if (failed != 0) note_failure(gpu, failed, rc_error_text());
  else if (at_once) rc_exported_make(gpu->next, rc_gpu_busy_ns);
  else rc_exported_make_soon(gpu->next);
}

void rc_gpu_writer_want_pool(ringcast_gpu_writer *gpu, uint64_t bytes) {
  uint64_t next = gpu->first_bytes;
  if (gpu->next || gpu->is_lost || gpu->pool.bytes >= gpu->most_bytes) return;
  if (is_kept(gpu) || !rc_holdoff_permits(&gpu->holdoff)) return; /* with kept memory, no pool can be left */
  while (next < gpu->most_bytes && (next <= gpu->pool.bytes || next < bytes)) next *= 2;
  make(gpu, next < gpu->most_bytes ? next : gpu->most_bytes, false);
}

/* ---- Step 2 ------------------------------------------------------------------------------------------------------ */

/* 0: each `ready` has come, as the pool has no lease, which gets `ready` by commit or drop, and no copy that is under
 * way. -EBUSY: there is a lease. -ETIMEDOUT: a copy is under way, and stays so until then, or the device has failed. */
static int check_left(ringcast_gpu_writer *gpu, int64_t until_ns) {
  for (int64_t looked = rc_now_ns();; nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL)) {
    int failed = 0;
    for (uint32_t i = 0; i < gpu->pool.slot_count; i++) {
      const struct rc_pool_slot *slot = &gpu->pool.slots[i];
      bool has_come = rc_semaphore_has_reached(rc_gpu_ready(&gpu->exported->segment, i), slot->generation);
      if (slot->state == RC_POOL_FREE || has_come) continue;
      if (slot->state != RC_POOL_SENT && slot->state != RC_POOL_DROPPED) return -EBUSY;
      failed = -ETIMEDOUT;
    }
    int64_t now = rc_now_ns();
    if (failed == 0 || now >= until_ns) return failed;
    if (now - looked < LOOK_NS) continue;
    looked = now;
    if (rc_gpu_writer_look_for_loss(gpu)) return failed;
  }
}

/* The next pool becomes the writer's. False: not now. */
static bool adopt(ringcast_gpu_writer *gpu) {
  struct rc_exported *before = gpu->exported;
  struct rc_pool pool;
  if (gpu->is_lost || check_left(gpu, 0) != 0 || rc_pool_init(&pool, gpu->next->pool_bytes, gpu->slots) != 0)
    return false;
  rc_pool_free(&gpu->pool);
  gpu->pool = pool;
  gpu->look_at = 0;
  gpu->exported = gpu->next;
  memset(gpu->expected, 0, gpu->writer->ring.view.slots * sizeof *gpu->expected); /* of the old pool's places */
  gpu->exported->place.position = gpu->writer->ring.tail;
  RC_POINT(POOL_MADE);
  rc_gpu_place_write(&gpu->writer->ring.view.control->device, &gpu->exported->place);
  RC_POINT(POOL_TOLD);
  if (before) rc_exported_leave(before, false, 0);
  gpu->holdoff = (struct rc_holdoff){.left = 0};
  return true;
}

void rc_gpu_writer_look_for_pool(ringcast_gpu_writer *gpu) {
  struct rc_exported *next = gpu->next;
  if (!next || rc_load_acquire(&next->is_making)) return; /* pairs with the store of end_making */
  if (next->failed != 0) {
    note_failure(gpu, next->failed, next->why);
    rc_exported_leave(next, false, 0);
  } else if (!adopt(gpu)) {
    return;
  }
  gpu->next = NULL;
}

/* ---- At once ---------------------------------------------------------------------------------------------------- */

int rc_gpu_writer_first_pool(ringcast_gpu_writer *gpu, uint64_t asked) {
  uint64_t given = asked;
  int found = asked != 0;
  if (!found) found = rc_environment_number("RINGCAST_GPU_POOL_BYTES", RC_GPU_MAX_POOL, "bytes", "none", &given);
  if (found < 0) return found;
  if (found && (given == 0 || given == RINGCAST_NO_POOL)) {
    snprintf(gpu->why, sizeof gpu->why,
             given == 0 ? "RINGCAST_GPU_POOL_BYTES is 0: no device pool"
                        : "no device pool is asked for, by the options or RINGCAST_GPU_POOL_BYTES");
    return 0;
  }
  if (given > RC_GPU_MAX_POOL)
    return rc_fail(-EINVAL, "options.pool_bytes is %llu: it must be at most %llu, or RINGCAST_NO_POOL",
                   (unsigned long long)given, (unsigned long long)RC_GPU_MAX_POOL);
  given = (given + RC_GPU_GRANULE - 1) & ~(RC_GPU_GRANULE - 1);
  gpu->first_bytes = found ? given : rc_gpu_first_pool;
  gpu->most_bytes = found ? given : DEFAULT_POOL;
  make(gpu, gpu->first_bytes, true);
  rc_gpu_writer_look_for_pool(gpu);
  return 0;
}

int rc_gpu_writer_whole_pool(ringcast_gpu_writer *gpu) {
  int64_t until = rc_now_ns() + rc_gpu_busy_ns;
  rc_gpu_writer_look_for_pool(gpu);
  if (gpu->is_lost || gpu->pool.bytes >= gpu->most_bytes || is_kept(gpu)) return 0;
  if (!rc_holdoff_permits(&gpu->holdoff)) return 0;
  int failed = check_left(gpu, until);
  if (failed == -EBUSY)
    return rc_fail_as(-EAGAIN, "the device pool can't grow for memory that is kept while a lease is open: commit or "
                               "drop the lease first");
  if (failed != 0) return 0;
  if (gpu->next && gpu->next->pool_bytes < gpu->most_bytes) {
    rc_exported_leave(gpu->next, false, 0);
    gpu->next = NULL;
  }
  if (!gpu->next) make(gpu, gpu->most_bytes, true);
  while (gpu->next && rc_load_acquire(&gpu->next->is_making) && rc_now_ns() < until) /* pairs as in look_for_pool */
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
  rc_gpu_writer_look_for_pool(gpu);
  return 0;
}

void rc_gpu_writer_leave_pool(ringcast_gpu_writer *gpu) {
  if (gpu->next) rc_exported_leave(gpu->next, false, rc_gpu_close_ns);
  gpu->next = NULL;
  if (!gpu->exported) return;
  rc_gpu_place_write(&gpu->writer->ring.view.control->device, &(struct rc_gpu_place){.epoch = 0});
  rc_exported_leave(gpu->exported, is_kept(gpu), rc_gpu_close_ns); /* it may be freed by now, or at any time */
  gpu->exported = NULL;
}
