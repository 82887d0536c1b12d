/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's side of the public API: the ring, and waiting for room in it. */
#include "channel/channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/crowd.h"
#include "shm/disable.h"
#include "shm/error.h"
#include "shm/fence.h"
#include "shm/machine.h"

#define DEFAULT_READERS 64u

/* How send publishes a large frame: in so many pieces, none of them smaller than this. */
#define PIECES 64u
#define PIECE  ((size_t)256 << 10)

/* ---- Lifecycle -------------------------------------------------------------------------------------------------- */

/* RINGCAST_MEMORY speaks for those who can't touch the code. It fills in for AUTO only. */
static int memory_from_environment(uint32_t *memory) {
  const char *name = getenv("RINGCAST_MEMORY");
  if (*memory != RINGCAST_MEMORY_AUTO || !name || !*name) return 0;
  for (uint32_t i = 0; ringcast_memory_name(i); i++)
    if (strcmp(name, ringcast_memory_name(i)) == 0) {
      *memory = i;
      return 0;
    }
  return rc_fail(-EINVAL, "RINGCAST_MEMORY is '%.40s': it must be auto, hugetlb, shmem-huge or pages", name);
}

/* RINGCAST_SPILL_BYTES, too. It fills in for the default only; 0 there is none. */
static int spill_from_environment(uint64_t *bytes) {
  const char *text = getenv("RINGCAST_SPILL_BYTES");
  if (*bytes != 0 || !text || !*text) return 0;
  char *end;
  errno = 0;
  unsigned long long number = strtoull(text, &end, 10);
  if (errno != 0 || *end != '\0' || *text < '0' || *text > '9' || number > RC_MAX_BYTES)
    return rc_fail(-EINVAL, "RINGCAST_SPILL_BYTES is '%.40s': it must be a whole number of bytes, 0 (none) to %llu", text,
                   (unsigned long long)RC_MAX_BYTES);
  *bytes = number != 0 ? number : RINGCAST_NO_SPILL;
  return 0;
}

/* By default as much as does no harm: it is only a bound, and none of it is taken before a frame needs it. */
static uint64_t default_spill_bytes(void) {
  const uint64_t most = (uint64_t)4 << 30;
  struct rc_room room;
  rc_machine_room(&room);
  uint64_t half = room.bytes / 2 & ~(RC_HUGE_PAGE - 1);
  return half < most ? half : most;
}

static struct rc_spill_wish wish_for_spill(uint64_t asked) {
  if (asked == RINGCAST_NO_SPILL) return (struct rc_spill_wish){0};
  if (asked == 0) return (struct rc_spill_wish){.bytes = default_spill_bytes()};
  return (struct rc_spill_wish){.bytes = (asked + RC_HUGE_PAGE - 1) & ~(RC_HUGE_PAGE - 1), .must = true};
}

static uint64_t round_capacity(uint64_t bytes) {
  uint64_t capacity = rc_small_page();
  while (capacity < bytes) capacity *= 2;
  return capacity;
}

