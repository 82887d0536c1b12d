/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring's code with threads, made for ThreadSanitizer. Each message reaches those who stay,
 * whole and in order, while they hold some of them, or take groups and give back a part; others
 * come and go; some are so slow that they are evicted in the middle of a frame; and a tap looks on.
 *
 * ThreadSanitizer takes two mappings of the same memory for two places. So the ring is one plain
 * mapping, and no frame runs over its end: a turn of frames takes half the ring, and each starts on
 * a multiple of its own size.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "ring/packed.h"
#include "ring/ring.h"
#include "ring/spill.h"
#include "ring/tap.h"
#include "shm/wait.h"
#include "tests/support/pattern.h"
#include "tests/support/sleep.h"
#include "tests/support/suite.h"

enum { CAPACITY = 4096, SLOTS = 6, SPILL = 6 * RC_SPILL_UNIT, LEASES = 8, MOST = 40 };
enum { STAYS = 1, SLOTH = 2 }; /* in the place of a process: the writer tells readers apart by it */

static struct rc_ring ring;
static bool asleep;     /* who waits sleeps until it is woken, however long; else it yields */
static uint64_t wanted; /* so many messages, or some more, up to a whole turn */

#define MORE UINT64_MAX
static _Atomic uint64_t total;    /* how many were sent; MORE: the writer is at work */
static _Atomic bool holds[SLOTS]; /* a sloth that holds something, and may be evicted */

/* The times that it came to this, in all runs. */
static _Atomic uint64_t most_held, parts, visits, evictions, torn, tapped, tapped_spilled, sleeps;

/* ---- Messages -------------------------------------------------------------------------------- */

/* A turn is a packed frame of 4 units (RC_FRAME_ALIGN) with 12 messages, two frames of 2 units, and
 * eight of a unit, of which two are notes: their payload lies in spill memory, which is small, so
 * that regions are used again and again. No message is so short that its frame would take fewer
 * units. */
enum { PACKED = 12, TURN = PACKED + 10, HEADER = sizeof(struct rc_frame_header) };
_Static_assert(CAPACITY % (16 * RC_FRAME_ALIGN) == 0, "whole turns");

static bool is_spilled(uint64_t number) { return number % TURN == 15 || number % TURN == 19; }

static uint16_t kind_of(uint64_t number) { return number % TURN == 7 ? 2 : 0; }

static size_t bytes_of(uint64_t number) {
  uint64_t place = number % TURN, random = mix(number);
  if (place < PACKED) return 17 + random % 8;
  if (is_spilled(number)) return 8 * (1 + random % (RC_SPILL_UNIT / 4)); /* one to three units */
  size_t most = (place < PACKED + 2 ? 2 : 1) * RC_FRAME_ALIGN - HEADER;
  return most - random % RC_LINE;
}

/* A message's word at `at`; the first is the number. */
static uint64_t word_of(uint64_t number, size_t at) {
  return at == 0 ? number : pattern_word(number, at);
}

static size_t left_of(size_t bytes, size_t at) { return bytes - at < 8 ? bytes - at : 8; }

static void fill(void *out, uint64_t number) {
  for (size_t at = 0, bytes = bytes_of(number); at < bytes; at += 8) {
    uint64_t word = word_of(number, at);
    memcpy((uint8_t *)out + at, &word, left_of(bytes, at));
  }
}

static bool is_message(const void *data, size_t bytes, uint16_t kind, uint64_t number) {
  bool same = bytes == bytes_of(number) && kind == kind_of(number);
  for (size_t at = 0; same && at < bytes; at += 8) {
    uint64_t word = word_of(number, at);
    same = memcmp((const uint8_t *)data + at, &word, left_of(bytes, at)) == 0;
  }
  return same;
}

static void must_be(const void *data, size_t bytes, uint16_t kind, uint64_t number) {
  if (!is_message(data, bytes, kind, number)) abort();
}

