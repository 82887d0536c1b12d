/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers that the writer loses: those that die, and those that are too slow.
 *
 * Nobody is looked for on the hot path. A wait for room looks at whoever is in its way: dead, and the options say
 * whether the wait fails or goes on without it; alive, and the options may say for how long it may be in the way. Who
 * wants to know sooner asks ringcast_writer_check, or has ringcast_writer_fd tell when to.
 *
 * A dead reader's slot is freed. One that lives may be in the middle of reading, so it is only evicted (ring/slot.c):
 * it finds out by itself, at its next call. How long somebody is in the way is counted from the first reserve that
 * found no room, over all calls until one succeeds. Those that are below what each of these wanted have been in the way
 * all the time, since cursors only grow; when none is left that was, the clock starts anew for who is in the way now.
 *
 * Not only the one that is furthest behind is looked at: it may well live and wait, for ever, for another one that is
 * dead, as workers do that compute together, wherever that one has got to.
 */
#include <errno.h>
#include <string.h>

#include "channel/channel.h"
#include "shm/error.h"
#include "shm/sized.h"

#define JOINING_NS RC_SLICE_NS       /* joining takes less than a microsecond: who takes longer is stopped */
#define OTHERS_NS  (RC_SLICE_NS / 2) /* how often all the others are asked for in /proc, 10 us each */

static _Atomic uint64_t *owner_of(const ringcast_writer *writer, uint32_t slot) {
  return &writer->ring.ring.control->slots[slot].owner;
}

static uint64_t load_owner(const ringcast_writer *writer, uint32_t slot) {
  return rc_load_acquire(owner_of(writer, slot)); /* pairs with J4, and leaving */
}

/* Whether an attached reader, by its owner word, has not yet passed what is wanted. */
static bool is_in_the_way(const ringcast_writer *writer, uint32_t slot, uint64_t owner, uint64_t wanted) {
  return rc_owner_state(owner) == RC_SLOT_ACTIVE &&
         rc_load_acquire(&writer->ring.ring.control->slots[slot].cursor) < wanted; /* <- A1 */
}

/* ---- The writer's view of its readers ---------------------------------------------------------------------------- */

bool rc_liveness_is_waiting(const ringcast_writer *writer) {
  const struct rc_liveness *liveness = &writer->liveness;
  return liveness->since != 0 && liveness->tail == writer->ring.tail && liveness->open == rc_writer_is_open(writer);
}

/* Since when the writer waits; NULL: it does not. */
static const struct rc_blocked *blocked_by(const ringcast_writer *writer, struct rc_blocked *out) {
  *out = (struct rc_blocked){.since = writer->liveness.since, .wanted = writer->liveness.wanted};
  return rc_liveness_is_waiting(writer) ? out : NULL;
}

bool rc_writer_peer(const ringcast_writer *writer, uint32_t index, struct ringcast_peer *out) {
  struct rc_blocked blocked;
  return rc_peer_read(&writer->ring.ring, index, writer->ring.tail, blocked_by(writer, &blocked), out);
}

