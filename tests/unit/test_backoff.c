/* SPDX-License-Identifier: Apache-2.0 */
/* How long a reader stays away from the ring, what it learns from that, and when it does not stay
 * away at all. */
#include "shm/os.h"
#include "tests/support/handles.h"
#include "tests/support/ring.h"

/* ---- What is learnt -------------------------------------------------------------------------- */

/* Frames enough in so many pauses. */
static uint32_t worth(uint32_t pauses) { return pauses / RC_BACKOFF_WORTH + 1; }

/* What it is after it has learned, from a stay of so many pauses in which so many frames came. Only
 * a try changes when the next try is. */
static uint32_t learned(uint32_t pauses, uint32_t stayed, uint32_t frames) {
  struct rc_backoff backoff = {
      .pauses = pauses, .until_trial = 5, .trial_interval = RC_BACKOFF_MIN_INTERVAL};
  rc_backoff_learn(&backoff, stayed, frames);
  ck_assert_int_eq(backoff.until_trial == 5, pauses > 0);
  if (pauses > 0) ck_assert_uint_eq(backoff.trial_interval, RC_BACKOFF_MIN_INTERVAL);
  return backoff.pauses;
}

/* Twice as long while it pays, half as long for too few frames, no longer where nothing came. */
TEST(a_stay_is_learned_from) {
  for (uint32_t pauses = RC_BACKOFF_STRETCH; pauses <= RC_BACKOFF_MOST; pauses *= 2) {
    uint32_t half = pauses > RC_BACKOFF_STRETCH ? pauses / 2 : 0;
    ck_assert_uint_eq(learned(pauses, pauses, worth(pauses)),
                      pauses < RC_BACKOFF_MOST ? 2 * pauses : RC_BACKOFF_MOST);
    ck_assert_uint_eq(learned(pauses, pauses, worth(pauses) - 1), half);
    ck_assert_uint_eq(learned(pauses, pauses, 0), 0);
  }
}

TEST(a_try_is_learned_from) {
  ck_assert_uint_eq(learned(0, RC_BACKOFF_STRETCH, worth(RC_BACKOFF_STRETCH)),
                    2 * RC_BACKOFF_STRETCH);
  for (uint32_t frames = 0; frames < worth(RC_BACKOFF_STRETCH); frames++)
    ck_assert_uint_eq(learned(0, RC_BACKOFF_STRETCH, frames), 0);
}

static uint32_t waits_before_a_try(struct rc_backoff *backoff) {
  uint32_t waits = 0;
  while (waits <= RC_BACKOFF_MAX_INTERVAL && !rc_backoff_begin_wait(backoff)) waits++;
  return waits;
}

TEST(tries_in_vain_become_ever_more_seldom_and_one_that_pays_makes_them_frequent) {
  struct rc_backoff backoff = {0};
  ck_assert_uint_eq(waits_before_a_try(&backoff),
                    0); /* a reader that has just attached tries in its first wait */
  rc_backoff_learn(&backoff, RC_BACKOFF_STRETCH, 1);
  for (int round = 0; round < 3; round++) {
    for (uint32_t waits = RC_BACKOFF_MIN_INTERVAL; waits < RC_BACKOFF_MAX_INTERVAL; waits *= 2) {
      ck_assert_uint_eq(waits_before_a_try(&backoff), waits);
      rc_backoff_learn(&backoff, RC_BACKOFF_STRETCH, 0);
    }
    for (int i = 0; i < 3; i++) {
      ck_assert_uint_eq(waits_before_a_try(&backoff), RC_BACKOFF_MAX_INTERVAL);
      rc_backoff_learn(&backoff, RC_BACKOFF_STRETCH, 0);
    }
    ck_assert_uint_eq(waits_before_a_try(&backoff), RC_BACKOFF_MAX_INTERVAL);
    rc_backoff_learn(&backoff, RC_BACKOFF_STRETCH, worth(RC_BACKOFF_STRETCH));
    ck_assert_uint_gt(backoff.pauses, 0);
    rc_backoff_learn(&backoff, backoff.pauses, 0); /* the stream is over */
  }
  ck_assert_uint_eq(waits_before_a_try(&backoff), RC_BACKOFF_MIN_INTERVAL);
}

TEST(while_one_stays_away_no_wait_is_counted) {
  struct rc_backoff backoff = {.pauses = RC_BACKOFF_STRETCH, .until_trial = 2};
  for (int i = 0; i < 5; i++) ck_assert(rc_backoff_begin_wait(&backoff));
  ck_assert_uint_eq(backoff.until_trial, 2);
  backoff.pauses = 0;
  ck_assert_uint_eq(waits_before_a_try(&backoff), 2);
}