static uint64_t number_in(const void *data) {
  uint64_t number;
  memcpy(&number, data, sizeof number);
  return number;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

struct actor {
  pthread_t thread;
  uint64_t seed;
  struct rc_waiter waiter;
  struct rc_ring_reader reader;
};

static int count_sleeps(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  sleeps++;
  return wait_without_end(word, value, timeout_ns);
}

static int nothing_to_check(void *context) {
  (void)context;
  return -EAGAIN;
}

/* -ECANCELED: nothing more comes. */
static int await(struct actor *actor, int (*poll)(void *), void *context) {
  const struct rc_wait how = {.poll = poll, .check = nothing_to_check, .context = context};
  if (asleep) return rc_wait(&actor->waiter, &how, -1);
  for (;;) {
    bool is_over = total != MORE;
    int result = poll(context);
    if (result != -EAGAIN) return result;
    if (is_over) return -ECANCELED;
    sched_yield();
  }
}

static void tell_writer(void) {
  if (asleep) rc_wake(&ring.control->not_full);
}

/* ---- The writer ------------------------------------------------------------------------------ */

struct writing {
  struct rc_ring_writer writer;
  struct rc_spill spill;
  uint64_t number;
  uint8_t *out;
};

static int reserve_spilled(struct writing *to, size_t bytes) {
  uint64_t offset;
  void *note;
  int result = rc_ring_reserve(&to->writer, sizeof(struct rc_spilled), &note);
  if (result != 0) return result;
  rc_spill_reclaim(&to->spill, &to->writer);
  result = rc_spill_find(&to->spill, bytes, false, &offset);
  if (result != 0) {
    rc_ring_abort(&to->writer);
    return result;
  }
  rc_spill_open(&to->spill, offset, bytes);
  to->out = (uint8_t *)ring.spill + offset + RC_SPILL_PHASE;
  return 0;
}

static int reserve(struct writing *to) {
  if (is_spilled(to->number)) return reserve_spilled(to, bytes_of(to->number));
  size_t bytes = bytes_of(to->number);
  if (to->number % TURN < PACKED) bytes = 4 * RC_FRAME_ALIGN - HEADER;
  void *out;
  int result = rc_ring_reserve(&to->writer, bytes, &out);
  to->out = out;
  return result;
}

/* A sloth that is in the way with what it holds is evicted, all others are waited for. */
static int poll_room(void *context) {
  struct writing *to = context;
  int result = reserve(to);
  if (result != -EAGAIN) return result;
  uint32_t slot = to->writer.blocker;
  uint64_t owner = rc_load_relaxed(&ring.control->slots[slot].owner); /* the exchange decides */
  bool is_sloth = rc_owner_pid(owner) == SLOTH && rc_owner_state(owner) == RC_SLOT_ACTIVE;
  if (!is_sloth || !holds[slot] || !rc_slot_evict(&ring, slot, owner)) return -EAGAIN;
  return reserve(to);
}

static void send_packed(struct writing *to) {
  uint8_t message[32];
  uint64_t at = 0;
  for (int i = 0; i < PACKED; i++, to->number++) {
    fill(message, to->number);
    at = rc_packed_put(to->out, at, message, bytes_of(to->number), kind_of(to->number));
  }
  rc_ring_publish(&to->writer, at, 0, RC_FRAME_PACKED);
  rc_ring_zero_ahead(&to->writer, at);
}

static void send_one(struct writing *to) {
  size_t bytes = bytes_of(to->number);
  fill(to->out, to->number);
  int result = is_spilled(to->number) ? rc_spill_commit(&to->spill, &to->writer, bytes, 0)
                                      : rc_ring_commit(&to->writer, bytes, 0);
  if (result != 0) abort();
  if (!is_spilled(to->number)) rc_ring_zero_ahead(&to->writer, bytes);
  to->number++;
}

static void *write_turns(void *context) {
  struct writing to = {0};
  rc_ring_writer_init(&to.writer, ring);
  rc_spill_init(&to.spill, SPILL);
  while (to.number < wanted || to.number % TURN != 0) {
    if (await(context, poll_room, &to) != 0) abort();
    if (to.number % TURN == 0) send_packed(&to);
    else send_one(&to);
    if (asleep) rc_wake(&ring.control->not_empty);
  }
  total = to.number;
  return NULL;
}

/* ---- Those who stay, and get all ------------------------------------------------------------- */

static void come(struct actor *actor, uint32_t who, bool newest) {
  uint32_t slot;
  uint64_t owner;
  if (rc_slot_claim(&ring, who, 7, &slot, &owner) != 0) abort();
  holds[slot] = false;
  struct rc_start from = {.newest = newest};
  if (rc_slot_activate(&ring, slot, owner, from, &actor->reader) != 0) abort();
  tell_writer(); /* which grants itself nothing while somebody joins */
}

static void leave(struct actor *actor) {
  rc_slot_free(&ring, actor->reader.slot, actor->reader.owner);
  tell_writer();
}

static void let_go(struct rc_ring_reader *reader, uint64_t position) {
  int result = rc_ring_lent(reader, position) != 0 ? rc_ring_release_many(reader, position, 1)
                                                   : rc_ring_release(reader, position);
  if (result != 0) abort();
  tell_writer();
}

struct taking {
  struct rc_ring_reader *reader;
  struct rc_ring_frame frame;
};

static int poll_message(void *context) {
  struct taking *taking = context;
  return rc_ring_take(taking->reader, &taking->frame);
}

/* One by one; lets go of any of those that it holds, at random: also when nothing comes, as the
 * writer may wait for that. What is held stays as it is, whatever the writer does meanwhile. */
static void *take_each(void *context) {
  struct actor *actor = context;
  struct {
    struct rc_ring_frame frame;
    uint64_t number;
  } held[LEASES];
  uint32_t count = 0;
  uint64_t next = 0, random = actor->seed;
  for (bool is_over = false; !is_over || count > 0; random = mix(random)) {
    struct taking taking = {.reader = &actor->reader};
    int result = count > 0 ? poll_message(&taking) : await(actor, poll_message, &taking);
    is_over = result == -ECANCELED;
    if (result == 0) {
      must_be(taking.frame.data, taking.frame.bytes, taking.frame.kind, next);
      held[count].frame = taking.frame;
      held[count++].number = next++;
      if (count > most_held) most_held = count;
      if (random % 4 != 0) continue;
    } else if (result != -EAGAIN && result != -EBUSY && result != -ECANCELED) {
      abort();
    }
    if (count == 0) continue;
    uint32_t which = (uint32_t)(random >> 8) % count;
    const struct rc_ring_frame *frame = &held[which].frame;
    must_be(frame->data, frame->bytes, frame->kind, held[which].number);
    let_go(&actor->reader, frame->position);
    held[which] = held[--count];
  }
  if (next != total) abort();
  leave(actor);
  return NULL;
}

struct grouping {
  struct rc_ring_reader *reader;
  uint32_t most, count;
  struct ringcast_frame group[MOST];
  struct rc_ring_frame spilled;
};

static int poll_group(void *context) {
  struct grouping *to = context;
  return rc_ring_next_many(to->reader, to->group, to->most, &to->count, &to->spilled);
}

static int release_group(const struct grouping *to, uint32_t keep) {
  int result = to->spilled.spilled ? rc_ring_release(to->reader, to->spilled.position)
                                   : rc_ring_release_many(to->reader, to->group->position, keep);
  tell_writer();
  return result;
}

/* In groups, of some of which only the beginning is read, and the rest comes again. */
static void *take_groups(void *context) {
  struct actor *actor = context;
  struct grouping to = {.reader = &actor->reader};
  uint64_t next = 0, random = actor->seed;
  for (;; random = mix(random)) {
    to.most = (uint32_t)random % MOST + 1;
    int result = await(actor, poll_group, &to);
    if (result == -ECANCELED) break;
    if (result != 0) abort();
    bool is_part = !to.spilled.spilled && random / MOST % 3 == 0;
    uint32_t keep = is_part ? (uint32_t)(random >> 32) % (to.count + 1) : to.count;
    for (uint32_t i = 0; i < keep; i++)
      must_be(to.group[i].data, to.group[i].bytes, to.group[i].kind, next++);
    if (release_group(&to, keep) != 0) abort();
    parts += keep < to.count;
  }
  if (next != total) abort();
  leave(actor);
  return NULL;
}

/* ---- Those who come and go ------------------------------------------------------------------- */

/* Comes, reads some without a gap, leaves, also in the midst of a packed frame, and comes again:
 * now at the tail, now at the newest frame, which it may have had. */
static void *visit(void *context) {
  struct actor *actor = context;
  uint64_t random = actor->seed, expected = 0;
  for (int result = 0; result == 0; visits++) {
    bool newest = random & 1;
    come(actor, STAYS, newest);
    struct taking taking = {.reader = &actor->reader};
    uint64_t left = random / 2 % 64 + 1, next = MORE;
    for (; left > 0; left--) {
      result = await(actor, poll_message, &taking);
      if (result == -ECANCELED) break;
      if (result != 0) abort();
      if (next == MORE) next = number_in(taking.frame.data);
      if (next + (newest ? PACKED : 0) < expected) abort();
      must_be(taking.frame.data, taking.frame.bytes, taking.frame.kind, next++);
      let_go(&actor->reader, taking.frame.position);
    }
    if (next != MORE && next > expected) expected = next;
    leave(actor);
    random = mix(random);
  }
  return NULL;
}

/* The writer may be at work on it by then: that is what the look after it is for, and no race to be
 * told of. */
__attribute__((no_sanitize("thread"))) static bool is_intact(const struct ringcast_frame *frame,
                                                             uint64_t number) {
  static _Thread_local uint8_t copy[4 * RC_SPILL_UNIT];
  if (frame->bytes != bytes_of(number) || frame->kind != kind_of(number)) return false;
  for (size_t i = 0; i < frame->bytes; i++) copy[i] = ((const uint8_t *)frame->data)[i];
  return is_message(copy, frame->bytes, frame->kind, number);
}

/* Joins, takes a few groups, and reads the last in place, again and again, until it is evicted.
 * What it read before a look that finds it still in its place must have been whole; what came after
 * is of no use, and nothing may come of it. */
static void *be_slow(void *context) {
  struct actor *actor = context;
  struct grouping to = {.reader = &actor->reader, .most = MOST};
  uint64_t random = actor->seed;
  for (int result = 0; result != -ECANCELED; random = mix(random)) {
    come(actor, SLOTH, false);
    result = await(actor, poll_group, &to);
    for (uint64_t left = random % 16; result == 0 && left > 0; left--) {
      if (release_group(&to, to.count) != 0) abort();
      result = await(actor, poll_group, &to);
    }
    uint64_t first = result == 0 ? number_in(to.group->data) : 0;
    holds[actor->reader.slot] = result == 0;
    tell_writer();
    while (result == 0 && total == MORE) {
      bool intact = true;
      for (uint32_t i = 0; i < to.count; i++) intact &= is_intact(&to.group[i], first + i);
      if (rc_ring_is_evicted(&actor->reader)) result = -ESTALE;
      torn += result != 0 && !intact;
      if (result == 0 && !intact) abort();
      sched_yield();
    }
    if (result == -ESTALE && release_group(&to, to.count) != -ESTALE) abort();
    evictions += result == -ESTALE;
    leave(actor);
    if (total != MORE) break;
  }
  return NULL;
}

/* ---- A tap ----------------------------------------------------------------------------------- */

/* As the tap itself copies: what is overwritten meanwhile is told by the floor. */
__attribute__((no_sanitize("thread"))) static int fetch(void *context, uint64_t offset, void *to,
                                                        uint64_t bytes) {
  (void)context;
  for (uint64_t i = 0; i < bytes; i++) ((uint8_t *)to)[i] = ring.spill[offset + i];
  return 0;
}

/* Whatever it gets is whole, in order, and without a gap that is not counted. */
static void *tap_all(void *context) {
  static _Alignas(16) uint8_t buffer[4 * RC_SPILL_UNIT];
  struct rc_ring_tap tap;
  struct rc_ring_frame frame;
  uint64_t expected = 0, gaps = UINT64_MAX; /* it may begin anywhere */
  rc_tap_init(&tap, &ring);
  tap.fetch = fetch;
  for (bool is_over = false;;) {
    int result = rc_tap_next(&tap, buffer, sizeof buffer, &frame);
    if (result == -EAGAIN && is_over) return context;
    is_over = total != MORE;
    if (result == -EAGAIN) sched_yield();
    if (result == -EAGAIN) continue;
    if (result != 0) abort();
    struct rc_packed packed = rc_packed_open(buffer, frame.position, frame.bytes);
    struct ringcast_frame message = {
        .data = buffer, .bytes = frame.bytes, .kind = frame.kind, .position = frame.position};
    do {
      if (frame.packed && rc_packed_next(&packed, &message) != 0) abort();
      uint64_t number = number_in(message.data);
      if (tap.gaps == gaps ? number != expected : number < expected) abort();
      must_be(message.data, message.bytes, message.kind, number);
      expected = number + 1;
      gaps = tap.gaps;
      tapped++;
    } while (frame.packed && rc_packed_is_left(&packed));
    tapped_spilled += frame.spilled;
  }
}

/* ---- The cast -------------------------------------------------------------------------------- */

static const struct role {
  void *(*body)(void *);
  bool stays; /* is there before the first message */
  uint32_t leases;
} cast[] = {
    {take_each, true, LEASES}, {take_each, true, 1}, {take_groups, true, 1}, {visit, false, 0},
    {visit, false, 0},         {be_slow, false, 0},  {tap_all, false, 0},
};
enum { ACTORS = sizeof cast / sizeof *cast };

static void make_ring(void) {
  uint8_t *data = aligned_alloc(RC_LINE, CAPACITY), *spill = aligned_alloc(RC_SPILL_UNIT, SPILL);
  struct rc_control *control = aligned_alloc(RC_LINE, rc_control_bytes(SLOTS));
  memset(data, 0, CAPACITY);
  memset((void *)control, 0, rc_control_bytes(SLOTS));
  ring = (struct rc_ring){.control = control,
                          .data = data,
                          .capacity = CAPACITY,
                          .spill = spill,
                          .spill_bytes = SPILL,
                          .slots = SLOTS};
}

static void init_waiter(struct actor *actor, struct rc_eventcount *event) {
  ck_assert_int_eq(rc_waiter_init(&actor->waiter, event, &ring.control->cpus, -1, 0), 0);
}

static void run_threads(void) {
  static struct actor actors[ACTORS], writer;
  memset(actors, 0, sizeof actors);
  memset(&writer, 0, sizeof writer);
  total = MORE;
  make_ring();
  init_waiter(&writer, &ring.control->not_full);
  for (int i = 0; i < ACTORS; i++) {
    actors[i].seed = (uint64_t)i + 1;
    init_waiter(&actors[i], &ring.control->not_empty);
    if (cast[i].stays) come(&actors[i], STAYS, false);
    actors[i].reader.leases = cast[i].leases;
  }
  for (int i = 0; i < ACTORS; i++)
    ck_assert_int_eq(pthread_create(&actors[i].thread, NULL, cast[i].body, &actors[i]), 0);
  ck_assert_int_eq(pthread_create(&writer.thread, NULL, write_turns, &writer), 0);
  pthread_join(writer.thread, NULL);
  /* It ends only waits that have to wait, and that comes after all messages. */
  for (int i = 0; asleep && i < ACTORS; i++) rc_waiter_cancel(&actors[i].waiter);
  for (int i = 0; i < ACTORS; i++) pthread_join(actors[i].thread, NULL);
  ck_assert_uint_gt(ring.control->spill_floor, 0);
  for (int i = 0; i < SLOTS; i++)
    ck_assert_uint_eq(rc_owner_state(ring.control->slots[i].owner), RC_SLOT_FREE);
  free(ring.control);
  free(ring.data);
  free((void *)ring.spill);
}

static bool has_shown_all(void) {
  return most_held == LEASES && parts > 10 && visits > 10 && evictions > 10 && tapped > 0 &&
         tapped_spilled > 0 && (sleeps > 0 || !asleep);
}

/* Once more while something has not come to pass, since some threads may hardly have a CPU.
 * RINGCAST_TEST_TIMES as many messages for those who have the time; a fifth where each step is
 * watched. */
LOOP_TEST(messages_reach_all_whole_and_in_order_and_no_wake_up_is_lost, 0, 2) {
  enum { MOST_RUNS = 20 };
  const char *times = getenv("RINGCAST_TEST_TIMES");
  asleep = _i == 1;
  wanted = (uint64_t)share_of(asleep ? 100000 : 400000);
#if defined(__SANITIZE_THREAD__)
  wanted /= 5;
#endif
  if (times && atoi(times) > 1) wanted *= (uint64_t)atoi(times);
  sleep_without_slices();
  rc_os.futex_wait = count_sleeps;
  for (int i = 0; i == 0 || (i < MOST_RUNS && !has_shown_all()); i++) run_threads();
  printf("%llu held, %llu parts of groups, %llu visits, %llu evicted, %llu of them from what was "
         "overwritten, %llu tapped, %llu of them spilled, %llu sleeps\n",
         (unsigned long long)most_held, (unsigned long long)parts, (unsigned long long)visits,
         (unsigned long long)evictions, (unsigned long long)torn, (unsigned long long)tapped,
         (unsigned long long)tapped_spilled, (unsigned long long)sleeps);
  ck_assert(has_shown_all());
}

RUN_TESTS("ring_threads", NULL, NULL)
