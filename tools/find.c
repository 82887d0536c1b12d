/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/find.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ringcast/inspect.h"
#include "tools/cli.h"

int find_ring(const char *ring, char handle[RINGCAST_HANDLE_BYTES]) {
  int result = ringcast_find(ring, handle);
  if (result == 0) return 0;
  fprintf(stderr, "ringcast: %s\n", ringcast_last_error());
  return result == -ENOENT ? FIND_NONE : result == -ENOTUNIQ ? FIND_SEVERAL : CLI_FAILED;
}

bool find_asks_help(int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
  return false;
}
