/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer's reservations off the hot path: frames in spill memory, and the wait for room.
 *
 * rc_writer_reserve_slowly tries, waits if there is no room, and says what failed. A wait polls for
 * room; at times it also checks the reader in the way and all others (liveness.c), and publishes
 * the position `wanted`, by which readers know whether to wake the writer.
 *
 *   rc_writer_reserve_slowly   poll_room; without room, wait_for_room
 *     wait_for_room            announces the wait; rc_wait then calls poll_room and check_room
 *       poll_room, check_room  take_room; check_room also looks for dead and slow readers
 *         take_room            try_reserve, again after each reader removed for an invalid cursor
 *           try_reserve        try_ring, or reserve_spill: try_ring for a descriptor, and a region
 *             try_ring         rc_ring_reserve or _grow: from the last grant or a new one (ring.c)
 */
#include "channel/writer.h"

#include <errno.h>
#include <string.h>

#include "channel/channel.h"
#include "channel/liveness.h"
#include "channel/stats.h"
#include "shm/error.h"

/* What a call asks for: a new reservation of `bytes`, or that the open one grows to so many. */
struct request {
  ringcast_writer *writer;
  uint64_t bytes;
  bool grow;
  void *data; /* the result */
  /* Readers that one look may still remove: a hostile peer may fill slots again and again. */
  uint32_t removals;
};

static int try_ring(struct request *request, uint64_t bytes, void **out) {
  struct rc_ring_writer *ring = &request->writer->ring;
  if (request->grow) return rc_ring_grow(ring, bytes, out);
  return rc_ring_reserve(ring, bytes, out);
}

/* ---- Spill memory ---------------------------------------------------------------------------- */

/* A frame too large for the ring has its payload in spill memory, and a descriptor in the ring. */
#define DESCRIPTOR sizeof(struct rc_spilled)

static void publish_used(ringcast_writer *writer) {
  /* Relaxed: a statistic. */
  rc_store_relaxed(&writer->ring.view.control->spill_used, writer->backing.in_place);
}

/* Gives idle spill memory back to the machine, and publishes the change. Off the hot path: called
 * where the cursors have just been loaded, or memory was taken. */
static void trim(ringcast_writer *writer) {
  struct rc_control *control = writer->ring.view.control;
  writer->looked = writer->ring.limit;
  if (writer->backing.excess == 0) return;
  /* Frees nothing while a reader joins: then the next call does. */
  rc_spill_reclaim(&writer->spill, &writer->ring);
  if (!rc_backing_trim(&writer->backing, &writer->spill)) return;
  /* Relaxed: for readers, the commit of the next frame in this memory publishes the epoch. */
  rc_store_relaxed(&control->spill_epoch, rc_load_relaxed(&control->spill_epoch) + 1);
  RC_POINT(EPOCH_DONE);
  publish_used(writer);
}

static uint8_t *payload_at(const ringcast_writer *writer, uint64_t offset) {
  return writer->segment.spill.base + offset + RC_SPILL_PHASE;
}

const void *rc_writer_spilled(const ringcast_writer *writer) {
  return payload_at(writer, writer->spill.open.offset);
}

/* Finds a region, and provides its memory. */
static int provide(const struct request *request, uint64_t *offset) {
  ringcast_writer *writer = request->writer;
  int looked = rc_spill_reclaim(&writer->spill, &writer->ring);
  int result = rc_spill_find(&writer->spill, request->bytes, request->grow, offset);
  writer->spill_lacks = result == -EAGAIN;
  if (result == -EAGAIN && looked != 0) return looked;
  if (result != 0) return result;
  result = rc_backing_provide(&writer->backing, *offset, rc_spill_room(request->bytes));
  publish_used(writer);
  return result;
}

/* Provides a region, and moves the open reservation there: `filled` bytes at `from`. */
static int move_to_spill(struct request *request, const void *from, uint64_t filled) {
  ringcast_writer *writer = request->writer;
  uint64_t offset;
  int result = provide(request, &offset);
  if (result != 0) return result;
  request->data = payload_at(writer, offset);
  if (filled != 0 && request->data != from) memmove(request->data, from, filled);
  RC_POINT(MOVED);
  rc_spill_open(&writer->spill, offset, request->bytes);
  trim(writer);
  return 0;
}

