/* SPDX-License-Identifier: Apache-2.0 */
/* peers_native: runs one step of one way of C, and prints the figures as a line of JSON. */
#define _GNU_SOURCE
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

#include "board.h"

enum { PATH = 4096 };

static const char usage[] =
    "usage: peers_native --list\n"
    "       peers_native WAY SCENARIO BYTES PROCESSES MESSAGES WARM-UP\n"
    "Prints a JSON object a line: the facts of each way, or the figures of a step (member.c says\n"
    "which steps there are). A way that is not built, or a step that fails, has the reason as its\n"
    "status.\n";

struct run {
  struct board *board;
  const struct way *way;
  struct end there, back;
};

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_text(const char *key, const char *text) {
  printf("\"%s\": \"", key);
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') putchar('\\');
    putchar((unsigned char)*text < ' ' ? ' ' : *text);
  }
  printf("\", ");
}

static void put_number(const char *key, double value) {
  if (isfinite(value)) printf("\"%s\": %.6g, ", key, value);
}

static void put_flag(const char *key, bool value) {
  printf("\"%s\": %s, ", key, value ? "true" : "false");
}

/* ---- Which ways are there -------------------------------------------------------------------- */

/* The separate program of a way, in the folder of peers_native; NULL if it is not there. */
static const char *program_of(const struct way *way, char *path) {
  ssize_t bytes = readlink("/proc/self/exe", path, PATH - 1);
  if (bytes < 0) return NULL;
  path[bytes] = 0;
  char *name = strrchr(path, '/') + 1;
  snprintf(name, (size_t)(path + PATH - name), "%s", way->program);
  return access(path, X_OK) == 0 ? path : NULL;
}

static bool is_built(const struct way *way) {
  char path[PATH];
  return way->program ? program_of(way, path) != NULL : way->calls != NULL;
}

static void list(void) {
  for (size_t i = 0; i < peers_way_count; i++) {
    const struct way *way = &peers_ways[i];
    char status[PEERS_TEXT] = "ok";
    if (!is_built(way))
      snprintf(status, sizeof status, "not built: needs %s", way->needs ? way->needs : "a rebuild");
    putchar('{');
    put_text("peer", way->name);
    put_text("family", way->family);
    put_text("status", status);
    put_text("note", way->note ? way->note : "");
    put_flag("collective", way->flags & WAY_COLLECTIVE);
    put_flag("copying", way->flags & WAY_COPYING);
    put_flag("in_process", way->flags & WAY_IN_PROCESS);
    put_flag("floor", way->flags & WAY_FLOOR);
    put_flag("no_queue", way->flags & WAY_NO_QUEUE);
    put_number("largest_in_place", (double)way->largest_in_place);
    printf("\"largest\": %zu}\n", way->largest);
  }
}

/* ---- Members --------------------------------------------------------------------------------- */

static void *be_reader(void *argument) {
  struct run *run = argument;
  member_run(run->board, &run->there, &run->back, 1);
  return NULL;
}

/* Writer and reader of a way of threads, in the present process. */
static void be_threads(struct run *run) {
  pthread_t reader;
  int result = pthread_create(&reader, NULL, be_reader, run);
  if (result != 0) peers_die(&run->there, "can't start a thread: %s", strerror(result));
  member_run(run->board, &run->there, &run->back, 0);
  pthread_join(reader, NULL);
}

/* Replaces the process by the launcher, which starts the members: launcher -n P program board. */
static void be_launcher(struct run *run, int fd) {
  char path[PATH], processes[16], board[64];
  const char *words[32];
  size_t count = 0;
  for (; run->way->launcher[count]; count++) words[count] = run->way->launcher[count];
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
  execvp(words[0], (char *const *)(uintptr_t)words);
  peers_die(&run->there, "can't start %s: %s", words[0], strerror(errno));
}

static void be_child(struct run *run, uint32_t rank, int fd) {
  prctl(PR_SET_PDEATHSIG, run->way->launcher ? SIGTERM : SIGKILL);
  if (run->way->launcher) be_launcher(run, fd);
  else if (run->way->flags & WAY_IN_PROCESS) be_threads(run);
  else member_run(run->board, &run->there, &run->back, rank);
  _exit(0);
}

/* The members' own reason comes before the way in which a process ended. */
static void find_reason(const struct run *run, int status, char *text) {
  for (uint32_t rank = 0; rank < run->board->step.processes; rank++) {
    const struct peers_seat *seat = &run->board->seats[rank];
    if (!atomic_load_explicit(&seat->failed, memory_order_acquire)) continue;
    snprintf(text, PEERS_TEXT, "%s", seat->reason);
    return;
  }
  if (WIFSIGNALED(status))
    snprintf(text, PEERS_TEXT, "a process ended by signal %d", WTERMSIG(status));
  else snprintf(text, PEERS_TEXT, "a process ended with status %d", WEXITSTATUS(status));
}

/* The status of the row. Whoever started the program ends it if it hangs; the members end with
 * it. */
