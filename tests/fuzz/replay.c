/* SPDX-License-Identifier: Apache-2.0 */
/* Calls a fuzz target with what is kept, where there is no libFuzzer: what it found stays tested
 * with every compiler.
 *   fuzz_<target> FILE...
 * Each line of a file is an input, in hexadecimal, and remarks after #. */
#include <ctype.h>

#include "tests/fuzz/fuzz.h"

__attribute__((weak)) int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count, (void)arguments;
  return 0;
}

/* In a block of just its size, so that a read beyond it shows. */
static int replay_bytes(const uint8_t *data, size_t bytes) {
  uint8_t *exact = malloc(bytes ? bytes : 1);
  memcpy(exact, data, bytes);
  LLVMFuzzerTestOneInput(exact, bytes);
  free(exact);
  return 1;
}

static int replay_line(const char *line) {
  static uint8_t data[1 << 15];
  size_t bytes = 0;
  unsigned byte;
  for (; bytes < sizeof data && isxdigit((unsigned char)*line) && sscanf(line, "%2x", &byte) == 1;
       line += 2)
    data[bytes++] = (uint8_t)byte;
  return bytes != 0 ? replay_bytes(data, bytes) : 0;
}

static int replay(const char *path) {
  static char line[1 << 17];
  int count = 0;
  FILE *file = fopen(path, "rbe");
  if (!file) return perror(path), 0;
  while (fgets(line, sizeof line, file)) count += replay_line(line);
  fclose(file);
  return count;
}

int main(int count, char **arguments) {
  int replayed = 0;
  LLVMFuzzerInitialize(&count, &arguments);
  for (int i = 1; i < count; i++) {
    int here = replay(arguments[i]);
    if (here == 0) fprintf(stderr, "%s: no input is there\n", arguments[i]);
    if (here == 0) return EXIT_FAILURE;
    replayed += here;
  }
  printf("%d inputs replayed\n", replayed);
  return EXIT_SUCCESS;
}
