/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Liveness: readers that die, and readers that are too slow.
 *
 * The hot path checks no reader. A wait for room checks the blocker. If the blocker is dead,
 * options.on_death says whether the wait fails or goes on without the reader. If the blocker is
 * alive, options.slow_ns may limit how long it may block. For earlier notice a program calls
 * ringcast_writer_check, or polls ringcast_writer_fd.
 *
 * The writer frees a dead reader's slot. A live reader may be in the middle of reading, so it is
 * only evicted (ring/slot.c) and finds out at its next call. The time for which a reader blocks
 * starts at the first reserve that found no room, and runs over all calls until one succeeds. A
 * reader below the wanted position of all these calls has blocked the whole time, because cursors
 * only grow; when no such reader is left, the clock starts anew for the readers that block now.
 *
 * A wait checks every reader, not only the slowest: in a tensor-parallel group the slowest reader
 * may be alive but blocked in a collective on a dead one, wherever the dead reader's cursor is.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "channel/channel.h"
#include "shm/error.h"
#include "shm/options.h"

/* The longest sleep of a blocked writer, and how often the writer checks all other readers in
 * /proc, 10 us each: a pidfd for each would cost the writer up to 1,024 descriptors. The sum limits
 * how late the writer notices a death. */
#define SLICE_NS  ((int64_t)50 * 1000 * 1000)
#define OTHERS_NS (SLICE_NS / 2)
#define JOINING_NS                                                              \
  SLICE_NS /* joining takes less than a microsecond: a slower reader is stopped \
            */

static _Atomic uint64_t *owner_of(const ringcast_writer *writer, uint32_t slot) {
  return &writer->ring.view.control->slots[slot].owner;
}

static uint64_t load_owner(const ringcast_writer *writer, uint32_t slot) {
  return rc_load_acquire(owner_of(writer, slot)); /* pairs with J4, and with the FREE of leaving */
}

/* ---- The writer's view of its readers -------------------------------------------------------- */

/* Whether the clock runs for the present call. */
static bool is_waiting(const ringcast_writer *writer) {
  const struct rc_liveness *liveness = &writer->liveness;
  return liveness->since != 0 && liveness->tail == writer->ring.tail &&
         liveness->open == rc_writer_is_open(writer);
}

/* Since when the writer waits, and for what; NULL: the writer does not wait. */
static const struct rc_blocked *blocked_by(const ringcast_writer *writer, struct rc_blocked *out) {
  *out = (struct rc_blocked){.since = writer->liveness.since,
                             .below = writer->liveness.wanted,
                             .due = writer->ring.credit == 0 ? writer->ring.due : 0,
                             .tail = writer->ring.tail};
  return is_waiting(writer) ? out : NULL;
}

bool rc_writer_peer(const ringcast_writer *writer, uint32_t index, struct ringcast_peer *out) {
  struct rc_blocked blocked;
  return rc_peer_read(&writer->ring.view, index, writer->ring.tail, blocked_by(writer, &blocked),
                      out);
}

int ringcast_writer_peers(ringcast_writer *writer, struct ringcast_peer *peers, uint32_t capacity) {
  int result = rc_check_fork(writer->forks);
  struct rc_blocked blocked;
  if (result != 0) return result;
  return rc_peers_read(&writer->ring.view, writer->ring.tail, blocked_by(writer, &blocked), peers,
                       capacity);
}

int ringcast_writer_slowest(ringcast_writer *writer, struct ringcast_peer *out) {
  int result = rc_check_fork(writer->forks);
  if (result == 0) result = rc_sized_check("ringcast_peer", out->size);
  if (result != 0) return result;
  struct ringcast_peer peer;
  uint64_t worst = 0;
  bool found = false;
  for (uint32_t i = 0; i < writer->ring.view.slots; i++) {
    enum rc_slot_state state = rc_owner_state(load_owner(writer, i));
    if (state == RC_SLOT_FREE || state == RC_SLOT_EVICTED) continue;
    /* A joining reader blocks every grant, so it comes first. */
    uint64_t cursor = rc_load_acquire(&writer->ring.view.control->slots[i].cursor); /* <- A1 */
    uint64_t lag = state == RC_SLOT_ACTIVE ? writer->ring.tail - cursor : UINT64_MAX;
    if ((found && lag <= worst) || !rc_writer_peer(writer, i, &peer)) continue;
    worst = lag;
    found = true;
  }
  if (found) rc_sized_write(out, out->size, &peer, sizeof peer);
  return found;
}

/* ---- Removing a reader ----------------------------------------------------------------------- */

/* Queues a reader for ringcast_writer_check, and raises the descriptor. A full queue drops its
 * oldest entry. */
