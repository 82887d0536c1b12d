/* SPDX-License-Identifier: Apache-2.0 */
/* A build without xxhash.h. */
#include "tools/cli.h"

static int refuse(const char *command) {
  fprintf(
      stderr,
      "ringcast: this build has no '%s': xxhash.h was missing; install it (Debian: libxxhash-dev) and build again\n",
      command);
  return CLI_FAILED;
}

int record_main(int argc, char **argv) { return refuse(argc > 0 ? argv[0] : "record"); }
int replay_main(int argc, char **argv) { return refuse(argc > 0 ? argv[0] : "replay"); }
int dump_main(int argc, char **argv) { return refuse(argc > 0 ? argv[0] : "dump"); }
