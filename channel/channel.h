/* SPDX-License-Identifier: Apache-2.0 */
/* The structs behind the public handles, what every call on a handle checks, and the errors that
 * writer, reader and tap share. */
#ifndef RC_CHANNEL_CHANNEL_H
#define RC_CHANNEL_CHANNEL_H

#include "channel/backoff.h"
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

  /* The wait for room: from the first reserve that found none until one succeeds. */
  int64_t since;         /* when it began; 0: no reserve waits */
  uint64_t wanted;       /* the position that no cursor may be below, at `since` */
  uint64_t tail;         /* the ring's, at `since`; a successful reserve changes it or `open` */
  bool open;             /* whether a reservation was open, at `since` */
  bool waits;            /* a call has waited since `since`, and not only tried */
  uint64_t waited_ns;    /* in all such calls */
  int32_t blocker_pid;   /* the process of the reader in the way at the first such call */
  int unknown;           /* why nothing tells whether `blocker` lives; 0: it was told */
  int64_t checked;       /* when all other readers were last checked */
  uint64_t joining;      /* the owner word of the first joining reader */
  int64_t joining_since; /* when that word was first seen */

  /* For ringcast_writer_check and _fd. */
  struct rc_poller *poller; /* watches all readers; NULL until the first of these calls */
  uint32_t first, count;    /* the queue of departed readers that are yet to be reported */
  uint64_t departures;      /* all that were ever queued */
  struct ringcast_peer queue[RC_MAX_DEPARTED];
};

/* What another part has attached to a handle, and how to end it before the handle does. `detach`
 * NULL: nothing. */
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
  bool is_large;       /* the open reservation is in spill memory: spill.is_open, on a hot line */
  uint64_t past_cache; /* ringcast_writer_send writes a payload of so many bytes past the cache */
  struct rc_estimated estimated;   /* close to is_large: every commit looks */
  struct rc_attachment attachment; /* ended by close */
  struct rc_segment segment;
  struct rc_waiter waiter;  /* for room */
  struct rc_poller *poller; /* waits for room; NULL until ringcast_writer_room_fd */
  uint64_t wanted_shown;    /* control->wanted as stored last: any peer can store there */
  uint32_t announced;       /* for the descriptor: the event's word, and ... */
  int64_t settled_at;       /* ... when E9 is due; 0: `wanted_shown` has changed since */
  struct rc_watch blocker;  /* the reader that blocks the writer, and ... */
  uint64_t blocker_owner;   /* ... its owner word; 0: no reader yet */
  uint64_t wakes;           /* also in the shared counts */
  uint32_t forks;           /* rc_forks_seen of the process that made the handle */
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

static inline bool rc_writer_is_open(const ringcast_writer *writer) { return writer->ring.open; }

/* ---- Checks ---------------------------------------------------------------------------------- */

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

/* ---- Errors ---------------------------------------------------------------------------------- */

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

#endif
