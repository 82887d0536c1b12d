/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importers of the pool, as the writer sees them.
 *
 *   writer, publishing                            reader, opening (opening.c)
 *   D1  load the ring's slot, `opened` and turn   O1  take the place: owner, a new turn
 *       not opened? then INLINE                   O2  open the pool, try the pool
 *   D2  store expected: the turn, this position   O3  store-release opened = owner word   -> D1
 *   D3  copy, write ready, commit the frame       O4  a frame of the pool: load-acquire expected   <- D2
 *                                                     a different turn, or a later position? then pass over
 *
 * A frame goes by the pool only if at D1 all ACTIVE and JOINING readers have opened the pool: a joining reader may
 * stand for long between the find of the first frame and the state ACTIVE. So a reader gets at most one frame that does
 * not expect the reader: the frame that was being published when the reader claimed the slot. O4 detects this frame, as
 * the writer stores the expected turn and position before the commit of the first frame that expects the reader; a
 * reader that passes over the frame acts as if attached a moment later. The turn identifies the reader: between D1 and
 * D2 a reader may leave the place and a different reader take the place, which must not act as the expected reader.
 * (tests/model/device.pml has the protocol.)
 *
 * A slot is free when its own copies are done (`ready`) and each importer that the frame expects has read the extent
 * (`ack`), has left in order (the place has a different owner or none: a reader's leave waits for the reader's
 * streams), or has ended as a process: while the process lives, the process's device may still read, whatever the state
 * of the reader in the ring. The writer loads the semaphores, and never waits for a semaphore.
 */
#include "gpu/writer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/point.h"
#include "shm/wait.h"

#define ASK_NS ((int64_t)1000 * 1000) /* between two checks in /proc which importers have died: 10 us each */

static struct rc_gpu_importer *importer_at(const ringcast_gpu_writer *gpu, uint32_t index) {
  return &rc_gpu_control(&gpu->exported->segment)->importers[index];
}

static void expect(ringcast_gpu_writer *gpu, uint32_t index, uint64_t owner, uint32_t turn) {
  uint64_t position = gpu->writer->ring.tail;
  gpu->expected[index] = (struct rc_expected){.owner = owner, .from = position, .turn = turn};
  struct rc_gpu_importer *importer = importer_at(gpu, index);
  rc_store_relaxed(&importer->expected_from, position); /* relaxed: the release below */
  rc_store_release(&importer->expected_turn, turn);     /* D2 -> O4 */
  RC_POINT(EXPECTED);
}

/* The turn of the importer that has opened the pool as `owner`; 0: not opened. The turn is loaded between two loads of
 * `opened`, as the next reader may take the place meanwhile. */
static uint32_t opened_turn(struct rc_gpu_importer *place, uint64_t owner) {
  if (rc_load_acquire(&place->opened) != owner) return 0;     /* D1 <- O3 */
  uint32_t turn = rc_load_acquire(&place->turn);              /* <- O1: the earlier importer has left by then */
  return rc_load_relaxed(&place->opened) == owner ? turn : 0; /* relaxed: the acquire above */
}

enum ringcast_gpu_way rc_importers_look(ringcast_gpu_writer *gpu, uint32_t *reader, int32_t *pid, int32_t *reason) {
  const struct rc_ring *ring = &gpu->writer->ring.view;
  for (uint32_t i = 0; i < ring->slots; i++) {
    uint64_t owner = rc_load_acquire(&ring->control->slots[i].owner); /* pairs with J4 */
    enum rc_slot_state state = rc_owner_state(owner);
    if (state != RC_SLOT_ACTIVE && state != RC_SLOT_JOINING) continue;
    struct rc_gpu_importer *importer = importer_at(gpu, i);
    uint32_t turn = opened_turn(importer, owner);
    if (turn != 0) {
      const struct rc_expected *expected = &gpu->expected[i];
      if (expected->owner != owner || expected->turn != turn) expect(gpu, i, owner, turn);
      continue;
    }
    *reader = i;
    *pid = (int32_t)rc_owner_pid(owner);
    *reason = rc_load_relaxed(&importer->reason); /* relaxed: for the error text only */
    return rc_load_acquire(&importer->refused) == owner ? RINGCAST_GPU_WAY_REFUSED : RINGCAST_GPU_WAY_WAITING;
  }
  return RINGCAST_GPU_WAY_POOL;
}

