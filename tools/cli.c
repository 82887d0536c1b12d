/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cli.h"

#include <stdarg.h>
#include <string.h>

int cli_misused(const char *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("ringcast: ", stderr);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, "\n%s", text);
  return CLI_USAGE;
}

bool cli_format(const char *text, bool *json) {
  *json = strcmp(text, "json") == 0;
  return *json || strcmp(text, "text") == 0;
}

char *cli_read_line(const char *path, char *out, size_t size) {
  FILE *file = fopen(path, "re");
  out[0] = '\0';
  if (!file) return out;
  if (!fgets(out, (int)size, file)) out[0] = '\0';
  fclose(file);
  out[strcspn(out, "\n")] = '\0';
  return out;
}

char *cli_cpu_model(char *out, size_t size) {
  char line[512];
  FILE *file = fopen("/proc/cpuinfo", "re");
  snprintf(out, size, "unknown");
  while (file && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || !colon || colon[1] == '\0') continue;
    colon[strcspn(colon, "\n")] = '\0';
    snprintf(out, size, "%s", colon + 2);
    break;
  }
  if (file) fclose(file);
  return out;
}

int cli_finish(FILE *out, int status) {
  if (fflush(out) == 0 && !ferror(out)) return status;
  perror("ringcast: can't write what was found");
  return CLI_FAILED;
}
