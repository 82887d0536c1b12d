/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames beside the ring.
 *
 * A frame that is too large for the ring goes through SPILL. The writer takes a region of SPILL,
 * fills it, and then commits a small frame to the ring, the descriptor, which names the payload's
 * offset and length. The ring's publishing therefore covers the payload as well: W2 -> R1 orders it
 * as it orders the descriptor.
 *
 * Ownership. A region belongs to the readers of its frame until all cursors are past the
 * descriptor. Only the writer needs the list of regions. The regions stand in a queue in the order
 * of their frames, so they become free in this order, by the same pass over the cursors as room in
 * the ring (rc_ring_lowest, G0 to G2 in ring.c). If a region's `end` is not above the lowest
 * cursor, no reader needs it. The rule also covers a joining reader: either the pass sees
 * JOINING and frees nothing, or the reader starts at a tail not older than the tail of the pass,
 * which is not below any freed `end`. A reader that joins at the newest frame, or at an older one,
 * may find the frame's region free:
 *
 *     writer                                          joining reader
 *     the look at all cursors: which regions are free
 *     S0  store floor                                 J1  owner: FREE -> JOINING
 *     S1  the same look again, with the fence G0      J2  full fence
 *         G1  JOINING? then free nothing              J6  load floor; above the position: gone
 *
 * S1 and J2 pair: either G1 sees the reader, and G2 the cursor of an ACTIVE reader, or J6 sees the
 * floor. With the first look alone, each could miss the other.
 *
 * Placement. First fit from the lowest offset: recently used memory has pages and is in the cache,
 * and the upper end falls idle and can be given back. All regions become free in the end, so a
 * frame that fits SPILL at all finds room once the readers have passed. A reservation that grows
 * may even move to a region that overlaps the old one.
 *
 * A tap (ring/tap.h) does not block the writer. Before the writer reuses a region or gives the
 * memory back,
 *
 *     S0  store floor = the region's end       -> T6 (ring/tap.h)
 *     S1  full fence                           -> T5
 *     S2  write to the region, or give it back
 *
 * and a tap that has copied any byte of S2 finds a floor above its frame's position.
 */
#include "ring/spill.h"

#include <string.h>

void rc_spill_init(struct rc_spill *spill, uint64_t bytes) {
  *spill = (struct rc_spill){.bytes = bytes & ~(uint64_t)(RC_SPILL_UNIT - 1)};
}

/* ---- The list of regions --------------------------------------------------------------------- */

/* The region that is `i` places behind the oldest. */
static const struct rc_spill_region *by_age(const struct rc_spill *spill, uint32_t i) {
  return &spill->regions[(spill->first + i) % RC_SPILL_REGIONS];
}

/* How many places behind the oldest the region stands that is the i-th by offset. */
static uint32_t age_of(const struct rc_spill *spill, uint32_t i) {
  return (spill->order[i] + RC_SPILL_REGIONS - spill->first) % RC_SPILL_REGIONS;
}

static bool overlap(const struct rc_spill_region *one, const struct rc_spill_region *other) {
  return one->offset < other->offset + other->bytes && other->offset < one->offset + one->bytes;
}

static bool is_open_valid(const struct rc_spill *spill) {
  const struct rc_spill_region *open = &spill->open;
  if (open->bytes != rc_spill_room(spill->reserved)) return false;
  for (uint32_t i = 0; i < spill->count; i++)
    if (overlap(by_age(spill, i), open)) return false;
  return open->offset + open->bytes <= spill->bytes;
}

bool rc_spill_is_valid(const struct rc_spill *spill) {
  if (spill->count > RC_SPILL_REGIONS || spill->first >= RC_SPILL_REGIONS) return false;
  uint64_t position = 0, offset = 0;
  for (uint32_t i = 0; i < spill->count; i++) { /* the queue is in the order of the frames */
    uint64_t end = by_age(spill, i)->end;
    if (end <= position) return false;
    position = end;
  }
  for (uint32_t i = 0; i < spill->count; i++) { /* by offset, without overlap */
    const struct rc_spill_region *region = &spill->regions[spill->order[i]];
    if (age_of(spill, i) >= spill->count) return false;
    if (region->offset < offset || region->bytes == 0) return false;
    if ((region->offset | region->bytes) % RC_SPILL_UNIT != 0) return false;
    offset = region->offset + region->bytes;
  }
  return offset <= spill->bytes && (!spill->is_open || is_open_valid(spill));
}

/* ---- Freeing --------------------------------------------------------------------------------- */

static void drop_oldest(struct rc_spill *spill) {
  uint32_t i = 0;
  while (spill->order[i] != spill->first) i++;
  spill->count--;
  memmove(&spill->order[i], &spill->order[i + 1], (spill->count - i) * sizeof *spill->order);
  spill->first = (spill->first + 1) % RC_SPILL_REGIONS;
}

