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
#include "channel/liveness.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "channel/channel.h"
#include "channel/stats.h"
#include "shm/error.h"
#include "shm/options.h"

/* The longest sleep of a blocked writer, and how often the writer checks all other readers in
 * /proc, 10 us each: a pidfd for each would cost the writer up to 1,024 descriptors. The sum limits
 * how late the writer notices a death. */
#define BLOCKED_SLICE_NS ((int64_t)50 * 1000 * 1000)
#define OTHERS_NS        (BLOCKED_SLICE_NS / 2)
/* Joining takes less than a microsecond: a slower reader is stopped. */
#define JOINING_NS BLOCKED_SLICE_NS

/* Acquire: pairs with J4, and with the FREE of leaving. */
static uint64_t load_owner(const ringcast_writer *writer, uint32_t slot) {
  return rc_load_acquire(&writer->ring.view.control->slots[slot].owner);
}

/* ---- The writer's view of its readers -------------------------------------------------------- */

/* Whether the clock runs, and no reserve has succeeded since it began: on the hot path a reserve
 * does not stop the clock, but opens a reservation, whose commit moves the tail. */
static bool is_waiting(const ringcast_writer *writer) {
  const struct rc_liveness *liveness = &writer->liveness;
  return liveness->since != 0 && liveness->tail == writer->ring.tail &&
         liveness->open == rc_writer_is_open(writer);
}

/* Since when the writer waits, and for what. */
static struct rc_blocked blocked_by(const ringcast_writer *writer) {
  return (struct rc_blocked){.since = writer->liveness.since,
                             .below = writer->liveness.wanted,
                             .due = writer->ring.credit == 0 ? writer->ring.due : 0,
                             .tail = writer->ring.tail};
}

bool rc_writer_peer(const ringcast_writer *writer, uint32_t index, struct ringcast_peer *out) {
  const struct rc_blocked blocked = blocked_by(writer);
  return rc_peer_read(&writer->ring.view, index, writer->ring.tail,
                      is_waiting(writer) ? &blocked : NULL, out);
}

int ringcast_writer_peers(ringcast_writer *writer, struct ringcast_peer *peers, uint32_t capacity) {
  int result = rc_check_fork(writer->forks);
  if (result != 0) return result;
  const struct rc_blocked blocked = blocked_by(writer);
  return rc_peers_read(&writer->ring.view, writer->ring.tail, is_waiting(writer) ? &blocked : NULL,
                       peers, capacity);
}

/* How far the reader is behind; a joining reader blocks every grant, so it comes first. False: the
 * slot is free, or its reader evicted. */
static bool lag_of(const ringcast_writer *writer, uint32_t slot, uint64_t *out) {
  enum rc_slot_state state = rc_owner_state(load_owner(writer, slot));
  *out = UINT64_MAX;
  if (state == RC_SLOT_JOINING) return true;
  if (state != RC_SLOT_ACTIVE) return false;
  const struct rc_slot *active = &writer->ring.view.control->slots[slot];
  *out = writer->ring.tail - rc_load_acquire(&active->cursor); /* <- A1 */
  return true;
}