/* Reserves the descriptor in the ring first, then the region. After an error the reservation is
 * unchanged. */
static int reserve_spill(struct request *request) {
  ringcast_writer *writer = request->writer;
  struct rc_ring_writer *ring = &writer->ring;
  const struct rc_spill *spill = &writer->spill;
  if (request->grow && !ring->open) return -EINVAL;
  if (!request->grow && ring->open) return -EBUSY;
  if (rc_spill_room(request->bytes) > spill->bytes) return -EMSGSIZE;

  const uint64_t before = ring->reserved;
  void *from;
  writer->spill_lacks = false;
  int result = try_ring(request, DESCRIPTOR, &from);
  if (result != 0) return result;
  RC_POINT(DESCRIPTOR_ROOM);

  uint64_t filled = 0;
  if (request->grow) filled = spill->is_open ? spill->reserved : before;
  if (spill->is_open) from = payload_at(writer, spill->open.offset);
  result = move_to_spill(request, from, filled);
  if (result == 0) return 0;
  if (request->grow) ring->reserved = before;
  else rc_ring_abort(ring);
  return result;
}

int rc_writer_commit_large(ringcast_writer *writer, uint64_t bytes, uint16_t kind) {
  int result = rc_spill_commit(&writer->spill, &writer->ring, bytes, kind);
  writer->is_large = result != 0;
  return result;
}

void rc_writer_abort_large(ringcast_writer *writer) {
  rc_spill_abort(&writer->spill);
  rc_ring_abort(&writer->ring);
  writer->is_large = false;
}

/* ---- One try --------------------------------------------------------------------------------- */

/* In the ring, or in spill memory if the ring is too small. Gives idle spill memory back
 * (backing.excess). Returns as rc_ring_reserve, or as rc_backing_provide. */
static int try_reserve(struct request *request) {
  ringcast_writer *writer = request->writer;
  if (request->bytes > writer->ring_frame || (request->grow && writer->is_large)) {
    int result = reserve_spill(request);
    writer->is_large = writer->spill.is_open;
    return result;
  }
  int result = try_ring(request, request->bytes, &request->data);
  if (writer->backing.excess != 0 && writer->ring.limit != writer->looked) trim(writer);
  return result;
}

/* The reader in the way has an invalid cursor. True: it is removed, or has left; try again. */
static bool remove_invalid(struct request *request) {
  if (request->removals == 0) return false;
  request->removals--;
  return rc_liveness_evict_invalid(request->writer);
}

static int take_room(struct request *request) {
  int result = try_reserve(request);
  while (result == -EPROTO && remove_invalid(request)) result = try_reserve(request);
  return result;
}

static int poll_room(void *context) {
  struct request *request = context;
  request->removals = request->writer->ring.view.slots;
  return take_room(request);
}

/* ---- What the writer waits for --------------------------------------------------------------- */

/* There is room once no cursor is below this position. It changes during the wait: spill memory may
 * be free by now, and room in the ring not, or the reverse. */
static uint64_t wanted_now(const struct request *request) {
  const ringcast_writer *writer = request->writer;
  bool large = request->bytes > writer->ring_frame || writer->is_large;
  if (large && writer->spill_lacks) return rc_spill_wanted(&writer->spill, request->bytes);
  return rc_ring_wanted(&writer->ring, large ? DESCRIPTOR : request->bytes);
}

/* The writer has stored `wanted` and goes to sleep: wakes sleeping readers that retain frames. */
static void wake_retainers(ringcast_writer *writer) {
  const struct rc_ring *ring = &writer->ring.view;
  bool retains = false;
  if (!rc_eventcount_is_asleep(&ring->control->not_empty)) return; /* K4 <- K2 */
  /* Relaxed: E6 acquired the stores before E1. */
  for (uint32_t i = 0; i < ring->slots && !retains; i++)
    retains = rc_load_relaxed(&ring->control->slots[i].retains) != 0;
  if (retains) rc_wake(&ring->control->not_empty);
}

