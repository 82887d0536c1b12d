/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers that the writer loses: those that die, and those that are too slow.
 *
 * Nobody is looked for on the hot path. A wait for room looks at whoever is in its way: dead, and the options say whether
 * the wait fails or goes on without it; alive, and the options may say for how long it may be in the way. Who wants to
 * know sooner asks ringcast_writer_check, or has ringcast_writer_fd tell when to.
 *
 * A dead reader's slot is freed. One that lives may be in the middle of reading, so it is only evicted (ring/slot.c): it
 * finds out by itself, at its next call. How long somebody is in the way is counted from the first reserve that found no
 * room, over all calls until one succeeds. Those that are below what that reserve wanted have been in the way all the time,
 * since cursors only grow.
 */
#include <errno.h>
#include <string.h>

#include "channel/channel.h"
#include "shm/error.h"

#define JOINING_NS RC_SLICE_NS /* joining takes less than a microsecond: who takes longer is stopped */

static _Atomic uint64_t *owner_of(const ringcast_writer *writer, uint32_t slot) {
  return &writer->ring.ring.control->slots[slot].owner;
}

static uint64_t load_owner(const ringcast_writer *writer, uint32_t slot) {
  return rc_load_acquire(owner_of(writer, slot)); /* pairs with J4, and leaving */
}