/* ---- With a ring ----------------------------------------------------------------------------- */

static void send_many(uint64_t count) {
  for (uint64_t i = 0; i < count; i++) ck_assert_int_eq(send(i, 40), 0);
}

TEST(a_first_stretch_that_brings_enough_frames_is_doubled) {
  struct rc_ring_reader reader = join();
  struct rc_backoff backoff = {0}, less = {0};
  send_many(worth(RC_BACKOFF_STRETCH) - 1); /* one less than enough */
  rc_backoff_pause(&less, &reader);
  ck_assert_uint_eq(less.pauses, 0);
  send_many(1);
  rc_backoff_pause(&backoff, &reader);
  ck_assert_uint_eq(backoff.pauses, 2 * RC_BACKOFF_STRETCH);
  ck_assert_uint_eq(rc_ring_held(&reader), 0); /* it only looks */
  ck_assert_uint_eq(reader.next, 0);
}

/* Nobody writes here meanwhile: after the first stretch nothing more comes. */
TEST(a_burst_is_no_stream_however_long) {
  struct rc_ring_reader reader = join();
  send_many(worth(RC_BACKOFF_MOST));
  struct rc_backoff backoff = {.pauses = RC_BACKOFF_MOST};
  for (uint32_t pauses = RC_BACKOFF_MOST; pauses > RC_BACKOFF_STRETCH; pauses /= 2) {
    ck_assert_uint_eq(backoff.pauses, pauses);
    rc_backoff_pause(&backoff, &reader);
  }
  ck_assert_uint_eq(backoff.pauses, RC_BACKOFF_STRETCH);
}

TEST(with_one_frame_there_one_stays_away_for_less) {
  struct rc_ring_reader reader = join();
  struct rc_backoff backoff = {0}, active = {.pauses = RC_BACKOFF_MOST};
  send_many(1);
  rc_backoff_pause(&backoff, &reader);
  ck_assert_uint_eq(backoff.pauses, 0);
  rc_backoff_pause(&active, &reader);
  ck_assert_uint_eq(active.pauses, RC_BACKOFF_MOST / 2);
}

static uint32_t count(const struct rc_ring_reader *reader, uint32_t most) {
  uint64_t position = reader->next;
  uint32_t frames = rc_ring_count(&reader->view, &position, most);
  ck_assert_uint_eq(position, reader->next + frames * rc_frame_footprint(40));
  return frames;
}

TEST(frames_are_counted_to_the_most_or_to_the_end) {
  struct rc_ring_reader reader = join();
  struct rc_ring_frame frame;
  ck_assert_uint_eq(count(&reader, 10), 0);
  send_many(7);
  ck_assert_uint_eq(count(&reader, 0), 0);
  ck_assert_uint_eq(count(&reader, 3), 3);
  ck_assert_uint_eq(count(&reader, 7), 7);
  ck_assert_uint_eq(count(&reader, UINT32_MAX), 7);
  ck_assert_int_eq(rc_ring_next(&reader, &frame), 0); /* what is held is not to be read any more */
  ck_assert_uint_eq(count(&reader, UINT32_MAX), 6);
}

TEST(frames_are_counted_to_one_that_is_damaged) {
  struct rc_ring_reader reader = join();
  struct rc_frame_header *third = rc_frame_at(&ring, 2 * rc_frame_footprint(40));
  send_many(7);
  const uint64_t commits[] = {0, 1, 64, 2 * 128, 5 * 128, UINT64_MAX};
  for (size_t i = 0; i < sizeof commits / sizeof *commits; i++) {
    third->commit = commits[i];
    ck_assert_uint_eq(count(&reader, 10), 2);
  }
  third->commit = 3 * rc_frame_footprint(40);
  ck_assert_uint_eq(count(&reader, 10), 7);
  third->flags = 4;
  ck_assert_uint_eq(count(&reader, 10), 2);
}

TEST(counting_ends_in_a_full_ring_too) {
  struct rc_ring_reader reader = join();
  uint64_t sent = 0;
  while (send(sent, 40) == 0) sent++;
  ck_assert_uint_ge(sent, ring.capacity / rc_frame_footprint(40) - 1);
  ck_assert_uint_eq(count(&reader, UINT32_MAX), sent);
}

/* ---- By the public API ----------------------------------------------------------------------- */