/* Publishes `wanted` for readers that can make room; the descriptor may wait for less: the least
 * position counts. True: the position has changed. */
static bool publish_wanted(ringcast_writer *writer, uint64_t wanted) {
  if (writer->poller && writer->liveness.wanted < wanted) wanted = writer->liveness.wanted;
  bool changed = writer->wanted_shown != wanted;
  writer->wanted_shown = wanted;
  if (changed) writer->settled_at = 0;
  /* K1 -> K3. Relaxed: E5 of wake_retainers publishes the store. */
  rc_store_relaxed(&writer->ring.view.control->wanted, wanted);
  wake_retainers(writer);
  return changed;
}

/* The wanted position may have changed, which needs E9 as a new announcement does. Returns the
 * longest sleep. */
static int64_t before_sleep(void *context, bool *settled) {
  struct request *request = context;
  if (publish_wanted(request->writer, wanted_now(request))) *settled = false;
  return rc_liveness_slice(request->writer);
}

static const void *word_of_blocker(void *context) {
  const ringcast_writer *writer = ((struct request *)context)->writer;
  return &writer->ring.view.control->slots[writer->ring.blocker].cursor;
}

/* Checks the blocker, and all others, and looks for room again after each that was removed. */
static int check_room(void *context) {
  struct request *request = context;
  ringcast_writer *writer = request->writer;
  request->removals = writer->ring.view.slots;
  rc_liveness_reap_joining(writer);
  for (;;) {
    int result = take_room(request); /* the blocker may have left */
    if (result != -EAGAIN) return result;
    int verdict = rc_liveness_check_readers(writer, wanted_now(request));
    if (verdict != 0) return verdict;
    if (request->removals == 0) return -EAGAIN;
    request->removals--;
  }
}

/* ---- The descriptor of ringcast_writer_room_fd ----------------------------------------------- */

/* E9 for the descriptor, whose announcement stands from one call to the next: after a new one, or
 * with another position wanted, the first slice is short. */
static int64_t settling_slice(ringcast_writer *writer, uint32_t word) {
  int64_t now = rc_now_ns();
  if (writer->announced != word || writer->settled_at == 0) writer->settled_at = now + RC_SETTLE_NS;
  writer->announced = word;
  if (now < writer->settled_at) return writer->settled_at - now;
  return rc_liveness_slice(writer);
}

/* There is no room: arms the descriptor. As every sleeper does, checks once more after the
 * announcement, also the blocker; -EAGAIN: the descriptor is armed. It sleeps for at most a slice:
 * then the death of another reader that was about to wake the writer is found, as in every wait for
 * room. */
static int arm(struct request *request) {
  ringcast_writer *writer = request->writer;
  uint32_t value = rc_eventcount_prepare(writer->waiter.event);
  int result = check_room(request);
  if (result != -EAGAIN) return result;
  if (rc_waiter_is_cancelled(&writer->waiter)) return -ECANCELED;
  struct rc_watch *blocker = rc_liveness_blocker(writer); /* sets blocker_owner */
  rc_poller_watch(writer->poller, 0, writer->blocker_owner, blocker);
  result = rc_poller_arm(writer->poller, value, settling_slice(writer, value));
  if (result != 0) return rc_fail_descriptor(&writer->poller, result);
  return -EAGAIN;
}

int ringcast_writer_room_fd(ringcast_writer *writer) {
  int result = rc_check_fork(writer->forks);
  if (result != 0) return result;
  if (!writer->poller) {
    result = rc_poller_open(writer->waiter.event, 1, &writer->poller);
    if (result != 0) return rc_fail_no_descriptor(result);
  }
  int fd = rc_poller_fd(writer->poller);
  if (fd < 0) return rc_fail_descriptor(&writer->poller, fd);
  return fd;
}

/* ---- What failed: the code and its text ------------------------------------------------------ */

