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
 *   the caller is first   RETAINED --ringcast_retained_release, any thread--> RELEASED
 *                         --the reader's next call: clean, unpin--> gone
 *   the reader is first   RETAINED --unshare, unpin--> UNSHARED
 *                         --ringcast_retained_release: clean--> gone
 *
 * To unshare a frame makes each of its pages private, which copies the unmodified pages: then the
 * pin ends, and the frame is ordinary private memory. Unsharing takes several times as long as
 * copying the frame at once, so a reader that had to unshare skips some frames, more each time. The
 * reader unshares a frame when the ring has advanced by a quarter of its capacity, when spilled
 * frames of a quarter of the spill memory have come since, or when the writer waits:
 *
 *   writer, out of room                          reader, out of frames
 *   K1  store wanted                             K2  announce the sleep on `not_empty` (E1, E2)
 *   K4  asleep? then load retains, wake (E6)     K3  load wanted: above the cursor? then release
 *                                                    or unshare
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
#include "channel/reader.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "channel/channel.h"
#include "shm/error.h"
#include "shm/memory.h"
#include "shm/wait.h"

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
    struct ringcast_retained *retained = retainer->first;
    while (retained) {
      struct ringcast_retained *next = retained->next;
      const uint32_t state = rc_load_relaxed(&retained->state); /* relaxed: there is one thread */
      if (state == RETAINED) rc_store_relaxed(&retained->state, UNSHARED); /* relaxed: as above */
      if (state == RELEASED) {
        remove_frame(retained);
        /* Never the last: the reader is a holder until rc_retainer_put. */
        rc_sub_acq_rel(&retainer->holders, 1);
      }
      retained = next;
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
  rc_holdoff_try(&retainer->holdoff); /* counts this frame, if frames are skipped */
}

static void learn(struct rc_retainer *retainer, bool well) {
  rc_holdoff_learn(&retainer->holdoff, well, LEAST_SKIP, MOST_SKIP, WELL);
}

/* ---- Retaining ------------------------------------------------------------------------------- */

