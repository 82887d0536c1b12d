/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at rings from outside: finding them by name, and the tap, which copies a ring's frames
 * and shows its state without a slot. */
#include "ringcast/inspect.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "channel/channel.h"
#include "channel/liveness.h"
#include "channel/stats.h"
#include "ring/tap.h"
#include "shm/error.h"
#include "shm/options.h"
#include "shm/segment.h"

_Static_assert(RINGCAST_NAME_BYTES == RC_RING_NAME && RINGCAST_HANDLE_BYTES == RC_HANDLE_MAX,
               "sizes of texts");

/* ---- All rings ------------------------------------------------------------------------------- */

struct rings {
  struct ringcast_ring *all;
  uint32_t count, room;
};

static int collect(void *context, const struct rc_found *found) {
  struct rings *rings = context;
  if (rings->count == rings->room) {
    uint32_t room = 2 * rings->room + 16;
    struct ringcast_ring *all = realloc(rings->all, room * sizeof *all);
    if (!all) return rc_fail(-ENOMEM, "out of memory");
    rings->all = all;
    rings->room = room;
  }
  struct ringcast_ring *ring = &rings->all[rings->count++];
  *ring = (struct ringcast_ring){.size = sizeof *ring, .pid = found->pid};
  memcpy(ring->name, found->name, sizeof ring->name);
  if (found->compatible) rc_handle_format(&found->handle, ring->handle);
  return 0;
}

static int by_name(const void *a, const void *b) {
  const struct ringcast_ring *first = a, *second = b;
  int order = strcmp(first->name, second->name);
  if (order == 0) order = (first->pid > second->pid) - (first->pid < second->pid);
  return order != 0 ? order : strcmp(first->handle, second->handle);
}

/* The caller frees rings->all, also after an error. */
static int find_all(struct rings *rings) {
  *rings = (struct rings){0};
  int result = rc_find_rings(collect, rings);
  if (result == 0 && rings->count > 1) qsort(rings->all, rings->count, sizeof *rings->all, by_name);
  return result;
}

int ringcast_rings(struct ringcast_ring *out, uint32_t capacity) {
  uint32_t size = 0;
  if (capacity != 0) {
    if (!out) return rc_fail(-EINVAL, "rings is NULL, but its capacity is not 0");
    size = out->size;
    int result = rc_sized_check("ringcast_ring", size);
    if (result != 0) return result;
  }
  struct rings rings;
  int result = find_all(&rings);
  if (result == 0) {
    for (uint32_t i = 0; i < rings.count && i < capacity; i++)
      rc_sized_write((uint8_t *)out + (size_t)i * size, size, &rings.all[i], sizeof rings.all[i]);
    result = (int)rings.count;
  }
  free(rings.all);
  return result;
}

/* ---- One ring -------------------------------------------------------------------------------- */

/* What the text of a caller asks for. */
struct wish {
  char name[RC_RING_NAME]; /* "": any */
  int32_t pid;             /* 0: any */
};

/* 0: the text is no pid. */
static int32_t pid_of(const char *text) {
  const size_t digits = strspn(text, "0123456789");
  if (digits == 0 || digits > 9 || text[digits] != '\0') return 0;
  return (int32_t)strtol(text, NULL, 10);
}

/* NAME, NAME@PID or @PID. False: the text is none of these. */
static bool parse(const char *text, struct wish *out) {
  *out = (struct wish){0};
  size_t length = strlen(text);
  const char *at = strrchr(text, '@');
  if (at) {
    length = (size_t)(at - text);
    out->pid = pid_of(at + 1);
    if (out->pid == 0) return false;
  }
  if (length == 0) return at != NULL;
  if (length >= sizeof out->name) return false;
  memcpy(out->name, text, length);
  return rc_name_check(out->name) == 0;
}

static bool matches(const struct wish *wish, const struct ringcast_ring *ring) {
  return (*wish->name == '\0' || strcmp(wish->name, ring->name) == 0) &&
         (wish->pid == 0 || wish->pid == ring->pid);
}

/* Whether NAME@PID stands for several rings. */
static bool is_twin(const struct rings *rings, const struct ringcast_ring *ring) {
  for (uint32_t i = 0; i < rings->count; i++) {
    const struct ringcast_ring *other = &rings->all[i];
    if (other != ring && other->pid == ring->pid && strcmp(other->name, ring->name) == 0)
      return true;
  }
  return false;
}

/* Adds a ring to the list, by what it can be asked for; returns the characters that it takes. */
static size_t list_ring(const struct rings *rings, const struct ringcast_ring *ring,
                        const char *comma, char *out, size_t room) {
  int length;
  if (is_twin(rings, ring)) length = snprintf(out, room, "%s%s", comma, ring->handle);
  else length = snprintf(out, room, "%s%s@%" PRId32, comma, ring->name, ring->pid);
  return (size_t)length;
}

/* Lists the rings, as far as the text has room. */
static int fail_several(const char *text, const struct wish *wish, const struct rings *rings,
                        uint32_t count) {
  char list[256] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < rings->count && used < sizeof list; i++) {
    if (!matches(wish, &rings->all[i])) continue;
    used += list_ring(rings, &rings->all[i], used > 0 ? ", " : "", list + used, sizeof list - used);
  }
  return rc_fail(-ENOTUNIQ, "'%.80s' stands for %u rings: take one of %s%s", text, count, list,
                 used >= sizeof list ? "..." : "");
}

