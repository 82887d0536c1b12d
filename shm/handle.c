/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/handle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void rc_handle_format(const struct rc_handle *handle, char out[RC_HANDLE_MAX]) {
  snprintf(out, RC_HANDLE_MAX, "rc1:%" PRId32 ":%" PRIu64 ":%" PRId32 ":%" PRId32 ":%016" PRIx64 "%016" PRIx64,
           handle->writer.pid, handle->writer.start, handle->control_fd, handle->data_fd, handle->token[0],
           handle->token[1]);
}

/* Reads a number up to `most` and the following `end`. False: the text differs, or the number has leading zeros. */
static bool take_decimal(const char **text, char end, uint64_t most, uint64_t *out) {
  const char *p = *text;
  uint64_t value = 0;
  if (*p == '0' && p[1] != end) return false;
  if (*p < '0' || *p > '9') return false;
  for (; *p >= '0' && *p <= '9'; p++) {
    uint64_t digit = (uint64_t)(*p - '0');
    if (value > (most - digit) / 10) return false;
    value = value * 10 + digit;
  }
  if (*p != end) return false;
  *text = p + 1;
  *out = value;
  return true;
}

static bool take_hex16(const char **text, uint64_t *out) {
  uint64_t value = 0;
  for (int i = 0; i < 16; i++) {
    char c = (*text)[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    value = value << 4 | (uint64_t)digit;
  }
  *text += 16;
  *out = value;
  return true;
}

int rc_handle_parse(const char *text, struct rc_handle *out) {
  if (!text || strnlen(text, RC_HANDLE_MAX) == RC_HANDLE_MAX || strncmp(text, "rc1:", 4) != 0) return -EINVAL;
  const char *p = text + 4;
  uint64_t pid, start, control, data, token[2];
  if (!take_decimal(&p, ':', INT32_MAX, &pid) || !take_decimal(&p, ':', UINT64_MAX, &start) ||
      !take_decimal(&p, ':', INT32_MAX, &control) || !take_decimal(&p, ':', INT32_MAX, &data) ||
      !take_hex16(&p, &token[0]) || !take_hex16(&p, &token[1]) || *p != '\0' || pid == 0)
    return -EINVAL;
  *out = (struct rc_handle){.writer = {.pid = (int32_t)pid, .start = start},
                            .control_fd = (int32_t)control,
                            .data_fd = (int32_t)data,
                            .token = {token[0], token[1]}};
  return 0;
}
