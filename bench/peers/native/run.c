/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "member.h"
#include "row.h"
#include "scenarios.h"

enum { MS = 1000000, LIMIT_S = 20, PATH = 4096 };

static double ns_per_tick = 1;

struct run {
  struct board *board;
  int fd; /* of the board */
  const struct way *way;
  struct end there, back;
  pid_t pids[PEERS_SEATS];
  uint32_t started, ended;
  char *failure; /* on the board; empty: none */
};

/* ---- The machine ------------------------------------------------------------------------------------------------ */

void run_start(void) {
  const struct timespec a_while = {.tv_nsec = 50 * MS};
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  sigprocmask(SIG_BLOCK, &children, NULL); /* for sigtimedwait */
  if (!board_tsc_is_invariant()) return;
  const struct board tsc = {.tsc = true};
  int64_t clock = clock_ns(), ticks = board_ticks(&tsc);
  nanosleep(&a_while, NULL);
  int64_t clock_end = clock_ns();
  ns_per_tick = (double)(clock_end - clock) / (double)(board_ticks(&tsc) - ticks);
}

bool run_accepts(const struct peers_step *step) {
  return scenario_exists(step->scenario) && step->bytes >= 16 && step->bytes < (uint64_t)1 << 31 &&
         step->processes >= 2 && step->processes <= PEERS_SEATS;
}

/* The separate program of a way, in the folder of peers_native. */
static const char *program_of(const struct way *way, char *path) {
  ssize_t bytes = readlink("/proc/self/exe", path, PATH - 1);
  if (bytes < 0) return NULL;
  path[bytes] = 0;
  char *name = strrchr(path, '/') + 1;
  snprintf(name, (size_t)(path + PATH - name), "%s", way->program);
  return access(path, X_OK) == 0 ? path : NULL;
}

const char *run_missing(const struct way *way) {
  static char text[PEERS_TEXT];
  char path[PATH];
  if (way->program ? program_of(way, path) != NULL : way->calls != NULL) return NULL;
  snprintf(text, sizeof text, "not built: needs %s", way->needs ? way->needs : "another build");
  return text;
}

void run_list(const struct way *way) {
  const char *missing = run_missing(way);
  row_print_way(way, missing ? missing : "ok");
}

/* ---- Members ---------------------------------------------------------------------------------------------------- */

struct thread {
  struct run *run;
  uint32_t rank;
};

static void *be_thread(void *argument) {
  const struct thread *thread = argument;
  member_run(thread->run->board, &thread->run->there, &thread->run->back, thread->rank);
  return NULL;
}

/* The members of a way of threads, in the present process. */
static void be_threads(struct run *run) {
  struct thread threads[PEERS_SEATS];
  pthread_t handles[PEERS_SEATS];
  for (uint32_t rank = 0; rank < run->board->step.processes; rank++) {
    threads[rank] = (struct thread){run, rank};
    int result = pthread_create(&handles[rank], NULL, be_thread, &threads[rank]);
    if (result != 0) peers_die(&run->there, "can't start a thread: %s", strerror(result));
  }
  for (uint32_t rank = 0; rank < run->board->step.processes; rank++) pthread_join(handles[rank], NULL);
}

/* Replaces the process by the launcher, which starts the members: launcher -n P program board. */
static void be_launcher(struct run *run, int fd) {
  char path[PATH], processes[16], board[64];
  const char *words[32];
  size_t count = 0;
  while (run->way->launcher[count]) words[count] = run->way->launcher[count], count++;
  snprintf(processes, sizeof processes, "%u", run->board->step.processes);
  snprintf(board, sizeof board, "/proc/%d/fd/%d", run->board->pid, fd);
  words[count++] = "-n";
  words[count++] = processes;
  words[count++] = program_of(run->way, path);
  words[count++] = board;
  words[count] = NULL;
  int nowhere = open("/dev/null", O_RDWR);
  dup2(nowhere, STDIN_FILENO);
  dup2(nowhere, STDOUT_FILENO);
  if (!getenv("PEERS_VERBOSE")) dup2(nowhere, STDERR_FILENO);
  execvp(words[0], (char *const *)(uintptr_t)words);
  peers_die(&run->there, "can't start %s: %s", words[0], strerror(errno));
}