/* The text of a reader's reason. The peer may have stored any number. strerror's text of some codes would mislead. */
static const char *words_of(int32_t reason) {
  if (reason > 0) return rc_cuda_name(reason);
  if (reason == -EAGAIN) return "the reader's device is busy; the reader tries again";
  if (reason == -ENOMEM) return "the reader's process has no memory or no thread left; the reader tries again";
  if (reason == -ETIMEDOUT) return "the reader's streams are not woken by the host's store";
  return reason < 0 && reason > -4096 ? strerror(-reason) : "the reader gives no reason";
}

void rc_importers_tell(ringcast_gpu_writer *gpu, struct ringcast_gpu_info *info) {
  int32_t reason = 0;
  info->way = rc_importers_look(gpu, &info->reader, &info->reader_pid, &reason);
  if (info->way == RINGCAST_GPU_WAY_WAITING)
    snprintf(info->why, sizeof info->why, "reader %u (pid %d) has not opened the pool", info->reader, info->reader_pid);
  else if (info->way == RINGCAST_GPU_WAY_REFUSED)
    snprintf(info->why, sizeof info->why, "reader %u (pid %d) can't open the pool: %s", info->reader, info->reader_pid,
             words_of(reason));
  else if (rc_peer_count(&gpu->writer->ring.view) == 0) info->way = RINGCAST_GPU_WAY_NO_READER;
}

/* Whether importer `index` may still read the frame at `position`. */
static bool is_awaited(ringcast_gpu_writer *gpu, uint32_t index, uint64_t position, bool ask) {
  struct rc_expected *expected = &gpu->expected[index];
  if (expected->owner == 0 || expected->dead || expected->from > position) return false;
  /* Acquire: pairs with the store by which the importer leaves, after the importer's streams are done. */
  uint64_t owner = rc_load_acquire(&importer_at(gpu, index)->owner);
  if (owner != expected->owner) return false;
  /* A different turn: the importer has left, after its streams were done, and come back. Acquire: pairs with O1. */
  if (rc_load_acquire(&importer_at(gpu, index)->turn) != expected->turn) return false;
  if (ask && rc_owner_is_dead(expected->owner)) expected->dead = true;
  return !expected->dead;
}

static bool is_done(ringcast_gpu_writer *gpu, uint32_t number, bool ask) {
  const struct rc_gpu_segment *segment = &gpu->exported->segment;
  const struct rc_pool_slot *slot = &gpu->pool.slots[number];
  if (!rc_semaphore_has_reached(rc_gpu_ready(segment, number), slot->generation)) return false;
  if (slot->state == RC_POOL_DROPPED) return slot->frame == 0;
  for (uint32_t i = 0; i < segment->importers; i++) {
    if (gpu->expected[i].owner == 0 || gpu->expected[i].from > slot->position) continue;
    if (rc_semaphore_has_reached(rc_gpu_ack(segment, number, i), slot->generation)) continue;
    if (is_awaited(gpu, i, slot->position, ask)) return false;
  }
  return true;
}

void rc_importers_reclaim(ringcast_gpu_writer *gpu, bool all) {
  struct rc_pool *pool = &gpu->pool;
  int64_t now = rc_now_ns();
  bool ask = all && now - gpu->asked >= ASK_NS;
  if (ask) gpu->asked = now;
  if (now - gpu->tidied >= ASK_NS) { /* an importer may have closed an earlier pool meanwhile */
    gpu->tidied = now;
    rc_exported_tidy(0);
  }
  for (bool again = true; again;) {
    again = false; /* true only if the freed slot's frame referred to kept memory */
    for (uint32_t i = 0; i < pool->slot_count && pool->used > 0; i++) {
      struct rc_pool_slot *slot = &pool->slots[i];
      if ((slot->state != RC_POOL_SENT && slot->state != RC_POOL_DROPPED) || !is_done(gpu, i, ask)) continue;
      again |= slot->attached > 0;
      rc_pool_give(pool, i);
    }
  }
}
