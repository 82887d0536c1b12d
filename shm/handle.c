/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/handle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void rc_handle_format(const struct rc_handle *handle, char out[RC_HANDLE_MAX]) {
  snprintf(out, RC_HANDLE_MAX,
           "rc1:%" PRId32 ":%" PRIu64 ":%" PRId32 ":%" PRId32 ":%016" PRIx64 "%016" PRIx64,
           handle->writer.pid, handle->writer.start, handle->control_fd, handle->data_fd,
           handle->token[0], handle->token[1]);
}

/* sscanf also accepts blanks, signs, leading zeros and a longer text, so the values are formatted
 * and compared. */
int rc_handle_parse(const char *text, struct rc_handle *out) {
  struct rc_handle found = {0};
  char again[RC_HANDLE_MAX];
  if (!text || strnlen(text, RC_HANDLE_MAX) == RC_HANDLE_MAX) return -EINVAL;
  if (sscanf(text, "rc1:%" SCNd32 ":%" SCNu64 ":%" SCNd32 ":%" SCNd32 ":%16" SCNx64 "%16" SCNx64,
             &found.writer.pid, &found.writer.start, &found.control_fd, &found.data_fd,
             &found.token[0], &found.token[1]) != 6)
    return -EINVAL;
  rc_handle_format(&found, again);
  if (strcmp(text, again) != 0 || found.writer.pid <= 0 || found.control_fd < 0 ||
      found.data_fd < 0)
    return -EINVAL;
  *out = found;
  return 0;
}
