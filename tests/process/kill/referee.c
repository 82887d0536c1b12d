/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/process/kill/referee.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 100000 /* between two looks whether something is so */

const char *const mode_names[MODES] = {
    [BY_DEFAULT] = "default",       [ASLEEP] = "asleep",     [WITHOUT_PIDFD] = "no pidfd",
    [WITHOUT_ALL] = "none of them", [SPINNING] = "spinning", [BY_DESCRIPTOR] = "descriptor"};

struct board *board;
struct tally tally;
const uint64_t hang_ns = (uint64_t)60 * 1000000000;
static uint64_t state;

uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void draw_from(uint64_t seed) { state = mix(seed); }

uint64_t draw(uint64_t below) { return (state = mix(state)) % below; }

void note_delay(uint64_t since, uint64_t struck, bool writer) {
  uint64_t now = now_ns(), from = since > struck ? since : struck;
  uint32_t i = atomic_fetch_add(&board->delays, 1);
  if (i < MOST_DELAYS)
    board->delay[i] = (struct delay){.ns = now > from ? now - from : 0, .writer = writer};
}

/* Counts it, and keeps the first text of each party. */
void note_wrong(struct party *party, _Atomic uint64_t *count, const char *format, ...) {
  va_list values;
  atomic_fetch_add(count, 1);
  if (party->text[0] != 0) return;
  va_start(values, format);
  vsnprintf(party->text, sizeof party->text, format, values);
  va_end(values);
}

/* Before a party's first call. What the whole run is to do without stays switched off. So are huge
 * pages: to make one waits for a thread of the kernel on each CPU, for seconds where all are busy,
 * and that is not what is looked for. */
void set_mode(enum mode mode, int64_t *spin_ns) {
  static const char *const lacks[MODES] = {
      [WITHOUT_PIDFD] = "pidfd", [WITHOUT_ALL] = "io_uring,pidfd,spin"};
  static bool done;
  const char *outside = getenv("RINGCAST_DISABLE");
  char list[256];
  *spin_ns = mode == SPINNING ? (int64_t)1 << 40 : mode == ASLEEP ? -1 : 0;
  if (done) return;
  done = true;
  snprintf(list, sizeof list, "%s,shmem-huge,%s", outside ? outside : "",
           lacks[mode] ? lacks[mode] : "");
  setenv("RINGCAST_DISABLE", list, 1);
}

/* ---- Starting -------------------------------------------------------------------------------- */

void start_party(int index) {
  struct party *party = &board->participants[index];
  uint64_t random = draw(UINT64_MAX);
  party->dead = party->stopped = false;
  party->attached = party->stage = party->verdict = party->called = party->struck_ns = party->upto =
      party->final = 0;
  pid_t pid = fork();
  if (pid < 0) {
    perror("kill: fork");
    exit(2);
  }
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG,
          SIGKILL); /* and leaves by _exit: what the referee does at its exit is not for it */
    self = party;
    if (index == WRITER) be_writer(random);
    be_reader(random);
  }
  party->pid = pid;
  tally.modes[party->mode]++;
}

/* ---- Looking --------------------------------------------------------------------------------- */

static void dump(const char *how, uint64_t waited, const char *what) {
  fprintf(stderr, "kill: %s: waited %.1f s until %s\n", how, (double)waited / 1e9, what);
  fprintf(stderr, "  on_death %u, on_slow %u, slow %.0f ms, sending %llu, committed %llu\n",
          board->on_death, board->on_slow, (double)board->slow_ns / 1e6,
          (unsigned long long)board->sending, (unsigned long long)board->committed);
  for (int i = 0; i < PARTIES; i++) {
    struct party *party = &board->participants[i];
    char where[128] = "", path[40];
    snprintf(path, sizeof path, "/proc/%d/wchan", (int)party->pid);
    FILE *file = fopen(path, "re");
    if (file && !fgets(where, sizeof where, file)) where[0] = 0;
    if (file) fclose(file);
    if (party->pid == 0) continue;
    fprintf(stderr,
            "  %s %d: pid %d, %c in %s, %s, stage %u, attached %d, up to %llu, in a call for %.1f "
            "ms, %s\n",
            i == WRITER ? "writer" : "reader", i, (int)party->pid, state_of(party->pid), where,
            mode_names[party->mode], party->stage, party->attached, (unsigned long long)party->upto,
            party->called ? (double)(now_ns() - party->called) / 1e6 : 0.0, party->text);
  }
}

