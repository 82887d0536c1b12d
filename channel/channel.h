/* SPDX-License-Identifier: Apache-2.0 */
/* The structs behind the public handles, and what the files of channel/ share. */
#ifndef RC_CHANNEL_CHANNEL_H
#define RC_CHANNEL_CHANNEL_H

#include "channel/backoff.h"
#include "channel/probe.h"
#include "ring/estimate.h"
#include "ring/ring.h"
#include "ring/spill.h"
#include "ringcast/estimate.h"
#include "ringcast/ringcast.h"
#include "shm/memory.h"
#include "shm/poller.h"
#include "shm/segment.h"
#include "shm/wait.h"

/* Which readers are dead or too slow, and what follows; see liveness.c. */
#define RC_MAX_DEPARTED 64u
struct rc_liveness {
  uint32_t on_death, on_slow; /* enum ringcast_policy */
  int64_t slow_ns;
  int64_t since;    /* when the first reserve found no room, until a reserve succeeds; 0: no reserve
                       waits */
  uint64_t wanted;  /* the position that no cursor may be below, at `since` */
  uint64_t tail;    /* the ring's, at `since`; a successful reserve changes the tail or `open` */
  bool open;        /* whether a reservation was open, at `since` */
  int unknown;      /* in this wait: why nothing tells whether `blocker` lives; 0: it was told */
  int64_t checked;  /* when all other readers were last checked */
  uint64_t joining; /* the owner word of the first joining reader */
  int64_t joining_since;    /* when the word in `joining` was first seen */
  bool waits;               /* a call has waited since `since`, and not only tried */
  uint64_t waited_ns;       /* in all such calls */
  int32_t blocker_pid;      /* the process of the reader in the way at the first such call */
  struct rc_poller *poller; /* watches all readers; NULL until ringcast_writer_check or _fd */
  uint32_t first,
      count; /* the queue of departed readers that ringcast_writer_check has yet to report */
  struct ringcast_peer queue[RC_MAX_DEPARTED];
};

/* What another part has attached to a handle, and how to end it before the handle. `detach` NULL:
 * nothing. */
struct rc_attachment {
  void (*detach)(void *context);
  void *context;
};

static inline void rc_detach(struct rc_attachment *attachment) {
  void (*detach)(void *) = attachment->detach;
  attachment->detach = NULL;
  if (detach) detach(attachment->context);
}

/* The open reservation, if its size was an estimate. */
struct rc_estimated {
  bool open; /* false: no reservation is open, or the caller named the size */
  bool grew;
  uint32_t tag;
  uint64_t bytes; /* reserved */
};

struct ringcast_writer {
  struct rc_ring_writer ring;
  uint64_t ring_frame; /* the largest payload of the ring; larger frames go through spill memory */
  bool is_large; /* the open reservation lies in spill memory: spill.is_open, on a line in use */
  uint64_t past_cache; /* ringcast_writer_send writes a payload of so many bytes past the cache */
  struct rc_estimated estimated;   /* close to is_large: every commit looks */
  struct rc_attachment attachment; /* ended by close */
  struct rc_segment segment;
  struct rc_waiter waiter;  /* for room */
  struct rc_poller *poller; /* waits for room; NULL until ringcast_writer_room_fd */
  uint64_t published;       /* the position wanted last; any peer can store the shared word */
  uint32_t announced;       /* for the descriptor: the event's word, and ... */
  int64_t settled_at;       /* ... when E9 is due; 0: `published` has changed since */
  struct rc_watch blocker;  /* the reader that blocks the writer, and ... */
  uint64_t blocker_owner;   /* ... its owner word; 0: no reader yet */
  uint64_t wakes;           /* also in the shared counts */
  uint32_t forks;           /* rc_fork_count() of the process that made the handle */
  bool spill_lacks; /* the last large -EAGAIN lacked spill memory; false: room in the ring */
  uint64_t looked;  /* the ring's limit when spill memory was last trimmed */
  struct rc_backing backing;
  struct rc_spill spill;
  char handle[RC_HANDLE_MAX];
  struct rc_liveness liveness; /* the last two are large, and the hot path does not use them */
  struct rc_estimates estimates;
};

struct ringcast_reader {
  struct rc_ring_reader ring;
  struct rc_segment segment;
  struct rc_waiter waiter; /* for a frame */
  struct rc_backoff backoff;
  struct rc_watch writer;
  struct rc_poller *poller; /* NULL until ringcast_reader_fd */
  struct rc_backing_view view;
  struct rc_retainer *retainer;    /* NULL: this reader retains nothing */
  uint32_t retained;               /* frames that are retained and still pinned */
  struct rc_attachment attachment; /* ended by leave and close */
  uint64_t wakes;
  uint32_t forks;
};

static inline struct rc_ring rc_segment_ring(const struct rc_segment *segment) {
  return (struct rc_ring){.control = rc_segment_control(segment),
                          .data = segment->data.base,
                          .capacity = segment->capacity,
                          .spill = segment->spill.base,
                          .spill_bytes = segment->spill.bytes,
                          .slots = segment->slots};
}

