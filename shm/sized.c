/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/sized.h"

#include <errno.h>
#include <string.h>

#include "ringcast/version.h"
#include "shm/error.h"

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
                     " knows only %zu: leave "
                     "fields of later releases at zero, or load the later library",
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
