/* SPDX-License-Identifier: Apache-2.0 */
/* The frames that a reader holds: ring.h tells of leases, pins and the queue. */
#include "ring/ring.h"

static struct rc_held *entry(struct rc_ring_reader *reader, uint32_t i) {
  return &reader->queue[(reader->first + i) % RC_MAX_HELD];
}

static bool is_free(const struct rc_held *held) { return !held->leased && held->pins == 0; }

bool rc_ring_queue_is_valid(const struct rc_ring_reader *reader) {
  if (rc_ring_held(reader) == 0) return reader->held_last.leased && reader->held_last.pins == 0;
  if (reader->older == 0) return !is_free(&reader->held_last);
  /* The oldest frame is in use, and each entry covers at least RC_FRAME_ALIGN bytes. */
  return !is_free(&reader->queue[reader->first]) &&
         reader->next - reader->cursor >= (uint64_t)RC_FRAME_ALIGN * (reader->older + 1);
}

/* Moves the cursor over the free frames at the front of the queue. */
static void advance_cursor(struct rc_ring_reader *reader) {
  uint64_t before = reader->cursor;
  while (reader->older > 0 && is_free(entry(reader, 0))) {
    reader->cursor = entry(reader, 0)->end;
    reader->first = (reader->first + 1) % RC_MAX_HELD;
    reader->older--;
  }
  if (reader->older == 0 && is_free(&reader->held_last)) {
    reader->cursor = reader->next;
    reader->held_last.leased = true;
  }
  if (reader->cursor != before)
    rc_store_release(&reader->own->cursor, reader->cursor); /* A1 -> G2 */
  RC_POINT(CURSOR_MOVED);
}

/* Adds held_last to the queue. */
static void push(struct rc_ring_reader *reader) {
  struct rc_held *before = reader->older > 0 ? entry(reader, reader->older - 1) : NULL;
  reader->held_last.end = reader->next;
  if (before && is_free(before) && is_free(&reader->held_last)) {
    before->end = reader->next;
    return;
  }
  *entry(reader, reader->older) = reader->held_last;
  reader->older++;
}

void rc_ring_hold(struct rc_ring_reader *reader, uint64_t end) {
  if (rc_ring_held(reader) > 0) push(reader);
  reader->held_last = (struct rc_held){.leased = true};
  reader->next = end;
}

/* Replaces each run of free entries by one entry. */
static void merge(struct rc_ring_reader *reader) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < reader->older; i++) {
    struct rc_held held = *entry(reader, i);
    if (count > 0 && is_free(&held) && is_free(entry(reader, count - 1))) {
      entry(reader, count - 1)->end = held.end;
      continue;
    }
    *entry(reader, count) = held;
    count++;
  }
  reader->older = count;
}

bool rc_ring_may_hold(struct rc_ring_reader *reader) {
  if (rc_ring_held(reader) == RC_MAX_HELD) merge(reader);
  if (rc_ring_held(reader) == RC_MAX_HELD) return false; /* too many pins */
  uint32_t leased = reader->lents + (rc_ring_held(reader) > 0 && reader->held_last.leased);
  for (uint32_t i = 0; i < reader->older; i++) leased += entry(reader, i)->leased;
  return leased < reader->leases;
}

/* The entry of the frame that starts at `position`. NULL: no held frame starts at `position`. */
static struct rc_held *find(struct rc_ring_reader *reader, uint64_t position) {
  uint64_t start = reader->cursor;
  if (rc_ring_held(reader) == 0) return NULL;
  for (uint32_t i = 0; i < reader->older; i++) {
    if (start == position) return entry(reader, i);
    start = entry(reader, i)->end;
  }
  return start == position ? &reader->held_last : NULL;
}

static struct rc_held *find_leased(struct rc_ring_reader *reader, uint64_t position) {
  struct rc_held *held = find(reader, position);
  return held && held->leased ? held : NULL;
}

bool rc_ring_holds(struct rc_ring_reader *reader, uint64_t position) {
  return find_leased(reader, position) != NULL;
}

void rc_ring_unread(struct rc_ring_reader *reader, uint64_t position) {
  assert(rc_ring_held(reader) > 0 && position < reader->next && reader->held_last.pins == 0);
  reader->next = position;
  reader->held_last = (struct rc_held){.leased = true};
  if (reader->older == 0) return;
  reader->older--;
  assert(entry(reader, reader->older)->end == position);
  reader->held_last = *entry(reader, reader->older);
}

bool rc_ring_unread_last(struct rc_ring_reader *reader, uint64_t position) {
  const struct rc_held *held = find_leased(reader, position);
  if (!held || held != &reader->held_last || held->pins > 0) return false;
  rc_ring_unread(reader, position);
  return true;
}

int rc_ring_release(struct rc_ring_reader *reader, uint64_t position) {
  struct rc_held *held = find_leased(reader, position);
  if (!held) return -EINVAL;
  if (rc_ring_is_evicted(reader)) return -ESTALE; /* A0 */
  held->leased = false;
  advance_cursor(reader);
  return 0;
}

int rc_ring_pin(struct rc_ring_reader *reader, uint64_t position) {
  struct rc_held *held = find_leased(reader, position);
  if (!held) return -EINVAL;
  held->pins++;
  return 0;
}

void rc_ring_pin_entry(struct rc_ring_reader *reader, uint64_t position) {
  struct rc_held *held = find(reader, position);
  assert(held && held->pins > 0);
  held->pins++;
}

void rc_ring_unpin(struct rc_ring_reader *reader, uint64_t position) {
  struct rc_held *held = find(reader, position);
  assert(held && held->pins > 0);
  held->pins--;
  /* No check for eviction: the writer ignores the cursor of an evicted slot. */
  advance_cursor(reader);
}
