/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of a round: attaches, checks every byte of what comes, leaves and comes again, until the
 * ring has ended. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "ringcast/batch.h"
#include "tests/process/kill/kill.h"

static ringcast_reader *reader;
static struct ringcast_frame held[8];
static struct head heads[8]; /* what they say; all 0: not known to be whole */
static uint32_t holds;
static struct {
  ringcast_retained *handle;
  const void *data;
  struct head head;
} kept[8];
static uint32_t keeps;
static uint64_t state;
static uint64_t last;   /* number of the last frame of this life; 0: none yet */
static bool latest;     /* it started at the newest frame, which may be a batch */
static uint64_t before; /* the number that was surely committed before it attached, ... */
static uint64_t after;  /* ... and the last that may have been */

static uint64_t chance(uint64_t below) { return (state = mix(state)) % below; }

static int unexpected(const char *call, int result) {
  note_wrong(self, &board->counts.unexpected, "reader: %s: %d: %s", call, result,
             ringcast_last_error());
  return result;
}

/* Evicted: only where that is the policy. */
static int stale(const char *call) {
  if (board->on_slow != RINGCAST_EVICT) return unexpected(call, -ESTALE);
  atomic_fetch_add(&board->counts.stale, 1);
  return -ESTALE;
}

/* ---- What a frame says ----------------------------------------------------------------------- */

/* 0: what has been read up to now was whole, and is what must come next. What was read of a frame
 * that is not known to be whole means nothing, so this asks first. */
static int judge_frame(const struct ringcast_frame *frame, const struct head *head, bool matches) {
  int result = ringcast_reader_check(reader);
  if (result == -ESTALE) {
    if (!matches) atomic_fetch_add(&board->counts.torn, 1);
    return stale("check");
  }
  if (result != 0) return unexpected("check", result);
  if (!matches || head->bytes != frame->bytes || kind_of(head->number) != frame->kind) {
    note_wrong(self, &board->counts.corrupt,
               "reader: frame %llu at %llu, after %llu, is corrupt: %zu bytes, says %llu",
               (unsigned long long)head->number, (unsigned long long)frame->position,
               (unsigned long long)last, frame->bytes, (unsigned long long)head->bytes);
    return -EBADMSG;
  }
  bool next = last != 0
                  ? head->number == last + 1
                  : head->number + (latest ? MOST_BATCH : 0) > before && head->number <= after + 1;
  if (!next) {
    note_wrong(self, &board->counts.missing,
               "reader: frame %llu comes after %llu (attached between %llu and %llu)",
               (unsigned long long)head->number, (unsigned long long)last,
               (unsigned long long)before, (unsigned long long)after);
    return -EBADMSG;
  }
  last = head->number;
  heads[holds - 1] = *head;
  atomic_store(&self->upto, last);
  atomic_fetch_add_explicit(&board->counts.frames, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&board->counts.bytes, frame->bytes, memory_order_relaxed);
  if (frame->bytes > board->capacity / 2)
    atomic_fetch_add_explicit(&board->counts.spilled, 1, memory_order_relaxed);
  return 0;
}

static bool has_head(const void *data, size_t bytes, struct head *head) {
  if (bytes < sizeof *head) return false;
  memcpy(head, data, sizeof *head);
  return true;
}

static int examine(struct ringcast_frame *frame) {
  struct head head = {0};
  bool matches = has_head(frame->data, frame->bytes, &head) &&
                 frame_matches(frame->data, 0, frame->bytes, &head);
  return judge_frame(frame, &head, matches);
}

/* ---- Holding and releasing ------------------------------------------------------------------- */

/* Now and then it is read once more: while it was held nobody may have overwritten it. */
static int release_one(uint32_t i) {
  struct head head = heads[i];
  bool same =
      head.bytes == 0 || chance(4) != 0 || frame_matches(held[i].data, 0, head.bytes, &head);
  int result = ringcast_reader_release(reader, &held[i]);
  held[i] = held[--holds];
  heads[i] = heads[holds];
  if (result == -ESTALE) {
    if (!same) atomic_fetch_add(&board->counts.torn, 1);
    return stale("release");
  }
  if (result != 0) return unexpected("release", result);
  if (same) return 0;
  note_wrong(self, &board->counts.corrupt,
             "reader: frame %llu was overwritten while it was held, %u beside it",
             (unsigned long long)head.number, holds);
  return -EBADMSG;
}

