/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what a ring can leak in this process: descriptors and mappings. And limits descriptors. */
#ifndef RC_TESTS_LEAKS_H
#define RC_TESTS_LEAKS_H

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

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

static int descriptors_before, mappings_before;

static inline void remember(void) {
  descriptors_before = open_descriptors();
  mappings_before = ring_mappings();
}

static inline void nothing_is_left(void) {
  ck_assert_int_eq(open_descriptors(), descriptors_before);
  ck_assert_int_eq(ring_mappings(), mappings_before);
}

/* Lets this process have so many descriptors at most; returns how many it could have before. */
static inline rlim_t limit_descriptors(rlim_t most) {
  struct rlimit limit;
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlim_t before = limit.rlim_cur;
  limit.rlim_cur = most;
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
  return before;
}

#endif
