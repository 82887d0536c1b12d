/* SPDX-License-Identifier: Apache-2.0 */
/* The writer of a round: sends all kinds of frames in all ways, until it is told to stop, or that a
 * reader is dead. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "channel/channel.h"
#include "ringcast/batch.h"
#include "shm/os.h"
#include "tests/process/kill/kill.h"

#define LEAST sizeof(struct head)

static ringcast_writer *writer;
static uint64_t state, deaths_seen;
static uint32_t fast_clock;

static uint64_t chance(uint64_t below) { return (state = mix(state)) % below; }

/* Each look at the clock is some seconds later: memory falls idle soon. */
static uint32_t hasty_seconds(void) { return fast_clock += 6; }

static void end(int verdict) {
  atomic_store(&self->verdict, verdict);
  atomic_store(&self->stage, TOLD);
}

/* What a call that may wait came back with. 0: go on; -EAGAIN: try again. */
static int judge(int result, uint64_t called) {
  uint64_t now = now_ns(), struck = atomic_load(&board->reader_struck);
  /* It waited, and somebody had died: by then it knew. */
  if (struck != 0 && struck != deaths_seen && now - called > 1000000) {
    deaths_seen = struck;
    note_delay(called, struck, true);
  }
  switch (result) {
  case 0: return 0;
  case -EAGAIN: return -EAGAIN;
  case -ETIMEDOUT:
    if (board->slow_ns != 0 && board->on_slow == RINGCAST_FAIL)
      atomic_fetch_add(&self->timeouts, 1);
    atomic_fetch_add(&board->counts.timed_out, 1);
    return -EAGAIN;
  case -EOWNERDEAD:
    atomic_fetch_add(&board->counts.owner_dead, 1);
    if (struck == 0 || board->on_death != RINGCAST_FAIL)
      note_wrong(self, &board->counts.unexpected,
                 "writer: -EOWNERDEAD, and none was killed, or it should go on: %s",
                 ringcast_last_error());
    return result;
  default:
    note_wrong(self, &board->counts.unexpected, "writer: %d: %s", result, ringcast_last_error());
    return result;
  }
}

static int64_t some_timeout(void) {
  switch (chance(8)) {
  case 0: return 0;
  case 1: return 2000000;
  case 2: return 100000000;
  default: return RINGCAST_FOREVER;
  }
}

static int reserve(size_t bytes, bool grow, struct ringcast_span *span) {
  int result;
  do {
    uint64_t called = now_ns();
    int64_t timeout = some_timeout();
    atomic_store(&self->called, called);
    result = judge(grow ? ringcast_writer_grow(writer, bytes, timeout, span)
                        : ringcast_writer_reserve(writer, bytes, timeout, span),
                   called);
  } while (result == -EAGAIN && !atomic_load(&board->stop));
  atomic_store(&self->called, 0);
  return result;
}

/* ---- Ways to send ---------------------------------------------------------------------------- */

static int commit(struct head *head) {
  atomic_store(&board->sending, head->number);
  int result = ringcast_writer_commit(writer, head->bytes, kind_of(head->number));
  if (result != 0) return judge(result, now_ns());
  atomic_store(&board->committed, head->number);
  atomic_store(&board->tail, writer->ring.tail);
  return 0;
}

static int abort_it(struct head *head) {
  head->attempt++;
  return ringcast_writer_abort(writer) == 0 ? -ECANCELED : judge(-EINVAL, now_ns());
}

/* Reserves some of it, grows, trims or gives it back. */
static int by_reservation(struct head *head) {
  struct ringcast_span span;
  size_t first = chance(2) ? head->bytes + chance(500) : LEAST + chance(head->bytes - LEAST + 1);
  int result = reserve(first, false, &span);
  if (result != 0) return result;
  size_t part = first < head->bytes ? first & ~(size_t)7 : head->bytes;
  fill_frame(span.data, 0, part, head);
  if (chance(8) == 0) return abort_it(head);
  if (first < head->bytes) {
    result = reserve(head->bytes, true, &span);
    if (result == -EAGAIN || result == -EOWNERDEAD) ringcast_writer_abort(writer);
    if (result != 0) return result;
    if (!frame_matches(span.data, 0, part, head))
      note_wrong(self, &board->counts.corrupt, "writer: growing has changed what was written");
    fill_frame(span.data, part, head->bytes, head);
  }
  return commit(head);
}

/* One call. */
static int by_send(struct head *head) {
  static uint8_t *copy;
  if (!copy) copy = malloc((size_t)2 << 20);
  fill_frame(copy, 0, head->bytes, head);
  atomic_store(&board->sending, head->number);
  uint64_t called = now_ns();
  atomic_store(&self->called, called);
  int result =
      judge(ringcast_writer_send(writer, copy, head->bytes, kind_of(head->number), some_timeout()),
            called);
  if (result != 0) return result;
  atomic_store(&self->called, 0);
  atomic_store(&board->committed, head->number);
  atomic_store(&board->tail, writer->ring.tail);
  return 0;
}

