/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at a ring from outside its hot path: who reads, who is behind, what it is made of. */
#include "channel/channel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shm/error.h"
#include "shm/sized.h"

int rc_check_fork(uint32_t forks) {
  if (forks == rc_fork_count()) return 0;
  if (forks == RC_LEFT) return rc_fail_as(-EINVAL, "this reader has left its ring: all it is good for is to be closed");
  return rc_fail(-ECHILD, "this handle belongs to the parent process: after fork, make or attach one in the child");
}

int rc_fail_shared(void) {
  return rc_fail_as(-EDEADLK, "another thread is waiting on this handle: one thread at a time may use it, but for "
                               "cancel (or a wait was left by longjmp, or with its thread: close it then)");
}

int rc_check_wait(uint32_t forks, int64_t timeout_ns) {
  if (timeout_ns < RINGCAST_FOREVER)
    return rc_fail(-EINVAL, "a timeout of %lld ns is negative: has the deadline passed? (0 tries once, "
                            "RINGCAST_FOREVER waits without end)", (long long)timeout_ns);
  return rc_check_fork(forks);
}

int rc_check_spin(int64_t spin_ns) {
  if (spin_ns >= -1) return 0;
  return rc_fail(-EINVAL, "options.spin_ns is %lld: it must be -1 (never), 0 (default) or more", (long long)spin_ns);
}

/* ---- Counting --------------------------------------------------------------------------------------------------- */

int rc_wait_counted(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t timeout_ns, struct rc_counts *counts,
                    struct rc_histogram *histogram) {
  if (timeout_ns == 0) return rc_wait(waiter, wait, 0);
  uint64_t waits = waiter->waits, sleeps = waiter->sleeps;
  int result = rc_wait(waiter, wait, timeout_ns);
  if (waiter->waits == waits) return result; /* it was there already */
  uint64_t waited = waiter->waited_ns, us = waited / 1000;
  uint32_t bucket = us == 0 ? 0 : (uint32_t)(64 - __builtin_clzll(us));
  if (bucket >= RC_BUCKETS) bucket = RC_BUCKETS - 1;
  rc_count(&counts->waits, 1);
  rc_count(&counts->sleeps, waiter->sleeps - sleeps);
  rc_count(&counts->waited_ns, waited);
  rc_store_relaxed(&histogram->counts[bucket], rc_load_relaxed(&histogram->counts[bucket]) + 1);
  return result;
}

static struct ringcast_stats stats_of(struct rc_counts *counts, struct rc_histogram *histogram) {
  struct ringcast_stats stats = {
      .size = sizeof stats,
      .frames = rc_load_relaxed(&counts->frames),
      .bytes = rc_load_relaxed(&counts->bytes),
      .waits = rc_load_relaxed(&counts->waits),
      .sleeps = rc_load_relaxed(&counts->sleeps),
      .wakes = rc_load_relaxed(&counts->wakes),
      .waited_ns = rc_load_relaxed(&counts->waited_ns),
  };
  for (uint32_t i = 0; i < RC_BUCKETS; i++) stats.histogram[i] = rc_load_relaxed(&histogram->counts[i]);
  return stats;
}

/* ---- Who reads -------------------------------------------------------------------------------------------------- */

/* Copies a name that another process wrote: whatever it is, it must not break a line of a log. */
static void copy_name(const char from[RC_NAME_MAX], char to[RC_NAME_MAX]) {
  memcpy(to, from, RC_NAME_MAX);
  to[RC_NAME_MAX - 1] = '\0';
  for (char *c = to; *c; c++)
    if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
}

bool rc_peer_read(const struct rc_ring *ring, uint32_t index, uint64_t tail, struct ringcast_peer *out) {
  struct rc_slot *slot = &ring->control->slots[index];
  uint64_t owner = rc_load_acquire(&slot->owner); /* pairs with J4: name, start and cursor are there */
  if (rc_owner_state(owner) == RC_SLOT_FREE) return false;
  bool joining = rc_owner_state(owner) == RC_SLOT_JOINING;
  uint64_t cursor = joining ? tail : rc_load_acquire(&slot->cursor);
  int32_t pid = (int32_t)rc_owner_pid(owner);
  enum rc_process_state process = rc_process_look(pid, rc_owner_start(owner), RC_START_MASK);
  bool alive = process != RC_PROCESS_ENDED, evicted = rc_owner_state(owner) == RC_SLOT_EVICTED;
  /* One that left and then exited is no dead reader: its slot tells. */
  if (!alive && rc_load_acquire(&slot->owner) != owner) return false; /* pairs with the store of FREE */
  *out = (struct ringcast_peer){
      .slot = index,
      .pid = pid,
      .state = !alive                          ? RINGCAST_PEER_DEAD
               : evicted                       ? RINGCAST_PEER_EVICTED
               : process == RC_PROCESS_STOPPED ? RINGCAST_PEER_STOPPED
               : joining                       ? RINGCAST_PEER_JOINING
                                               : RINGCAST_PEER_ACTIVE,
      .position = cursor,
      .lag = tail - cursor <= ring->capacity ? tail - cursor : 0,
      .stalls = rc_load_relaxed(&slot->stalls),
      .stats = stats_of(&slot->counts, &slot->waits),
  };
  copy_name(slot->name, out->name);
  return true;
}

