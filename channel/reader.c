/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader: attaching, and the way of a message out of the ring.
 *
 *   next      takes the frame at once if its commit word is there; else polls for a moment, and
 *             then waits for the writer's wake-up, or for its death
 *   read      the caller reads in place
 *   release   stores the cursor, and wakes the writer if it sleeps until this cursor moves
 *
 * _many do the same for several frames at once. retain.c keeps a frame without holding the writer.
 */
#include "channel/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "channel/channel.h"
#include "channel/liveness.h"
#include "channel/stats.h"
#include "ringcast/batch.h"
#include "ringcast/inspect.h"
#include "shm/error.h"
#include "shm/options.h"
#include "shm/topology.h"

/* ---- Attaching ------------------------------------------------------------------------------- */

static int resolve_options(const struct ringcast_reader_options *given,
                           struct ringcast_reader_options *out) {
  struct ringcast_reader_options options;
  int result = rc_sized_read("ringcast_reader_options", given, &options, sizeof options);
  if (result != 0) return result;
  if ((options.flags & ~RINGCAST_READER_RETAIN) != 0)
    return rc_fail(-EINVAL, "options.flags is 0x%x: only RINGCAST_READER_RETAIN is known",
                   options.flags);
  if (options.leases > RC_MAX_LEASES)
    return rc_fail(-EINVAL, "options.leases is %u: at most %u frames can be held at once",
                   options.leases, RC_MAX_LEASES);
  if (options.start > RINGCAST_START_LATEST)
    return rc_fail(-EINVAL, "options.start is %u: it must be one of enum ringcast_start",
                   options.start);
  if (options.tag != 0 && options.start != RINGCAST_START_LATEST)
    return rc_fail(-EINVAL, "options.tag is %u: a tag needs options.start = RINGCAST_START_LATEST",
                   options.tag);
  result = rc_check_spin(options.spin_ns);
  if (result == 0) result = rc_features_check();
  if (result != 0) return result;
  *out = options;
  return 0;
}

/* Frees the slots of readers that have died after their eviction: the writer may never look for
 * them. True if there was a slot to free. */
static bool reap_gone(const struct rc_ring *ring) {
  bool reaped = false;
  for (uint32_t i = 0; i < ring->slots; i++) {
    uint64_t owner = rc_load_acquire(&ring->control->slots[i].owner); /* pairs with V1 */
    if (rc_owner_state(owner) != RC_SLOT_EVICTED || !rc_owner_is_dead(owner)) continue;
    if (rc_slot_reap(ring, i, owner)) reaped = true;
  }
  return reaped;
}

/* The numbers of the slot's last owner. Relaxed: statistics, no other data depends on them. */
static void clear_counts(struct rc_slot *slot) {
  _Atomic uint64_t *counts[] = {&slot->counts.frames, &slot->counts.bytes, &slot->counts.waits,
                                &slot->counts.sleeps, &slot->counts.wakes, &slot->counts.waited_ns,
                                &slot->stalls};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) rc_store_relaxed(counts[i], 0);
  for (uint32_t i = 0; i < RC_BUCKETS; i++) rc_store_relaxed(&slot->waits.counts[i], 0);
  rc_store_relaxed(&slot->retains, 0);
}

/* A hostile peer may take each slot again, and to look for dead readers takes 10 us for each
 * slot. */
#define MOST_CLAIMS 8u

/* Who joins, and where it starts. */
struct joining {
  struct rc_process self;
  char name[RC_NAME_MAX]; /* padded with zeros */
  struct rc_start start;
};

/* Claims a slot, and activates it. Between the two the writer can't move its limit. -EAGAIN: the
 * writer took the claim back. -EUSERS: no slot is free. Others as rc_slot_activate. */
static int take_slot(ringcast_reader *reader, const struct rc_ring *ring,
                     const struct joining *joining) {
  uint32_t slot;
  uint64_t owner;
  RC_POINT(JOIN);
  int result = rc_slot_claim(ring, (uint32_t)joining->self.pid, joining->self.start, &slot, &owner);
  if (result != 0) return result;
  memcpy(ring->control->slots[slot].name, joining->name, sizeof joining->name);
  clear_counts(&ring->control->slots[slot]);
  RC_POINT(NAMED);
  return rc_slot_activate(ring, slot, owner, joining->start, &reader->ring);
}