/* Whether no frame of the list uses the pages. Under the mutex. */
static bool are_free(const struct rc_retainer *retainer, uint64_t offset, uint64_t bytes) {
  uint32_t count = 0;
  for (const struct ringcast_retained *retained = retainer->first; retained;
       retained = retained->next) {
    if (offset < retained->offset + retained->bytes && retained->offset < offset + bytes)
      return false;
    count++;
  }
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

/* This frame could not be retained; the next ones may do no better. */
static void skip_next(struct rc_retainer *retainer) {
  if (retainer->holdoff.left == 0) retainer->holdoff.left = LEAST_SKIP;
}

/* Finds a held frame that can be retained. Trusts the lease, not the descriptor, which the writer
 * may have changed. */
static int find_retainable(ringcast_reader *reader, const struct ringcast_frame *frame,
                           struct rc_ring_frame *found) {
  struct rc_retainer *retainer = reader->retainer;
  /* A small message, or a group. */
  if (rc_ring_lent(&reader->ring, frame->position) != 0) return -ENOTSUP;
  int result = rc_ring_look(&reader->ring, frame->position, found);
  if (result != 0) return result;
  if (found->data != frame->data || found->bytes > frame->bytes) return -EPROTO;
  if (!retainer || !found->spilled || found->bytes != frame->bytes) return -ENOTSUP;
  if (retainer->holdoff.left > 0) return -ENOTSUP;
  if (retainer->held + found->bytes <= reader->segment.spill.bytes / 4) return 0;
  skip_next(retainer);
  return -ENOTSUP;
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

/* An entry for the frame, with the pages that it touches. NULL: out of memory. */
static struct ringcast_retained *make_entry(struct rc_retainer *retainer,
                                            const struct ringcast_frame *frame,
                                            const struct rc_ring_frame *found) {
  const uint64_t page = rc_small_page();
  const uint64_t end = (found->offset + found->bytes + page - 1) & ~(page - 1);
  struct ringcast_retained *retained = malloc(sizeof *retained);
  if (!retained) return NULL;
  *retained = (struct ringcast_retained){
      .retainer = retainer, .frame = *frame, .spilled = retainer->spilled};
  atomic_init(&retained->state, RETAINED);
  retained->offset = found->offset & ~(page - 1);
  retained->bytes = end - retained->offset;
  return retained;
}

int ringcast_reader_retain(ringcast_reader *reader, const struct ringcast_frame *frame,
                           ringcast_retained **out, void **data) {
  struct rc_retainer *retainer = reader->retainer;
  struct rc_ring_frame found;
  int result = rc_check_fork(reader->forks);
  if (result != 0) return result;
  result = find_retainable(reader, frame, &found);
  if (result != 0) return fail_to_retain(reader, frame, result);
  struct ringcast_retained *retained = make_entry(retainer, frame, &found);
  if (!retained) return fail_to_retain(reader, frame, -ENOMEM);
  if (!link_last(retainer, retained)) { /* the mapping is not free for this frame */
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
   * rc_retain_end */
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

/* The caller of rc_retain_end unpins the frame. */
static void forget(ringcast_reader *reader, const struct ringcast_frame *frame) {
  reader->retainer->held -= frame->bytes;
  publish_count(reader, reader->retained - 1);
}

static bool is_due(const ringcast_reader *reader, const struct ringcast_retained *retained,
                   uint64_t wanted) {
  return retained->frame.position < wanted ||
         reader->ring.next - retained->frame.position > reader->segment.capacity / 4 ||
         reader->retainer->spilled - retained->spilled > reader->segment.spill.bytes / 4;
}

/* Without the mutex, which a concurrent release may wait for: until UNSHARED, only the reader frees
 * the entry. False: the caller has released it meanwhile. */
static bool unshare(ringcast_reader *reader, struct ringcast_retained *retained) {
  uint32_t state = RETAINED;
  RC_POINT(UNSHARE);
  /* C1 <- C0: a closed ring stays as it is. */
  if (rc_load_acquire(&reader->ring.view.control->closed) == 0)
    rc_private_map_unshare(&retained->retainer->private_map, retained->offset, retained->bytes);
  /* Release: from here on ringcast_retained_release frees the entry. -> its load */
  if (!rc_cas_strong_acq_rel(&retained->state, &state, UNSHARED)) return false;
  RC_POINT(UNSHARED);
  return true;
}

/* The caller has released the frame: frees the entry, and learns how well it went. */
static void finish_release(struct rc_retainer *retainer, struct ringcast_retained *retained) {
  const uint64_t bytes = retained->bytes;
  pthread_mutex_lock(&retainer->mutex);
  const uint64_t written = remove_frame(retained);
  pthread_mutex_unlock(&retainer->mutex);
  rc_sub_acq_rel(&retainer->holders, 1); /* never the last: the reader is a holder */
  learn(retainer, written <= bytes / MOST_WRITTEN);
}

/* <- the exchange in ringcast_retained_release */
static uint32_t load_state(struct ringcast_retained *retained) {
  return rc_load_acquire(&retained->state);
}

/* The first frame that is RELEASED, or RETAINED for too long. NULL: there is none. */
static struct ringcast_retained *find_due(const ringcast_reader *reader, uint64_t wanted) {
  struct rc_retainer *retainer = reader->retainer;
  pthread_mutex_lock(&retainer->mutex);
  struct ringcast_retained *retained = retainer->first;
  for (; retained; retained = retained->next) {
    const uint32_t state = load_state(retained);
    if (state == RELEASED) break;
    if (state == RETAINED && is_due(reader, retained, wanted)) break;
  }
  pthread_mutex_unlock(&retainer->mutex);
  return retained;
}

bool rc_retain_end(ringcast_reader *reader, uint64_t wanted, struct ringcast_frame *out) {
  struct rc_retainer *retainer = reader->retainer;
  while (reader->retained > 0) {
    struct ringcast_retained *retained = find_due(reader, wanted);
    if (!retained) return false;
    *out = retained->frame;
    if (load_state(retained) == RELEASED) finish_release(retainer, retained);
    else if (!unshare(reader, retained)) continue; /* released meanwhile: the next look finds it */
    else if (wanted != UINT64_MAX) learn(retainer, false);
    forget(reader, out);
    return true;
  }
  return false;
}
