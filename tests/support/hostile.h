/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/vectors/hostile.py has written for the tests: a frame or a stream of tokens on each
 * line, in hexadecimal, and after # what is expected of it. */
#ifndef RC_TESTS_HOSTILE_H
#define RC_TESTS_HOSTILE_H

#include <ctype.h>
#include <errno.h>

#include "tests/support/suite.h"

struct hostile {
  FILE *file;
  char line[1 << 15];
  uint8_t *data; /* a block of exactly its size: what is read beyond it is found by a sanitizer */
  size_t bytes;
  const char *told; /* what stands after the # */
};

static inline struct hostile *hostile_open(const char *path) {
  struct hostile *all = calloc(1, sizeof *all);
  all->file = fopen(path, "r");
  ck_assert_msg(all->file != NULL, "%s: %s", path, strerror(errno));
  return all;
}

/* Whether there is a next line; it is in `line`, without its end. */
static inline bool hostile_line(struct hostile *all) {
  if (!fgets(all->line, sizeof all->line, all->file)) return false;
  size_t length = strcspn(all->line, "\n");
  ck_assert_msg(all->line[length] == '\n', "a line is too long");
  all->line[length] = '\0';
  return true;
}

/* The next line with bytes. False: that was the last, and all is freed. */
static inline bool hostile_next(struct hostile *all) {
  free(all->data);
  all->data = NULL;
  do {
    if (!hostile_line(all)) {
      fclose(all->file);
      free(all);
      return false;
    }
  } while (all->line[0] == '=');
  all->bytes = strspn(all->line, "0123456789abcdef") / 2;
  all->data = malloc(all->bytes ? all->bytes : 1);
  for (size_t i = 0; i < all->bytes; i++) {
    const char digits[] = {all->line[2 * i], all->line[2 * i + 1], '\0'};
    all->data[i] = (uint8_t)strtoul(digits, NULL, 16);
  }
  all->told = strstr(all->line, "# ") + 2;
  return true;
}

#endif
