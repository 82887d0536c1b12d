/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one race that sleeping is about (ring/eventcount.h), run until CPUs show it: a sleeper
 * announces itself and looks, while a signaller does its thing and looks. If neither sees the
 * other, a wake-up is lost. Nobody sleeps here: two threads meet again and again, as close in time
 * as can be, and the rounds are counted in which both missed.
 *
 * First without the signaller's fence, to see whether this machine shows anything at all: CPUs keep
 * stores back while later loads go on. Then with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "shm/wait.h"
#include "tests/support/suite.h"

enum { ENOUGH = 5 };
/* Fewer rounds, where there is hardly a CPU to be had. */
#define LONGEST ((int64_t)10 * 1000 * 1000 * 1000)

/* Each word on a line of its own, as in a ring. */
static struct {
  _Alignas(RC_LINE) struct rc_eventcount event;
  _Alignas(RC_LINE) _Atomic uint64_t done; /* the thing: which round's */
  _Alignas(RC_LINE) _Atomic uint64_t arrived[2];
  _Alignas(RC_LINE) _Atomic uint64_t seen; /* the last round in which the sleeper saw it done */
  _Alignas(RC_LINE) _Atomic uint64_t rounds;
} meeting;

static bool without_fence;
static cpu_set_t cpus[2];

static void meet(int who, uint64_t time) {
  rc_store_release(&meeting.arrived[who], time);
  for (int spins = 0; rc_load_acquire(&meeting.arrived[1 - who]) < time; spins++)
    if (spins > 10000) sched_yield();
}

/* A few cycles, other ones in each round, so that the two come together in every way. */
static void dither(uint64_t n) {
  for (volatile uint64_t left = n; left > 0; left--) {}
}

static void *be_the_sleeper(void *nothing) {
  pthread_setaffinity_np(pthread_self(), sizeof cpus[0], &cpus[0]);
  for (uint64_t round = 1, time = 0;; round++) {
    meet(0, ++time);
    if (round > rc_load_acquire(&meeting.rounds)) return nothing;
    meet(0, ++time);
    dither(round % 7);
    if (without_fence) rc_eventcount_announce(&meeting.event);
    else rc_eventcount_prepare(&meeting.event);
    if (rc_load_acquire(&meeting.done) == round) rc_store_release(&meeting.seen, round);
    meet(0, ++time);
  }
}

/* How many rounds were lost, but for the first; no more than ENOUGH. */
static int count_losses(void) {
  pthread_t sleeper;
  int losses = 0;
  int64_t end = rc_now_ns() + LONGEST;
  rc_store_release(&meeting.rounds, (uint64_t)share_of(200000));
  ck_assert_int_eq(pthread_create(&sleeper, NULL, be_the_sleeper, NULL), 0);
  pthread_setaffinity_np(pthread_self(), sizeof cpus[1], &cpus[1]);
  for (uint64_t round = 1, time = 0;; round++) {
    if (round % 256 == 0 && rc_now_ns() > end) rc_store_release(&meeting.rounds, round - 1);
    meet(1, ++time);
    if (round > rc_load_acquire(&meeting.rounds)) break;
    (void)rc_load_acquire(&meeting.event.state); /* so that it is in this CPU's cache */
    meet(1, ++time);
    dither(round / 7 % 7);
    rc_store_release(&meeting.done, round);
    bool asleep = without_fence ? rc_load_acquire(&meeting.event.state) >= RC_EVENTCOUNT_SLEEPER
                                : rc_eventcount_is_asleep(&meeting.event);
    meet(1, ++time);
    losses += !asleep && rc_load_acquire(&meeting.seen) != round && round > 1;
    if (losses == ENOUGH) rc_store_release(&meeting.rounds, round);
    rc_eventcount_advance(&meeting.event);
  }
  pthread_join(sleeper, NULL);
  return losses;
}

/* Whether the machine loses anything: two CPUs, that keep stores back. Then a second run, to be
 * judged. */
static bool shows_losses(const char *test) {
  cpu_set_t all;
  int count = 0;
  sched_getaffinity(0, sizeof all, &all);
  for (int cpu = 0; cpu < CPU_SETSIZE && count < 2; cpu++) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_ZERO(&cpus[count]);
    CPU_SET(cpu, &cpus[count++]);
  }
  if (count < 2) {
    tell_skipped(test, "it takes two CPUs");
    return false;
  }
  without_fence = true;
  int losses = count_losses();
  fprintf(stderr, "%s: without a fence %d of %d rounds were lost\n", test, losses,
          (int)meeting.rounds);
  memset(&meeting, 0, sizeof meeting);
  without_fence = false;
  if (losses == 0)
    tell_skipped(test, "even without a fence no round was lost here, so this shows nothing");
  return losses > 0;
}

TEST(a_fence_on_either_side_is_enough) {
  if (!shows_losses(__func__)) return;
  ck_assert_int_eq(count_losses(), 0);
}

RUN_TESTS("event, litmus", NULL, NULL)
