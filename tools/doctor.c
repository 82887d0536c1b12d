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
#include "tools/text.h"

static const char usage[] = "usage: ringcast doctor [--format text|json]\n";

static const char help[] =
    "\n"
    "What this machine offers, what ringcast makes of it, and how to mend what is missing.\n"
    "Changes no setting of the machine.\n"
    "\n"
    "  --format FORMAT   text or json (default text)\n";

static const char *const levels[] = {"ok", "note", "problem"};

/* ---- Lines ----------------------------------------------------------------------------------- */

void doctor_add(struct doctor *doctor, const char *name, enum doctor_level level,
                const char *format, ...) {
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

/* ---- Processes ------------------------------------------------------------------------------- */

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
  else if (WIFSIGNALED(status))
    snprintf(words, size, "the process that tried it ended by signal %d", WTERMSIG(status));
  else if (WEXITSTATUS(status) != 0)
    snprintf(words, size, "the process that tried it ended with status %d", WEXITSTATUS(status));
  return words;
}

/* ---- Printing -------------------------------------------------------------------------------- */

static void print_json(const struct doctor *doctor, bool healthy) {
  struct report report = {.json = true};
  char cpu[256];
  report_open(&report, NULL, '{');
  report_string(&report, "version", ringcast_version());
  report_string(&report, "cpu", cli_cpu_model(cpu, sizeof cpu));
  report_boolean(&report, "healthy", healthy);
  report_open(&report, "lines", '[');
  for (const struct doctor_line *line = doctor->lines; line < doctor->lines + doctor->count;
       line++) {
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

static void print_text(const struct doctor *doctor, bool healthy) {
  enum { INDENT = 27, WIDTH = INDENT + 90 };
  char text[512];
  printf("ringcast %s on %s\n\n", ringcast_version(), cli_cpu_model(text, sizeof text));
  for (const struct doctor_line *line = doctor->lines; line < doctor->lines + doctor->count;
       line++) {
    snprintf(text, sizeof text, "%-8s  %-16s %s", levels[line->level], line->name, line->found);
    text_wrap(text, WIDTH, INDENT, stdout);
    snprintf(text, sizeof text, "%*sto mend: %s", INDENT, "", line->mend);
    if (*line->mend) text_wrap(text, WIDTH, INDENT, stdout);
  }
  printf("\n%s\n", !doctor->can_make ? "Rings can't be used here: see the problems above."
                   : healthy         ? "Rings can be made here."
                                     : "Rings can be made here, but see the problems above.");
}

/* ---- Command line ---------------------------------------------------------------------------- */

int doctor_main(int argc, char **argv) {
  static struct doctor doctor;
  static const struct cli_texts texts = {usage, help};
  bool json = false, healthy = true;
  const struct cli_option options[] = {{"format", parse_format, &json, PARSE_FORMAT, false}};
  int result = cli_parse(argc, argv, &texts, options, 1, NULL, 0);
  if (result != CLI_GO_ON) return result;
  for (size_t i = 0; doctor_checks[i]; i++) doctor_checks[i](&doctor);
  for (size_t i = 0; i < doctor.count; i++) healthy &= doctor.lines[i].level != DOCTOR_PROBLEM;
  json ? print_json(&doctor, healthy) : print_text(&doctor, healthy);
  return cli_finish(stdout, healthy ? CLI_OK : CLI_FAILED);
}
