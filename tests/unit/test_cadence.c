/* SPDX-License-Identifier: Apache-2.0 */
/* What a waiter learns of the times at which messages come, and which windows it spins in. (That
 * the waiter keeps its budget, and what irregular gaps cost, is in test_wait_pace.) */
#include "shm/wait.h"

#include "tests/support/suite.h"

#define US ((int64_t)1000)
#define MS ((int64_t)1000000)

static struct rc_cadence cadence;
static struct rc_window window;
static int64_t now;

static void begin(void) {
  rc_cadence_init(&cadence);
  now = 1000 * MS;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Deterministic, -1000 to 1000. */
static int64_t dither(int i) { return (int64_t)((uint32_t)i * 2654435761u % 2001) - 1000; }

static void come_after(int64_t gap) {
  now += gap;
  rc_cadence_came(&cadence, now);
}

/* So many messages, `gap` apart, each off by at most so many thousandths. */
static void come(int count, int64_t gap, int64_t thousandths) {
  for (int i = 0; i < count; i++) come_after(gap + gap * thousandths * dither(i) / 1000000);
}

TEST(a_few_gaps_must_be_known) {
  for (int i = 0; i < 4; i++) {
    ck_assert(!rc_cadence_window(&cadence, now, 5, &window));
    come_after(10 * MS);
  }
  come(2, 10 * MS, 0);
  ck_assert(rc_cadence_window(&cadence, now, 5, &window));
}

TEST(a_pause_moves_little_and_a_new_cadence_is_learnt_soon) {
  come(20, 10 * MS, 20);
  int64_t gap = cadence.gap;
  come_after(1000 * MS);
  ck_assert_int_lt(cadence.gap - gap, gap / 20);
  come_after(10 * MS);
  ck_assert(rc_cadence_window(&cadence, now, 5, &window));
  come(12, 25 * MS, 20);
  ck_assert(rc_cadence_window(&cadence, now, 5, &window));
  ck_assert_int_gt(window.until, now + 24 * MS);
  come(40, 3 * MS, 20);
  ck_assert(rc_cadence_window(&cadence, now, 5, &window));
  ck_assert_int_lt(window.until, now + 4 * MS);
}

TEST(a_few_very_late_messages_do_not_close_the_window) {
  for (int i = 0; i < 200; i++) {
    come_after(5 * MS + 30 * US * dither(i) / 1000 + (i % 12 == 11 ? 8 * MS : 0));
    ck_assert(i < 20 || rc_cadence_window(&cadence, now, 5, &window));
  }
  ck_assert_int_lt(cadence.spread, 500 * US);
}

TEST(the_spread_is_the_distance_that_seven_of_eight_keep) {
  int within = 0;
  for (int i = 0; i < 4000; i++) {
    int64_t due = now + cadence.gap, spread = cadence.spread;
    come_after(10 * MS + MS * dither(i) / 1000);
    within += i >= 1000 && now - due <= spread && due - now <= spread;
  }
  ck_assert_int_gt(within, 3000 * 82 / 100);
  ck_assert_int_lt(within, 3000 * 92 / 100);
}

TEST(a_burst_counts_as_its_first_message) {
  for (int i = 0; i < 40; i++) {
    come_after(100 * US);
    come_after(9900 * US);
  }
  ck_assert_int_gt(cadence.gap, 9 * MS);
  ck_assert(rc_cadence_window(&cadence, now, 5, &window));
}

TEST(a_faster_cadence_between_pauses_is_no_burst) {
  come(8, 250 * MS, 20);
  for (int i = 0; i < 5; i++) {
    come_after(250 * MS);
    come(20, 5 * MS, 20);
  }
  ck_assert(rc_cadence_window(&cadence, now, 5, &window));
  ck_assert_int_lt(window.until, now + 6 * MS);
}

TEST(a_long_burst_of_messages_that_follow_at_once_is_one_message) {
  for (int i = 0; i < 40; i++) {
    for (int j = 0; j < 20; j++) come_after(10 * US);
    come_after(9800 * US);
  }
  ck_assert(rc_cadence_window(&cadence, now, 5, &window));
  ck_assert_int_gt(window.until, now + 9 * MS);
}

/* One wait for a message that comes at `due`, where sleeps end `late`. True: spun or woken for it
 * in vain. */
static bool wait_for(int64_t due, int64_t late) {
  if (!rc_cadence_window(&cadence, now, 5, &window)) return false;
  int64_t started = now;
  if (now < window.wake) {
    if (window.wake + late >= due) return false; /* the message wakes the sleeper */
    started = window.wake + late;
    rc_cadence_woke(&cadence, window.wake, started);
  }
  if (started >= window.until) return true;
  rc_cadence_spun(&cadence, least(window.until, due) - started);
  return due > window.until;
}

TEST(no_gap_is_waited_for_in_vain_however_late_sleeps_end) {
  static const int64_t gaps[] = {200 * US, 250 * US, 280 * US, 300 * US,
                                 600 * US, 1 * MS,   5 * MS,   25 * MS};
  static const int64_t delays[] = {5 * US, 55 * US, 120 * US, 250 * US};
  for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
    for (size_t l = 0; l < sizeof delays / sizeof *delays; l++) {
      begin();
      int vain = 0;
      for (int i = 0; i < 1000; i++) {
        vain += wait_for(now + gaps[g], delays[l]);
        come_after(gaps[g]);
      }
      ck_assert_msg(vain <= 20, "gap %d us, %d us late: %d of 1000 in vain", (int)(gaps[g] / US),
                    (int)(delays[l] / US), vain);
    }
}

TEST(no_spin_is_longer_than_two_milliseconds) {
  for (int64_t gap = 10 * MS; gap <= 60000 * MS; gap *= 2) {
    begin();
    for (int i = 0; i < 100; i++) {
      if (rc_cadence_window(&cadence, now, 25, &window))
        ck_assert_int_le(window.until - (window.wake + cadence.lead), 2 * MS + 1);
      come_after(gap + gap * 2 * dither(i) / 100000);
    }
  }
}

TEST(a_sleep_that_ends_late_is_begun_the_earlier) {
  come(20, 10 * MS, 0);
  ck_assert(rc_cadence_window(&cadence, now, 5, &window));
  int64_t wake = window.wake;
  for (int i = 0; i < 20; i++) rc_cadence_woke(&cadence, wake, wake + 200 * US);
  ck_assert(rc_cadence_window(&cadence, now, 5, &window));
  ck_assert_int_lt(window.wake, wake - 100 * US);
  for (int i = 0; i < 100; i++) rc_cadence_woke(&cadence, wake, wake + 5 * US);
  ck_assert(rc_cadence_window(&cadence, now, 5, &window));
  ck_assert_int_gt(window.wake, wake);
}

TEST(a_message_that_does_not_come_is_not_waited_for_a_second_time) {
  come(20, 10 * MS, 10);
  ck_assert(!rc_cadence_window(&cadence, now + 11 * MS, 5, &window));
  ck_assert(!rc_cadence_window(&cadence, now + 20 * MS, 5, &window));
}

RUN_TESTS("cadence", begin, NULL)
