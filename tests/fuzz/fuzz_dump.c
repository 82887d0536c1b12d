/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringcast dump` says of a frame: any bytes at all are shown, as text and as JSON, and no byte that a terminal
 * obeys is printed. */
#include "tests/fuzz/fuzz.h"

#include "tools/dump.h"

static FILE *screen;

static void check_screen(void) {
  char line[4096];
  size_t bytes;
  fflush(stdout);
  rewind(screen);
  while ((bytes = fread(line, 1, sizeof line, screen)) > 0)
    for (size_t i = 0; i < bytes; i++) require((uint8_t)line[i] >= ' ' && line[i] != 0x7f);
  rewind(screen);
  require(ftruncate(fileno(screen), 0) == 0);
}

int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count, (void)arguments;
  screen = tmpfile();
  require(screen && dup2(fileno(screen), STDOUT_FILENO) == STDOUT_FILENO);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  uint8_t *exact = malloc(bytes ? bytes : 1);
  memcpy(exact, data, bytes);
  fuzzed_frames++;
  dump_tensors(exact, bytes, false);
  check_screen();
  dump_tensors(exact, bytes, true);
  check_screen();
  free(exact);
  return 0;
}
