/* SPDX-License-Identifier: Apache-2.0 */
/* How much shared memory there is: in the rings of one process, and in the whole machine. */
#ifndef RC_TESTS_SHARED_MEMORY_H
#define RC_TESTS_SHARED_MEMORY_H

#include <check.h>
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* KiB that the files of rings take which the process has open. */
static inline long ring_memory_of(pid_t pid) {
  char folder[40], path[320], link[64];
  long long blocks = 0;
  struct stat about;
  snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
  DIR *directory = opendir(folder);
  ck_assert_ptr_nonnull(directory);
  for (struct dirent *entry; (entry = readdir(directory));) {
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    ssize_t length = readlink(path, link, sizeof link - 1);
    if (length < 0) continue;
    link[length] = '\0';
    if (strncmp(link, "/memfd:ringcast", 15) == 0 && stat(path, &about) == 0)
      blocks += about.st_blocks;
  }
  closedir(directory);
  return (long)(blocks / 2);
}

/* KiB of the whole machine, where others take and drop memory too. */
static inline long shared_memory_in_use(void) {
  char line[128];
  long kilobytes = -1;
  FILE *file = fopen("/proc/meminfo", "re");
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "Shmem: %ld kB", &kilobytes) == 1) break;
  fclose(file);
  return kilobytes;
}

/* What others take may go up for a while; what is leaked stays, and this meets the test's time
 * limit. */
static inline void await_shared_memory_below(long kilobytes) {
  while (shared_memory_in_use() > kilobytes) sched_yield();
}

#endif
