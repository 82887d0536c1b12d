/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/disable.h"

#include <stdlib.h>
#include <string.h>

bool rc_disabled(const char *what) {
  const char *list = getenv("RINGCAST_DISABLE");
  size_t length = strlen(what);
  while (list) {
    list += strspn(list, " ,");
    size_t word = strcspn(list, " ,");
    if (word == 0) return false;
    if (word == length && memcmp(list, what, length) == 0) return true;
    list += word;
  }
  return false;
}