int ringcast_writer_peers(ringcast_writer *writer, struct ringcast_peer *peers, uint32_t capacity) {
  int result = rc_check_fork(writer->forks);
  struct rc_blocked blocked;
  if (result != 0) return result;
  return rc_peers_read(&writer->ring.ring, writer->ring.tail, blocked_by(writer, &blocked), peers, capacity);
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

/* ---- Letting go ------------------------------------------------------------------------------------------------- */

/* To be told by ringcast_writer_check, for which the descriptor calls. Of too many, the oldest is forgotten. */
static void tell_later(struct rc_liveness *liveness, const struct ringcast_peer *peer) {
  if (liveness->count == RC_MAX_DEPARTED) {
    liveness->first = (liveness->first + 1) % RC_MAX_DEPARTED;
    liveness->count--;
  }
  liveness->queue[(liveness->first + liveness->count++) % RC_MAX_DEPARTED] = *peer;
  if (liveness->poller) rc_poller_raise(liveness->poller, true);
}

/* Goes on without a reader. False: it has left by itself. */
static bool let_go(ringcast_writer *writer, uint32_t slot, uint64_t owner, bool dead) {
  const struct rc_ring *ring = &writer->ring.ring;
  struct ringcast_peer peer;
  bool known = rc_writer_peer(writer, slot, &peer);
  if (dead) RC_POINT(REAP);
  else RC_POINT(EVICT);
  if (!(dead ? rc_slot_reap(ring, slot, owner) : rc_slot_evict(ring, slot, owner))) return false;
  if (dead) RC_POINT(REAPED);
  else RC_POINT(V1_DONE);
  if (known) {
    peer.state = dead ? RINGCAST_PEER_DEAD : RINGCAST_PEER_EVICTED;
    tell_later(&writer->liveness, &peer);
  }
  rc_ring_participants(ring);
  if (dead) return true;
  RC_POINT(EVICT_COUNTED);
  rc_wake(&ring->control->not_empty); /* it may sleep, with a frame in its hands */
  RC_POINT(EVICT_TOLD);
  return true;
}

void rc_liveness_reap_dead(ringcast_writer *writer) {
  if (writer->liveness.on_death == RINGCAST_FAIL) return;
  for (uint32_t i = 0; i < writer->ring.ring.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (rc_owner_state(owner) == RC_SLOT_ACTIVE && rc_owner_is_dead(owner)) let_go(writer, i, owner, true);
  }
}

/* ---- Joining, and evicted already ------------------------------------------------------------------------------- */

/* A reader that is stopped in the middle of joining holds up every grant. It can be evicted without loss: it will find
 * its claim refused, and claim anew. */
static void judge_joining(ringcast_writer *writer, uint32_t slot, uint64_t owner, int64_t now) {
  struct rc_liveness *liveness = &writer->liveness;
  if (liveness->joining != owner) {
    liveness->joining = owner;
    liveness->joining_since = now;
  } else if (now - liveness->joining_since >= JOINING_NS) {
    RC_POINT(REFUSE);
    rc_slot_evict(&writer->ring.ring, slot, owner); /* V1 */
    RC_POINT(REFUSE_DONE);
  }
}

/* Who died while joining has got nothing yet and misses nothing; who died after it was evicted was told of then. The
 * evicted are in nobody's way, so one slot at a time is looked at for them: to ask /proc about many takes longer than
 * to wait. */
void rc_liveness_reap_joining(ringcast_writer *writer) {
  uint32_t slots = writer->ring.ring.slots, turn = writer->liveness.tidied++ % slots;
  bool judged = false;
  for (uint32_t i = 0; i < slots; i++) {
    uint64_t owner = load_owner(writer, i);
    enum rc_slot_state state = rc_owner_state(owner);
    if (state != RC_SLOT_JOINING && (state != RC_SLOT_EVICTED || i != turn)) continue;
    if (rc_owner_is_dead(owner)) {
      rc_slot_reap(&writer->ring.ring, i, owner);
    } else if (state == RC_SLOT_JOINING && !judged) { /* one at a time: the first is the one in the way */
      judge_joining(writer, i, owner, rc_now_ns());
      judged = true;
    }
  }
}

/* ---- In the way ------------------------------------------------------------------------------------------------- */

void rc_liveness_begin(ringcast_writer *writer, uint64_t wanted) {
  struct rc_liveness *liveness = &writer->liveness;
  if (rc_liveness_is_waiting(writer)) {
    if (wanted < liveness->wanted) liveness->wanted = wanted;
    return;
  }
  liveness->since = rc_now_ns();
  liveness->tail = writer->ring.tail;
  liveness->open = rc_writer_is_open(writer);
  liveness->wanted = wanted;
}

struct rc_watch *rc_liveness_blocker(ringcast_writer *writer) {
  uint64_t owner = load_owner(writer, writer->ring.blocker), who = rc_owner_as(owner, RC_SLOT_FREE);
  if (rc_owner_state(owner) == RC_SLOT_FREE) return NULL; /* it has just left: that signals */
  if (who != writer->blocker_owner) {
    rc_watch_close(&writer->blocker);
    rc_watch_init(&writer->blocker, (int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK);
    writer->blocker_owner = who;
  }
  return &writer->blocker;
}

int64_t rc_liveness_slice(const ringcast_writer *writer) {
  const struct rc_liveness *liveness = &writer->liveness;
  if (liveness->slow_ns == 0) return RC_SLICE_NS;
  int64_t left = liveness->slow_ns - (rc_now_ns() - liveness->since);
  if (left < RC_CHECK_NS) left = RC_CHECK_NS;
  return left < RC_SLICE_NS ? left : RC_SLICE_NS;
}

/* Evicts all that have been in the way for as long as they may, or says that there are some. */
static int judge_slow(ringcast_writer *writer, uint64_t wanted) {
  struct rc_liveness *liveness = &writer->liveness;
  int64_t now = rc_now_ns();
  bool late = liveness->slow_ns != 0 && now - liveness->since >= liveness->slow_ns, any = false;
  int result = -EAGAIN;
  for (uint32_t i = 0; i < writer->ring.ring.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (!is_in_the_way(writer, i, owner, liveness->wanted)) continue;
    any = true;
    if (!late) continue;
    bool dead = rc_owner_is_dead(owner);
    if ((dead ? liveness->on_death : liveness->on_slow) == RINGCAST_EVICT) {
      if (let_go(writer, i, owner, dead)) result = 0;
    } else if (load_owner(writer, i) == owner) { /* else it has just left */
      if (dead) writer->ring.blocker = i;        /* to be named */
      return dead ? -EOWNERDEAD : -ETIMEDOUT;
    }
  }
  if (any && !late) return -EAGAIN;
  liveness->since = now;
  liveness->wanted = wanted;
  return result;
}

/* All beside the blocker. */
static int judge_others(ringcast_writer *writer) {
  struct rc_liveness *liveness = &writer->liveness;
  int64_t now = rc_now_ns();
  int result = -EAGAIN;
  if (now - liveness->asked < OTHERS_NS) return -EAGAIN;
  for (uint32_t i = 0; i < writer->ring.ring.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (i == writer->ring.blocker || rc_owner_state(owner) != RC_SLOT_ACTIVE || !rc_owner_is_dead(owner)) continue;
    if (liveness->on_death == RINGCAST_EVICT) {
      if (let_go(writer, i, owner, true)) result = 0;
    } else if (load_owner(writer, i) == owner) { /* else it left before it exited */
      writer->ring.blocker = i;                  /* to be named; and asked for at once by the next wait */
      return -EOWNERDEAD;
    }
  }
  liveness->asked = now;
  return result;
}

int rc_liveness_check_blockers(ringcast_writer *writer, uint64_t wanted) {
  uint32_t slot = writer->ring.blocker;
  uint64_t owner = load_owner(writer, slot);
  struct rc_watch *blocker = rc_liveness_blocker(writer);
  if (!blocker || rc_watch_is_alive(blocker)) {
    int result = judge_others(writer);
    return result == -EAGAIN ? judge_slow(writer, wanted) : result;
  }
  /* One that left and then exited is no dead reader: its slot tells. */
  if (rc_owner_as(owner, RC_SLOT_FREE) != writer->blocker_owner || load_owner(writer, slot) != owner) return -EAGAIN;
  if (rc_owner_state(owner) != RC_SLOT_ACTIVE) return -EAGAIN; /* for rc_liveness_reap_joining */
  if (writer->liveness.on_death == RINGCAST_FAIL) return -EOWNERDEAD;
  let_go(writer, slot, owner, true);
  return 0;
}

/* It can't be waited for, as it does not play by the rules: as good as dead. Its cursor is looked at once more, since
 * it may have left, and the slot gone to another. */
bool rc_liveness_evict_invalid(ringcast_writer *writer) {
  uint32_t slot = writer->ring.blocker;
  uint64_t owner = load_owner(writer, slot);
  uint64_t cursor = rc_load_acquire(&writer->ring.ring.control->slots[slot].cursor); /* <- A1 */
  if (rc_owner_state(owner) != RC_SLOT_ACTIVE || rc_ring_is_cursor(&writer->ring, cursor)) return true;
  if (writer->liveness.on_death == RINGCAST_FAIL) return false;
  let_go(writer, slot, owner, rc_owner_is_dead(owner));
  return true;
}

/* ---- Looking for the dead --------------------------------------------------------------------------------------- */

void rc_liveness_watch_all(ringcast_writer *writer) {
  for (uint32_t i = 0; i < writer->ring.ring.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    struct rc_watch whom;
    rc_watch_init(&whom, (int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK);
    rc_poller_watch(writer->liveness.poller, i, owner, rc_owner_state(owner) == RC_SLOT_ACTIVE ? &whom : NULL);
  }
}

static int begin_watching(ringcast_writer *writer) {
  if (!writer->liveness.poller) {
    int result = rc_poller_open(NULL, writer->ring.ring.slots, &writer->liveness.poller);
    if (result != 0) return rc_fail(result, "can't make a descriptor that watches the readers: %s", strerror(-result));
    rc_poller_raise(writer->liveness.poller, writer->liveness.count != 0);
  }
  rc_liveness_watch_all(writer);
  return 0;
}

int ringcast_writer_fd(ringcast_writer *writer) {
  int result = rc_check_fork(writer->forks);
  if (result == 0) result = begin_watching(writer);
  return result != 0 ? result : rc_poller_fd(writer->liveness.poller);
}

static bool take_told(struct rc_liveness *liveness, struct ringcast_peer *out) {
  if (liveness->count == 0) return false;
  *out = liveness->queue[liveness->first];
  liveness->first = (liveness->first + 1) % RC_MAX_DEPARTED;
  if (--liveness->count == 0) rc_poller_raise(liveness->poller, false);
  return true;
}

int ringcast_writer_check(ringcast_writer *writer, struct ringcast_peer *out) {
  struct rc_liveness *liveness = &writer->liveness;
  int result = rc_check_fork(writer->forks);
  if (result == 0) result = rc_sized_check("ringcast_peer", out->size);
  if (result == 0) result = begin_watching(writer);
  if (result != 0) return result;
  struct ringcast_peer peer;
  for (uint32_t slot; !take_told(liveness, &peer);) {
    if (!rc_poller_find_ended(liveness->poller, &slot)) return 0;
    uint64_t owner = rc_poller_tag(liveness->poller, slot);
    bool here = load_owner(writer, slot) == owner && rc_writer_peer(writer, slot, &peer);
    if (here && liveness->on_death == RINGCAST_FAIL) {
      peer.state = RINGCAST_PEER_DEAD; /* by its pidfd, whatever /proc hides */
      break;
    }
    if (here) let_go(writer, slot, owner, true);
    rc_poller_watch(liveness->poller, slot, 0, NULL); /* it is told of now, or had left before it ended */
  }
  rc_sized_write(out, out->size, &peer, sizeof peer);
  return 1;
}
