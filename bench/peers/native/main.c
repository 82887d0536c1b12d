/* SPDX-License-Identifier: Apache-2.0 */
/* peers_native: the ways of C, by the same payloads and scenarios; prints a line of JSON for each result. */
#define _GNU_SOURCE
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plan.h"
#include "run.h"

static const char usage[] =
    "usage: peers_native --list\n"
    "       peers_native --way NAME --scenario S [--bytes N] [--messages N] [--processes P]\n"
    "       peers_native --plan quick|full [--way NAME] [--seed N]\n"
    "       peers_native --headline [--rounds N] [--seed N]\n"
    "       peers_native --selfcheck\n"
    "Prints a JSON object a line. A way that is not built, or a run that fails, has the reason as its status.\n"
    "Scenarios: one-way in-place stream batch every5 every25 idle check (scenarios.h). --messages 0: as the full "
    "plan.\n"
    "--headline: 64 B one way, all lossless ways and the floor of a cache line in turns, in N rounds (10).\n"
    "--seed: of the order of the ways, which is random in each step and round. Without: the time.\n"
    "--selfcheck: every byte of a few messages of all ways that are built; exit status 1 if one is wrong.\n";

enum action { NONE, LIST, ONE, PLAN, HEADLINE, SELFCHECK };

static int list(void) {
  for (size_t i = 0; i < peers_way_count; i++) run_list(&peers_ways[i]);
  return 0;
}

static int bad(const char *what, const char *value) {
  fprintf(stderr, "peers_native: %s: %s\n%s", what, value, usage);
  return 2;
}

static uint64_t number(const char *text) {
  char *end;
  uint64_t value = strtoull(text, &end, 10);
  if (*end || end == text) exit(bad("not a number", text));
  return value;
}

struct arguments {
  enum action action;
  const char *way, *plan;
  struct peers_step step;
  uint32_t rounds;
  uint64_t seed;
};

static void parse(struct arguments *arguments, int count, char **words) {
  static const struct option options[] = {
      {"list", 0, NULL, 'l'},      {"way", 1, NULL, 'w'},       {"scenario", 1, NULL, 's'}, {"bytes", 1, NULL, 'b'},
      {"messages", 1, NULL, 'm'},  {"processes", 1, NULL, 'p'}, {"plan", 1, NULL, 'P'},     {"headline", 0, NULL, 'H'},
      {"selfcheck", 0, NULL, 'c'}, {"rounds", 1, NULL, 'r'},    {"seed", 1, NULL, 'S'},     {"help", 0, NULL, 'h'},
      {NULL, 0, NULL, 0}};
  for (int letter; (letter = getopt_long(count, words, "h", options, NULL)) != -1;) switch (letter) {
    case 'l': arguments->action = LIST; break;
    case 'w': arguments->way = optarg; break;
    case 's':
      arguments->action = ONE;
      snprintf(arguments->step.scenario, sizeof arguments->step.scenario, "%s", optarg);
      break;
    case 'b': arguments->step.bytes = number(optarg); break;
    case 'm': arguments->step.messages = number(optarg); break;
    case 'p': arguments->step.processes = (uint32_t)number(optarg); break;
    case 'P': arguments->action = PLAN, arguments->plan = optarg; break;
    case 'H': arguments->action = HEADLINE; break;
    case 'c': arguments->action = SELFCHECK; break;
    case 'r': arguments->rounds = (uint32_t)number(optarg); break;
    case 'S': arguments->seed = number(optarg); break;
    case 'h': fputs(usage, stdout); exit(0);
    default: fputs(usage, stderr); exit(2);
    }
  if (optind < count) exit(bad("not an option", words[optind]));
}

static int run_one(struct arguments *arguments) {
  struct peers_step *step = &arguments->step;
  const struct way *way = arguments->way ? peers_find_way(arguments->way) : NULL;
  if (!way) return bad("no such way", arguments->way ? arguments->way : "give --way NAME");
  if (!run_accepts(step)) return bad("no such scenario, or bytes or processes out of range", step->scenario);
  snprintf(step->way, sizeof step->way, "%s", way->name);
  plan_messages(way, step, false);
  int64_t spent = 0;
  return run_step(step, &(struct run_limits){.attempts = 6, .extra_ns = INT64_MAX, .spent_ns = &spent}, 0) ? 0 : 1;
}

int main(int count, char **words) {
  struct arguments arguments = {.step = {.bytes = 64, .processes = 2}, .rounds = 10, .seed = (uint64_t)clock_ns()};
  parse(&arguments, count, words);
  run_start();
  plan_seed(arguments.seed);
  switch (arguments.action) {
  case LIST: return list();
  case ONE: return run_one(&arguments);
  case PLAN:
    if (strcmp(arguments.plan, "quick") != 0 && strcmp(arguments.plan, "full") != 0)
      return bad("no such plan", arguments.plan);
    return plan_run(strcmp(arguments.plan, "quick") == 0, arguments.way);
  case HEADLINE: return plan_headline(arguments.rounds, arguments.way);
  case SELFCHECK: return plan_selfcheck(arguments.way);
  default: fputs(usage, stderr); return 2;
  }
}