/* In any order. */
static int release_some(void) {
  while (holds > 0 && (holds == self->leases || chance(3) == 0)) {
    int result = release_one((uint32_t)chance(holds));
    if (result != 0) return result;
  }
  return 0;
}

/* The ring may be full up to that one. */
static int release_oldest(void) {
  uint32_t oldest = 0;
  if (holds == 0) return unexpected("next", -EBUSY);
  for (uint32_t i = 1; i < holds; i++)
    if (held[i].position < held[oldest].position) oldest = i;
  int result = release_one(oldest);
  return result != 0 ? result : -EAGAIN;
}

/* ---- Keeping --------------------------------------------------------------------------------- */

/* It is as it was when it was kept, unless the ring went on without this reader. */
static int drop_one(uint32_t i) {
  struct head head = kept[i].head;
  bool same = frame_matches(kept[i].data, 0, head.bytes, &head);
  int result = same ? 0 : ringcast_reader_check(reader);
  ringcast_retained_release(kept[i].handle);
  kept[i] = kept[--keeps];
  if (same) return 0;
  if (result == -ESTALE) {
    atomic_fetch_add(&board->counts.torn, 1);
    return stale("keep");
  }
  note_wrong(self, &board->counts.corrupt,
             "reader: frame %llu was overwritten while it was kept, %u beside it",
             (unsigned long long)head.number, keeps);
  return -EBADMSG;
}

static int drop_all(void) {
  int result = 0;
  while (keeps > 0) {
    int wrong = drop_one(0);
    if (result == 0) result = wrong;
  }
  return result;
}

/* The newest that is held, in place of releasing it; it is dropped when as many are kept as there
 * is room for. */
