/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reader that waits for frames, and a writer that waits for room, do with their time: on a
 * clock and with sleeps of the test's own, so no figure depends on the machine. Only a look at the
 * clock takes CPU time, a microsecond. The awaited thing comes at `due`, by a look at the clock or
 * during a sleep.
 */
#define _GNU_SOURCE
#include <errno.h>

#include "channel/channel.h"
#include "channel/reader.h"
#include "shm/os.h"
#include "tests/support/channel.h"
#include "tests/support/fake_files.h"

#define US      ((int64_t)1000)
#define MS      ((int64_t)1000000)
#define NEVER   INT64_MAX
#define WAKE_UP (30 * US) /* from the signal until the sleeper runs */
#define LATE    (55 * US) /* the timer's */

enum { READER, WRITER, SIDES };
enum { FEW = 12 }; /* more looks at the clock than a wait needs that only sleeps */

static int side;
static int64_t now, due;
static int64_t
    look_ns; /* how long a look at the clock takes, with the looks for a frame or room before it */
static int64_t taken_ns; /* for how long others interrupt the third look of a wait */
static int64_t yield_ns; /* for how long others run in a yield */
static int looks, sleeps, yields, wakes;
static bool in_window;   /* from a yield to the next sleep */
static int window_looks; /* in all waits */
static int64_t
    met_from; /* when the first yield since the last sleep ended, which begins a window */
static uint64_t cpus;
static ringcast_writer *writer;
static ringcast_reader *reader;

/* ---- The machine ----------------------------------------------------------------------------- */

/* The peer gives what is awaited, in this thread. */
static void give(void) {
  struct ringcast_frame frame;
  due = NEVER;
  if (side == READER) ck_assert_int_eq(ringcast_writer_send(writer, "frame", 5, 0, 0), 0);
  else
    while (ringcast_reader_next(reader, 0, &frame) == 0)
      ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
}

static int64_t look_at_clock(void) {
  now += look_ns;
  if (++looks == 3) now += taken_ns;
  window_looks += in_window;
  if (now >= due) give();
  return now;
}

static int sleep_a_while(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
  (void)word, (void)value;
  bool wakes_up = due <= now + timeout_ns;
  sleeps++;
  in_window = false;
  now = wakes_up ? due + WAKE_UP : now + timeout_ns + LATE;
  if (now >= due) give();
  return wakes_up ? 0 : -ETIMEDOUT;
}

static int count_wakes(_Atomic uint32_t *word, int count) {
  (void)word, (void)count;
  wakes++;
  return 0;
}

static void yield_a_while(void) {
  yields++;
  now += yield_ns;
  if (!in_window) met_from = now;
  in_window = true;
}

static int two_cpus(void) { return 2; }

static int some_cpus(uint64_t *set, size_t bytes) {
  memset(set, 0, bytes);
  set[0] = cpus;
  return 0;
}

static void begin(void) {
  static const struct fake_file no_quota[] = {{0}};
  unsetenv("RINGCAST_DISABLE"); /* each test here makes its own conditions */
  unsetenv("RINGCAST_SPIN_US");
  unsetenv("RINGCAST_WAIT");
  use_fake_files(no_quota);
  rc_os.now_ns = look_at_clock;
  rc_os.futex_wait = sleep_a_while;
  rc_os.futex_wake = count_wakes;
  rc_os.yield = yield_a_while;
  rc_os.online_cpus = two_cpus;
  rc_os.affinity = some_cpus;
  now = 1000 * MS;
  due = NEVER;
  cpus = 3;
  look_ns = yield_ns = US;
}

/* ---- Waits ----------------------------------------------------------------------------------- */

static void make_ring(int which, uint32_t mode) {
  side = which;
  writer = writer_of(.capacity = 4096, .wait = mode);
  reader = reader_of(writer, .wait = mode);
}

static void close_ring(void) {
  ringcast_reader_close(reader);
  ringcast_writer_close(writer);
}