static ringcast_writer *sender;
static ringcast_reader *receiver;

/* The reader spins, on any machine. */
static void open_channel(int64_t spin_ns) {
  sender = writer_of(.capacity = CAPACITY);
  receiver = reader_of(sender, .spin_ns = spin_ns);
  /* Relaxed: no other thread. */
  receiver->waiter.participants = rc_load_relaxed(&receiver->waiter.cpus->participants);
  receiver->waiter.oversubscribed = false;
}

static void close_channel(void) {
  ringcast_reader_close(receiver);
  ringcast_writer_close(sender);
}

static void expect_backoff(uint32_t pauses, uint32_t until_trial, uint32_t trial_interval) {
  ck_assert_uint_eq(receiver->backoff.pauses, pauses);
  ck_assert_uint_eq(receiver->backoff.until_trial, until_trial);
  ck_assert_uint_eq(receiver->backoff.trial_interval, trial_interval);
}

enum there { NOTHING, A_FRAME, ONE_IS_HELD };

/* Who only looks, finds a frame, may hold no more or has too little time does not stay away; nor
 * who never spins, or too shortly: staying away is spinning. Staying away, here for nothing, would
 * end it. */
static const struct {
  int64_t spin_ns, timeout_ns;
  enum there there;
  int result;
  bool stays_away;
} reads[] = {
    {RC_DEFAULT_SPIN_NS, 0, NOTHING, -EAGAIN, false},
    {RC_DEFAULT_SPIN_NS, 0, A_FRAME, 0, false},
    {RC_DEFAULT_SPIN_NS, 1, A_FRAME, 0, false},
    {RC_DEFAULT_SPIN_NS, 1000000000, A_FRAME, 0, false},
    {RC_DEFAULT_SPIN_NS, RINGCAST_FOREVER, A_FRAME, 0, false},
    {RC_DEFAULT_SPIN_NS, RINGCAST_FOREVER, ONE_IS_HELD, -EBUSY, false},
    {RC_DEFAULT_SPIN_NS, RC_DEFAULT_SPIN_NS, NOTHING, -ETIMEDOUT, true},
    {RC_DEFAULT_SPIN_NS, RC_DEFAULT_SPIN_NS - 1, NOTHING, -ETIMEDOUT, false},
    {RC_DEFAULT_SPIN_NS - 1, RC_DEFAULT_SPIN_NS, NOTHING, -ETIMEDOUT, false},
    {-1, RC_DEFAULT_SPIN_NS, NOTHING, -ETIMEDOUT, false},
};

LOOP_TEST(only_who_waits_and_spins_stays_away, 0, sizeof reads / sizeof *reads) {
  struct ringcast_frame frame;
  open_channel(reads[_i].spin_ns);
  if (reads[_i].there != NOTHING) ck_assert_int_eq(ringcast_writer_send(sender, "x", 1, 0, 0), 0);
  if (reads[_i].there == ONE_IS_HELD)
    ck_assert_int_eq(ringcast_reader_next(receiver, 0, &frame), 0);
  receiver->backoff = (struct rc_backoff){
      .pauses = 128, .until_trial = 7, .trial_interval = RC_BACKOFF_MIN_INTERVAL};
  ck_assert_int_eq(ringcast_reader_next(receiver, reads[_i].timeout_ns, &frame), reads[_i].result);
  expect_backoff(reads[_i].stays_away ? 0 : 128, 7, RC_BACKOFF_MIN_INTERVAL);
  /* For however short a time. */
  bool waited = reads[_i].result == -ETIMEDOUT && reads[_i].spin_ns > 0;
  ck_assert_uint_eq(receiver->backoff.dialogue, waited ? RC_BACKOFF_DIALOGUE : 0);
  close_channel();
}

TEST(who_waits_tries_at_once_and_then_seldom) {
  struct ringcast_frame frame;
  open_channel(RC_DEFAULT_SPIN_NS);
  ck_assert_int_eq(ringcast_reader_next(receiver, 0, &frame), -EAGAIN);
  expect_backoff(0, 0, 0);
  for (uint32_t i = 0; i <= RC_BACKOFF_MIN_INTERVAL; i++) {
    ck_assert_int_eq(ringcast_reader_next(receiver, RC_DEFAULT_SPIN_NS, &frame), -ETIMEDOUT);
    expect_backoff(0, RC_BACKOFF_MIN_INTERVAL - i, RC_BACKOFF_MIN_INTERVAL);
  }
  ck_assert_int_eq(ringcast_reader_next(receiver, RC_DEFAULT_SPIN_NS, &frame), -ETIMEDOUT);
  expect_backoff(0, 2 * RC_BACKOFF_MIN_INTERVAL, 2 * RC_BACKOFF_MIN_INTERVAL);
  close_channel();
}