static int fail_to_join(const struct rc_ring *ring, uint32_t tag, int code) {
  if (code == -EPROTO)
    return rc_fail(code,
                   "the ring's control page is damaged: its tail is invalid. Make a new ring");
  if (code == -ENODATA)
    return rc_fail(code,
                   "the ring has no frame with tag %u to start at: none was committed, or more "
                   "than half the ring (%llu bytes) since, or its spill memory was taken back; "
                   "start at the next frame, or send it more often",
                   tag, (unsigned long long)ring->capacity / 2);
  const int alive = rc_peer_count(ring);
  const uint32_t gone = alive < 0 ? 0 : ring->slots - (uint32_t)alive;
  return rc_fail(code,
                 "all %u reader slots of the ring are taken, %u of them by readers that have died "
                 "or were evicted: make the ring with more, or close a reader; a writer with "
                 "options.on_death = RINGCAST_EVICT frees the slots of dead readers at its next "
                 "wait or check",
                 ring->slots, gone);
}

/* Takes a slot. Everything that can fail or wait comes before the claim. */
static int join(ringcast_reader *reader, const char *name, struct rc_start start) {
  struct rc_ring ring = rc_segment_ring(&reader->segment);
  struct joining joining = {.start = start};
  int result = rc_process_self(&joining.self);
  if (result != 0)
    return rc_fail(result, "can't read /proc/self/stat: %s%s", strerror(-result),
                   rc_process_hint(result));
  if (name) ringcast_printable(name, strlen(name), joining.name, sizeof joining.name);

  result = -EAGAIN;
  for (uint32_t claims = 0; claims < MOST_CLAIMS; claims++) {
    result = take_slot(reader, &ring, &joining);
    if (result == -EUSERS && !reap_gone(&ring)) break;
    if (result != -EAGAIN && result != -EUSERS) break;
  }
  if (result == -EAGAIN) result = -EUSERS; /* the writer took each claim back */
  if (result == -ENODATA)
    rc_wake(&ring.control->not_full); /* it may have seen JOINING, and sleep */
  if (result != 0) return fail_to_join(&ring, start.tag, result);

  rc_ring_participants(&ring);
  RC_POINT(JOINED);
  rc_wake(&ring.control->not_full);
  RC_POINT(JOIN_TOLD);
  return 0;
}

static int set_up(ringcast_reader *reader, const struct ringcast_reader_options *options) {
  struct rc_control *control = rc_segment_control(&reader->segment);
  int result = rc_waiter_init(&reader->waiter, &control->not_empty, &control->cpus,
                              options->spin_ns, options->wait);
  if (result != 0) return result;
  reader->forks = rc_forks_seen;
  rc_watch_init(&reader->writer, reader->segment.writer.pid, reader->segment.writer.start,
                UINT64_MAX);
  rc_cpus_enter(&control->cpus);
  result = join(reader, options->name,
                (struct rc_start){options->start == RINGCAST_START_LATEST, options->tag});
  if (result != 0) return result;
  if (options->leases != 0) reader->ring.leases = options->leases;
  rc_watch_fd(&reader->writer); /* now: later no descriptor may be free */
  return 0;
}

/* None if the writer evicts slow readers: the writer does not wait for retained frames. Relaxed:
 * stored before the handle. */
static void open_retainer(ringcast_reader *reader) {
  struct rc_memory *spill = &reader->segment.spill;
  if (rc_load_relaxed(&rc_segment_control(&reader->segment)->evicts) == 0)
    reader->retainer = rc_retainer_open(spill->fd, spill->bytes);
  rc_fd_close(spill->fd, &spill->id);
  spill->fd = -1;
}

static void free_memory(ringcast_reader *reader) {
  rc_retainer_put(reader->retainer);
  rc_backing_view_free(&reader->view);
  rc_segment_destroy(&reader->segment);
  free(reader);
}

int ringcast_reader_attach(const char *handle, ringcast_reader **out) {
  return ringcast_reader_attach_ex(handle, NULL, out);
}

int ringcast_reader_attach_ex(const char *handle, const struct ringcast_reader_options *given,
                              ringcast_reader **out) {
  struct ringcast_reader_options options = {0};
  int result = resolve_options(given, &options);
  if (result != 0) return result;
  ringcast_reader *reader = calloc(1, sizeof *reader);
  if (!reader) return rc_fail(-ENOMEM, "out of memory");
  const bool retains = options.flags & RINGCAST_READER_RETAIN;
  const enum rc_attach role = retains ? RC_ATTACH_RETAINER : RC_ATTACH_READER;
  result = rc_segment_attach(handle, role, &reader->segment);
  if (result != 0) {
    free(reader);
    return result;
  }
  if (retains) open_retainer(reader);
  result = rc_backing_view_init(&reader->view, &reader->segment.spill);
  if (result == 0) result = set_up(reader, &options);
  if (result != 0) {
    free_memory(reader);
    return result;
  }
  *out = reader;
  return 0;
}

