/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool's extents: first fit among the gaps between the used extents, which are kept in order. The extents are few
 * (one for each frame under way), of any size, and become free in any order, as a reader may hold a frame for long.
 */
#include "gpu/pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/layout.h"

int rc_pool_init(struct rc_pool *pool, uint64_t bytes, uint32_t slots) {
  *pool = (struct rc_pool){.bytes = bytes, .slot_count = slots};
  pool->slots = calloc(slots, sizeof *pool->slots + sizeof *pool->order);
  if (!pool->slots) return -ENOMEM;
  pool->order = (uint32_t *)(pool->slots + slots);
  return 0;
}

void rc_pool_free(struct rc_pool *pool) {
  free(pool->slots);
  *pool = (struct rc_pool){.slots = NULL};
}

static uint64_t end_of(const struct rc_pool_slot *slot) { return slot->base + slot->bytes; }

/* Empty extents have no place, and are last in the order. */
static bool find_gap(const struct rc_pool *pool, uint64_t bytes, uint32_t *rank, uint64_t *base) {
  uint64_t at = 0;
  *rank = pool->used;
  *base = 0;
  if (bytes == 0) return true;
  for (uint32_t i = 0; i < pool->used; i++) {
    const struct rc_pool_slot *next = &pool->slots[pool->order[i]];
    if (next->bytes == 0 || next->base - at >= bytes) {
      if (next->bytes == 0 && pool->bytes - at < bytes) return false;
      *rank = i;
      *base = at;
      return true;
    }
    at = end_of(next);
  }
  *base = at;
  return pool->bytes - at >= bytes;
}

int rc_pool_take(struct rc_pool *pool, uint64_t bytes) {
  uint32_t number = 0, rank;
  uint64_t base;
  if (bytes > pool->bytes) return -EAGAIN;
  bytes = (bytes + RC_GPU_ALIGN - 1) & ~(uint64_t)(RC_GPU_ALIGN - 1);
  while (number < pool->slot_count && pool->slots[number].state != RC_POOL_FREE) number++;
  if (number == pool->slot_count || !find_gap(pool, bytes, &rank, &base)) return -EAGAIN;
  memmove(&pool->order[rank + 1], &pool->order[rank], (pool->used - rank) * sizeof *pool->order);
  pool->order[rank] = number;
  pool->used++;
  pool->used_bytes += bytes;
  struct rc_pool_slot *slot = &pool->slots[number];
  *slot =
      (struct rc_pool_slot){.state = RC_POOL_LEASED, .generation = slot->generation + 1, .base = base, .bytes = bytes};
  assert(rc_pool_is_valid(pool));
  return (int)number;
}

static void detach_all(struct rc_pool *pool, uint32_t frame) {
  for (uint32_t i = 0; i < pool->slot_count && pool->slots[frame].attached > 0; i++) {
    if (pool->slots[i].frame != frame + 1) continue;
    pool->slots[i].frame = 0;
    pool->slots[frame].attached--;
  }
}

void rc_pool_give(struct rc_pool *pool, uint32_t number) {
  uint32_t rank = 0;
  detach_all(pool, number);
  while (pool->order[rank] != number) rank++;
  pool->used--;
  pool->used_bytes -= pool->slots[number].bytes;
  memmove(&pool->order[rank], &pool->order[rank + 1], (pool->used - rank) * sizeof *pool->order);
  pool->slots[number].state = RC_POOL_FREE;
  assert(rc_pool_is_valid(pool));
}

int rc_pool_find(const struct rc_pool *pool, uint64_t at, uint64_t bytes) {
  for (uint32_t i = 0; i < pool->slot_count; i++) {
    const struct rc_pool_slot *slot = &pool->slots[i];
    if (slot->state != RC_POOL_LEASED || at < slot->base || at - slot->base > slot->bytes) continue;
    if (bytes <= slot->bytes - (at - slot->base)) return (int)i;
  }
  return -ENOENT;
}

bool rc_pool_attach(struct rc_pool *pool, uint32_t number, uint32_t frame) {
  struct rc_pool_slot *slot = &pool->slots[number];
  if (slot->frame == 0) {
    slot->frame = frame + 1;
    pool->slots[frame].attached++;
  }
  return slot->frame == frame + 1;
}

bool rc_pool_is_valid(const struct rc_pool *pool) {
  uint64_t at = 0, bytes = 0;
  bool empty = false;
  for (uint32_t i = 0; i < pool->used; i++) {
    const struct rc_pool_slot *slot = &pool->slots[pool->order[i]];
    if (slot->state == RC_POOL_FREE || slot->base % RC_GPU_ALIGN != 0 || slot->bytes % RC_GPU_ALIGN != 0) return false;
    if (slot->bytes == 0) {
      empty = true;
      continue;
    }
    if (empty || slot->base < at || slot->bytes > pool->bytes - slot->base) return false;
    at = end_of(slot);
    bytes += slot->bytes;
  }
  return bytes == pool->used_bytes;
}
