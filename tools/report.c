/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/text.h"

enum { NAME = 26, CELL = 10 }; /* columns of a name; of a figure, at least */

/* ---- JSON ------------------------------------------------------------------------------------ */

static void break_line(const struct report *report) {
  if (report->line) putchar(' ');
  else printf("\n%*s", 2 * report->depth, "");
}

static void begin(struct report *report, const char *key) {
  if (report->follows) putchar(',');
  if (report->depth > 0 && (report->follows || !report->line)) break_line(report);
  report->follows = true;
  if (!key) return;
  text_json(key, strlen(key), stdout);
  fputs(": ", stdout);
}

/* ---- Text ------------------------------------------------------------------------------------ */

static void append(char text[512], int width, const char *word) {
  size_t length = strlen(text);
  snprintf(text + length, 512 - length, "%*s", width, word);
}

/* Prints the row, below its keys if the last row had other keys. Arrays of objects do not name a
 * row. */
static void end_row(struct report *report) {
  int column = 0;
  if (!*report->cells) return;
  if (strcmp(report->top, report->keys) != 0)
    printf("\n%-*s%s\n", NAME, report->title, report->keys);
  memcpy(report->top, report->keys, sizeof report->top);
  for (int i = 1; i < report->depth; i++)
    if (!report->around[i].is_array || i == report->depth - 1)
      column += printf("%s ", report->around[i].name);
  printf("%*s%s\n", NAME > column ? NAME - column : 0, "", report->cells);
  *report->keys = *report->cells = '\0';
}

static void add(struct report *report, const char *key, const char *word) {
  char *name = report->around[report->depth - 1].name;
  if (report->depth == 1) {
    printf("%s%-*s%s\n", *report->top ? "\n" : "", NAME, key, word);
    *report->top = '\0';
  } else if (!key) {
    append(report->cells, 0, *report->cells ? ", " : "");
    append(report->cells, 0, word);
  } else if (!*name) {
    snprintf(name, sizeof report->around[0].name, "%s", word);
    snprintf(report->title, sizeof report->title, "%s", key);
  } else {
    int width = (strlen(key) > CELL ? (int)strlen(key) : CELL) + 2;
    append(report->keys, width, key);
    append(report->cells, width, word);
  }
}

/* ---- Both ------------------------------------------------------------------------------------ */

void report_open(struct report *report, const char *key, char bracket) {
  if (report->json) {
    begin(report, key);
    putchar(bracket);
  } else if (report->depth > 0) {
    end_row(report);
    if (report->depth == 1) *report->title = '\0';
    snprintf(report->around[report->depth].name, sizeof report->around[0].name, "%s",
             key ? key : "");
  }
  report->around[report->depth++].is_array = bracket == '[';
  report->follows = false;
}

void report_close(struct report *report) {
  if (!report->json) end_row(report);
  char bracket = report->around[--report->depth].is_array ? ']' : '}';
  if (!report->json) return;
  if (report->follows && !report->line) break_line(report);
  putchar(bracket);
  report->follows = true;
  if (report->depth == 0) putchar('\n');
}

void report_string(struct report *report, const char *key, const char *value) {
  if (!report->json) {
    char clean[TEXT_CLEAN * PATH_MAX];
    if (*value) add(report, key, text_clean(value, clean, sizeof clean));
    return;
  }
  begin(report, key);
  text_json(value, strlen(value), stdout);
}

static void plain(struct report *report, const char *key, const char *value) {
  if (!report->json) {
    add(report, key, value);
    return;
  }
  begin(report, key);
  fputs(value, stdout);
}

void report_integer(struct report *report, const char *key, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%" PRId64, value);
  plain(report, key, text);
}

void report_number(struct report *report, const char *key, double value) {
  char text[32] = "null";
  if (isfinite(value)) snprintf(text, sizeof text, fabs(value) >= 1e4 ? "%.0f" : "%.4g", value);
  plain(report, key, report->json || isfinite(value) ? text : "-");
}

void report_boolean(struct report *report, const char *key, bool value) {
  plain(report, key, value ? "true" : "false");
}

void report_null(struct report *report, const char *key) {
  plain(report, key, report->json ? "null" : "-");
}

void report_percentiles(struct report *report, const char *key, double p50, double p99) {
  report_open(report, key, '{');
  report_number(report, "p50", p50);
  report_number(report, "p99", p99);
  report_close(report);
}
