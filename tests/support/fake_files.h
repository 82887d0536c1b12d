/* SPDX-License-Identifier: Apache-2.0 */
/* Another machine's /proc and /sys: what a test lists here is all that rc_os.read_file finds. */
#ifndef RC_TESTS_FAKE_FILES_H
#define RC_TESTS_FAKE_FILES_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shm/os.h"

struct fake_file {
  const char *path, *text;
};

static const struct fake_file *fake_files; /* ends with a path of NULL */

static int read_fake_file(const char *path, char *text, size_t bytes) {
  for (const struct fake_file *file = fake_files; file->path; file++)
    if (strcmp(file->path, path) == 0) return (int)strlen(strncpy(text, file->text, bytes));
  return -ENOENT;
}

static inline void use_fake_files(const struct fake_file *files) {
  fake_files = files;
  rc_os.read_file = read_fake_file;
}

#endif
