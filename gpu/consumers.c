/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who reads the pool, as its writer sees it.
 *
 *   writer, publishing                            reader, opening (opening.c)
 *   D1  load the ring's slot, `opened` and turn   O1  take the place: owner, a new turn
 *       not opened? then INLINE                   O2  open the pool, try it
 *   D2  store counted: the turn, this position    O3  store-release opened = its owner word   -> D1
 *   D3  copy, write ready, commit the frame       O4  a frame of the pool: load-acquire counted   <- D2
 *                                                     another turn, or from later on? then it is not for us
 *
 * A frame goes by the pool only if at D1 all readers that are ACTIVE, or JOINING, have opened it: one that joins may
 * stand for long between finding its first frame and being ACTIVE. So what a reader can get without being counted on is
 * what was being published when it claimed its slot. O4 tells it, as the writer stores `counted` before it commits the
 * first frame that counts on it. To pass over such a frame is to have attached a moment later. The turn says who is
 * counted on: between D1 and D2 one reader may leave the place and another take it, which must not take itself for the
 * one that is awaited. (tests/model/device.pml has all this.)
 *
 * A slot may be used again when its own copy is done (`ready`) and all that were counted on when it was sent have read
 * it (`ack`), have left in order (their place is another's, or nobody's: leaving waits for their own streams), or have
 * ended as a process: while it lives, whatever the ring thinks of it, its device may still read. The words are looked
 * at, never waited for.
 */
#include "gpu/writer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/point.h"
#include "shm/wait.h"

#define ASK_NS ((int64_t)1000 * 1000) /* between two times that /proc is asked about the dead: it takes 10 us each */

static struct rc_gpu_consumer *consumer_at(const ringcast_gpu_writer *gpu, uint32_t index) {
  return &rc_gpu_control(&gpu->exported->segment)->consumers[index];
}

static void count_on(ringcast_gpu_writer *gpu, uint32_t index, uint64_t owner, uint32_t turn) {
  uint64_t position = gpu->writer->ring.tail;
  gpu->counted[index] = (struct rc_counted){.owner = owner, .from = position, .turn = turn};
  struct rc_gpu_consumer *consumer = consumer_at(gpu, index);
  rc_store_relaxed(&consumer->counted_from, position); /* relaxed: the release below */
  rc_store_release(&consumer->counted_turn, turn);     /* D2 -> O4 */
  RC_POINT(COUNTED);
}

/* The turn of who has opened the pool as `owner`; 0: nobody has. The turn lies between two looks at who it is: else it
 * may be that of the next one, who has taken the place meanwhile. */
static uint32_t opened_turn(struct rc_gpu_consumer *place, uint64_t owner) {
  if (rc_load_acquire(&place->opened) != owner) return 0;     /* D1 <- O3 */
  uint32_t turn = rc_load_acquire(&place->turn);              /* <- O1: before it, the one before was no longer there */
  return rc_load_relaxed(&place->opened) == owner ? turn : 0; /* relaxed: the acquire above */
}

enum ringcast_gpu_way rc_consumers_look(ringcast_gpu_writer *gpu, uint32_t *reader, int32_t *pid, int32_t *reason) {
  const struct rc_ring *ring = &gpu->writer->ring.view;
  for (uint32_t i = 0; i < ring->slots; i++) {
    uint64_t owner = rc_load_acquire(&ring->control->slots[i].owner); /* pairs with J4 */
    enum rc_slot_state state = rc_owner_state(owner);
    if (state != RC_SLOT_ACTIVE && state != RC_SLOT_JOINING) continue;
    struct rc_gpu_consumer *consumer = consumer_at(gpu, i);
    uint32_t turn = opened_turn(consumer, owner);
    if (turn != 0) {
      const struct rc_counted *counted = &gpu->counted[i];
      if (counted->owner != owner || counted->turn != turn) count_on(gpu, i, owner, turn);
      continue;
    }
    *reader = i;
    *pid = (int32_t)rc_owner_pid(owner);
    *reason = rc_load_relaxed(&consumer->reason); /* relaxed: to look at */
    return rc_load_acquire(&consumer->refused) == owner ? RINGCAST_GPU_WAY_REFUSED : RINGCAST_GPU_WAY_WAITING;
  }
  return RINGCAST_GPU_WAY_POOL;
}

