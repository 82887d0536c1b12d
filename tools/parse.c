/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool parse_bytes(const char *text, uint64_t *out) {
  char *end;
  errno = 0;
  if (!isdigit((unsigned char)*text)) return false;
  unsigned long long value = strtoull(text, &end, 10);
  const char *suffixes = "KMG", *suffix = *end ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
  unsigned shift = suffix ? 10 * (unsigned)(suffix - suffixes + 1) : 0;
  if (suffix) end++;
  if (errno || *end || value > (UINT64_MAX >> 1) >> shift) return false;
  *out = (uint64_t)value << shift;
  return true;
}

bool parse_whole(const char *text, uint64_t least, uint64_t most, uint64_t *out) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (!isdigit((unsigned char)*text) || *end || errno || value < least || value > most) return false;
  *out = value;
  return true;
}

bool parse_number(const char *text, double least, double most, double *out) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value) || value < least || value > most) return false;
  *out = value;
  return true;
}