bool rc_peer_slowest(const struct rc_ring *ring, uint64_t tail, struct ringcast_peer *out) {
  uint64_t worst = 0;
  bool found = false;
  for (uint32_t i = 0; i < ring->slots; i++) {
    struct rc_slot *slot = &ring->control->slots[i];
    enum rc_slot_state state = rc_owner_state(rc_load_acquire(&slot->owner)); /* pairs with J4 */
    if (state == RC_SLOT_FREE || state == RC_SLOT_EVICTED) continue;
    /* One that joins stands in the way of every grant, so it comes first. */
    uint64_t lag = state == RC_SLOT_ACTIVE ? tail - rc_load_acquire(&slot->cursor) : UINT64_MAX;
    if ((!found || lag > worst) && rc_peer_read(ring, i, tail, out)) {
      worst = lag;
      found = true;
    }
  }
  return found;
}

uint32_t rc_peer_count(const struct rc_ring *ring) {
  uint32_t count = 0;
  struct ringcast_peer peer;
  for (uint32_t i = 0; i < ring->slots; i++)
    count += rc_owner_state(rc_load_acquire(&ring->control->slots[i].owner)) == RC_SLOT_ACTIVE && /* pairs with J4 */
             rc_peer_read(ring, i, 0, &peer) && peer.state != RINGCAST_PEER_DEAD;
  return count;
}

bool rc_writer_peer(const ringcast_writer *writer, uint32_t index, struct ringcast_peer *out) {
  const struct rc_lost *lost = &writer->lost;
  if (!rc_peer_read(&writer->ring.ring, index, writer->ring.tail, out)) return false;
  if (rc_lost_is_waiting(writer) && out->state != RINGCAST_PEER_EVICTED && out->position < lost->wanted)
    out->held_ns = (uint64_t)(rc_now_ns() - lost->since);
  return true;
}

void rc_peer_describe(const struct ringcast_peer *peer, char *out, size_t bytes) {
  static const char *const states[] = {"", "joining", "active", "dead", "stopped by a signal or a debugger", "evicted"};
  const bool named = peer->name[0] != '\0';
  const bool briefly = peer->held_ns < 1000000000;
  char held[48] = "";
  if (peer->held_ns != 0)
    snprintf(held, sizeof held, briefly ? ", in the way for %.0f ms" : ", in the way for %.1f s",
             (double)peer->held_ns / (briefly ? 1e6 : 1e9));
  snprintf(out, bytes, "reader %u%s%s%s (pid %d, %s, at position %llu, %llu bytes behind%s)", peer->slot,
           named ? " '" : "", peer->name, named ? "'" : "", peer->pid, states[peer->state],
           (unsigned long long)peer->position, (unsigned long long)peer->lag, held);
}

/* Of an array's structs the first one says the size of all. `writer`, if it is not NULL, also knows for how long it has
 * been waiting. */
static int read_peers(const struct rc_ring *ring, const ringcast_writer *writer, uint64_t tail,
                      struct ringcast_peer *peers, uint32_t capacity) {
  if (!peers && capacity != 0) return rc_fail(-EINVAL, "peers is NULL, but its capacity is not 0");
  const uint32_t size = capacity == 0 ? 0 : peers->size;
  int result = capacity == 0 ? 0 : rc_sized_check("ringcast_peer", size);
  if (result != 0) return result;
  int count = 0;
  for (uint32_t i = 0; i < ring->slots; i++) {
    struct ringcast_peer peer;
    if (!(writer ? rc_writer_peer(writer, i, &peer) : rc_peer_read(ring, i, tail, &peer))) continue;
    if ((uint32_t)count < capacity)
      rc_sized_write((uint8_t *)peers + (size_t)count * size, size, &peer, sizeof peer);
    count++;
  }
  return count;
}

