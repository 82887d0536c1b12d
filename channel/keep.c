/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping a frame: it is not copied out of spill memory but stays there, as memory of the reader's own, to be read and
 * written to for as long as one likes. It lies in a mapping of the spill memory that is copy-on-write (shm/cow.h), and
 * the frame stays held, so the writer does not touch it. Of 10 MiB that saves each reader 0.6 ms of 0.7.
 *
 * Who keeps a frame for long must not hold the ring back. So a kept frame has two ends:
 *
 *   HELD --ringcast_kept_drop, any thread--> DROPPED --the reader's next call: clean, release--> gone
 *   HELD --the reader: own, release--> OWN --ringcast_kept_drop: clean--> gone
 *
 * To own is to make each of its pages private, which copies those that were not written to: then the frame is given
 * back, and its memory is like any other. That takes several times as long as to copy the frame at once would have, so
 * a reader that had to do so leaves it for some frames, for more each time. It does so when the ring has gone on by a
 * quarter; and when the writer waits:
 *
 *   writer, out of room                          reader, out of frames
 *   K1  store wanted                             K2  announce that it sleeps on `data` (E1, E2)
 *   K4  asleep? then load keeps, and wake (E6)   K3  load wanted: more than its cursor? then give back
 *
 * which is an event's pattern (ring/event.h), with `data` for the event and K1 for the thing: either K3 sees what K1
 * stored or K4 finds the sleeper. A reader that is neither waiting nor calls anything holds the ring back, as one that
 * does not release a frame does; so at most a quarter of the spill memory is held or dropped at a time. Who writes to
 * most of what is kept is better off with a copy, too: that is seen when it was dropped, and counts as kept for long.
 *
 * While the frame is OWN its pages are private, so no other frame that comes to lie there can be kept: it is copied. A
 * hostile writer's frame may lie there, or overlap with one that is held, at any time.
 *
 * A child of fork has the mapping too, and no hold on the ring. So before a fork all that is held is owned.
 */
#include "channel/keep.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "shm/cow.h"
#include "shm/error.h"

#define LEAST_SKIP 4u /* frames that are not kept after one that had to be owned, twice as many after each more, ... */
#define MOST_SKIP  1024u
#define WELL       16u /* ... until so many were dropped in time, ... */
#define MOST_WRITTEN 4u /* ... with no more than one page in so many written to */

enum { HELD, DROPPED, OWN };

struct ringcast_kept {
  _Atomic uint32_t state;
  struct rc_keeper *keeper;
  struct ringcast_kept *next;
  uint64_t offset, bytes; /* of its pages */
  struct ringcast_frame frame;
  uint64_t spilled; /* the keeper's, then */
};

struct rc_keeper {
  pthread_mutex_t mutex; /* guards the list, and what is done to pages of what is in it */
  struct ringcast_kept *first;
  struct rc_cow cow;
  bool broken;              /* it can't be made to show the file any more; guarded by the mutex */
  _Atomic uint32_t holders; /* the reader, and each that is kept */
  struct rc_keeper *next;   /* of all; guarded by the mutex of that */
  /* The reader's own. */
  uint64_t held;    /* bytes of spill memory that are held or dropped */
  uint64_t spilled; /* bytes that have come in spill memory */
  uint32_t skip, skips, well;
};

/* ---- All of them, for forks ------------------------------------------------------------------------------------- */