static void queue_departure(struct rc_liveness *liveness, const struct ringcast_peer *peer) {
  if (liveness->count == RC_MAX_DEPARTED) {
    liveness->first = (liveness->first + 1) % RC_MAX_DEPARTED;
    liveness->count--;
  }
  liveness->queue[(liveness->first + liveness->count++) % RC_MAX_DEPARTED] = *peer;
  if (liveness->poller) rc_poller_raise(liveness->poller, true);
}

/* Goes on without a reader: frees its slot if dead, else evicts it. Nothing to do: the reader has
 * left meanwhile. */
static void remove_reader(ringcast_writer *writer, uint32_t slot, uint64_t owner, bool dead) {
  const struct rc_ring *ring = &writer->ring.view;
  struct ringcast_peer peer;
  bool known = rc_writer_peer(writer, slot, &peer);
  if (dead) RC_POINT(REAP);
  else RC_POINT(EVICT);
  if (!(dead ? rc_slot_reap(ring, slot, owner) : rc_slot_evict(ring, slot, owner))) return;
  if (dead) RC_POINT(REAPED);
  else RC_POINT(V1_DONE);
  RC_PROBE3(evict, writer->handle, rc_owner_pid(owner), dead);
  if (known) {
    peer.state = dead ? RINGCAST_PEER_DEAD : RINGCAST_PEER_EVICTED;
    queue_departure(&writer->liveness, &peer);
  }
  rc_ring_participants(ring);
  if (dead) return;
  RC_POINT(EVICT_COUNTED);
  rc_wake(&ring->control->not_empty); /* the evicted reader may sleep while it holds a frame */
  RC_POINT(EVICT_TOLD);
}

void rc_liveness_reap_dead(ringcast_writer *writer) {
  if (writer->liveness.on_death == RINGCAST_FAIL) return;
  for (uint32_t i = 0; i < writer->ring.view.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (rc_owner_state(owner) == RC_SLOT_ACTIVE && rc_owner_is_dead(owner))
      remove_reader(writer, i, owner, true);
  }
}

/* ---- Joining --------------------------------------------------------------------------------- */

/* A reader stopped in joining blocks every grant. Eviction loses nothing: the claim is refused, the
 * reader claims again. */
static void check_joining(ringcast_writer *writer, uint32_t slot, uint64_t owner, int64_t now) {
  struct rc_liveness *liveness = &writer->liveness;
  if (liveness->joining != owner) {
    liveness->joining = owner;
    liveness->joining_since = now;
  } else if (now - liveness->joining_since >= JOINING_NS) {
    RC_POINT(REFUSE);
    rc_slot_evict(&writer->ring.view, slot, owner); /* V1 */
    RC_POINT(REFUSE_DONE);
  }
}

/* A reader that died while joining had no frames yet, so its death needs no report. */
void rc_liveness_reap_joining(ringcast_writer *writer) {
  bool checked = false;
  for (uint32_t i = 0; i < writer->ring.view.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (rc_owner_state(owner) != RC_SLOT_JOINING) continue;
    if (rc_owner_is_dead(owner)) {
      rc_slot_reap(&writer->ring.view, i, owner);
    } else if (!checked) { /* one at a time: the first one blocks the grant */
      check_joining(writer, i, owner, rc_now_ns());
      checked = true;
    }
  }
}

/* ---- Blockers -------------------------------------------------------------------------------- */

/* For taps. Relaxed: statistics. */
static void publish_blocked(ringcast_writer *writer, int64_t now) {
  struct rc_control *control = writer->ring.view.control;
  struct rc_blocked blocked;
  blocked_by(writer, &blocked);
  rc_store_relaxed(&control->blocked_below, blocked.below);
  rc_store_relaxed(&control->blocked_due, blocked.due);
  rc_store_relaxed(&control->blocked_tail, blocked.tail);
  rc_store_relaxed(&control->blocked_until, now);
  rc_store_relaxed(&control->blocked_since, blocked.since);
}

void rc_liveness_begin(ringcast_writer *writer, uint64_t wanted) {
  struct rc_liveness *liveness = &writer->liveness;
  if (is_waiting(writer)) {
    if (wanted < liveness->wanted) liveness->wanted = wanted;
    publish_blocked(writer, rc_now_ns());
    return;
  }
  liveness->since = rc_now_ns();
  liveness->tail = writer->ring.tail;
  liveness->open = rc_writer_is_open(writer);
  liveness->wanted = wanted;
  liveness->waits = false;
  liveness->waited_ns = 0;
  publish_blocked(writer, liveness->since);
}