/* Some small ones, and now and then one that is not. On success the head is that of the last that
 * was sent. */
static int by_batch(struct head *head) {
  enum { MOST = MOST_BATCH, LONGEST = 1500 };
  static uint64_t memory[MOST][LONGEST / 8 + 1];
  struct ringcast_message messages[MOST];
  uint32_t count = 2 + (uint32_t)chance(MOST - 1);
  for (uint32_t i = 0; i < count; i++) {
    size_t most = chance(16) == 0 ? LONGEST : 100;
    struct head one = {head->number + i, LEAST + chance(most - LEAST), head->attempt};
    fill_frame(memory[i], 0, one.bytes, &one);
    messages[i] = (struct ringcast_message){memory[i], one.bytes, kind_of(one.number)};
  }
  atomic_store(&board->sending, head->number + count - 1);
  uint64_t called = now_ns();
  atomic_store(&self->called, called);
  int sent = ringcast_writer_send_many(writer, messages, count, some_timeout());
  if (sent <= 0) return judge(sent, called);
  judge(0, called);
  atomic_store(&self->called, 0);
  head->number += (uint64_t)sent - 1;
  atomic_store(&board->committed, head->number);
  atomic_store(&board->tail, writer->ring.tail);
  return 0;
}

static size_t some_bytes(void) {
  uint64_t most = rc_ring_max_frame(writer->segment.capacity);
  switch (chance(board->large ? 8 : 32)) {
  case 0: return most + 1 + chance(600000); /* beside the ring */
  case 1:
  case 2:
  case 3: return LEAST + chance(most - LEAST + 1);
  default: return LEAST + chance(400);
  }
}

static int send_one(struct head *head) {
  head->bytes = some_bytes();
  head->attempt++;
  if (chance(5) == 0) return by_batch(head);
  return chance(board->large && head->bytes > board->capacity / 2 ? 2 : 4) == 0
             ? by_reservation(head)
             : by_send(head);
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* Asks now and then who lives. With FAIL, a reader that has died is told each time. */
static void look_around(void) {
  struct ringcast_peer peer = {.size = sizeof peer};
  int result;
  if (chance(4) == 0) {
    struct pollfd file = {.fd = ringcast_writer_fd(writer), .events = POLLIN};
    if (file.fd < 0)
      note_wrong(self, &board->counts.unexpected, "writer: fd: %d: %s", file.fd,
                 ringcast_last_error());
    else if (poll(&file, 1, 0) == 0) return;
  }
  for (int i = 0; i < 2 * READERS; i++) {
    if ((result = ringcast_writer_check(writer, &peer)) <= 0) break;
    if (board->on_death == RINGCAST_FAIL) break;
  }
  if (result < 0)
    note_wrong(self, &board->counts.unexpected, "writer: check: %d: %s", result,
               ringcast_last_error());
}

/* So that readers come to sleep in each of the ways that there are; it is part of the load, nothing
 * relies on it. */
static void pause_a_while(void) {
  if (board->storms) return;
  uint64_t ns = chance(6) == 0 ? 7000000 + chance(3000000) : chance(300000);
  nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static int create(void) {
  struct ringcast_writer_options options = {.size = sizeof options,
                                            .readers = board->slots,
                                            .capacity = board->capacity,
                                            .memory = RINGCAST_MEMORY_PAGES,
                                            .numa = RINGCAST_NUMA_NONE,
                                            .spill_bytes = (uint64_t)4 << 20,
                                            .on_death = board->on_death,
                                            .on_slow = board->on_slow,
                                            .slow_ns = board->slow_ns};
  set_mode(self->mode, &options.spin_ns);
  if (board->trims) rc_os.seconds = hasty_seconds;
  int result = ringcast_writer_create_ex(&options, &writer);
  if (result != 0) return result;
  if (board->trims) writer->backing.keep = 0;
  strcpy(board->handle, ringcast_writer_handle(writer));
  atomic_store(&board->has_handle, true);
  return 0;
}

_Noreturn void be_writer(uint64_t random) {
  struct before before = look_before();
  struct head head = {.number = 1};
  int result;
  state = random;
  if ((result = create()) != 0) {
    note_wrong(self, &board->counts.unexpected, "writer: create: %d: %s", result,
               ringcast_last_error());
    end(result);
    _exit(1);
  }
  atomic_store(&self->stage, AT_WORK);
  while (!atomic_load(&board->stop)) {
    result = send_one(&head);
    if (result == 0) {
      head = (struct head){.number = head.number + 1};
    } else if (result != -EAGAIN && result != -ECANCELED) {
      break;
    }
    if (chance(40) == 0) look_around();
    if (chance(60) == 0) pause_a_while();
  }
  atomic_store(&board->stop, true); /* whoever attaches from here on may find no ring */
  ringcast_writer_close(writer);
  end(result < 0 && result != -EAGAIN && result != -ECANCELED ? result : -EPIPE);
  look_after(&before);
  _exit(0);
}
