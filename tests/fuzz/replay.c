/* SPDX-License-Identifier: Apache-2.0 */
/* Calls a fuzz target with files, where there is no libFuzzer: what it once found stays tested with every compiler.
 *   fuzz_<target> FILE|FOLDER... */
#include <dirent.h>

#include "tests/fuzz/fuzz.h"

__attribute__((weak)) int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count, (void)arguments;
  return 0;
}

static int replay_file(const char *path) {
  FILE *file = fopen(path, "rbe");
  if (!file) return perror(path), 0;
  uint8_t *data = malloc(1 << 20);
  size_t bytes = fread(data, 1, 1 << 20, file);
  fclose(file);
  uint8_t *exact = malloc(bytes ? bytes : 1); /* so that a read beyond it shows */
  memcpy(exact, data, bytes);
  free(data);
  LLVMFuzzerTestOneInput(exact, bytes);
  free(exact);
  return 1;
}

static int replay(const char *path) {
  DIR *folder = opendir(path);
  int count = 0;
  if (!folder) return replay_file(path);
  for (struct dirent *entry; (entry = readdir(folder));) {
    char inside[4096];
    if (entry->d_name[0] == '.' || strstr(entry->d_name, ".json") || strstr(entry->d_name, ".py")) continue;
    snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
    count += replay_file(inside);
  }
  closedir(folder);
  return count;
}

int main(int count, char **arguments) {
  int replayed = 0;
  LLVMFuzzerInitialize(&count, &arguments);
  for (int i = 1; i < count; i++) replayed += replay(arguments[i]);
  printf("%d inputs replayed\n", replayed);
  return replayed == 0; /* none: the corpus is not where it should be */
}
