/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ringcast/ringcast.h"
#include "tools/cli.h"

static const char usage[] = "usage: ringcast <command> [options]\n"
                            "       ringcast --help | --version\n";

#if !RINGCAST_HAVE_XXHASH
static int refuse(int argc, char **argv) {
  return cli_fail(CLI_FAILED,
                  "this build has no '%s': xxhash.h was missing; install it (Debian: "
                  "libxxhash-dev) and build again",
                  argc > 0 ? argv[0] : "record");
}
#define record_main refuse
#define replay_main refuse
#define dump_main   refuse
#endif

static const struct command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *does;
} commands[] = {
    {"list", list_main, "the rings of this user: name, writer, readers"},
    {"stat", stat_main,
     "one ring: its writer, each reader, and the reader that holds the ring back"},
    {"top", top_main, "all rings, live: rates, lag, and the readers that block their writers"},
    {"hz", hz_main, "the rate of a ring's frames, and the gaps between them"},
    {"record", record_main, "the frames of a ring to a file"},
    {"replay", replay_main, "the frames of a recording on a new ring"},
    {"dump", dump_main, "what is in the frames of a recording or of a ring"},
    {"doctor", doctor_main,
     "what this machine offers, what ringcast makes of it, and how to mend what is missing"},
    {"perf", perf_main, "how fast a ring is here, beside the hardware's own limit"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const char ending[] =
    "\n"
    "The Python package has one command more: python -m ringcast config, the flags to compile\n"
    "and link C programs.\n"
    "\n"
    "A RING is a name, NAME@PID where several rings have the name, @PID for the only ring of a\n"
    "process, or a handle.\n"
    "\n"
    "EXIT STATUS\n"
    "  0 well; 1 failed; 2 wrong command line; 3 no such ring; 4 the name stands for several\n"
    "  rings; 5 the ring's writer is gone, which ended the command early\n"
    "\n"
    "'ringcast COMMAND --help' has the options; the manual pages have the rest, with examples.\n";

static void print_help(void) {
  printf("%s\n"
         "One process writes a message once, into shared memory; every other process of the\n"
         "machine reads it there.\n"
         "\n"
         "COMMANDS\n",
         usage);
  for (int i = 0; i < COMMANDS; i++) printf("  %-8s %s\n", commands[i].name, commands[i].does);
  printf("  %-8s %s\n%s", "help", "the help of a command", ending);
}

static int run_command(int argc, char **argv) {
  for (int i = 0; i < COMMANDS; i++)
    if (strcmp(argv[0], commands[i].name) == 0) return commands[i].run(argc, argv);
  if (strcmp(argv[0], "config") == 0) {
    return cli_misused(usage,
                       "'config' is a command of the Python package: python -m ringcast config");
  }
  return cli_misused(usage, "there is no command '%s'; 'ringcast --help' lists them", argv[0]);
}

static bool is_help(const char *word) {
  return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* Files that a command opens never get the numbers 0 to 2, even where the caller has closed these:
 * what is printed would go into a recording. Writing to the stand-ins is an error, as before. */
static void occupy_standard_numbers(void) {
  int fd = 0;
  while (fd >= 0 && fd < 3) fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (fd > 2) close(fd);
}

int main(int argc, char **argv) {
  occupy_standard_numbers();
  if (argc < 2) return cli_misused(usage, "no command given; 'ringcast --help' lists them");
  const char *command = argv[1];
  bool of_command = strcmp(command, "help") == 0 && argc > 2;
  if (of_command && argc > 3) return cli_misused(usage, "unexpected argument '%s'", argv[3]);
  if (of_command && !is_help(argv[2])) {
    char *arguments[] = {argv[2], (char[]){"--help"}, NULL};
    return run_command(2, arguments);
  }
  if (is_help(command)) {
    print_help();
    return cli_finish(stdout, CLI_OK);
  }
  if (strcmp(command, "--version") == 0) {
    printf("ringcast %s\n", ringcast_version());
    return cli_finish(stdout, CLI_OK);
  }
  return run_command(argc - 1, argv + 1);
}
