/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/find.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ringcast/ringcast.h"
#include "tools/cli.h"

#if __has_include("ringcast/inspect.h")
#include "ringcast/inspect.h"
#else
static int ringcast_find(const char *ring, char handle[FIND_HANDLE]) {
  snprintf(handle, FIND_HANDLE, "%s", ring);
  return 0;
}
#endif

int find_ring(const char *ring, char handle[FIND_HANDLE]) {
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