/* The largest payload of the ring and its spill memory. */
uint64_t rc_max_frame(const struct rc_segment *segment);

/* Reserves or grows, in spill memory if the ring is too small, and gives idle spill memory back
 * (backing.excess). Returns as rc_ring_reserve, or as rc_backing_provide. */
int rc_writer_try_large(ringcast_writer *writer, uint64_t bytes, bool grow, void **out);

static inline int rc_writer_try_reserve(ringcast_writer *writer, uint64_t bytes, bool grow,
                                        void **out) {
  if (bytes > writer->ring_frame || writer->is_large || writer->backing.excess != 0)
    return rc_writer_try_large(writer, bytes, grow, out);
  return grow ? rc_ring_grow(&writer->ring, bytes, out)
              : rc_ring_reserve(&writer->ring, bytes, out);
}

/* The slow path of ringcast_writer_reserve, and ringcast_writer_grow. */
int rc_writer_reserve_slowly(ringcast_writer *writer, size_t bytes, int64_t timeout_ns, bool grow,
                             struct ringcast_span *out);

/* ---- Estimated reservations (estimate.c) ----------------------------------------------------- */

/* The reservation, made by estimate, is committed with `bytes`: learns the size, and counts. */
void rc_writer_learn(ringcast_writer *writer, size_t bytes);

/* After -EAGAIN: there is room once no cursor is below this position. */
uint64_t rc_writer_wanted(const ringcast_writer *writer, uint64_t bytes);

static inline bool rc_writer_is_open(const ringcast_writer *writer) { return writer->ring.open; }

/* The payload of the open reservation in spill memory. */
const void *rc_writer_spilled(const ringcast_writer *writer);

/* Commits or aborts the open reservation in spill memory. Returns as rc_spill_commit. */
int rc_writer_commit_large(ringcast_writer *writer, uint64_t bytes, uint16_t kind);
void rc_writer_abort_large(ringcast_writer *writer);

int rc_fail_evicted(void);
int rc_fail_not_held(uint64_t position);
int rc_fail_damaged(uint64_t position, const struct rc_segment *segment);
/* A wait for the frame at `position` has ended with `code`. */
int rc_fail_no_frame(int code, uint64_t position, const struct rc_segment *segment);
/* -ENOBUFS: the poller's function gave `code`. Closes the poller and sets *poller to NULL. */
int rc_fail_descriptor(struct rc_poller **poller, int code);
/* rc_poller_open gave `code`. No thread: -ENOMEM, as -EAGAIN would mean "not now". */
int rc_fail_no_descriptor(int code);
/* rc_process_look gave `code` for whom the text names. */
int rc_fail_unknown(int code, const char *whom);
int rc_fail_unknown_writer(int code, const struct rc_segment *segment);

/* Removes the last pin of a frame without a lease, and counts the frame as released. */
void rc_reader_return(ringcast_reader *reader, const struct ringcast_frame *frame);

/* Wakes sleeping readers. Returns 0. */
int rc_writer_wake(ringcast_writer *writer);

/* Adds to a count with one writer. Relaxed: statistics, no other data depends on the value. */
static inline void rc_count(_Atomic uint64_t *count, uint64_t more) {
  rc_store_relaxed(count, rc_load_relaxed(count) + more);
}

/* Counts committed or released frames. The counts share the line of the tail or cursor, which this
 * CPU owns. */
static inline void rc_count_frames(struct rc_counts *counts, uint64_t frames, uint64_t bytes) {
  rc_count(&counts->frames, frames);
  rc_count(&counts->bytes, bytes);
}

static inline void rc_count_frame(struct rc_counts *counts, uint64_t bytes) {
  rc_count_frames(counts, 1, bytes);
}

/* After the commit of a frame of `bytes` in the ring: counts `frames` and `payload` bytes, and
 * prepares the next frame. Whether readers sleep: then rc_writer_wake follows. */
static inline bool rc_writer_published(ringcast_writer *writer, uint64_t frames, uint64_t payload,
                                       uint64_t bytes) {
  struct rc_control *control = writer->ring.view.control;
  rc_count_frames(&control->counts, frames, payload);
  RC_PROBE3(commit, writer->handle, writer->ring.tail, payload);
  bool asleep = rc_eventcount_is_asleep(&control->not_empty);
  rc_ring_zero_ahead(&writer->ring, bytes);
  return asleep;
}

/* Waits, and updates the shared counts and histogram of the waiting participant. */
int rc_wait_counted(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t timeout_ns,
                    struct rc_counts *counts, struct rc_histogram *histogram);

/* Counts a wait for room, of which the waiter's last wait was a part. */
void rc_count_wait_for_room(ringcast_writer *writer, uint64_t sleeps);

/* The text of -EDEADLK. */
int rc_fail_shared(void);

/* Stands in `forks` after a handle has left its ring; no process reaches so many forks. The
 * comparison that finds a handle from before a fork finds a left handle too, at no cost for the hot
 * path. */
#define RC_LEFT UINT32_MAX

/* 0, or -ECHILD with its text; -EINVAL: RC_LEFT. */
int rc_check_fork(uint32_t forks);