static int keep_newest(void) {
  const uint32_t newest = holds - 1, most = sizeof kept / sizeof *kept;
  void *data;
  if (!self->keeps || holds == 0 || heads[newest].bytes == 0 || chance(4) == 0) return 0;
  int result = keeps == most ? drop_one((uint32_t)chance(most)) : 0;
  if (result != 0) return result;
  result = ringcast_reader_retain(reader, &held[newest], &kept[keeps].handle, &data);
  if (result == -ENOTSUP) return 0;
  if (result != 0) return result == -ESTALE ? stale("keep") : unexpected("keep", result);
  kept[keeps].data = data;
  kept[keeps++].head = heads[newest];
  holds--;
  atomic_fetch_add_explicit(&board->counts.kept, 1, memory_order_relaxed);
  return 0;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Who waits for ever while it holds frames waits for itself, once the writer needs the room. */
#define HOLDING_NS ((int64_t)2000000)

static int64_t some_timeout(void) {
  if (holds > 0) return HOLDING_NS;
  switch (chance(16)) {
  case 0: return 0;
  case 1: return 1000000;
  default: return RINGCAST_FOREVER;
  }
}

static int poll_descriptor(void) {
  struct pollfd file = {.fd = ringcast_reader_fd(reader), .events = POLLIN};
  if (file.fd < 0) return unexpected("fd", file.fd);
  if (holds > 0) return poll(&file, 1, (int)(HOLDING_NS / 1000000)) == 0 ? -ETIMEDOUT : -EAGAIN;
  while (poll(&file, 1, -1) < 0 && errno == EINTR)
    ;
  return -EAGAIN;
}

/* Until a frame is there, or something ends the wait. */
static int next(struct ringcast_frame *frame) {
  int result;
  uint64_t called = now_ns();
  atomic_store(&self->called, called);
  do {
    bool by_descriptor = self->mode == BY_DESCRIPTOR && chance(8) != 0;
    result = ringcast_reader_next(reader, by_descriptor ? 0 : some_timeout(), frame);
    if (result == -EAGAIN && by_descriptor) result = poll_descriptor();
    if (result == -ENOBUFS) result = -EAGAIN;
    if (result == -EBUSY || (result == -ETIMEDOUT && holds > 0)) result = release_oldest();
  } while (result == -EAGAIN || result == -ETIMEDOUT);
  atomic_store(&self->called, 0);
  uint64_t struck = atomic_load(&board->writer_struck);
  if (result == -EPIPE && struck != 0) note_delay(called, struck, false);
  return result;
}

/* What is there, together. No frame is held. */
static int read_group(void) {
  struct ringcast_frame frames[16];
  int count, result = 0;
  uint64_t called = now_ns();
  atomic_store(&self->called, called);
  do count = ringcast_reader_next_many(reader, some_timeout(), frames, 1 + (uint32_t)chance(16));
  while (count == -EAGAIN || count == -ETIMEDOUT);
  atomic_store(&self->called, 0);
  uint64_t struck = atomic_load(&board->writer_struck);
  if (count == -EPIPE && struck != 0) note_delay(called, struck, false);
  if (count < 0) return count == -ESTALE ? stale("next_many") : count;
  holds = 1; /* for what judge_frame notes */
  for (int i = 0; i < count && result == 0; i++) result = examine(&frames[i]);
  holds = 0;
  if (result != 0) return result;
  result = ringcast_reader_release_many(reader, frames, (uint32_t)count);
  return result == -ESTALE ? stale("release_many")
         : result == 0     ? 0
                           : unexpected("release_many", result);
}

/* ---- Lives ----------------------------------------------------------------------------------- */

/* At the ring's end: whether all is there that was committed since it attached. */
static void judge_end(void) {
  uint64_t committed = atomic_load(&board->committed), sending = atomic_load(&board->sending);
  bool whole = last == 0 ? committed <= after : committed <= last && last <= sending;
  atomic_fetch_add(&board->counts.pipe, 1);
  atomic_store(&self->final, last);
  if (!whole)
    note_wrong(self, &board->counts.missing,
               "reader: told of the end after frame %llu; %llu were committed, %llu begun, %llu "
               "before it attached",
               (unsigned long long)last, (unsigned long long)committed, (unsigned long long)sending,
               (unsigned long long)after);
}

static int attach(void) {
  struct ringcast_reader_options options = {
      .size = sizeof options, .leases = self->leases, .name = "in a campaign"};
  if (self->keeps) options.flags |= RINGCAST_READER_RETAIN;
  set_mode(self->mode, &options.spin_ns);
  latest = chance(2);
  if (latest) options.start = RINGCAST_START_LATEST;
  before = atomic_load(&board->committed);
  int result = ringcast_reader_attach_ex(board->handle, &options, &reader);
  if (result != 0) return result;
  after = atomic_load(&board->sending);
  last = 0;
  holds = 0;
  atomic_store(&self->upto, after);
  atomic_store(&self->attached, true);
  atomic_store(&self->stage, AT_WORK);
  atomic_fetch_add(&board->counts.lives, 1);
  return 0;
}

static int read_frames(uint64_t most) {
  struct ringcast_frame frame;
  for (uint64_t i = 0; i < most; i++) {
    int result = 0;
    while (holds == 0 && chance(4) == 0 && result == 0) result = read_group();
    if (result != 0) return result;
    result = next(&frame);
    if (result == -ESTALE) return stale("next");
    if (result != 0) return result;
    heads[holds] = (struct head){0};
    held[holds++] = frame;
    result = examine(&frame);
    if (result != 0 || (result = keep_newest()) != 0) return result;
    if ((result = release_some()) != 0) return result;
    if (self->dawdles && chance(16) == 0)
      nanosleep(&(struct timespec){.tv_nsec = (long)chance(400000)}, NULL);
  }
  return 0;
}

/* From attaching to closing. 0: it left by itself. */
static int live(void) {
  int result = attach();
  if (result != 0) return result;
  result = read_frames(self->churns ? 1 + chance(200) : UINT64_MAX);
  int dropped = drop_all();
  if (result == 0) result = dropped;
  if (result == -EPIPE) judge_end();
  else if (result != 0 && result != -ESTALE && result != -EBADMSG) unexpected("next", result);
  atomic_store(&self->attached, false);
  ringcast_reader_close(reader);
  return result;
}

/* Whether there is a reason for an attach to fail, and no use in another try. */
static bool is_over(int result) {
  if (result != -ENOENT) return false;
  if (atomic_load(&board->writer_struck) == 0 &&
      atomic_load(&board->participants[WRITER].stage) < TOLD && !atomic_load(&board->stop))
    unexpected("attach", result);
  return true;
}

_Noreturn void be_reader(uint64_t random) {
  struct before left = look_before();
  int result;
  state = random;
  for (;;) {
    result = live();
    if (result == 0 || result == -ESTALE) continue;
    if (result == -EUSERS) { /* the slots of the dead are freed by the writer, when it next looks */
      atomic_fetch_add(&board->counts.refused, 1);
      nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
      continue;
    }
    if (result != -EPIPE && !is_over(result) && result != -EBADMSG) unexpected("attach", result);
    break;
  }
  atomic_store(&self->verdict, result);
  atomic_store(&self->stage, TOLD);
  look_after(&left);
  _exit(0);
}
