/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of the command line, and shared helpers. */
#ifndef TOOLS_CLI_H
#define TOOLS_CLI_H

#include <stdbool.h>
#include <stdio.h>

/* Exit statuses. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* argv[0] is the subcommand's name. Each returns the exit status. */
int doctor_main(int argc, char **argv);
int perf_main(int argc, char **argv);

/* Says on stderr what is wrong with the command line, then `usage`; returns CLI_USAGE. */
__attribute__((format(printf, 2, 3))) int cli_misused(const char *usage, const char *format, ...);

/* Returns false unless `text` is "text" or "json". */
#define CLI_FORMATS "text or json"
bool cli_format(const char *text, bool *json);

/* The first line of a file without the newline, "" if the file can't be read. Returns `out`. */
char *cli_read_line(const char *path, char *out, size_t size);

/* The processor's name from the kernel. */
char *cli_cpu_model(char *out, size_t size);

/* Flushes `out`; a full disk or a closed pipe is a failure, not a success. */
int cli_finish(FILE *out, int status);

#endif
