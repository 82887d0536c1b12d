/* SPDX-License-Identifier: Apache-2.0 */
/* What could be left behind: by a party that has closed all it had, and by the dead. */
#define _GNU_SOURCE
#include "tests/support/leaks.h"

#include <errno.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/process/kill/kill.h"
#include "tests/support/shared_memory.h"

/* Shared memory is the whole machine's; what a campaign would leak is hundreds of rings. */
#define TOLERATED_KB (96L << 10)
#define PATIENCE_NS  ((uint64_t)20 * 1000 * 1000 * 1000) /* for what others take meanwhile, and drop again */

static const char *const folders[] = {"/tmp", "/dev/shm"};
static bool private; /* nobody else sees these folders: whatever lies in them is ours */
static long shared_before;
static struct before at_first;

static int threads(void) {
  int count = 0;
  DIR *directory = opendir("/proc/self/task");
  while (readdir(directory)) count++;
  closedir(directory);
  return count;
}

struct before look_before(void) {
  return (struct before){.descriptors = open_descriptors(), .mappings = ring_mappings(), .threads = threads()};
}

/* Threads that the kernel had for io_uring end a little after its closing. */
void look_after(const struct before *before) {
  uint64_t began = now_ns();
  while (threads() > before->threads && now_ns() - began < 1000000000) sched_yield();
  struct before now = look_before();
  if (now.descriptors > before->descriptors)
    note_wrong(self, &board->counts.descriptors, "%d descriptors left open", now.descriptors - before->descriptors);
  if (now.mappings > before->mappings)
    note_wrong(self, &board->counts.mappings, "%d mappings left", now.mappings - before->mappings);
  if (now.threads > before->threads)
    note_wrong(self, &board->counts.threads, "%d threads left", now.threads - before->threads);
}

/* ---- The referee's ---------------------------------------------------------------------------------------------- */

/* Memory of our own over the folders, for this process and its children. */
static bool hide_folders(void) {
  if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return false;
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
    fprintf(stderr, "SKIPPED kill: files of another name than ringcast's in /tmp and /dev/shm: %s, so others' are there\n",
            strerror(errno));
  files_before = files();
  shared_before = shared_memory_in_use();
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
  uint64_t began = now_ns();
  do leaks->shared_kb = shared_memory_in_use() - shared_before;
  while (leaks->shared_kb > TOLERATED_KB && now_ns() - began < PATIENCE_NS && sched_yield() == 0);
  if (leaks->shared_kb < TOLERATED_KB) leaks->shared_kb = 0;
}
