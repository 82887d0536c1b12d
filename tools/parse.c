/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool parse_bytes(const char *text, void *out) {
  char *end;
  errno = 0;
  if (!isdigit((unsigned char)*text)) return false;
  unsigned long long value = strtoull(text, &end, 10);
  const char *suffixes = "KMG", *suffix = *end ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
  unsigned shift = suffix ? 10 * (unsigned)(suffix - suffixes + 1) : 0;
  if (suffix) end++;
  if (errno || *end || value > (UINT64_MAX >> 1) >> shift) return false;
  *(uint64_t *)out = (uint64_t)value << shift;
  return true;
}

bool parse_whole(const char *text, void *out) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (!isdigit((unsigned char)*text) || *end || errno) return false;
  *(uint64_t *)out = value;
  return true;
}

bool parse_number(const char *text, double least, double most, double *out) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value) || value < least || value > most) return false;
  *out = value;
  return true;
}

bool parse_seconds(const char *text, void *out) { return parse_number(text, 0, 1e9, out); }

bool parse_text(const char *text, void *out) {
  *(const char **)out = text;
  return true;
}
