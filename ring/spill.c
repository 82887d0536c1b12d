/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames beside the ring.
 *
 * A frame that is too large for the ring goes through SPILL. The writer takes a region of SPILL and fills the region.
 * The writer then commits a small frame to the ring, the descriptor, which names the payload's offset and length. The
 * ring's publishing therefore covers the payload as well: W2 -> R1 orders the payload as it orders the descriptor.
 *
 * Ownership. A region belongs to the readers of its frame until all cursors are past the descriptor. Only the writer
 * needs the list of regions. The regions stand in a queue in the order of their frames, so they become free in this
 * order, by the same pass over the cursors as room in the ring (rc_ring_lowest, G0 to G2 in ring.c). If a region's
 * `end` is not above the lowest cursor, no reader needs the region. The rule also covers a joining reader: either the
 * pass sees JOINING and frees nothing, or the reader starts at a tail not older than the tail of the pass, which is not
 * below any freed `end`.
 *
 * Placement. First fit from the lowest offset: recently used memory has pages and is in the cache, and the upper end
 * falls idle and can be given back. All regions become free in the end, so a frame that fits SPILL at all finds room
 * once the readers have passed. A reservation that grows may even move to a region that overlaps the old region.
 *
 * Observers do not block the writer. Before the writer reuses a region or gives the memory back,
 *
 *     S0  store floor = the region's end       -> T6 (ring/tap.h)
 *     S1  release fence                        -> T5
 *     S2  write to the region, or give it back
 *
 * and an observer that has copied any byte of S2 finds a floor above its frame's position.
 */
#include "ring/spill.h"

#include <assert.h>
#include <errno.h>

#include "ring/point.h"

void rc_spill_init(struct rc_spill *spill, uint64_t bytes) {
  *spill = (struct rc_spill){.bytes = bytes & ~(uint64_t)(RC_SPILL_UNIT - 1)};
}

/* The region of the i-th oldest frame. */
static const struct rc_spill_region *region_of(const struct rc_spill *spill, uint32_t i) {
  return &spill->regions[(spill->first + i) % RC_SPILL_REGIONS];
}

/* The region of a frame, except the `passed` oldest ones, that `bytes` from `offset` on would overlap, or NULL. */
static const struct rc_spill_region *find_overlap(const struct rc_spill *spill, uint32_t passed, uint64_t offset,
                                                  uint64_t bytes) {
  for (uint32_t i = passed; i < spill->count; i++) {
    const struct rc_spill_region *region = region_of(spill, i);
    if (region->offset < offset + bytes && offset < region->offset + region->bytes) return region;
  }
  return NULL;
}

static bool region_is_valid(const struct rc_spill *spill, const struct rc_spill_region *region) {
  return region->bytes != 0 && (region->offset | region->bytes) % RC_SPILL_UNIT == 0 &&
         region->offset <= spill->bytes && region->bytes <= spill->bytes - region->offset;
}

bool rc_spill_is_valid(const struct rc_spill *spill) {
  if (spill->count > RC_SPILL_REGIONS || spill->first >= RC_SPILL_REGIONS) return false;
  uint64_t position = spill->floor;
  for (uint32_t i = 0; i < spill->count; i++) {
    const struct rc_spill_region *region = region_of(spill, i);
    if (region->end <= position) return false; /* in the order of the frames, all above the floor */
    position = region->end;
    if (!region_is_valid(spill, region) || find_overlap(spill, i + 1, region->offset, region->bytes)) return false;
  }
  if (!spill->is_open) return true;
  return region_is_valid(spill, &spill->open) && spill->open.bytes == rc_spill_room(spill->reserved) &&
         !find_overlap(spill, 0, spill->open.offset, spill->open.bytes);
}

/* ---- Freeing ---------------------------------------------------------------------------------------------------- */