static int wait_at_most(int64_t timeout_ns) {
  struct ringcast_frame frame;
  looks = sleeps = yields = wakes = 0;
  in_window = false;
  int result = side == READER ? ringcast_reader_next(reader, timeout_ns, &frame)
                              : ringcast_writer_send(writer, "frame", 5, 0, timeout_ns);
  if (result == 0 && side == READER) ck_assert_int_eq(ringcast_reader_release(reader, &frame), 0);
  return result;
}

/* Waits for what comes at this time. The writer first fills the ring. */
static void wait_until(int64_t when) {
  due = NEVER;
  while (side == WRITER && ringcast_writer_send(writer, "frame", 5, 0, 0) == 0) continue;
  due = when;
  ck_assert_int_eq(wait_at_most(RINGCAST_FOREVER), 0);
  ck_assert_int_ge(now, when);
}

/* Three are late and the fourth is early: then a window lasts longer than half of it on average. */
static int64_t lateness(int i) { return i % 4 == 3 ? -3 : 1; }

/* So many waits, for what comes `gap` apart, each off by so many thousandths, or three times as
 * many. */
static void wait_often(int count, int64_t gap, int64_t thousandths) {
  int64_t last = now;
  for (int i = 0; i < count; i++) {
    last += gap + gap * thousandths * lateness(i) / 1000;
    wait_until(last);
  }
}

static void ck_sleeps_at_once(void) {
  ck_assert_int_eq(yields, 0);
  ck_assert_int_gt(sleeps, 0);
  ck_assert_int_lt(looks, FEW);
}

/* ---- Regular messages ------------------------------------------------------------------------ */

LOOP_TEST(a_regular_message_is_met_awake_and_spun_for_only_shortly_before, 0, SIDES) {
  make_ring(_i, RINGCAST_WAIT_BALANCED);
  wait_often(20, 10 * MS, 2);
  int64_t last = now;
  int met = 0;
  for (int i = 0; i < 50; i++) {
    last += 10 * MS + (i % 2 ? 20 : -20) * US;
    wait_until(last);
    ck_assert_int_gt(sleeps, 0);
    ck_assert_int_lt(looks, 200);
    if (yields == 0 || met_from > last) continue; /* the message was early, and woke the sleeper */
    ck_assert_int_gt(met_from, last - 300 * US);
    ck_assert_int_le(looks, (now - met_from) / US + FEW); /* none before the window */
    met += wakes == 0;                                    /* the peer found no sleeper */
  }
  ck_assert_int_ge(met, 45);
  close_ring();
}

static int warmed;
static int64_t warmed_at, warm_ns;

static void warm(void *context) {
  ck_assert_ptr_eq(context, &warmed);
  warmed++;
  warmed_at = now;
  now += warm_ns;
}

static void make_warmed_ring(uint32_t mode, int64_t takes) {
  side = READER;
  writer = writer_of(.capacity = 4096);
  reader = reader_of(writer, .wait = mode);
  rc_reader_warm_by(reader, warm, &warmed);
  warm_ns = takes;
  warmed = 0;
}

TEST(a_small_budget_is_left_for_the_spin) {
  make_warmed_ring(RINGCAST_WAIT_BALANCED, 40 * US);
  wait_often(20, 2 * MS, 0);
  ck_assert_int_eq(yields, 1);
  ck_assert_int_eq(warmed, 0);
  wait_often(20, 10 * MS, 0);
  ck_assert_int_gt(warmed, 0);
  close_ring();
}

TEST(warming_comes_before_the_window_and_makes_no_message_late) {
  static const int64_t times[] = {1 * US, 40 * US, 300 * US};
  for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
    make_warmed_ring(RINGCAST_WAIT_LATENCY, times[i]);
    wait_often(20, 10 * MS, 0);
    warmed = 0;
    for (int k = 0; k < 10; k++) {
      int64_t when = now + 10 * MS;
      wait_until(when);
      ck_assert_int_lt(now, when + FEW * US);
      ck_assert_int_eq(warmed, k + 1);
      ck_assert_int_ge(warmed_at, met_from);
      ck_assert_int_lt(warmed_at, when - times[i]);
    }
    wait_until(now + 3 * MS); /* early: the sleeper is woken */
    ck_assert_int_eq(warmed, 10);
    yield_ns = 1 * MS; /* another process computes */
    wait_until(now + 10 * MS);
    ck_assert_int_eq(warmed, 10);
    yield_ns = US;
    close_ring();
  }
}