void rc_liveness_end(ringcast_writer *writer) {
  struct rc_liveness *liveness = &writer->liveness;
  if (liveness->since != 0 && liveness->waits)
    RC_PROBE3(stall, writer->handle, liveness->blocker_pid, liveness->waited_ns);
  liveness->since = 0;
  rc_store_relaxed(&writer->ring.view.control->blocked_since, 0); /* relaxed: a statistic */
}

struct rc_watch *rc_liveness_blocker(ringcast_writer *writer) {
  uint64_t owner = load_owner(writer, writer->ring.blocker),
           identity = rc_owner_as(owner, RC_SLOT_FREE);
  if (rc_owner_state(owner) == RC_SLOT_FREE)
    return NULL; /* the reader has just left, and leaving wakes the writer */
  if (identity != writer->blocker_owner) {
    rc_watch_close(&writer->blocker);
    rc_watch_init(&writer->blocker, (int32_t)rc_owner_pid(owner), rc_owner_start(owner),
                  RC_START_MASK);
    writer->blocker_owner = identity;
  }
  return &writer->blocker;
}

int64_t rc_liveness_slice(ringcast_writer *writer) {
  const struct rc_liveness *liveness = &writer->liveness;
  if (liveness->slow_ns == 0) return SLICE_NS;
  int64_t left = liveness->slow_ns - (rc_now_ns() - liveness->since);
  if (left < RC_CHECK_NS) left = RC_CHECK_NS;
  return left < SLICE_NS ? left : SLICE_NS;
}

/* A dead or slow reader. 0: it is removed or has left, look for room again. -EOWNERDEAD,
 * -ETIMEDOUT: by the policy the wait fails. -EAGAIN: the reader has left meanwhile; if it then
 * exited it is not a dead reader, and its slot shows the difference. */
static int judge(ringcast_writer *writer, uint32_t slot, uint64_t owner, bool dead) {
  const struct rc_liveness *liveness = &writer->liveness;
  if ((dead ? liveness->on_death : liveness->on_slow) == RINGCAST_EVICT) {
    remove_reader(writer, slot, owner, dead);
    return 0;
  }
  if (load_owner(writer, slot) != owner) return -EAGAIN;
  if (dead)
    writer->ring.blocker =
        slot; /* for the error text; and the next wait checks this reader first */
  return dead ? -EOWNERDEAD : -ETIMEDOUT;
}

/* Checks the readers that have blocked since the clock started. Past the limit: removes them, or
 * fails, by the policy. */
static int check_slow(ringcast_writer *writer, uint64_t wanted) {
  struct rc_liveness *liveness = &writer->liveness;
  int64_t now = rc_now_ns();
  const bool late = liveness->slow_ns != 0 && now - liveness->since >= liveness->slow_ns;
  bool any_early = false;
  rc_store_relaxed(&writer->ring.view.control->blocked_until, now); /* relaxed: a statistic */
  struct rc_blocked blocked;
  blocked_by(writer, &blocked);
  int result = -EAGAIN;
  for (uint32_t i = 0; i < writer->ring.view.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (rc_owner_state(owner) != RC_SLOT_ACTIVE || !rc_slot_blocks(&writer->ring.view, i, &blocked))
      continue;
    any_early |= !late;
    int verdict = late ? judge(writer, i, owner, rc_owner_is_dead(owner)) : -EAGAIN;
    if (verdict == 0) result = 0;
    else if (verdict != -EAGAIN) return verdict;
  }
  if (any_early) return result;
  liveness->since = now;
  liveness->wanted = wanted;
  publish_blocked(writer, now);
  return result;
}

/* Nothing tells whether a reader lives, because of `error`: a wait for the reader might never
 * end. */
static int give_up(ringcast_writer *writer, uint32_t slot, int error) {
  writer->ring.blocker = slot; /* for the error text */
  writer->liveness.unknown = error;
  return error;
}

/* Checks all readers but the blocker for death. */
static int check_others(ringcast_writer *writer) {
  struct rc_liveness *liveness = &writer->liveness;
  int64_t now = rc_now_ns();
  int result = -EAGAIN;
  if (now - liveness->checked < OTHERS_NS) return -EAGAIN;
  for (uint32_t i = 0; i < writer->ring.view.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (i == writer->ring.blocker || rc_owner_state(owner) != RC_SLOT_ACTIVE) continue;
    int process = rc_owner_look(owner), verdict = -EAGAIN;
    if (process < 0) verdict = give_up(writer, i, process);
    if (process == RC_PROCESS_ENDED) verdict = judge(writer, i, owner, true);
    if (verdict == 0) result = 0;
    else if (verdict != -EAGAIN) return verdict;
  }
  liveness->checked = now;
  return result;
}

