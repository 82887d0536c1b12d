/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: what is taken for one is, to the byte, what would be made of what was understood. */
#include "shm/segment.h"

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  struct rc_handle handle;
  char *text = malloc(bytes + 1), again[RC_HANDLE_MAX];
  if (bytes != 0) memcpy(text, data, bytes);
  text[bytes] = '\0';
  if (rc_handle_parse(text, &handle) == 0) {
    require(handle.writer.pid > 0 && handle.control_fd >= 0 && handle.data_fd >= 0);
    rc_handle_format(&handle, again);
    require(strcmp(text, again) == 0);
  }
  free(text);
  if (bytes < RC_HANDLE_MAX) return 0;
  text = malloc(RC_HANDLE_MAX); /* one that has no end */
  memcpy(text, data, RC_HANDLE_MAX);
  rc_handle_parse(text, &handle);
  free(text);
  return 0;
}