static void run_members(struct run *run, int fd, char *text) {
  bool one = run->way->launcher || run->way->flags & WAY_IN_PROCESS;
  uint32_t children = one ? 1 : run->board->step.processes;
  pid_t pids[PEERS_SEATS];
  int status = 0;
  for (uint32_t rank = 0; rank < children; rank++) {
    pids[rank] = fork();
    if (pids[rank] == 0) be_child(run, rank, fd);
    if (pids[rank] > 0) continue;
    snprintf(text, PEERS_TEXT, "can't start a process: %s", strerror(errno));
    return;
  }
  for (uint32_t ended = 0; ended < children && status == 0; ended++) waitpid(-1, &status, 0);
  snprintf(text, PEERS_TEXT, "ok");
  if (status == 0) return;
  find_reason(run, status, text);
  for (uint32_t rank = 0; rank < children; rank++) kill(pids[rank], SIGKILL);
}

/* ---- Figures --------------------------------------------------------------------------------- */

static int compare(const void *left, const void *right) {
  int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return (a > b) - (a < b);
}

static double quantile(const int64_t *sorted, size_t count, double share) {
  return count == 0 ? NAN : (double)sorted[(size_t)(share * (double)(count - 1) + 0.5)];
}

/* From the start of a write until the last reader has the message. */
static void put_one_way(struct board *board) {
  uint64_t messages = board->measured;
  const int64_t *started = board_column(board, COLUMN_STARTED);
  int64_t *written = board_column(board, COLUMN_WRITTEN), *times = board_column(board, COLUMN_READ);
  for (uint64_t n = 0; n < messages; n++) {
    int64_t last = INT64_MIN;
    for (uint32_t rank = 1; rank < board->step.processes; rank++) {
      int64_t read = board_column(board, COLUMN_READ + rank)[n];
      if (read > last) last = read;
    }
    times[n] = last - started[n]; /* rank 0 reads nothing: its column is free */
    written[n] -= started[n];
  }
  qsort(times, messages, sizeof *times, compare);
  qsort(written, messages, sizeof *written, compare);
  put_number("p50_us", quantile(times, messages, 0.5) / 1e3);
  put_number("p99_us", quantile(times, messages, 0.99) / 1e3);
  put_number("write_us", quantile(written, messages, 0.5) / 1e3);
}

static void put_round_trip(struct board *board) {
  int64_t *blocks = board_column(board, COLUMN_STARTED);
  uint64_t count = board->measured / ROUNDS;
  qsort(blocks, count, sizeof *blocks, compare);
  put_number("p50_us", quantile(blocks, count, 0.5) / ROUNDS / 2 / 1e3);
}

/* From the end of the writer's warm-up until the last reader has the last message. */
static void put_rate(const struct board *board) {
  int64_t end = 0;
  for (uint32_t rank = 1; rank < board->step.processes; rank++)
    if (board->seats[rank].finish > end) end = board->seats[rank].finish;
  double rate = (double)board->measured / ((double)(end - board->seats[0].begin) * 1e-9);
  put_number("messages_per_s", rate);
  put_number("bytes_per_s", rate * (double)board->step.bytes);
}

static void put_members(const struct board *board) {
  double readers = 0;
  for (uint32_t rank = 1; rank < board->step.processes; rank++) readers += board->seats[rank].cpu_s;
  put_number("cpu_writer_s", board->seats[0].cpu_s);
  put_number("cpu_reader_s", readers);
  put_number("seconds", (double)(board->seats[0].finish - board->seats[0].begin) * 1e-9);
  if (board->step.processes > board->cpus) return;
  put_number("line_ns", board->line_ns[0]);
  put_number("line_after_ns", board->line_ns[1]);
}

static void put_figures(struct board *board) {
  const char *scenario = board->step.scenario;
  if (strcmp(scenario, "round-trip") == 0) put_round_trip(board);
  else if (strcmp(scenario, "stream") == 0) put_rate(board);
  else put_one_way(board);
  put_members(board);
}

/* ---- A step ---------------------------------------------------------------------------------- */

static int run_step(const struct way *way, const struct peers_step *step) {
  char status[PEERS_TEXT];
  int fd;
  struct run run = {.board = board_make(step, &fd), .way = way};
  member_ends(run.board, way, &run.there, &run.back);
  if (!way->launcher && way->calls->prepare) {
    way->calls->prepare(&run.there);
    if (run.board->both) way->calls->prepare(&run.back);
  }
  run_members(&run, fd, status);
  putchar('{');
  put_text("version", run.board->version);
  if (strcmp(status, "ok") == 0) put_figures(run.board);
  put_text("status", status);
  printf("\"messages\": %" PRIu64 "}\n", run.board->measured);
  return 0;
}

int main(int count, char **words) {
  struct peers_step step = {0};
  if (count == 2 && strcmp(words[1], "--list") == 0) {
    list();
    return 0;
  }
  const struct way *way = count == 7 ? peers_find_way(words[1]) : NULL;
  if (!way || !is_built(way) || !scenario_exists(words[2])) {
    fputs(usage, stderr);
    return 2;
  }
  snprintf(step.way, sizeof step.way, "%s", words[1]);
  snprintf(step.scenario, sizeof step.scenario, "%s", words[2]);
  step.bytes = strtoull(words[3], NULL, 10);
  step.processes = (uint32_t)strtoul(words[4], NULL, 10);
  step.messages = strtoull(words[5], NULL, 10);
  step.warm_up = strtoull(words[6], NULL, 10);
  if (step.bytes < 16 || step.processes < 2 || step.processes > PEERS_SEATS || step.messages < 1) {
    fputs(usage, stderr);
    return 2;
  }
  return run_step(way, &step);
}