/* Takes over what the caller set and fills in the rest. */
static int resolve_options(const struct ringcast_writer_options *given, struct ringcast_writer_options *out) {
  struct ringcast_writer_options options = {.size = sizeof options};
  if (given && given->size != sizeof options)
    return rc_fail(-EINVAL, "options.size is %u, not %zu: set it to sizeof(struct ringcast_writer_options), and build "
                            "against the headers of the library in use",
                   given->size, sizeof options);
  if (given) options = *given;
  if (options.flags != 0) return rc_fail(-EINVAL, "options.flags is 0x%x: no flags are known, it must be 0", options.flags);
  if (options.readers == 0) options.readers = DEFAULT_READERS;
  if (options.capacity == 0) options.capacity = rc_default_capacity();
  if (options.readers > RC_MAX_SLOTS)
    return rc_fail(-EINVAL, "%u readers are more than a ring can have (%u)", options.readers, RC_MAX_SLOTS);
  if (options.capacity > RC_MAX_BYTES)
    return rc_fail(-EINVAL, "a capacity of %llu bytes is more than a ring can have (%llu)",
                   (unsigned long long)options.capacity, (unsigned long long)RC_MAX_BYTES);
  if (options.spill_bytes > RC_MAX_BYTES && options.spill_bytes != RINGCAST_NO_SPILL)
    return rc_fail(-EINVAL, "options.spill_bytes is %llu: it must be at most %llu, or RINGCAST_NO_SPILL",
                   (unsigned long long)options.spill_bytes, (unsigned long long)RC_MAX_BYTES);
  int result = rc_check_spin(options.spin_ns);
  if (result == 0) result = rc_check_disable();
  if (result == 0) result = memory_from_environment(&options.memory);
  if (result == 0) result = spill_from_environment(&options.spill_bytes);
  if (result != 0) return result;
  if (!ringcast_memory_name(options.memory))
    return rc_fail(-EINVAL, "options.memory is %u: it must be one of enum ringcast_memory", options.memory);
  if (options.numa > RINGCAST_NUMA_NODE)
    return rc_fail(-EINVAL, "options.numa is %u: it must be one of enum ringcast_numa", options.numa);
  options.capacity = round_capacity(options.capacity);
  *out = options;
  return 0;
}

int ringcast_writer_create(ringcast_writer **out) { return ringcast_writer_create_ex(NULL, out); }

/* What can fail once the memory is there. */
static int set_up(ringcast_writer *writer, int64_t spin_ns) {
  struct rc_control *control = rc_segment_control(&writer->segment);
  int result = rc_arena_init(&writer->arena, &writer->segment.spill);
  return result != 0 ? result : rc_waiter_init(&writer->waiter, &control->room, &control->crowd, spin_ns);
}

int ringcast_writer_create_ex(const struct ringcast_writer_options *given, ringcast_writer **out) {
  struct ringcast_writer_options options = {0};
  int result = resolve_options(given, &options);
  if (result != 0) return result;
  ringcast_writer *writer = calloc(1, sizeof *writer);
  if (!writer) return rc_fail(-ENOMEM, "out of memory");
  struct rc_handle handle;
  const struct rc_memory_wish wish = {.memory = options.memory, .numa = options.numa, .node = options.numa_node};
  const struct rc_spill_wish spill = wish_for_spill(options.spill_bytes);
  result = rc_segment_create(options.capacity, options.readers, &wish, &spill, &writer->segment, &handle);
  if (result != 0) {
    free(writer);
    return result;
  }
  result = set_up(writer, options.spin_ns);
  if (result != 0) {
    rc_arena_free(&writer->arena);
    rc_segment_destroy(&writer->segment);
    free(writer);
    return result;
  }
  struct rc_control *control = rc_segment_control(&writer->segment);
  rc_watch_init(&writer->blocker, 0, 0, 0);
  rc_ring_writer_init(&writer->ring, rc_segment_ring(&writer->segment));
  rc_spill_init(&writer->spill, writer->segment.spill.bytes);
  writer->ring_frame = rc_ring_frame(&writer->segment);
  rc_ring_parties(&writer->ring.ring);
  rc_crowd_enter(&control->crowd);
  rc_handle_format(&handle, writer->handle);
  writer->forks = rc_fork_count();
  writer->waiter.alone = true;
  if (!rc_fence_register()) rc_event_fence(&control->data);
  *out = writer;
  return 0;
}

void ringcast_writer_close(ringcast_writer *writer) {
  if (!writer) return;
  if (writer->forks == rc_fork_count()) { /* in a forked child the ring goes on without us */
    struct rc_control *control = rc_segment_control(&writer->segment);
    rc_writer_drop_large(writer);
    rc_store_release(&control->closed, 1); /* pairs with the load in the reader's poll: all commits came before */
    rc_wake(&control->data);
  }
  rc_arena_free(&writer->arena);
  rc_waiter_destroy(&writer->waiter);
  rc_watch_close(&writer->blocker);
  rc_segment_destroy(&writer->segment);
  free(writer);
}

