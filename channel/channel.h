/* SPDX-License-Identifier: Apache-2.0 */
/* What is behind the public handles. */
#ifndef RC_CHANNEL_CHANNEL_H
#define RC_CHANNEL_CHANNEL_H

#include "channel/backoff.h"
#include "ring/estimate.h"
#include "ring/fastpath.h"
#include "ring/spill.h"
#include "ringcast/ringcast.h"
#include "shm/commit.h"
#include "shm/poller.h"
#include "shm/segment.h"
#include "shm/wait.h"

/* Readers that the writer does without, or can't wait for any longer; see liveness.c. */
#define RC_MAX_DEPARTED 64u
struct rc_liveness {
  uint32_t on_death, on_slow; /* enum ringcast_policy */
  int64_t slow_ns;
  int64_t since;            /* when the first reserve found no room, while none has succeeded; 0: none is waiting */
  uint64_t wanted, tail;    /* then: no cursor was to be below that, and the ring's tail was that, ... */
  bool open;                /* ... and it was to grow what is open: a reserve that has succeeded since has changed
                             * either */
  int64_t asked;            /* when all that were in the way were last asked for */
  uint64_t joining;         /* the owner word that was seen joining, and ... */
  int64_t joining_since;    /* ... when it was first */
  uint32_t tidied;          /* how often it was looked for slots of the dead */
  struct rc_poller *poller; /* watches all readers; NULL until ringcast_writer_check or _fd */
  uint32_t first, count;    /* the queue of those that went and have not been told of */
  struct ringcast_peer queue[RC_MAX_DEPARTED];
};

/* What a later part has made of a handle, and what ends that if the handle ends first. `detach` NULL: nothing. */
struct rc_attachment {
  void (*detach)(void *context);
  void *context;
};

static inline void rc_detach(struct rc_attachment *attachment) {
  void (*detach)(void *) = attachment->detach;
  attachment->detach = NULL;
  if (detach) detach(attachment->context);
}

struct ringcast_writer {
  struct rc_ring_writer ring;
  uint64_t ring_frame;             /* larger frames go through spill memory */
  bool is_large;                   /* the open reservation is there */
  struct rc_attachment attachment; /* ended by close */
  struct rc_segment segment;
  struct rc_waiter waiter;  /* for room */
  struct rc_poller *poller; /* waits for room; NULL until ringcast_writer_room_fd */
  struct rc_watch blocker;  /* who holds the ring back, and ... */
  uint64_t blocker_owner;   /* ... the owner word that said so; 0: nobody yet */
  uint64_t wakes;           /* as in the shared counts */
  uint32_t forks;           /* rc_fork_count() of the process that made it */
  bool spill_lacks;         /* what the last large -EAGAIN lacked: spill memory, or room in the ring */
  uint64_t looked;          /* the ring's limit when idle memory was last looked for */
  struct rc_commit commit;
  struct rc_spill spill;
  char handle[RC_HANDLE_MAX];
  struct rc_liveness liveness; /* the last two are large, and of no use to the hot path */
  struct rc_estimates estimates;
};

