/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files of scenarios, and makes steps of their lines. */
#define _GNU_SOURCE
#include "tests/gpu_scenarios/scenario.h"

struct run *runs[MOST_RUNS];
int run_count, step_count;
struct step steps[MOST_STEPS];

static int indent_of(const char *text) { return (int)strspn(text, " "); }

char *next_word(char **text) {
  char *word = *text + strspn(*text, " ");
  if (*word == '\0') return NULL;
  bool is_quoted = *word == '"';
  word += is_quoted;
  char *end = word + strcspn(word, is_quoted ? "\"" : " ");
  *text = *end ? end + 1 : end;
  *end = '\0';
  return word;
}

/* Replaces $NAME by a value wherever it is. */
static void substitute(char text[MOST_TEXT], const char *name, const char *value) {
  char pattern[32], copy[MOST_TEXT];
  snprintf(pattern, sizeof pattern, "$%s", name);
  for (char *found; (found = strstr(text, pattern));) {
    strcpy(copy, found + strlen(pattern));
    int room = MOST_TEXT - (int)(found - text);
    must(snprintf(found, (size_t)room, "%s%s", value, copy) < room);
  }
}

/* One of the values of `each A/B x/y z/w`, in all lines of the run. */
static void substitute_each(struct run *run, const char *names, const char *values) {
  char left[MOST_TEXT], right[MOST_TEXT], *rest = left, *others = right;
  strcpy(left, names);
  strcpy(right, values);
  while (rest && others) {
    const char *name = strsep(&rest, "/"), *value = strsep(&others, "/");
    for (int i = 0; i < run->line_count; i++) substitute(run->lines[i].text, name, value);
  }
}

/* The run, and instead of one with `each` lines those of its values. */
static void add_runs(struct run *run) {
  int each = 0;
  while (each < run->line_count && strncmp(run->lines[each].text, "  each ", 7) != 0) each++;
  if (each == run->line_count) {
    must(run_count < MOST_RUNS);
    runs[run_count++] = run;
    return;
  }
  char values[MOST_TEXT], *text = values + 7, *value;
  strcpy(values, run->lines[each].text);
  memmove(&run->lines[each], &run->lines[each + 1],
          sizeof *run->lines * (size_t)(--run->line_count - each));
  const char *names = next_word(&text);
  while ((value = next_word(&text))) {
    struct run *copy = malloc(sizeof *copy);
    *copy = *run;
    snprintf(copy->name + strlen(copy->name), sizeof copy->name - strlen(copy->name), ", %s",
             value);
    substitute_each(copy, names, value);
    add_runs(copy);
  }
  free(run);
}

void read_file(char *file) {
  char path[512], text[MOST_TEXT];
  struct run *run = NULL;
  char *only = strchr(file, ':');
  if (only) *only++ = '\0';
  for (char *at = only; at && *at; at++)
    if (*at == '_') *at = ' ';
  snprintf(path, sizeof path, "%s/%s.txt", SCENARIOS, file);
  file_name = file;
  FILE *open_file = fopen(path, "re");
  if (!open_file) {
    fprintf(stderr, "there are no scenarios %s\n", path);
    exit(2);
  }
  for (int line = 1; fgets(text, sizeof text, open_file); line++) {
    must(strchr(text, '\n')); /* else the line is too long */
    text[strcspn(text, "\n")] = '\0';
    if (text[0] == '#' || text[indent_of(text)] == '\0') continue;
    if (text[0] != ' ') {
      if (run) add_runs(run);
      run = only && !strstr(text, only) ? NULL : calloc(1, sizeof *run);
      if (run) run->file = file, strcpy(run->name, text);
      continue;
    }
    if (!run) continue;
    if (strncmp(text + indent_of(text), "+ ", 2) == 0) { /* the line before goes on */
      char *before = run->lines[run->line_count - 1].text;
      must(strlen(before) + strlen(text) < MOST_TEXT);
      strcat(before, text + indent_of(text) + 1);
      continue;
    }
    must(run->line_count < MOST_LINES);
    run->lines[run->line_count] = (struct step){.line = line};
    strcpy(run->lines[run->line_count++].text, text);
  }
  if (run) add_runs(run);
  fclose(open_file);
}

/* The next step of a line, or NULL; semicolons in quotation marks are text. */
static char *next_step(char **line) {
  char *step = *line, *end = step;
  if (!step) return NULL;
  for (bool is_quoted = false; *end && (*end != ';' || is_quoted); end++) is_quoted ^= *end == '"';
  *line = *end ? end + 1 : NULL;
  *end = '\0';
  return step;
}

void unfold(const struct run *run, int from, int indent, const char *i) {
  while (from < run->line_count && indent_of(run->lines[from].text) >= indent) {
    struct step line = run->lines[from++];
    char *rest = line.text + indent_of(line.text), number_text[16];
    if (i) substitute(line.text, "i", i);
    if (strncmp(rest, "times ", 6) == 0) {
      int inner = indent_of(run->lines[from].text), end = from;
      for (uint64_t turn = 0; turn < number(rest + 6); turn++) {
        snprintf(number_text, sizeof number_text, "%d", (int)turn);
        unfold(run, from, inner, number_text);
      }
      while (end < run->line_count && indent_of(run->lines[end].text) >= inner) end++;
      from = end;
      continue;
    }
    for (char *one; (one = next_step(&rest));) {
      must(step_count < MOST_STEPS);
      steps[step_count] = (struct step){.line = line.line};
      strcpy(steps[step_count++].text, one + indent_of(one));
    }
  }
}
