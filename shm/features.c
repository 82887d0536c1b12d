/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/features.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/error.h"

/* The first word from `list` on, and the length of the word: 0 at the end. */
static const char *next_word(const char *list, size_t *length) {
  list += strspn(list, " ,");
  *length = strcspn(list, " ,");
  return list;
}

static bool names(const char *list, const char *what, size_t wanted) {
  size_t length;
  for (list = next_word(list, &length); length != 0; list = next_word(list + length, &length))
    if (length == wanted && memcmp(list, what, length) == 0) return true;
  return false;
}

bool rc_feature_disabled(const char *what) {
  const char *list = getenv("RINGCAST_DISABLE");
  return list && names(list, what, strlen(what));
}

int rc_features_check(void) {
  static const char known[] = "hugetlb, shmem-huge, numa, io_uring, pidfd, cpu_wait, spin, retain, dlpack_api,"
                              " cuda, cuda_pool, cuda_register";
  const char *list = getenv("RINGCAST_DISABLE");
  size_t length;
  if (!list) return 0;
  for (list = next_word(list, &length); length != 0; list = next_word(list + length, &length))
    if (!names(known, list, length))
      return rc_fail(-EINVAL, "RINGCAST_DISABLE has '%.*s': it must be a list of any of %s",
                     length < 40 ? (int)length : 40, list, known);
  return 0;
}