static void be_child(struct run *run, uint32_t rank, int fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, run->way->launcher ? SIGTERM : SIGKILL);
  if (getppid() != parent) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (run->way->launcher) be_launcher(run, fd);
  if (run->way->flags & WAY_IN_PROCESS) be_threads(run);
  else member_run(run->board, &run->there, &run->back, rank);
  _exit(0);
}

static void start_members(struct run *run, int fd) {
  bool one = run->way->launcher || run->way->flags & WAY_IN_PROCESS;
  uint32_t children = one ? 1 : run->board->step.processes;
  pid_t parent = getpid();
  fflush(NULL); /* or the child prints the buffered text again */
  for (; run->started < children; run->started++) {
    pid_t pid = fork();
    if (pid == 0) be_child(run, run->started, fd, parent);
    if (pid < 0) {
      snprintf(run->failure, PEERS_TEXT, "can't start a process: %s", strerror(errno));
      return;
    }
    run->pids[run->started] = pid;
  }
}

/* ---- The end of a run ------------------------------------------------------------------------------------------- */

/* The members' own reason comes before the way in which a process ended. */
static void find_reason(struct run *run, int status) {
  for (uint32_t rank = 0; rank < run->board->step.processes; rank++) {
    const struct peers_seat *seat = &run->board->seats[rank];
    if (atomic_load_explicit(&seat->failed, memory_order_acquire)) {
      snprintf(run->failure, PEERS_TEXT, "%s", seat->reason);
      return;
    }
  }
  if (WIFSIGNALED(status)) snprintf(run->failure, PEERS_TEXT, "a process ended by signal %d", WTERMSIG(status));
  else snprintf(run->failure, PEERS_TEXT, "a process ended with status %d", WEXITSTATUS(status));
}

static void reap(struct run *run) {
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    for (uint32_t i = 0; i < run->started; i++) {
      if (run->pids[i] != pid) continue;
      run->pids[i] = 0;
      run->ended++;
      if (status != 0 && !*run->failure) find_reason(run, status);
    }
}

/* Without looking in between: a look would take a CPU from a member. */
static void await_members(struct run *run, int64_t limit_ns) {
  int64_t end = clock_ns() + limit_ns;
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  for (reap(run); run->ended < run->started && !*run->failure; reap(run)) {
    int64_t left = end - clock_ns();
    if (left <= 0) {
      snprintf(run->failure, PEERS_TEXT, "not done after %.0f s", (double)limit_ns * 1e-9);
      return;
    }
    const struct timespec timeout = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    sigtimedwait(&children, NULL, &timeout);
  }
}

/* A launcher gets a second to end the members. Members of a launcher are no children of peers_native, and die with the
 * launcher, and by the pid on the board. */
static void stop_members(struct run *run) {
  const struct timespec second = {.tv_sec = 1};
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  for (uint32_t i = 0; i < run->started; i++)
    if (run->pids[i] > 0) kill(run->pids[i], run->way->launcher ? SIGTERM : SIGKILL);
  if (run->way->launcher && run->ended < run->started) sigtimedwait(&children, NULL, &second);
  for (uint32_t rank = 0; run->way->launcher && *run->failure && rank < run->board->step.processes; rank++) {
    pid_t pid = atomic_load_explicit(&run->board->seats[rank].pid, memory_order_relaxed);
    if (pid > 0) kill(pid, SIGKILL);
  }
  for (uint32_t i = 0; i < run->started; i++) {
    if (run->pids[i] <= 0) continue;
    kill(run->pids[i], SIGKILL);
    while (waitpid(run->pids[i], NULL, 0) < 0 && errno == EINTR) continue;
  }
}

/* ---- A run ------------------------------------------------------------------------------------------------------ */

static int64_t limit_of(const struct peers_step *step) {
  return (int64_t)LIMIT_S * 1000 * MS + 2 * scenario_period_ns(step) * (int64_t)(step->messages + step->warm_up);
}

/* In a separate process, with which the memory and descriptors made by prepare go. */
static void measure(struct run *run, int fd) {
  const struct way_calls *calls = run->way->launcher ? NULL : run->way->calls;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (calls && calls->prepare) calls->prepare(&run->there);
  if (calls && calls->prepare && run->board->both) calls->prepare(&run->back);
  start_members(run, fd);
  if (!*run->failure) await_members(run, limit_of(&run->board->step));
  stop_members(run);
  _exit(0);
}

static void measure_apart(struct run *run, int fd) {
  int status = 0;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) measure(run, fd);
  if (pid < 0) snprintf(run->failure, PEERS_TEXT, "can't start a process: %s", strerror(errno));
  while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (status != 0 && !*run->failure) find_reason(run, status);
}