static struct {
  pthread_mutex_t mutex;
  struct rc_keeper *first;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Relaxed: a drop that comes now leaves the pages as they are. */
static bool is_held(struct ringcast_kept *kept) { return rc_load_relaxed(&kept->state) == HELD; }

static void before_fork(void) {
  pthread_mutex_lock(&all.mutex);
  for (struct rc_keeper *keeper = all.first; keeper; keeper = keeper->next) {
    pthread_mutex_lock(&keeper->mutex);
    for (struct ringcast_kept *kept = keeper->first; kept; kept = kept->next)
      if (is_held(kept)) rc_cow_own(&keeper->cow, kept->offset, kept->bytes);
  }
}

static void after_fork(void) {
  for (struct rc_keeper *keeper = all.first; keeper; keeper = keeper->next) pthread_mutex_unlock(&keeper->mutex);
  pthread_mutex_unlock(&all.mutex);
}

/* Under the mutex, for the last time. Returns how many of its bytes were private. */
static uint64_t forget(struct ringcast_kept *kept) {
  struct rc_keeper *keeper = kept->keeper;
  struct ringcast_kept **link = &keeper->first;
  uint64_t written = 0;
  if (!rc_cow_clean(&keeper->cow, kept->offset, kept->bytes, &written)) keeper->broken = true;
  while (*link != kept) link = &(*link)->next;
  *link = kept->next;
  free(kept);
  return written;
}

/* What was held is the parent's to give back; here it has been owned. What was dropped nobody else forgets here. */
static void after_fork_in_child(void) {
  for (struct rc_keeper *keeper = all.first; keeper; keeper = keeper->next) {
    rc_cow_forked(&keeper->cow);
    for (struct ringcast_kept *kept = keeper->first, *next; kept; kept = next) {
      next = kept->next;
      if (is_held(kept)) {
        rc_store_relaxed(&kept->state, OWN); /* relaxed: there is one thread */
      } else if (rc_load_relaxed(&kept->state) == DROPPED) { /* as before */
        forget(kept);
        rc_sub_acq_rel(&keeper->holders, 1); /* never the last: the reader is one, until it has settled all */
      }
    }
  }
  after_fork();
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork_in_child); }

/* ---- Keepers ---------------------------------------------------------------------------------------------------- */

struct rc_keeper *rc_keeper_open(int fd, uint64_t bytes) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (fd < 0 || rc_small_page() > RC_SPILL_UNIT) return NULL; /* else frames share pages */
  struct rc_keeper *keeper = calloc(1, sizeof *keeper);
  if (!keeper) return NULL;
  if (rc_cow_open(fd, bytes, &keeper->cow) != 0) {
    free(keeper);
    return NULL;
  }
  pthread_once(&once, watch_forks);
  pthread_mutex_init(&keeper->mutex, NULL);
  atomic_init(&keeper->holders, 1);
  pthread_mutex_lock(&all.mutex);
  keeper->next = all.first;
  all.first = keeper;
  pthread_mutex_unlock(&all.mutex);
  return keeper;
}

/* The last one: what the others did with the memory was before. */
void rc_keeper_put(struct rc_keeper *keeper) {
  if (!keeper || rc_sub_acq_rel(&keeper->holders, 1) != 1) return;
  pthread_mutex_lock(&all.mutex);
  struct rc_keeper **link = &all.first;
  while (*link != keeper) link = &(*link)->next;
  *link = keeper->next;
  pthread_mutex_unlock(&all.mutex);
  rc_cow_close(&keeper->cow);
  pthread_mutex_destroy(&keeper->mutex);
  free(keeper);
}

void rc_keeper_count(struct rc_keeper *keeper, uint64_t bytes) {
  keeper->spilled += bytes;
  keeper->skip -= keeper->skip > 0;
}

static void learn(struct rc_keeper *keeper, bool well) {
  if (well) {
    if (++keeper->well >= WELL) keeper->skips = 0;
    return;
  }
  keeper->well = 0;
  keeper->skips = keeper->skips == 0 ? LEAST_SKIP : keeper->skips < MOST_SKIP ? 2 * keeper->skips : MOST_SKIP;
  keeper->skip = keeper->skips;
}

/* ---- Keeping ---------------------------------------------------------------------------------------------------- */

/* Whether those pages are nobody's. Under the mutex. */
static bool are_free(const struct rc_keeper *keeper, uint64_t offset, uint64_t bytes) {
  uint32_t count = 0;
  for (const struct ringcast_kept *kept = keeper->first; kept; kept = kept->next, count++)
    if (offset < kept->offset + kept->bytes && kept->offset < offset + bytes) return false;
  return count < RC_MAX_KEPT; /* those that are their own included */
}