static bool is_dead(uint64_t owner) {
  return !rc_process_is_alive_by((int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK);
}

/* ---- Letting go ------------------------------------------------------------------------------------------------- */

/* To be told by ringcast_writer_check. Of too many, the oldest is forgotten. */
static void tell_later(struct rc_lost *lost, const struct ringcast_peer *peer) {
  if (lost->count == RC_MOST_TOLD) {
    lost->first = (lost->first + 1) % RC_MOST_TOLD;
    lost->count--;
  }
  lost->queue[(lost->first + lost->count++) % RC_MOST_TOLD] = *peer;
}

/* Goes on without a reader. False: it has left by itself. */
static bool let_go(ringcast_writer *writer, uint32_t slot, uint64_t owner, bool dead) {
  const struct rc_ring *ring = &writer->ring.ring;
  struct ringcast_peer peer;
  bool known = rc_writer_peer(writer, slot, &peer);
  if (!(dead ? rc_slot_reap(ring, slot, owner) : rc_slot_evict(ring, slot, owner))) return false;
  if (known) {
    peer.state = dead ? RINGCAST_PEER_DEAD : RINGCAST_PEER_EVICTED;
    tell_later(&writer->lost, &peer);
  }
  rc_ring_parties(ring);
  rc_ring_count_followers(ring);
  if (!dead) rc_wake(&ring->control->data); /* it may sleep, with a frame in its hands */
  return true;
}

void rc_lost_reap_dead(ringcast_writer *writer) {
  if (writer->lost.on_death == RINGCAST_FAIL) return;
  for (uint32_t i = 0; i < writer->ring.ring.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (rc_owner_state(owner) == RC_SLOT_ACTIVE && is_dead(owner)) let_go(writer, i, owner, true);
  }
}

/* ---- Joining, and evicted already ------------------------------------------------------------------------------- */

/* A reader that is stopped in the middle of joining holds up every grant. It can be evicted without loss: it will find its
 * claim refused, and claim anew. */
static void judge_joining(ringcast_writer *writer, uint32_t slot, uint64_t owner, int64_t now) {
  struct rc_lost *lost = &writer->lost;
  if (lost->joining != owner) {
    lost->joining = owner;
    lost->joining_since = now;
  } else if (now - lost->joining_since >= JOINING_NS) {
    rc_slot_evict(&writer->ring.ring, slot, owner); /* V1 */
  }
}

/* Who died while joining has got nothing yet and misses nothing; who died after it was evicted was told of then. */
void rc_lost_tidy(ringcast_writer *writer) {
  bool judged = false;
  for (uint32_t i = 0; i < writer->ring.ring.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    enum rc_slot_state state = rc_owner_state(owner);
    if (state != RC_SLOT_JOINING && state != RC_SLOT_EVICTED) continue;
    if (is_dead(owner)) {
      rc_slot_reap(&writer->ring.ring, i, owner);
    } else if (state == RC_SLOT_JOINING && !judged) { /* one at a time: the first is the one in the way */
      judge_joining(writer, i, owner, rc_now_ns());
      judged = true;
    }
  }
}

/* ---- In the way ------------------------------------------------------------------------------------------------- */

void rc_lost_begin(ringcast_writer *writer, uint64_t wanted) {
  struct rc_lost *lost = &writer->lost;
  if (lost->since != 0 && lost->tail == writer->ring.tail) return;
  lost->since = rc_now_ns();
  lost->tail = writer->ring.tail;
  lost->wanted = wanted;
}

struct rc_watch *rc_lost_blocker(ringcast_writer *writer) {
  uint64_t owner = load_owner(writer, writer->ring.blocker), who = rc_owner_as(owner, RC_SLOT_FREE);
  if (rc_owner_state(owner) == RC_SLOT_FREE) return NULL; /* it has just left: that signals */
  if (who != writer->blocker_owner) {
    rc_watch_close(&writer->blocker);
    rc_watch_init(&writer->blocker, (int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK);
    writer->blocker_owner = who;
  }
  return &writer->blocker;
}

int64_t rc_lost_slice(const ringcast_writer *writer) {
  const struct rc_lost *lost = &writer->lost;
  enum rc_slot_state state = rc_owner_state(load_owner(writer, writer->ring.blocker));
  if (state == RC_SLOT_JOINING) return JOINING_NS;
  if (lost->slow_ns == 0) return INT64_MAX;
  int64_t left = lost->slow_ns - (rc_now_ns() - lost->since);
  return left > RC_CHECK_NS ? left : RC_CHECK_NS;
}

/* Evicts all that have been in the way for as long as they may. */
static int judge_slow(ringcast_writer *writer) {
  struct rc_lost *lost = &writer->lost;
  const struct rc_ring *ring = &writer->ring.ring;
  int64_t now = rc_now_ns();
  if (lost->slow_ns == 0 || now - lost->since < lost->slow_ns) return -EAGAIN;
  if (lost->on_slow == RINGCAST_FAIL) return -ETIMEDOUT;
  int result = -EAGAIN;
  for (uint32_t i = 0; i < ring->slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (rc_owner_state(owner) != RC_SLOT_ACTIVE) continue;
    if (rc_load_acquire(&ring->control->slots[i].cursor) >= lost->wanted) continue; /* <- A1 */
    if (let_go(writer, i, owner, is_dead(owner))) result = 0;
  }
  lost->since = now;
  lost->wanted = rc_load_relaxed(&ring->control->wanted); /* relaxed: our own */
  return result;
}

int rc_lost_judge(ringcast_writer *writer) {
  uint32_t slot = writer->ring.blocker;
  uint64_t owner = load_owner(writer, slot);
  struct rc_watch *blocker = rc_lost_blocker(writer);
  if (!blocker || rc_watch_is_alive(blocker)) return judge_slow(writer);
  /* One that left and then exited is no dead reader: its slot tells. */
  if (rc_owner_as(owner, RC_SLOT_FREE) != writer->blocker_owner || load_owner(writer, slot) != owner) return -EAGAIN;
  if (rc_owner_state(owner) != RC_SLOT_ACTIVE) return -EAGAIN; /* for rc_lost_tidy */
  if (writer->lost.on_death == RINGCAST_FAIL) return -EOWNERDEAD;
  let_go(writer, slot, owner, true);
  return 0;
}

/* It can't be waited for, as it does not play by the rules: as good as dead. */
bool rc_lost_expel(ringcast_writer *writer) {
  uint32_t slot = writer->ring.blocker;
  uint64_t owner = load_owner(writer, slot);
  if (writer->lost.on_death == RINGCAST_FAIL || rc_owner_state(owner) != RC_SLOT_ACTIVE) return false;
  return let_go(writer, slot, owner, is_dead(owner));
}

/* ---- Looking for the dead --------------------------------------------------------------------------------------- */

void rc_lost_watch_all(ringcast_writer *writer) {
  struct rc_watchers *watchers = writer->lost.watchers;
  for (uint32_t i = 0; i < writer->ring.ring.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (rc_owner_state(owner) != RC_SLOT_ACTIVE)
      rc_watchers_clear(watchers, i);
    else if (rc_watchers_tag(watchers, i) != owner)
      rc_watchers_set(watchers, i, owner, (int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK);
  }
}

static int begin_watching(ringcast_writer *writer) {
  if (!writer->lost.watchers) {
    int result = rc_watchers_open(writer->ring.ring.slots, &writer->lost.watchers);
    if (result != 0) return rc_fail(result, "can't make a descriptor that watches the readers: %s", strerror(-result));
  }
  rc_lost_watch_all(writer);
  return 0;
}

int ringcast_writer_fd(ringcast_writer *writer) {
  int result = rc_check_fork(writer->forks);
  if (result == 0) result = begin_watching(writer);
  return result != 0 ? result : rc_watchers_fd(writer->lost.watchers);
}

static bool take_told(struct rc_lost *lost, struct ringcast_peer *out) {
  if (lost->count == 0) return false;
  *out = lost->queue[lost->first];
  lost->first = (lost->first + 1) % RC_MOST_TOLD;
  lost->count--;
  return true;
}

int ringcast_writer_check(ringcast_writer *writer, struct ringcast_peer *out) {
  struct rc_lost *lost = &writer->lost;
  int result = rc_check_fork(writer->forks);
  if (result == 0) result = begin_watching(writer);
  if (result != 0) return result;
  for (uint32_t slot; !take_told(lost, out);) {
    if (!rc_watchers_find_ended(lost->watchers, &slot)) return 0;
    uint64_t owner = rc_watchers_tag(lost->watchers, slot);
    struct ringcast_peer peer;
    bool here = load_owner(writer, slot) == owner && rc_writer_peer(writer, slot, &peer);
    if (here && lost->on_death == RINGCAST_FAIL) {
      *out = peer;
      return 1;
    }
    if (here) let_go(writer, slot, owner, true);
    rc_watchers_clear(lost->watchers, slot); /* it is told of now, or had left before it ended */
  }
  return 1;
}
