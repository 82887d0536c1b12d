/* SPDX-License-Identifier: Apache-2.0 */
/* The tap: copies a ring's frames and shows the ring's state. */
#include "ring/tap.h"

#include <errno.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>

#include "ringcast/inspect.h"
#include "channel/channel.h"
#include "shm/options.h"
#include "shm/error.h"

struct ringcast_tap {
  struct rc_ring_tap ring;
  struct rc_packed packed; /* what is left of a packed frame in the buffer */
  struct rc_segment segment;
  struct rc_waiter waiter;
  struct rc_watch writer;
  void *buffer;
  uint64_t room;               /* bytes of the buffer */
  struct ringcast_frame frame; /* the last one, in the buffer */
  uint32_t forks;
  int64_t rests_until;           /* 0: it does not rest */
  uint64_t gaps, copied, missed; /* of `ring`, at ... */
  int64_t since;                 /* ... this time */
};

/* Reads the file, not a mapping: where the writer has just given memory back, a load from a mapping
 * would allocate the memory again, or raise a signal if there is none. pread gives zeros there, and
 * the floor shows the loss. */
static int fetch_spilled(void *context, uint64_t offset, void *to, uint64_t bytes) {
  const ringcast_tap *tap = context;
  int result = rc_memory_check_file(&tap->segment.spill);
  if (result != 0) return result;
  for (uint8_t *at = to; bytes > 0;) {
    ssize_t got = pread(tap->segment.spill.fd, at, bytes, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? -errno : -EPROTO;
    at += got;
    offset += (uint64_t)got;
    bytes -= (uint64_t)got;
  }
  return 0;
}

int ringcast_tap_attach(const char *handle, ringcast_tap **out) {
  int result = rc_features_check();
  if (result != 0) return result;
  ringcast_tap *tap = calloc(1, sizeof *tap);
  if (!tap) return rc_fail(-ENOMEM, "out of memory");
  result = rc_segment_attach(handle, RC_ATTACH_TAP, &tap->segment);
  if (result != 0) {
    free(tap);
    return result;
  }
  rc_watch_init(&tap->writer, tap->segment.writer.pid, tap->segment.writer.start, UINT64_MAX);
  rc_watch_fd(&tap->writer); /* now: later no descriptor may be free */
  struct rc_control *control = rc_segment_control(&tap->segment);
  result = rc_waiter_init_tap(&tap->waiter, &control->not_empty, &control->cpus);
  if (result != 0) {
    ringcast_tap_close(tap);
    return result;
  }
  struct rc_ring ring = rc_segment_ring(&tap->segment);
  rc_tap_init(&tap->ring, &ring);
  tap->ring.fetch = fetch_spilled;
  tap->ring.context = tap;
  tap->forks = rc_fork_count();
  *out = tap;
  return 0;
}

void ringcast_tap_close(ringcast_tap *tap) {
  if (!tap) return;
  rc_watch_close(&tap->writer);
  rc_segment_destroy(&tap->segment);
  free(tap->buffer);
  free(tap);
}

/* ---- Copying --------------------------------------------------------------------------------- */

/* A waiting writer stores the time every 50 ms, or at the next try. */
#define STILL_NS ((int64_t)1000 * 1000 * 1000)

/* Grows by a half at least, so that frames of growing sizes seldom need a new buffer. */
static int make_room(ringcast_tap *tap, uint64_t bytes) {
  const uint64_t more = tap->room + tap->room / 2, room = bytes < more ? more : bytes;
  free(tap->buffer); /* the copy in the buffer is no longer valid */
  tap->buffer = malloc(room);
  tap->room = tap->buffer ? room : 0;
  return tap->buffer ? 0 : -ENOMEM;
}

static int copy_frame(ringcast_tap *tap, struct rc_ring_frame *out) {
  int result = tap->buffer ? 0 : make_room(tap, RC_LINE); /* an empty frame has an address, too */
  if (result != 0) return result;
  while ((result = rc_tap_next(&tap->ring, tap->buffer, tap->room, out)) == -EMSGSIZE) {
    result =
        make_room(tap, out->bytes); /* rc_tap_next has checked the size against the largest frame */
    if (result != 0) break;
  }
  return result;
}

/* Sets tap->frame. */
static int copy_next(ringcast_tap *tap) {
  struct rc_ring_frame frame;
  if (rc_packed_is_left(&tap->packed)) return rc_packed_next(&tap->packed, &tap->frame);
  int result = copy_frame(tap, &frame);
  if (result != 0) return result;
  if (frame.packed) {
    tap->packed = rc_packed_open(tap->buffer, frame.position, frame.bytes);
    return rc_packed_next(&tap->packed, &tap->frame);
  }
  tap->frame = (struct ringcast_frame){
      .data = tap->buffer, .bytes = frame.bytes, .position = frame.position, .kind = frame.kind};
  return 0;
}

/* Each line that a tap reads, the writer's CPU has to fetch back. A tap that keeps up is worth
 * that. One that loses more than a fifth is not, and rests after each loss, as if a byte took
 * NS_PER_BYTE to copy: the writer then has 99 % of its rate, though it never pauses. A tap that
 * something held up for a moment goes on at once. */
#define NS_PER_BYTE  16
#define MOST_REST_NS ((int64_t)1000 * 1000 * 1000)

static void rest_after_loss(ringcast_tap *tap) {
  const struct rc_ring_tap *ring = &tap->ring;
  if (ring->gaps == tap->gaps) return;
  const uint64_t copied = ring->copied - tap->copied, missed = ring->missed - tap->missed;
  const int64_t now = rc_now_ns();
  const int64_t rest =
      copied < MOST_REST_NS / NS_PER_BYTE ? (int64_t)copied * NS_PER_BYTE : MOST_REST_NS;
  if (missed > copied / 4 && tap->since + rest > now) tap->rests_until = tap->since + rest;
  tap->gaps = ring->gaps;
  tap->copied = ring->copied;
  tap->missed = ring->missed;
  tap->since = now;
}

static bool is_resting(ringcast_tap *tap) {
  if (tap->rests_until == 0) return false;
  if (rc_now_ns() < tap->rests_until && rc_load_acquire(&tap->ring.view.control->closed) == 0)
    return true; /* C1 <- C0 */
  tap->rests_until = 0;
  return false;
}

static int poll_tap(void *context) {
  ringcast_tap *tap = context;
  if (is_resting(tap) && !rc_packed_is_left(&tap->packed)) return -EAGAIN;
  int result = copy_next(tap);
  rest_after_loss(tap);
  if (result != -EAGAIN) return result;
  if (rc_load_acquire(&tap->ring.view.control->closed) == 0) return -EAGAIN; /* C1 <- C0 */
  result = copy_next(tap);
  return result == -EAGAIN ? -EPIPE : result;
}

static int check_tapped_writer(void *context) {
  ringcast_tap *tap = context;
  int writer = rc_watch_look(&tap->writer);
  if (writer < 0) return writer;
  if (writer != RC_PROCESS_ENDED) return -EAGAIN;
  int result = copy_next(tap); /* frames committed before the writer died */
  return result == -EAGAIN ? -EPIPE : result;
}

int ringcast_tap_next(ringcast_tap *tap, int64_t timeout_ns, struct ringcast_frame *out) {
  int result = rc_check_wait(tap->forks, timeout_ns);
  if (result != 0) return result;
  const struct rc_wait how = {.poll = poll_tap, .check = check_tapped_writer, .context = tap};
  result = rc_wait(&tap->waiter, &how, timeout_ns);
  if (result == -EDEADLK) return rc_fail_shared(); /* the fields of the wait are another thread's */
  if (result != 0 && result == tap->writer.unknown)
    return rc_fail_unknown_writer(result, &tap->segment);
  if (result == -ENOMEM) return rc_fail_as(result, "out of memory for the copy of a frame");
  if (result != 0) return rc_fail_no_frame(result, tap->ring.next, &tap->segment);
  *out = tap->frame;
  return 0;
}

/* ---- Introspection --------------------------------------------------------------------------- */

int ringcast_tap_lost(const ringcast_tap *tap, uint64_t *bytes, uint64_t *gaps) {
  int result = rc_check_fork(tap->forks);
  if (result != 0) return result;
  *bytes = tap->ring.lost_bytes;
  *gaps = tap->ring.gaps;
  return 0;
}

static uint64_t tail_of(const ringcast_tap *tap) {
  return rc_load_relaxed(&tap->ring.view.control->tail); /* relaxed: a statistic */
}

int ringcast_tap_info(const ringcast_tap *tap, struct ringcast_info *out) {
  int result = rc_check_fork(tap->forks);
  return result != 0 ? result : rc_info_write(&tap->segment, tail_of(tap), &tap->waiter, out);
}

int ringcast_tap_stats(const ringcast_tap *tap, struct ringcast_stats *out) {
  int result = rc_check_fork(tap->forks);
  return result != 0 ? result : rc_writer_stats_write(tap->ring.view.control, out);
}

int ringcast_tap_peers(const ringcast_tap *tap, struct ringcast_peer *peers, uint32_t capacity) {
  int result = rc_check_fork(tap->forks);
  if (result != 0) return result;
  const struct rc_control *control = tap->ring.view.control;
  /* Relaxed: statistics, which may be of two waits. */
  const struct rc_blocked blocked = {.since = rc_load_relaxed(&control->blocked_since),
                                     .below = rc_load_relaxed(&control->blocked_below),
                                     .due = rc_load_relaxed(&control->blocked_due),
                                     .tail = rc_load_relaxed(&control->blocked_tail)};
  const uint64_t tail = tail_of(tap);
  const int64_t until = rc_load_relaxed(&control->blocked_until);
  const bool waits = blocked.since != 0 && blocked.tail == tail && rc_ns_since(until) < STILL_NS;
  return rc_peers_read(&tap->ring.view, tail, waits ? &blocked : NULL, peers, capacity);
}