/* The list is in the order of the frames. */
static bool link_last(struct rc_keeper *keeper, struct ringcast_kept *kept) {
  pthread_mutex_lock(&keeper->mutex);
  bool linked = !keeper->broken && are_free(keeper, kept->offset, kept->bytes) &&
                rc_cow_is_clean(&keeper->cow, kept->offset, kept->bytes);
  if (linked) {
    struct ringcast_kept **link = &keeper->first;
    while (*link) link = &(*link)->next;
    *link = kept;
  }
  pthread_mutex_unlock(&keeper->mutex);
  return linked;
}

static void show(ringcast_reader *reader, uint32_t kept) {
  reader->kept = kept;
  rc_store_relaxed(&reader->ring.own->keeps, kept); /* relaxed: K2 publishes it. -> K4 */
}

/* Looks at a frame that is held. What was lent is what is kept, whatever the writer has made of its note since. */
static int look(ringcast_reader *reader, const struct ringcast_frame *frame, struct rc_ring_frame *found) {
  const struct rc_keeper *keeper = reader->keeper;
  int result = rc_ring_look(&reader->ring, frame->position, found);
  if (result != 0) return result;
  if (found->data != frame->data || found->bytes > frame->bytes) return -EPROTO;
  bool can = keeper && keeper->skip == 0 && found->spilled && found->bytes == frame->bytes &&
             keeper->held + found->bytes <= reader->segment.spill.bytes / 4;
  return can ? 0 : -ENOTSUP;
}

/* The memory is not to be had now.  Whether it is for the next frame is not known. */
static void skip_some(struct rc_keeper *keeper) {
  if (keeper->skip == 0) keeper->skip = LEAST_SKIP;
}

static int fail_to_keep(const ringcast_reader *reader, const struct ringcast_frame *frame, int code) {
  switch (code) {
  case -ESTALE: return rc_fail_evicted();
  case -EINVAL: return rc_fail_not_held(frame->position);
  case -EPROTO:
    return rc_fail(code, "the frame at position %llu is damaged: the writer (pid %d) has written what it must not",
                   (unsigned long long)frame->position, reader->segment.writer.pid);
  case -ENOMEM: return rc_fail(code, "out of memory");
  default: return rc_fail_as(code, "this frame can't be kept: copy it");
  }
}

int ringcast_reader_keep(ringcast_reader *reader, const struct ringcast_frame *frame, ringcast_kept **out,
                         void **data) {
  struct rc_keeper *keeper = reader->keeper;
  struct rc_ring_frame found = {0};
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  result = look(reader, frame, &found);
  struct ringcast_kept *kept = result == 0 ? malloc(sizeof *kept) : NULL;
  if (result == 0 && !kept) result = -ENOMEM;
  if (result == -ENOTSUP && keeper && found.spilled && found.bytes == frame->bytes) skip_some(keeper);
  if (result != 0) return fail_to_keep(reader, frame, result);
  uint64_t page = rc_small_page(), end = (found.offset + found.bytes + page - 1) & ~(page - 1);
  *kept = (struct ringcast_kept){.keeper = keeper, .frame = *frame, .spilled = keeper->spilled};
  atomic_init(&kept->state, HELD);
  kept->offset = found.offset & ~(page - 1);
  kept->bytes = end - kept->offset;
  if (!link_last(keeper, kept)) {
    free(kept);
    skip_some(keeper);
    return fail_to_keep(reader, frame, -ENOTSUP);
  }
  rc_add_acq_rel(&keeper->holders, 1);
  keeper->held += found.bytes;
  rc_ring_pin(&reader->ring, frame->position);
  rc_ring_release(&reader->ring, frame->position); /* -ESTALE is for the next call to tell */
  show(reader, reader->kept + 1);
  RC_POINT(KEPT);
  *out = kept;
  *data = keeper->cow.memory.base + found.offset;
  return 0;
}

