/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/error.h"
#include "ringcast/version.h"

int rc_environment_number(const char *name, uint64_t most, const char *unit, const char *zero,
                          uint64_t *out) {
  const char *text = getenv(name);
  char *end;
  if (!text || !*text) return 0;
  errno = 0;
  unsigned long long number = strtoull(text, &end, 10); /* takes blanks and signs too */
  if (errno != 0 || *end != '\0' || *text < '0' || *text > '9' || number > most)
    return rc_fail(-EINVAL, "%s is '%.40s': it must be a whole number of %s, 0 (%s) to %llu", name,
                   text, unit, zero, (unsigned long long)most);
  *out = number;
  return 1;
}

int rc_environment_choice(const char *name, const char *const *names, uint32_t count,
                          uint32_t *out) {
  const char *text = getenv(name);
  char list[128] = "";
  if (!text || !*text) return 0;
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(text, names[i]) == 0) {
      *out = i;
      return 1;
    }
    const char *before = i < count - 1 ? ", " : " or ";
    if (i == 0) before = "";
    size_t used = strlen(list);
    snprintf(list + used, sizeof list - used, "%s%s", before, names[i]);
  }
  return rc_fail(-EINVAL, "%s is '%.40s': it must be %s", name, text, list);
}

/* ---- RINGCAST_DISABLE ------------------------------------------------------------------------ */

/* The first word from `list` on, and the length of the word: 0 at the end. */
static const char *next_word(const char *list, size_t *length) {
  list += strspn(list, " ,");
  *length = strcspn(list, " ,");
  return list;
}

static bool names(const char *list, const char *what, size_t wanted) {
  size_t length;
  const char *word = next_word(list, &length);
  while (length != 0) {
    if (length == wanted && memcmp(word, what, length) == 0) return true;
    word = next_word(word + length, &length);
  }
  return false;
}

bool rc_feature_disabled(const char *what) {
  const char *list = getenv("RINGCAST_DISABLE");
  return list && names(list, what, strlen(what));
}

int rc_features_check(void) {
  static const char known[] =
      "hugetlb, shmem-huge, numa, io_uring, pidfd, cpu_wait, spin, retain, cuda, cuda_register";
  const char *list = getenv("RINGCAST_DISABLE");
  size_t length;
  if (!list) return 0;
  const char *word = next_word(list, &length);
  while (length != 0) {
    if (!names(known, word, length)) {
      int shown = length < 40 ? (int)length : 40;
      return rc_fail(-EINVAL, "RINGCAST_DISABLE has '%.*s': it must be a list of any of %s", shown,
                     word, known);
    }
    word = next_word(word + length, &length);
  }
  return 0;
}

/* ---- Structs that grow ----------------------------------------------------------------------- */

int rc_sized_check(const char *type, uint32_t size) {
  if (size < RC_SIZED_LEAST)
    return rc_fail(-EINVAL,
                   "the size in struct %s is %u: set it to sizeof(struct %s) before the call", type,
                   size, type);
  if (size > RC_SIZED_MOST)
    return rc_fail(-E2BIG,
                   "the size in struct %s is %u, and no such struct is larger than %d: set it to "
                   "sizeof(struct %s) before the call",
                   type, size, RC_SIZED_MOST, type);
  return 0;
}

int rc_sized_read(const char *type, const void *given, void *out, size_t bytes) {
  uint32_t size = (uint32_t)bytes;
  if (given) memcpy(&size, given, sizeof size);
  int result = rc_sized_check(type, size);
  if (result != 0) return result;
  for (size_t i = bytes; given && i < size; i++)
    if (((const uint8_t *)given)[i] != 0)
      return rc_fail(-E2BIG,
                     "byte %zu of struct %s is set, and ringcast " RINGCAST_VERSION
                     " knows only %zu: leave fields of later releases at zero, or load the later "
                     "library",
                     i, type, bytes);
  memset(out, 0, bytes);
  if (given) memcpy(out, given, size < bytes ? size : bytes);
  const uint32_t here = (uint32_t)bytes;
  memcpy(out, &here, sizeof here);
  return 0;
}

void rc_sized_write(void *out, uint32_t size, const void *known, size_t bytes) {
  size_t filled = size < bytes ? size : bytes;
  memcpy(out, known, filled);
  memset((uint8_t *)out + filled, 0, size - filled);
  memcpy(out, &size, sizeof size);
}