const char *ringcast_writer_handle(const ringcast_writer *writer) { return writer->handle; }

/* ---- Waiting for readers ---------------------------------------------------------------------------------------- */

/* A wait of the writer: for room for `bytes`, or for `readers` to be attached. */
struct writer_wait {
  ringcast_writer *writer;
  uint64_t bytes;
  uint32_t readers, found;
  bool grow;
  void **out;
};

/* The kernel is asked about each reader, so not before there are enough of them. */
static int poll_readers(void *context) {
  struct writer_wait *wait = context;
  const struct rc_ring *ring = &wait->writer->ring.ring;
  uint32_t active = 0;
  for (uint32_t i = 0; i < ring->slots; i++)
    active += rc_owner_state(rc_load_acquire(&ring->control->slots[i].owner)) == RC_SLOT_ACTIVE; /* pairs with J4 */
  wait->found = active < wait->readers ? active : rc_peer_count(ring);
  return wait->found >= wait->readers ? 0 : -EAGAIN;
}

/* A reader that died while joining has got nothing yet and misses nothing: its slot is freed. */
static void reap_joining(ringcast_writer *writer) {
  const struct rc_ring *ring = &writer->ring.ring;
  for (uint32_t i = 0; i < ring->slots; i++) {
    uint64_t owner = rc_load_acquire(&ring->control->slots[i].owner); /* pairs with J1 */
    if (rc_owner_state(owner) == RC_SLOT_JOINING &&
        !rc_process_is_alive_by((int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK))
      rc_slot_reap(ring, i, owner);
  }
}

static int check_joining(void *context) {
  reap_joining(((struct writer_wait *)context)->writer);
  return -EAGAIN;
}

static int wait_for_room_event(struct writer_wait *wait, int64_t timeout_ns, const struct rc_wait *how) {
  ringcast_writer *writer = wait->writer;
  struct rc_control *control = writer->ring.ring.control;
  rc_ring_parties(&writer->ring.ring);
  return rc_wait_counted(&writer->waiter, how, timeout_ns, &control->counts, &control->waits);
}

int ringcast_writer_wait_readers(ringcast_writer *writer, uint32_t count, int64_t timeout_ns) {
  int result = rc_check_wait(writer->forks, timeout_ns);
  if (result != 0) return result;
  if (count > writer->segment.slots)
    return rc_fail(-EINVAL, "can't wait for %u readers: the ring has %u slots", count, writer->segment.slots);
  /* Nobody's cursor matters here: joining and leaving signal whatever is wanted. */
  rc_store_relaxed(&writer->ring.ring.control->wanted, UINT64_MAX);
  struct writer_wait wait = {.writer = writer, .readers = count};
  const struct rc_wait how = {.poll = poll_readers, .check = check_joining, .context = &wait, .dear = true};
  result = wait_for_room_event(&wait, timeout_ns, &how);
  if (result == 0) return (int)wait.found;
  wait.found = rc_peer_count(&writer->ring.ring);
  return rc_fail(result, "%u of %u readers are attached", wait.found, count);
}

void ringcast_writer_cancel(ringcast_writer *writer) { rc_waiter_cancel(&writer->waiter); }

/* ---- Waiting for room ------------------------------------------------------------------------------------------- */

static int poll_room(void *context) {
  struct writer_wait *wait = context;
  return rc_writer_take(wait->writer, wait->bytes, wait->grow, wait->out);
}

/* Whoever holds the ring back now. Its death is what the wait must not outlast; that of another reader, who may have
 * woken the writer only in part, is left to a slice: watching all of them would cost a descriptor each. */
static struct rc_watch *watch_blocker(void *context) {
  ringcast_writer *writer = ((struct writer_wait *)context)->writer;
  uint64_t owner = rc_load_acquire(&writer->ring.ring.control->slots[writer->ring.blocker].owner); /* pairs with J4 */
  uint64_t who = owner & ~(uint64_t)3; /* without its state */
  if (rc_owner_state(owner) == RC_SLOT_FREE) return NULL; /* it has just left: that signals */
  if (who != writer->blocker_owner) {
    rc_watch_close(&writer->blocker);
    rc_watch_init(&writer->blocker, (int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK);
    writer->blocker_owner = who;
  }
  return &writer->blocker;
}

static const void *word_of_blocker(void *context) {
  ringcast_writer *writer = ((struct writer_wait *)context)->writer;
  return &writer->ring.ring.control->slots[writer->ring.blocker].cursor;
}

static int check_room(void *context) {
  struct writer_wait *wait = context;
  ringcast_writer *writer = wait->writer;
  reap_joining(writer);
  int result = poll_room(wait); /* it may have been the one in the way */
  if (result != -EAGAIN) return result;
  _Atomic uint64_t *owner = &writer->ring.ring.control->slots[writer->ring.blocker].owner;
  struct rc_watch *blocker = watch_blocker(wait);
  if (!blocker || rc_watch_is_alive(blocker)) return -EAGAIN;
  /* One that left and then exited is no dead reader: its slot tells. */
  return (rc_load_acquire(owner) & ~(uint64_t)3) == writer->blocker_owner ? -EOWNERDEAD : -EAGAIN; /* pairs with FREE */
}

static int fail_too_large(const ringcast_writer *writer, uint64_t bytes) {
  const struct rc_segment *segment = &writer->segment;
  unsigned long long frame = bytes, most = rc_max_frame(segment), budget = segment->spill.bytes;
  if (budget != 0)
    return rc_fail(-EMSGSIZE,
                   "a frame of %llu bytes is larger than this ring can ever hold (%llu): make the ring with more spill "
                   "memory than %llu bytes (options.spill_bytes, RINGCAST_SPILL_BYTES)",
                   frame, most, budget);
  return rc_fail(-EMSGSIZE,
                 "a frame of %llu bytes is larger than this ring can ever hold (%llu): it has no spill memory%s%s; make "
                 "it with some (options.spill_bytes), or with a capacity of more than twice the largest frame, by 1 KiB "
                 "or so",
                 frame, most, segment->spill_error ? ", which could not be had: " : "",
                 segment->spill_error ? strerror(-segment->spill_error) : "");
}

static bool lacks_spill(const ringcast_writer *writer, uint64_t bytes) {
  return writer->spill_lacks && (bytes > writer->ring_frame || writer->is_large);
}

static int fail_full(const ringcast_writer *writer, int code, uint64_t bytes, const char *who) {
  if (!lacks_spill(writer, bytes)) return rc_fail(code, "the ring is full: %s holds it back", who);
  return rc_fail(code, "the ring's spill memory (%llu bytes) is full: %s holds it back",
                 (unsigned long long)writer->segment.spill.bytes, who);
}

/* Puts the reason into words, with the reader who is to blame. */
static int fail_to_reserve(ringcast_writer *writer, int code, uint64_t bytes) {
  if (code == -EAGAIN)
    return rc_fail_as(code, lacks_spill(writer, bytes) ? "the ring's spill memory is full right now"
                                                       : "the ring is full right now");
  struct ringcast_peer peer;
  char who[160] = "no reader";
  if (rc_peer_read(&writer->ring.ring, writer->ring.blocker, writer->ring.tail, &peer)) {
    rc_peer_describe(&peer, who, sizeof who);
    if (code == -ETIMEDOUT && peer.state == RINGCAST_PEER_DEAD) code = -EOWNERDEAD; /* waiting longer won't help */
  }
  switch (code) {
  case -EMSGSIZE: return fail_too_large(writer, bytes);
  case -EBUSY:
    return rc_fail_as(code, writer->spill.note
                                ? "a part of the open reservation is published: it can't grow, and must be committed or "
                                  "aborted first"
                                : "a reservation is open already: commit or abort it first");
  case -ECANCELED: return rc_fail(code, "the wait for room was cancelled");
  case -EINVAL: return rc_fail(code, "no reservation is open");
  case -EPROTO: return rc_fail(code, "%s has written a cursor that can't be right", who);
  case -EOWNERDEAD: return rc_fail(code, "%s has died and holds the ring back: make a new ring to go on without it", who);
  case -ETIMEDOUT: return fail_full(writer, code, bytes, who);
  default: return code; /* of spill memory, with its text */
  }
}

static rc_slow int reserve(ringcast_writer *writer, size_t bytes, int64_t timeout_ns, bool grow, struct ringcast_span *out) {
  int result = rc_check_wait(writer->forks, timeout_ns);
  if (result != 0) return result;
  void *data = NULL;
  struct writer_wait wait = {.writer = writer, .bytes = bytes, .grow = grow, .out = &data};
  result = poll_room(&wait);
  if (result == -EAGAIN) {
    /* Relaxed: the event's fence publishes it before the announcement that somebody sleeps. */
    rc_store_relaxed(&writer->ring.ring.control->wanted, rc_writer_wanted(writer, bytes));
    struct rc_slot *blocker = &writer->ring.ring.control->slots[writer->ring.blocker];
    if (timeout_ns != 0) rc_store_relaxed(&blocker->stalls, rc_load_relaxed(&blocker->stalls) + 1); /* relaxed: a count */
    const struct rc_wait how = {.poll = poll_room,
                                .check = check_room,
                                .whom = watch_blocker,
                                .word = word_of_blocker,
                                .context = &wait};
    result = wait_for_room_event(&wait, timeout_ns, &how);
  }
  if (result == -EINTR) return rc_fail_as(result, "a signal arrived while waiting for room");
  if (result != 0) return fail_to_reserve(writer, result, bytes);
  *out = (struct ringcast_span){.data = data, .bytes = bytes};
  return 0;
}

/* ---- Hot path --------------------------------------------------------------------------------------------------- */

int ringcast_writer_reserve(ringcast_writer *writer, size_t bytes, int64_t timeout_ns, struct ringcast_span *out) {
  if (rc_unlikely(timeout_ns < RINGCAST_FOREVER || writer->forks != rc_fork_count() || bytes > writer->ring_frame ||
                  writer->is_large || !rc_ring_has_room(&writer->ring, bytes)))
    return reserve(writer, bytes, timeout_ns, false, out);
  *out = (struct ringcast_span){.data = rc_ring_open(&writer->ring, bytes), .bytes = bytes};
  return 0;
}

int ringcast_writer_grow(ringcast_writer *writer, size_t bytes, int64_t timeout_ns, struct ringcast_span *out) {
  return reserve(writer, bytes, timeout_ns, true, out);
}

static rc_slow int wake_readers(ringcast_writer *writer) {
  struct rc_control *control = writer->ring.ring.control;
  if (rc_wake(&control->data)) rc_store_relaxed(&control->counts.wakes, ++writer->wakes);
  return 0;
}

static int fail_to_commit(const ringcast_writer *writer, size_t bytes, uint16_t kind) {
  if (!rc_writer_is_open(writer)) return rc_fail_as(-EINVAL, "no reservation is open");
  const struct rc_spill *spill = &writer->spill;
  if (spill->note && (bytes < spill->published || kind != spill->kind))
    return rc_fail(-EINVAL, "can't commit %zu bytes of kind %u: %llu bytes of kind %u are published already", bytes, kind,
                   (unsigned long long)spill->published, spill->kind);
  return rc_fail(-EINVAL, "can't commit %zu bytes: more than was reserved", bytes);
}

static rc_slow int commit_slowly(ringcast_writer *writer, size_t bytes, uint16_t kind) {
  int result = rc_check_fork(writer->forks);
  if (result != 0) return result;
  result = writer->is_large ? rc_writer_give_large(writer, bytes, kind) : rc_ring_commit(&writer->ring, bytes, kind);
  if (result != 0) return fail_to_commit(writer, bytes, kind);
  rc_count_frame(&writer->ring.ring.control->counts, bytes);
  return wake_readers(writer);
}

int ringcast_writer_commit(ringcast_writer *writer, size_t bytes, uint16_t kind) {
  if (rc_unlikely(writer->forks != rc_fork_count() || writer->is_large || rc_ring_commit(&writer->ring, bytes, kind) != 0))
    return commit_slowly(writer, bytes, kind);
  rc_count_frame(&writer->ring.ring.control->counts, bytes);
  if (rc_unlikely(rc_event_is_asleep(&writer->ring.ring.control->data))) return wake_readers(writer);
  return 0;
}

int ringcast_writer_abort(ringcast_writer *writer) {
  int result = rc_check_fork(writer->forks);
  if (result != 0) return result;
  if (!rc_writer_is_open(writer)) return rc_fail_as(-EINVAL, "no reservation is open");
  bool published = writer->spill.note;
  if (writer->is_large) rc_writer_drop_large(writer);
  else rc_ring_abort(&writer->ring);
  return published ? wake_readers(writer) : 0;
}

int ringcast_writer_publish(ringcast_writer *writer, size_t upto, uint16_t kind) {
  int result = rc_check_fork(writer->forks);
  if (result != 0) return result;
  if (!rc_writer_is_open(writer)) return rc_fail_as(-EINVAL, "no reservation is open");
  struct rc_spill *spill = &writer->spill;
  struct rc_control *control = writer->ring.ring.control;
  uint64_t reserved = writer->is_large ? spill->reserved : writer->ring.reserved;
  if (upto > reserved || upto < spill->published)
    return rc_fail(-EINVAL, "can't publish %zu bytes: %llu are published, and %llu were reserved", upto,
                   (unsigned long long)spill->published, (unsigned long long)reserved);
  if (spill->note && kind != spill->kind)
    return rc_fail(-EINVAL, "can't publish as kind %u: the first bytes are of kind %u", kind, spill->kind);
  /* Relaxed: advice. Nobody to follow, or it stays in the ring: then it comes as a whole, with the commit. */
  if (!spill->note && (!spill->is_open || rc_load_relaxed(&control->followers) == 0)) return 0;
  result = rc_spill_publish(spill, &writer->ring, upto, kind);
  if (result != 0) return rc_fail_as(result, "can't publish");
  return wake_readers(writer);
}

/* For those who follow, if there are any. Returns how far it got; the rest is for the caller. */
static size_t send_pieces(ringcast_writer *writer, const struct ringcast_span *span, const uint8_t *data,
                          uint16_t kind) {
  size_t done = 0, piece = (span->bytes / PIECES + RC_LINE - 1) & ~(size_t)(RC_LINE - 1);
  if (piece < PIECE) piece = PIECE;
  if (rc_load_relaxed(&writer->ring.ring.control->followers) == 0) return 0; /* relaxed: advice */
  for (; span->bytes - done > piece; done += piece) {
    memcpy((uint8_t *)span->data + done, data + done, piece);
    ringcast_writer_publish(writer, done + piece, kind);
  }
  return done;
}

int ringcast_writer_send(ringcast_writer *writer, const void *data, size_t bytes, uint16_t kind, int64_t timeout_ns) {
  struct ringcast_span span;
  int result = ringcast_writer_reserve(writer, bytes, timeout_ns, &span);
  if (result != 0) return result;
  size_t done = writer->is_large ? send_pieces(writer, &span, data, kind) : 0;
  if (bytes != done) memcpy((uint8_t *)span.data + done, (const uint8_t *)data + done, bytes - done);
  return ringcast_writer_commit(writer, bytes, kind);
}

/* ---- Estimates -------------------------------------------------------------------------------------------------- */

size_t ringcast_writer_estimate(const ringcast_writer *writer, uint32_t tag) {
  return rc_estimate_of(&writer->estimates, tag, rc_max_frame(&writer->segment));
}

void ringcast_writer_learn(ringcast_writer *writer, uint32_t tag, size_t bytes) {
  rc_estimate_learn(&writer->estimates, tag, bytes);
}
