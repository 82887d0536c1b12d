/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests that qemu runs for another CPU. It invents a process's own /proc/<pid>/stat: each
 * thread finds its own start time there, and a forked child its parent's, so all that ringcast
 * tells processes apart by would be wrong. It recognises the file by its path. Linked with
 * --wrap=open, this takes another way to it. Compiled with -D__wrap_open=open it can be preloaded
 * (tests/wheels/arm.sh).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int __wrap_open(const char *path, int flags, ...);

int __wrap_open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  char folder[32];
  int end = 0;
  if (sscanf(path, "/proc/%*[0-9]/stat%n", &end) == EOF || end == 0 || path[end] != '\0')
    return openat(AT_FDCWD, path, flags, mode);
  snprintf(folder, sizeof folder, "%.*s", end - (int)strlen("/stat"), path);
  int directory = openat(AT_FDCWD, folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return -1;
  int fd = openat(directory, "stat", flags), error = errno;
  close(directory);
  errno = error;
  return fd;
}
