/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's waits: for readers to attach, and for room. */
#include <errno.h>
#include <string.h>

#include "channel/channel.h"
#include "shm/error.h"

/* One wait: for room for `bytes`, or for `readers` attached readers. */
struct writer_wait {
  ringcast_writer *writer;
  uint64_t bytes;
  uint32_t readers, found;
  int unknown; /* why nothing tells how many are alive; 0: it was told */
  bool grow;
  void **out;
  uint32_t removals; /* readers that one look may still remove: a hostile peer may fill slots again
                        and again */
};

/* ---- Waiting for readers --------------------------------------------------------------------- */

/* To check each reader asks the kernel, so first count the attached readers. */
static int poll_readers(void *context) {
  struct writer_wait *wait = context;
  const struct rc_ring *ring = &wait->writer->ring.view;
  uint32_t active = 0;
  for (uint32_t i = 0; i < ring->slots; i++)
    active += rc_owner_state(rc_load_acquire(&ring->control->slots[i].owner)) ==
              RC_SLOT_ACTIVE; /* pairs with J4 */
  wait->found = active;
  if (active < wait->readers) return -EAGAIN;
  int alive = rc_peer_count(ring);
  wait->unknown = alive < 0 ? alive : 0;
  if (alive < 0) return alive;
  wait->found = (uint32_t)alive;
  return wait->found >= wait->readers ? 0 : -EAGAIN;
}

static int check_readers(void *context) {
  ringcast_writer *writer = ((struct writer_wait *)context)->writer;
  rc_liveness_reap_joining(writer);
  rc_liveness_reap_dead(writer);
  return -EAGAIN;
}

int ringcast_writer_wait_readers(ringcast_writer *writer, uint32_t count, int64_t timeout_ns) {
  int result = rc_check_wait(writer->forks, timeout_ns);
  if (result != 0) return result;
  if (count > writer->segment.slots)
    return rc_fail(-EINVAL, "can't wait for %u readers: the ring has %u slots", count,
                   writer->segment.slots);
  /* No cursor matters here: joining and leaving wake the writer whatever `wanted` says. But the
   * descriptor may wait for room at the same time, and continue afterwards. Relaxed: as in
   * publish_wanted. */
  if (!writer->poller) rc_store_relaxed(&writer->ring.view.control->wanted, RC_WANTED_NONE);
  struct writer_wait wait = {.writer = writer, .readers = count};
  const struct rc_wait how = {
      .poll = poll_readers, .check = check_readers, .context = &wait, .sleep_only = true};
  rc_ring_participants(&writer->ring.view);
  result = rc_wait(&writer->waiter, &how,
                   timeout_ns); /* not counted: the counts are of waits for room */
  if (result == -EDEADLK) return rc_fail_shared();
  if (writer->liveness.poller) rc_liveness_watch_all(writer);
  if (result == 0) return (int)wait.found;
  if (result == wait.unknown) return rc_fail_unknown(result, "each reader");
  int alive = rc_peer_count(&writer->ring.view);
  if (alive >= 0) wait.found = (uint32_t)alive;
  return rc_fail(result, "%u of %u readers are attached", wait.found, count);
}

void ringcast_writer_cancel(ringcast_writer *writer) { rc_waiter_cancel(&writer->waiter); }

/* ---- Waiting for room ------------------------------------------------------------------------ */

static bool may_remove(struct writer_wait *wait) {
  if (wait->removals == 0) return false;
  wait->removals--;
  return true;
}

/* Removes readers with invalid cursors, if the policy allows. */
static int take_room(struct writer_wait *wait) {
  int result;
  do result = rc_writer_try_reserve(wait->writer, wait->bytes, wait->grow, wait->out);
  while (result == -EPROTO && may_remove(wait) && rc_liveness_evict_invalid(wait->writer));
  return result;
}

static int poll_room(void *context) {
  struct writer_wait *wait = context;
  wait->removals = wait->writer->ring.view.slots;
  return take_room(wait);
}

/* The position wanted now: spill memory may be free by now, and room in the ring not, or the
 * reverse. */
static uint64_t wanted_now(const struct writer_wait *wait) {
  return rc_writer_wanted(wait->writer, wait->bytes);
}

/* The writer has stored `wanted` and goes to sleep: wakes sleeping readers that retain frames. */
static void wake_retainers(ringcast_writer *writer) {
  const struct rc_ring *ring = &writer->ring.view;
  if (!rc_eventcount_is_asleep(&ring->control->not_empty)) return; /* K4 <- K2 */
  for (uint32_t i = 0; i < ring->slots; i++)
    if (rc_load_relaxed(&ring->control->slots[i].retains) !=
        0) { /* relaxed: E6 acquired the stores before E1 */
      rc_wake(&ring->control->not_empty);
      return;
    }
}

/* Publishes `wanted` for readers that can make room; the descriptor may wait for less: the least
 * position counts. True: the position has changed. */
