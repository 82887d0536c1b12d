/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retaining a frame. The frame stays in spill memory, without a copy, as memory of the reader's own
 * that the caller may read and write for as long as it likes. The frame lies in a copy-on-write
 * mapping of the spill memory (shm/private_map.c) and stays pinned, so the writer does not touch
 * it. For 10 MiB each reader saves 0.6 ms of 0.7.
 *
 * A frame that is retained for long must not block the writer. So a retained frame ends in one of
 * two ways:
 *
 *   RETAINED --ringcast_retained_release, any thread--> RELEASED --the reader's next call: clean,
 * unpin--> gone RETAINED --the reader: unshare, unpin--> UNSHARED --ringcast_retained_release:
 * clean--> gone
 *
 * To unshare a frame makes each of its pages private, which copies the unmodified pages: then the
 * pin ends, and the frame is ordinary private memory. Unsharing takes several times as long as
 * copying the frame at once, so a reader that had to unshare skips some frames, more each time. The
 * reader unshares a frame when the ring has advanced by a quarter of its capacity, when spilled
 * frames of a quarter of the spill memory have come since, or when the writer waits:
 *
 *   writer, out of room                          reader, out of frames
 *   K1  store wanted                             K2  announce the sleep on `not_empty` (E1, E2)
 *   K4  asleep? then load retains, wake (E6)     K3  load wanted: above the cursor? then release or
 *       unshare
 *
 * This is the pattern of an eventcount (ring/eventcount.h) with `not_empty` as event and K1 as
 * condition: either K3 finds the store of K1, or K4 finds the sleeper. A reader that neither waits
 * nor calls blocks the writer, like a reader that does not release a frame; so at most a quarter of
 * the spill memory is RETAINED or RELEASED at a time. A caller that writes to most of its retained
 * pages would be better off with copies, too: the reader finds the modified pages at the release,
 * and treats the frame as if it was retained for too long.
 *
 * The pages of an UNSHARED frame are private, so a later frame in the same place can't be retained:
 * the caller copies it. A hostile writer may place a frame there, or over a retained frame, at any
 * time.
 *
 * A child of fork has the mapping too, but no pins. So every RETAINED frame is unshared before a
 * fork.
 */
#include "channel/retain.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "shm/wait.h"
#include "shm/memory.h"
#include "shm/error.h"

/* A frame ends well if the caller releases it in time, with at most one page in MOST_WRITTEN
 * modified. After a frame that did not, the reader skips LEAST_SKIP frames and more
 * (struct rc_holdoff, shm/wait.h), until WELL frames in a row ended well. */
#define LEAST_SKIP   4u
#define MOST_SKIP    1024u
#define WELL         16u
#define MOST_WRITTEN 4u

_Static_assert(RC_MAX_RETAINED <= RC_MAX_PINNED,
               "the ring's queue has room for the pins of all retained frames");

enum { RETAINED, RELEASED, UNSHARED };

struct ringcast_retained {
  _Atomic uint32_t state;
  struct rc_retainer *retainer;
  struct ringcast_retained *next;
  uint64_t offset, bytes; /* of the frame's pages, in spill memory */
  struct ringcast_frame frame;
  uint64_t spilled; /* the retainer's `spilled` when the frame was retained */
};

struct rc_retainer {
  pthread_mutex_t mutex; /* guards the list, and changes of the pages of its frames */
  struct ringcast_retained *first;
  struct rc_private_map private_map;
  bool broken; /* the mapping can't be made to show the file any more; guarded by the mutex */
  _Atomic uint32_t holders; /* the reader, and each retained frame */
  struct rc_retainer *next; /* the list of all retainers; guarded by its mutex */
  /* For the reader's thread alone. */
  uint64_t held;    /* bytes of spill memory of RETAINED and RELEASED frames */
  uint64_t spilled; /* bytes of all frames in spill memory so far */
  struct rc_holdoff holdoff;
};

/* ---- All retainers, for forks ---------------------------------------------------------------- */

