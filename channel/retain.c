/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping a frame: it is not copied out of spill memory but stays there, as memory of the reader's own, to be read and
 * written to for as long as one likes. It lies in a mapping of the spill memory that is copy-on-write
 * (shm/private_map.h), and the frame stays held, so the writer does not touch it. Of 10 MiB that saves each reader 0.6
 * ms of 0.7.
 *
 * Who keeps a frame for long must not hold the ring back. So a kept frame has two ends:
 *
 *   HELD --ringcast_retained_release, any thread--> DROPPED --the reader's next call: clean, release--> gone
 *   HELD --the reader: own, release--> OWN --ringcast_retained_release: clean--> gone
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
 * which is an event's pattern (ring/eventcount.h), with `data` for the event and K1 for the thing: either K3 sees what
 * K1 stored or K4 finds the sleeper. A reader that is neither waiting nor calls anything holds the ring back, as one
 * that does not release a frame does; so at most a quarter of the spill memory is held or dropped at a time. Who writes
 * to most of what is kept is better off with a copy, too: that is seen when it was dropped, and counts as kept for
 * long.
 *
 * While the frame is OWN its pages are private, so no other frame that comes to lie there can be kept: it is copied. A
 * hostile writer's frame may lie there, or overlap with one that is held, at any time.
 *
 * A child of fork has the mapping too, and no hold on the ring. So before a fork all that is held is owned.
 */
#include "channel/retain.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "shm/private_map.h"
#include "shm/error.h"

/* Frames that are not retained after one that had to be unshared, twice as many after each further one, until WELL
 * frames in a row were released in time. */
#define LEAST_SKIP   4u
#define MOST_SKIP    1024u
#define WELL         16u
#define MOST_WRITTEN 4u /* ... with no more than one page in so many written to */

enum { HELD, DROPPED, OWN };

struct ringcast_retained {
  _Atomic uint32_t state;
  struct rc_retainer *retainer;
  struct ringcast_retained *next;
  uint64_t offset, bytes; /* of its pages */
  struct ringcast_frame frame;
  uint64_t spilled; /* the keeper's, then */
};

struct rc_retainer {
  pthread_mutex_t mutex; /* guards the list, and what is done to pages of what is in it */
  struct ringcast_retained *first;
  struct rc_private_map private_map;
  bool broken;              /* it can't be made to show the file any more; guarded by the mutex */
  _Atomic uint32_t holders; /* the reader, and each that is kept */
  struct rc_retainer *next; /* of all; guarded by the mutex of that */
  /* The reader's own. */
  uint64_t held;    /* bytes of spill memory that are held or dropped */
  uint64_t spilled; /* bytes that have come in spill memory */
  uint32_t skip, skips, well;
};

/* ---- All of them, for forks ------------------------------------------------------------------------------------- */

static struct {
  pthread_mutex_t mutex;
  struct rc_retainer *first;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Relaxed: a drop that comes now leaves the pages as they are. */
static bool is_held(struct ringcast_retained *retained) { return rc_load_relaxed(&retained->state) == HELD; }

static void before_fork(void) {
  pthread_mutex_lock(&all.mutex);
  for (struct rc_retainer *retainer = all.first; retainer; retainer = retainer->next) {
    pthread_mutex_lock(&retainer->mutex);
    for (struct ringcast_retained *retained = retainer->first; retained; retained = retained->next)
      if (is_held(retained)) rc_private_map_unshare(&retainer->private_map, retained->offset, retained->bytes);
  }
}

static void after_fork(void) {
  for (struct rc_retainer *retainer = all.first; retainer; retainer = retainer->next)
    pthread_mutex_unlock(&retainer->mutex);
  pthread_mutex_unlock(&all.mutex);
}

/* Under the mutex, for the last time. Returns how many of its bytes were private. */
static uint64_t forget(struct ringcast_retained *retained) {
  struct rc_retainer *retainer = retained->retainer;
  struct ringcast_retained **link = &retainer->first;
  uint64_t written = 0;
  if (!rc_private_map_clean(&retainer->private_map, retained->offset, retained->bytes, &written))
    retainer->broken = true;
  while (*link != retained) link = &(*link)->next;
  *link = retained->next;
  free(retained);
  return written;
}

/* What was held is the parent's to give back; here it has been owned. What was dropped nobody else forgets here. */
static void after_fork_in_child(void) {
  for (struct rc_retainer *retainer = all.first; retainer; retainer = retainer->next) {
    rc_private_map_forked(&retainer->private_map);
    for (struct ringcast_retained *retained = retainer->first, *next; retained; retained = next) {
      next = retained->next;
      if (is_held(retained)) {
        rc_store_relaxed(&retained->state, OWN);                 /* relaxed: there is one thread */
      } else if (rc_load_relaxed(&retained->state) == DROPPED) { /* as before */
        forget(retained);
        rc_sub_acq_rel(&retainer->holders, 1); /* never the last: the reader is one, until it has settled all */
      }
    }
  }
  after_fork();
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork_in_child); }