/* What a reader has noted of its failure. The system's words for some of these speak of something else. It is a peer's:
 * it may be any number. */
static const char *words_of(int32_t reason) {
  if (reason > 0) return rc_cuda_name(reason);
  if (reason == -EAGAIN) return "its device is busy; it is tried again";
  if (reason == -ENOMEM) return "it has no memory for it, or no thread; it is tried again";
  if (reason == -ETIMEDOUT) return "its streams are not woken by the host's store";
  return reason < 0 && reason > -4096 ? strerror(-reason) : "it does not say why";
}

void rc_consumers_tell(ringcast_gpu_writer *gpu, struct ringcast_gpu_info *info) {
  int32_t reason = 0;
  info->way = rc_consumers_look(gpu, &info->reader, &info->reader_pid, &reason);
  if (info->way == RINGCAST_GPU_WAY_WAITING)
    snprintf(info->why, sizeof info->why, "reader %u (pid %d) has not opened the pool", info->reader, info->reader_pid);
  else if (info->way == RINGCAST_GPU_WAY_REFUSED)
    snprintf(info->why, sizeof info->why, "reader %u (pid %d) can't open the pool: %s", info->reader, info->reader_pid,
             words_of(reason));
  else if (rc_peer_count(&gpu->writer->ring.view) == 0) info->way = RINGCAST_GPU_WAY_NO_READER;
}

/* Whether consumer `index` may still read what was sent at `position`. */
static bool is_awaited(ringcast_gpu_writer *gpu, uint32_t index, uint64_t position, bool ask) {
  struct rc_counted *counted = &gpu->counted[index];
  if (counted->owner == 0 || counted->dead || counted->from > position) return false;
  /* Acquire: pairs with the store by which it leaves, after its streams have done. */
  uint64_t owner = rc_load_acquire(&consumer_at(gpu, index)->owner);
  if (owner != counted->owner) return false;
  /* It has left and come back: what it had enqueued was waited for. Acquire: pairs with O1. */
  if (rc_load_acquire(&consumer_at(gpu, index)->turn) != counted->turn) return false;
  if (ask && rc_owner_is_dead(counted->owner)) counted->dead = true;
  return !counted->dead;
}

static bool is_done(ringcast_gpu_writer *gpu, uint32_t number, bool ask) {
  const struct rc_gpu_segment *segment = &gpu->exported->segment;
  const struct rc_pool_slot *slot = &gpu->pool.slots[number];
  if (!rc_word_has_reached(rc_gpu_ready(segment, number), slot->generation)) return false;
  if (slot->state == RC_POOL_DROPPED) return slot->frame == 0;
  for (uint32_t i = 0; i < segment->consumers; i++) {
    if (gpu->counted[i].owner == 0 || gpu->counted[i].from > slot->position) continue;
    if (rc_word_has_reached(rc_gpu_ack(segment, number, i), slot->generation)) continue;
    if (is_awaited(gpu, i, slot->position, ask)) return false;
  }
  return true;
}

void rc_consumers_reclaim(ringcast_gpu_writer *gpu, bool all) {
  struct rc_pool *pool = &gpu->pool;
  int64_t now = all ? rc_now_ns() : 0;
  bool ask = all && now - gpu->asked >= ASK_NS;
  if (ask) gpu->asked = now;
  for (bool again = true; again;) {
    again = false; /* but for memory that a frame referred to */
    for (uint32_t i = 0; i < pool->slot_count && pool->used > 0; i++) {
      struct rc_pool_slot *slot = &pool->slots[i];
      if ((slot->state != RC_POOL_SENT && slot->state != RC_POOL_DROPPED) || !is_done(gpu, i, ask)) continue;
      again |= slot->attached > 0;
      rc_pool_give(pool, i);
    }
  }
}