struct ringcast_reader {
  struct rc_ring_reader ring;
  struct rc_segment segment;
  struct rc_waiter waiter; /* for a frame */
  struct rc_backoff backoff;
  struct rc_watch writer;
  struct rc_poller *poller; /* NULL until ringcast_reader_fd */
  struct rc_commit_view view;
  struct rc_retainer *retainer;    /* NULL: it keeps nothing */
  uint32_t retained;               /* frames that a retained mapping pins */
  struct rc_attachment attachment; /* ended by leave, and close */
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

/* The largest frame that stays in the ring, and the largest of all. */
uint64_t rc_ring_frame(const struct rc_segment *segment);
uint64_t rc_max_frame(const struct rc_segment *segment);

/* Reserves, or makes the open reservation larger, in spill memory if the ring's is too small. As rc_ring_reserve and
 * rc_ring_grow; and what rc_commit_provide gives, with its text. */
int rc_writer_take_large(ringcast_writer *writer, uint64_t bytes, bool grow, void **out);

static inline int rc_writer_take(ringcast_writer *writer, uint64_t bytes, bool grow, void **out) {
  if (bytes > writer->ring_frame || writer->is_large || writer->commit.excess != 0)
    return rc_writer_take_large(writer, bytes, grow, out);
  return grow ? rc_ring_grow(&writer->ring, bytes, out) : rc_ring_reserve(&writer->ring, bytes, out);
}

/* ringcast_writer_reserve and _grow, when not all goes well at once. */
int rc_writer_reserve_slowly(ringcast_writer *writer, size_t bytes, int64_t timeout_ns, bool grow,
                             struct ringcast_span *out);

/* After -EAGAIN: what is wanted is there once no cursor is below this. */
uint64_t rc_writer_wanted(const ringcast_writer *writer, uint64_t bytes);

static inline bool rc_writer_is_open(const ringcast_writer *writer) { return writer->ring.open || writer->is_large; }

/* Commits and aborts what is open in spill memory. As rc_spill_commit. */
int rc_writer_give_large(ringcast_writer *writer, uint64_t bytes, uint16_t kind);
void rc_writer_drop_large(ringcast_writer *writer);

int rc_fail_evicted(void);
int rc_fail_not_held(uint64_t position);
/* Nothing is there, as `poll` says: makes the descriptor wait for what comes. As any sleeper, it looks once more after
 * announcing itself; -EAGAIN: nothing is there indeed. */
int rc_reader_arm(ringcast_reader *reader, int (*poll)(void *context), void *context);

/* Removes a pin of a frame that has no lease any more, and counts the frame as given back. */
void rc_reader_return(ringcast_reader *reader, const struct ringcast_frame *frame);

/* Counts what only this party counts. Relaxed: numbers to look at. */
static inline void rc_count(_Atomic uint64_t *count, uint64_t more) {
  rc_store_relaxed(count, rc_load_relaxed(count) + more);
}

/* A frame was committed, or released. The counts lie on the line of the tail, or of the cursor,
 * which is this CPU's anyway. */
static inline void rc_count_frame(struct rc_counts *counts, uint64_t bytes) {
  rc_count(&counts->frames, 1);
  rc_count(&counts->bytes, bytes);
}

/* Waits, and keeps the shared counts and histogram of the waiting party up to date. */
int rc_wait_counted(struct rc_waiter *waiter, const struct rc_wait *wait, int64_t timeout_ns, struct rc_counts *counts,
                    struct rc_histogram *histogram);

/* The text of -EDEADLK. */
int rc_fail_shared(void);

/* In place of the forks of a handle that has left its ring: no process comes of so many. What tells a handle of before
 * a fork apart tells this apart too, and the hot path asks nothing more. */
#define RC_LEFT UINT32_MAX

/* 0, or -ECHILD with its text; -EINVAL: RC_LEFT. */
int rc_check_fork(uint32_t forks);

/* The same, and that the timeout is one: else -EINVAL. */
int rc_check_wait(uint32_t forks, int64_t timeout_ns);

/* That a spin time is one: 0, or -EINVAL with its text. */
int rc_check_spin(int64_t spin_ns);

/* Whether the process that an owner word names has ended. Asks /proc. */
static inline bool rc_owner_is_dead(uint64_t owner) {
  return !rc_process_is_alive_by((int32_t)rc_owner_pid(owner), rc_owner_start(owner), RC_START_MASK);
}

/* The writer has been waiting since `since` until no cursor is below `wanted`. */
struct rc_blocked {
  int64_t since;
  uint64_t wanted;
};

/* Copies what slot `index` says now. `blocked` is NULL if the writer does not wait, or the caller does not know. False:
 * the slot is free. */
bool rc_peer_read(const struct rc_ring *ring, uint32_t index, uint64_t tail, const struct rc_blocked *blocked,
                  struct ringcast_peer *out);

/* All of them: fills up to `capacity` peers and returns how many there are. */
int rc_peers_read(const struct rc_ring *ring, uint64_t tail, const struct rc_blocked *blocked,
                  struct ringcast_peer *peers, uint32_t capacity);

/* What the public functions of writer, reader and tap show. Both fill the caller's struct as far as its size goes: see
 * shm/sized.h. */
int rc_info_give(const struct rc_segment *segment, uint64_t tail, const struct rc_waiter *waiter,
                 struct ringcast_info *out);
struct ringcast_stats rc_stats_of(struct rc_counts *counts, struct rc_histogram *histogram);
int rc_stats_give(struct rc_counts *counts, struct rc_histogram *histogram, struct ringcast_stats *out);

/* As rc_peer_read, with how long the writer has been waiting for it. */
bool rc_writer_peer(const ringcast_writer *writer, uint32_t index, struct ringcast_peer *out);

/* ---- Readers that are lost (liveness.c) ---- */

/* The clock starts, if it does not run already: a reserve waits until no cursor is below `wanted`. */
void rc_liveness_begin(ringcast_writer *writer, uint64_t wanted);

/* Frees the slots of those that died while joining, or in a few calls after they were evicted;
 * evicts who is stuck in joining. */
void rc_liveness_reap_joining(ringcast_writer *writer);

/* The watch of whoever is in the way now; NULL: it has just left. */
struct rc_watch *rc_liveness_blocker(ringcast_writer *writer);

/* Whether the clock runs for what is tried now. */
bool rc_liveness_is_waiting(const ringcast_writer *writer);

/* Somebody is in the way: its cursor is below `wanted`, or it joins. 0: no more, look again; -EAGAIN: wait on;
 * -EOWNERDEAD, -ETIMEDOUT: by the policy, don't, and the blocker is to blame. */
int rc_liveness_check_blockers(ringcast_writer *writer, uint64_t wanted);

/* Whoever is in the way has written a cursor that can't be right. True: look again, it has left or is expelled. */
bool rc_liveness_evict_invalid(ringcast_writer *writer);

/* When rc_liveness_check_blockers should be asked at the latest, in nanoseconds from now. */
int64_t rc_liveness_slice(const ringcast_writer *writer);

/* Frees the slots of dead readers, if that is the policy. */
void rc_liveness_reap_dead(ringcast_writer *writer);

/* Watches all that are attached now; there are watchers. */
void rc_liveness_watch_all(ringcast_writer *writer);

/* The active or joining reader that is furthest behind. False if there is none. */
bool rc_peer_slowest(const struct rc_ring *ring, uint64_t tail, struct ringcast_peer *out);

uint32_t rc_peer_count(const struct rc_ring *ring); /* active ones that live; asks the kernel about each */

/* "reader 3 'rank 2' (pid 4711, active, at position 65536, 1048576 bytes behind, in the way for 12.3 s)" */
#define RC_DESCRIBED_MAX 240
void rc_peer_describe(const struct ringcast_peer *peer, char *out, size_t bytes);

#endif
