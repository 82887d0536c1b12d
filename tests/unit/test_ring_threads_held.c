/* SPDX-License-Identifier: Apache-2.0 */
/* The ring's code with threads: frames that are held, while the writer goes on around them, and
 * readers that are evicted in the middle of one. */
#include "tests/support/threads.h"

enum { HOLDERS = 2, SLOTHS = 2, LEASES = 8, HOLDER = 1, SLOTH = 2 };

static _Atomic int finished;
static _Atomic uint64_t most_held, evictions, torn;

/* Makes room: a sloth that is in the way is evicted, all others are waited for. */
static void evict_or_wait(const struct rc_ring_writer *writer) {
  /* Relaxed: the exchange decides. */
  uint64_t owner = rc_load_relaxed(&ring.control->slots[writer->blocker].owner);
  bool is_sloth = rc_owner_pid(owner) == SLOTH && rc_owner_state(owner) == RC_SLOT_ACTIVE;
  if (!is_sloth || !rc_slot_evict(&ring, writer->blocker, owner)) sched_yield();
}

static void *write_frames(void *nothing) {
  write_all(evict_or_wait);
  finished = 1;
  return nothing;
}

/* ---- Those who hold -------------------------------------------------------------------------- */

struct held {
  struct rc_ring_frame frame;
  uint64_t number;
};

/* It stays as it is until it is released, whatever the writer does meanwhile. */
static void check(const struct held *held) {
  if (!is_whole(&held->frame, held->number)) abort();
}

static void let_go(struct rc_ring_reader *reader, struct held *held) {
  check(held);
  if (rc_ring_release(reader, held->frame.position) != 0) abort();
}

/* Takes frames as they come, and lets go of any of those that it holds, at random: also when
 * nothing comes, as the writer may wait for that. */
static void *hold_frames(void *context) {
  struct rc_ring_reader *reader = context;
  struct held held[LEASES + 1]; /* the last for a look that is refused */
  uint32_t count = 0;
  for (uint64_t next = 0, random = reader->slot; next < frames || count > 0; random = mix(random)) {
    int result = next == frames ? -EBUSY : rc_ring_next(reader, &held[count].frame);
    if (result == 0) {
      held[count].number = next++;
      check(&held[count++]);
      if (count > most_held) most_held = count;
      if (random % 4 != 0) continue;
    } else if (result != -EAGAIN && result != -EBUSY) {
      abort();
    }
    if (count == 0) {
      sched_yield();
      continue;
    }
    uint32_t which = (uint32_t)(random >> 8) % count;
    let_go(reader, &held[which]);
    held[which] = held[--count];
  }
  rc_slot_free(&ring, reader->slot, reader->owner);
  return NULL;
}

/* ---- Those who are evicted ------------------------------------------------------------------- */

/* Whether the payload is what its first word says. The writer may be at work on it by then: that is
 * what the look after it is for, and no race to be told of. */
__attribute__((no_sanitize("thread"))) static bool is_intact(const struct rc_ring_frame *frame) {
  const uint64_t *words = frame->data;
  uint64_t number = words[0];
  if (number >= frames || frame->bytes != frame_bytes(number)) return false;
  for (size_t at = 8; at < frame->bytes; at += 8)
    if (words[at / 8] != frame_word(number, at)) return false;
  return true;
}

/* Reads the frame in place, again and again if it is to hold on to it, until it is evicted. What it
 * read before a look that finds it still in its place must have been whole; what came after is of
 * no use, and nothing may come of it. */
static int read_slowly(struct rc_ring_reader *reader, const struct rc_ring_frame *frame,
                       bool holds_on) {
  do {
    bool intact = is_intact(frame);
    if (rc_ring_is_evicted(reader)) {
      torn += !intact;
      if (rc_ring_release(reader, frame->position) != -ESTALE) abort();
      return -ESTALE;
    }
    if (!intact) abort();
    if (holds_on) sched_yield();
  } while (holds_on && !finished);
  return rc_ring_release(reader, frame->position);
}

/* Joins, keeps up for a few frames, and holds on to the next. */
static void *be_slow(void *nothing) {
  for (uint64_t random = 0; !finished; random = mix(random)) {
    struct rc_ring_reader reader = join(SLOTH);
    struct rc_ring_frame frame;
    int result = 0;
    for (uint64_t left = random % 32; result == 0 && !finished; left -= left > 0) {
      while ((result = rc_ring_next(&reader, &frame)) == -EAGAIN && !finished) sched_yield();
      if (result == 0) result = read_slowly(&reader, &frame, left == 0);
    }
    if (result == -ESTALE) evictions++;
    else if (!finished) abort();
    rc_slot_free(&ring, reader.slot, reader.owner);
  }
  return nothing;
}

static void run_threads(void) {
  pthread_t writer, holders[HOLDERS], sloths[SLOTHS];
  struct rc_ring_reader readers[HOLDERS];
  finished = 0;
  make_ring();
  for (int i = 0; i < HOLDERS; i++) {
    readers[i] = join(HOLDER);
    readers[i].leases = LEASES;
  }
  for (int i = 0; i < HOLDERS; i++) start(&holders[i], hold_frames, &readers[i]);
  for (int i = 0; i < SLOTHS; i++) start(&sloths[i], be_slow, NULL);
  start(&writer, write_frames, NULL);
  pthread_join(writer, NULL);
  for (int i = 0; i < HOLDERS; i++) pthread_join(holders[i], NULL);
  for (int i = 0; i < SLOTHS; i++) pthread_join(sloths[i], NULL);
  printf("%llu evicted, %llu of them in the middle of a frame that was overwritten\n",
         (unsigned long long)evictions, (unsigned long long)torn);
  for (int i = 0; i < SLOTS; i++)
    ck_assert_uint_eq(rc_owner_state(ring.control->slots[i].owner), RC_SLOT_FREE);
  free_ring();
}

TEST(what_is_held_stays_as_it_is_and_who_is_evicted_learns_of_it_before_it_believes_anything) {
  send_so_many(200000);
  for (int i = 0; i < MOST_RUNS && (most_held < LEASES || evictions <= 10); i++) run_threads();
  ck_assert_uint_eq(most_held, LEASES);
  ck_assert_uint_gt(evictions, 10);
}

RUN_TESTS("ring_threads, held", NULL, NULL)