/* As rc_check_fork; -EINVAL for an invalid timeout. */
int rc_check_wait(uint32_t forks, int64_t timeout_ns);

/* 0, or -EINVAL with its text for an invalid spin time. */
int rc_check_spin(int64_t spin_ns);

/* rc_process_look for the process that an owner word names. */
static inline int rc_owner_look(uint64_t owner) {
  return rc_process_look((int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK);
}

/* For whom an error of the look is the same as a living process: those that free what only the dead
 * leave. */
static inline bool rc_owner_is_dead(uint64_t owner) {
  return rc_owner_look(owner) == RC_PROCESS_ENDED;
}

/* How long ago, by a time that another process wrote; 0 for a time to come: the process may be
 * hostile, or its clock that of another time namespace. */
static inline uint64_t rc_ns_since(int64_t time) {
  uint64_t now = (uint64_t)rc_now_ns(), then = (uint64_t)time;
  return then < now ? now - then : 0;
}

/* The writer has been waiting since `since` until no cursor is below `below`, and all readers have
 * taken the frames below `due`. */
struct rc_blocked {
  int64_t since;
  uint64_t below, due;
  uint64_t tail; /* the ring's: a reader can't have taken more */
};

/* Whether the reader in a slot is in the way. */
static inline bool rc_slot_blocks(const struct rc_ring *ring, uint32_t index,
                                  const struct rc_blocked *blocked) {
  const struct rc_slot *slot = &ring->control->slots[index];
  uint64_t cursor = rc_load_acquire(&slot->cursor); /* <- A1 */
  if (cursor < blocked->below) return true;
  uint64_t taken = rc_load_relaxed(&slot->taken); /* relaxed: only counted */
  bool has_taken = taken >= blocked->due && taken <= blocked->tail;
  return cursor < blocked->due && !has_taken;
}

/* Copies slot `index`; false: the slot is free. `blocked` NULL: the writer does not wait, or that
 * is unknown. */
bool rc_peer_read(const struct rc_ring *ring, uint32_t index, uint64_t tail,
                  const struct rc_blocked *blocked, struct ringcast_peer *out);

/* Fills up to `capacity` peers, and returns their number. */
int rc_peers_read(const struct rc_ring *ring, uint64_t tail, const struct rc_blocked *blocked,
                  struct ringcast_peer *peers, uint32_t capacity);

/* Info and stats for the public functions of writer, reader and tap. Both respect the `size` of the
 * caller's struct (shm/options.h). */
int rc_info_write(const struct rc_segment *segment, uint64_t tail, const struct rc_waiter *waiter,
                  struct ringcast_info *out);
struct ringcast_stats rc_stats_of(struct rc_counts *counts, struct rc_histogram *histogram);
int rc_reader_stats_write(struct rc_slot *slot, struct ringcast_stats *out);
int rc_writer_stats_write(struct rc_control *control, struct ringcast_stats *out);

/* As rc_peer_read, with the time for which the reader has blocked the writer. */
bool rc_writer_peer(const ringcast_writer *writer, uint32_t index, struct ringcast_peer *out);

/* ---- Dead and slow readers (liveness.c) ------------------------------------------------------ */

/* Starts the clock, unless it runs: a reserve waits until no cursor is below `wanted`. */
void rc_liveness_begin(ringcast_writer *writer, uint64_t wanted);
/* Stops the clock: the reserve has succeeded, or was aborted. */
void rc_liveness_end(ringcast_writer *writer);

/* Frees the slots of readers that died while joining, and evicts a reader that is stuck in joining.
 * A reader that died after its eviction blocks no frame; the next reader that finds no free slot
 * frees that slot. */
void rc_liveness_reap_joining(ringcast_writer *writer);

/* The watch of the present blocker; NULL: the blocker has just left. */
struct rc_watch *rc_liveness_blocker(ringcast_writer *writer);

/* Checks the blocker, whose cursor is below `wanted` or which joins, and the other readers. 0: a
 * reader was removed, try again. -EAGAIN: wait on. -EOWNERDEAD, -ETIMEDOUT: by the policy the wait
 * fails; `blocker` is the cause. */
int rc_liveness_check_blockers(ringcast_writer *writer, uint64_t wanted);

/* The blocker has written an invalid cursor. True: the blocker has left or is removed, try
 * again. */
bool rc_liveness_evict_invalid(ringcast_writer *writer);

/* The longest time, in nanoseconds, until the next rc_liveness_check_blockers. */
int64_t rc_liveness_slice(ringcast_writer *writer);

/* Frees the slots of dead readers, if the policy says so. */
void rc_liveness_reap_dead(ringcast_writer *writer);

/* Watches all readers that are attached now. The poller exists. */
void rc_liveness_watch_all(ringcast_writer *writer);

/* The number of active readers that are alive, or the error of rc_process_look. Asks the kernel
 * about each. */
int rc_peer_count(const struct rc_ring *ring);

/* "reader 3 'rank 2' (pid 4711, active, at position 65536, 1048576 bytes behind, blocking for 12.3
 * s)" */
#define RC_DESCRIBED_MAX 240
void rc_peer_describe(const struct ringcast_peer *peer, char *out, size_t bytes);

#endif
