/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "plan.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run.h"
#include "scenarios.h"

enum { MOST_WAYS = 64, KI = 1 << 10, MI = 1 << 20, CALL = 256 /* messages of a batch */ };
static const int64_t SECOND = 1000000000;

/* ---- How many messages ------------------------------------------------------------------------------------------ */

/* A run of a fast way takes a fraction of a second. */
static uint64_t many(const struct peers_step *step, bool streams) {
  if (step->bytes <= 64) return streams ? 2000000 : 20000;
  if (step->bytes <= 4 * KI) return streams ? 1000000 : 20000;
  if (step->bytes <= 64 * KI) return streams ? 20000 : 5000;
  if (step->bytes <= 1 * MI) return streams ? 1000 : 500;
  if (step->bytes <= 4 * MI) return streams ? 300 : 150;
  return 12;
}

static uint64_t count_of(const struct way *way, const struct peers_step *step, bool quick) {
  uint64_t slow = way->slow && step->bytes <= 64 * KI ? way->slow : 1;
  if (scenario_is(step, "idle")) return 2;
  if (scenario_is(step, "every5")) return quick ? 100 : 200;
  if (scenario_is(step, "every25")) return quick ? 32 : 80;
  if (scenario_is(step, "check")) return 20;
  if (scenario_is(step, "batch")) return (quick ? 4 : 16) * MI;
  if (scenario_is(step, "in-place")) return quick || step->bytes > 4 * MI ? 2000 : 20000;
  uint64_t count = many(step, scenario_streams(step)) / slow / (quick ? 4 : 1) / (step->processes > 2 ? 10 : 1);
  return count < 8 ? 8 : count;
}

void plan_messages(const struct way *way, struct peers_step *step, bool quick) {
  if (step->messages == 0) step->messages = count_of(way, step, quick);
  step->warm_up = scenario_is(step, "idle") || scenario_is(step, "check") ? 0 : step->messages / 10 + 2;
  if (!scenario_is(step, "batch")) return;
  step->messages = (step->messages + CALL - 1) / CALL * CALL;
  step->warm_up = (step->warm_up + CALL - 1) / CALL * CALL;
}

/* ---- Which ways ------------------------------------------------------------------------------------------------- */

static bool is_one_of(const struct way *way, const char *const *names) {
  while (*names && strcmp(*names, way->name) != 0) names++;
  return *names != NULL;
}

static bool any(const struct way *way) { return strcmp(way->name, "c-memcpy-past-cache") != 0; }
static bool any_past_cache(const struct way *way) {
  (void)way;
  return true;
}
static bool queues(const struct way *way) { return any(way) && !(way->flags & WAY_NO_QUEUE); }
static bool in_place(const struct way *way) { return !(way->flags & WAY_COPYING); }
static bool in_batches(const struct way *way) { return (in_place(way) && queues(way)) || way->flags & WAY_IN_PROCESS; }
static bool by_the_clock(const struct way *way) {
  return !(way->flags & WAY_IN_PROCESS) && (!(way->flags & WAY_FLOOR) || way->flags & WAY_NO_QUEUE);
}

static bool for_groups(const struct way *way) {
  static const char *const names[] = {"c-ringcast",      "c-unix-socket", "c-zmq-push", "c-nng-push",
                                      "c-openmpi-bcast", "c-mpich-bcast", "c-in-place", NULL};
  return is_one_of(way, names);
}

static bool idle(const struct way *way) {
  static const char *const names[] = {"c-ringcast-default", "c-unix-socket", "c-pipe",
                                      "c-zmq-push",         "c-cache-line",  NULL};
  return is_one_of(way, names);
}

static bool in_headline(const struct way *way) {
  return way->flags & (WAY_LOSSLESS | WAY_NO_QUEUE) && (!(way->flags & WAY_FLOOR) || way->flags & WAY_NO_QUEUE);
}

/* ---- The plan --------------------------------------------------------------------------------------------------- */

struct entry {
  const char *scenario;
  uint64_t bytes;
  uint32_t processes;
  bool quick; /* also in the quick plan */
  bool (*takes)(const struct way *way);
};

static const struct entry entries[] = {
    {"one-way", 64, 2, true, any},
    {"one-way", 1 * KI, 2, false, any},
    {"one-way", 4 * KI, 2, false, any},
    {"one-way", 64 * KI, 2, true, any},
    {"one-way", 1 * MI, 2, false, any},
    {"one-way", 4 * MI, 2, true, any},
    {"one-way", 64 * MI, 2, false, any},
    {"stream", 64, 2, true, queues},
    {"stream", 1 * KI, 2, false, queues},
    {"stream", 64 * KI, 2, false, queues},
    {"stream", 1 * MI, 2, false, any_past_cache},
    {"stream", 4 * MI, 2, true, any_past_cache},
    {"in-place", 64, 2, true, in_place},
    {"in-place", 4 * KI, 2, false, in_place},
    {"in-place", 64 * KI, 2, true, in_place},
    {"in-place", 1 * MI, 2, false, in_place},
    {"in-place", 4 * MI, 2, true, in_place},
    {"in-place", 64 * MI, 2, false, in_place},
    {"batch", 16, 2, true, in_batches},
    {"batch", 64, 2, true, in_batches},
    {"every5", 64, 2, false, by_the_clock},
    {"every25", 64, 2, true, by_the_clock},
    {"one-way", 64, 4, true, for_groups},
    {"one-way", 64 * KI, 4, false, for_groups},
    {"stream", 64, 4, false, for_groups},
    {"stream", 64 * KI, 4, false, for_groups},
    {"one-way", 64, 8, false, for_groups},
    {"one-way", 64 * KI, 8, false, for_groups},
    {"stream", 64, 8, false, for_groups},
    {"stream", 64 * KI, 8, false, for_groups},
    {"idle", 64, 2, false, idle},
};
enum { ENTRIES = sizeof entries / sizeof *entries };