static int choose(const char *text, const struct rings *rings, char handle[RINGCAST_HANDLE_BYTES]) {
  struct wish wish;
  if (!parse(text, &wish))
    return rc_fail(-EINVAL,
                   "'%.96s' is not a ring: it should be NAME, NAME@PID, @PID or a handle (rc1:...)",
                   text);
  const struct ringcast_ring *chosen = NULL;
  uint32_t count = 0;
  for (uint32_t i = 0; i < rings->count; i++) {
    if (!matches(&wish, &rings->all[i])) continue;
    if (count == 0) chosen = &rings->all[i];
    count++;
  }
  if (count == 0)
    return rc_fail(-ENOENT,
                   "there is no ring '%.80s' of this user: 'ringcast list' shows all; its writer "
                   "must live, in this PID namespace",
                   text);
  if (count > 1) return fail_several(text, &wish, rings, count);
  if (*chosen->handle == '\0')
    return rc_fail(-EPROTO,
                   "process %" PRId32 " uses an incompatible release of ringcast (here %s)",
                   chosen->pid, RINGCAST_VERSION);
  memcpy(handle, chosen->handle, RINGCAST_HANDLE_BYTES);
  return 0;
}

int ringcast_find(const char *ring, char handle[RINGCAST_HANDLE_BYTES]) {
  struct rc_handle parsed;
  struct rings rings;
  if (rc_handle_parse(ring, &parsed) == 0) {
    rc_handle_format(&parsed, handle);
    return 0;
  }
  int result = find_all(&rings);
  if (result == 0) result = choose(ring, &rings, handle);
  free(rings.all);
  return result;
}

/* ---- Tap ------------------------------------------------------------------------------------- */

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

/* ---- The tap's life -------------------------------------------------------------------------- */

/* Reads the file, not a mapping: where the writer has just given memory back, a load from a mapping
 * would allocate the memory again, or raise a signal if there is none. pread gives zeros there, and
 * the floor shows the loss. */
static int fetch_spilled(void *context, uint64_t offset, void *to, uint64_t bytes) {
  const ringcast_tap *tap = context;
  int result = rc_memory_check_file(&tap->segment.spill);
  if (result != 0) return result;
  uint8_t *at = to;
  while (bytes > 0) {
    ssize_t got = pread(tap->segment.spill.fd, at, bytes, (off_t)offset);
    if (got == 0) return -EPROTO;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -errno;
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
  tap->forks = rc_forks_seen;
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
  if (!tap->buffer && make_room(tap, RC_LINE) != 0) return -ENOMEM; /* for empty frames, too */
  for (;;) {
    int result = rc_tap_next(&tap->ring, tap->buffer, tap->room, out);
    if (result != -EMSGSIZE) return result;
    /* rc_tap_next has checked the size against the largest frame. */
    if (make_room(tap, out->bytes) != 0) return -ENOMEM;
  }
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
 * NS_PER_BYTE to copy: the writer then keeps 99 % of its rate, though it never pauses. A tap that
 * something held up for a moment goes on at once. */
#define NS_PER_BYTE  80
#define MOST_REST_NS ((int64_t)1000 * 1000 * 1000)

static void rest_after_loss(ringcast_tap *tap) {
  const struct rc_ring_tap *ring = &tap->ring;
  if (ring->gaps == tap->gaps) return;
  const uint64_t copied = ring->copied - tap->copied, missed = ring->missed - tap->missed;
  const int64_t now = rc_now_ns();
  int64_t rest = MOST_REST_NS;
  if (copied < MOST_REST_NS / NS_PER_BYTE) rest = (int64_t)copied * NS_PER_BYTE;
  if (missed > copied / 4 && tap->since + rest > now) tap->rests_until = tap->since + rest;
  tap->gaps = ring->gaps;
  tap->copied = ring->copied;
  tap->missed = ring->missed;
  tap->since = now;
}

static bool is_resting(ringcast_tap *tap) {
  if (tap->rests_until == 0) return false;
  const bool closed = rc_load_acquire(&tap->ring.view.control->closed) != 0; /* C1 <- C0 */
  if (!closed && rc_now_ns() < tap->rests_until) return true;
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

static int fail_to_copy(const ringcast_tap *tap, int code) {
  if (code == -EDEADLK) return rc_fail_shared(); /* the fields of the wait are another thread's */
  if (code == tap->writer.unknown) return rc_fail_unknown_writer(code, &tap->segment);
  if (code == -ENOMEM) return rc_fail_as(code, "out of memory for the copy of a frame");
  return rc_fail_no_frame(code, tap->ring.next, &tap->segment);
}

int ringcast_tap_next(ringcast_tap *tap, int64_t timeout_ns, struct ringcast_frame *out) {
  int result = rc_check_wait(tap->forks, timeout_ns);
  if (result != 0) return result;
  const struct rc_wait how = {.poll = poll_tap, .check = check_tapped_writer, .context = tap};
  result = rc_wait(&tap->waiter, &how, timeout_ns);
  if (result != 0) return fail_to_copy(tap, result);
  *out = tap->frame;
  return 0;
}

/* ---- What the tap sees of the ring ----------------------------------------------------------- */

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
  if (result != 0) return result;
  return rc_info_write(&tap->segment, tail_of(tap), &tap->waiter, out);
}

int ringcast_tap_stats(const ringcast_tap *tap, struct ringcast_stats *out) {
  int result = rc_check_fork(tap->forks);
  if (result != 0) return result;
  return rc_writer_stats_write(tap->ring.view.control, out);
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
