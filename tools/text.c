/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tools/text.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ringcast/inspect.h"
#include "tools/cli.h"

/* ---- Names ----------------------------------------------------------------------------------- */

/* The length of the valid UTF-8 character at `text`, 1 to 4, and its code point; 0: the bytes are
 * none. */
static size_t character(const char *text, size_t left, uint32_t *code) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const unsigned char *at = (const unsigned char *)text;
  size_t length = 1 + (*at >= 0xc0) + (*at >= 0xe0) + (*at >= 0xf0);
  if ((*at >= 0x80 && *at < 0xc2) || *at > 0xf4 || length > left) return 0;
  *code = *at;
  if (length > 1) *code &= 0xffu >> (length + 1);
  for (size_t i = 1; i < length; i++) {
    if ((at[i] & 0xc0) != 0x80) return 0;
    *code = *code << 6 | (at[i] & 0x3f);
  }
  bool is_surrogate = *code >= 0xd800 && *code < 0xe000;
  if (*code < least[length] || *code > 0x10ffff || is_surrogate) return 0;
  return length;
}

char *text_clean(const char *text, char *out, size_t size) {
  ringcast_printable(text, strlen(text), out, size);
  return out;
}

static void put_escape(uint32_t code, FILE *out) {
  if (code < 0x10000) fprintf(out, "\\u%04x", (unsigned)code);
  else
    fprintf(out, "\\u%04x\\u%04x", 0xd7c0 + (unsigned)(code >> 10),
            0xdc00 + (unsigned)(code & 0x3ff));
}

void text_json(const char *text, size_t bytes, FILE *out) {
  const char *end = text + bytes;
  fputc('"', out);
  while (text < end) {
    char shown[TEXT_CLEAN * 4 + 1];
    uint32_t code;
    size_t length = character(text, (size_t)(end - text), &code);
    if (length == 0) fputs("\\ufffd", out);
    else if (code == '"' || code == '\\') fprintf(out, "\\%c", (int)code);
    else if (ringcast_printable(text, length, shown, sizeof shown) == length) fputs(shown, out);
    else put_escape(code, out);
    text += length > 0 ? length : 1;
  }
  fputc('"', out);
}

/* How many columns a clean text takes: one for each character. */
static int width_of_part(const char *text, size_t length) {
  int width = 0;
  for (size_t i = 0; i < length; i++) width += ((unsigned char)text[i] & 0xc0) != 0x80;
  return width;
}

static int width_of(const char *text) { return width_of_part(text, strlen(text)); }

/* ---- Lines ----------------------------------------------------------------------------------- */

static void wrap_line(const char *at, const char *end, int columns, int indent, FILE *out) {
  for (int used = 0; at < end;) {
    int blanks = (int)strspn(at, " "), word = (int)strcspn(at + blanks, " \n");
    int width = width_of_part(at + blanks, (size_t)word);
    if (columns > 0 && used > indent && used + blanks + width > columns) {
      fprintf(out, "\n%*s", indent, "");
      used = indent;
      at += blanks;
      blanks = 0;
    }
    fprintf(out, "%.*s", blanks + word, at);
    used += blanks + width;
    at += blanks + word;
  }
  fputc('\n', out);
}