static struct {
  pthread_mutex_t mutex;
  struct rc_retainer *first;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Relaxed: a concurrent ringcast_retained_release leaves the pages unchanged. */
static bool is_retained(struct ringcast_retained *retained) {
  return rc_load_relaxed(&retained->state) == RETAINED;
}

static void before_fork(void) {
  pthread_mutex_lock(&all.mutex);
  for (struct rc_retainer *retainer = all.first; retainer; retainer = retainer->next) {
    pthread_mutex_lock(&retainer->mutex);
    for (struct ringcast_retained *retained = retainer->first; retained; retained = retained->next)
      if (is_retained(retained))
        rc_private_map_unshare(&retainer->private_map, retained->offset, retained->bytes);
  }
}

static void after_fork(void) {
  for (struct rc_retainer *retainer = all.first; retainer; retainer = retainer->next)
    pthread_mutex_unlock(&retainer->mutex);
  pthread_mutex_unlock(&all.mutex);
}

/* Removes a frame from the list and cleans its pages. Under the mutex. Returns how many of its
 * bytes were private. */
static uint64_t remove_frame(struct ringcast_retained *retained) {
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

/* The pins are the parent's; RETAINED frames are unshared now. No reader of the child removes
 * RELEASED frames. */
static void after_fork_in_child(void) {
  for (struct rc_retainer *retainer = all.first; retainer; retainer = retainer->next) {
    rc_private_map_forked(&retainer->private_map);
    for (struct ringcast_retained *retained = retainer->first, *next; retained; retained = next) {
      next = retained->next;
      if (is_retained(retained)) {
        rc_store_relaxed(&retained->state, UNSHARED);             /* relaxed: there is one thread */
      } else if (rc_load_relaxed(&retained->state) == RELEASED) { /* as above */
        remove_frame(retained);
        rc_sub_acq_rel(&retainer->holders,
                       1); /* never the last: the reader is a holder until rc_retainer_put */
      }
    }
  }
  after_fork();
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork_in_child); }

/* ---- Retainers ------------------------------------------------------------------------------- */

struct rc_retainer *rc_retainer_open(int fd, uint64_t bytes) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (fd < 0 || rc_small_page() > RC_SPILL_UNIT) return NULL; /* else frames would share pages */
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

/* The last holder frees the retainer; acq_rel: all use by the other holders came before. */
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
  rc_holdoff_permits(&retainer->holdoff); /* counts this frame, if frames are skipped */
}

static void learn(struct rc_retainer *retainer, bool well) {
  rc_holdoff_learn(&retainer->holdoff, well, LEAST_SKIP, MOST_SKIP, WELL);
}

/* ---- Retaining ------------------------------------------------------------------------------- */