static bool publish_wanted(struct writer_wait *wait, uint64_t wanted) {
  ringcast_writer *writer = wait->writer;
  if (writer->poller && writer->liveness.wanted < wanted) wanted = writer->liveness.wanted;
  bool changed = writer->published != wanted;
  writer->published = wanted;
  if (changed) writer->settled_at = 0;
  /* K1 -> K3. Relaxed: E5 of wake_retainers publishes the store. */
  rc_store_relaxed(&writer->ring.view.control->wanted, wanted);
  wake_retainers(writer);
  return changed;
}

/* Before each sleep: the wanted position may have changed, which needs E9 as a new announcement
 * does. */
static int64_t slice_of(void *context, bool *settled) {
  struct writer_wait *wait = context;
  if (publish_wanted(wait, wanted_now(wait))) *settled = false;
  return rc_liveness_slice(wait->writer);
}

static const void *word_of_blocker(void *context) {
  ringcast_writer *writer = ((struct writer_wait *)context)->writer;
  return &writer->ring.view.control->slots[writer->ring.blocker].cursor;
}

static int check_room(void *context) {
  struct writer_wait *wait = context;
  int result, verdict;
  wait->removals = wait->writer->ring.view.slots;
  rc_liveness_reap_joining(wait->writer);
  do {
    result = take_room(wait); /* the blocker may have left */
    if (result != -EAGAIN) return result;
    verdict = rc_liveness_check_blockers(wait->writer, wanted_now(wait));
  } while (verdict == 0 && may_remove(wait));
  return verdict == 0 ? -EAGAIN : verdict;
}

static int fail_too_large(const ringcast_writer *writer, uint64_t bytes) {
  const struct rc_segment *segment = &writer->segment;
  unsigned long long frame = bytes, most = rc_max_frame(segment), budget = segment->spill.bytes;
  if (budget != 0)
    return rc_fail(-EMSGSIZE,
                   "a frame of %llu bytes is larger than this ring can ever hold (%llu): make the "
                   "ring with more spill "
                   "memory than %llu bytes (options.spill_bytes, RINGCAST_SPILL_BYTES)",
                   frame, most, budget);
  return rc_fail(-EMSGSIZE,
                 "a frame of %llu bytes is larger than this ring can ever hold (%llu): it has no "
                 "spill memory%s%s; "
                 "make it with some (options.spill_bytes), or with a capacity of more than twice "
                 "the largest frame, by "
                 "1 KiB or so",
                 frame, most, segment->spill_error ? ", because the kernel refused it: " : "",
                 segment->spill_error ? strerror(-segment->spill_error) : "");
}

static bool lacks_spill(const ringcast_writer *writer, uint64_t bytes) {
  return writer->spill_lacks && (bytes > writer->ring_frame || writer->is_large);
}

static int fail_full(const ringcast_writer *writer, int code, uint64_t bytes, const char *blocker,
                     bool late) {
  const char *limit = !late ? ""
                            : ", longer than a reader may (options.slow_ns); options.on_slow = "
                              "RINGCAST_EVICT goes on "
                              "without it";
  if (writer->ring.credit == 0)
    return rc_fail(code, "%llu frames are not taken yet (options.ahead): %s blocks the writer%s",
                   (unsigned long long)writer->ring.ahead, blocker, limit);
  if (!lacks_spill(writer, bytes))
    return rc_fail(code, "the ring is full: %s blocks the writer%s", blocker, limit);
  return rc_fail(code, "the ring's spill memory (%llu bytes) is full: %s blocks the writer%s",
                 (unsigned long long)writer->segment.spill.bytes, blocker, limit);
}

/* Sets the error text, with the blocker. */
static int fail_to_reserve(ringcast_writer *writer, int code, uint64_t bytes) {
  if (code == -EAGAIN)
    return writer->ring.credit == 0
               ? rc_fail_as(code, "a reader is as many frames behind as options.ahead allows")
               : rc_fail_as(code, lacks_spill(writer, bytes)
                                      ? "the ring's spill memory is full right now"
                                      : "the ring is full right now");
  struct ringcast_peer peer;
  char blocker[RC_DESCRIBED_MAX] = "no reader";
  bool late = false;
  if (rc_writer_peer(writer, writer->ring.blocker, &peer)) {
    rc_peer_describe(&peer, blocker, sizeof blocker);
    late = writer->liveness.slow_ns != 0 && peer.blocked_ns >= (uint64_t)writer->liveness.slow_ns;
    bool dead = peer.state == RINGCAST_PEER_DEAD && writer->liveness.on_death == RINGCAST_FAIL;
    if (code == -ETIMEDOUT && dead) code = -EOWNERDEAD; /* a longer wait would not help */
  }
  if (code != -EDEADLK && code == writer->liveness.unknown) return rc_fail_unknown(code, blocker);
  switch (code) {
  case -EDEADLK: return rc_fail_shared();
  case -EINTR: return rc_fail_as(code, "a signal arrived while waiting for room");
  case -EMSGSIZE: return fail_too_large(writer, bytes);
  case -EBUSY: return rc_fail_as(code, "a reservation is open already: commit or abort it first");
  case -ECANCELED: return rc_fail(code, "the wait for room was cancelled");
  case -EINVAL: return rc_fail(code, "no reservation is open");
  case -EPROTO:
    return rc_fail(
        code,
        "%s wrote an invalid cursor: end its process and make a new ring (or make rings with "
        "options.on_death = RINGCAST_EVICT)",
        blocker);
  case -EOWNERDEAD:
    return rc_fail(
        code,
        "%s has died: make a new ring to go on without it (or make rings with options.on_death = "
        "RINGCAST_EVICT)",
        blocker);
  case -ETIMEDOUT: return fail_full(writer, code, bytes, blocker, late);
  default: return code; /* of spill memory, or -ENOBUFS of arm: each has its text */
  }
}