/* ---- Before the first look ------------------------------------------------------------------- */

static int64_t now;

static int64_t look_at_clock(void) { return now; }

/* The reads of a dialogue up to the next look at the clock. They take so long, without the pauses
 * or with them. */
static uint32_t pass(struct rc_backoff *backoff, int64_t without, int64_t with) {
  int64_t began = backoff->since;
  uint32_t count = 0;
  now += backoff->early ? with : without;
  do {
    rc_backoff_waited(backoff);
    rc_backoff_before_look(backoff);
    count++;
  } while (backoff->since == began);
  return count;
}

static void pass_trial(struct rc_backoff *backoff, int64_t without, int64_t with) {
  for (uint32_t i = 0; i < RC_BACKOFF_TRIAL; i++) {
    ck_assert_int_eq(backoff->early, i % 2 != 0);
    /* The last window of each kind is interrupted. */
    int64_t more = i < RC_BACKOFF_TRIAL - 2 ? 0 : 50000;
    ck_assert_uint_eq(pass(backoff, without + more, with + more), RC_BACKOFF_WINDOW);
  }
}

static const struct {
  int64_t without, with;
  bool pauses;
} dialogues[] = {{6400, 5000, true},
                 {6400, 6199, true},
                 {6400, 6200, false},
                 {6400, 6400, false},
                 {6400, 8000, false}};

LOOP_TEST(a_trial_decides_for_the_faster_way, 0, sizeof dialogues / sizeof *dialogues) {
  int64_t without = dialogues[_i].without, with = dialogues[_i].with;
  struct rc_backoff backoff = {0};
  rc_os.now_ns = look_at_clock;
  ck_assert_uint_eq(pass(&backoff, 1, 1),
                    1); /* the first read begins the trial; what was before does not count */
  pass_trial(&backoff, without, with);
  ck_assert_int_eq(backoff.early, dialogues[_i].pauses);
  uint32_t held = pass(&backoff, with, without); /* the contrary, until the next trial */
  ck_assert_uint_gt(held, RC_BACKOFF_READS);
  ck_assert_uint_le(held, RC_BACKOFF_READS + RC_BACKOFF_WINDOW);
  pass_trial(&backoff, with, without);
  ck_assert_int_eq(backoff.early, without < with - with / RC_BACKOFF_GAIN);
}

TEST(a_sleep_begins_the_trial_anew) {
  struct rc_backoff backoff = {0};
  rc_os.now_ns = look_at_clock;
  pass(&backoff, 1, 1);
  for (uint32_t i = 0; i < 5; i++) pass(&backoff, 6400, 1);
  pass(&backoff, RC_BACKOFF_LONG + 1, RC_BACKOFF_LONG + 1);
  pass_trial(&backoff, 6400, 6400);
  ck_assert(!backoff.early);
}

/* A read that finds its frame, or that does not wait, begins no dialogue, and reads in a row end a
 * dialogue. */
TEST(only_waits_make_a_dialogue) {
  struct ringcast_frame frame;
  open_channel(RC_DEFAULT_SPIN_NS);
  ck_assert_int_eq(ringcast_reader_next(receiver, 0, &frame), -EAGAIN);
  ck_assert_uint_eq(receiver->backoff.dialogue, 0);
  ck_assert_int_eq(ringcast_reader_next(receiver, RC_DEFAULT_SPIN_NS, &frame), -ETIMEDOUT);
  for (uint32_t left = RC_BACKOFF_DIALOGUE;; left--) {
    ck_assert_uint_eq(receiver->backoff.dialogue, left);
    if (left == 0) break;
    ck_assert_int_eq(ringcast_writer_send(sender, "x", 1, 0, 0), 0);
    ck_assert_int_eq(ringcast_reader_next(receiver, RINGCAST_FOREVER, &frame), 0);
    ck_assert_int_eq(ringcast_reader_release(receiver, &frame), 0);
  }
  ck_assert_uint_eq(receiver->backoff.reads, RC_BACKOFF_WINDOW - RC_BACKOFF_DIALOGUE);
  close_channel();
}

static void make_large_ring(void) { make_ring_of(32768); }

RUN_TESTS("backoff", make_large_ring, free_ring)
