/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of the command line, and shared helpers. */
#ifndef TOOLS_CLI_H
#define TOOLS_CLI_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_NO_RING = 3, CLI_SEVERAL = 4, CLI_GONE = 5 };

/* argv[0] is the subcommand's name. Each returns the exit status. */
int list_main(int argc, char **argv);
int stat_main(int argc, char **argv);
int top_main(int argc, char **argv);
int hz_main(int argc, char **argv);
int doctor_main(int argc, char **argv);
int perf_main(int argc, char **argv);
int record_main(int argc, char **argv);
int replay_main(int argc, char **argv);
int dump_main(int argc, char **argv);

/* Says on stderr what is wrong with the command line, then the usage, which is `help` up to its
 * first empty line; returns CLI_USAGE. */
__attribute__((format(printf, 2, 3))) int cli_misused(const char *help, const char *format, ...);

/* Of a negative errno that has to do with a ring. */
int cli_status(int error);

/* Says on stderr what failed; returns `status`. */
__attribute__((format(printf, 2, 3))) int cli_fail(int status, const char *format, ...);

/* ---- Options --------------------------------------------------------------------------------- */

struct cli_option {
  const char *name;                           /* without "--" */
  bool (*parse)(const char *text, void *out); /* NULL: no value; *(bool *)out becomes true */
  void *out;
  const char *takes; /* valid values, in words */
  bool may_be_alone; /* the value may be missing: parse gets NULL */
};

/* Parses the options and up to `most` words. "--help" and "-h" print `help`. Returns CLI_GO_ON, or
 * the exit status. The words that are missing are NULL. */
enum { CLI_GO_ON = -1 };
int cli_parse(int argc, char **argv, const char *help, const struct cli_option *options,
              size_t count, const char **words, int most);

/* Values of options. Each returns false unless all of the text is a valid value. */
#define PARSE_FORMAT   "text or json"
#define PARSE_BYTES    "a number of bytes, such as 64K or 10G"
#define PARSE_WHOLE    "a whole number; 0: no limit"
#define PARSE_COUNT    "a whole number, 1 to 1000000000"
#define PARSE_SECONDS  "a number of seconds, 0 to 1e9"
#define PARSE_INTERVAL "a number of seconds, 0.01 to 86400"

bool parse_format(const char *text, void *out);   /* bool: json */
bool parse_bytes(const char *text, void *out);    /* uint64_t: "64K" is 65536; K, M and G */
bool parse_whole(const char *text, void *out);    /* uint64_t */
bool parse_count(const char *text, void *out);    /* uint64_t */
bool parse_seconds(const char *text, void *out);  /* double */
bool parse_interval(const char *text, void *out); /* double */
bool parse_text(const char *text, void *out);     /* const char * */
bool parse_number(const char *text, double least, double most, double *out);

/* ---- Stopping, and the clock ----------------------------------------------------------------- */

/* From here on SIGINT, SIGTERM and SIGHUP set cli_stop. A second signal ends the program: a disk,
 * or whoever reads the output, may hang. */
void cli_catch_stops(void);
extern volatile sig_atomic_t cli_stop;

int64_t cli_now_ns(void); /* CLOCK_MONOTONIC */

/* ---- Files ----------------------------------------------------------------------------------- */

/* The first line of a file without the newline, "" if the file can't be read. Returns `out`. */
char *cli_read_line(const char *path, char *out, size_t size);

/* The processor's name from the kernel. */
char *cli_cpu_model(char *out, size_t size);

/* Flushes `out`; a full disk or a closed pipe is a failure, not a success. */
int cli_finish(FILE *out, int status);

/* realloc that ends the program if there is no memory. */
void *cli_resize(void *memory, size_t count, size_t size);

#endif
