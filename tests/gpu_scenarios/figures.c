/* SPDX-License-Identifier: Apache-2.0 */
/* What a scenario has measured, and how that is printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu_scenarios/scenario.h"

double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static struct figure *add_figure(const char *name, const char *suffix) {
  int number = board->figure_count++;
  must(number < MOST_FIGURES);
  struct figure *figure = &board->figures[number];
  snprintf(figure->name, sizeof figure->name, "%s%s", name, suffix);
  return figure;
}

void note(const char *name, const char *suffix, double value) { add_figure(name, suffix)->value = value; }

void note_result(const char *name, long result) {
  struct figure *figure = add_figure(name, "");
  const char *text = result == 0 ? "success" : result > 0 ? rc_cuda_name((rc_cu_result)result) : "";
  snprintf(figure->text, sizeof figure->text, "%ld%s%s", result, *text ? " " : "", text);
}

static int compare(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

void print_figures(void) {
  static double values[MOST_FIGURES];
  const char *comma = "";
  for (int i = 0; i < board->figure_count; i++) {
    const struct figure *figure = &board->figures[i];
    bool is_first = true;
    size_t count = 0;
    for (int k = 0; k < board->figure_count; k++) {
      if (strcmp(board->figures[k].name, figure->name) != 0) continue;
      is_first &= k >= i;
      values[count++] = board->figures[k].value;
    }
    if (!is_first) continue;
    qsort(values, count, sizeof *values, compare);
    if (*figure->text) printf("%s\"%s\": \"%s\"", comma, figure->name, figure->text);
    else if (count == 1) printf("%s\"%s\": %.7g", comma, figure->name, *values);
    else
      printf("%s\"%s_p50\": %.5g, \"%s_max\": %.5g", comma, figure->name, values[count / 2], figure->name,
             values[count - 1]);
    comma = ", ";
  }
}

void print_quoted(const char *text) {
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') putchar('\\');
    putchar((unsigned char)*text < ' ' ? ' ' : *text);
  }
}