/* Looks until it is so. False: it takes too long, which is a hang, and told. */
bool until(bool (*is_so)(const void *), const void *context, const char *what) {
  uint64_t began = now_ns(), passed = 0;
  bool slow = false;
  while (!is_so(context)) {
    passed = now_ns() - began;
    if (passed > 1000000000 && !slow) {
      slow = true;
      dump("slow", passed, what);
    }
    if (passed > hang_ns) {
      tally.hangs++;
      dump("HANG", passed, what);
      return false;
    }
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
  }
  if (passed > tally.longest_ns) tally.longest_ns = passed;
  if (passed > 1000000000) {
    tally.slow++;
    fprintf(stderr, "kill: it took %.1f s until %s\n", (double)passed / 1e9, what);
  }
  return true;
}

/* The same for what need not come about. */
bool within(uint64_t ns, bool (*is_so)(const void *), const void *context) {
  uint64_t began = now_ns();
  while (!is_so(context)) {
    if (now_ns() - began > ns) return false;
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
  }
  return true;
}

static bool never(const void *context) {
  (void)context;
  return false;
}

void let_pass(uint64_t ns) { within(ns, never, NULL); }

/* ---- Striking -------------------------------------------------------------------------------- */

static void count_strike(const struct party *party, int point, int signal) {
  bool writer = party == &board->participants[WRITER];
  if (signal == SIGKILL) tally.kills++;
  else tally.stops++;
  if (writer) tally.writers++;
  else tally.readers++;
  if (point < 0) return;
  tally.at_points++;
  if (signal == SIGKILL) tally.killed_at[point]++;
  else tally.stopped_at[point]++;
}

/* It has been struck by this signal: notes what it is from here on. */
void note_struck(int index, int point, int signal) {
  struct party *party = &board->participants[index];
  count_strike(party, point, signal);
  if (signal == SIGKILL) party->dead = true;
  else party->stopped = true;
}

void strike(int index, int signal) {
  struct party *party = &board->participants[index];
  uint64_t now = now_ns();
  if (signal == SIGKILL)
    atomic_store(index == WRITER ? &board->writer_struck : &board->reader_struck, now);
  atomic_store(&party->struck_ns, now);
  kill(party->pid, signal);
  note_struck(index, -1, signal);
}

void arm(int index, int point, int signal, uint32_t passes) {
  struct party *party = &board->participants[index];
  atomic_store(&party->struck_ns, 0);
  atomic_store(&party->signal, signal);
  atomic_store(&party->passes, passes);
  atomic_store(&party->armed, (uint32_t)point + 1);
}

void disarm(int index) { atomic_store(&board->participants[index].armed, 0); }

static bool is_struck(const void *context) {
  const struct party *party = context;
  return atomic_load(&party->struck_ns) != 0;
}

/* Whether it has struck itself in time. If not, it will not any more. */
bool has_struck(int index, uint64_t ns) {
  struct party *party = &board->participants[index];
  if (within(ns, is_struck, party)) return true;
  uint32_t point = atomic_exchange(&party->armed, 0);
  return point == 0 && within(hang_ns, is_struck, party); /* it was just about to */
}

static bool is_stopped(const void *context) {
  const struct party *party = context;
  char now = state_of(party->pid);
  return now == 'T' || now == 'Z'; /* it had come to its end by itself */
}

bool await_stopped(int index) {
  return until(is_stopped, &board->participants[index], "a party stops that was told to");
}

void go_on(int index) {
  board->participants[index].stopped = false;
  kill(board->participants[index].pid, SIGCONT);
}

/* Waits for the dead. Until then it is a zombie. */
static bool is_gone(const void *context) {
  struct party *party = (struct party *)context;
  int status;
  if (party->pid == 0 || waitpid(party->pid, &status, WNOHANG) != party->pid)
    return party->pid == 0;
  party->pid = 0;
  bool fine = party->dead ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                          : WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!fine) note_wrong(party, &board->counts.unexpected, "it ended with status 0x%x", status);
  return true;
}

bool bury(int index) { return until(is_gone, &board->participants[index], "a party has ended"); }

void bury_all_by_force(void) {
  for (int i = 0; i < PARTIES; i++) {
    struct party *party = &board->participants[i];
    if (party->pid == 0) continue;
    kill(party->pid, SIGKILL);
    waitpid(party->pid, NULL, 0);
    party->pid = 0;
  }
}