TEST(a_call_to_warm_that_takes_most_of_the_budget_is_left_out) {
  make_warmed_ring(RINGCAST_WAIT_LATENCY, 2 * MS);
  wait_often(20, 10 * MS, 0);
  ck_assert_int_gt(warmed, 0);
  warmed = 0;
  wait_often(20, 10 * MS, 0);
  ck_assert_int_eq(warmed, 0);
  close_ring();
}

LOOP_TEST(the_budget_of_each_mode_holds_however_much_the_gaps_vary, 0, SIDES) {
  static const int64_t percents[] = {
      [RINGCAST_WAIT_BALANCED] = 5, [RINGCAST_WAIT_LATENCY] = 25, [RINGCAST_WAIT_POWER] = 0};
  enum { TIMES = 100 };
  look_ns = 4 * US; /* saves time */
  for (uint32_t mode = 0; mode < 3; mode++) {
    int64_t most = 0;
    for (int64_t thousandths = 8; thousandths <= 256; thousandths *= 2) {
      make_ring(_i, mode);
      wait_often(20, 2 * MS, thousandths);
      int64_t began = now;
      window_looks = 0;
      wait_often(TIMES, 2 * MS, thousandths);
      /* A window ends with the look that finds it over. */
      int64_t busy = (window_looks - TIMES) * look_ns;
      ck_assert_int_le(busy * 100, (now - began + 4 * 2 * MS) *
                                       percents[mode]); /* four gaps' share may be saved */
      if (busy > most) most = busy;
      close_ring();
    }
    ck_assert_int_ge(most * 100, TIMES * 2 * MS * percents[mode] / 4); /* and is used */
  }
}

LOOP_TEST(the_environment_sets_the_budget_of_who_did_not_ask, 0, SIDES) {
  setenv("RINGCAST_WAIT", "power", 1);
  make_ring(_i, RINGCAST_WAIT_BALANCED);
  wait_often(20, 10 * MS, 0);
  ck_sleeps_at_once();
  close_ring();
  make_ring(_i, RINGCAST_WAIT_LATENCY);
  wait_often(20, 10 * MS, 0);
  ck_assert_int_eq(yields, 1);
  close_ring();
}

/* ---- Where no spin pays ---------------------------------------------------------------------- */

LOOP_TEST(irregular_gaps_cost_a_plain_sleep, 0, SIDES) {
  static const int64_t units[] = {
      1 * MS, 40 * US}; /* so long that no window covers them; beyond the budget */
  for (int k = 0; k < 2; k++) {
    make_ring(_i, RINGCAST_WAIT_BALANCED);
    wait_often(20, 10 * units[k], 0); /* what was learnt before is given up */
    int64_t last = now;
    for (int i = 0; i < 200; i++) {
      last += (10 + i * 7919 % 31) * units[k];
      wait_until(last);
      if (i >= 10) ck_sleeps_at_once();
    }
    close_ring();
  }
}

LOOP_TEST(where_cpus_are_too_few_nothing_is_spun, 0, SIDES) {
  cpus = 1;
  make_ring(_i, RINGCAST_WAIT_LATENCY);
  wait_often(20, 10 * MS, 0); /* the credit of the beginning allows some yields */
  int64_t last = now;
  for (int i = 0; i < 50; i++) {
    last += 10 * MS;
    wait_until(last);
    ck_sleeps_at_once();
  }
  close_ring();
}

