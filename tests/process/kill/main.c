/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   kill_campaign [--kills N] [--seed N] [--strict] [--each] [--only POINT]
 *   kill_campaign --points
 *
 * So many strikes, SIGKILL or SIGSTOP, and at least one of each at each named point. --only strikes
 * at that one point, for who tracks down a fault; --points lists them, with who comes by. Then a
 * summary, with --each of each point. Exit status 1 if anything was wrong, hung for a minute, or
 * was left behind, and if a point was never come by; with --strict also if anything took longer
 * than a second, as it may on a busy machine.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/options.h"
#include "shm/os.h"
#include "tests/process/kill/kill.h"

enum { IN_A_ROUND = 4 };
enum {
  TRIES = 40
}; /* how often a point is tried, until it is come by, also on a machine that is slow */
enum { ENOUGH = 30 }; /* things that are wrong: it need not go on */

static const char *const point_names[RC_POINT_COUNT] = {
#define NAME(name, who) [RC_POINT_##name] = #name,
    RC_ALL_POINTS(NAME)
#undef NAME
};

static struct {
  uint64_t kills, seed;
  bool each, strict, keeps;
  int only; /* -1: all points */
} options = {.kills = 200, .seed = 1, .only = -1};

/* What is still to be done at points: each with each signal. */
static struct task {
  int point, signal;
  int tries;
} tasks[2 * RC_POINT_COUNT];
static int tasks_left;

static uint64_t texts; /* of things that were wrong, told so far */

/* No party passes some points where copy-on-write can't be had. */
static bool is_on_the_way(int point) {
  if (options.only >= 0 && point != options.only) return false;
  return options.keeps ||
         (point != RC_POINT_RETAINED && point != RC_POINT_UNSHARE && point != RC_POINT_UNSHARED);
}

static void look_for_copy_on_write(void) {
  int pagemap = rc_os.pagemap();
  options.keeps = pagemap >= 0 && sysconf(_SC_PAGESIZE) <= 4096 && !rc_feature_disabled("retain");
  if (pagemap >= 0) close(pagemap);
  if (!options.keeps)
    fprintf(stderr, "SKIPPED kill: the points RETAINED, UNSHARE and UNSHARED: frames can't be kept "
                    "here without a copy\n");
}

static void shuffle_tasks(void) {
  for (int i = 0; i < RC_POINT_COUNT; i++) {
    if (!is_on_the_way(i)) continue;
    tasks[tasks_left++] = (struct task){.point = i, .signal = SIGKILL};
    tasks[tasks_left++] = (struct task){.point = i, .signal = SIGSTOP};
  }
  for (int i = tasks_left - 1; i > 0; i--) {
    int other = (int)draw((uint64_t)i + 1);
    struct task task = tasks[i];
    tasks[i] = tasks[other];
    tasks[other] = task;
  }
}

static uint64_t strikes_done(void) { return tally.kills + tally.stops; }

/* The first tasks to a share of all, then at random moments; when all tasks are done, any point
 * again. */
static struct strike next_strike(int *task) {
  int any = options.only >= 0 ? options.only : (int)draw(RC_POINT_COUNT);
  uint64_t left = options.kills > strikes_done() ? options.kills - strikes_done() : 0;
  *task = -1;
  if (tasks_left > 0 && (left <= (uint64_t)tasks_left || draw(4) != 0)) {
    *task = (int)draw((uint64_t)tasks_left);
    return (struct strike){.point = tasks[*task].point, .signal = tasks[*task].signal};
  }
  return (struct strike){.point = (tasks_left == 0 && draw(2)) || options.only >= 0 ? any : -1,
                         .signal = draw(3) == 0 ? SIGSTOP : SIGKILL};
}

/* After the first: tasks that any round will do for, and random moments. */
static struct strike further_strike(void) {
  if (options.only >= 0)
    return (struct strike){.point = options.only, .signal = draw(2) ? SIGKILL : SIGSTOP};
  if (draw(3) != 0)
    for (int i = 0; i < tasks_left; i++) {
      const struct task *task = &tasks[(tally.rounds * 7 + (uint64_t)i) % (uint64_t)tasks_left];
      if (is_common(task->point) && draw(3) != 0)
        return (struct strike){.point = task->point, .signal = task->signal};
    }
  return (struct strike){.point = -1, .signal = draw(3) ? SIGKILL : SIGSTOP};
}

static bool is_done(const struct task *task, const struct strike *strike) {
  return strike->done && strike->point == task->point && strike->signal == task->signal;
}