void text_wrap(const char *text, int columns, int indent, FILE *out) {
  while (*text) {
    const char *end = text + strcspn(text, "\n");
    wrap_line(text, end, columns, indent, out);
    text = end + (*end == '\n');
  }
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static struct text_number scaled(double value, double step, const char *const units[], int count) {
  struct text_number number;
  int unit = 0;
  while (value >= step * 0.9995 && unit < count - 1) {
    value /= step;
    unit++;
  }
  int digits = 2 - (value >= 9.995) - (value >= 99.95);
  if (unit == 0) digits = 0;
  snprintf(number.text, sizeof number.text, "%.*f %s", digits, value, units[unit]);
  return number;
}

struct text_number text_bytes(double bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  return scaled(bytes, 1024, units, 5);
}

struct text_number text_duration(double ns) {
  static const char *const units[] = {"ns", "us", "ms", "s"};
  struct text_number number = {"-"};
  if (ns < 1) return number;
  if (ns < 600e9) return scaled(ns, 1000, units, 4);
  if (ns < 7200e9) snprintf(number.text, sizeof number.text, "%.0f min", ns / 60e9);
  else snprintf(number.text, sizeof number.text, "%.1f h", ns / 3600e9);
  return number;
}

struct text_number text_rate(double per_second) {
  struct text_number number = {"-"};
  int digits = 1;
  if (!isfinite(per_second)) return number;
  if (per_second >= 99.95 || per_second == 0) digits = 0;
  snprintf(number.text, sizeof number.text, "%.*f", digits, per_second);
  return number;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void add(struct text_table *table, char *cell) {
  if (table->cells == table->room) {
    table->room = 2 * table->room + 64;
    table->cell = cli_resize(table->cell, table->room, sizeof *table->cell);
  }
  table->cell[table->cells++] = cell;
}

void text_table_open(struct text_table *table, const char *const heads[], int columns) {
  *table = (struct text_table){.columns = columns};
  for (int i = 0; i < columns; i++) {
    table->right[i] = heads[i][0] == '>';
    text_table_add(table, "%s", heads[i] + table->right[i]);
  }
}

void text_table_add(struct text_table *table, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  size_t size = TEXT_CLEAN * strlen(text) + 1;
  add(table, text_clean(text, cli_resize(NULL, size, 1), size));
}

/* A cell of the last column, on a line of its own, after the column's head. */
static void print_apart(const struct text_table *table, size_t cell, FILE *out) {
  char line[TEXT_CLEAN * 1024];
  if (cell < (size_t)table->columns || !*table->cell[cell]) return;
  snprintf(line, sizeof line, "  %s %s", table->cell[table->columns - 1], table->cell[cell]);
  text_wrap(line, table->most, 4, out);
}

/* A column of width 0 is not shown. */
static void print_rows(const struct text_table *table, const int widths[TEXT_COLUMNS], bool apart,
                       FILE *out) {
  int owed = 0; /* spaces before the next text: a line does not end with spaces */
  for (size_t i = 0; i < table->cells; i++) {
    int column = (int)(i % (size_t)table->columns),
        space = widths[column] - width_of(table->cell[i]);
    bool right = table->right[column];
    if (widths[column] > 0) {
      if (right) owed += space;
      if (*table->cell[i]) {
        fprintf(out, "%*s%s", owed, "", table->cell[i]);
        owed = 0;
      }
      owed += 2;
      if (!right) owed += space;
    }
    if (column < table->columns - 1) continue;
    fputc('\n', out);
    if (apart) print_apart(table, i, out);
    owed = 0;
  }
}

/* Where character `count` of the text begins. */
static char *skip(char *text, int count) {
  for (; *text; text++) {
    if (((unsigned char)*text & 0xc0) == 0x80) continue;
    if (count-- == 0) break;
  }
  return text;
}

/* A name and the pid behind it are told by their ends: the middle goes. */
static void elide(char *text, int width) {
  const int own = width_of(text), head = (width - 3) / 2, tail = width - 3 - head;
  if (own <= width) return;
  char *from = skip(text, head);
  const char *to = skip(text, own - tail);
  for (int i = 0; i < 3; i++) *from++ = '.';
  memmove(from, to, strlen(to) + 1);
}

/* Makes the table no wider than the screen, if that is possible. */
static void narrow(struct text_table *table, int widths[TEXT_COLUMNS], int whole) {
  enum { LEAST = 12 };
  for (const char *drop = table->drops; whole > table->most && drop && *drop; drop++) {
    whole -= widths[*drop - '0'] + 2;
    widths[*drop - '0'] = 0;
  }
  const int first = widths[0] - (whole - table->most);
  if (whole <= table->most || widths[0] <= LEAST) return;
  widths[0] = first < LEAST ? LEAST : first;
  for (size_t i = 0; i < table->cells; i += (size_t)table->columns)
    elide(table->cell[i], widths[0]);
}

void text_table_print(struct text_table *table, FILE *out) {
  int widths[TEXT_COLUMNS] = {0}, whole = -2;
  for (size_t i = 0; i < table->cells; i++) {
    int *width = &widths[i % (size_t)table->columns], own = width_of(table->cell[i]);
    if (own > *width) *width = own;
  }
  for (int i = 0; i < table->columns; i++) whole += widths[i] + 2;
  bool apart = table->most > 0 && whole > table->most;
  if (apart) {
    const int last = table->columns - 1;
    whole -= widths[last] + 2;
    widths[last] = 0;
    narrow(table, widths, whole);
  }
  print_rows(table, widths, apart, out);
  for (size_t i = 0; i < table->cells; i++) free(table->cell[i]);
  free(table->cell);
  *table = (struct text_table){0};
}

enum { NAME = 26, CELL = 10 }; /* columns of a name; of a figure, at least */

/* ---- Reports: JSON --------------------------------------------------------------------------- */

static void break_line(const struct report *report) {
  if (report->line) putchar(' ');
  else printf("\n%*s", 2 * report->depth, "");
}

static void begin_figure(struct report *report, const char *key) {
  if (report->follows) putchar(',');
  if (report->depth > 0 && (report->follows || !report->line)) break_line(report);
  report->follows = true;
  if (!key) return;
  text_json(key, strlen(key), stdout);
  fputs(": ", stdout);
}

/* ---- Reports: text --------------------------------------------------------------------------- */

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
  if (column < NAME) printf("%*s", NAME - column, "");
  printf("%s\n", report->cells);
  *report->keys = *report->cells = '\0';
}

static void add_figure(struct report *report, const char *key, const char *word) {
  char *name = report->around[report->depth - 1].name;
  if (report->depth == 1) {
    if (*report->top) putchar('\n');
    printf("%-*s%s\n", NAME, key, word);
    *report->top = '\0';
  } else if (!key) {
    if (*report->cells) append(report->cells, 0, ", ");
    append(report->cells, 0, word);
  } else if (!*name) {
    snprintf(name, sizeof report->around[0].name, "%s", word);
    snprintf(report->title, sizeof report->title, "%s", key);
  } else {
    int width = (int)strlen(key) + 2;
    if (width < CELL + 2) width = CELL + 2;
    append(report->keys, width, key);
    append(report->cells, width, word);
  }
}

/* ---- Reports: both --------------------------------------------------------------------------- */

void report_open(struct report *report, const char *key, char bracket) {
  if (report->json) {
    begin_figure(report, key);
    putchar(bracket);
  } else if (report->depth > 0) {
    end_row(report);
    if (report->depth == 1) *report->title = '\0';
    char *name = report->around[report->depth].name;
    *name = '\0';
    if (key) snprintf(name, sizeof report->around[0].name, "%s", key);
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
    if (*value) add_figure(report, key, text_clean(value, clean, sizeof clean));
    return;
  }
  begin_figure(report, key);
  text_json(value, strlen(value), stdout);
}

static void plain(struct report *report, const char *key, const char *value) {
  if (!report->json) {
    add_figure(report, key, value);
    return;
  }
  begin_figure(report, key);
  fputs(value, stdout);
}

void report_integer(struct report *report, const char *key, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%" PRId64, value);
  plain(report, key, text);
}

void report_number(struct report *report, const char *key, double value) {
  char text[32];
  if (!isfinite(value)) {
    report_null(report, key);
    return;
  }
  snprintf(text, sizeof text, fabs(value) >= 1e4 ? "%.0f" : "%.4g", value);
  plain(report, key, text);
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