/* Whether no frame of the list uses the pages. Under the mutex. */
static bool are_free(const struct rc_retainer *retainer, uint64_t offset, uint64_t bytes) {
  uint32_t count = 0;
  for (const struct ringcast_retained *retained = retainer->first; retained;
       retained = retained->next, count++)
    if (offset < retained->offset + retained->bytes && retained->offset < offset + bytes)
      return false;
  return count < RC_MAX_RETAINED; /* UNSHARED frames included */
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

static void publish_count(ringcast_reader *reader, uint32_t retained) {
  reader->retained = retained;
  rc_store_relaxed(&reader->ring.own->retains, retained); /* relaxed: K2 publishes it. -> K4 */
}

/* Finds a held frame that can be retained. Trusts the lease, not the descriptor, which the writer
 * may have changed. */
static int find_retainable(ringcast_reader *reader, const struct ringcast_frame *frame,
                           struct rc_ring_frame *found) {
  const struct rc_retainer *retainer = reader->retainer;
  if (rc_ring_lent(&reader->ring, frame->position) != 0)
    return -ENOTSUP; /* a small message, or a group */
  int result = rc_ring_look(&reader->ring, frame->position, found);
  if (result != 0) return result;
  if (found->data != frame->data || found->bytes > frame->bytes) return -EPROTO;
  bool can = retainer && retainer->holdoff.left == 0 && found->spilled &&
             found->bytes == frame->bytes &&
             retainer->held + found->bytes <= reader->segment.spill.bytes / 4;
  return can ? 0 : -ENOTSUP;
}

/* The mapping was not free for this frame. The next frames may do no better. */
static void skip_next(struct rc_retainer *retainer) {
  if (retainer->holdoff.left == 0) retainer->holdoff.left = LEAST_SKIP;
}

static int fail_to_retain(const ringcast_reader *reader, const struct ringcast_frame *frame,
                          int code) {
  switch (code) {
  case -ESTALE: return rc_fail_evicted();
  case -EINVAL: return rc_fail_not_held(frame->position);
  case -EPROTO: return rc_fail_damaged(frame->position, &reader->segment);
  case -ENOMEM: return rc_fail(code, "out of memory");
  default: return rc_fail_as(code, "this frame can't be retained now: copy it");
  }
}

int ringcast_reader_retain(ringcast_reader *reader, const struct ringcast_frame *frame,
                           ringcast_retained **out, void **data) {
  struct rc_retainer *retainer = reader->retainer;
  struct rc_ring_frame found = {0};
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  result = find_retainable(reader, frame, &found);
  struct ringcast_retained *retained = result == 0 ? malloc(sizeof *retained) : NULL;
  if (result == 0 && !retained) result = -ENOMEM;
  if (result == -ENOTSUP && retainer && found.spilled && found.bytes == frame->bytes)
    skip_next(retainer);
  if (result != 0) return fail_to_retain(reader, frame, result);
  uint64_t page = rc_small_page(), end = (found.offset + found.bytes + page - 1) & ~(page - 1);
  *retained = (struct ringcast_retained){
      .retainer = retainer, .frame = *frame, .spilled = retainer->spilled};
  atomic_init(&retained->state, RETAINED);
  retained->offset = found.offset & ~(page - 1);
  retained->bytes = end - retained->offset;
  if (!link_last(retainer, retained)) {
    free(retained);
    skip_next(retainer);
    return fail_to_retain(reader, frame, -ENOTSUP);
  }
  rc_add_acq_rel(&retainer->holders, 1);
  retainer->held += found.bytes;
  rc_ring_pin(&reader->ring, frame->position);
  rc_ring_release(&reader->ring, frame->position); /* the next call reports -ESTALE */
  publish_count(reader, reader->retained + 1);
  RC_POINT(RETAINED);
  *out = retained;
  *data = retainer->private_map.memory.base + found.offset;
  return 0;
}

int ringcast_reader_retains(const ringcast_reader *reader) {
  return reader->retainer && reader->retainer->holdoff.left == 0;
}

void ringcast_retained_release(ringcast_retained *retained) {
  if (!retained) return;
  struct rc_retainer *retainer = retained->retainer;
  uint32_t state = RETAINED;
  /* Release: the caller's accesses come before the writer's. -> the loads in find_due and
   * rc_retain_settle */
  if (rc_cas_strong_acq_rel(&retained->state, &state, RELEASED)) return;
  /* UNSHARED, by the reader without the mutex: its accesses came before. <- the exchange in
   * unshare. The failed exchange above is relaxed. */
  (void)rc_load_acquire(&retained->state);
  pthread_mutex_lock(&retainer->mutex);
  remove_frame(retained);
  pthread_mutex_unlock(&retainer->mutex);
  rc_retainer_put(retainer);
}

/* ---- Releasing and unsharing ----------------------------------------------------------------- */

static void release(ringcast_reader *reader, const struct ringcast_frame *frame) {
  reader->retainer->held -= frame->bytes;
  publish_count(reader, reader->retained - 1);
  rc_reader_return(reader, frame);
}

static bool is_due(const ringcast_reader *reader, const struct ringcast_retained *retained,
                   uint64_t wanted) {
  return retained->frame.position < wanted ||
         reader->ring.next - retained->frame.position > reader->segment.capacity / 4 ||
         reader->retainer->spilled - retained->spilled > reader->segment.spill.bytes / 4;
}

/* Without the mutex, which a concurrent release may wait for: until UNSHARED, only the reader frees
 * the entry. */
static void unshare(ringcast_reader *reader, struct ringcast_retained *retained, uint64_t wanted) {
  struct ringcast_frame frame = retained->frame;
  uint32_t state = RETAINED;
  bool changes = rc_load_acquire(&reader->ring.view.control->closed) ==
                 0; /* C1 <- C0: a closed ring stays as it is */
  RC_POINT(UNSHARE);
  if (changes)
    rc_private_map_unshare(&retained->retainer->private_map, retained->offset, retained->bytes);
  /* Release: from here on ringcast_retained_release frees the entry. -> its load */
  if (!rc_cas_strong_acq_rel(&retained->state, &state, UNSHARED))
    return; /* the caller released it meanwhile */
  RC_POINT(UNSHARED);
  if (wanted != UINT64_MAX) learn(reader->retainer, false);
  release(reader, &frame);
}

static void finish_release(ringcast_reader *reader, struct ringcast_retained *retained) {
  struct rc_retainer *retainer = reader->retainer;
  struct ringcast_frame frame = retained->frame;
  uint64_t bytes = retained->bytes;
  pthread_mutex_lock(&retainer->mutex);
  uint64_t written = remove_frame(retained);
  pthread_mutex_unlock(&retainer->mutex);
  rc_sub_acq_rel(&retainer->holders, 1); /* never the last: the reader is a holder */
  learn(retainer, written <= bytes / MOST_WRITTEN);
  release(reader, &frame);
}

/* The first frame that is RELEASED, or RETAINED for too long. NULL: there is none. */
static struct ringcast_retained *find_due(const ringcast_reader *reader, uint64_t wanted) {
  struct rc_retainer *retainer = reader->retainer;
  pthread_mutex_lock(&retainer->mutex);
  struct ringcast_retained *retained = retainer->first;
  for (; retained; retained = retained->next) {
    uint32_t state =
        rc_load_acquire(&retained->state); /* <- the exchange in ringcast_retained_release */
    if (state == RELEASED || (state == RETAINED && is_due(reader, retained, wanted))) break;
  }
  pthread_mutex_unlock(&retainer->mutex);
  return retained;
}

void rc_retain_settle(ringcast_reader *reader, uint64_t wanted) {
  struct ringcast_retained *retained;
  while (reader->retained > 0 && (retained = find_due(reader, wanted))) {
    if (rc_load_acquire(&retained->state) ==
        RELEASED) /* <- the exchange in ringcast_retained_release */
      finish_release(reader, retained);
    else unshare(reader, retained, wanted);
  }
}
