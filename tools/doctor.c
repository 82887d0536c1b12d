/* SPDX-License-Identifier: Apache-2.0 */
/* `ringcast doctor`: runs the probes and prints their lines. */
#define _GNU_SOURCE
#include "tools/doctor.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/report.h"

static const char usage[] = "usage: ringcast doctor [--format text|json]\n";

static const char help[] =
    "\n"
    "What this machine offers, what ringcast makes of it, and how to mend what is missing. Changes no setting\n"
    "of the machine.\n"
    "\n"
    "  --format FORMAT   text or json (default text)\n";

static const char *const levels[] = {"ok", "note", "problem"};

/* ---- Lines ------------------------------------------------------------------------------------------------------ */

void doctor_add(struct doctor *doctor, const char *name, enum doctor_level level, const char *format, ...) {
  if (doctor->count == DOCTOR_LINES) abort();
  struct doctor_line *line = &doctor->lines[doctor->count++];
  va_list arguments;
  line->name = name;
  line->level = level;
  va_start(arguments, format);
  vsnprintf(line->found, sizeof line->found, format, arguments);
  va_end(arguments);
}

void doctor_mend(struct doctor *doctor, const char *format, ...) {
  struct doctor_line *line = &doctor->lines[doctor->count - 1];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line->mend, sizeof line->mend, format, arguments);
  va_end(arguments);
}

void doctor_facts(struct doctor *doctor, const struct doctor_fact facts[]) {
  struct doctor_fact *out = doctor->lines[doctor->count - 1].facts;
  for (int i = 0; i < DOCTOR_FACTS && facts[i].key; i++) out[i] = facts[i];
}

/* ---- Files of the kernel ---------------------------------------------------------------------------------------- */

int64_t doctor_read_number(const char *path) {
  char text[128], *end;
  cli_read_line(path, text, sizeof text);
  long long value = strtoll(text, &end, 10);
  return end == text ? -1 : value;
}

/* Whether `list` ("cpu,cpuacct") names `controller`. */
static bool names(const char *list, size_t length, const char *controller) {
  size_t wanted = strlen(controller);
  while (length >= wanted) {
    const char *comma = memchr(list, ',', length);
    size_t word = comma ? (size_t)(comma - list) : length;
    if (word == wanted && memcmp(list, controller, wanted) == 0) return true;
    if (!comma) return false;
    length -= word + 1;
    list = comma + 1;
  }
  return false;
}

/* A container often sees its own group as the root of the hierarchy,
 * whatever /proc/self/cgroup says: both are tried. */
bool doctor_cgroup_path(const char *controller, const char *name, char *out, size_t size) {
  char line[512], group[512] = "", root[64] = "/sys/fs/cgroup";
  FILE *file = fopen("/proc/self/cgroup", "re");
  while (file && fgets(line, sizeof line, file)) {
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
    if (!path) continue;
    path[strcspn(path, "\n")] = '\0';
    if (path == list + 1 && !*group) snprintf(group, sizeof group, "%s", path + 1);
    if (!names(list + 1, (size_t)(path - list - 1), controller)) continue;
    snprintf(group, sizeof group, "%s", path + 1);
    snprintf(root, sizeof root, "/sys/fs/cgroup/%s", controller);
    break;
  }
  if (file) fclose(file);
  snprintf(out, size, "%s%s/%s", root, group, name);
  if ((file = fopen(out, "re")) == NULL) {
    snprintf(out, size, "%s/%s", root, name);
    file = fopen(out, "re");
  }
  if (!file) return false;
  fclose(file);
  return true;
}

/* ---- Processes -------------------------------------------------------------------------------------------------- */