int ringcast_writer_slowest(ringcast_writer *writer, struct ringcast_peer *out) {
  int result = rc_check_fork(writer->forks);
  if (result == 0) result = rc_sized_check("ringcast_peer", out->size);
  if (result != 0) return result;
  struct ringcast_peer peer;
  uint64_t worst = 0, lag;
  bool found = false;
  for (uint32_t i = 0; i < writer->ring.view.slots; i++) {
    if (!lag_of(writer, i, &lag)) continue;
    if (found && lag <= worst) continue;
    if (!rc_writer_peer(writer, i, &peer)) continue;
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
  liveness->departures++;
  if (liveness->count == RC_MAX_DEPARTED) {
    liveness->first = (liveness->first + 1) % RC_MAX_DEPARTED;
    liveness->count--;
  }
  liveness->queue[(liveness->first + liveness->count) % RC_MAX_DEPARTED] = *peer;
  liveness->count++;
  if (liveness->poller) rc_poller_raise(liveness->poller, true);
}

static bool reap(ringcast_writer *writer, uint32_t slot, uint64_t owner) {
  RC_POINT(REAP);
  if (!rc_slot_reap(&writer->ring.view, slot, owner)) return false;
  RC_POINT(REAPED);
  return true;
}

static bool evict(ringcast_writer *writer, uint32_t slot, uint64_t owner) {
  RC_POINT(EVICT);
  if (!rc_slot_evict(&writer->ring.view, slot, owner)) return false;
  RC_POINT(V1_DONE);
  return true;
}

/* Goes on without a reader: frees its slot if dead, else evicts it. Nothing to do: the reader has
 * left meanwhile. */
static void remove_reader(ringcast_writer *writer, uint32_t slot, uint64_t owner, bool dead) {
  struct ringcast_peer peer;
  const bool known = rc_writer_peer(writer, slot, &peer);
  const bool removed = dead ? reap(writer, slot, owner) : evict(writer, slot, owner);
  if (!removed) return;
  RC_PROBE3(evict, writer->handle, rc_owner_pid(owner), dead);
  if (known) {
    peer.state = dead ? RINGCAST_PEER_DEAD : RINGCAST_PEER_EVICTED;
    queue_departure(&writer->liveness, &peer);
  }
  rc_ring_participants(&writer->ring.view);
  if (dead) return;
  RC_POINT(EVICT_COUNTED);
  /* The evicted reader may sleep while it holds a frame. */
  rc_wake(&writer->ring.view.control->not_empty);
  RC_POINT(EVICT_TOLD);
}

/* Frees the slots of dead readers, if the policy says so. */
static void reap_dead(ringcast_writer *writer) {
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
  const struct rc_blocked blocked = blocked_by(writer);
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
  const uint64_t owner = load_owner(writer, writer->ring.blocker);
  if (rc_owner_state(owner) == RC_SLOT_FREE) return NULL; /* leaving wakes the writer */
  const uint64_t identity = rc_owner_as(owner, RC_SLOT_FREE);
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
  if (liveness->slow_ns == 0) return BLOCKED_SLICE_NS;
  int64_t left = liveness->slow_ns - (rc_now_ns() - liveness->since);
  if (left < RC_CHECK_NS) left = RC_CHECK_NS;
  return left < BLOCKED_SLICE_NS ? left : BLOCKED_SLICE_NS;
}

/* Goes on without a dead or slow reader if the policy says so. 0: it is removed or has left, look
 * for room again. -EAGAIN: it has left meanwhile; one that left and then exited is not a dead
 * reader, and its slot shows the difference. Else `failure`. */
static int judge(ringcast_writer *writer, uint32_t slot, uint64_t owner, bool dead, int failure) {
  const struct rc_liveness *liveness = &writer->liveness;
  if ((dead ? liveness->on_death : liveness->on_slow) == RINGCAST_EVICT) {
    remove_reader(writer, slot, owner, dead);
    return 0;
  }
  return load_owner(writer, slot) == owner ? failure : -EAGAIN;
}

static int judge_dead(ringcast_writer *writer, uint32_t slot, uint64_t owner) {
  int verdict = judge(writer, slot, owner, true, -EOWNERDEAD);
  /* For the error text; and the next wait checks this reader first. */
  if (verdict == -EOWNERDEAD) writer->ring.blocker = slot;
  return verdict;
}

static int judge_late(ringcast_writer *writer, uint32_t slot, uint64_t owner) {
  if (rc_owner_is_dead(owner)) return judge_dead(writer, slot, owner);
  return judge(writer, slot, owner, false, -ETIMEDOUT);
}

static bool is_blocking(const ringcast_writer *writer, uint32_t slot, uint64_t owner,
                        const struct rc_blocked *blocked) {
  return rc_owner_state(owner) == RC_SLOT_ACTIVE &&
         rc_slot_blocks(&writer->ring.view, slot, blocked);
}

/* Checks the readers that have blocked since the clock started. Past the limit: removes them, or
 * fails, by the policy. */
static int check_slow(ringcast_writer *writer, uint64_t wanted) {
  struct rc_liveness *liveness = &writer->liveness;
  const struct rc_blocked blocked = blocked_by(writer);
  const int64_t now = rc_now_ns();
  const bool late = liveness->slow_ns != 0 && now - liveness->since >= liveness->slow_ns;
  int result = -EAGAIN;
  rc_store_relaxed(&writer->ring.view.control->blocked_until, now); /* relaxed: a statistic */
  for (uint32_t i = 0; i < writer->ring.view.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (!is_blocking(writer, i, owner, &blocked)) continue;
    if (!late) return -EAGAIN;
    int verdict = judge_late(writer, i, owner);
    if (verdict == 0) result = 0;
    else if (verdict != -EAGAIN) return verdict;
  }
  /* No reader has blocked for the whole time: the clock starts anew, for those that block now. */
  liveness->since = now;
  liveness->wanted = wanted;
  publish_blocked(writer, now);
  return result;
}

/* Nothing tells whether a reader lives, because of `error`: a wait for it might never end. */
static int give_up(ringcast_writer *writer, uint32_t slot, int error) {
  writer->ring.blocker = slot; /* for the error text */
  writer->liveness.unknown = error;
  return error;
}

/* Checks all readers but the blocker for death. */
static int check_others(ringcast_writer *writer) {
  struct rc_liveness *liveness = &writer->liveness;
  const int64_t now = rc_now_ns();
  int result = -EAGAIN;
  if (now - liveness->checked < OTHERS_NS) return -EAGAIN;
  for (uint32_t i = 0; i < writer->ring.view.slots; i++) {
    uint64_t owner = load_owner(writer, i);
    if (i == writer->ring.blocker || rc_owner_state(owner) != RC_SLOT_ACTIVE) continue;
    int process = rc_owner_look(owner);
    if (process < 0) return give_up(writer, i, process);
    if (process != RC_PROCESS_ENDED) continue;
    int verdict = judge_dead(writer, i, owner);
    if (verdict == 0) result = 0;
    else if (verdict != -EAGAIN) return verdict;
  }
  liveness->checked = now;
  return result;
}

/* Whether the process of the blocker has ended. *error: why nothing tells, else 0. */
static bool is_blocker_dead(ringcast_writer *writer, int *error) {
  const uint32_t slot = writer->ring.blocker;
  struct rc_watch *blocker = rc_liveness_blocker(writer);
  *error = 0;
  if (!blocker) return false;
  int process = rc_watch_look(blocker);
  if (process < 0) *error = give_up(writer, slot, process);
  return process == RC_PROCESS_ENDED;
}

uint64_t rc_writer_departures(const ringcast_writer *writer) { return writer->liveness.departures; }

int rc_liveness_check_readers(ringcast_writer *writer, uint64_t wanted) {
  const uint32_t slot = writer->ring.blocker;
  const uint64_t owner = load_owner(writer, slot);
  int error;
  if (is_blocker_dead(writer, &error)) {
    /* Of a reader that died while joining, rc_liveness_reap_joining frees the slot. */
    if (rc_owner_state(owner) != RC_SLOT_ACTIVE) return -EAGAIN;
    if (rc_owner_as(owner, RC_SLOT_FREE) != writer->blocker_owner) return -EAGAIN;
    return judge_dead(writer, slot, owner);
  }
  if (error != 0) return error;
  int result = check_others(writer);
  return result == -EAGAIN ? check_slow(writer, wanted) : result;
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

/* Watches all readers that are attached now. The poller exists. */
static void watch_all(ringcast_writer *writer) {
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
  watch_all(writer);
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
  liveness->count--;
  if (liveness->count == 0) rc_poller_raise(liveness->poller, false);
  return true;
}

static int fail_to_check(uint32_t slot, uint64_t owner, int error) {
  char reader[48];
  snprintf(reader, sizeof reader, "reader %u (pid %u)", slot, rc_owner_pid(owner));
  return rc_fail_unknown(error, reader);
}

/* The next reader that has departed, of those the poller finds. 1: it is in *out; 0: none. */
static int find_departed(ringcast_writer *writer, struct ringcast_peer *out) {
  struct rc_liveness *liveness = &writer->liveness;
  uint32_t slot;
  while (!take_departure(liveness, out)) {
    int result = rc_poller_find_ended(liveness->poller, &slot);
    if (result == 0) return 0;
    if (result == -EBADF) return rc_fail_descriptor(&liveness->poller, result);
    const uint64_t owner = rc_poller_tag(liveness->poller, slot);
    const bool stays = load_owner(writer, slot) == owner;
    if (result < 0 && stays) return fail_to_check(slot, owner, result);
    if (stays && rc_writer_peer(writer, slot, out)) {
      out->state = RINGCAST_PEER_DEAD; /* the pidfd says so, even if /proc hides the process */
      if (liveness->on_death == RINGCAST_FAIL) return 1;
      remove_reader(writer, slot, owner, true); /* queues it */
    }
    /* Reported now, or left before its process ended. */
    rc_poller_watch(liveness->poller, slot, 0, NULL);
  }
  return 1;
}

int ringcast_writer_check(ringcast_writer *writer, struct ringcast_peer *out) {
  struct ringcast_peer peer;
  int result = rc_check_fork(writer->forks);
  if (result == 0) result = rc_sized_check("ringcast_peer", out->size);
  if (result == 0) result = begin_watching(writer);
  if (result == 0) result = find_departed(writer, &peer);
  if (result == 1) rc_sized_write(out, out->size, &peer, sizeof peer);
  return result;
}

/* ---- Waiting for readers --------------------------------------------------------------------- */

struct readers_wait {
  ringcast_writer *writer;
  uint32_t wanted, found;
  int unknown; /* why nothing tells how many are alive; 0: it was told */
};

/* To check each reader asks the kernel, so first count the attached readers. */
static int poll_readers(void *context) {
  struct readers_wait *wait = context;
  const struct rc_ring *ring = &wait->writer->ring.view;
  wait->found = 0;
  for (uint32_t i = 0; i < ring->slots; i++)
    wait->found += rc_owner_state(load_owner(wait->writer, i)) == RC_SLOT_ACTIVE;
  if (wait->found < wait->wanted) return -EAGAIN;
  int alive = rc_peer_count(ring);
  wait->unknown = alive < 0 ? alive : 0;
  if (alive < 0) return alive;
  wait->found = (uint32_t)alive;
  return wait->found >= wait->wanted ? 0 : -EAGAIN;
}

static int check_readers(void *context) {
  ringcast_writer *writer = ((struct readers_wait *)context)->writer;
  rc_liveness_reap_joining(writer);
  reap_dead(writer);
  return -EAGAIN;
}

int ringcast_writer_wait_readers(ringcast_writer *writer, uint32_t count, int64_t timeout_ns) {
  int result = rc_check_wait(writer->forks, timeout_ns);
  if (result != 0) return result;
  if (count > writer->segment.slots)
    return rc_fail(-EINVAL, "can't wait for %u readers: the ring has %u slots", count,
                   writer->segment.slots);
  /* No cursor matters here: joining and leaving wake the writer whatever `wanted` says. But the
   * descriptor may wait for room at the same time, and continue afterwards. Relaxed: before E1, and
   * a reader loads it after E6. */
  if (!writer->poller) rc_store_relaxed(&writer->ring.view.control->wanted, RC_WANTED_NONE);
  struct readers_wait wait = {.writer = writer, .wanted = count};
  const struct rc_wait how = {
      .poll = poll_readers, .check = check_readers, .context = &wait, .sleep_only = true};
  rc_ring_participants(&writer->ring.view);
  /* Not counted: the counts are of waits for room. */
  result = rc_wait(&writer->waiter, &how, timeout_ns);
  if (result == -EDEADLK) return rc_fail_shared();
  if (writer->liveness.poller) watch_all(writer);
  if (result == 0) return (int)wait.found;
  if (result == wait.unknown) return rc_fail_unknown(result, "each reader");
  int alive = rc_peer_count(&writer->ring.view);
  if (alive >= 0) wait.found = (uint32_t)alive;
  return rc_fail(result, "%u of %u readers are attached", wait.found, count);
}