int rc_liveness_check_blockers(ringcast_writer *writer, uint64_t wanted) {
  uint32_t slot = writer->ring.blocker;
  uint64_t owner = load_owner(writer, slot);
  struct rc_watch *blocker = rc_liveness_blocker(writer);
  int process = blocker ? rc_watch_look(blocker) : RC_PROCESS_RUNNING;
  if (process < 0) return give_up(writer, slot, process);
  if (process != RC_PROCESS_ENDED) {
    int result = check_others(writer);
    return result == -EAGAIN ? check_slow(writer, wanted) : result;
  }
  if (rc_owner_as(owner, RC_SLOT_FREE) != writer->blocker_owner) return -EAGAIN;
  if (rc_owner_state(owner) != RC_SLOT_ACTIVE)
    return -EAGAIN; /* rc_liveness_reap_joining handles it */
  return judge(writer, slot, owner, true);
}

/* An invalid cursor counts as death. Loads the cursor again: the reader may have left, and the slot
 * be another's. */
bool rc_liveness_evict_invalid(ringcast_writer *writer) {
  uint32_t slot = writer->ring.blocker;
  uint64_t owner = load_owner(writer, slot);
  uint64_t cursor = rc_load_acquire(&writer->ring.view.control->slots[slot].cursor); /* <- A1 */
  if (rc_owner_state(owner) != RC_SLOT_ACTIVE || rc_ring_is_cursor(&writer->ring, cursor))
    return true;
  if (writer->liveness.on_death == RINGCAST_FAIL) return false;
  remove_reader(writer, slot, owner, rc_owner_is_dead(owner));
  return true;
}

/* ---- Reporting departed readers -------------------------------------------------------------- */

void rc_liveness_watch_all(ringcast_writer *writer) {
  for (uint32_t i = 0; i < writer->ring.view.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    struct rc_watch watch;
    rc_watch_init(&watch, (int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK);
    rc_poller_watch(writer->liveness.poller, i, owner,
                    rc_owner_state(owner) == RC_SLOT_ACTIVE ? &watch : NULL);
  }
}

static int begin_watching(ringcast_writer *writer) {
  if (!writer->liveness.poller) {
    int result = rc_poller_open(NULL, writer->ring.view.slots, &writer->liveness.poller);
    if (result != 0) return rc_fail_no_descriptor(result);
    rc_poller_raise(writer->liveness.poller, writer->liveness.count != 0);
  }
  rc_liveness_watch_all(writer);
  return 0;
}

int ringcast_writer_fd(ringcast_writer *writer) {
  int result = rc_check_fork(writer->forks);
  if (result == 0) result = begin_watching(writer);
  if (result != 0) return result;
  int fd = rc_poller_fd(writer->liveness.poller);
  return fd < 0 ? rc_fail_descriptor(&writer->liveness.poller, fd) : fd;
}

static bool take_departure(struct rc_liveness *liveness, struct ringcast_peer *out) {
  if (liveness->count == 0) return false;
  *out = liveness->queue[liveness->first];
  liveness->first = (liveness->first + 1) % RC_MAX_DEPARTED;
  if (--liveness->count == 0) rc_poller_raise(liveness->poller, false);
  return true;
}

static int fail_to_check(ringcast_writer *writer, uint32_t slot, int error) {
  char reader[48];
  snprintf(reader, sizeof reader, "reader %u (pid %u)", slot,
           rc_owner_pid(load_owner(writer, slot)));
  return rc_fail_unknown(error, reader);
}

int ringcast_writer_check(ringcast_writer *writer, struct ringcast_peer *out) {
  struct rc_liveness *liveness = &writer->liveness;
  int result = rc_check_fork(writer->forks);
  if (result == 0) result = rc_sized_check("ringcast_peer", out->size);
  if (result == 0) result = begin_watching(writer);
  if (result != 0) return result;
  struct ringcast_peer peer;
  for (uint32_t slot; !take_departure(liveness, &peer);) {
    result = rc_poller_find_ended(liveness->poller, &slot);
    if (result == 0) return 0;
    if (result == -EBADF) return rc_fail_descriptor(&liveness->poller, result);
    uint64_t owner = rc_poller_tag(liveness->poller, slot);
    if (result < 0 && load_owner(writer, slot) == owner) return fail_to_check(writer, slot, result);
    bool here = load_owner(writer, slot) == owner && rc_writer_peer(writer, slot, &peer);
    if (here && liveness->on_death == RINGCAST_FAIL) {
      peer.state = RINGCAST_PEER_DEAD; /* the pidfd says so, even if /proc hides the process */
      break;
    }
    if (here) remove_reader(writer, slot, owner, true);
    rc_poller_watch(liveness->poller, slot, 0,
                    NULL); /* reported now, or left before its process ended */
  }
  rc_sized_write(out, out->size, &peer, sizeof peer);
  return 1;
}