static struct peers_step step_of(const struct entry *entry, const struct way *way, bool quick) {
  struct peers_step step = {.bytes = entry->bytes, .processes = entry->processes};
  snprintf(step.scenario, sizeof step.scenario, "%s", entry->scenario);
  snprintf(step.way, sizeof step.way, "%s", way->name);
  plan_messages(way, &step, quick);
  return step;
}

/* A way that can't run has a single row, not a row for each step; a peer that can't run a step has a row with the
 * reason. */
static bool belongs(const struct entry *entry, const struct way *way, const char *only) {
  struct peers_step step = step_of(entry, way, true);
  if (only && strcmp(only, way->name) != 0) return false;
  if (run_missing(way)) return entry == entries;
  if (way->flags & (WAY_FLOOR | WAY_IN_PROCESS) && scenario_refuses(way, &step)) return false;
  return entry->takes(way);
}

static void progress(uint32_t done, uint32_t all, const struct peers_step *step) {
  if (!isatty(STDERR_FILENO)) return;
  fprintf(stderr, "\r\033[Kpeers_native: %u/%u  %s, %s, %llu bytes, %u processes", done, all, step->way, step->scenario,
          (unsigned long long)step->bytes, step->processes);
  if (done == all) fputs("\r\033[K", stderr);
}

static uint32_t count_steps(bool quick, const char *only) {
  uint32_t count = 0;
  for (uint32_t e = 0; e < ENTRIES; e++)
    for (size_t w = 0; w < peers_way_count && (entries[e].quick || !quick); w++)
      count += belongs(&entries[e], &peers_ways[w], only);
  return count;
}

/* ---- The order, and the time for repeats ------------------------------------------------------------------------- */

static uint64_t seed;
static int64_t spent_ns[MOST_WAYS]; /* by each way, on repeats */

void plan_seed(uint64_t value) { seed = value; }

/* Steps of an odd constant, mixed by multiplications and shifts. */
static uint64_t next_random(void) {
  uint64_t value = seed += 0x9e3779b97f4a7c15;
  value = (value ^ value >> 32) * 0xd6e8feb86659fd93;
  value = (value ^ value >> 32) * 0xd6e8feb86659fd93;
  return value ^ value >> 32;
}

/* In a fixed order, a way would always follow the same way, with the caches and CPUs as that way left them. */
static void shuffle(size_t order[MOST_WAYS]) {
  for (size_t i = 0; i < peers_way_count; i++) {
    size_t at = next_random() % (i + 1);
    order[i] = order[at];
    order[at] = i;
  }
}

/* Every way has an equal share of the time for repeats. Small messages come first, and need near CPUs most: a quarter
 * is for any step, and the rest comes step by step: the last steps have a part as well. */
static struct run_limits limits_of(size_t way, int64_t extra, uint32_t done, uint32_t all) {
  extra /= (int64_t)peers_way_count;
  return (struct run_limits){
      .attempts = 6, .extra_ns = extra / 4 + extra * 3 / 4 * done / all, .spent_ns = &spent_ns[way]};
}

int plan_run(bool quick, const char *only) {
  uint32_t done = 0, all = count_steps(quick, only);
  size_t order[MOST_WAYS];
  for (uint32_t e = 0; e < ENTRIES; e++) {
    shuffle(order);
    for (size_t i = 0; i < peers_way_count && (entries[e].quick || !quick); i++) {
      const struct way *way = &peers_ways[order[i]];
      if (!belongs(&entries[e], way, only)) continue;
      struct peers_step step = step_of(&entries[e], way, quick);
      struct run_limits limits = limits_of(order[i], (quick ? 8 : 90) * SECOND, done, all);
      run_step(&step, &limits, 0);
      progress(++done, all, &step);
    }
  }
  return 0;
}

/* Each round has a new order. */
int plan_headline(uint32_t rounds, const char *only) {
  const struct entry small = {"one-way", 64, 2, true, in_headline};
  size_t order[MOST_WAYS];
  for (uint32_t round = 1; round <= rounds; round++) {
    shuffle(order);
    for (size_t i = 0; i < peers_way_count; i++) {
      const struct way *way = &peers_ways[order[i]];
      const struct run_limits limits = {.attempts = 3, .extra_ns = SECOND / 4 * round, .spent_ns = &spent_ns[order[i]]};
      if ((only && strcmp(only, way->name) != 0) || !in_headline(way) || run_missing(way)) continue;
      struct peers_step step = step_of(&small, way, false);
      run_step(&step, &limits, round);
      progress(round, rounds, &step);
    }
  }
  return 0;
}

static bool check_way(const struct way *way) {
  static const struct entry checks[] = {{"check", 64, 2, true, NULL},
                                        {"check", 64 * KI, 2, true, NULL},
                                        {"check", 64, 4, true, NULL},
                                        {"check", 64 * KI, 4, true, NULL},
                                        {"check", 4 * MI, 2, true, NULL}};
  int64_t spent = 0;
  const struct run_limits once = {.attempts = 1, .spent_ns = &spent};
  bool good = true;
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
    struct peers_step step = step_of(&checks[i], way, true);
    good = run_step(&step, &once, 0) && good;
  }
  return good;
}

int plan_selfcheck(const char *only) {
  bool good = true;
  for (size_t i = 0; i < peers_way_count; i++)
    if (!run_missing(&peers_ways[i]) && (!only || strcmp(only, peers_ways[i].name) == 0))
      good = check_way(&peers_ways[i]) && good;
  return good ? 0 : 1;
}
