/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what a ring can leak in this process: descriptors and mappings. */
#ifndef RC_TESTS_LEAKS_H
#define RC_TESTS_LEAKS_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static inline int open_descriptors(void) {
  int count = 0;
  DIR *directory = opendir("/proc/self/fd");
  while (readdir(directory)) count++;
  closedir(directory);
  return count;
}

static inline int ring_mappings(void) {
  int count = 0;
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "re");
  while (fgets(line, sizeof line, maps)) count += strstr(line, "memfd:ringcast") != NULL;
  fclose(maps);
  return count;
}

#endif