int ringcast_reader_keeps(const ringcast_reader *reader) { return reader->keeper && reader->keeper->skip == 0; }

void ringcast_kept_drop(ringcast_kept *kept) {
  if (!kept) return;
  struct rc_keeper *keeper = kept->keeper;
  uint32_t state = HELD;
  /* Release: what the caller did with the memory, it did before the writer may have it again. -> the load in settle */
  if (rc_cas_strong_acq_rel(&kept->state, &state, DROPPED)) return;
  /* It is OWN, and was made so outside the mutex: what the reader did with it came before. <- the exchange in own. The
   * exchange above has failed, and is relaxed then. */
  (void)rc_load_acquire(&kept->state);
  pthread_mutex_lock(&keeper->mutex);
  forget(kept);
  pthread_mutex_unlock(&keeper->mutex);
  rc_keeper_put(keeper);
}

/* ---- Giving back ------------------------------------------------------------------------------------------------ */

static void release(ringcast_reader *reader, const struct ringcast_frame *frame) {
  reader->keeper->held -= frame->bytes;
  show(reader, reader->kept - 1);
  rc_reader_return(reader, frame);
}

static bool is_due(const ringcast_reader *reader, const struct ringcast_kept *kept, uint64_t wanted) {
  return kept->frame.position < wanted ||
         reader->ring.next - kept->frame.position > reader->segment.capacity / 4 ||
         reader->keeper->spilled - kept->spilled > reader->segment.spill.bytes / 4;
}

/* Without the mutex, which who drops may wait for: it is nobody's but the reader's as long as it is held. */
static void own(ringcast_reader *reader, struct ringcast_kept *kept, uint64_t wanted) {
  struct ringcast_frame frame = kept->frame;
  uint32_t state = HELD;
  bool changes = rc_load_acquire(&reader->ring.ring.control->closed) == 0; /* C1 <- C0: else nobody writes any more */
  RC_POINT(OWN);
  if (changes) rc_cow_own(&kept->keeper->cow, kept->offset, kept->bytes);
  /* Release: who drops it from here on frees it. -> the load in drop */
  if (!rc_cas_strong_acq_rel(&kept->state, &state, OWN)) return; /* it was dropped meanwhile */
  RC_POINT(OWNED);
  if (wanted != UINT64_MAX) learn(reader->keeper, false);
  release(reader, &frame);
}

static void take_back(ringcast_reader *reader, struct ringcast_kept *kept) {
  struct rc_keeper *keeper = reader->keeper;
  struct ringcast_frame frame = kept->frame;
  uint64_t bytes = kept->bytes;
  pthread_mutex_lock(&keeper->mutex);
  uint64_t written = forget(kept);
  pthread_mutex_unlock(&keeper->mutex);
  rc_sub_acq_rel(&keeper->holders, 1); /* never the last: the reader is one */
  learn(keeper, written <= bytes / MOST_WRITTEN);
  release(reader, &frame);
}

/* The first that was dropped, or should go. NULL: there is none. */
static struct ringcast_kept *find_due(const ringcast_reader *reader, uint64_t wanted) {
  struct rc_keeper *keeper = reader->keeper;
  pthread_mutex_lock(&keeper->mutex);
  struct ringcast_kept *kept = keeper->first;
  for (; kept; kept = kept->next) {
    uint32_t state = rc_load_acquire(&kept->state); /* <- the exchange in drop */
    if (state == DROPPED || (state == HELD && is_due(reader, kept, wanted))) break;
  }
  pthread_mutex_unlock(&keeper->mutex);
  return kept;
}

void rc_keep_settle(ringcast_reader *reader, uint64_t wanted) {
  struct ringcast_kept *kept;
  while (reader->kept > 0 && (kept = find_due(reader, wanted))) {
    if (rc_load_acquire(&kept->state) == DROPPED) /* <- the exchange in drop */
      take_back(reader, kept);
    else
      own(reader, kept, wanted);
  }
}

void rc_keep_end(ringcast_reader *reader) { rc_keep_settle(reader, UINT64_MAX); }