void rc_reader_warm_by(ringcast_reader *reader, void (*warm)(void *context), void *context) {
  reader->waiter.warm = warm;
  reader->waiter.warm_context = context;
}

void ringcast_reader_cancel(ringcast_reader *reader) { rc_waiter_cancel(&reader->waiter); }

/* ---- Release --------------------------------------------------------------------------------- */

/* The cursor has moved, and the writer sleeps. Relaxed: E6 comes first. The writer stores `wanted`
 * before E1, or under a standing announcement, and loads the cursors once more after E2 and at E9,
 * which follows either store: so either this load finds the newest `wanted`, or the writer finds
 * the cursor. */
static rc_slow int wake_sleeper(ringcast_reader *reader) {
  struct rc_control *control = reader->ring.view.control;
  if (reader->ring.cursor < rc_load_relaxed(&control->wanted)) return 0;
  if (!rc_wake(&control->not_full)) return 0;
  struct rc_counts *counts = &control->slots[reader->ring.slot].counts;
  rc_store_relaxed(&counts->wakes, ++reader->wakes); /* relaxed: a count */
  return 0;
}

static inline bool is_writer_asleep(const ringcast_reader *reader) {
  return rc_eventcount_is_asleep_unfenced(&reader->ring.view.control->not_full);
}

static inline struct rc_counts *counts_of(const ringcast_reader *reader) {
  return &reader->ring.view.control->slots[reader->ring.slot].counts;
}

/* The frames have lost their last lease or pin. If the cursor has not moved, the reader still holds
 * an older frame. Returns 0. */
static int finish_release(ringcast_reader *reader, uint64_t frames, uint64_t bytes,
                          uint64_t cursor_before) {
  rc_count_frames(counts_of(reader), frames, bytes);
  if (reader->ring.cursor == cursor_before || !is_writer_asleep(reader)) return 0;
  return wake_sleeper(reader);
}

static int fail_to_release(const ringcast_reader *reader, uint64_t position, int code) {
  if (code == -ESTALE) return rc_fail_evicted();
  if (code == -EPROTO) return rc_fail_damaged(position, &reader->segment);
  return rc_fail_not_held(position);
}

static rc_slow int release_slowly(ringcast_reader *reader, const struct ringcast_frame *frame) {
  const uint64_t cursor = reader->ring.cursor;
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  if (rc_ring_lent(&reader->ring, frame->position) == 1) /* one frame of a group */
    result = rc_ring_release_many(&reader->ring, frame->position, 1);
  else result = rc_ring_release(&reader->ring, frame->position);
  if (result != 0) return fail_to_release(reader, frame->position, result);
  return finish_release(reader, 1, frame->bytes, cursor);
}

int ringcast_reader_release(ringcast_reader *reader, const struct ringcast_frame *frame) {
  if (rc_unlikely(reader->forks != rc_forks_seen)) return release_slowly(reader, frame);
  if (rc_unlikely(!rc_ring_release_only(&reader->ring, frame->position)))
    return release_slowly(reader, frame);
  rc_count_frame(counts_of(reader), frame->bytes);
  if (rc_unlikely(is_writer_asleep(reader))) return wake_sleeper(reader);
  return 0;
}

int ringcast_reader_release_many(ringcast_reader *reader, const struct ringcast_frame *frames,
                                 uint32_t count) {
  const uint64_t cursor = reader->ring.cursor, position = frames->position;
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  if (rc_ring_lent(&reader->ring, position) == 0) { /* a frame with a lease of its own */
    if (count == 1) return ringcast_reader_release(reader, frames);
    if (count == 0 && rc_ring_unread_last(&reader->ring, position)) return 0;
  }
  result = rc_ring_release_many(&reader->ring, position, count);
  if (result != 0) return fail_to_release(reader, position, result);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; i++) bytes += frames[i].bytes;
  return finish_release(reader, count, bytes, cursor);
}

/* Ends the pins of retained frames that are due (retain.c). */
static void end_retained(ringcast_reader *reader, uint64_t wanted) {
  struct ringcast_frame frame;
  while (rc_retain_end(reader, wanted, &frame)) {
    const uint64_t cursor = reader->ring.cursor;
    rc_ring_unpin(&reader->ring, frame.position);
    finish_release(reader, 1, frame.bytes, cursor);
  }
}