static bool lacks_spill(const ringcast_writer *writer, uint64_t bytes) {
  return writer->spill_lacks && (bytes > writer->ring_frame || writer->is_large);
}

static int fail_right_now(const ringcast_writer *writer, uint64_t bytes) {
  if (writer->ring.credit == 0)
    return rc_fail_as(-EAGAIN, "a reader is as many frames behind as options.ahead allows");
  if (lacks_spill(writer, bytes))
    return rc_fail_as(-EAGAIN, "the ring's spill memory is full right now");
  return rc_fail_as(-EAGAIN, "the ring is full right now");
}

static int fail_too_large(const ringcast_writer *writer, uint64_t bytes) {
  const struct rc_segment *segment = &writer->segment;
  unsigned long long frame = bytes, most = rc_max_frame(segment), budget = segment->spill.bytes;
  if (budget != 0)
    return rc_fail(-EMSGSIZE,
                   "a frame of %llu bytes is larger than this ring can ever hold (%llu): make the "
                   "ring with more spill memory than %llu bytes (options.spill_bytes, "
                   "RINGCAST_SPILL_BYTES)",
                   frame, most, budget);
  const char *because = "", *error = "";
  if (segment->spill_error != 0) {
    because = ", because the kernel refused it: ";
    error = strerror(-segment->spill_error);
  }
  return rc_fail(-EMSGSIZE,
                 "a frame of %llu bytes is larger than this ring can ever hold (%llu): it has no "
                 "spill memory%s%s; make it with some (options.spill_bytes), or with a capacity of "
                 "more than twice the largest frame, by 1 KiB or so",
                 frame, most, because, error);
}

/* The reader in the way, for the error text. */
struct culprit {
  char text[RC_DESCRIBED_MAX];
  bool is_dead, is_late;
};

static struct culprit find_culprit(const ringcast_writer *writer) {
  const struct rc_liveness *liveness = &writer->liveness;
  struct culprit culprit = {.text = "no reader"};
  struct ringcast_peer peer;
  if (!rc_writer_peer(writer, writer->ring.blocker, &peer)) return culprit;
  rc_peer_describe(&peer, culprit.text, sizeof culprit.text);
  culprit.is_dead = peer.state == RINGCAST_PEER_DEAD;
  culprit.is_late = liveness->slow_ns != 0 && peer.blocked_ns >= (uint64_t)liveness->slow_ns;
  return culprit;
}

static int fail_invalid(const struct culprit *culprit) {
  return rc_fail(-EPROTO,
                 "%s wrote an invalid cursor: end its process and make a new ring (or make rings "
                 "with options.on_death = RINGCAST_EVICT)",
                 culprit->text);
}

static int fail_dead(const struct culprit *culprit) {
  return rc_fail(-EOWNERDEAD,
                 "%s has died: make a new ring to go on without it (or make rings with "
                 "options.on_death = RINGCAST_EVICT)",
                 culprit->text);
}

static int fail_full(const ringcast_writer *writer, uint64_t bytes, const struct culprit *culprit) {
  const char *limit = "";
  if (culprit->is_late)
    limit = ", longer than a reader may (options.slow_ns); options.on_slow = RINGCAST_EVICT goes "
            "on without it";
  if (writer->ring.credit == 0)
    return rc_fail(-ETIMEDOUT,
                   "%llu frames are not taken yet (options.ahead): %s blocks the writer%s",
                   (unsigned long long)writer->ring.ahead, culprit->text, limit);
  if (lacks_spill(writer, bytes))
    return rc_fail(-ETIMEDOUT,
                   "the ring's spill memory (%llu bytes) is full: %s blocks the writer%s",
                   (unsigned long long)writer->segment.spill.bytes, culprit->text, limit);
  return rc_fail(-ETIMEDOUT, "the ring is full: %s blocks the writer%s", culprit->text, limit);
}

/* Returns `code`, except for a timeout while the reader in the way is dead: -EOWNERDEAD, if that is
 * the policy. */