/* One round: the task first, which it is made for. False: it hung. */
static bool play_one(struct leaks *leaks) {
  struct strike strikes[IN_A_ROUND];
  int task;
  strikes[0] = next_strike(&task);
  for (int i = 1; i < IN_A_ROUND; i++) strikes[i] = further_strike();
  bool fine = play_round(strikes, IN_A_ROUND);
  leaks_after_round(leaks);
  for (int i = 0; i < tasks_left; i++)
    for (int j = 1; j < IN_A_ROUND; j++)
      if (is_done(&tasks[i], &strikes[j])) tasks[i].tries = -1;
  if (task >= 0 && (strikes[0].done || ++tasks[task].tries >= TRIES)) tasks[task].tries = -1;
  for (int i = tasks_left - 1; i >= 0; i--)
    if (tasks[i].tries < 0) tasks[i] = tasks[--tasks_left];
  return fine;
}

static void tell_wrongs(void) {
  for (int i = 0; i < PARTIES; i++)
    if (board->participants[i].text[0] != 0 && texts++ < ENOUGH)
      fprintf(stderr, "kill: round %" PRIu64 ", %s %d (%s): %s\n", tally.rounds,
              i == WRITER ? "writer" : "reader", i, mode_names[board->participants[i].mode],
              board->participants[i].text);
}

/* ---- The summary ----------------------------------------------------------------------------- */

static int by_size(const void *left, const void *right) {
  const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return (a > b) - (a < b);
}

static void tell_delays(const char *who, bool writer, uint64_t *hangs) {
  static uint64_t all[MOST_DELAYS];
  uint32_t count = 0, over = 0, noted = board->delays < MOST_DELAYS ? board->delays : MOST_DELAYS;
  for (uint32_t i = 0; i < noted; i++)
    if (board->delay[i].writer == writer) all[count++] = board->delay[i].ns;
  qsort(all, count, sizeof *all, by_size);
  for (uint32_t i = 0; i < count; i++) {
    over += all[i] > 100000000;
    *hangs += all[i] > 1000000000;
  }
  if (count == 0) return;
  double p50 = (double)all[count / 2], p99 = (double)all[(uint64_t)count * 99 / 100],
         most = (double)all[count - 1];
  printf("  told of a death: %u %s, p50 %.2f ms, p99 %.2f ms, max %.2f ms, over 100 ms: %u\n",
         count, who, p50 / 1e6, p99 / 1e6, most / 1e6, over);
}

static int tell_points(void) {
  int missed = 0;
  for (int i = 0; i < RC_POINT_COUNT; i++) {
    uint64_t kills = tally.killed_at[i], stops = tally.stopped_at[i];
    if (!is_on_the_way(i)) continue;
    missed += kills == 0 || stops == 0;
    if (options.each)
      printf("    %-16s %6" PRIu64 " killed %6" PRIu64 " stopped %12" PRIu64 " passed\n",
             point_names[i], kills, stops, (uint64_t)board->passed[i]);
    else if (kills == 0 || stops == 0)
      printf("    NOT STRUCK at %s: %" PRIu64 " killed, %" PRIu64 " stopped, %" PRIu64 " passed\n",
             point_names[i], kills, stops, (uint64_t)board->passed[i]);
  }
  return missed;
}

