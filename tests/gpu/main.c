/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the probes, one after the other. gpu_probe [--list] [--fake] [--after FILE] [NAME...]; --fake: a little of each
 * loop; --after: not those that FILE has a line of, which an earlier run has left. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/run.h"

static const struct probe_case *const groups[] = {attribute_probes, word_probes,  broadcast_probes, cost_probes,
                                                  death_probes,     fault_probes, capture_probes,   memory_probes,
                                                  copy_probes,      ipc_probes};
static int bad;

static void print_line(const struct probe_case *probe, const char *result, const char *why, const char *figures) {
  struct text line = {0};
  text_add(&line, "{\"probe\": ");
  text_quote(&line, probe->name);
  text_add(&line, ", \"result\": ");
  text_quote(&line, result);
  text_add(&line, ", \"why\": ");
  text_quote(&line, why);
  text_add(&line, ", \"only_measures\": %s, \"figures\": {%s}}", probe->only_measures ? "true" : "false", figures);
  printf("%s\n", line.bytes);
  fflush(stdout);
  /* The fake has all that is asked of it: there nothing may be skipped, the driver least of all. */
  bad += strcmp(result, "ok") != 0 && (is_little() || (strcmp(result, "skipped") != 0 && !probe->only_measures));
  free(line.bytes);
}

/* A process that hangs in the kernel is not there for the asking: it is left behind. */
static int reap(pid_t pid, int *status) {
  for (int i = 0; i < 100; i++) {
    pid_t got = waitpid(pid, status, WNOHANG);
    if (got == pid) return 0;
    poll(NULL, 0, 50); /* between two looks; the bound is what it is for */
  }
  return -ETIMEDOUT;
}

static void run_probe(const struct probe_case *probe) {
  struct report *report = probe_report();
  int ends[2], status = 0;
  memset(report, 0, sizeof *report);
  if (pipe(ends) != 0) exit(2);
  pid_t pid = fork();
  if (pid < 0) exit(2);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0); /* helpers end with it */
    close(ends[0]);
    probe->run();
    probe_end("ok", "");
  }
  setpgid(pid, pid);
  close(ends[1]); /* the other end closes when the probe, and whoever it has started, has gone */
  struct pollfd end = {.fd = ends[0], .events = POLLIN};
  bool in_time = poll(&end, 1, (int)probe->limit_s * 1000) == 1;
  kill(-pid, SIGKILL);
  bool gone = reap(pid, &status) == 0;
  close(ends[0]);
  char why[96] = "";
  if (!in_time)
    snprintf(why, sizeof why, "not done within %u s%s", probe->limit_s, gone ? "" : ", and can't be killed");
  else if (!*report->result) snprintf(why, sizeof why, "status %#x", (unsigned)status);
  print_line(probe,
             !in_time          ? "timeout"
             : *report->result ? report->result
                               : "crashed",
             *why ? why : report->why, report->figures);
}

static bool has_run(const char *name, const char *path) {
  char line[16384], wanted[128];
  bool found = false;
  FILE *file = fopen(path, "re");
  snprintf(wanted, sizeof wanted, "{\"probe\": \"%s\", ", name);
  while (file && !found && fgets(line, sizeof line, file))
    found = strncmp(line, wanted, strlen(wanted)) == 0 && strchr(line, '\n') != NULL;
  if (file) fclose(file);
  return found;
}

static bool wanted(const char *name, int count, char **names) {
  bool any = false;
  for (int i = 1; i < count; i++) {
    if (strcmp(names[i], "--after") == 0 && ++i < count) {
      if (has_run(name, names[i])) return false;
      continue;
    }
    any |= names[i][0] != '-';
    if (strcmp(names[i], name) == 0) return true;
  }
  return !any;
}

int main(int argc, char **argv) {
  bool list = false;
  for (int i = 1; i < argc; i++) {
    list |= strcmp(argv[i], "--list") == 0;
    if (strcmp(argv[i], "--fake") == 0) setenv("GPU_PROBE_LITTLE", "1", 1);
  }
  signal(SIGPIPE, SIG_IGN);
  for (size_t group = 0; group < sizeof groups / sizeof *groups; group++)
    for (const struct probe_case *probe = groups[group]; probe->name; probe++) {
      if (!wanted(probe->name, argc, argv)) continue;
      if (list) printf("%s\n", probe->name);
      else run_probe(probe);
    }
  return bad ? 1 : 0;
}