static int fail_to_reserve(const ringcast_writer *writer, int code, uint64_t bytes) {
  if (code == -EAGAIN) return fail_right_now(writer, bytes);
  if (code == -EDEADLK) return rc_fail_shared(); /* the rest of the writer is another thread's */
  const struct culprit culprit = find_culprit(writer);
  if (code == -ETIMEDOUT && culprit.is_dead && writer->liveness.on_death == RINGCAST_FAIL)
    return fail_dead(&culprit); /* a longer wait would not help */
  if (code == writer->liveness.unknown) return rc_fail_unknown(code, culprit.text);
  switch (code) {
  case -EINTR: return rc_fail_as(code, "a signal arrived while waiting for room");
  case -EMSGSIZE: return fail_too_large(writer, bytes);
  case -EBUSY: return rc_fail_as(code, "a reservation is open already: commit or abort it first");
  case -ECANCELED: return rc_fail_as(code, "the wait for room was cancelled");
  case -EINVAL: return rc_fail_as(code, "no reservation is open");
  case -EPROTO: return fail_invalid(&culprit);
  case -EOWNERDEAD: return fail_dead(&culprit);
  case -ETIMEDOUT: return fail_full(writer, bytes, &culprit);
  default: return code; /* of spill memory, or -ENOBUFS of arm: each has its text */
  }
}

/* ---- The wait -------------------------------------------------------------------------------- */

/* The first call that waits. Relaxed: statistics. */
static void count_stall(ringcast_writer *writer) {
  struct rc_slot *blocker = &writer->ring.view.control->slots[writer->ring.blocker];
  rc_store_relaxed(&blocker->stalls, rc_load_relaxed(&blocker->stalls) + 1);
  writer->liveness.blocker_pid = (int32_t)rc_owner_pid(rc_load_relaxed(&blocker->owner));
}

/* There is no room: starts the clock, and tells the readers what the writer waits for. */
static void announce_wait(struct request *request) {
  const uint64_t wanted = wanted_now(request);
  rc_liveness_begin(request->writer, wanted);
  publish_wanted(request->writer, wanted);
}

static void count_wait(void *context, uint64_t sleeps) {
  struct request *request = context;
  rc_count_wait_for_room(request->writer, sleeps);
}

/* A mere try (timeout 0) announces the wait too, may remove readers, and arms the descriptor if
 * there is one: the caller tries again later. */
static int wait_for_room(struct request *request, int64_t timeout_ns) {
  ringcast_writer *writer = request->writer;
  writer->liveness.unknown = 0;
  announce_wait(request);
  if (timeout_ns != 0 && !writer->liveness.waits) count_stall(writer);
  const struct rc_wait how = {.poll = poll_room,
                              .check = check_room,
                              .word = word_of_blocker,
                              .before_sleep = before_sleep,
                              .count = count_wait,
                              .context = request,
                              .unfenced = true};
  rc_ring_participants(&writer->ring.view);
  int result = rc_wait(&writer->waiter, &how, timeout_ns);
  if (result == -EAGAIN && writer->poller) return arm(request); /* a failed try arms it */
  return result;
}

rc_slow int rc_writer_reserve_slowly(ringcast_writer *writer, size_t bytes, int64_t timeout_ns,
                                     bool grow, struct ringcast_span *out) {
  int result = rc_check_wait(writer->forks, timeout_ns);
  if (result != 0) return result;
  struct request request = {.writer = writer, .bytes = bytes, .grow = grow};
  result = poll_room(&request);
  if (result == -EAGAIN) result = wait_for_room(&request, timeout_ns);
  /* The wait is over. After -EAGAIN the caller asks again, so readers with retained frames go on
   * making room. Relaxed: as in publish_wanted. */
  if (result != -EAGAIN && !writer->poller) rc_store_relaxed(&writer->ring.view.control->wanted, 0);
  if (result != 0) return fail_to_reserve(writer, result, bytes);
  rc_liveness_end(writer);
  *out = (struct ringcast_span){.data = request.data, .bytes = bytes};
  return 0;
}