/* The reader has found no frame and waits on: the writer may wait for retained frames. */
static void end_retained_if_wanted(ringcast_reader *reader) {
  if (rc_likely(reader->retained == 0)) return;
  /* K3 <- K1; relaxed: see retain.c. */
  const uint64_t wanted = rc_load_relaxed(&reader->ring.view.control->wanted);
  if (wanted > reader->ring.cursor && wanted != RC_WANTED_NONE) end_retained(reader, wanted);
}

/* ---- Waiting for a frame --------------------------------------------------------------------- */

struct reader_wait {
  ringcast_reader *reader;
  struct rc_ring_frame *out;
  struct ringcast_frame *group; /* NULL: one frame is wanted, in `out` */
  uint32_t most, count;         /* of the group */
};

static int take(struct reader_wait *wait) {
  struct rc_ring_reader *ring = &wait->reader->ring;
  if (!wait->group) return rc_ring_take(ring, wait->out);
  return rc_ring_next_many(ring, wait->group, wait->most, &wait->count, wait->out);
}

static int poll_frame(void *context) {
  struct reader_wait *wait = context;
  int result = take(wait);
  if (result != -EAGAIN) return result;
  end_retained_if_wanted(wait->reader);
  if (rc_load_acquire(&wait->reader->ring.view.control->closed) == 0) return -EAGAIN; /* C1 <- C0 */
  result = take(wait); /* a frame committed between the first poll and closing */
  return result == -EAGAIN ? -EPIPE : result;
}

/* If the writer died without closing, its committed frames are still readable. */
static int check_writer(void *context) {
  struct reader_wait *wait = context;
  int writer = rc_watch_look(&wait->reader->writer);
  if (writer < 0) return writer;
  if (writer != RC_PROCESS_ENDED) return -EAGAIN;
  /* Spares the other readers their own check. No wake-up: each sleeper finds `closed`, or the
   * death, within a slice. */
  RC_POINT(MOURN);
  rc_store_release(&wait->reader->ring.view.control->closed, 1);
  RC_POINT(MOURNED);
  return poll_frame(wait);
}

static const void *word_of_next_frame(void *context) {
  const struct rc_ring_reader *ring = &((struct reader_wait *)context)->reader->ring;
  return &rc_frame_at(&ring->view, ring->next)->commit;
}

static int fail_held(const ringcast_reader *reader) {
  const uint32_t held = reader->ring.leases;
  return rc_fail(-EBUSY, "%u frame%s held, the limit (options.leases): release one first", held,
                 held == 1 ? " is" : "s are");
}

static int fail_to_read(ringcast_reader *reader, int code) {
  if (code == -EDEADLK) return rc_fail_shared(); /* the fields of the wait are another thread's */
  if (code == reader->writer.unknown) return rc_fail_unknown_writer(code, &reader->segment);
  switch (code) {
  case -ESTALE: return rc_fail_evicted();
  case -EBUSY: return fail_held(reader);
  case -ENOBUFS: return code; /* from arm, with its text */
  default: return rc_fail_no_frame(code, reader->ring.next, &reader->segment);
  }
}

/* A party that breaks the count of sleepers, or dies between changing it and the wake, costs the
 * descriptor one such delay. */
#define LOST_WAKE_NS ((int64_t)1000 * 1000 * 1000)

/* Arms the descriptor of ringcast_reader_fd. Polls once more after the announcement, as every
 * sleeper does. -EAGAIN: the descriptor is armed. */
static int arm(struct reader_wait *wait) {
  ringcast_reader *reader = wait->reader;
  int result = rc_poller_clear(reader->poller);
  RC_POINT(POLL);
  if (result != 0) return rc_fail_descriptor(&reader->poller, result);
  uint32_t value = rc_eventcount_prepare(reader->waiter.event);
  result = poll_frame(wait);
  if (result != -EAGAIN) return result;
  if (rc_waiter_is_cancelled(&reader->waiter)) return -ECANCELED;
  result = rc_poller_arm(reader->poller, value, LOST_WAKE_NS);
  RC_POINT(POLL_ARMED);
  if (result != 0) return rc_fail_descriptor(&reader->poller, result);
  return -EAGAIN;
}

static void count_wait(void *context, uint64_t sleeps) {
  struct reader_wait *wait = context;
  rc_count_wait_for_frame(wait->reader, sleeps);
}