/* The end of the newest region below `lowest`, but never less than the floor. */
static uint64_t floor_below(const struct rc_spill *spill, uint64_t lowest) {
  uint64_t floor = spill->floor;
  for (uint32_t i = 0; i < spill->count; i++) {
    uint64_t end = by_age(spill, i)->end;
    if (end > lowest) break;
    if (end > floor) floor = end;
  }
  return floor;
}

int rc_spill_reclaim(struct rc_spill *spill, struct rc_ring_writer *ring) {
  uint64_t lowest;
  int result = rc_ring_lowest(ring, &lowest);
  if (result != 0) return result;
  uint64_t floor = floor_below(spill, lowest);
  if (floor != spill->floor) {
    spill->floor = floor;
    RC_POINT(RECLAIM);
    /* S0 -> T6, J6. Relaxed, because the fence S1 follows. */
    rc_store_relaxed(&ring->view.control->spill_floor, floor);
    RC_POINT(S0_DONE);
    result = rc_ring_lowest(ring, &lowest); /* S1, as G0 -> T5, A0, J2 */
    RC_POINT(S1_DONE);
    if (result != 0) return result;
  }
  uint64_t free_below = lowest < floor ? lowest : floor;
  while (spill->count > 0 && by_age(spill, 0)->end <= free_below) drop_oldest(spill);
  assert(rc_spill_is_valid(spill));
  return 0;
}

/* ---- Finding --------------------------------------------------------------------------------- */

/* The lowest gap of `room` bytes between the regions in flight, ignoring the `passed` oldest
 * regions. */
static bool find_gap(const struct rc_spill *spill, uint32_t passed, uint64_t room,
                     uint64_t *offset) {
  uint64_t at = 0;
  if (room > spill->bytes) return false;
  for (uint32_t i = 0; i < spill->count; i++) {
    const struct rc_spill_region *region = &spill->regions[spill->order[i]];
    if (age_of(spill, i) < passed) continue;
    if (region->offset - at >= room) break;
    at = region->offset + region->bytes;
  }
  /* After a break, the rest of SPILL is at least the found gap, so the same check accepts it. */
  if (spill->bytes - at < room) return false;
  *offset = at;
  return true;
}

/* Whether the open region can grow to `room` bytes in place. */
static bool fits_in_place(const struct rc_spill *spill, uint64_t room) {
  uint64_t until = spill->bytes;
  for (uint32_t i = spill->count; i > 0; i--) {
    uint64_t offset = spill->regions[spill->order[i - 1]].offset;
    if (offset < spill->open.offset) break;
    until = offset;
  }
  return room <= until - spill->open.offset;
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
  /* Numbers of oldest regions to free; freeing more never leaves less room. */
  uint32_t few = 0, enough = spill->count;
  if (enough == 0) return 0;
  while (enough - few > 1) {
    uint32_t middle = few + (enough - few) / 2;
    if (find_gap(spill, middle, room, &offset)) enough = middle;
    else few = middle;
  }
  return by_age(spill, enough - 1)->end;
}

/* ---- Using ----------------------------------------------------------------------------------- */

void rc_spill_open(struct rc_spill *spill, uint64_t offset, uint64_t bytes) {
  if (!spill->is_open || bytes > spill->reserved) spill->reserved = bytes;
  spill->is_open = true;
  spill->open = (struct rc_spill_region){.offset = offset, .bytes = rc_spill_room(spill->reserved)};
  assert(rc_spill_is_valid(spill));
}

static void enqueue(struct rc_spill *spill, struct rc_spill_region region) {
  uint32_t index = (spill->first + spill->count) % RC_SPILL_REGIONS, i = spill->count;
  spill->regions[index] = region;
  spill->count++;
  while (i > 0 && spill->regions[spill->order[i - 1]].offset > region.offset) {
    spill->order[i] = spill->order[i - 1];
    i--;
  }
  spill->order[i] = (uint16_t)index;
}

static void close_region(struct rc_spill *spill) {
  spill->is_open = false;
  spill->open = (struct rc_spill_region){0};
  spill->reserved = 0;
}

int rc_spill_commit(struct rc_spill *spill, struct rc_ring_writer *ring, uint64_t bytes,
                    uint16_t kind) {
  if (!spill->is_open || bytes > spill->reserved) return -EINVAL;
  int result = rc_ring_commit_spilled(ring, spill->open.offset + RC_SPILL_PHASE, bytes, kind);
  if (result != 0) return result;
  enqueue(spill, (struct rc_spill_region){.offset = spill->open.offset,
                                          .bytes = rc_spill_room(bytes),
                                          .end = ring->tail});
  close_region(spill);
  assert(rc_spill_is_valid(spill));
  return 0;
}

void rc_spill_abort(struct rc_spill *spill) { close_region(spill); }