/* ---- Keepers ---------------------------------------------------------------------------------------------------- */

struct rc_retainer *rc_retainer_open(int fd, uint64_t bytes) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (fd < 0 || rc_small_page() > RC_SPILL_UNIT) return NULL; /* else frames share pages */
  struct rc_retainer *retainer = calloc(1, sizeof *retainer);
  if (!retainer) return NULL;
  if (rc_private_map_open(fd, bytes, &retainer->private_map) != 0) {
    free(retainer);
    return NULL;
  }
  pthread_once(&once, watch_forks);
  pthread_mutex_init(&retainer->mutex, NULL);
  atomic_init(&retainer->holders, 1);
  pthread_mutex_lock(&all.mutex);
  retainer->next = all.first;
  all.first = retainer;
  pthread_mutex_unlock(&all.mutex);
  return retainer;
}

/* The last one: what the others did with the memory was before. */
void rc_retainer_put(struct rc_retainer *retainer) {
  if (!retainer || rc_sub_acq_rel(&retainer->holders, 1) != 1) return;
  pthread_mutex_lock(&all.mutex);
  struct rc_retainer **link = &all.first;
  while (*link != retainer) link = &(*link)->next;
  *link = retainer->next;
  pthread_mutex_unlock(&all.mutex);
  rc_private_map_close(&retainer->private_map);
  pthread_mutex_destroy(&retainer->mutex);
  free(retainer);
}

void rc_retainer_count(struct rc_retainer *retainer, uint64_t bytes) {
  retainer->spilled += bytes;
  retainer->skip -= retainer->skip > 0;
}

static void learn(struct rc_retainer *retainer, bool well) {
  if (well) {
    if (++retainer->well >= WELL) retainer->skips = 0;
    return;
  }
  retainer->well = 0;
  retainer->skips = retainer->skips == 0 ? LEAST_SKIP : retainer->skips < MOST_SKIP ? 2 * retainer->skips : MOST_SKIP;
  retainer->skip = retainer->skips;
}

/* ---- Keeping ---------------------------------------------------------------------------------------------------- */

/* Whether those pages are nobody's. Under the mutex. */
static bool are_free(const struct rc_retainer *retainer, uint64_t offset, uint64_t bytes) {
  uint32_t count = 0;
  for (const struct ringcast_retained *retained = retainer->first; retained; retained = retained->next, count++)
    if (offset < retained->offset + retained->bytes && retained->offset < offset + bytes) return false;
  return count < RC_MAX_RETAINED; /* those that are their own included */
}

/* The list is in the order of the frames. */
static bool link_last(struct rc_retainer *retainer, struct ringcast_retained *retained) {
  pthread_mutex_lock(&retainer->mutex);
  bool linked = !retainer->broken && are_free(retainer, retained->offset, retained->bytes) &&
                rc_private_map_is_clean(&retainer->private_map, retained->offset, retained->bytes);
  if (linked) {
    struct ringcast_retained **link = &retainer->first;
    while (*link) link = &(*link)->next;
    *link = retained;
  }
  pthread_mutex_unlock(&retainer->mutex);
  return linked;
}

static void show(ringcast_reader *reader, uint32_t retained) {
  reader->retained = retained;
  rc_store_relaxed(&reader->ring.own->retains, retained); /* relaxed: K2 publishes it. -> K4 */
}

/* Looks at a frame that is held. What was lent is what is kept, whatever the writer has made of its note since. */
static int look(ringcast_reader *reader, const struct ringcast_frame *frame, struct rc_ring_frame *found) {
  const struct rc_retainer *retainer = reader->retainer;
  int result = rc_ring_look(&reader->ring, frame->position, found);
  if (result != 0) return result;
  if (found->data != frame->data || found->bytes > frame->bytes) return -EPROTO;
  bool can = retainer && retainer->skip == 0 && found->spilled && found->bytes == frame->bytes &&
             retainer->held + found->bytes <= reader->segment.spill.bytes / 4;
  return can ? 0 : -ENOTSUP;
}

/* The memory is not to be had now.  Whether it is for the next frame is not known. */
static void skip_some(struct rc_retainer *retainer) {
  if (retainer->skip == 0) retainer->skip = LEAST_SKIP;
}