/* Takes a frame, and waits for it if need be. */
static int wait_for_frame(struct reader_wait *wait, int64_t timeout_ns) {
  ringcast_reader *reader = wait->reader;
  int result = rc_check_wait(reader->forks, timeout_ns);
  if (result != 0) return result;
  const struct rc_wait how = {.poll = poll_frame,
                              .check = check_writer,
                              .word = word_of_next_frame,
                              .count = count_wait,
                              .context = wait};
  result = rc_wait(&reader->waiter, &how, timeout_ns);
  if (result == -EAGAIN && reader->poller) result = arm(wait); /* a failed try arms it */
  if (result != 0) return fail_to_read(reader, result);
  return 0;
}

int ringcast_reader_fd(ringcast_reader *reader) {
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  if (!reader->poller) {
    result = rc_poller_open(reader->waiter.event, 1, &reader->poller);
    if (result != 0) return rc_fail_no_descriptor(result);
    rc_poller_watch(reader->poller, 0, 1, &reader->writer);
  }
  int fd = rc_poller_fd(reader->poller);
  if (fd < 0) return rc_fail_descriptor(&reader->poller, fd);
  return fd;
}

/* ---- Next ------------------------------------------------------------------------------------ */

/*
 *   ringcast_reader_next  rc_ring_next_plain: a plain frame is there, and the reader holds none
 *     next_slowly         take_packed: only the next message of a packed frame is wanted
 *       take_slowly       ends retained frames, tells what is taken, checks spilled frames; also
 *                         for ringcast_reader_next_many
 *         wait_for_frame  rc_wait, which calls poll_frame and check_writer
 *           take          rc_ring_take (a message, or rc_ring_next); of a group: rc_ring_next_many
 */

/* Checks a spilled frame before its lease. After an error the frame is still the next frame. */
static int check_spilled(ringcast_reader *reader, const struct rc_ring_frame *frame) {
  /* Relaxed: the acquire of the frame's commit covers the epoch. */
  uint32_t epoch = rc_load_relaxed(&reader->ring.view.control->spill_epoch);
  int result = rc_backing_view_check(&reader->view, frame->offset, frame->bytes, epoch);
  RC_POINT(SPILL_CHECKED);
  if (result == 0) return 0;
  rc_ring_unread(&reader->ring, frame->position);
  return rc_fail(result, "can't read the frame at position %llu, %llu bytes of spill memory: %s",
                 (unsigned long long)frame->position, (unsigned long long)frame->bytes,
                 strerror(-result));
}

static inline void lend(const struct rc_ring_frame *frame, struct ringcast_frame *out) {
  *out = (struct ringcast_frame){
      .data = frame->data, .bytes = frame->bytes, .position = frame->position, .kind = frame->kind};
}

/* Before a look for the next frame, while the reader holds earlier ones: tells the writer, which
 * may wait for a frame to be taken (options.ahead). The writer looks again after its announcement,
 * as for a cursor (wake_sleeper). */
static void tell_taken(ringcast_reader *reader) {
  const struct rc_ring_reader *ring = &reader->ring;
  if (ring->cursor == ring->next) return;
  if (rc_load_relaxed(&ring->own->taken) == ring->next) return; /* relaxed: our own */
  /* Only counted; before the load of the eventcount. */
  rc_store_release(&ring->own->taken, ring->next);
  if (is_writer_asleep(reader)) rc_wake(&ring->view.control->not_full);
}

static int take_slowly(struct reader_wait *wait, int64_t timeout_ns) {
  ringcast_reader *reader = wait->reader;
  const struct rc_ring_frame *frame = wait->out;
  if (reader->forks == rc_forks_seen) {
    if (reader->retained > 0) {
      end_retained(reader, 0);
      /* Here too: a reader that always finds a frame never gets to poll_frame. */
      end_retained_if_wanted(reader);
    }
    tell_taken(reader);
  }
  int result = wait_for_frame(wait, timeout_ns);
  if (result == 0 && frame->spilled) result = check_spilled(reader, frame);
  if (result != 0) return result;
  if (frame->spilled && reader->retainer) rc_retainer_count(reader->retainer, frame->bytes);
  return 0;
}

/* The next message of a packed frame, if there is nothing else to do. False: take_slowly. */
static bool take_packed(ringcast_reader *reader, int64_t timeout_ns, struct rc_ring_frame *out) {
  if (!rc_packed_is_left(&reader->ring.packed) || reader->retained > 0) return false;
  if (timeout_ns < RINGCAST_FOREVER || reader->forks != rc_forks_seen) return false;
  return rc_ring_take(&reader->ring, out) == 0;
}