/* E9 for the descriptor, whose announcement stands from one call to the next: after a new one, or
 * with another position wanted, the first slice is short. */
static int64_t settling_slice(ringcast_writer *writer, uint32_t word) {
  int64_t now = rc_now_ns();
  if (writer->announced != word || writer->settled_at == 0) writer->settled_at = now + RC_SETTLE_NS;
  writer->announced = word;
  return now < writer->settled_at ? writer->settled_at - now : rc_liveness_slice(writer);
}

/* There is no room: arms the descriptor. As every sleeper does, checks once more after the
 * announcement, also the blocker; -EAGAIN: the descriptor is armed. It sleeps for at most a slice:
 * then the death of another reader that was about to wake the writer is found, as in every wait for
 * room. */
static int arm(struct writer_wait *wait) {
  ringcast_writer *writer = wait->writer;
  uint32_t value = rc_eventcount_prepare(writer->waiter.event);
  int result = check_room(wait);
  if (result != -EAGAIN) return result;
  if (rc_waiter_is_cancelled(&writer->waiter)) return -ECANCELED;
  struct rc_watch *blocker = rc_liveness_blocker(writer); /* sets blocker_owner */
  rc_poller_watch(writer->poller, 0, writer->blocker_owner, blocker);
  result = rc_poller_arm(writer->poller, value, settling_slice(writer, value));
  return result == 0 ? -EAGAIN : rc_fail_descriptor(&writer->poller, result);
}

int ringcast_writer_room_fd(ringcast_writer *writer) {
  int result = rc_check_fork(writer->forks);
  if (result == 0 && !writer->poller) {
    result = rc_poller_open(writer->waiter.event, 1, &writer->poller);
    if (result != 0) return rc_fail_no_descriptor(result);
  }
  if (result != 0) return result;
  int fd = rc_poller_fd(writer->poller);
  return fd < 0 ? rc_fail_descriptor(&writer->poller, fd) : fd;
}

/* The first call that waits. Relaxed: statistics. */
static void count_stall(ringcast_writer *writer) {
  struct rc_slot *blocker = &writer->ring.view.control->slots[writer->ring.blocker];
  rc_store_relaxed(&blocker->stalls, rc_load_relaxed(&blocker->stalls) + 1);
  writer->liveness.blocker_pid = (int32_t)rc_owner_pid(rc_load_relaxed(&blocker->owner));
}

static int wait_for_room(struct writer_wait *wait, int64_t timeout_ns) {
  ringcast_writer *writer = wait->writer;
  uint64_t wanted = wanted_now(wait);
  writer->liveness.unknown = 0;
  rc_liveness_begin(writer, wanted);
  publish_wanted(wait, wanted);
  if (timeout_ns != 0 && !writer->liveness.waits) count_stall(writer);
  const struct rc_wait how = {.poll = poll_room,
                              .check = check_room,
                              .word = word_of_blocker,
                              .slice = slice_of,
                              .context = wait,
                              .unfenced = true};
  const uint64_t waits = writer->waiter.waits, sleeps = writer->waiter.sleeps;
  rc_ring_participants(&writer->ring.view);
  int result = rc_wait(&writer->waiter, &how, timeout_ns);
  if (timeout_ns != 0 && writer->waiter.waits != waits)
    rc_count_wait_for_room(writer, writer->waiter.sleeps - sleeps);
  return result == -EAGAIN && writer->poller ? arm(wait) : result;
}

rc_slow int rc_writer_reserve_slowly(ringcast_writer *writer, size_t bytes, int64_t timeout_ns,
                                     bool grow, struct ringcast_span *out) {
  int result = rc_check_wait(writer->forks, timeout_ns);
  if (result != 0) return result;
  void *data = NULL;
  struct writer_wait wait = {.writer = writer, .bytes = bytes, .grow = grow, .out = &data};
  result = poll_room(&wait);
  if (result == -EAGAIN) result = wait_for_room(&wait, timeout_ns);
  /* The wait is over. After -EAGAIN the caller asks again, so readers with retained frames go on
   * making room. Relaxed: as in publish_wanted. */
  if (result != -EAGAIN && !writer->poller) rc_store_relaxed(&writer->ring.view.control->wanted, 0);
  if (result != 0) return fail_to_reserve(writer, result, bytes);
  rc_liveness_end(writer);
  *out = (struct ringcast_span){.data = data, .bytes = bytes};
  return 0;
}