void *doctor_shared(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

/* When the time is up a signal ends the child, also within the driver. */
pid_t doctor_start(void (*body)(void *context), void *context) {
  fflush(NULL); /* what is buffered must not be printed by the child too */
  pid_t pid = fork();
  if (pid != 0) return pid;
  signal(SIGALRM, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(DOCTOR_LIMIT_S);
  body(context);
  _exit(0);
}

const char *doctor_await(pid_t pid, char *words, size_t size) {
  int status = 0;
  words[0] = '\0';
  if (pid < 0 || waitpid(pid, &status, 0) != pid)
    snprintf(words, size, "no process could be started for it: %s", strerror(errno));
  else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    snprintf(words, size, "no answer within %d s", DOCTOR_LIMIT_S);
  else if (WIFSIGNALED(status)) snprintf(words, size, "the process that tried it ended by signal %d", WTERMSIG(status));
  else if (WEXITSTATUS(status) != 0)
    snprintf(words, size, "the process that tried it ended with status %d", WEXITSTATUS(status));
  return words;
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

static void print_json(const struct doctor *doctor, bool healthy) {
  struct report report = {.json = true};
  char cpu[256];
  report_open(&report, NULL, '{');
  report_string(&report, "version", ringcast_version());
  report_string(&report, "cpu", cli_cpu_model(cpu, sizeof cpu));
  report_boolean(&report, "healthy", healthy);
  report_open(&report, "lines", '[');
  for (const struct doctor_line *line = doctor->lines; line < doctor->lines + doctor->count; line++) {
    report_open(&report, NULL, '{');
    report_string(&report, "name", line->name);
    report_string(&report, "level", levels[line->level]);
    report_string(&report, "found", line->found);
    report_string(&report, "mend", line->mend);
    report_open(&report, "facts", '{');
    for (const struct doctor_fact *fact = line->facts; fact->key; fact++)
      report_integer(&report, fact->key, fact->value);
    report_close(&report);
    report_close(&report);
  }
  report_close(&report);
  report_close(&report);
}

/* The text in lines of WIDTH columns, the first of which follows what is printed already. */
static void wrap(const char *text) {
  enum { INDENT = 27, WIDTH = 90 };
  for (;;) {
    int length = (int)strlen(text), end = length;
    if (length > WIDTH)
      for (end = WIDTH; end > 0 && text[end] != ' ';) end--;
    if (end == 0) end = length; /* one long word */
    printf("%.*s\n", end, text);
    if (end == length) return;
    printf("%*s", INDENT, "");
    text += end + 1;
  }
}

static void print_text(const struct doctor *doctor, bool healthy) {
  char text[512];
  printf("ringcast %s on %s\n\n", ringcast_version(), cli_cpu_model(text, sizeof text));
  for (const struct doctor_line *line = doctor->lines; line < doctor->lines + doctor->count; line++) {
    printf("%-8s  %-16s ", levels[line->level], line->name);
    wrap(line->found);
    if (!*line->mend) continue;
    snprintf(text, sizeof text, "to mend: %s", line->mend);
    printf("%*s", 27, "");
    wrap(text);
  }
  printf("\n%s\n", !doctor->can_make ? "Rings can't be used here: see the problems above."
                   : healthy         ? "Rings can be made here."
                                     : "Rings can be made here, but see the problems above.");
}

/* ---- Command line ----------------------------------------------------------------------------------------------- */

int doctor_main(int argc, char **argv) {
  static void (*const probes[])(struct doctor *) = {doctor_probe_ring,   doctor_probe_kernel, doctor_probe_memory,
                                                    doctor_probe_system, doctor_probe_gpu,    doctor_probe_environment};
  static struct doctor doctor;
  static const struct cli_texts texts = {usage, help};
  bool json = false, healthy = true;
  const struct cli_option options[] = {{"format", parse_format, &json, PARSE_FORMAT, false}};
  int result = cli_parse(argc, argv, &texts, options, 1, NULL, 0);
  if (result != CLI_GO_ON) return result;
  for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) probes[i](&doctor);
  for (size_t i = 0; i < doctor.count; i++) healthy &= doctor.lines[i].level != DOCTOR_PROBLEM;
  json ? print_json(&doctor, healthy) : print_text(&doctor, healthy);
  return cli_finish(stdout, healthy ? CLI_OK : CLI_FAILED);
}
