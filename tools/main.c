/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "ringcast/ringcast.h"
#include "tools/cli.h"

static const char usage[] = "usage: ringcast <command> [options]\n"
                            "       ringcast --help | --version\n";

static const char help[] =
    "\n"
    "One process writes a message once, into shared memory; every other process of the machine reads it there.\n"
    "\n"
    "COMMANDS\n"
    "  doctor   what this machine offers, what ringcast makes of it, and how to mend what is missing\n"
    "  perf     how fast a ring is here, beside the hardware's own limit: latency, throughput, wake, scale,\n"
    "           cadence, gpu\n"
    "  help     the help of a command\n"
    "\n"
    "EXAMPLES\n"
    "  ringcast doctor\n"
    "  ringcast perf latency\n"
    "  ringcast perf throughput --size 4096 --format json\n"
    "  ringcast help perf\n";

static int run_command(int argc, char **argv) {
  if (strcmp(argv[0], "doctor") == 0) return doctor_main(argc, argv);
  if (strcmp(argv[0], "perf") == 0) return perf_main(argc, argv);
  return cli_misused(usage, "there is no command '%s'; 'ringcast --help' lists them", argv[0]);
}

static bool is_help(const char *word) {
  return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

int main(int argc, char **argv) {
  if (argc < 2) return cli_misused(usage, "no command given; 'ringcast --help' lists them");
  const char *command = argv[1];
  bool of_command = strcmp(command, "help") == 0 && argc > 2;
  if (of_command && argc > 3) return cli_misused(usage, "unexpected argument '%s'", argv[3]);
  if (of_command && !is_help(argv[2])) {
    char *arguments[] = {argv[2], (char[]){"--help"}, NULL};
    return run_command(2, arguments);
  }
  if (is_help(command)) {
    printf("%s%s", usage, help);
    return cli_finish(stdout, CLI_OK);
  }
  if (strcmp(command, "--version") == 0) {
    printf("ringcast %s\n", ringcast_version());
    return cli_finish(stdout, CLI_OK);
  }
  return run_command(argc - 1, argv + 1);
}