static int fail_to_retain(const ringcast_reader *reader, const struct ringcast_frame *frame, int code) {
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

int ringcast_reader_retain(ringcast_reader *reader, const struct ringcast_frame *frame, ringcast_retained **out,
                           void **data) {
  struct rc_retainer *retainer = reader->retainer;
  struct rc_ring_frame found = {0};
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  result = look(reader, frame, &found);
  struct ringcast_retained *retained = result == 0 ? malloc(sizeof *retained) : NULL;
  if (result == 0 && !retained) result = -ENOMEM;
  if (result == -ENOTSUP && retainer && found.spilled && found.bytes == frame->bytes) skip_some(retainer);
  if (result != 0) return fail_to_retain(reader, frame, result);
  uint64_t page = rc_small_page(), end = (found.offset + found.bytes + page - 1) & ~(page - 1);
  *retained = (struct ringcast_retained){.retainer = retainer, .frame = *frame, .spilled = retainer->spilled};
  atomic_init(&retained->state, HELD);
  retained->offset = found.offset & ~(page - 1);
  retained->bytes = end - retained->offset;
  if (!link_last(retainer, retained)) {
    free(retained);
    skip_some(retainer);
    return fail_to_retain(reader, frame, -ENOTSUP);
  }
  rc_add_acq_rel(&retainer->holders, 1);
  retainer->held += found.bytes;
  rc_ring_pin(&reader->ring, frame->position);
  rc_ring_release(&reader->ring, frame->position); /* -ESTALE is for the next call to tell */
  show(reader, reader->retained + 1);
  RC_POINT(RETAINED);
  *out = retained;
  *data = retainer->private_map.memory.base + found.offset;
  return 0;
}

int ringcast_reader_retains(const ringcast_reader *reader) { return reader->retainer && reader->retainer->skip == 0; }

void ringcast_retained_release(ringcast_retained *retained) {
  if (!retained) return;
  struct rc_retainer *retainer = retained->retainer;
  uint32_t state = HELD;
  /* Release: what the caller did with the memory, it did before the writer may have it again. -> the load in settle */
  if (rc_cas_strong_acq_rel(&retained->state, &state, DROPPED)) return;
  /* It is OWN, and was made so outside the mutex: what the reader did with it came before. <- the exchange in own. The
   * exchange above has failed, and is relaxed then. */
  (void)rc_load_acquire(&retained->state);
  pthread_mutex_lock(&retainer->mutex);
  forget(retained);
  pthread_mutex_unlock(&retainer->mutex);
  rc_retainer_put(retainer);
}

/* ---- Giving back ------------------------------------------------------------------------------------------------ */

static void release(ringcast_reader *reader, const struct ringcast_frame *frame) {
  reader->retainer->held -= frame->bytes;
  show(reader, reader->retained - 1);
  rc_reader_return(reader, frame);
}

static bool is_due(const ringcast_reader *reader, const struct ringcast_retained *retained, uint64_t wanted) {
  return retained->frame.position < wanted ||
         reader->ring.next - retained->frame.position > reader->segment.capacity / 4 ||
         reader->retainer->spilled - retained->spilled > reader->segment.spill.bytes / 4;
}

/* Without the mutex, which who drops may wait for: it is nobody's but the reader's as long as it is held. */
static void own(ringcast_reader *reader, struct ringcast_retained *retained, uint64_t wanted) {
  struct ringcast_frame frame = retained->frame;
  uint32_t state = HELD;
  bool changes = rc_load_acquire(&reader->ring.ring.control->closed) == 0; /* C1 <- C0: else nobody writes any more */
  RC_POINT(UNSHARE);
  if (changes) rc_private_map_unshare(&retained->retainer->private_map, retained->offset, retained->bytes);
  /* Release: who drops it from here on frees it. -> the load in drop */
  if (!rc_cas_strong_acq_rel(&retained->state, &state, OWN)) return; /* it was dropped meanwhile */
  RC_POINT(UNSHARED);
  if (wanted != UINT64_MAX) learn(reader->retainer, false);
  release(reader, &frame);
}

static void take_back(ringcast_reader *reader, struct ringcast_retained *retained) {
  struct rc_retainer *retainer = reader->retainer;
  struct ringcast_frame frame = retained->frame;
  uint64_t bytes = retained->bytes;
  pthread_mutex_lock(&retainer->mutex);
  uint64_t written = forget(retained);
  pthread_mutex_unlock(&retainer->mutex);
  rc_sub_acq_rel(&retainer->holders, 1); /* never the last: the reader is one */
  learn(retainer, written <= bytes / MOST_WRITTEN);
  release(reader, &frame);
}

/* The first that was dropped, or should go. NULL: there is none. */
static struct ringcast_retained *find_due(const ringcast_reader *reader, uint64_t wanted) {
  struct rc_retainer *retainer = reader->retainer;
  pthread_mutex_lock(&retainer->mutex);
  struct ringcast_retained *retained = retainer->first;
  for (; retained; retained = retained->next) {
    uint32_t state = rc_load_acquire(&retained->state); /* <- the exchange in drop */
    if (state == DROPPED || (state == HELD && is_due(reader, retained, wanted))) break;
  }
  pthread_mutex_unlock(&retainer->mutex);
  return retained;
}

void rc_retain_settle(ringcast_reader *reader, uint64_t wanted) {
  struct ringcast_retained *retained;
  while (reader->retained > 0 && (retained = find_due(reader, wanted))) {
    if (rc_load_acquire(&retained->state) == DROPPED) /* <- the exchange in drop */
      take_back(reader, retained);
    else own(reader, retained, wanted);
  }
}

void rc_retain_end(ringcast_reader *reader) { rc_retain_settle(reader, UINT64_MAX); }
