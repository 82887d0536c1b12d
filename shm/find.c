/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shm/segment.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <inttypes.h>

#include "shm/error.h"
#include "shm/os.h"

/* ---- Handles --------------------------------------------------------------------------------- */

void rc_handle_format(const struct rc_handle *handle, char out[RC_HANDLE_MAX]) {
  snprintf(out, RC_HANDLE_MAX,
           "rc1:%" PRId32 ":%" PRIu64 ":%" PRId32 ":%" PRId32 ":%016" PRIx64 "%016" PRIx64,
           handle->writer.pid, handle->writer.start, handle->control_fd, handle->data_fd,
           handle->token[0], handle->token[1]);
}

/* sscanf also accepts blanks, signs, leading zeros and a longer text, so the values are formatted
 * and compared. */
int rc_handle_parse(const char *text, struct rc_handle *out) {
  struct rc_handle found = {0};
  char again[RC_HANDLE_MAX];
  if (!text || strnlen(text, RC_HANDLE_MAX) == RC_HANDLE_MAX) return -EINVAL;
  if (sscanf(text, "rc1:%" SCNd32 ":%" SCNu64 ":%" SCNd32 ":%" SCNd32 ":%16" SCNx64 "%16" SCNx64,
             &found.writer.pid, &found.writer.start, &found.control_fd, &found.data_fd,
             &found.token[0], &found.token[1]) != 6)
    return -EINVAL;
  rc_handle_format(&found, again);
  if (strcmp(text, again) != 0 || found.writer.pid <= 0 || found.control_fd < 0 ||
      found.data_fd < 0)
    return -EINVAL;
  *out = found;
  return 0;
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* '@' separates a name from a pid, and '/' would make a name unusable as a file's. */
static bool is_name(const char *name, size_t most) {
  size_t length = strnlen(name, most);
  if (length == most) return false;
  for (size_t i = 0; i < length; i++)
    if (!isalnum((unsigned char)name[i]) && !strchr("._:+-", name[i])) return false;
  return true;
}

int rc_name_check(const char *name) {
  if (*name != '\0' && is_name(name, RC_RING_NAME)) return 0;
  return rc_fail(-EINVAL,
                 "'%.64s' can't be a ring's name: it must have 1 to %u letters, digits and any of "
                 "._:+-",
                 name, RC_RING_NAME - 1);
}

void rc_name_copy(const char from[RC_RING_NAME], char to[RC_RING_NAME]) {
  char copy[RC_RING_NAME];
  /* The copy is checked and used: later changes of the shared bytes don't matter. */
  memcpy(copy, from, sizeof copy);
  rc_fence_light();
  memset(to, 0, RC_RING_NAME);
  if (is_name(copy, sizeof copy)) memcpy(to, copy, strnlen(copy, sizeof copy - 1));
  else to[0] = '?';
}

/* ---- /proc ----------------------------------------------------------------------------------- */

int rc_proc_check(void) {
  char text[16];
  ssize_t length = readlink("/proc/self", text, sizeof text - 1);
  if (length < 0) return 0; /* no /proc: who reads it next says so */
  text[length] = '\0';
  if (strtol(text, NULL, 10) == getpid()) return 0;
  return rc_fail(-EIO,
                 "/proc is of another PID namespace: process %d is process %s there; mount the one "
                 "of this namespace (unshare --mount-proc, or mount -t proc proc /proc)",
                 (int)getpid(), text);
}

/* The entries of a folder of /proc. NULL: *result is 0 if the folder is not for this process, or
 * has gone; any other error could hide a ring, and is an error of the search. */
static DIR *open_folder(const char *path, int *result) {
  DIR *folder = opendir(path);
  int error = errno;
  *result = 0;
  if (folder || error == EACCES || error == EPERM || error == ENOENT || error == ESRCH)
    return folder;
  *result = rc_fail(-error, "can't read %s: %s", path, strerror(error));
  return NULL;
}

/* ---- Searching ------------------------------------------------------------------------------- */

struct search {
  int32_t pid;
  int (*found)(void *context, const struct rc_found *ring);
  void *context;
};

/* The name of a directory entry as a number, or -1. */
static int32_t number_of(const struct dirent *entry) {
  char *end;
  if (!isdigit((unsigned char)*entry->d_name)) return -1;
  long number = strtol(entry->d_name, &end, 10);
  if (*end != '\0' || number > INT32_MAX) return -1;
  return (int32_t)number;
}

/* Copies the identity of a control segment. False: the file is none, or this process can't attach
 * to the ring. */
static bool read_identity(int fd, struct rc_identity *id) {
  struct stat file;
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != geteuid()) return false;
  if (pread(fd, id, sizeof *id, 0) != sizeof *id || id->magic != RC_MAGIC) return false;
  if (id->layout != RC_LAYOUT) return true;
  if (id->ready != RC_READY) return false;
  uint64_t here = rc_os.pid_namespace();
  return id->pid_namespace == 0 || here == 0 || id->pid_namespace == here;
}

/* Reports a ring if descriptor `number` of the process is a control segment of its own. */
static int look_at(const struct search *search, int directory, int32_t number, const char *entry) {
  static const char control[] = "/memfd:ringcast.control";
  char target[sizeof control];
  ssize_t length = readlinkat(directory, entry, target, sizeof target);
  if (length < (ssize_t)sizeof control - 1 || memcmp(target, control, sizeof control - 1) != 0)
    return 0;
  int fd = rc_fd_above_2(openat(directory, entry, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM)
    return rc_fail(fd, "can't open one of the rings: %s; raise the limit or free memory",
                   strerror(-fd));
  if (fd < 0) return 0;
  struct rc_identity id;
  bool is_ring = read_identity(fd, &id);
  close(fd);
  if (!is_ring) return 0;
  struct rc_found ring = {.pid = search->pid, .compatible = id.layout == RC_LAYOUT};
  if (ring.compatible) {
    bool is_own = id.writer_pid == search->pid && id.control_fd == number;
    if (!is_own) return 0; /* inherited by fork, or a duplicate */
    rc_name_copy(id.name, ring.name);
    ring.handle = (struct rc_handle){.writer = {.pid = id.writer_pid, .start = id.writer_start},
                                     .control_fd = number,
                                     .data_fd = id.data_fd,
                                     .token = {id.token[0], id.token[1]}};
  }
  return search->found(search->context, &ring);
}

/* No rings: the process ends meanwhile, or belongs to another user. */
static int look_into(const struct search *search) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/fd", search->pid);
  int result;
  DIR *files = open_folder(path, &result);
  if (!files) return result;
  int directory = dirfd(files);
  while (directory >= 0 && result == 0) {
    struct dirent *entry = readdir(files);
    if (!entry) break;
    int32_t number = number_of(entry);
    if (number >= 0) result = look_at(search, directory, number, entry->d_name);
  }
  closedir(files);
  return result;
}

int rc_find_rings(int (*found)(void *context, const struct rc_found *ring), void *context) {
  int result = rc_proc_check();
  if (result != 0) return result;
  DIR *processes = open_folder("/proc", &result);
  if (!processes) {
    if (result != 0) return result;
    return rc_fail_as(-EIO, "can't read /proc, which shows the rings");
  }
  struct search search = {.found = found, .context = context};
  while (result == 0) {
    struct dirent *entry = readdir(processes);
    if (!entry) break;
    search.pid = number_of(entry);
    if (search.pid > 0) result = look_into(&search);
  }
  closedir(processes);
  return result;
}
