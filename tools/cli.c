/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tools/cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ringcast/inspect.h"

/* Names of files and rings, and texts of other processes, are in it. */
static void say(const char *format, va_list arguments) {
  char text[8192], clean[4 * sizeof text];
  vsnprintf(text, sizeof text, format, arguments);
  ringcast_printable(text, strlen(text), clean, sizeof clean);
  fprintf(stderr, "ringcast: %s\n", clean);
}

int cli_misused(const char *help, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(format, arguments);
  va_end(arguments);
  const char *end = strstr(help, "\n\n");
  fwrite(help, 1, end ? (size_t)(end - help) + 1 : strlen(help), stderr);
  return CLI_USAGE;
}

int cli_status(int error) {
  if (error == -ENOENT) return CLI_NO_RING;
  return error == -ENOTUNIQ ? CLI_SEVERAL : CLI_FAILED;
}

int cli_fail(int status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(format, arguments);
  va_end(arguments);
  return status;
}

/* ---- Options --------------------------------------------------------------------------------- */

enum { MOST_OPTIONS = 24, FIRST = 256 };

static int take(const char *help, const struct cli_option *option, const char *text) {
  if (!option->parse) *(bool *)option->out = true;
  else if (!option->parse(text, option->out))
    return cli_misused(help, "'%s' is not valid for --%s: it takes %s", text, option->name,
                       option->takes);
  return CLI_GO_ON;
}

static int argument_of(const struct cli_option *option) {
  if (!option->parse) return no_argument;
  return option->may_be_alone ? optional_argument : required_argument;
}

static int print_help(const char *help) {
  printf("%s\n"
         "The manual pages, ringcast(1) and one for each command, have the rest, with examples.\n",
         help);
  return cli_finish(stdout, CLI_OK);
}

int cli_parse(int argc, char **argv, const char *help, const struct cli_option *options,
              size_t count, const char **words, int most) {
  struct option known[MOST_OPTIONS + 2] = {{"help", no_argument, NULL, 'h'}};
  int option;
  if (count > MOST_OPTIONS) abort();
  for (size_t i = 0; i < count; i++)
    known[i + 1] = (struct option){options[i].name, argument_of(&options[i]), NULL, FIRST + (int)i};
  opterr = 0;
  while ((option = getopt_long(argc, argv, ":h", known, NULL)) >= 0) {
    const char *word = argv[optind - 1];
    if (option == 'h') return print_help(help);
    if (option == ':') return cli_misused(help, "%s needs a value", word);
    if (option < FIRST) return cli_misused(help, "there is no option '%s'", word);
    int result = take(help, &options[option - FIRST], optarg);
    if (result != CLI_GO_ON) return result;
  }
  for (int i = 0; i < most; i++) words[i] = optind < argc ? argv[optind++] : NULL;
  if (optind < argc) return cli_misused(help, "unexpected argument '%s'", argv[optind]);
  return CLI_GO_ON;
}

/* ---- Values ---------------------------------------------------------------------------------- */

bool parse_format(const char *text, void *out) {
  bool json = strcmp(text, "json") == 0;
  *(bool *)out = json;
  return json || strcmp(text, "text") == 0;
}

bool parse_bytes(const char *text, void *out) {
  static const char suffixes[] = "KMG";
  char *end;
  unsigned shift = 0;
  errno = 0;
  if (!isdigit((unsigned char)*text)) return false;
  unsigned long long value = strtoull(text, &end, 10);
  if (*end) {
    const char *suffix = strchr(suffixes, toupper((unsigned char)*end));
    if (!suffix || end[1]) return false;
    shift = 10 * (unsigned)(suffix - suffixes + 1);
  }
  if (errno || value > (UINT64_MAX >> 1) >> shift) return false;
  *(uint64_t *)out = (uint64_t)value << shift;
  return true;
}

bool parse_whole(const char *text, void *out) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (!isdigit((unsigned char)*text) || *end || errno) return false;
  *(uint64_t *)out = value;
  return true;
}

bool parse_count(const char *text, void *out) {
  uint64_t value;
  if (!parse_whole(text, &value) || value < 1 || value > 1000000000) return false;
  *(uint64_t *)out = value;
  return true;
}

bool parse_number(const char *text, double least, double most, double *out) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value) || value < least || value > most) return false;
  *out = value;
  return true;
}

bool parse_seconds(const char *text, void *out) { return parse_number(text, 0, 1e9, out); }

bool parse_interval(const char *text, void *out) { return parse_number(text, 0.01, 86400, out); }

bool parse_text(const char *text, void *out) {
  *(const char **)out = text;
  return true;
}

/* ---- Stopping, and the clock ----------------------------------------------------------------- */

volatile sig_atomic_t cli_stop;

static void on_stop(int number) {
  (void)number;
  cli_stop = 1;
}

void cli_catch_stops(void) {
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
  const struct sigaction action = {.sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    struct sigaction old;
    sigaction(signals[i], NULL, &old);
    if (old.sa_handler != SIG_IGN) sigaction(signals[i], &action, NULL); /* nohup ignores SIGHUP */
  }
}

int64_t cli_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- Files ----------------------------------------------------------------------------------- */

char *cli_read_line(const char *path, char *out, size_t size) {
  FILE *file = fopen(path, "re");
  out[0] = '\0';
  if (!file) return out;
  if (!fgets(out, (int)size, file)) out[0] = '\0';
  fclose(file);
  out[strcspn(out, "\n")] = '\0';
  return out;
}

char *cli_cpu_model(char *out, size_t size) {
  char line[512];
  FILE *file = fopen("/proc/cpuinfo", "re");
  snprintf(out, size, "unknown");
  while (file && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || !colon || colon[1] == '\0') continue;
    colon[strcspn(colon, "\n")] = '\0';
    snprintf(out, size, "%s", colon + 2);
    break;
  }
  if (file) fclose(file);
  return out;
}

int cli_finish(FILE *out, int status) {
  if (fflush(out) == 0 && !ferror(out)) return status;
  perror("ringcast: can't write what was found");
  return CLI_FAILED;
}

void *cli_resize(void *memory, size_t count, size_t size) {
  void *more = reallocarray(memory, count ? count : 1, size);
  if (more) return more;
  fprintf(stderr, "ringcast: out of memory: can't have %zu times %zu bytes\n", count, size);
  exit(CLI_FAILED);
}