int rc_spill_reclaim(struct rc_spill *spill, struct rc_ring_writer *ring) {
  uint64_t lowest, floor = spill->floor;
  int result = rc_ring_lowest(ring, &lowest);
  if (result != 0) return result;
  for (; spill->count > 0 && region_of(spill, 0)->end <= lowest; spill->count--) {
    floor = region_of(spill, 0)->end;
    spill->first = (spill->first + 1) % RC_SPILL_REGIONS;
  }
  if (floor == spill->floor) return 0;
  spill->floor = floor;
  RC_POINT(RECLAIM);
  rc_store_relaxed(&ring->view.control->spill_floor, floor); /* S0 -> T6: relaxed, because the fence S1 follows */
  RC_POINT(S0_DONE);
  rc_fence_release(); /* S1 -> T5, A0 */
  RC_POINT(S1_DONE);
  assert(rc_spill_is_valid(spill));
  return 0;
}

/* ---- Finding ---------------------------------------------------------------------------------------------------- */

/* The lowest gap of `room` bytes between the regions in flight, ignoring the `passed` oldest regions. */
static bool find_gap(const struct rc_spill *spill, uint32_t passed, uint64_t room, uint64_t *offset) {
  const struct rc_spill_region *taken;
  uint64_t at = 0;
  if (room > spill->bytes) return false;
  while ((taken = find_overlap(spill, passed, at, room))) at = taken->offset + taken->bytes;
  if (spill->bytes - at < room) return false;
  *offset = at;
  return true;
}

/* Whether the open region can grow to `room` bytes in place. */
static bool fits_in_place(const struct rc_spill *spill, uint64_t room) {
  return room <= spill->bytes - spill->open.offset && !find_overlap(spill, 0, spill->open.offset, room);
}

int rc_spill_find(const struct rc_spill *spill, uint64_t bytes, bool grows, uint64_t *offset) {
  uint64_t room = rc_spill_room(bytes);
  if (room > spill->bytes) return -EMSGSIZE;
  if (spill->count == RC_SPILL_REGIONS) return -EAGAIN;
  if (spill->is_open && fits_in_place(spill, room)) {
    *offset = spill->open.offset;
    return 0;
  }
  if (grows && find_gap(spill, 0, 2 * room, offset)) return 0;
  return find_gap(spill, 0, room, offset) ? 0 : -EAGAIN;
}

uint64_t rc_spill_wanted(const struct rc_spill *spill, uint64_t bytes) {
  uint64_t room = rc_spill_room(bytes), offset;
  uint32_t few = 0, enough = spill->count; /* oldest regions to free; freeing more never leaves less room */
  if (enough == 0) return 0;
  while (enough - few > 1) {
    uint32_t middle = few + (enough - few) / 2;
    if (find_gap(spill, middle, room, &offset)) enough = middle;
    else few = middle;
  }
  return region_of(spill, enough - 1)->end;
}

/* ---- Using ------------------------------------------------------------------------------------------------------ */

void rc_spill_open(struct rc_spill *spill, uint64_t offset, uint64_t bytes) {
  if (!spill->is_open || bytes > spill->reserved) spill->reserved = bytes;
  spill->is_open = true;
  spill->open = (struct rc_spill_region){.offset = offset, .bytes = rc_spill_room(spill->reserved)};
  assert(rc_spill_is_valid(spill));
}

static void close_region(struct rc_spill *spill) {
  spill->is_open = false;
  spill->open = (struct rc_spill_region){0};
  spill->reserved = 0;
}

int rc_spill_commit(struct rc_spill *spill, struct rc_ring_writer *ring, uint64_t bytes, uint16_t kind) {
  if (!spill->is_open || bytes > spill->reserved) return -EINVAL;
  int result = rc_ring_commit_spilled(ring, spill->open.offset + RC_SPILL_PHASE, bytes, kind);
  if (result != 0) return result;
  spill->regions[(spill->first + spill->count++) % RC_SPILL_REGIONS] =
      (struct rc_spill_region){.offset = spill->open.offset, .bytes = rc_spill_room(bytes), .end = ring->tail};
  close_region(spill);
  assert(rc_spill_is_valid(spill));
  return 0;
}

void rc_spill_abort(struct rc_spill *spill) { close_region(spill); }