/* One attempt. The caller unmakes the board. */
static void attempt(struct run *run, const struct peers_step *step) {
  *run = (struct run){.way = peers_find_way(step->way)};
  run->board = board_make(step, &run->fd);
  run->failure = run->board->failure;
  member_ends(run->board, run->way, &run->there, &run->back);
  measure_apart(run, run->fd);
}

/* ---- Near and far ----------------------------------------------------------------------------------------------- */

/* On a virtual machine the host moves the CPUs: near each other for some seconds, then far, and a line of far CPUs
 * costs many times as much. A run in which the line was far, before or after, is repeated: the plans' figures are of
 * near CPUs, if the machine has near moments. */
static const double NEAR = 1.6; /* times the least line that this program has seen */
static const int64_t LEARN_NS = 1000000000, PAUSE_NS = 500000000, LONG_PERIOD_NS = 1000000000;
static double least_ns = INFINITY; /* the least line */

static double larger_line(const struct board *board) {
  double before = board->line_ticks[0], after = board->line_ticks[1];
  return ns_per_tick * (before > after ? before : after);
}

static void learn_line(const struct run *run) {
  for (int which = 0; which < 2 && !*run->failure; which++)
    if (run->board->line_ticks[which] > 0) least_ns = fmin(least_ns, ns_per_tick * run->board->line_ticks[which]);
}

static bool is_near(const struct board *board) { return larger_line(board) <= NEAR * least_ns; }

/* Starts two processes for a single message: takes some milliseconds. */
static bool look_at_line(void) {
  const struct peers_step step = {
      .way = "c-cache-line", .scenario = "check", .bytes = PEERS_LINE, .messages = 1, .processes = 2};
  struct run run;
  attempt(&run, &step);
  learn_line(&run);
  bool near = !*run.failure && is_near(run.board);
  board_unmake(run.board, run.fd);
  return near;
}

/* False: the line was far all the time. */
static bool await_near(void) {
  const struct timespec a_while = {.tv_nsec = 20 * MS};
  for (int64_t end = clock_ns() + PAUSE_NS; clock_ns() < end; nanosleep(&a_while, NULL))
    if (look_at_line()) return true;
  return false;
}

static void learn_least_line(void) {
  const struct timespec a_while = {.tv_nsec = 20 * MS};
  if (isfinite(least_ns)) return;
  for (int64_t end = clock_ns() + LEARN_NS; clock_ns() < end; nanosleep(&a_while, NULL)) look_at_line();
}

static bool may_repeat(const struct peers_step *step, const struct run_limits *limits) {
  return limits->attempts > 1 && step->processes <= board_cpus() && scenario_period_ns(step) < LONG_PERIOD_NS;
}

/* Attempts until the line was near in one. If the limits are reached, the last attempt stays. Returns how many. */
static uint32_t attempt_near(struct run *run, const struct peers_step *step, const struct run_limits *limits) {
  uint32_t attempts = 1;
  if (may_repeat(step, limits)) learn_least_line();
  attempt(run, step);
  if (!may_repeat(step, limits)) return attempts;
  learn_line(run);
  for (uint32_t n = 1; n < limits->attempts && !*run->failure && !is_near(run->board); n++) {
    int64_t start = clock_ns();
    if (*limits->spent_ns >= limits->extra_ns) break;
    if (await_near()) {
      board_unmake(run->board, run->fd);
      attempt(run, step);
      learn_line(run);
      attempts++;
    }
    *limits->spent_ns += clock_ns() - start;
  }
  return attempts;
}

/* ---- A step ----------------------------------------------------------------------------------------------------- */

bool run_step(const struct peers_step *step, const struct run_limits *limits, uint32_t round) {
  const struct way *way = peers_find_way(step->way);
  const char *reason = run_missing(way);
  struct peers_outcome outcome = {.status = reason ? reason : scenario_refuses(way, step), .round = round};
  struct run run;
  if (outcome.status) {
    row_print(way, step, NULL, &outcome);
    return true;
  }
  outcome.attempts = attempt_near(&run, step, limits);
  outcome.ns_per_tick = ns_per_tick;
  outcome.status = *run.failure ? run.failure : "ok";
  row_print(way, step, run.board, &outcome);
  bool good = !*run.failure;
  board_unmake(run.board, run.fd);
  return good;
}