/* Returns how many things are wrong. */
static uint64_t summarise(const struct leaks *leaks, double seconds) {
  struct counts *c = &board->counts;
  printf("kill: %" PRIu64 " strikes in %.1f s, %" PRIu64 " rounds, seed %" PRIu64 "\n",
         strikes_done(), seconds, tally.rounds, options.seed);
  printf("  SIGKILL %" PRIu64 ", SIGSTOP %" PRIu64 " (%" PRIu64
         " of them killed while stopped); writers %" PRIu64 ", readers %" PRIu64
         "; at points %" PRIu64 "\n",
         tally.kills, tally.stops, tally.killed_stopped, tally.writers, tally.readers,
         tally.at_points);
  int missed = tell_points();
  printf("  points: %d, not struck by both signals: %d\n  parties:", RC_POINT_COUNT, missed);
  for (int i = 0; i < MODES; i++)
    printf("%s %s %" PRIu64, i == 0 ? "" : ",", mode_names[i], tally.modes[i]);
  printf("\n  frames verified %" PRIu64 " (%" PRIu64 " MiB; %" PRIu64 " beside the ring, %" PRIu64
         " kept), corrupt %" PRIu64 ", missing %" PRIu64 "\n",
         c->frames, c->bytes >> 20, c->spilled, c->kept, c->corrupt, c->missing);
  printf("  lives of readers %" PRIu64 "; -EPIPE %" PRIu64 ", -ESTALE %" PRIu64 " (%" PRIu64
         " in a torn frame), -EUSERS %" PRIu64 "; writers' -EOWNERDEAD %" PRIu64
         ", -ETIMEDOUT %" PRIu64 "; not documented: %" PRIu64 "\n",
         c->lives, c->pipe, c->stale, c->torn, c->refused, c->owner_dead, c->timed_out,
         c->unexpected);
  uint64_t late = 0;
  tell_delays("readers that waited", false, &late);
  tell_delays("writers that waited", true, &late);
  printf("  hangs: %" PRIu64 "; over 1 s: %" PRIu64 " told late, %" PRIu64
         " waits of the referee, at most %.2f s\n",
         tally.hangs, late, tally.slow, (double)tally.longest_ns / 1e9);
  printf("  left behind: processes %" PRIu64 ", files %" PRIu64 ", descriptors %" PRIu64
         ", mappings %" PRIu64 ", threads %" PRIu64 ", shared memory %ld KiB\n",
         leaks->processes, leaks->files, leaks->descriptors + c->descriptors,
         leaks->mappings + c->mappings, c->threads, leaks->shared_kb);
  uint64_t wrong = c->corrupt + c->missing + c->unexpected + tally.hangs + leaks->processes +
                   leaks->files + leaks->descriptors + c->descriptors + leaks->mappings +
                   c->mappings + c->threads + (leaks->shared_kb != 0) + (uint64_t)missed;
  if (options.strict) wrong += late + tally.slow;
  return wrong;
}

/* ---- Options --------------------------------------------------------------------------------- */

static uint64_t number_of(const char *what, const char *text) {
  char *end = NULL;
  unsigned long long number = text ? strtoull(text, &end, 10) : 0;
  if (text && end != text && *end == '\0' && *text != '-') return number;
  fprintf(stderr, "kill: %s takes a whole number, not '%s'\n", what, text ? text : "");
  exit(2);
}

static void list_points(void) {
#define LIST(name, who) printf("%-16s %s\n", #name, #who);
  RC_ALL_POINTS(LIST)
#undef LIST
}

static int point_named(const char *name) {
  for (int i = 0; name && i < RC_POINT_COUNT; i++)
    if (strcmp(name, point_names[i]) == 0) return i;
  fprintf(stderr,
          "kill: there is no point '%s': --points lists them (those of the device pool are "
          "gpu_kill's)\n",
          name ? name : "");
  exit(2);
}

static void take_options(char **words) {
  for (words++; *words; words++) {
    if (strcmp(*words, "--points") == 0) {
      list_points();
      exit(0);
    }
    if (strcmp(*words, "--each") == 0) options.each = true;
    else if (strcmp(*words, "--strict") == 0) options.strict = true;
    else if (strcmp(*words, "--only") == 0) options.only = point_named(*++words);
    else if (strcmp(*words, "--kills") == 0) options.kills = number_of("--kills", *++words);
    else if (strcmp(*words, "--seed") == 0) options.seed = number_of("--seed", *++words);
    else {
      fprintf(stderr,
              "usage: kill_campaign [--kills N] [--seed N] [--strict] [--each] [--only POINT]\n"
              "       kill_campaign --points\n");
      exit(2);
    }
    if (!*words) break;
  }
}

int main(int count, char **words) {
  struct leaks leaks = {0};
  (void)count;
  take_options(words);
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED) {
    perror("kill");
    return 2;
  }
  draw_from(options.seed);
  look_for_copy_on_write();
  shuffle_tasks();
  leaks_begin();
  uint64_t began = now_ns(), told = began;
  while ((strikes_done() < options.kills || tasks_left > 0) && tally.hangs < 5 && texts < ENOUGH) {
    play_one(&leaks);
    tell_wrongs();
    if (now_ns() - told > (uint64_t)10 * 1000000000) {
      told = now_ns();
      printf("kill: %5.0f s  %" PRIu64 " strikes, %" PRIu64 " frames verified, %" PRIu64
             " wrong, %" PRIu64 " hangs\n",
             (double)(told - began) / 1e9, strikes_done(), (uint64_t)board->counts.frames,
             board->counts.corrupt + board->counts.missing + board->counts.unexpected, tally.hangs);
      fflush(stdout);
    }
  }
  leaks_end(&leaks);
  uint64_t wrong = summarise(&leaks, (double)(now_ns() - began) / 1e9);
  if (wrong != 0) printf("kill: FAILED\n");
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