static rc_slow int next_slowly(ringcast_reader *reader, int64_t timeout_ns,
                               struct ringcast_frame *out) {
  struct rc_ring_frame frame;
  if (!take_packed(reader, timeout_ns, &frame)) {
    struct reader_wait wait = {.reader = reader, .out = &frame};
    int result = take_slowly(&wait, timeout_ns);
    if (result != 0) return result;
  }
  lend(&frame, out);
  return 0;
}

/* Whether the timeout leaves time to back off for some microseconds. */
static inline bool has_time(const ringcast_reader *reader, int64_t timeout_ns) {
  return (timeout_ns < 0 || timeout_ns >= RC_DEFAULT_SPIN_NS) &&
         reader->waiter.spin_ns >= RC_DEFAULT_SPIN_NS;
}

/* Polls for the first microsecond or two of a wait. */
static inline bool poll_briefly(ringcast_reader *reader, int64_t timeout_ns) {
  rc_backoff_before_look(&reader->backoff);
  if (rc_ring_is_available(&reader->ring) || rc_packed_is_left(&reader->ring.packed)) return true;
  if (!rc_waiter_is_eager(&reader->waiter) || !rc_ring_may_hold(&reader->ring)) return false;
  if (has_time(reader, timeout_ns)) {
    if (rc_unlikely(rc_backoff_begin_wait(&reader->backoff)))
      rc_backoff_pause(&reader->backoff, &reader->ring);
  }
  bool found = false;
  for (uint32_t looks = 0; looks < RC_LOOKS && !found; looks++) {
    rc_relax();
    found = rc_ring_is_available(&reader->ring);
  }
  rc_backoff_waited(&reader->backoff);
  return found;
}

int ringcast_reader_next(ringcast_reader *reader, int64_t timeout_ns, struct ringcast_frame *out) {
  struct rc_ring_frame frame;
  if (rc_unlikely(timeout_ns < RINGCAST_FOREVER || reader->forks != rc_forks_seen))
    return next_slowly(reader, timeout_ns, out);
  if (timeout_ns != 0 && rc_unlikely(!poll_briefly(reader, timeout_ns)))
    return next_slowly(reader, timeout_ns, out);
  if (rc_unlikely(!rc_ring_next_plain(&reader->ring, &frame)))
    return next_slowly(reader, timeout_ns, out);
  lend(&frame, out);
  return 0;
}

int ringcast_reader_next_many(ringcast_reader *reader, int64_t timeout_ns,
                              struct ringcast_frame *frames, uint32_t capacity) {
  if (capacity == 0) return rc_fail_as(-EINVAL, "room for 0 frames: give room for one at least");
  if (timeout_ns > 0 || timeout_ns == RINGCAST_FOREVER) poll_briefly(reader, timeout_ns);
  struct rc_ring_frame frame;
  struct reader_wait wait = {.reader = reader, .out = &frame, .group = frames, .most = capacity};
  int result = take_slowly(&wait, timeout_ns);
  return result == 0 ? (int)wait.count : result;
}

int ringcast_reader_check(const ringcast_reader *reader) {
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  return rc_ring_is_evicted(&reader->ring) ? rc_fail_evicted() : 0;
}

/* ---- Leaving --------------------------------------------------------------------------------- */

static void leave_ring(ringcast_reader *reader) {
  rc_slot_free(&reader->ring.view, reader->ring.slot, reader->ring.owner);
  RC_POINT(FREED);
  rc_ring_participants(&reader->ring.view);
  rc_wake(&reader->ring.view.control->not_full);
  RC_POINT(LEAVE_TOLD);
}

void ringcast_reader_leave(ringcast_reader *reader) {
  if (reader->forks == RC_LEFT) return;
  if (reader->forks == rc_forks_seen) { /* in a forked child the slot stays the parent's */
    RC_POINT(LEAVE);
    rc_detach(&reader->attachment);
    end_retained(reader, UINT64_MAX);
    leave_ring(reader);
  }
  rc_watch_close(&reader->writer);
  rc_poller_close(reader->poller);
  reader->poller = NULL;
  reader->forks = RC_LEFT;
}

void ringcast_reader_close(ringcast_reader *reader) {
  if (!reader) return;
  ringcast_reader_leave(reader);
  free_memory(reader);
}
