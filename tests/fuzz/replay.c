/* SPDX-License-Identifier: Apache-2.0 */
/* Calls a fuzz target with what is kept, where there is no libFuzzer: what it found stays tested
 * with every compiler.
 *   fuzz_<target> FILE.txt|FOLDER...
 * A text holds one input a line, in hexadecimal, and remarks after #; of a folder each .bin is an
 * input. */
#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>

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
  uint8_t data[4096];
  size_t bytes = 0;
  unsigned byte;
  for (; bytes < sizeof data && isxdigit((unsigned char)*line) && sscanf(line, "%2x", &byte) == 1;
       line += 2)
    data[bytes++] = (uint8_t)byte;
  return bytes != 0 ? replay_bytes(data, bytes) : 0;
}

static int replay_file(const char *path) {
  static char line[2 * 4096 + 256];
  bool text = strstr(path, ".txt");
  int count = 0;
  FILE *file = fopen(path, "rbe");
  if (!file) return perror(path), 0;
  if (text)
    while (fgets(line, sizeof line, file)) count += replay_line(line);
  else count = replay_bytes((uint8_t *)line, fread(line, 1, sizeof line, file));
  fclose(file);
  return count;
}

static int replay(const char *path) {
  DIR *folder = opendir(path);
  int count = 0;
  if (!folder) return replay_file(path);
  for (struct dirent *entry; (entry = readdir(folder));) {
    char inside[4096];
    snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
    if (strstr(entry->d_name, ".bin")) count += replay_file(inside);
  }
  closedir(folder);
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
