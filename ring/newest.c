/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a joining reader may start besides the tail: at the newest frame, or at the newest frame
 * with a tag. `newest` of the control segment is the position of the one. A table has the positions
 * of the others, and only a commit with a tag stores there. The essay atop ring.c tells why the
 * start is safe.
 *
 * The table. An entry has a tag and a place: the position of the newest frame with the tag, plus 1;
 * 0: the entry is empty. A tag has few possible entries; a new tag takes the entry with the lowest
 * place.
 *
 *     writer, after W3                                joining reader, after J2
 *     N1  place = 0                                   N5  load-acquire place
 *     N2  release fence                               N6  load tag
 *     N3  tag = the new tag                           N7  acquire fence
 *     N4  store-release place = position + 1  -> N5   N8  load place: as in N5?
 *
 * A position belongs to one frame, and so to one tag. If N5 and N8 find the same place, the entry
 * was not given to another tag in between: had N6 loaded a later tag than the place's, then N2 and
 * N7 pair, and N8 finds N1 or a later place. N4 -> N5: the tag is not older than the place, and the
 * frame at the place is committed. If the tag has its entry already, N4 is the only store.
 *
 * Between W3 and N4 the entry is one frame behind. A reader that joins in this gap starts at the
 * frame before.
 */
#include "ring/ring.h"

static bool is_position(uint64_t position) {
  return position % RC_FRAME_ALIGN == 0 && position <= RC_MAX_POSITION;
}

/* ---- The table ------------------------------------------------------------------------------- */

/* All of the tag's digits count, so neither tags in a row nor multiples of a power of two share
 * their entries. */
static uint32_t first_of(uint32_t tag) {
  tag ^= tag >> 16;
  tag ^= tag >> 8;
  tag ^= tag >> 4;
  return tag % (RC_NEWEST_TAGS / RC_NEWEST_WAYS) * RC_NEWEST_WAYS;
}

void rc_newest_note(struct rc_control *control, uint32_t tag, uint64_t position) {
  struct rc_newest *set = &control->tags[first_of(tag)], *entry = set;
  /* Relaxed loads: only this process stores here. */
  for (uint32_t i = 0; i < RC_NEWEST_WAYS; i++) {
    uint64_t place = rc_load_relaxed(&set[i].place);
    if (place != 0 && rc_load_relaxed(&set[i].tag) == tag) {
      rc_store_release(&set[i].place, position + 1); /* N4 -> N5 */
      return;
    }
    if (place < rc_load_relaxed(&entry->place)) entry = &set[i];
  }
  rc_store_relaxed(&entry->place, 0); /* N1: relaxed, because the fence N2 follows */
  RC_POINT(TAG_EMPTIED);
  rc_fence_release();                            /* N2 -> N7 */
  rc_store_relaxed(&entry->tag, tag);            /* N3: relaxed, N4 publishes it */
  rc_store_release(&entry->place, position + 1); /* N4 -> N5 */
  RC_POINT(TAG_NOTED);
}

/* An honest writer changes an entry once a frame; a hostile peer may without end. */
#define MOST_LOOKS 1000u

/* The place in an entry if the entry belongs to the tag, else 0. */
static uint64_t place_in(const struct rc_newest *entry, uint32_t tag) {
  for (uint32_t looks = 0; looks < MOST_LOOKS; looks++) {
    uint64_t place = rc_load_acquire(&entry->place);       /* N5 <- N4 */
    bool is_same = rc_load_relaxed(&entry->tag) == tag;    /* N6: relaxed, the fence N7 follows */
    rc_fence_acquire();                                    /* N7 <- N2 */
    uint64_t place_after = rc_load_relaxed(&entry->place); /* N8: relaxed, as N6 */
    if (place_after == place) return is_same ? place : 0;
  }
  return 0;
}

static bool look_up(const struct rc_control *control, uint32_t tag, uint64_t *position) {
  uint64_t place = 0;
  for (uint32_t i = 0; i < RC_NEWEST_WAYS && place == 0; i++)
    place = place_in(&control->tags[first_of(tag) + i], tag);
  *position = place - 1;
  return place != 0;
}

/* ---- The start ------------------------------------------------------------------------------- */

/* Reads the frame at *position, and the frame after it instead if that is committed: `newest` is
 * stored after the commit, so it may be one frame behind. */
static int read_newest(const struct rc_ring *ring, uint64_t *position, struct rc_ring_frame *frame,
                       uint64_t *end) {
  struct rc_ring_frame later;
  uint64_t after;
  int result = rc_ring_read(ring, *position, frame, end);
  if (result != 0) return result;
  if (rc_ring_read(ring, *end, &later, &after) != 0) return 0;
  *position = *end;
  *frame = later;
  *end = after;
  return 0;
}

/* Whether the writer may have overwritten a frame at `position`: see "Joining" atop ring.c. */
static bool is_too_old(const struct rc_ring *ring, uint64_t position, uint64_t tail) {
  return position < tail && tail - position > ring->capacity / 2;
}

/* Whether the payload of a spilled frame from `position` on is gone, of the frame there or of a
 * later one. J6: relaxed, because the fence J2 orders it after J1. */
static bool is_spill_gone(const struct rc_ring *ring, uint64_t position) {
  return position < rc_load_relaxed(&ring->control->spill_floor); /* J6 <- S0 */
}

static int find_newest(const struct rc_ring *ring, uint64_t tail, uint64_t *position) {
  struct rc_ring_frame frame;
  uint64_t found = rc_load_acquire(&ring->control->newest), end; /* J5 <- N0 */
  if (!is_position(found) || is_too_old(ring, found, tail)) return -EPROTO;
  int result = read_newest(ring, &found, &frame, &end);
  if (result == -EAGAIN && found == 0) return -EAGAIN; /* no frame yet */
  if (result != 0) return -EPROTO;
  if (frame.spilled && is_spill_gone(ring, found)) {
    *position = end;
    return -EAGAIN;
  }
  *position = found;
  return 0;
}

static int find_tagged(const struct rc_ring *ring, uint32_t tag, uint64_t tail,
                       uint64_t *position) {
  struct rc_ring_frame frame;
  uint64_t found, end;
  if (!look_up(ring->control, tag, &found)) return -ENODATA;
  if (!is_position(found)) return -EPROTO;
  if (is_too_old(ring, found, tail)) return -ENODATA;
  if (rc_ring_read(ring, found, &frame, &end) != 0) return -EPROTO;
  if (is_spill_gone(ring, found)) return -ENODATA;
  *position = found;
  return 0;
}

int rc_newest_find(const struct rc_ring *ring, struct rc_start start, uint64_t tail,
                   uint64_t *position) {
  if (start.tag != 0) return find_tagged(ring, start.tag, tail, position);
  return find_newest(ring, tail, position);
}
