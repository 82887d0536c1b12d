/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a ring's readers, off the hot path. */
#include "channel/liveness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "channel/stats.h"
#include "ringcast/inspect.h"
#include "shm/error.h"
#include "shm/options.h"

/* Copies a name that another process wrote. */
static void copy_name(const char from[RC_NAME_MAX], char to[RC_NAME_MAX]) {
  char copy[RC_NAME_MAX]; /* the process may change the shared bytes meanwhile */
  memcpy(copy, from, sizeof copy);
  rc_fence_light();
  ringcast_printable(copy, strnlen(copy, sizeof copy), to, RC_NAME_MAX);
}

static enum ringcast_peer_state state_of(enum rc_slot_state slot, int process) {
  if (process == RC_PROCESS_ENDED) return RINGCAST_PEER_DEAD;
  if (process < 0) return RINGCAST_PEER_UNKNOWN;
  if (slot == RC_SLOT_EVICTED) return RINGCAST_PEER_EVICTED;
  if (process == RC_PROCESS_STOPPED) return RINGCAST_PEER_STOPPED;
  if (slot == RC_SLOT_JOINING) return RINGCAST_PEER_JOINING;
  return RINGCAST_PEER_ACTIVE;
}

bool rc_peer_read(const struct rc_ring *ring, uint32_t index, uint64_t tail,
                  const struct rc_blocked *blocked, struct ringcast_peer *out) {
  struct rc_slot *slot = &ring->control->slots[index];
  const uint64_t owner = rc_load_acquire(&slot->owner); /* pairs with J4: the slot is filled in */
  const enum rc_slot_state state = rc_owner_state(owner);
  if (state == RC_SLOT_FREE) return false;
  uint64_t cursor = tail;
  if (state != RC_SLOT_JOINING) cursor = rc_load_acquire(&slot->cursor);
  const int process = rc_owner_look(owner);
  /* A reader that left and then exited is not a dead reader: its slot shows the difference. Pairs
   * with the store of FREE. */
  if (process == RC_PROCESS_ENDED && rc_load_acquire(&slot->owner) != owner) return false;
  *out = (struct ringcast_peer){
      .slot = index,
      .pid = (int32_t)rc_owner_pid(owner),
      .state = state_of(state, process),
      .position = cursor,
      .lag = tail - cursor <= ring->capacity ? tail - cursor : 0,
      .stalls = rc_load_relaxed(&slot->stalls),
      .stats = rc_stats_of(&slot->counts, &slot->waits),
  };
  copy_name(slot->name, out->name);
  if (state == RC_SLOT_ACTIVE && blocked && rc_slot_blocks(ring, index, blocked))
    out->blocked_ns = rc_ns_since(blocked->since);
  return true;
}

int rc_peer_count(const struct rc_ring *ring) {
  int count = 0;
  for (uint32_t i = 0; i < ring->slots; i++) {
    uint64_t owner = rc_load_acquire(&ring->control->slots[i].owner); /* pairs with J4 */
    if (rc_owner_state(owner) != RC_SLOT_ACTIVE) continue;
    int process = rc_owner_look(owner);
    if (process < 0) return process;
    count += process != RC_PROCESS_ENDED;
  }
  return count;
}

void rc_peer_describe(const struct ringcast_peer *peer, char *out, size_t bytes) {
  static const char *const states[] = {
      [RINGCAST_PEER_UNKNOWN] = "in an unknown state",
      [RINGCAST_PEER_JOINING] = "joining",
      [RINGCAST_PEER_ACTIVE] = "active",
      [RINGCAST_PEER_DEAD] = "dead",
      [RINGCAST_PEER_STOPPED] = "stopped by a signal or a debugger",
      [RINGCAST_PEER_EVICTED] = "evicted",
  };
  const double blocked_ms = (double)peer->blocked_ns / 1e6;
  char name[sizeof peer->name + 4] = "", blocked[48] = "";
  if (peer->name[0] != '\0') snprintf(name, sizeof name, " '%s'", peer->name);
  if (peer->blocked_ns >= 1000000000)
    snprintf(blocked, sizeof blocked, ", blocking for %.1f s", blocked_ms / 1e3);
  else if (peer->blocked_ns != 0)
    snprintf(blocked, sizeof blocked, ", blocking for %.0f ms", blocked_ms);
  snprintf(out, bytes, "reader %u%s (pid %d, %s, at position %llu, %llu bytes behind%s)",
           peer->slot, name, peer->pid, states[peer->state], (unsigned long long)peer->position,
           (unsigned long long)peer->lag, blocked);
}

/* A peer's position, and its index among the peers. */
struct lag {
  uint64_t position;
  uint32_t index;
};

/* The newest first. */
static int by_position(const void *a, const void *b) {
  const struct lag *first = a, *second = b;
  return (first->position < second->position) - (first->position > second->position);
}

/* Counts the frames from *position to `end`, and moves *position. */
static uint64_t count_frames(const struct rc_ring *ring, uint64_t *position, uint64_t end) {
  uint64_t frames = 0;
  while (*position < end && rc_ring_count(ring, position, 1) == 1) frames++;
  return frames;
}

/* Counts the frames that each peer has yet to release, in one walk over the frames. If a peer has
 * moved on meanwhile, the writer may overwrite the frames of the walk, which then ends at a frame
 * that is not whole. */
static void count_lags(const struct rc_ring *ring, uint64_t tail, struct ringcast_peer *peers,
                       uint32_t count) {
  struct lag lags[RC_MAX_SLOTS];
  uint32_t known = 0;
  for (uint32_t i = 0; i < count; i++)
    if (peers[i].lag != 0 && peers[i].state != RINGCAST_PEER_EVICTED &&
        peers[i].position % RC_FRAME_ALIGN == 0)
      lags[known++] = (struct lag){.position = peers[i].position, .index = i};
  qsort(lags, known, sizeof *lags, by_position);
  uint64_t end = tail, frames = 0;
  for (uint32_t i = 0; i < known; i++) {
    uint64_t position = lags[i].position;
    frames += count_frames(ring, &position, end);
    end = lags[i].position;
    peers[lags[i].index].lag_frames = frames;
  }
}

/* The `size` of the array's first struct applies to all. */
int rc_peers_read(const struct rc_ring *ring, uint64_t tail, const struct rc_blocked *blocked,
                  struct ringcast_peer *peers, uint32_t capacity) {
  uint32_t size = 0;
  if (capacity != 0) {
    if (!peers) return rc_fail(-EINVAL, "peers is NULL, but its capacity is not 0");
    size = peers->size;
    int result = rc_sized_check("ringcast_peer", size);
    if (result != 0) return result;
  }
  struct ringcast_peer *found = calloc(ring->slots, sizeof *found);
  if (!found) return rc_fail(-ENOMEM, "out of memory");
  uint32_t count = 0;
  for (uint32_t i = 0; i < ring->slots; i++)
    count += rc_peer_read(ring, i, tail, blocked, &found[count]);
  if (capacity != 0) count_lags(ring, tail, found, count);
  for (uint32_t i = 0; i < count && i < capacity; i++)
    rc_sized_write((uint8_t *)peers + (size_t)i * size, size, &found[i], sizeof *found);
  free(found);
  return (int)count;
}
