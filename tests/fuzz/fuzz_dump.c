/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringcast dump` says of a frame: any bytes at all are shown, as text and as JSON, and no
 * byte that a terminal obeys is printed. */
#include "tests/fuzz/fuzz.h"

#include "ringcast/inspect.h"
#include "tools/dump.h"

static FILE *screen;

static void check_screen(void) {
  fflush(stdout);
  size_t bytes = (size_t)lseek(fileno(screen), 0, SEEK_CUR);
  char *text = malloc(bytes + 1), *shown = malloc(4 * bytes + 1);
  rewind(screen);
  require(text && shown && fread(text, 1, bytes, screen) == bytes);
  /* Nothing had to be escaped. */
  require(ringcast_printable(text, bytes, shown, 4 * bytes + 1) == bytes);
  free(text);
  free(shown);
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