LOOP_TEST(who_loses_the_cpu_in_a_window_leaves_it_to_who_computes, 0, SIDES) {
  make_ring(_i, RINGCAST_WAIT_LATENCY);
  wait_often(20, 10 * MS, 0);
  yield_ns = 1 * MS; /* another process computes */
  int64_t last = now;
  for (int without = 0, least = 0; least <= 64; least = least == 0 ? 2 : 2 * least, without = 0) {
    for (yields = 0; yields == 0; without += yields == 0) {
      last += 10 * MS;
      wait_until(last);
      ck_assert_int_lt(looks, FEW);
      ck_assert_int_lt(without, 1000);
    }
    ck_assert_int_ge(without, least);
  }
  close_ring();
}

/* ---- Credit ---------------------------------------------------------------------------------- */

static bool spins(int64_t delay) {
  wait_until(now + delay);
  return sleeps == 0;
}

LOOP_TEST(after_a_noisy_phase_short_waits_are_spun_again_and_long_ones_end_it, 0, SIDES) {
  make_ring(_i, RINGCAST_WAIT_POWER); /* credit alone */
  for (int phase = 0; phase < 3; phase++) {
    int tries = 0;
    while (!spins(8 * US)) ck_assert_int_lt(++tries, 50);
    for (int i = 0; i < 20; i++) ck_assert(spins(8 * US));
    for (int i = 0; i < 1000; i++) {
      ck_assert(!spins(1 * MS));
      if (i >= 10) ck_sleeps_at_once();
    }
  }
  close_ring();
}

LOOP_TEST(a_short_timeout_that_passes_earns_no_credit, 0, SIDES) {
  make_ring(_i, RINGCAST_WAIT_POWER);
  for (int i = 0; i < 20; i++) ck_assert(spins(8 * US));
  due = NEVER;
  while (side == WRITER && ringcast_writer_send(writer, "frame", 5, 0, 0) == 0) continue;
  for (int i = 0; i < 100; i++) {
    ck_assert_int_eq(wait_at_most(10 * US), -ETIMEDOUT);
    if (i >= 10) ck_sleeps_at_once();
  }
  close_ring();
}

static void make_spinning_ring(int which) {
  side = which;
  writer = writer_of(.capacity = 4096, .spin_ns = 10 * MS);
  reader = reader_of(writer, .spin_ns = 10 * MS);
}

LOOP_TEST(an_interrupted_spin_leaves_the_cpu_to_others_between_its_looks, 0, SIDES) {
  make_spinning_ring(_i);
  ck_assert(spins(8 * MS));
  ck_assert_int_eq(yields, 0);
  yield_ns = 1 * MS; /* another process computes */
  taken_ns = 30 * US;
  for (int i = 0; i < 3; i++) {
    ck_assert(spins(8 * MS));
    ck_assert_int_ge(yields, 7);
  }
  taken_ns = 0;
  ck_assert(spins(8 * MS));
  ck_assert_int_eq(yields, 0);
  close_ring();
}

/* ---- Options --------------------------------------------------------------------------------- */

TEST(a_mode_that_is_none_is_refused_in_words) {
  static const char *const bad[] = {"fast", "Balanced", "power ", "1"};
  char words[96];
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    setenv("RINGCAST_WAIT", bad[i], 1);
    snprintf(words, sizeof words, "RINGCAST_WAIT is '%s': it must be balanced, latency or power",
             bad[i]);
    ck_assert_int_eq(ringcast_writer_create(&writer), -EINVAL);
    ck_assert_str_eq(ringcast_last_error(), words);
  }
  setenv("RINGCAST_WAIT", "", 1); /* as if it were not set */
  make_ring(READER, RINGCAST_WAIT_BALANCED);
  close_ring();
  struct ringcast_writer_options options = {.size = sizeof options,
                                            .wait = RINGCAST_WAIT_POWER + 1};
  ck_assert_int_eq(ringcast_writer_create_ex(&options, &writer), -EINVAL);
  ck_assert_str_eq(ringcast_last_error(),
                   "options.wait is 3: it must be a value of enum ringcast_wait_mode");
}

RUN_TESTS("wait, pace", begin, NULL)