int rc_peers_read(const struct rc_ring *ring, uint64_t tail, struct ringcast_peer *peers, uint32_t capacity) {
  return read_peers(ring, NULL, tail, peers, capacity);
}

/* ---- Public ----------------------------------------------------------------------------------------------------- */

int ringcast_writer_peers(ringcast_writer *writer, struct ringcast_peer *peers, uint32_t capacity) {
  int result = rc_check_fork(writer->forks);
  return result != 0 ? result : read_peers(&writer->ring.ring, writer, writer->ring.tail, peers, capacity);
}

int ringcast_writer_slowest(ringcast_writer *writer, struct ringcast_peer *out) {
  int result = rc_check_fork(writer->forks);
  if (result == 0) result = rc_sized_check("ringcast_peer", out->size);
  if (result != 0) return result;
  struct ringcast_peer peer;
  if (!rc_peer_slowest(&writer->ring.ring, writer->ring.tail, &peer)) return 0;
  rc_writer_peer(writer, peer.slot, &peer); /* false: the reader has left just now, and `peer` is as before */
  rc_sized_write(out, out->size, &peer, sizeof peer);
  return 1;
}

uint64_t rc_ring_frame(const struct rc_segment *segment) { return rc_ring_max_frame(segment->capacity); }

uint64_t rc_max_frame(const struct rc_segment *segment) {
  uint64_t in_ring = rc_ring_max_frame(segment->capacity), spilled = rc_spill_max_frame(segment->spill.bytes);
  return spilled > in_ring ? spilled : in_ring;
}

int rc_stats_give(struct rc_counts *counts, struct rc_histogram *histogram, struct ringcast_stats *out) {
  int result = rc_sized_check("ringcast_stats", out->size);
  if (result != 0) return result;
  struct ringcast_stats stats = stats_of(counts, histogram);
  rc_sized_write(out, out->size, &stats, sizeof stats);
  return 0;
}

int rc_info_give(const struct rc_segment *segment, uint64_t tail, const struct rc_waiter *waiter,
                 struct ringcast_info *out) {
  int result = rc_sized_check("ringcast_info", out->size);
  if (result != 0) return result;
  const struct ringcast_info info = {
      .capacity = segment->capacity,
      .max_frame = rc_max_frame(segment),
      .ring_frame = rc_ring_frame(segment),
      .tail = tail,
      .readers = segment->slots,
      .memory = segment->data.memory,
      .page_size = segment->data.page_size,
      .writer_pid = segment->writer.pid,
      .spin_ns = waiter->spin_ns,
      .numa = segment->data.numa,
      .numa_node = segment->data.node,
      .numa_error = segment->data.numa_error,
      .spill_error = segment->spill_error,
      .spill_bytes = segment->spill.bytes,
      .spill_used = rc_load_relaxed(&rc_segment_control(segment)->spill_used), /* relaxed: a number to look at */
  };
  rc_sized_write(out, out->size, &info, sizeof info);
  return 0;
}

int ringcast_writer_stats(const ringcast_writer *writer, struct ringcast_stats *out) {
  int result = rc_check_fork(writer->forks);
  struct rc_control *control = writer->ring.ring.control;
  return result != 0 ? result : rc_stats_give(&control->counts, &control->waits, out);
}

int ringcast_reader_stats(const ringcast_reader *reader, struct ringcast_stats *out) {
  int result = rc_check_fork(reader->forks);
  struct rc_slot *slot = &reader->ring.ring.control->slots[reader->ring.slot];
  return result != 0 ? result : rc_stats_give(&slot->counts, &slot->waits, out);
}

int ringcast_writer_info(const ringcast_writer *writer, struct ringcast_info *out) {
  int result = rc_check_fork(writer->forks);
  return result != 0 ? result : rc_info_give(&writer->segment, writer->ring.tail, &writer->waiter, out);
}

int ringcast_reader_info(const ringcast_reader *reader, struct ringcast_info *out) {
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  /* Relaxed: a number to look at, nothing is read on the strength of it. */
  uint64_t tail = rc_load_relaxed(&reader->ring.ring.control->tail);
  return rc_info_give(&reader->segment, tail, &reader->waiter, out);
}

int ringcast_reader_lag(const ringcast_reader *reader, uint64_t *out) {
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  uint64_t lag = rc_load_relaxed(&reader->ring.ring.control->tail) - reader->ring.cursor; /* relaxed: as above */
  *out = lag <= reader->ring.ring.capacity ? lag : 0; /* the tail is stored just after the commit that was read */
  return 0;
}

const char *ringcast_last_error(void) { return rc_error_text(); }

const char *ringcast_version(void) { return RINGCAST_VERSION; }
