/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a ring's readers, off the hot path. */
#include "channel/channel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

bool rc_peer_read(const struct rc_ring *ring, uint32_t index, uint64_t tail,
                  const struct rc_blocked *blocked, struct ringcast_peer *out) {
  struct rc_slot *slot = &ring->control->slots[index];
  uint64_t owner =
      rc_load_acquire(&slot->owner); /* pairs with J4: name, start and cursor are there */
  if (rc_owner_state(owner) == RC_SLOT_FREE) return false;
  bool joining = rc_owner_state(owner) == RC_SLOT_JOINING;
  uint64_t cursor = joining ? tail : rc_load_acquire(&slot->cursor);
  int32_t pid = (int32_t)rc_owner_pid(owner);
  int process = rc_owner_look(owner);
  bool alive = process != RC_PROCESS_ENDED, evicted = rc_owner_state(owner) == RC_SLOT_EVICTED;
  /* A reader that left and then exited is not a dead reader: its slot shows the difference. */
  if (!alive && rc_load_acquire(&slot->owner) != owner)
    return false; /* pairs with the store of FREE */
  *out = (struct ringcast_peer){
      .slot = index,
      .pid = pid,
      .state = !alive                          ? RINGCAST_PEER_DEAD
               : process < 0                   ? RINGCAST_PEER_UNKNOWN
               : evicted                       ? RINGCAST_PEER_EVICTED
               : process == RC_PROCESS_STOPPED ? RINGCAST_PEER_STOPPED
               : joining                       ? RINGCAST_PEER_JOINING
                                               : RINGCAST_PEER_ACTIVE,
      .position = cursor,
      .lag = tail - cursor <= ring->capacity ? tail - cursor : 0,
      .stalls = rc_load_relaxed(&slot->stalls),
      .stats = rc_stats_of(&slot->counts, &slot->waits),
  };
  copy_name(slot->name, out->name);
  if (evicted || joining) return true;
  if (blocked && rc_slot_blocks(ring, index, blocked))
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
  static const char *const states[] = {"in an unknown state",
                                       "joining",
                                       "active",
                                       "dead",
                                       "stopped by a signal or a debugger",
                                       "evicted"};
  const bool named = peer->name[0] != '\0';
  const bool briefly = peer->blocked_ns < 1000000000;
  char blocked[48] = "";
  if (peer->blocked_ns != 0)
    snprintf(blocked, sizeof blocked, briefly ? ", blocking for %.0f ms" : ", blocking for %.1f s",
             (double)peer->blocked_ns / (briefly ? 1e6 : 1e9));
  snprintf(out, bytes, "reader %u%s%s%s (pid %d, %s, at position %llu, %llu bytes behind%s)",
           peer->slot, named ? " '" : "", peer->name, named ? "'" : "", peer->pid,
           states[peer->state], (unsigned long long)peer->position, (unsigned long long)peer->lag,
           blocked);
}

/* A peer's position, and its index among the peers. */
struct lag {
  uint64_t position;
  uint32_t index;
};

static int by_position(const void *a, const void *b) {
  const struct lag *first = a, *second = b;
  return (first->position < second->position) -
         (first->position > second->position); /* the newest first */
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
  if (!peers && capacity != 0) return rc_fail(-EINVAL, "peers is NULL, but its capacity is not 0");
  const uint32_t size = capacity == 0 ? 0 : peers->size;
  int result = capacity == 0 ? 0 : rc_sized_check("ringcast_peer", size);
  if (result != 0) return result;
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
