/* SPDX-License-Identifier: Apache-2.0 */
/* What could be left behind: by a party that has closed all it had, and by the dead. */
#define _GNU_SOURCE
#include "tests/support/leaks.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/process/kill/kill.h"
#include "tests/support/shared_memory.h"

/* What shared memory may be more at the end. In a memory cgroup of our own: the board, and little
 * else. In the whole machine: what others take meanwhile; a campaign would leak hundreds of
 * rings. */
#define TOLERATED_OWN_KB (4L << 10)
#define TOLERATED_KB     (256L << 10)
#define PATIENCE_NS      ((uint64_t)20 * 1000 * 1000 * 1000) /* for others to drop it again */

static const char *const folders[] = {"/tmp", "/dev/shm"};
static bool private; /* nobody else sees these folders: whatever lies in them is ours */
static long shared_before;
static char parent_group[300], own_group[340]; /* empty: none could be had */
static struct before at_first;

static int threads(void) {
  int count = 0;
  DIR *directory = opendir("/proc/self/task");
  while (readdir(directory)) count++;
  closedir(directory);
  return count;
}

struct before look_before(void) {
  return (struct before){
      .descriptors = open_descriptors(), .mappings = ring_mappings(), .threads = threads()};
}

/* Threads that the kernel had for io_uring end a little after its closing. */
void look_after(const struct before *before) {
  uint64_t began = now_ns();
  while (threads() > before->threads && now_ns() - began < hang_ns) sched_yield();
  struct before now = look_before();
  if (now.descriptors > before->descriptors)
    note_wrong(self, &board->counts.descriptors, "%d descriptors left open",
               now.descriptors - before->descriptors);
  if (now.mappings > before->mappings)
    note_wrong(self, &board->counts.mappings, "%d mappings left", now.mappings - before->mappings);
  if (now.threads > before->threads)
    note_wrong(self, &board->counts.threads, "%d threads left", now.threads - before->threads);
}

/* ---- The referee's --------------------------------------------------------------------------- */

/* Memory of our own over the folders, for this process and its children. */
static bool hide_folders(void) {
  if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
    return false;
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
    if (mount("tmpfs", folders[i], "tmpfs", 0, "mode=1777") != 0) return false;
  return true;
}

static uint64_t files_in(const char *folder) {
  uint64_t count = 0;
  DIR *directory = opendir(folder);
  for (struct dirent *entry; directory && (entry = readdir(directory));)
    count += private ? entry->d_name[0] != '.' : strstr(entry->d_name, "ringcast") != NULL;
  if (directory) closedir(directory);
  return count;
}

/* The first number after `name` in a file of such lines; -1: it is not there. */
static long number_in(const char *folder, const char *file, const char *name) {
  char path[400], line[200];
  long number = -1;
  snprintf(path, sizeof path, "%s/%s", folder, file);
  FILE *lines = fopen(path, "re");
  while (lines && number < 0 && fgets(line, sizeof line, lines))
    if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ' ')
      number = atol(line + strlen(name));
  if (lines) fclose(lines);
  return number;
}

static bool move_to(const char *group) {
  char path[400];
  snprintf(path, sizeof path, "%s/cgroup.procs", group);
  FILE *file = fopen(path, "we");
  if (!file) return false;
  bool written = fprintf(file, "%d\n", (int)getpid()) > 0;
  return fclose(file) == 0 && written;
}

/* Where this process's memory is accounted for: by cgroups of version 1 or 2, mounted where they
 * commonly are. */
static bool find_group(void) {
  char line[256];
  FILE *file = fopen("/proc/self/cgroup", "re");
  while (file && fgets(line, sizeof line, file)) {
    char *path = strrchr(line, ':');
    bool first = strstr(line, ":memory:") != NULL;
    if (!path || (!first && strncmp(line, "0::", 3) != 0)) continue;
    path[strcspn(path, "\n")] = '\0';
    snprintf(parent_group, sizeof parent_group, "/sys/fs/cgroup%s%s", first ? "/memory" : "",
             path + 1);
    if (number_in(parent_group, "memory.stat", "shmem") >= 0) break;
    parent_group[0] = '\0';
  }
  if (file) fclose(file);
  return parent_group[0] != '\0';
}

#define GROUP "ringcast-kill-"

/* Of campaigns that were killed themselves. */
static void remove_old_groups(void) {
  char path[600];
  DIR *directory = opendir(parent_group);
  for (struct dirent *entry; directory && (entry = readdir(directory));) {
    if (strncmp(entry->d_name, GROUP, strlen(GROUP)) != 0) continue;
    if (kill(atoi(entry->d_name + strlen(GROUP)), 0) == 0 || errno != ESRCH) continue;
    snprintf(path, sizeof path, "%s/%s", parent_group, entry->d_name);
    rmdir(path); /* not if somebody is in it */
  }
  if (directory) closedir(directory);
}

/* Memory that this process and its children take from here on is counted apart, also when they are
 * dead. */
static bool enter_own_group(void) {
  if (!find_group()) return false;
  remove_old_groups();
  snprintf(own_group, sizeof own_group, "%s/" GROUP "%d", parent_group, (int)getpid());
  bool made = mkdir(own_group, 0755) == 0;
  if (made && number_in(own_group, "memory.stat", "shmem") >= 0 && move_to(own_group)) return true;
  rmdir(own_group);
  own_group[0] = '\0';
  return false;
}

static void leave_own_group(void) {
  if (own_group[0] != '\0' && move_to(parent_group)) rmdir(own_group);
}

static long shared_now(void) {
  return own_group[0] != '\0' ? number_in(own_group, "memory.stat", "shmem") / 1024
                              : shared_memory_in_use();
}

static uint64_t files_before;

static uint64_t files(void) {
  uint64_t count = 0;
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) count += files_in(folders[i]);
  return count;
}

void leaks_begin(void) {
  prctl(PR_SET_CHILD_SUBREAPER, 1); /* what a party leaves running becomes this process's child */
  private = hide_folders();
  if (!private)
    fprintf(stderr,
            "SKIPPED kill: files in /tmp and /dev/shm that are not named ringcast: can't hide "
            "others': %s\n",
            strerror(errno));
  files_before = files();
  if (!enter_own_group())
    fprintf(stderr, "kill: no memory cgroup of our own is to be had: the whole machine's shared "
                    "memory is looked at\n");
  atexit(leave_own_group);
  shared_before = shared_now();
  at_first = look_before();
}

void leaks_after_round(struct leaks *leaks) {
  struct before now = look_before();
  while (waitpid(-1, NULL, WNOHANG) >= 0) { /* else there is none */
    leaks->processes++;
    if (leaks->processes > 1000) break;
  }
  if (files() > files_before) leaks->files += files() - files_before;
  files_before = files();
  if (now.descriptors > at_first.descriptors) leaks->descriptors++;
  if (now.mappings > at_first.mappings) leaks->mappings++;
}

void leaks_end(struct leaks *leaks) {
  long tolerated = own_group[0] != '\0' ? TOLERATED_OWN_KB : TOLERATED_KB;
  uint64_t began = now_ns();
  do leaks->shared_kb = shared_now() - shared_before;
  while (leaks->shared_kb > tolerated && now_ns() - began < PATIENCE_NS && sched_yield() == 0);
  if (leaks->shared_kb <= tolerated) leaks->shared_kb = 0;
}
